/* The engine in its states: whatever is dropped, left early or kept, nothing stays behind. */
#include "loader_fixture.h"
#include "loader_rest.h"

static struct demo demo;

static void end_stream(rp_loader *loader)
{
    REQUIRE_OK(begin_rows(loader, NULL, 0, 1, false, NULL), NULL);
}

/* A ticket's own times are not the next stream's. */
RP_TEST(times_belong_to_one_ticket)
{
    need_reference();
    demo_init(&demo);
    for (int threads = 0; threads <= 2; threads++) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
        int64_t row[1] = {3}, rows[12];
        const double time[1] = {0.0};
        uint64_t ticket;
        rp_batch *batch = NULL;
        struct rp_error err;
        rp_error_clear(&err);
        REQUIRE_OK(rp_loader_submit(loader, row, time, 1, &ticket, &err), &err);
        REQUIRE_OK(take_ticket(loader, ticket, &batch, &err), &err);
        rp_batch_free(&batch);
        mixed_rows(rows, 12, 5);
        check_stream(&demo, loader, rows, 12, 4, false);
        end_stream(loader);
        check_rest(loader);
        rp_loader_close(&loader);
    }
}

/* A consumer that is away for longer than the time-out finds batches, not a stall. */
RP_TEST(a_pause_of_the_consumer_is_no_stall)
{
    need_reference();
    demo_init(&demo);
    int64_t rows[12];
    mixed_rows(rows, 12, 9);
    for (int prefetch = 0; prefetch <= 1; prefetch++) {
        rp_loader *loader = open_loader(&demo, demo_options(1, prefetch));
        struct rp_error err;
        rp_error_clear(&err);
        rp_batch *batch = NULL;
        REQUIRE_OK(begin_rows(loader, rows, 12, 1, false, &err), &err);
        REQUIRE_OK(next_batch(loader, &batch, &err), &err);
        rp_batch_free(&batch);
        pause_ms(1200);
        for (int i = 1; i < 12; i++) {
            rp_status status;
            do {
                status = rp_loader_next(loader, SLICE_NS, 1000000000, &batch, &err);
            } while (status == RP_AGAIN);
            REQUIRE_OK(status, &err);
            rp_batch_free(&batch);
        }
        rp_loader_close(&loader);
    }
}

/* A ticket that is given up, at any moment, leaves nothing behind. */
RP_TEST(a_dropped_ticket_leaves_nothing)
{
    static const int64_t deltas[20000];
    need_reference();
    demo_init(&demo);
    demo.column[0].window = (struct rp_window){deltas, 20000}; /* so that filling takes its time */
    for (int threads = 0; threads <= 3; threads++) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
        int64_t rows[6];
        struct rp_error err;
        rp_error_clear(&err);
        for (uint64_t i = 0; i < 300; i++) {
            uint64_t ticket;
            mixed_rows(rows, 6, i + 1);
            REQUIRE_OK(rp_loader_submit(loader, rows, NULL, 6, &ticket, &err), &err);
            for (uint64_t spin = 0; spin < i % 40 * 400; spin++) {
                (void)rp_now_ns();
            }
            if (threads == 0 && i % 2 != 0) {
                rp_lock_acquire(&loader->lock);
                (void)rp_loader_help_locked(loader);
                rp_lock_release(&loader->lock);
            }
            rp_loader_drop(loader, ticket);
        }
        check_rest(loader);
        rp_loader_close(&loader);
    }
}

/* Streams that are left early do not add up blocks. */
RP_TEST(streams_left_early_keep_no_blocks)
{
    need_reference();
    demo_init(&demo);
    int64_t rows[96];
    mixed_rows(rows, 96, 3);
    for (int threads = 0; threads <= 2; threads += 2) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
        struct rp_error err;
        rp_error_clear(&err);
        for (int taken = 18; taken > 0; taken -= 2) { /* each left at another batch */
            rp_feed *feed = NULL;
            REQUIRE_OK(rp_feed_new_rows(rows, 96, 2, false, &feed, &err), &err);
            REQUIRE_OK(rp_loader_begin(loader, &feed, 20, &err), &err);
            for (int i = 0; i < taken; i++) {
                rp_batch *batch = NULL;
                REQUIRE_OK(next_batch(loader, &batch, &err), &err);
                rp_batch_free(&batch);
            }
        }
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        (void)CHECK(stats.arena.blocks <= 6);
        rp_loader_close(&loader);
    }
}

/* Blocks that the arena does not keep do not count against those that may be mapped. */
RP_TEST(blocks_not_kept_are_mapped_again)
{
    need_reference();
    demo_init(&demo);
    int64_t rows[60];
    mixed_rows(rows, 60, 3);
    struct rp_loader_options options = demo_options(2, 2);
    options.keep_bytes = 0;
    rp_loader *loader = open_loader(&demo, options);
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(begin_rows(loader, rows, 60, 2, false, &err), &err);
    for (int i = 0; i < 12; i++) {
        rp_batch *batch = NULL;
        REQUIRE_OK(next_batch(loader, &batch, &err), &err);
        rp_batch_free(&batch);
    }
    int ready = 0;
    for (int i = 0; i < 20000 && ready < 2; i++) { /* both become ready without being asked for */
        pause_ms(1);
        ready = 0;
        rp_lock_acquire(&loader->lock);
        for (const struct batch *b = loader->batches; b != NULL; b = b->next) {
            ready += b->state == BATCH_DONE;
        }
        rp_lock_release(&loader->lock);
    }
    (void)CHECK_EQ(ready, 2);
    rp_loader_close(&loader);
}

/* A batch needs its own indexes, not those of all batches to come. */
RP_TEST(a_batch_waits_for_its_own_indexes)
{
    need_reference();
    demo_init(&demo);
    rp_loader *loader = open_loader(&demo, demo_options(0, 1));
    const int64_t row[2] = {3, ROWS - 1};
    uint64_t ticket[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(rp_loader_submit(loader, &row[i], NULL, 1, &ticket[i], NULL), NULL);
    }
    rp_lock_acquire(&loader->lock);
    while (loader->indexes.entry[0].state != INDEX_READY ||
           loader->indexes.entry[2].state != INDEX_READY) {
        struct item item = rp_schedule_pop_locked(loader); /* both are located first */
        for (struct item next; item.kind == ITEM_LOCATE; item = next) {
            rp_lock_release(&loader->lock);
            rp_locate_work(&loader->workers[0], item.batch);
            rp_lock_acquire(&loader->lock);
            bool first = item.batch->ticket == ticket[0];
            if (first) { /* the second one asks for its indexes, too */
                struct batch *b = loader->batches;
                while (b->ticket != ticket[1]) {
                    b = b->next;
                }
                b->state = BATCH_LOCATING;
                next = (struct item){.kind = ITEM_LOCATE, .batch = b};
            }
            else {
                next = rp_schedule_pop_locked(loader);
            }
        }
        REQUIRE_EQ(item.kind, ITEM_INDEX);
        rp_lock_release(&loader->lock);
        rp_index_work(loader, item.file);
        rp_lock_acquire(&loader->lock);
    }
    int waiting = 0;
    for (const struct batch *b = loader->batches; b != NULL; b = b->next) {
        waiting += b->state == BATCH_INDEXING;
        (void)CHECK(b->ticket != ticket[0] || b->state == BATCH_QUEUED);
    }
    rp_lock_release(&loader->lock);
    (void)CHECK_EQ(waiting, 1);
    for (int i = 0; i < 2; i++) {
        rp_loader_drop(loader, ticket[i]);
    }
    check_rest(loader);
    rp_loader_close(&loader);
}

/* A run of many wants is let go of in one sweep: the square of their number would be minutes. */
RP_TEST(many_wants_are_dropped_at_once)
{
    enum { STEPS = 2000, SIZE = 50 };
    static const int64_t deltas[STEPS];
    need_reference();
    demo_init(&demo);
    demo.camera[0].window = (struct rp_window){deltas, STEPS};
    demo.camera[0].width = demo.camera[0].height = 8;
    demo.camera[0].resize = true;
    struct rp_loader_options options = demo_options(0, 1);
    rp_loader *loader = open_loader(&demo, options);
    int64_t rows[SIZE] = {0};
    rp_feed *feed = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_feed_new_rows(rows, SIZE, 1, false, &feed, &err), &err);
    REQUIRE_OK(rp_loader_begin(loader, &feed, SIZE, &err), &err);
    rp_lock_acquire(&loader->lock);
    for (int i = 0; i < 3 * SIZE; i++) {
        (void)rp_loader_help_locked(loader); /* indexes, rows, places */
        if (loader->feed_ended) {
            break;
        }
    }
    rp_lock_release(&loader->lock);
    end_stream(loader);
    check_rest(loader);
    rp_loader_close(&loader);
}
