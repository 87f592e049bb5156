/* rp_loader: right rows and pixels for every number of threads, windows, prefetch and blocks,
 * tickets, the index budget, the frame cache, and refused arguments. */
#include "loader_fixture.h"

static struct demo demo;
static int64_t rows[512];
static const int thread_counts[] = {0, 1, 2, 8};

RP_TEST(sequential_rows_for_any_number_of_threads)
{
    need_reference();
    demo_init(&demo);
    for (int64_t i = 0; i < ROWS; i++) {
        rows[i] = i;
    }
    for (int t = 0; t < 4; t++) {
        rp_loader *loader = open_loader(&demo, demo_options(thread_counts[t], 2));
        check_stream(&demo, loader, rows, ROWS, 16, false);
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        (void)CHECK_EQ(stats.counters.samples, ROWS);
        (void)CHECK_EQ(stats.counters.batches, 12);
        (void)CHECK_EQ(stats.counters.delivered, 2 * ROWS);
        (void)CHECK_EQ(stats.counters.indexed, FILES);
        (void)CHECK_EQ(stats.threads, thread_counts[t]);
        rp_loader_close(&loader);
    }
}

RP_TEST(mixed_rows_with_repeats_for_any_number_of_threads)
{
    need_reference();
    demo_init(&demo);
    for (int t = 0; t < 4; t++) {
        mixed_rows(rows, 150, 7 + (uint64_t)t);
        rows[20] = rows[21] = rows[22]; /* three times in one batch */
        rp_loader *loader = open_loader(&demo, demo_options(thread_counts[t], 3));
        check_stream(&demo, loader, rows, 150, 32, false);
        check_stream(&demo, loader, rows, 150, 64, true); /* larger batches, last one dropped */
        check_stream(&demo, loader, rows, 9, 1, false);
        rp_loader_close(&loader);
    }
}

RP_TEST(windows_are_kept_inside_the_episode)
{
    static const int64_t steps[] = {INT64_MIN, -50, -1, 0, 2, INT64_MAX};
    static const int64_t ahead[] = {0, 1, 43};
    need_reference();
    demo_init(&demo);
    demo.camera[0].window = demo.pad[0].window = (struct rp_window){steps, 6};
    demo.column[0].window = demo.pad[1].window = (struct rp_window){ahead, 3};
    static const int64_t ends[] = {0, 1, 47, 48, 49, 91, 92, 143, 144, 145, 183};
    for (int threads = 0; threads <= 2; threads += 2) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
        check_stream(&demo, loader, ends, 11, 4, false);
        rp_loader_close(&loader);
    }
}

RP_TEST(lengths_of_the_last_batch)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 20, 3);
    rp_loader *loader = open_loader(&demo, demo_options(2, 2));
    check_stream(&demo, loader, rows, 20, 8, true);
    check_stream(&demo, loader, rows, 16, 8, true);
    check_stream(&demo, loader, rows, 7, 8, true); /* nothing at all */
    check_stream(&demo, loader, rows, 7, 8, false);
    check_stream(&demo, loader, rows, 0, 8, false);
    struct rp_error err;
    rp_error_clear(&err);
    rp_batch *batch = NULL;
    (void)CHECK_STATUS(next_batch(loader, &batch, &err), RP_END, &err); /* and again */
    rp_loader_close(&loader);
}

RP_TEST(blocks_stay_at_prefetch_and_one_when_batches_go_back)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 96, 11);
    static const int prefetch[] = {0, 1, 5};
    for (int p = 0; p < 3; p++) {
        rp_loader *loader = open_loader(&demo, demo_options(2, prefetch[p]));
        for (int epoch = 0; epoch < 3; epoch++) {
            check_stream(&demo, loader, rows, 96, 8, false);
        }
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        (void)CHECK(stats.arena.grown <= prefetch[p] + 1 + (prefetch[p] == 0));
        (void)CHECK(stats.arena.grown >= 1);
        rp_loader_close(&loader);
    }
}

RP_TEST(a_consumer_may_keep_all_batches)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 96, 12);
    for (int threads = 0; threads <= 2; threads += 2) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
        struct rp_error err;
        rp_error_clear(&err);
        REQUIRE_OK(begin_rows(loader, rows, 96, 8, false, &err), &err);
        rp_batch *kept[12] = {0};
        for (int i = 0; i < 12; i++) {
            REQUIRE_OK(next_batch(loader, &kept[i], &err), &err);
        }
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        (void)CHECK(stats.arena.blocks >= 12);
        rp_loader_close(&loader); /* batches outlive it */
        for (int i = 0; i < 12; i++) {
            (void)check_batch(&demo, kept[i], rows + 8 * i, 8);
            rp_batch_free(&kept[i]);
        }
    }
}

RP_TEST(blocks_grow_only_for_who_waits)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 96, 16);
    rp_loader *loader = open_loader(&demo, demo_options(2, 2));
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(begin_rows(loader, rows, 96, 8, false, &err), &err);
    rp_batch *kept[2] = {0};
    REQUIRE_OK(next_batch(loader, &kept[0], &err), &err);
    REQUIRE_OK(next_batch(loader, &kept[1], &err), &err);
    (void)usleep(200000); /* time to map what may not be mapped: two in flight and two kept */
    struct rp_loader_stats stats;
    rp_loader_stats(loader, &stats);
    (void)CHECK(stats.arena.grown <= 3);
    rp_batch_free(&kept[0]);
    rp_batch_free(&kept[1]);
    rp_loader_close(&loader);
}

RP_TEST(no_memory_is_kept_for_reuse_when_the_budget_is_zero)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 96, 13);
    struct rp_loader_options options = demo_options(2, 2);
    options.keep_bytes = 0;
    rp_loader *loader = open_loader(&demo, options);
    check_stream(&demo, loader, rows, 96, 8, false);
    struct rp_loader_stats stats;
    rp_loader_stats(loader, &stats);
    (void)CHECK_EQ(stats.arena.blocks, 0);
    rp_loader_close(&loader);
}

RP_TEST(tickets_come_in_any_order)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 96, 14);
    rows[3] = rows[4];
    for (int threads = 0; threads <= 2; threads += 2) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
        struct rp_error err;
        rp_error_clear(&err);
        uint64_t ticket[8];
        for (int i = 0; i < 8; i++) {
            REQUIRE_OK(rp_loader_submit(loader, rows + 12 * i, NULL, 12, &ticket[i], &err), &err);
        }
        rp_loader_drop(loader, ticket[5]);
        for (int i = 7; i >= 0; i--) {
            rp_batch *batch = NULL;
            if (i == 5) {
                continue;
            }
            REQUIRE_OK(take_ticket(loader, ticket[i], &batch, &err), &err);
            (void)check_batch(&demo, batch, rows + 12 * i, 12);
            rp_batch_free(&batch);
            (void)CHECK_STATUS(take_ticket(loader, ticket[i], &batch, &err), RP_E_ARG, &err);
        }
        rp_loader_close(&loader);
    }
}

RP_TEST(times_take_the_place_of_timestamps)
{
    need_reference();
    demo_init(&demo);
    demo.desc.n_cameras = 1;
    rp_loader *loader = open_loader(&demo, demo_options(1, 1));
    struct rp_error err;
    rp_error_clear(&err);
    static const int64_t row[2] = {3, 3};
    static const double times[2] = {4.8, 9.1}; /* rows 48 and 91 */
    uint64_t ticket;
    rp_batch *batch = NULL;
    REQUIRE_OK(rp_loader_submit(loader, row, times, 2, &ticket, &err), &err);
    REQUIRE_OK(take_ticket(loader, ticket, &batch, &err), &err);
    (void)CHECK(hash_bytes(batch->block->data, FRONT) == reference[0][48]);
    (void)CHECK(hash_bytes(batch->block->data + FRONT, FRONT) == reference[0][91]);
    rp_batch_free(&batch);
    rp_loader_close(&loader);
}

RP_TEST(indexes_are_forgotten_above_their_budget)
{
    need_reference();
    demo_init(&demo);
    for (int64_t i = 0; i < 24; i++) {
        rows[i] = i % 2 == 0 ? i : 100 + i; /* the other file of each camera every time */
    }
    for (int threads = 0; threads <= 2; threads += 2) {
        struct rp_loader_options options = demo_options(threads, 1);
        options.index_bytes = 1;
        rp_loader *loader = open_loader(&demo, options);
        check_stream(&demo, loader, rows, 24, 1, false);
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        (void)CHECK(stats.counters.indexed > FILES);
        rp_loader_close(&loader);
    }
}

static void get_one(rp_loader *loader, int64_t row)
{
    struct rp_error err;
    rp_error_clear(&err);
    uint64_t ticket;
    rp_batch *batch = NULL;
    REQUIRE_OK(rp_loader_submit(loader, &row, NULL, 1, &ticket, &err), &err);
    REQUIRE_OK(take_ticket(loader, ticket, &batch, &err), &err);
    (void)check_batch(&demo, batch, &row, 1);
    rp_batch_free(&batch);
}

RP_TEST(single_reads_find_pictures_in_the_frame_cache)
{
    need_reference();
    demo_init(&demo);
    struct rp_loader_options options = demo_options(1, 1);
    options.frame_cache_bytes = 64 << 20;
    rp_loader *loader = open_loader(&demo, options);
    struct rp_loader_stats stats;
    for (int round = 0; round < 2; round++) {
        for (int64_t row = 0; row < 20; row++) {
            get_one(loader, row);
        }
    }
    rp_loader_stats(loader, &stats);
    (void)CHECK_EQ(stats.counters.decoded, 2 * 20); /* each picture once, GOPs of 2 */
    (void)CHECK_EQ(stats.counters.cache_hits, 2 * (10 + 20));
    (void)CHECK(stats.frame_cache_bytes > 0 && stats.frame_cache_bytes <= 64 << 20);
    rp_loader_close(&loader);
}

RP_TEST(a_small_frame_cache_lets_pictures_go)
{
    need_reference();
    demo_init(&demo);
    struct rp_loader_options options = demo_options(2, 1);
    options.frame_cache_bytes = 400000; /* three pictures */
    rp_loader *loader = open_loader(&demo, options);
    struct rp_loader_stats stats;
    for (int64_t row = 0; row < ROWS; row += 7) {
        get_one(loader, row);
        get_one(loader, row);
        rp_loader_stats(loader, &stats);
        (void)CHECK(stats.frame_cache_bytes <= 400000);
    }
    rp_loader_close(&loader);
}

RP_TEST(layout_is_aligned_and_bounded)
{
    demo_init(&demo);
    rp_loader *loader = open_loader(&demo, demo_options(1, 1));
    size_t offset[5], bytes;
    struct rp_error err;
    rp_error_clear(&err);
    for (int64_t n = 1; n < 70; n += 3) {
        REQUIRE_OK(rp_loader_layout(loader, n, offset, &bytes, &err), &err);
        size_t size[5] = {FRONT, WRIST, 8, 1, 1}, end = 0;
        for (int f = 0; f < 5; f++) {
            (void)CHECK_EQ(offset[f] % 64, 0);
            (void)CHECK(offset[f] >= end && offset[f] < end + 64);
            end = offset[f] + (size_t)n * size[f];
        }
        (void)CHECK(bytes >= end && bytes < end + 64);
    }
    (void)CHECK_STATUS(rp_loader_layout(loader, INT64_MAX, NULL, &bytes, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_layout(loader, -1, NULL, &bytes, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_layout(loader, 4 << 20, NULL, &bytes, &err), RP_E_ARG, &err);
    rp_loader_close(&loader);
}

static void refused(struct rp_loader_options options)
{
    rp_loader *loader = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_new(&demo.desc, &options, &loader, &err), RP_E_ARG, &err);
    (void)CHECK(loader == NULL && err.what[0] != '\0');
    rp_loader_close(&loader);
}

RP_TEST(what_makes_no_sense_is_refused)
{
    demo_init(&demo);
    refused(demo_options(-1, 1));
    refused(demo_options(1025, 1));
    refused(demo_options(1, -1));
    demo.run_file[1][2] = FILES;
    refused(demo_options(1, 1));
    demo.run_file[1][2] = -1;
    refused(demo_options(1, 1));
    demo_init(&demo);
    demo.run_first[2] = demo.run_first[1]; /* an episode without rows */
    refused(demo_options(1, 1));
    demo_init(&demo);
    demo.run_first[RUNS] = ROWS - 1;
    refused(demo_options(1, 1));
    demo_init(&demo);
    demo.camera[0].width = 0;
    refused(demo_options(1, 1));
    demo_init(&demo);

    rp_loader *loader = open_loader(&demo, demo_options(1, 1));
    struct rp_error err;
    rp_error_clear(&err);
    static const int64_t bad[3] = {0, ROWS, -1};
    uint64_t ticket = 0;
    (void)CHECK_STATUS(begin_rows(loader, bad, 2, 1, false, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(begin_rows(loader, bad + 2, 1, 1, false, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(begin_rows(loader, bad, 1, 0, false, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(begin_rows(loader, bad, 1, INT64_MAX, false, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_submit(loader, bad, NULL, 2, &ticket, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_submit(loader, bad, NULL, 0, &ticket, &err), RP_E_ARG, &err);
    rp_loader_drop(loader, 12345);
    rp_loader_close(&loader);
    rp_loader_close(&loader);
    rp_batch *none = NULL;
    rp_batch_free(&none);
    rp_batch_free(NULL);
}
