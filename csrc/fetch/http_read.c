/* One call, in order: where are the file's bytes (locate), may that origin be asked (admit), one
 * exchange (ask), its redirects (follow), and what an answer that is not good means
 * (http_policy.c); again, until every byte is there or the verdict is an end. */
#include "fetch/http_state_priv.h"

#include "base/counters.h"
#include "base/memory.h"
#include "base/thread.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define MS 1000000LL

struct call {
    rp_http_client *client;
    const struct rp_http_file *file;
    const struct rp_http_watch *watch;
    const struct rp_http_timing *timing;
    struct rp_error *err;
    struct rp_http_info *info;      /* probe: where the answer goes; else NULL */
    int64_t offset, len, got, best; /* got <= best <= len; best: most bytes there ever were */
    uint8_t *to;
    struct rp_http_tries tries;
    int64_t last_new_ns, watched_ns;
    int requests;
    bool reconnect;
    /* where the bytes are */
    struct rp_url file_url;
    struct rp_http_known *known; /* shared */
    struct rp_http_known seen;   /* what it was when looked at */
    bool resolver;               /* others wait for this call */
    bool settled;                /* in this try */
    /* the chain of redirects under way */
    bool moved, foreign, secrets; /* beyond the file's URL, its origin; the token may be sent */
    int hops;
    uint64_t visited[24];
    char linked_etag[RP_VERSION_MAX];
    int64_t life_ns;
    /* the last answer */
    enum rp_http_row row;
    struct rp_http_seen last;
    char cause[480];
    bool asked_too_long; /* the server wants a wait beyond the deadline */
    char origin[RP_ORIGIN_MAX];
    char url[RP_URL_MAX + 1], next[RP_URL_MAX + 1];
};

static const char *text_of(const char *text)
{
    return text != NULL ? text : "";
}

static rp_status fail(const struct call *call, rp_status code)
{
    char shown[sizeof(((struct rp_error *)0)->file)];
    const char *again = call->requests == 1 ? "request" : "requests";
    if (code == RP_E_TIMEOUT && !call->asked_too_long) {
        (void)rp_error_set(call->err, code, "no new byte for %.1f s, %d %s; last: %s",
                           (double)call->timing->network / 1000, call->requests, again,
                           call->cause[0] != '\0' ? call->cause : "no answer yet");
    }
    else {
        (void)rp_error_set(call->err, code, "%s, %d %s", call->cause, call->requests, again);
    }
    if (call->err != NULL && call->last.status > 0) {
        call->err->sys = call->last.status;
    }
    rp_url_redact(call->file->url, shown, sizeof(shown));
    rp_error_at_file(call->err, shown, call->info == NULL ? call->offset + call->got : -1,
                     call->info == NULL ? call->len - call->got : -1);
    return code;
}

/* Whether the call may go on. */
static rp_status check(struct call *call)
{
    int64_t now = rp_now_ns();
    bool ended = rp_http_client_ended(call->client);
    if (!ended && call->watch != NULL && now - call->watched_ns >= RP_HTTP_SLICE_MS * MS) {
        call->watched_ns = now;
        ended = call->watch->ended(call->watch->cookie);
    }
    if (ended) {
        (void)snprintf(call->cause, sizeof(call->cause), "the client was closed while it read");
        return fail(call, RP_E_CLOSED);
    }
    if (now - call->last_new_ns >= call->timing->network * MS) {
        return fail(call, RP_E_TIMEOUT);
    }
    return RP_OK;
}

static int64_t left_ns(const struct call *call)
{
    return call->last_new_ns + call->timing->network * MS - rp_now_ns();
}

static rp_status pause_until(struct call *call, int64_t until_ns, int64_t *counter)
{
    int64_t start = rp_now_ns(), now = start;
    rp_status status = RP_OK;
    while (status == RP_OK && now < until_ns) {
        rp_http_client_wait(call->client, until_ns);
        status = check(call);
        now = rp_now_ns();
    }
    rp_count(counter, now - start);
    return status;
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return hash;
}

/* Where to ask; others of the same file wait until the first has found out. */
static rp_status locate(struct call *call)
{
    call->moved = call->foreign = call->settled = false;
    call->hops = 0;
    call->linked_etag[0] = '\0';
    call->secrets = true;
    for (;;) {
        rp_http_client_look(call->client, call->known, &call->seen, call->url);
        if (call->seen.state != RP_HTTP_RESOLVING) {
            break;
        }
        rp_http_client_wait(call->client, rp_now_ns() + RP_HTTP_SLICE_MS * MS);
        RP_TRY(check(call));
    }
    call->resolver = call->seen.state == RP_HTTP_UNRESOLVED;
    if (call->resolver) {
        rp_count(&rp_http_client_stats(call->client)->resolves, 1);
    }
    if (call->url[0] == '\0') {
        (void)snprintf(call->url, sizeof(call->url), "%s", call->file->url); /* it parsed */
        call->visited[0] = hash_of(call->url);
        return RP_OK;
    }
    call->visited[0] = hash_of(call->url);
    struct rp_url target;
    RP_TRY(rp_url_parse(call->url, &target, call->err)); /* it did before */
    call->moved = true;
    call->foreign = !rp_url_same_origin(&target, &call->file_url);
    call->secrets = call->seen.secrets;
    return RP_OK;
}

/* Wait until the origin of call->url may be asked. */
static rp_status admit(struct call *call)
{
    struct rp_http_stats *stats = rp_http_client_stats(call->client);
    for (;;) {
        enum rp_http_hold hold;
        int64_t until;
        RP_TRY(rp_http_client_admit(call->client, call->origin, &hold, &until, call->err));
        if (hold == RP_HTTP_GO) {
            return RP_OK;
        }
        int64_t now = rp_now_ns(), slice = now + RP_HTTP_SLICE_MS * MS;
        if (hold == RP_HTTP_GATED && until - now > left_ns(call)) {
            (void)snprintf(call->cause, sizeof(call->cause),
                           "%.99s asks for a wait of %lld s, longer than network_timeout permits",
                           call->origin, (long long)((until - now) / (1000 * MS)) + 1);
            call->asked_too_long = true;
            return fail(call, RP_E_TIMEOUT);
        }
        RP_TRY(pause_until(call, until < slice ? until : slice,
                           hold == RP_HTTP_GATED ? &stats->gate_ns : &stats->down_ns));
    }
}

static void form_wish(const struct call *call, struct rp_http_wish *wish)
{
    const struct rp_http_file *file = call->file;
    bool linked = call->hops > 0 ? call->linked_etag[0] != '\0' : call->seen.linked;
    bool own_version = call->moved && linked;
    *wish = (struct rp_http_wish){
        .probe = call->info != NULL,
        .whole = file->whole && call->info == NULL,
        .foreign = call->foreign,
        .first = call->info != NULL ? 0 : call->offset + call->got,
        .last = call->info != NULL ? 0 : call->offset + call->len - 1,
        .size = file->size >= 0 ? file->size : call->seen.size,
    };
    if (own_version) { /* the redirect told the file's version; the target has one of its own */
        wish->etag = call->hops == 0 ? call->seen.target_etag : "";
        return;
    }
    bool pinned = text_of(file->etag)[0] != '\0' || text_of(file->last_modified)[0] != '\0';
    wish->etag = pinned ? text_of(file->etag) : call->seen.etag;
    wish->last_modified = pinned ? text_of(file->last_modified) : call->seen.last_modified;
}

/* What a good answer tells of the file, where it was not known. */
static void learn(struct call *call, const struct rp_http_head *head)
{
    struct rp_http_known *seen = &call->seen;
    if (seen->size < 0) {
        seen->size = head->status == 200 ? head->content_length : head->total;
    }
    if (call->hops > 0 || !call->moved) {
        seen->linked = call->linked_etag[0] != '\0';
        (void)snprintf(seen->target_etag, sizeof(seen->target_etag), "%s", head->etag);
    }
    if (seen->etag[0] == '\0' && seen->last_modified[0] == '\0') {
        const char *etag = seen->linked ? call->linked_etag : head->etag;
        (void)snprintf(seen->etag, sizeof(seen->etag), "%s", etag);
        (void)snprintf(seen->last_modified, sizeof(seen->last_modified), "%s", head->last_modified);
    }
}

static void inform(struct rp_http_info *info, const struct rp_http_known *seen, int status)
{
    info->size = seen->size;
    info->accepts_ranges = status != 200;
    (void)snprintf(info->etag, sizeof(info->etag), "%s", seen->etag);
    (void)snprintf(info->last_modified, sizeof(info->last_modified), "%s", seen->last_modified);
}

/* The answer is good: tell the others where the bytes are, and what the file is. */
static rp_status settle(struct call *call, const struct rp_http_head *head)
{
    struct rp_http_known *seen = &call->seen;
    call->settled = true;
    learn(call, head);
    if (call->info != NULL) {
        inform(call->info, seen, head->status);
    }
    if (seen->state == RP_HTTP_RESOLVED && call->hops == 0) {
        return RP_OK; /* as before */
    }
    seen->secrets = call->secrets;
    seen->fresh_ns = rp_now_ns() + call->life_ns / 5 * 4;
    call->resolver = false;
    return rp_http_client_settle(call->client, call->known, seen, call->moved ? call->url : "",
                                 call->err);
}

/* Life of a redirect's target, as the server's own clock sees it. */
static int64_t life_of(const struct call *call, const struct rp_http_head *head,
                       const struct rp_url *target)
{
    int64_t expiry = rp_url_expiry(target);
    if (expiry < 0) {
        return call->timing->unsigned_life_s * 1000 * MS;
    }
    int64_t now = head->date >= 0 ? head->date : (int64_t)time(NULL);
    int64_t life = expiry - now;
    return life <= 0 ? 0 : (life < 604800 ? life : 604800) * 1000 * MS;
}

static enum rp_http_row refuse(struct call *call, enum rp_http_row row, const char *why)
{
    (void)snprintf(call->cause, sizeof(call->cause), "%.99s: %s", call->origin, why);
    return row;
}

/* How the file that a redirect describes differs from the one wanted; NULL: it does not. */
static const char *changed_link(struct call *call, const struct rp_http_head *head)
{
    const struct rp_http_file *file = call->file;
    int64_t size = file->size >= 0 ? file->size : call->seen.size;
    if (head->linked_size >= 0 && size >= 0 && head->linked_size != size) {
        return "another size";
    }
    if (head->linked_etag[0] == '\0') {
        return NULL;
    }
    memcpy(call->linked_etag, head->linked_etag, sizeof(call->linked_etag));
    const char *etag = text_of(file->etag)[0] != '\0' ? file->etag : call->seen.etag;
    return etag[0] != '\0' && strcmp(etag, head->linked_etag) != 0 ? "another version" : NULL;
}

/* Go where a redirect leads: REDIRECT, or the row of what is wrong with it. */
static enum rp_http_row follow(struct call *call, const struct rp_http_head *head)
{
    struct rp_error why;
    rp_error_clear(&why);
    if (rp_url_redirect(call->url, head->location, call->next, &why) != RP_OK) {
        return refuse(call, RP_ROW_FATAL, why.what);
    }
    if (++call->hops > rp_http_client_options(call->client)->max_redirects) {
        return refuse(call, RP_ROW_FATAL, "too many redirects");
    }
    uint64_t hash = hash_of(call->next);
    for (int i = 0; i < call->hops; i++) {
        if (call->visited[i] == hash) {
            return refuse(call, RP_ROW_FATAL, "the redirects lead in a circle");
        }
    }
    call->visited[call->hops] = hash;
    const char *changed = changed_link(call, head);
    if (changed != NULL) {
        return refuse(call, RP_ROW_CHANGED, changed);
    }
    struct rp_url from, target;
    if (rp_url_parse(call->url, &from, NULL) != RP_OK ||
        rp_url_parse(call->next, &target, NULL) != RP_OK) {
        return refuse(call, RP_ROW_FATAL, "a malformed URL"); /* both parsed before */
    }
    call->moved = true;
    call->foreign = !rp_url_same_origin(&target, &call->file_url);
    call->secrets = call->secrets && rp_url_same_origin(&from, &target);
    call->life_ns = life_of(call, head, &target);
    memcpy(call->url, call->next, strlen(call->next) + 1);
    return RP_ROW_REDIRECT;
}

/* Keep the bytes of an exchange; true if there are new ones. */
static bool keep_bytes(struct call *call, const struct rp_http_reply *reply)
{
    bool sound = reply->end == RP_HTTP_COMPLETE || reply->end == RP_HTTP_BROKEN;
    bool wanted = reply->row == RP_ROW_GOOD || reply->row == RP_ROW_SHORT;
    if (call->info != NULL || !sound || !wanted) {
        return false;
    }
    rp_count(&rp_http_client_stats(call->client)->bytes, reply->bytes);
    call->got += reply->bytes;
    bool more = call->got > call->best;
    call->best = more ? call->got : call->best;
    return more;
}

static void tell_cause(struct call *call, const struct rp_http_reply *reply)
{
    const struct rp_http_head *head = &reply->head;
    if (head->complete && reply->end == RP_HTTP_COMPLETE) {
        (void)snprintf(call->cause, sizeof(call->cause), "HTTP %d from %.99s: %s%s%s", head->status,
                       call->origin, reply->why, head->request_id[0] != '\0' ? ", request " : "",
                       head->request_id);
        return;
    }
    const char *what = reply->end == RP_HTTP_FORBIDDEN
                           ? "a redirect to a private address, which allow_private_hosts permits"
                       : reply->end == RP_HTTP_HEAD_LIMIT ? "headers beyond 128 lines or 64 KiB"
                       : reply->end == RP_HTTP_MALFORMED  ? "the answer is malformed or too long"
                                                          : reply->text;
    (void)snprintf(call->cause, sizeof(call->cause), "%.99s: %s", call->origin, what);
}

/* Digest the end of an exchange into call->row. */
static rp_status digest(struct call *call, const struct rp_http_reply *reply)
{
    const struct rp_http_head *head = &reply->head;
    bool answered = head->complete && reply->end == RP_HTTP_COMPLETE;
    call->row = answered ? reply->row : rp_http_judge_end(reply->end);
    bool more = keep_bytes(call, reply);
    if (more) {
        memset(&call->tries, 0, sizeof(call->tries));
    }
    if (reply->end == RP_HTTP_NO_MEMORY) {
        RP_FAIL(call->err, RP_E_NOMEM, "out of memory for a transfer");
    }
    call->last = (struct rp_http_seen){.status = head->status,
                                       .fresh = call->hops > 0,
                                       .wait_s = answered ? rp_http_head_wait(head) : -1};
    int64_t gate = 0;
    if (answered && head->rate_left == 0 && head->rate_reset > 0) {
        int64_t random = (int64_t)(rp_http_client_random(call->client) >> 1);
        int64_t reset = head->rate_reset < INT32_MAX ? head->rate_reset * 1000 : INT64_C(1) << 41;
        int64_t jitter = random % (call->timing->gate_jitter + 1);
        gate = rp_now_ns() + (reset + call->timing->gate_margin + jitter) * MS;
    }
    bool weak = call->row == RP_ROW_BUSY || call->row == RP_ROW_NETWORK;
    rp_http_client_note(call->client, call->origin, weak && !more, gate,
                        rp_http_head_pace_ns(head));
    if (call->row != RP_ROW_GOOD && call->row != RP_ROW_SHORT) {
        tell_cause(call, reply);
    }
    if (call->row == RP_ROW_REDIRECT) {
        call->row = follow(call, head);
    }
    return RP_OK;
}

/* Run the exchange to its end. */
static rp_status transfer(struct call *call, rp_http_transport *transport)
{
    struct rp_http_reply *reply = rp_http_transport_reply(transport);
    while (reply->end == RP_HTTP_UNDER_WAY) {
        rp_http_transport_step(transport, RP_HTTP_SLICE_MS);
        if (call->got + reply->bytes > call->best) {
            call->best = call->got + reply->bytes;
            call->last_new_ns = rp_now_ns();
        }
        bool good =
            reply->head.complete && (reply->row == RP_ROW_GOOD || reply->row == RP_ROW_SHORT);
        if (good && !call->settled) {
            RP_TRY(settle(call, &reply->head));
        }
        if (reply->end == RP_HTTP_UNDER_WAY) {
            RP_TRY(check(call));
        }
    }
    return RP_OK;
}

/* One exchange at call->url. */
static rp_status ask(struct call *call)
{
    struct rp_url url;
    RP_TRY(rp_url_parse(call->url, &url, call->err)); /* it did before */
    rp_url_origin(&url, call->origin);
    RP_TRY(admit(call));
    const struct rp_http_options *options = rp_http_client_options(call->client);
    struct rp_http_request request = {
        .url = call->url, .first = -1, .check_address = call->foreign, .fresh = call->reconnect};
    form_wish(call, &request.wish);
    if (request.wish.whole) {
        call->got = 0; /* without ranges a file begins again */
    }
    else {
        request.first = request.wish.first;
        request.last = request.wish.last;
    }
    request.to = call->info == NULL ? call->to + call->got : NULL;
    request.room = call->len - call->got;
    struct rp_url token_url;
    if (options->token != NULL && call->secrets &&
        rp_url_parse(options->token_origin, &token_url, NULL) == RP_OK &&
        rp_url_same_origin(&url, &token_url)) {
        request.authorization = rp_http_client_authorization(call->client);
    }
    struct rp_http_seat *seat;
    RP_TRY(rp_http_client_take(call->client, call->origin, &seat, call->err));
    int64_t best = call->best;
    rp_status status = rp_http_transport_begin(seat->transport, &request, call->err);
    if (status == RP_OK) {
        call->requests++;
        status = transfer(call, seat->transport);
        struct rp_http_reply *reply = rp_http_transport_reply(seat->transport);
        struct rp_http_stats *stats = rp_http_client_stats(call->client);
        rp_count(&stats->requests, 1);
        rp_count(&stats->connections, reply->connections);
        if (status == RP_OK) {
            call->best = best; /* keep_bytes counts them if they may be kept */
            status = digest(call, reply);
        }
    }
    rp_http_transport_finish(seat->transport);
    rp_http_client_give(call->client, seat, call->origin);
    return status;
}

/* A try that gave not all: count it, wait as the verdict says, or end. */
static rp_status try_again(struct call *call)
{
    struct rp_http_verdict verdict;
    struct rp_http_stats *stats = rp_http_client_stats(call->client);
    call->last.row = call->row;
    call->last.left = left_ns(call) / MS;
    rp_http_decide(&call->last, &call->tries, call->timing, rp_http_client_random(call->client),
                   &verdict);
    if (call->row >= RP_ROW_BUSY && call->row <= RP_ROW_DENIED) {
        rp_count(&stats->retries[call->row - RP_ROW_BUSY], 1);
    }
    if (call->resolver || verdict.resolve) {
        rp_http_client_unsettle(call->client, call->known, call->seen.serial, call->resolver);
        call->resolver = false;
    }
    if (verdict.too_long) {
        (void)snprintf(call->cause, sizeof(call->cause),
                       "HTTP %d from %.99s asks for a wait of %lld s, longer than network_timeout "
                       "permits",
                       call->last.status, call->origin, (long long)call->last.wait_s);
        call->asked_too_long = true;
    }
    if (verdict.gate_ms > 0) {
        rp_http_client_note(call->client, call->origin, false, rp_now_ns() + verdict.gate_ms * MS,
                            0);
    }
    if (verdict.code != RP_OK) {
        return fail(call, verdict.code);
    }
    call->reconnect = verdict.reconnect;
    return pause_until(call, rp_now_ns() + verdict.wait_ms * MS, &stats->backoff_ns);
}

static rp_status run(struct call *call)
{
    bool done = false;
    while (!done) {
        RP_TRY(check(call));
        RP_TRY(locate(call));
        do {
            RP_TRY(ask(call));
        } while (call->row == RP_ROW_REDIRECT);
        done = call->row == RP_ROW_GOOD && (call->info != NULL || call->got == call->len);
        call->reconnect = false;
        if (!done) {
            RP_TRY(try_again(call));
        }
    }
    return RP_OK;
}

static rp_status begin(rp_http_client *client, const struct rp_http_file *file,
                       const struct rp_http_watch *watch, struct call **out, struct rp_error *err)
{
    struct call *call = rp_calloc(1, sizeof(*call));
    if (call == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a request");
    }
    call->client = client;
    call->file = file;
    call->watch = watch;
    call->timing = &rp_http_client_options(client)->timing;
    call->err = err;
    call->last_new_ns = call->watched_ns = rp_now_ns();
    rp_status status = rp_url_parse(file->url, &call->file_url, err);
    if (status == RP_OK && rp_http_client_ended(client)) {
        status = rp_error_set(err, RP_E_CLOSED, "the HTTP client was closed");
    }
    if (status == RP_OK) {
        status = rp_http_client_file(client, file->url, &call->known, err);
    }
    if (status != RP_OK) {
        rp_free(call);
        return status;
    }
    *out = call;
    return RP_OK;
}

/* Run and free. */
static rp_status finish(struct call *call)
{
    rp_status status = run(call);
    if (call->resolver) {
        rp_http_client_unsettle(call->client, call->known, call->seen.serial, true);
    }
    explicit_bzero(call->url, sizeof(call->url)); /* signed URLs are secrets */
    explicit_bzero(call->next, sizeof(call->next));
    rp_free(call);
    return status;
}

rp_status rp_http_size(rp_http_client *client, const struct rp_http_file *file,
                       const struct rp_http_watch *watch, struct rp_http_info *out,
                       struct rp_error *err)
{
    struct call *call = NULL;
    RP_TRY(begin(client, file, watch, &call, err));
    call->info = out;
    return finish(call);
}

rp_status rp_http_read(rp_http_client *client, const struct rp_http_file *file, int64_t offset,
                       int64_t len, uint8_t *to, const struct rp_http_watch *watch,
                       struct rp_error *err)
{
    bool outside = file->size >= 0 && (offset > file->size || len > file->size - offset);
    bool partial = file->whole && (offset != 0 || len != file->size);
    if (offset < 0 || len < 0 || outside || partial || offset > INT64_MAX - len) {
        RP_FAIL(err, RP_E_ARG, "%lld bytes at %lld are no part of a file of %lld%s", (long long)len,
                (long long)offset, (long long)file->size, partial ? ", read whole" : "");
    }
    if (len == 0) {
        return RP_OK;
    }
    struct call *call = NULL;
    RP_TRY(begin(client, file, watch, &call, err));
    call->offset = offset;
    call->len = len;
    call->to = to;
    return finish(call);
}
