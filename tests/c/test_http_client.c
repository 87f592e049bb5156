/* The HTTP client against a server of this very program: threads side by side, broken transfers,
 * redirects, interruption, memory that runs out. What the wire may do otherwise is tested from
 * Python, where a server is easily made to misbehave. */
#include "harness.h"
#include "range_server.h"

#include "base/thread.h"
#include "fetch/http_client.h"

#include <stdio.h>
#include <unistd.h>

enum { SIZE = 100000, THREADS = 6, READS = 60 };

static uint8_t byte_of(int64_t at)
{
    return (uint8_t)(at * 31 + at / 251);
}

static uint8_t content[SIZE];

static void server_start(struct range_server *server, int fault_every)
{
    range_server_start(server, fault_every);
    for (int i = 0; i < SIZE; i++) {
        content[i] = byte_of(i);
    }
    server->content.size = SIZE;
    server->content.bytes = content; /* nobody asks yet */
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
    struct range_server server;
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
    range_server_stop(&server);
}

RP_TEST(one_thread_resolves_for_all)
{
    struct range_server server;
    server_start(&server, 0);
    rp_http_client *client = make_client();
    struct reader reader[THREADS];
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/moved", server.port);
    run_readers(reader, client, url, RP_OK);
    join_readers(reader);
    CHECK_EQ(atomic_load(&server.content.redirects), 1);
    CHECK_EQ(atomic_load(&server.content.requests), THREADS * READS);
    rp_http_client_free(&client);
    range_server_stop(&server);
}

RP_TEST(interrupted)
{
    struct range_server server;
    server_start(&server, 0);
    atomic_store(&server.content.silent, true);
    rp_http_client *client = make_client();
    struct reader reader[THREADS];
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/f", server.port);
    run_readers(reader, client, url, RP_E_CLOSED);
    usleep(50000);
    rp_http_interrupt(client);
    join_readers(reader);
    rp_http_client_free(&client);
    range_server_stop(&server);
}

static bool at_once(void *cookie)
{
    ++*(int *)cookie;
    return true;
}

RP_TEST(a_watch_ends_a_call)
{
    struct range_server server;
    server_start(&server, 0);
    atomic_store(&server.content.silent, true);
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
    range_server_stop(&server);
}

struct spare {
    const struct range_server *server;
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
    struct range_server server;
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
    range_server_stop(&server);
}
