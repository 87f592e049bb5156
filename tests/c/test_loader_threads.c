/* rp_loader among threads and processes: streams and tickets at once, begin and close at any
 * moment, waiting callers, stalls, fork. */
#include "loader_fixture.h"
#include "pool/work_priv.h"

#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>

static struct demo demo;
static int64_t rows[512];

/* A fork that waits inside its prepare handlers: with the core's gate closed, since handlers run in
 * the reverse order of their registration. */
static sem_t fork_waits, fork_goes_on;
static atomic_bool hold_fork;

static void wait_in_fork(void)
{
    if (atomic_load(&hold_fork)) {
        (void)sem_post(&fork_waits);
        (void)sem_wait(&fork_goes_on);
    }
}

__attribute__((constructor)) static void register_before_the_core(void)
{
    (void)pthread_atfork(wait_in_fork, NULL, NULL);
}

struct reader {
    rp_loader *loader;
    pthread_t thread;
    uint64_t seed;
    bool drops;
};

static void *read_tickets(void *arg)
{
    struct reader *self = arg;
    struct rp_error err;
    rp_error_clear(&err);
    int64_t mine[6];
    for (int round = 0; round < 12; round++) {
        uint64_t ticket;
        rp_batch *batch = NULL;
        int64_t n = 1 + round % 6;
        mixed_rows(mine, n, self->seed + (uint64_t)round);
        if (!CHECK_OK(rp_loader_submit(self->loader, mine, NULL, n, &ticket, &err), &err)) {
            break;
        }
        if (self->drops && round % 3 == 1) {
            rp_loader_drop(self->loader, ticket);
            continue;
        }
        if (!CHECK_OK(take_ticket(self->loader, ticket, &batch, &err), &err)) {
            break;
        }
        (void)check_batch(&demo, batch, mine, n);
        rp_batch_free(&batch);
    }
    return NULL;
}

static void start_readers(struct reader *readers, int n, rp_loader *loader)
{
    for (int i = 0; i < n; i++) {
        readers[i] =
            (struct reader){.loader = loader, .seed = 100 * (uint64_t)(i + 1), .drops = i % 2 == 1};
        REQUIRE_EQ(pthread_create(&readers[i].thread, NULL, read_tickets, &readers[i]), 0);
    }
}

static void join_readers(struct reader *readers, int n)
{
    for (int i = 0; i < n; i++) {
        (void)pthread_join(readers[i].thread, NULL);
    }
}

RP_TEST(tickets_of_several_threads_beside_a_stream)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 80, 21);
    for (int threads = 0; threads <= 4; threads += 2) {
        struct rp_loader_options options = demo_options(threads, 2);
        options.frame_cache_bytes = 1 << 20;
        options.index_bytes = 1;
        rp_loader *loader = open_loader(&demo, options);
        struct reader readers[3];
        start_readers(readers, 3, loader);
        check_stream(&demo, loader, rows, 80, 8, false);
        check_stream(&demo, loader, rows, 80, 5, false);
        join_readers(readers, 3);
        rp_loader_close(&loader);
    }
}

RP_TEST(first_calls_may_come_together)
{
    need_reference();
    demo_init(&demo);
    for (int round = 0; round < 20; round++) {
        rp_loader *loader = open_loader(&demo, demo_options(round % 2, 1));
        struct reader readers[4];
        start_readers(readers, 4, loader);
        join_readers(readers, 4);
        rp_loader_close(&loader);
    }
}

static void begin(rp_loader *loader, int64_t count, int64_t size)
{
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(begin_rows(loader, rows, count, size, false, &err), &err);
}

RP_TEST(a_new_stream_ends_the_one_before)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 128, 22);
    for (int threads = 0; threads <= 4; threads += 2) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 4));
        for (int round = 0; round < 8; round++) {
            struct rp_error err;
            rp_batch *batch = NULL;
            begin(loader, 128, 8 + round);
            for (int i = 0; i < round % 4; i++) {
                REQUIRE_OK(next_batch(loader, &batch, &err), &err);
                (void)CHECK_EQ(batch->done, (i + 1) * (8 + round));
                (void)check_batch(&demo, batch, rows + batch->done - (8 + round), 8 + round);
                rp_batch_free(&batch);
            }
        }
        check_stream(&demo, loader, rows, 128, 16, false);
        rp_loader_close(&loader);
    }
}

RP_TEST(a_new_stream_begins_while_all_blocks_are_kept)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 128, 23);
    for (int threads = 0; threads <= 4; threads += 2) {
        for (int round = 0; round < 6; round++) {
            rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
            struct rp_error err;
            rp_batch *kept[6] = {0};
            begin(loader, 128, 4);
            for (int i = 0; i < round; i++) {
                REQUIRE_OK(next_batch(loader, &kept[i], &err), &err);
            }
            begin(loader, 128, 4);
            REQUIRE_OK(next_batch(loader, &kept[5], &err), &err);
            (void)check_batch(&demo, kept[5], rows, 4);
            for (int i = 0; i < 6; i++) {
                rp_batch_free(&kept[i]);
            }
            rp_loader_close(&loader);
        }
    }
}

/* Returning tickets wake batches that wait for a block; a new stream must not wait for one that was
 * woken while the old stream ended, because its block never comes. */
RP_TEST(a_new_stream_begins_while_tickets_come_and_go)
{
    need_reference();
    demo_init(&demo);
    demo.desc.n_cameras = 1;
    mixed_rows(rows, 128, 29);
    for (int round = 0; round < 6; round++) {
        rp_loader *loader = open_loader(&demo, demo_options(2, 2));
        struct rp_error err;
        rp_batch *kept[60] = {0};
        struct reader readers[2];
        start_readers(readers, 2, loader);
        for (int i = 0; i < 60; i++) { /* each stream keeps a block, its next batches wait */
            begin(loader, 128, 2);
            REQUIRE_OK(next_batch(loader, &kept[i], &err), &err);
            (void)check_batch(&demo, kept[i], rows, 2);
        }
        join_readers(readers, 2);
        for (int i = 0; i < 60; i++) {
            rp_batch_free(&kept[i]);
        }
        rp_loader_close(&loader);
    }
}

/* Work as a worker would until a batch is about to be filled. */
static struct batch *next_to_fill(rp_loader *loader)
{
    for (;;) {
        struct item item = rp_schedule_pop_locked(loader);
        if (item.kind == ITEM_FILL || item.kind == ITEM_NONE) {
            return item.kind == ITEM_FILL ? item.batch : NULL;
        }
        rp_lock_release(&loader->lock);
        switch (item.kind) {
        case ITEM_PULL: rp_pull_work(loader, item.batch); break;
        case ITEM_LOCATE: rp_locate_work(&loader->workers[0], item.batch); break;
        case ITEM_INDEX: rp_index_work(loader, item.file); break;
        case ITEM_RUN: rp_run_work(&loader->workers[0], item.run); break;
        case ITEM_SEND: rp_send_work(loader, item.batch); break;
        case ITEM_FILL:
        case ITEM_NONE: break;
        }
        rp_lock_acquire(&loader->lock);
    }
}

/* The same moment made by hand: a batch that waits for a block is about to be filled when its
 * stream ends. It must be given up, or begin waits for it for ever. */
RP_TEST(a_cancelled_batch_needs_no_block)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 64, 30);
    rp_loader *loader = open_loader(&demo, demo_options(0, 2));
    struct rp_error err;
    rp_batch *kept[3] = {0};
    begin(loader, 64, 4);
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(next_batch(loader, &kept[i], &err), &err);
    }
    rp_lock_acquire(&loader->lock);
    struct batch *batch = next_to_fill(loader);
    rp_schedule_cancel_locked(loader);
    rp_lock_release(&loader->lock);
    if (CHECK(batch != NULL)) {
        rp_fill_work(&loader->workers[0], batch);
    }
    (void)CHECK_EQ(loader->stream_in_flight, 0);
    for (int i = 0; i < 3; i++) {
        rp_batch_free(&kept[i]);
    }
    rp_loader_close(&loader);
}

RP_TEST(close_at_any_moment)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 128, 24);
    for (int threads = 0; threads <= 4; threads += 2) {
        for (int taken = 0; taken < 4; taken++) {
            rp_loader *loader = open_loader(&demo, demo_options(threads, 3));
            struct rp_error err;
            rp_error_clear(&err);
            uint64_t ticket;
            rp_batch *last = NULL;
            begin(loader, 128, 8);
            REQUIRE_OK(rp_loader_submit(loader, rows, NULL, 4, &ticket, &err), &err);
            for (int i = 0; i < taken; i++) {
                rp_batch_free(&last);
                REQUIRE_OK(next_batch(loader, &last, &err), &err);
            }
            rp_loader_close(&loader);
            rp_batch_free(&last); /* after its loader */
        }
    }
}

static void *wait_for_batch(void *arg)
{
    rp_loader *loader = arg;
    struct rp_error err;
    rp_status status;
    rp_batch *batch = NULL;
    while ((status = next_batch(loader, &batch, &err)) == RP_OK) {
        rp_batch_free(&batch);
    }
    (void)CHECK(status == RP_E_CLOSED || status == RP_END);
    return (void *)(intptr_t)status;
}

RP_TEST(an_interrupt_ends_the_wait)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 512, 25);
    for (int threads = 0; threads <= 2; threads++) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
        begin(loader, 512, 8);
        pthread_t waiter;
        void *status;
        REQUIRE_EQ(pthread_create(&waiter, NULL, wait_for_batch, loader), 0);
        rp_loader_interrupt(loader);
        (void)pthread_join(waiter, &status);
        (void)CHECK_EQ((intptr_t)status, RP_E_CLOSED);
        struct rp_error err;
        rp_batch *batch = NULL;
        (void)CHECK_STATUS(next_batch(loader, &batch, &err), RP_E_CLOSED, &err); /* and later */
        rp_error_clear(&err);
        (void)CHECK_STATUS(begin_rows(loader, rows, 8, 8, false, &err), RP_E_CLOSED, &err);
        rp_loader_close(&loader);
    }
}

static void *fork_and_wait(void *arg)
{
    (void)arg;
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    int status = -1;
    (void)CHECK(child > 0 && waitpid(child, &status, 0) == child);
    (void)CHECK_EQ(status, 0);
    return NULL;
}

RP_TEST(a_stall_is_told_and_names_the_work)
{
    need_reference();
    demo_init(&demo);
    demo.desc.n_cameras = 1;
    mixed_rows(rows, 64, 26);
    REQUIRE(sem_init(&fork_waits, 0, 0) == 0 && sem_init(&fork_goes_on, 0, 0) == 0);
    rp_loader *loader = open_loader(&demo, demo_options(2, 2));
    atomic_store(&hold_fork, true);
    pthread_t forker;
    REQUIRE_EQ(pthread_create(&forker, NULL, fork_and_wait, NULL), 0);
    (void)sem_wait(&fork_waits); /* no decoder runs from here on */
    begin(loader, 64, 8);
    struct rp_error err;
    rp_error_clear(&err);
    rp_batch *batch = NULL;
    rp_status status;
    do {
        status = rp_loader_next(loader, SLICE_NS, 300000000, &batch, &err);
    } while (status == RP_AGAIN);
    (void)CHECK_STATUS(status, RP_E_STALLED, &err);
    (void)CHECK_CONTAINS(err.what, "decoding");
    atomic_store(&hold_fork, false);
    (void)sem_post(&fork_goes_on);
    (void)pthread_join(forker, NULL);
    REQUIRE_OK(next_batch(loader, &batch, &err), &err); /* it goes on */
    (void)check_batch(&demo, batch, rows, 8);
    rp_batch_free(&batch);
    rp_loader_close(&loader);
}

/* A pause of the consumer longer than the stall time is no stall. */
RP_TEST(a_pause_of_the_consumer_is_no_stall)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 64, 27);
    for (int threads = 0; threads <= 2; threads += 2) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 2));
        struct rp_error err;
        rp_error_clear(&err);
        uint64_t ticket;
        rp_batch *kept[8] = {0};
        begin(loader, 64, 8);
        REQUIRE_OK(rp_loader_submit(loader, rows, NULL, 1, &ticket, &err), &err);
        for (int i = 0; i < 8; i++) { /* kept: the next batch waits for its block */
            rp_status status;
            (void)usleep(300000);
            do {
                status = rp_loader_next(loader, SLICE_NS, 250000000, &kept[i], &err);
            } while (status == RP_AGAIN);
            REQUIRE_OK(status, &err);
        }
        for (int i = 0; i < 8; i++) {
            (void)check_batch(&demo, kept[i], rows + 8 * i, 8);
            rp_batch_free(&kept[i]);
        }
        rp_loader_close(&loader);
    }
}

/* What a child may do with its parent's loader; the exit status says which step failed. */
static int use_in_child(rp_loader *loader, rp_batch *batch)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_batch *next = NULL;
    uint64_t ticket;
    if (rp_loader_next(loader, SLICE_NS, STALL_NS, &next, &err) != RP_E_CLOSED) {
        return 1;
    }
    if (rp_loader_submit(loader, rows, NULL, 1, &ticket, NULL) != RP_E_CLOSED ||
        begin_rows(loader, rows, 8, 8, false, NULL) != RP_E_CLOSED ||
        rp_loader_take(loader, 1, SLICE_NS, STALL_NS, &next, NULL) != RP_E_CLOSED) {
        return 2;
    }
    rp_loader_drop(loader, 1);
    struct rp_loader_stats stats;
    rp_loader_stats(loader, &stats);
    rp_loader_interrupt(loader);
    rp_loader_close(&loader);
    if (loader != NULL) {
        return 3;
    }
    rp_batch_free(&batch);
    return batch != NULL ? 4 : 0;
}

RP_TEST(fork_in_the_middle_of_a_stream)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 128, 28);
    for (int threads = 0; threads <= 4; threads += 2) {
        rp_loader *loader = open_loader(&demo, demo_options(threads, 3));
        struct rp_error err;
        rp_batch *batch = NULL;
        begin(loader, 128, 4);
        for (int i = 0; i < 32; i++) {
            REQUIRE_OK(next_batch(loader, &batch, &err), &err);
            if (i % 2 == 0) {
                rp_lock_acquire(&loader->lock); /* as another thread might at this moment */
                pid_t child = fork();
                if (child > 0) {
                    rp_lock_release(&loader->lock);
                }
                if (child == 0) {
                    (void)alarm(60); /* a deadlock ends the child */
                    _exit(use_in_child(loader, batch));
                }
                int status = -1;
                REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
                (void)CHECK_EQ(status, 0);
            }
            (void)check_batch(&demo, batch, rows + 4 * i, 4);
            rp_batch_free(&batch);
        }
        rp_loader_close(&loader);
    }
}
