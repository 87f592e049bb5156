/* The HTTP client against a server of this very program: threads side by side, broken transfers,
 * redirects, interruption, memory that runs out. What the wire may do otherwise is tested from
 * Python, where a server is easily made to misbehave. */
#include "harness.h"

#include "base/thread.h"
#include "fetch/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 100000, THREADS = 6, READS = 60, CONNECTIONS = 256 };

static uint8_t byte_of(int64_t at)
{
    return (uint8_t)(at * 31 + at / 251);
}

struct connection {
    struct server *server;
    int slot;
};

/* One connection a thread. Every `fault_every`th request is cut in its middle, every other fault
 * is a 503. */
struct server {
    int fd, port;
    int fault_every;
    bool silent;
    atomic_int requests, redirects, n;
    atomic_bool ending;
    rp_thread acceptor, thread[CONNECTIONS];
    atomic_int peer[CONNECTIONS];
    struct connection connection[CONNECTIONS];
};

static bool send_all(int fd, const void *data, size_t len, int flags)
{
    const char *at = data;
    while (len > 0) {
        ssize_t put = send(fd, at, len, MSG_NOSIGNAL | flags);
        if (put <= 0) {
            return false;
        }
        at += put;
        len -= (size_t)put;
    }
    return true;
}

/* Answer a request for bytes first to last; false: the connection ends. */
static bool answer(struct server *server, int fd, long first, long last)
{
    static uint8_t data[SIZE];
    static atomic_bool filled;
    if (!atomic_load(&filled)) { /* the first request of a program comes alone */
        for (int i = 0; i < SIZE; i++) {
            data[i] = byte_of(i);
        }
        atomic_store(&filled, true);
    }
    int number = atomic_fetch_add(&server->requests, 1) + 1;
    bool faulty = server->fault_every > 0 && number % server->fault_every == 0;
    char head[300];
    if (faulty && number / server->fault_every % 2 == 0) {
        static const char busy[] = "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n";
        return send_all(fd, busy, sizeof(busy) - 1, 0);
    }
    last = last < SIZE ? last : SIZE - 1;
    int n = snprintf(head, sizeof(head),
                     "HTTP/1.1 206 X\r\nContent-Length: %ld\r\nETag: \"v\"\r\n"
                     "Content-Range: bytes %ld-%ld/%d\r\n\r\n",
                     last - first + 1, first, last, SIZE);
    size_t len = (size_t)(last - first + 1);
    return send_all(fd, head, (size_t)n, MSG_MORE) &&
           send_all(fd, data + first, faulty ? len / 2 : len, 0) && !faulty;
}

static void serve(struct server *server, int fd)
{
    char request[4096];
    size_t used = 0;
    for (;;) {
        ssize_t got = recv(fd, request + used, sizeof(request) - 1 - used, 0);
        if (got <= 0) {
            return;
        }
        used += (size_t)got;
        request[used] = '\0';
        if (strstr(request, "\r\n\r\n") == NULL) {
            continue;
        }
        used = 0;
        long first = 0, last = 0;
        const char *range = strstr(request, "Range: bytes=");
        bool parsed = range != NULL && sscanf(range, "Range: bytes=%ld-%ld", &first, &last) == 2;
        static const char moved[] = "HTTP/1.1 302 X\r\nLocation: /f\r\nContent-Length: 0\r\n\r\n";
        if (server->silent) {
            continue;
        }
        if (strncmp(request, "GET /moved", 10) == 0) {
            atomic_fetch_add(&server->redirects, 1);
            if (!send_all(fd, moved, sizeof(moved) - 1, 0)) {
                return;
            }
        }
        else if (range == NULL) {
            static const char page[] = "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n[]";
            if (!send_all(fd, page, sizeof(page) - 1, 0)) {
                return;
            }
        }
        else if (!parsed || !answer(server, fd, first, last)) {
            return;
        }
    }
}

static void *run_connection(void *arg)
{
    const struct connection *connection = arg;
    struct server *server = connection->server;
    int fd = atomic_load(&server->peer[connection->slot]);
    serve(server, fd);
    (void)shutdown(fd, SHUT_RDWR); /* closed by server_stop */
    return NULL;
}

static void *run_acceptor(void *arg)
{
    struct server *server = arg;
    for (;;) {
        int fd = accept(server->fd, NULL, NULL);
        int slot = atomic_load(&server->n);
        if (fd < 0 || atomic_load(&server->ending) || slot == CONNECTIONS) {
            if (fd >= 0) {
                (void)close(fd);
            }
            return NULL;
        }
        server->connection[slot] = (struct connection){server, slot};
        atomic_store(&server->peer[slot], fd);
        if (rp_thread_start(&server->thread[slot], "serve", run_connection,
                            &server->connection[slot], NULL) != RP_OK) {
            return NULL;
        }
        atomic_store(&server->n, slot + 1);
    }
}

static void server_start(struct server *server, int fault_every)
{
    memset(server, 0, sizeof(*server));
    server->fault_every = fault_every;
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof(address);
    REQUIRE(bind(server->fd, (struct sockaddr *)&address, len) == 0);
    REQUIRE(listen(server->fd, 64) == 0);
    REQUIRE(getsockname(server->fd, (struct sockaddr *)&address, &len) == 0);
    server->port = ntohs(address.sin_port);
    REQUIRE_OK(rp_thread_start(&server->acceptor, "accept", run_acceptor, server, NULL), NULL);
}

static void server_stop(struct server *server)
{
    atomic_store(&server->ending, true);
    (void)shutdown(server->fd, SHUT_RDWR); /* wakes accept */
    rp_thread_join(&server->acceptor);
    for (int i = 0; i < atomic_load(&server->n); i++) {
        (void)shutdown(atomic_load(&server->peer[i]), SHUT_RDWR);
        rp_thread_join(&server->thread[i]);
        (void)close(atomic_load(&server->peer[i]));
    }
    (void)close(server->fd);
}

static rp_http_client *make_client(void)
{
    struct rp_http_options options;
    rp_http_defaults(&options);
    options.timing.backoff = options.timing.backoff_max = 1;
    options.timing.network = 20000;
    options.timing.probe = 1;
    rp_http_client *client = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_http_client_new(&options, &client, &err), &err);
    return client;
}

struct reader {
    rp_http_client *client;
    struct rp_http_file file;
    unsigned int seed;
    rp_status expected;
    rp_thread thread;
};

static void *run_reader(void *arg)
{
    struct reader *reader = arg;
    uint8_t *to = malloc(SIZE);
    for (int i = 0; i < READS; i++) {
        reader->seed = reader->seed * 1103515245u + 12345u;
        int64_t offset = reader->seed % (SIZE - 5000), len = 1 + reader->seed / 7 % 5000;
        struct rp_error err;
        rp_error_clear(&err);
        rp_status status = rp_http_read(reader->client, &reader->file, offset, len, to, NULL, &err);
        if (!CHECK_STATUS(status, reader->expected, &err)) {
            break;
        }
        for (int64_t k = 0; status == RP_OK && k < len; k++) {
            if (to[k] != byte_of(offset + k)) {
                (void)CHECK_EQ(to[k], byte_of(offset + k));
                break;
            }
        }
    }
    free(to);
    return NULL;
}

static void run_readers(struct reader *reader, rp_http_client *client, const char *url,
                        rp_status expected)
{
    for (int i = 0; i < THREADS; i++) {
        reader[i] = (struct reader){.client = client,
                                    .file = {.url = url, .size = -1},
                                    .seed = (unsigned int)i * 7919u + 1u,
                                    .expected = expected};
        REQUIRE_OK(rp_thread_start(&reader[i].thread, "read", run_reader, &reader[i], NULL), NULL);
    }
}

static void join_readers(struct reader *reader)
{
    for (int i = 0; i < THREADS; i++) {
        rp_thread_join(&reader[i].thread);
    }
}

RP_TEST(threads_read_what_is_there)
{
    struct server server;
    server_start(&server, 9);
    rp_http_client *client = make_client();
    struct reader reader[THREADS];
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/f", server.port);
    run_readers(reader, client, url, RP_OK);
    join_readers(reader);
    struct rp_http_stats stats;
    rp_http_stats(client, &stats);
    CHECK(stats.requests >= THREADS * READS && stats.retries[0] > 0 && stats.retries[2] > 0);
    rp_http_client_free(&client);
    CHECK(client == NULL);
    rp_http_client_free(&client);
    server_stop(&server);
}

RP_TEST(one_thread_resolves_for_all)
{
    struct server server;
    server_start(&server, 0);
    rp_http_client *client = make_client();
    struct reader reader[THREADS];
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/moved", server.port);
    run_readers(reader, client, url, RP_OK);
    join_readers(reader);
    CHECK_EQ(atomic_load(&server.redirects), 1);
    CHECK_EQ(atomic_load(&server.requests), THREADS * READS);
    rp_http_client_free(&client);
    server_stop(&server);
}

RP_TEST(interrupted)
{
    struct server server;
    server_start(&server, 0);
    server.silent = true;
    rp_http_client *client = make_client();
    struct reader reader[THREADS];
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/f", server.port);
    run_readers(reader, client, url, RP_E_CLOSED);
    usleep(50000);
    rp_http_interrupt(client);
    join_readers(reader);
    rp_http_client_free(&client);
    server_stop(&server);
}

static bool at_once(void *cookie)
{
    ++*(int *)cookie;
    return true;
}

RP_TEST(a_watch_ends_a_call)
{
    struct server server;
    server_start(&server, 0);
    server.silent = true;
    rp_http_client *client = make_client();
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/f", server.port);
    struct rp_http_file file = {.url = url, .size = SIZE};
    int asked = 0;
    struct rp_http_watch watch = {at_once, &asked};
    uint8_t to[10];
    struct rp_error err;
    rp_error_clear(&err);
    CHECK_STATUS(rp_http_read(client, &file, 0, 10, to, &watch, &err), RP_E_CLOSED, &err);
    CHECK_EQ(asked, 1);
    CHECK_STR(err.file, url);
    rp_http_client_free(&client);
    server_stop(&server);
}

struct spare {
    const struct server *server;
    const char *cache; /* folder of signed URLs */
    bool sign;         /* S3 keys instead of a token */
};

/* Read and get with all that a client may have; any of it may fail for want of memory. */
static rp_status use(rp_http_client *client, const char *url, struct rp_error *err)
{
    struct rp_http_file file = {.url = url, .size = SIZE};
    struct rp_http_page page;
    uint8_t to[100];
    RP_TRY(rp_http_read(client, &file, 50, 100, to, NULL, err));
    CHECK(to[99] == byte_of(149));
    rp_status status = rp_http_get(client, url, SIZE, NULL, &page, err);
    CHECK(status == RP_OK || page.data == NULL);
    rp_free(page.data);
    return status;
}

static void read_without_memory(void *arg)
{
    const struct spare *spare = arg;
    struct rp_http_options options;
    rp_http_defaults(&options);
    options.timing.network = 5000;
    options.timing.backoff = options.timing.backoff_max = 1;
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/moved", spare->server->port);
    options.url_cache = spare->cache;
    if (spare->sign) {
        options.s3_origin = url;
        options.s3_access_key = options.s3_secret_key = options.s3_session_token = "k";
    }
    else {
        options.token = "t";
        options.token_origin = url;
    }
    rp_http_client *client = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_http_client_new(&options, &client, &err);
    if (status == RP_OK) {
        status = use(client, url, &err);
        rp_http_client_free(&client);
    }
    if (status != RP_OK) {
        CHECK_STATUS(status, RP_E_NOMEM, &err);
        CHECK(err.what[0] != '\0');
    }
}

RP_TEST(memory_runs_out)
{
    struct server server;
    server_start(&server, 0);
    char folder[] = "/tmp/rp-http-client-XXXXXX", command[64];
    REQUIRE(mkdtemp(folder) != NULL);
    struct spare spares[] = {
        {&server, NULL, false}, {&server, folder, false}, {&server, NULL, true}};
    for (int i = 0; i < 3; i++) {
        read_without_memory(&spares[i]); /* what libcurl keeps for ever */
        CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, read_without_memory,
                             &spares[i]) > 5);
    }
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK_EQ(system(command), 0);
    server_stop(&server);
}
