/* The engine at random: whatever is asked, dropped, ended or kept, in whichever order, nothing
 * hangs, what comes is right and the same every time, and nothing stays behind. In some rounds
 * files are remote, and their server fails now and then.
 *
 *     test_pool_rounds                    rounds from seed 1 on, for a few seconds
 *     test_pool_rounds --seconds N [SEED] rounds from SEED on, for N seconds */
#define RP_HARNESS_OWN_MAIN
#include "loader_fixture.h"
#include "loader_rest.h"
#include "range_server.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdlib.h>

static struct demo demo;

enum { LENGTHS = 3, DAMAGES = 5, ORDERS = 3, KEPT = 10, TICKETS = 5, MOST_ROWS = 12 };

struct kept {
    rp_batch *batch;
    int64_t rows[MOST_ROWS];
};

struct ticket {
    uint64_t number;
    int64_t rows[MOST_ROWS], n; /* n = 0: none */
};

/* What must come out the same in every round: rows that replace others, the error of a stream. */
static int64_t stands_in[LENGTHS][DAMAGES][ROWS];
static char failure[LENGTHS][DAMAGES][ORDERS][1300];
static char damaged[DAMAGES][64];

static struct range_server server;
static char cache_dir[64];

struct round {
    rp_http_client *client; /* remote files: */
    rp_node_cache *cache;
    struct rp_remote_file remote[FILES];
    char url[FILES][256], key[FILES][64];
    uint64_t random, other; /* states of the callers' random numbers */
    struct demo demo;
    rp_loader *loader;
    int length, damage, kind; /* of windows, of a file, of the stream's order */
    bool substitute;
    int64_t order[ROWS], n_order, at, batch; /* the stream's; at < 0: it ended */
    struct kept kept[KEPT];
    struct ticket ticket[TICKETS];
};

static int64_t pick(struct round *r, int64_t n)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)(r->random >> 33) % n;
}

/* A copy of the first video that lacks its last bytes (cut) or has `len` bytes at `at` cleared. */
static void write_damaged(int number, long at, size_t len, size_t cut)
{
    (void)snprintf(damaged[number], sizeof(damaged[number]), "/tmp/rp_test_states_XXXXXX");
    size_t size = 0;
    uint8_t *bytes = rp_read_file(demo.paths[0], &size);
    int fd = mkstemp(damaged[number]);
    REQUIRE(bytes != NULL && fd >= 0);
    memset(bytes + at, 0, len);
    (void)CHECK_EQ(write(fd, bytes, size - cut), (ssize_t)(size - cut));
    (void)close(fd);
    free(bytes);
}

static void make_damages(void)
{
    struct rp_sample sample[3];
    rp_files *files = NULL;
    rp_index *index = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    demo_init(&demo);
    REQUIRE_OK(rp_files_new(demo.paths, FILES, 2, &files, &err), &err);
    REQUIRE_OK(rp_video_index_read(files, 0, &index, NULL, &err), &err);
    for (int64_t i = 0; i < 3; i++) {
        rp_index_sample(index, i * 20 + (i == 1), &sample[i]);
    }
    rp_index_free(&index);
    rp_files_free(&files);
    write_damaged(1, (long)sample[0].offset, sample[0].size, 0);
    write_damaged(2, (long)sample[1].offset, sample[1].size, 0);
    write_damaged(3, 0, 64, 0);
    write_damaged(4, (long)sample[2].offset, sample[2].size, 0);
    memset(stands_in, -1, sizeof(stands_in));
}

static void remove_damages(void)
{
    for (int i = 1; i < DAMAGES; i++) {
        (void)remove(damaged[i]);
    }
}

static rp_feed *round_feed(struct round *r)
{
    static const int64_t visit[ORDERS][4] = {{4, 5, 10, 8}, {1, 1, 1, 1}, {3, 10, 10, 30}};
    struct rp_run runs[RUNS];
    for (int i = 0; i < RUNS; i++) {
        runs[i] = (struct rp_run){.id = demo.run_first[i],
                                  .length = demo.run_first[i + 1] - demo.run_first[i]};
    }
    const int64_t *v = visit[r->kind];
    const struct rp_feed_set set = {.runs = runs,
                                    .n_runs = RUNS,
                                    .params = {.seed = 7,
                                               .lanes = v[0],
                                               .unit = 16,
                                               .window = 96,
                                               .visit = v[1],
                                               .gop = v[2],
                                               .span = v[3]}};
    const struct rp_feed_options options = {
        .stop = 60, .batch = r->batch, .world = 1, .workers = 1};
    struct rp_error err;
    rp_error_clear(&err);
    rp_feed *feed = NULL;
    (void)CHECK_OK(rp_feed_new(&set, 1, &options, &feed, &err), &err);
    return feed;
}

/* A batch of these rows: its pictures are right, and what stands in stands in every time. */
static void check_rows(struct round *r, const rp_batch *batch, const int64_t *wanted, int64_t n)
{
    (void)CHECK_EQ(batch->n, n);
    int64_t *known = stands_in[r->length][r->damage], s = 0;
    for (int64_t i = 0; i < n; i++) {
        bool replaced = s < batch->n_substitutes && batch->substitutes[s].place == i;
        if (replaced) {
            (void)CHECK_EQ(batch->substitutes[s].wanted, wanted[i]);
            (void)CHECK_EQ(batch->substitutes[s].row, batch->rows[i]);
            s++;
        }
        else {
            (void)CHECK_EQ(batch->rows[i], wanted[i]);
        }
        if (r->substitute) {
            known[wanted[i]] = known[wanted[i]] < 0 ? batch->rows[i] : known[wanted[i]];
            (void)CHECK_EQ(batch->rows[i], known[wanted[i]]);
        }
    }
    (void)CHECK_EQ(s, batch->n_substitutes);
    (void)CHECK(check_batch(&r->demo, batch, batch->rows, n));
}

static void let_go(struct round *r, struct kept *kept)
{
    if (kept->batch != NULL) { /* nobody wrote into it meanwhile */
        (void)CHECK(check_batch(&r->demo, kept->batch, kept->batch->rows, kept->batch->n));
        rp_batch_free(&kept->batch);
    }
}

static void keep_or_free(struct round *r, rp_batch **batch)
{
    struct kept *kept = &r->kept[pick(r, KEPT)];
    if (pick(r, 3) > 0) {
        rp_batch_free(batch);
        return;
    }
    let_go(r, kept);
    kept->batch = *batch;
    *batch = NULL;
}

static void do_begin(struct round *r)
{
    int64_t done, repeated, n;
    r->kind = (int)pick(r, ORDERS);
    r->batch = 1 + pick(r, 9);
    rp_feed *feed = round_feed(r);
    r->n_order = r->at = 0;
    while (rp_feed_next(feed, r->order + r->n_order, &n, &done, &repeated, NULL) == RP_OK) {
        r->n_order += n;
    }
    rp_feed_free(&feed);
    feed = round_feed(r);
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_OK(rp_loader_begin(r->loader, &feed, pick(r, 2) * pick(r, 40), &err), &err);
}

/* The stream ends at the first batch that cannot be read: always at the same, always alike. */
static void note_failure(struct round *r, rp_status status, const struct rp_error *err)
{
    (void)CHECK_EQ(err->code, status);
    (void)CHECK(r->damage != 0 && !r->substitute);
    char *known = failure[r->length][r->damage][r->kind], text[1300];
    (void)snprintf(text, sizeof(text), "%d %s %s %s %f", (int)err->code, err->what, err->file,
                   err->camera, err->time);
    if (r->batch != 4) { /* which is the first in a batch depends on the batch */
        return;
    }
    if (known[0] == '\0') {
        memcpy(known, text, sizeof(text));
    }
    if (strcmp(known, text) != 0) {
        rp_fail_at(__FILE__, __LINE__, "%s\nbefore: %s", text, known);
    }
}

static void do_next(struct round *r)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_batch *batch = NULL;
    int64_t slice = pick(r, 3) * pick(r, 3000000);
    rp_status status = rp_loader_next(r->loader, slice, STALL_NS, &batch, &err);
    if (status == RP_AGAIN) {
        return;
    }
    int64_t left = r->at < 0 ? 0 : r->n_order - r->at, n = left < r->batch ? left : r->batch;
    if (status == RP_OK) {
        check_rows(r, batch, r->order + r->at, n);
        r->at += n;
        (void)CHECK_EQ(batch->done, r->at);
        keep_or_free(r, &batch);
    }
    else if (status == RP_END) {
        (void)CHECK_EQ(left, 0);
    }
    else {
        note_failure(r, status, &err);
        r->at = -1;
    }
}

static void do_submit(struct round *r)
{
    struct ticket *t = &r->ticket[pick(r, TICKETS)];
    if (t->n > 0) {
        return;
    }
    t->n = 1 + pick(r, pick(r, 2) == 0 ? 1 : MOST_ROWS);
    for (int64_t i = 0; i < t->n; i++) {
        t->rows[i] = pick(r, ROWS);
    }
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_OK(rp_loader_submit(r->loader, t->rows, NULL, t->n, &t->number, &err), &err);
}

static void do_take(struct round *r)
{
    struct ticket *t = &r->ticket[pick(r, TICKETS)];
    if (t->n == 0) {
        return;
    }
    if (pick(r, 4) == 0) {
        rp_loader_drop(r->loader, t->number);
        t->n = 0;
        return;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_batch *batch = NULL;
    int64_t slice = pick(r, 2) * pick(r, 20000000);
    rp_status status = rp_loader_take(r->loader, t->number, slice, STALL_NS, &batch, &err);
    if (status == RP_AGAIN) {
        return;
    }
    if (status == RP_OK) {
        check_rows(r, batch, t->rows, t->n);
        keep_or_free(r, &batch);
    }
    else {
        (void)CHECK_EQ(err.code, status);
        (void)CHECK(r->damage != 0 && !r->substitute);
    }
    t->n = 0;
}

/* A second caller beside the first. */
static void *single_reads(void *arg)
{
    struct round *r = arg;
    uint64_t seed = r->other;
    for (int i = 0; i < 12; i++) {
        struct rp_error err;
        rp_error_clear(&err);
        rp_batch *batch = NULL;
        uint64_t ticket;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int64_t row = (int64_t)(seed >> 33) % ROWS;
        rp_status status = rp_loader_submit(r->loader, &row, NULL, 1, &ticket, &err);
        if (status == RP_OK) {
            status = take_ticket(r->loader, ticket, &batch, &err);
        }
        if (status == RP_OK) {
            (void)CHECK(check_batch(&r->demo, batch, batch->rows, 1));
        }
        else {
            (void)CHECK(status == RP_E_CLOSED || (r->damage != 0 && !r->substitute));
        }
        rp_batch_free(&batch);
        if (status == RP_E_CLOSED) {
            break;
        }
    }
    return NULL;
}

/* Let the files that `which` has bits for be remote. */
static void make_remote(struct round *r, unsigned int which, struct rp_loader_options *options)
{
    static const size_t ahead[4] = {0, 20000, 300000, 1 << 30};
    struct rp_http_options http;
    rp_http_defaults(&http);
    http.timing.backoff = http.timing.backoff_max = http.timing.probe = 1;
    http.timing.network = 20000;
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_http_client_new(&http, &r->client, &err), &err);
    if (pick(r, 2) == 0) {
        REQUIRE_OK(rp_node_cache_new(cache_dir, 1 << 30, &r->cache, &err), &err);
    }
    for (int i = 0; i < FILES; i++) {
        struct stat st;
        if ((which >> i & 1) == 0) {
            continue;
        }
        REQUIRE(stat(r->demo.paths[i], &st) == 0);
        (void)snprintf(r->url[i], sizeof(r->url[i]), "http://127.0.0.1:%d/%s%s", server.port,
                       r->demo.paths[i][0] == '/' ? "~" : "", r->demo.paths[i]);
        (void)snprintf(r->key[i], sizeof(r->key[i]), "test-%d-%d-%d", i, i == 0 ? r->damage : 0,
                       server.port);
        r->remote[i] = (struct rp_remote_file){
            .http = {.url = r->url[i], .size = pick(r, 2) == 0 ? -1 : st.st_size, .etag = "v"},
            .client = r->client,
            .cache = r->cache,
            .key = r->key[i]};
    }
    r->demo.desc.remote = r->remote;
    options->read_ahead_bytes = ahead[pick(r, 4)];
    options->fetch_threads = 1 + (int)pick(r, 4);
}

static void set_up(struct round *r, uint64_t seed)
{
    static const int64_t deltas[LENGTHS][6] = {{0}, {-3, 0, 5}, {-40, -10, -1, 0, 1, 60}};
    static const int steps[LENGTHS] = {1, 3, 6};
    static const size_t parked[4] = {0, 130000, 1 << 20, 1 << 30};
    *r = (struct round){.random = seed * 0x9E3779B97F4A7C15u + 1, .other = seed, .at = -1};
    (void)pick(r, 2);
    demo_init(&r->demo);
    r->length = (int)pick(r, LENGTHS);
    r->demo.camera[pick(r, 1)].window = (struct rp_window){deltas[r->length], steps[r->length]};
    r->damage = (int)(pick(r, 2) * pick(r, DAMAGES));
    r->substitute = pick(r, 2) != 0;
    if (r->damage > 0) {
        r->demo.paths[0] = damaged[r->damage];
    }
    struct rp_loader_options options = demo_options((int)pick(r, 5), (int)pick(r, 5));
    options.parked_bytes = parked[pick(r, 4)];
    options.substitute = r->substitute;
    options.shared = pick(r, 4) == 0;
    options.max_decoders = 1 + (int)pick(r, 4);
    options.index_bytes = pick(r, 2) == 0 ? 0 : (size_t)1 << 30;
    options.frame_cache_bytes = pick(r, 2) == 0 ? 0 : (size_t)1 << 22;
    options.keep_bytes = pick(r, 2) == 0 ? 0 : (size_t)1 << 40;
    if (pick(r, 3) == 0) {
        make_remote(r, 1 + (unsigned int)pick(r, 15), &options);
    }
    r->loader = open_loader(&r->demo, options);
}

static void drop_all(struct round *r)
{
    for (int i = 0; i < TICKETS; i++) {
        if (r->ticket[i].n > 0) {
            rp_loader_drop(r->loader, r->ticket[i].number);
            r->ticket[i].n = 0;
        }
    }
}

static void play(uint64_t seed)
{
    static struct round r;
    set_up(&r, seed);
    pthread_t other;
    bool both = pick(&r, 4) == 0;
    both = both && pthread_create(&other, NULL, single_reads, &r) == 0;
    for (int64_t step = 0, n = 5 + pick(&r, 60); step < n; step++) {
        switch (pick(&r, 12)) {
        case 0: do_begin(&r); break;
        case 1:
        case 2: do_submit(&r); break;
        case 3:
        case 4: do_take(&r); break;
        case 5: let_go(&r, &r.kept[pick(&r, KEPT)]); break;
        default: do_next(&r); break;
        }
    }
    bool rest = pick(&r, 2) == 0;
    if (!rest && pick(&r, 2) == 0) {
        rp_loader_interrupt(r.loader);
    }
    if (both) {
        (void)pthread_join(other, NULL);
    }
    if (rest) {
        drop_all(&r);
        rp_feed *none = NULL;
        (void)CHECK_OK(rp_feed_new_rows(NULL, 0, 1, false, &none, NULL), NULL);
        (void)CHECK_OK(rp_loader_begin(r.loader, &none, 0, NULL), NULL);
        check_rest(r.loader);
    }
    rp_loader_close(&r.loader);
    rp_http_client_free(&r.client);
    rp_node_cache_free(&r.cache);
    for (int i = 0; i < KEPT; i++) {
        let_go(&r, &r.kept[i]);
    }
}

static uint64_t first_seed = 1;
static int64_t rounds_ns = 4000000000; /* and 400 rounds at most */
static uint64_t most_rounds = 400;

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(path);
}

RP_TEST(random_rounds)
{
    need_reference();
    make_damages();
    range_server_start(&server, 13);
    (void)snprintf(cache_dir, sizeof(cache_dir), "/tmp/rp_test_rounds_XXXXXX");
    REQUIRE(mkdtemp(cache_dir) != NULL);
    int64_t end = rp_now_ns() + rounds_ns, alive = rp_live_objects();
    uint64_t seed = first_seed;
    for (; seed < first_seed + most_rounds && rp_now_ns() < end; seed++) {
        play(seed);
        (void)CHECK_EQ(rp_live_objects(), alive);
        if (atomic_load(&rp_failures) > 0) {
            fprintf(stderr, "in the round of seed %d\n", (int)seed);
            break;
        }
    }
    fprintf(stderr, "%d rounds\n", (int)(seed - first_seed));
    remove_damages();
    range_server_stop(&server);
    (void)CHECK_EQ(nftw(cache_dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS), 0);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--seconds") == 0) {
        rounds_ns = strtol(argv[2], NULL, 10) * 1000000000;
        first_seed = argc > 3 ? strtoul(argv[3], NULL, 10) : 1;
        most_rounds = UINT64_MAX / 2;
        char *only[] = {argv[0], "random_rounds"};
        return rp_harness_run(2, only);
    }
    return rp_harness_run(argc, argv);
}
