/* Streams in a shuffled order: pictures that wait for later batches, samples that are replaced. */
#include "loader_fixture.h"

#include "pool/pool_priv.h"

#include <fcntl.h>
#include <stdlib.h>

static struct demo demo;
static int64_t order[4 * ROWS], n_order;

/* A feed of the demo set's first `stop` positions: k pictures of a GOP of g lie within J rows. */
static rp_status make_feed(int64_t lanes, int64_t k, int64_t g, int64_t span, int64_t batch,
                           int64_t stop, rp_feed **out, struct rp_error *err)
{
    static struct rp_run runs[RUNS];
    for (int i = 0; i < RUNS; i++) {
        runs[i] = (struct rp_run){.id = demo.run_first[i],
                                  .length = demo.run_first[i + 1] - demo.run_first[i]};
    }
    const struct rp_feed_set set = {.runs = runs,
                                    .n_runs = RUNS,
                                    .params = {.seed = 7,
                                               .lanes = lanes,
                                               .unit = 16,
                                               .window = 96,
                                               .visit = k,
                                               .gop = g,
                                               .span = span}};
    const struct rp_feed_options options = {.stop = stop, .batch = batch, .world = 1, .workers = 1};
    return rp_feed_new(&set, 1, &options, out, err);
}

static rp_feed *new_feed(int64_t lanes, int64_t k, int64_t g, int64_t span, int64_t batch)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_feed *feed = NULL;
    REQUIRE_OK(make_feed(lanes, k, g, span, batch, ROWS, &feed, &err), &err);
    return feed;
}

static void note_order(rp_feed *feed)
{
    int64_t n, done, repeated;
    n_order = 0;
    while (rp_feed_next(feed, order + n_order, &n, &done, &repeated, NULL) == RP_OK) {
        n_order += n;
    }
    rp_feed_free(&feed);
    (void)CHECK_EQ(n_order, ROWS);
}

static void check_feed(rp_loader *loader, rp_feed *feed, int64_t ahead)
{
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_loader_begin(loader, &feed, ahead, &err), &err);
    (void)CHECK(feed == NULL);
    int64_t at = 0;
    rp_batch *batch = NULL;
    rp_status status;
    while ((status = next_batch(loader, &batch, &err)) == RP_OK) {
        int64_t n = batch->n;
        (void)CHECK_EQ(batch->done, at + n);
        bool good = check_batch(&demo, batch, order + at, n);
        rp_batch_free(&batch);
        REQUIRE(good);
        at += n;
    }
    (void)CHECK_STATUS(status, RP_END, &err);
    (void)CHECK_EQ(at, n_order);
}

/* With the whole of a GOP in sight, every picture is decoded once. */
RP_TEST(a_visit_is_decoded_once)
{
    need_reference();
    demo_init(&demo);
    note_order(new_feed(4, 10, 10, 8, 8));
    for (int threads = 0; threads <= 2; threads++) {
        struct rp_loader_options options = demo_options(threads, 2);
        options.parked_bytes = (size_t)1 << 30;
        rp_loader *loader = open_loader(&demo, options);
        check_feed(loader, new_feed(4, 10, 10, 8, 8), ROWS);
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        (void)CHECK_EQ(stats.counters.delivered, 2 * ROWS);
        (void)CHECK_EQ(stats.counters.decoded, 2 * ROWS);
        (void)CHECK_EQ(stats.counters.redecoded, 0);
        (void)CHECK(stats.counters.parked > 0);
        (void)CHECK_EQ(stats.parked, 0);
        (void)CHECK_EQ(stats.parked_bytes, 0);
        rp_loader_close(&loader);
    }
}

/* Without sight ahead the same batches cost more decoding. */
RP_TEST(sight_ahead_changes_no_batch)
{
    need_reference();
    demo_init(&demo);
    note_order(new_feed(4, 5, 10, 8, 8));
    for (int64_t ahead = 0; ahead < 24; ahead += 3) {
        struct rp_loader_options options = demo_options((int)(ahead % 3), 1);
        options.parked_bytes = (size_t)1 << 30;
        rp_loader *loader = open_loader(&demo, options);
        check_feed(loader, new_feed(4, 5, 10, 8, 8), ahead);
        check_feed(loader, new_feed(4, 5, 10, 8, 8), 24 - ahead);
        rp_loader_close(&loader);
    }
}

/* A tenth of the memory: pictures go and are decoded again, nothing else changes. */
RP_TEST(short_memory_costs_only_decoding)
{
    need_reference();
    demo_init(&demo);
    const int64_t back[3] = {-10, -3, 0};
    demo.camera[0].window = (struct rp_window){back, 3};
    note_order(new_feed(4, 5, 10, 8, 8));
    for (size_t bytes = 0; bytes < 2000000; bytes = bytes * 3 + 120000) {
        struct rp_loader_options options = demo_options(2, 2);
        options.parked_bytes = bytes;
        rp_loader *loader = open_loader(&demo, options);
        check_feed(loader, new_feed(4, 5, 10, 8, 8), 12);
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        (void)CHECK(bytes > 200000 || stats.counters.redecoded > 0);
        rp_loader_close(&loader);
    }
}

RP_TEST(a_stream_ends_at_any_moment)
{
    need_reference();
    demo_init(&demo);
    note_order(new_feed(4, 5, 10, 8, 4));
    for (int threads = 0; threads <= 2; threads++) {
        struct rp_loader_options options = demo_options(threads, 2);
        options.parked_bytes = 1 << 20;
        rp_loader *loader = open_loader(&demo, options);
        for (int taken = 0; taken < 20; taken++) {
            struct rp_error err;
            rp_error_clear(&err);
            rp_feed *feed = new_feed(4, 5, 10, 8, 4);
            REQUIRE_OK(rp_loader_begin(loader, &feed, 10, &err), &err);
            for (int i = 0; i < taken; i++) {
                rp_batch *batch = NULL;
                REQUIRE_OK(next_batch(loader, &batch, &err), &err);
                rp_batch_free(&batch);
            }
        }
        check_feed(loader, new_feed(4, 5, 10, 8, 4), 10);
        rp_feed *feed = new_feed(4, 5, 10, 8, 4);
        REQUIRE_OK(rp_loader_begin(loader, &feed, 10, NULL), NULL);
        rp_loader_close(&loader);
    }
}

/* A copy of a video with `len` bytes at `at` overwritten. */
static const char *damaged_copy(const char *path, long at, size_t len)
{
    static char name[64];
    (void)snprintf(name, sizeof(name), "/tmp/rp_test_stream_XXXXXX");
    int fd = mkstemp(name);
    FILE *from = fopen(path, "rb"), *to = fdopen(fd, "wb");
    REQUIRE(from != NULL && to != NULL);
    for (int c; (c = fgetc(from)) != EOF;) {
        (void)fputc(c, to);
    }
    (void)fseek(to, at, SEEK_SET);
    for (size_t i = 0; i < len; i++) {
        (void)fputc(0, to);
    }
    (void)fclose(from);
    (void)fclose(to);
    return name;
}

/* Where the bytes of a sample of a file lie. */
static struct rp_sample sample_of(const char *path, int64_t n)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_files *files = NULL;
    rp_index *index = NULL;
    struct rp_sample sample;
    REQUIRE_OK(rp_files_new(&path, 1, 1, &files, &err), &err);
    REQUIRE_OK(rp_video_index_read(files, 0, &index, NULL, &err), &err);
    rp_index_sample(index, rp_index_nth(index, n), &sample);
    rp_index_free(&index);
    rp_files_free(&files);
    return sample;
}

/* What replaces an unreadable row: the next readable one of its episode. */
static int64_t stand_in(const bool *bad, int64_t row)
{
    int k = 0;
    while (demo.run_first[k + 1] <= row) {
        k++;
    }
    for (int64_t r = row; r < demo.run_first[k + 1]; r++) {
        if (!bad[r]) {
            return r;
        }
    }
    for (int64_t r = row; r >= demo.run_first[k]; r--) {
        if (!bad[r]) {
            return r;
        }
    }
    for (int64_t r = demo.run_first[k + 1]; r < ROWS; r++) {
        if (!bad[r]) {
            return r;
        }
    }
    return -1;
}

static void check_substituted(rp_loader *loader, const bool *bad)
{
    struct rp_error err;
    rp_batch *batch = NULL;
    int64_t at = 0, replaced = 0, expected = 0;
    rp_feed *feed = new_feed(4, 5, 10, 8, 8);
    REQUIRE_OK(rp_loader_begin(loader, &feed, 8, &err), &err);
    while (next_batch(loader, &batch, &err) == RP_OK) {
        int64_t rows[8];
        for (int64_t i = 0; i < batch->n; i++) {
            rows[i] = stand_in(bad, order[at + i]);
            expected += bad[order[at + i]];
        }
        REQUIRE(check_batch(&demo, batch, rows, batch->n));
        for (int64_t i = 0; i < batch->n_substitutes; i++) {
            const struct rp_substitute *s = &batch->substitutes[i];
            (void)CHECK_EQ(s->wanted, order[at + s->place]);
            (void)CHECK_EQ(s->row, rows[s->place]);
            (void)CHECK(bad[s->wanted] && s->error.code != RP_OK && s->error.camera[0] != '\0');
            replaced++;
        }
        at += batch->n;
        rp_batch_free(&batch);
    }
    (void)CHECK_EQ(at, n_order);
    (void)CHECK(expected > 0);
    (void)CHECK_EQ(replaced, expected);
}

static void substitution(const char *path, const bool *bad)
{
    note_order(new_feed(4, 5, 10, 8, 8));
    demo.paths[0] = path;
    for (int threads = 0; threads <= 2; threads++) {
        struct rp_loader_options options = demo_options(threads, 2);
        options.parked_bytes = 1 << 22;
        options.substitute = true;
        rp_loader *loader = open_loader(&demo, options);
        check_substituted(loader, bad);
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        (void)CHECK(stats.counters.substituted > 0);
        rp_loader_close(&loader);
    }
    (void)remove(path);
}

/* A key picture of zeros takes its GOP with it. */
RP_TEST(rows_of_a_broken_gop_are_replaced)
{
    need_reference();
    demo_init(&demo);
    bool bad[ROWS] = {false};
    struct rp_sample key = sample_of(demo.paths[0], 0);
    int64_t n = 0;
    do {
        bad[n++] = true;
    } while (!sample_of(demo.paths[0], n).key);
    substitution(damaged_copy(demo.paths[0], (long)key.offset, key.size), bad);
}

/* A file without index takes two episodes with it: the one after them stands in. */
RP_TEST(rows_of_a_broken_file_are_replaced)
{
    need_reference();
    demo_init(&demo);
    bool bad[ROWS] = {false};
    memset(bad, 1, (size_t)demo.run_first[2]);
    substitution(damaged_copy(demo.paths[0], 0, 64), bad);
}

/* A missing file is no damage: it may be there tomorrow. */
RP_TEST(a_missing_file_is_not_replaced)
{
    need_reference();
    demo_init(&demo);
    note_order(new_feed(4, 5, 10, 8, 8));
    demo.paths[0] = "build/no such file.mp4";
    struct rp_loader_options options = demo_options(1, 2);
    options.substitute = true;
    rp_loader *loader = open_loader(&demo, options);
    struct rp_error err;
    rp_batch *batch = NULL;
    rp_feed *feed = new_feed(4, 5, 10, 8, 8);
    REQUIRE_OK(rp_loader_begin(loader, &feed, 8, &err), &err);
    rp_status status;
    while ((status = next_batch(loader, &batch, &err)) == RP_OK) {
        rp_batch_free(&batch);
    }
    (void)CHECK_STATUS(status, RP_E_NOT_FOUND, &err);
    rp_loader_close(&loader);
}

enum { SHORT = 12 };

/* A stream that looks ahead, with memory for two pictures; any step may fail. */
static void use_stream(void *arg)
{
    struct rp_loader_options options = demo_options(*(const int *)arg, 2);
    options.parked_bytes = 240000;
    struct rp_error err;
    rp_error_clear(&err);
    rp_loader *loader = NULL;
    rp_feed *feed = NULL;
    rp_batch *batch = NULL;
    rp_status status = rp_loader_new(&demo.desc, &options, &loader, &err);
    if (status == RP_OK) {
        status = make_feed(4, 5, 10, 8, 4, SHORT, &feed, &err);
    }
    if (status == RP_OK) {
        status = rp_loader_begin(loader, &feed, 5, &err);
    }
    for (int64_t at = 0; status == RP_OK; at += 4) {
        status = next_batch(loader, &batch, &err);
        if (status == RP_OK) {
            (void)check_batch(&demo, batch, order + at, 4);
        }
        rp_batch_free(&batch);
    }
    if (status != RP_END) {
        (void)CHECK_EQ(err.code, status);
        (void)CHECK(status == RP_E_NOMEM || status == RP_E_IO || status == RP_E_FORMAT);
        (void)CHECK(err.what[0] != '\0');
    }
    rp_loader_close(&loader);
}

RP_TEST(every_call_of_a_stream_may_fail)
{
    need_reference();
    demo_init(&demo);
    note_order(new_feed(4, 5, 10, 8, 4));
    for (int threads = 0; threads <= 2; threads += 2) {
        struct rp_fault memory = {.calls = RP_FAULT_MEMORY};
        (void)CHECK(rp_fault_sweep(memory, use_stream, &threads) > 0);
        memory.onward = true;
        (void)CHECK(rp_fault_sweep(memory, use_stream, &threads) > 0);
        struct rp_fault file = {.calls = RP_FAULT_FILE, .read = RP_FAULT_READ_END};
        (void)CHECK(rp_fault_sweep(file, use_stream, &threads) > 0);
    }
}
