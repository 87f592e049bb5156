/* The one file that knows libcurl. Every transport has a multi handle of its own, used by one
 * thread at a time: curl_easy_perform would hold the fork gate for as long as a transfer takes,
 * steps of curl_multi_perform hold it for what has arrived. */
#include "fetch/http_priv.h"

#include "base/memory.h"
#include "base/thread.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKETS     16        /* open at once in one transport; its cache keeps KEPT */
#define KEPT        4L        /* connections, of the origins that a chain of redirects visits */
#define SPARE_BODY  (1 << 16) /* bytes of a body nobody wants that are read to keep a connection */
#define TOO_LARGE   100       /* CURLE_TOO_LARGE, which libcurl knows from 8.6 on */
#define OLDEST      0x075700  /* 7.87: QUICK_EXIT */
#define OLDEST_TEXT "7.87"

struct rp_http_transport {
    const struct rp_http_options *options;
    CURL *easy;
    CURLM *multi;
    bool added;           /* the easy handle is in the multi handle */
    bool polled;          /* perform comes next */
    bool forbidden;       /* an address was refused */
    int sockets[SOCKETS]; /* -1: free; changed inside the fork gate only */
    int64_t window_ns, window_moved;
    struct rp_http_request request;
    struct rp_http_reply reply;
    struct curl_slist headers[1 + RP_HTTP_LINES];
    char range[48], error[CURL_ERROR_SIZE];
};

static bool is_wanted(const struct rp_http_reply *reply)
{
    return reply->row == RP_ROW_GOOD || reply->row == RP_ROW_SHORT;
}

/* Whether the address rule lets this peer be asked. */
static bool permits(const struct rp_http_transport *transport, int family, const void *bytes)
{
    if (!transport->request.check_address || transport->options->proxy != NULL) {
        return true; /* behind a proxy the peer is the proxy */
    }
    enum rp_address kind = rp_address_kind(bytes, family == AF_INET6 ? 16 : 4);
    return kind == RP_ADDRESS_PUBLIC ||
           (kind == RP_ADDRESS_PRIVATE && transport->options->allow_private_hosts);
}

static curl_socket_t open_socket(void *cookie, curlsocktype purpose, struct curl_sockaddr *address)
{
    (void)purpose; /* there is only one */
    struct rp_http_transport *transport = cookie;
    struct sockaddr_storage peer;
    memset(&peer, 0, sizeof(peer));
    memcpy(&peer, &address->addr,
           address->addrlen < sizeof(peer) ? address->addrlen : sizeof(peer));
    const void *bytes = address->family == AF_INET6
                            ? (const void *)&((struct sockaddr_in6 *)(void *)&peer)->sin6_addr
                            : (const void *)&((struct sockaddr_in *)(void *)&peer)->sin_addr;
    if ((address->family != AF_INET && address->family != AF_INET6) ||
        !permits(transport, address->family, bytes)) {
        transport->forbidden = true;
        return CURL_SOCKET_BAD;
    }
    for (int i = 0; i < SOCKETS; i++) {
        if (transport->sockets[i] < 0) {
            transport->sockets[i] =
                socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
            transport->reply.connections++;
            return transport->sockets[i] < 0 ? CURL_SOCKET_BAD : transport->sockets[i];
        }
    }
    return CURL_SOCKET_BAD;
}

static int close_socket(void *cookie, curl_socket_t fd)
{
    struct rp_http_transport *transport = cookie;
    for (int i = 0; i < SOCKETS; i++) {
        if (transport->sockets[i] == fd) {
            transport->sockets[i] = -1;
        }
    }
    return close(fd);
}

/* Before each request, on connections that are used again too: a connection made for an origin that
 * the rule exempts is no way around it. */
static int before_request(void *cookie, char *peer, char *local, int peer_port, int local_port)
{
    (void)local;
    (void)peer_port;
    (void)local_port; /* the rule is about the address */
    struct rp_http_transport *transport = cookie;
    uint8_t bytes[16];
    int family = strchr(peer, ':') != NULL ? AF_INET6 : AF_INET;
    if (inet_pton(family, peer, bytes) != 1 || !permits(transport, family, bytes)) {
        if (transport->request.check_address && transport->options->proxy == NULL) {
            transport->forbidden = true;
            return CURL_PREREQFUNC_ABORT;
        }
    }
    transport->window_ns = rp_now_ns(); /* connecting has its own limit */
    return CURL_PREREQFUNC_OK;
}

static size_t on_header(char *line, size_t size, size_t n, void *cookie)
{
    struct rp_http_transport *transport = cookie;
    struct rp_http_reply *reply = &transport->reply;
    reply->moved += (int64_t)(size * n);
    bool complete = reply->head.complete;
    if (rp_http_head_line(&reply->head, line, size * n) != RP_OK) {
        reply->end = RP_HTTP_HEAD_LIMIT;
        return 0;
    }
    if (!complete && reply->head.complete) {
        reply->row = rp_http_judge(&reply->head, &transport->request.wish, &reply->why);
        bool large = reply->head.status == 200 || reply->head.status == 206;
        if (large && !is_wanted(reply)) {
            reply->end = RP_HTTP_COMPLETE; /* stop at the first bad byte */
            return 0;
        }
    }
    return size * n;
}

/* Append to a page; false: reply->end says why not. */
static bool grow(struct rp_http_growing *page, const char *data, size_t len,
                 struct rp_http_reply *reply)
{
    if ((int64_t)len > page->limit - page->len) {
        reply->end = RP_HTTP_BODY_LIMIT;
        return false;
    }
    if (page->len + (int64_t)len > page->room) {
        int64_t twice = 2 * page->room + (int64_t)len;
        int64_t room = twice < page->limit ? twice : page->limit;
        uint8_t *more = rp_realloc(page->data, (size_t)room, 1);
        if (more == NULL) {
            reply->end = RP_HTTP_NO_MEMORY;
            return false;
        }
        page->data = more;
        page->room = room;
    }
    memcpy(page->data + page->len, data, len);
    page->len += (int64_t)len;
    reply->bytes += (int64_t)len;
    return true;
}

static size_t on_body(char *data, size_t size, size_t n, void *cookie)
{
    struct rp_http_transport *transport = cookie;
    struct rp_http_reply *reply = &transport->reply;
    const struct rp_http_request *request = &transport->request;
    size_t len = size * n;
    reply->moved += (int64_t)len;
    if (is_wanted(reply) && request->growing != NULL) {
        return grow(request->growing, data, len, reply) ? len : 0;
    }
    if (!is_wanted(reply) || request->to == NULL) {
        size_t room = sizeof(reply->note) - reply->note_len, part = len < room ? len : room;
        memcpy(reply->note + reply->note_len, data, part);
        reply->note_len += part;
        if (reply->moved > SPARE_BODY) {
            reply->end = RP_HTTP_COMPLETE;
            return 0;
        }
        return len;
    }
    if ((int64_t)len > request->room - reply->bytes) {
        reply->end = RP_HTTP_MALFORMED;
        reply->why = "more bytes than announced";
        return 0;
    }
    memcpy(request->to + reply->bytes, data, len);
    reply->bytes += (int64_t)len;
    return len;
}

static CURLcode set_limits(CURL *easy, const struct rp_http_options *options)
{
    CURLcode code = CURLE_OK;
#define SET(option, value)                                \
    do {                                                  \
        if (code == CURLE_OK) {                           \
            code = curl_easy_setopt(easy, option, value); \
        }                                                 \
    } while (0)
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_QUICK_EXIT, 1L); /* never join the thread that looks a name up */
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_HTTP_CONTENT_DECODING, 0L);
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)options->timing.connect);
    SET(CURLOPT_BUFFERSIZE, 524288L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_MAXAGE_CONN, 60L);
    SET(CURLOPT_MAXLIFETIME_CONN, 900L);
    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (options->ca_file != NULL) {
        SET(CURLOPT_CAINFO, options->ca_file);
    }
    SET(CURLOPT_PROXY,
        options->proxy != NULL ? options->proxy : ""); /* "": not the environment's */
    SET(CURLOPT_NOPROXY, options->no_proxy != NULL ? options->no_proxy : "");
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    SET(CURLOPT_USERAGENT, options->user_agent);
    return code;
}

static CURLcode set_callbacks(struct rp_http_transport *transport)
{
    CURL *easy = transport->easy;
    CURLcode code = CURLE_OK;
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, transport);
    SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    SET(CURLOPT_CLOSESOCKETDATA, transport);
    SET(CURLOPT_PREREQFUNCTION, before_request);
    SET(CURLOPT_PREREQDATA, transport);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, transport);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, transport);
    SET(CURLOPT_ERRORBUFFER, transport->error);
    return code;
}

/* Everything that asks libcurl for memory; inside the gate. */
static CURLcode make_handles(struct rp_http_transport *transport)
{
    /* Counted by libcurl, and never given back: a thread that looks a name up may outlive us. */
    CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (code != CURLE_OK) {
        return code;
    }
    transport->easy = curl_easy_init();
    transport->multi = curl_multi_init();
    if (transport->easy == NULL || transport->multi == NULL) {
        return CURLE_OUT_OF_MEMORY;
    }
    (void)curl_multi_setopt(transport->multi, CURLMOPT_MAXCONNECTS, KEPT); /* known since 7.16 */
    code = set_limits(transport->easy, transport->options);
    return code == CURLE_OK ? set_callbacks(transport) : code;
}

rp_status rp_http_transport_new(const struct rp_http_options *options, rp_http_transport **out,
                                struct rp_error *err)
{
    const curl_version_info_data *version = curl_version_info(CURLVERSION_NOW);
    int needed = CURL_VERSION_ASYNCHDNS | CURL_VERSION_THREADSAFE | CURL_VERSION_SSL;
    if (version->version_num < OLDEST || (version->features & needed) != needed) {
        RP_FAIL(err, RP_E_UNSUPPORTED,
                "libcurl %s is older than " OLDEST_TEXT ", or without TLS, threads or its resolver",
                version->version);
    }
    rp_http_transport *transport = rp_calloc(1, sizeof(*transport));
    if (transport == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a connection");
    }
    transport->options = options;
    for (int i = 0; i < SOCKETS; i++) {
        transport->sockets[i] = -1;
    }
    rp_gate_enter();
    CURLcode code = make_handles(transport);
    rp_gate_leave();
    if (code != CURLE_OK) {
        rp_http_transport_free(&transport);
        if (code == CURLE_OUT_OF_MEMORY) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a connection");
        }
        RP_FAIL(err, RP_E_UNSUPPORTED, "libcurl %s: %s", version->version,
                curl_easy_strerror(code));
    }
    *out = transport;
    return RP_OK;
}

static CURLcode set_request(struct rp_http_transport *transport)
{
    const struct rp_http_request *request = &transport->request;
    CURL *easy = transport->easy;
    CURLcode code = CURLE_OK;
    /* Lists of our own: libcurl only reads them, and the token is not copied about. */
    transport->headers[0].data = (char *)(uintptr_t) "Accept-Encoding: identity";
    transport->headers[0].next = NULL;
    for (int i = 0; i < RP_HTTP_LINES && request->lines[i] != NULL; i++) {
        transport->headers[i].next = &transport->headers[i + 1];
        transport->headers[i + 1].data = (char *)(uintptr_t)request->lines[i];
        transport->headers[i + 1].next = NULL;
    }
    if (request->first >= 0) {
        (void)snprintf(transport->range, sizeof(transport->range), "%lld-%lld",
                       (long long)request->first, (long long)request->last);
    }
    SET(CURLOPT_URL, request->url);
    SET(CURLOPT_RANGE, request->first >= 0 ? transport->range : NULL);
    SET(CURLOPT_HTTPHEADER, transport->headers);
    SET(CURLOPT_FRESH_CONNECT, request->fresh ? 1L : 0L);
    return code;
}

rp_status rp_http_transport_begin(rp_http_transport *transport,
                                  const struct rp_http_request *request, struct rp_error *err)
{
    transport->request = *request;
    struct rp_http_reply *reply = &transport->reply;
    reply->end = RP_HTTP_UNDER_WAY;
    reply->row = RP_ROW_GOOD;
    reply->why = "";
    reply->bytes = reply->moved = reply->connections = 0;
    reply->note_len = 0;
    reply->text[0] = transport->error[0] = '\0';
    rp_http_head_clear(&reply->head);
    transport->forbidden = false;
    transport->polled = true;
    transport->window_ns = rp_now_ns();
    transport->window_moved = 0;
    rp_gate_enter();
    CURLcode code = set_request(transport);
    CURLMcode added =
        code == CURLE_OK ? curl_multi_add_handle(transport->multi, transport->easy) : CURLM_OK;
    rp_gate_leave();
    transport->added = code == CURLE_OK && added == CURLM_OK;
    if (!transport->added) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a request");
    }
    return RP_OK;
}

static enum rp_http_end end_of(CURLcode code)
{
    switch (code) {
    case CURLE_OK: return RP_HTTP_COMPLETE;
    case CURLE_OUT_OF_MEMORY: return RP_HTTP_NO_MEMORY;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL: return RP_HTTP_MALFORMED; /* HTTP/0.9, or none at all */
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR: return RP_HTTP_UNTRUSTED;
    case CURLE_URL_MALFORMAT:
    case CURLE_BAD_FUNCTION_ARGUMENT: return RP_HTTP_UNUSABLE;
    default: return RP_HTTP_BROKEN;
    }
}

/* Bytes that the body of a wanted answer has. */
static int64_t announced(const struct rp_http_transport *transport)
{
    const struct rp_http_head *head = &transport->reply.head;
    return transport->request.wish.whole ? head->content_length : head->last - head->first + 1;
}

static void conclude(struct rp_http_transport *transport, CURLcode code)
{
    struct rp_http_reply *reply = &transport->reply;
    (void)snprintf(reply->text, sizeof(reply->text), "%.159s",
                   transport->error[0] != '\0' ? transport->error : curl_easy_strerror(code));
    if (reply->end != RP_HTTP_UNDER_WAY) {
        return; /* a callback ended it */
    }
    if (reply->head.complete && !is_wanted(reply)) {
        reply->end = RP_HTTP_COMPLETE; /* the answer is there, whatever became of its body */
        return;
    }
    reply->end = end_of(code);
    if (reply->end == RP_HTTP_COMPLETE) {
        bool cut = transport->request.to != NULL && reply->bytes < announced(transport);
        reply->end = !reply->head.complete || cut ? RP_HTTP_BROKEN : RP_HTTP_COMPLETE;
    }
    else if (transport->forbidden) {
        reply->end = RP_HTTP_FORBIDDEN;
    }
    else if ((code == CURLE_OUT_OF_MEMORY || (int)code == TOO_LARGE) && reply->head.lines > 0 &&
             !reply->head.complete) {
        reply->end = RP_HTTP_HEAD_LIMIT; /* how libcurl refuses one endless line */
    }
}

static bool has_stalled(struct rp_http_transport *transport)
{
    const struct rp_http_timing *timing = &transport->options->timing;
    int64_t now = rp_now_ns();
    if (now - transport->window_ns < timing->stall * 1000000) {
        return false;
    }
    int64_t moved = transport->reply.moved - transport->window_moved;
    transport->window_ns = now;
    transport->window_moved = transport->reply.moved;
    return moved < timing->stall_speed * timing->stall / 1000;
}

void rp_http_transport_step(rp_http_transport *transport, int wait_ms)
{
    struct rp_http_reply *reply = &transport->reply;
    if (!transport->polled) {
        /* Outside the gate: it waits. It looks at this handle's descriptors alone. */
        (void)curl_multi_poll(transport->multi, NULL, 0, wait_ms, NULL);
    }
    transport->polled = false;
    rp_gate_enter();
    int running = 0, left;
    CURLMcode multi = curl_multi_perform(transport->multi, &running);
    CURLMsg *message = curl_multi_info_read(transport->multi, &left);
    bool done = message != NULL && message->msg == CURLMSG_DONE;
    CURLcode code = done ? message->data.result : CURLE_OK;
    rp_gate_leave();
    if (done) {
        conclude(transport, code);
    }
    else if (multi != CURLM_OK || running == 0) {
        conclude(transport, CURLE_OUT_OF_MEMORY);
    }
    else if (has_stalled(transport)) {
        (void)snprintf(reply->text, sizeof(reply->text), "stalled");
        reply->end = RP_HTTP_BROKEN;
    }
}

struct rp_http_reply *rp_http_transport_reply(rp_http_transport *transport)
{
    return &transport->reply;
}

void rp_http_transport_finish(rp_http_transport *transport)
{
    if (transport->added) {
        rp_gate_enter();
        (void)curl_multi_remove_handle(transport->multi, transport->easy); /* it was added */
        rp_gate_leave();
        transport->added = false;
    }
}

void rp_http_transport_abandon(rp_http_transport *transport)
{
    for (int i = 0; i < SOCKETS; i++) {
        if (transport->sockets[i] >= 0) {
            (void)close(transport->sockets[i]); /* the parent's connection stays open */
            transport->sockets[i] = -1;
        }
    }
}

void rp_http_transport_free(rp_http_transport **out)
{
    rp_http_transport *transport = *out;
    *out = NULL;
    rp_http_transport_finish(transport);
    rp_gate_enter();
    curl_easy_cleanup(transport->easy);
    if (transport->multi != NULL) {
        (void)curl_multi_cleanup(transport->multi); /* its only handle is gone */
    }
    rp_gate_leave();
    explicit_bzero(transport, sizeof(*transport)); /* the last Location may be a signed URL */
    rp_free(transport);
}
