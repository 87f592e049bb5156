#include "pool/work_priv.h"

#define WAIT_NS   10000000 /* between looks at items that end */
#define MAX_AHEAD 65536

/* *bytes: of a full batch. */
static rp_status check_begin(rp_loader *loader, const rp_feed *feed, int64_t ahead, size_t *bytes,
                             struct rp_error *err)
{
    RP_TRY(rp_loader_check_usable(loader, err));
    if (ahead < 0 || ahead > MAX_AHEAD) {
        RP_FAIL(err, RP_E_ARG, "%lld batches ahead, allowed are 0..%d", (long long)ahead,
                MAX_AHEAD);
    }
    if (rp_feed_rows_end(feed) > loader->desc->n_rows) {
        RP_FAIL(err, RP_E_ARG, "row %lld is outside 0..%lld", (long long)rp_feed_rows_end(feed) - 1,
                (long long)loader->desc->n_rows - 1);
    }
    return rp_loader_layout(loader, rp_feed_batch(feed), NULL, bytes, err);
}

/* Until nothing of the stream before is under way. */
static rp_status end_stream_locked(rp_loader *loader, struct rp_error *err)
{
    rp_schedule_cancel_locked(loader);
    while (loader->stream_in_flight > 0 && !loader->closing) {
        if (!rp_loader_help_locked(loader)) {
            rp_cond_broadcast(&loader->work);
            (void)rp_cond_wait(&loader->done, &loader->lock, rp_now_ns() + WAIT_NS); /* loops */
        }
    }
    if (loader->closing) {
        RP_FAIL(err, RP_E_CLOSED, "the loader was closed");
    }
    return RP_OK;
}

/* Blocks that the stream has already: those of the stream before, if they are as large, but for
 * what its consumer keeps; one it gives back as soon as it has the next batch. The lock is let go
 * meanwhile. */
static int64_t blocks_at_hand_locked(rp_loader *loader, size_t bytes)
{
    if (bytes != loader->stream_bytes) {
        return 0;
    }
    struct rp_arena_stats stats;
    rp_lock_release(&loader->lock);
    rp_arena_stats(loader->arena, &stats);
    rp_lock_acquire(&loader->lock);
    int64_t kept = stats.blocks - stats.free;
    for (const struct batch *b = loader->batches; b != NULL; b = b->next) {
        kept -= b->state != BATCH_STARTING && b->block != NULL; /* that one is a worker's */
    }
    int64_t n = loader->blocks_mapped - (kept > 1 ? kept - 1 : 0);
    return n > 0 ? n : 0;
}

/* The stream that was expected begins, or another one. */
static void end_expectations_locked(rp_loader *loader)
{
    rp_segments_forget_expected_locked(loader);
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        b->cancelled = b->cancelled || b->expected; /* whoever locates it ends it */
    }
}

rp_status rp_loader_begin(rp_loader *loader, rp_feed **feed, int64_t ahead, struct rp_error *err)
{
    rp_feed *taken = *feed;
    *feed = NULL;
    size_t bytes;
    rp_status status = check_begin(loader, taken, ahead, &bytes, err);
    if (status == RP_OK) {
        status = rp_loader_start(loader, err);
    }
    if (status != RP_OK) {
        rp_feed_free(&taken);
        return status;
    }
    rp_lock_acquire(&loader->lock);
    status = end_stream_locked(loader, err);
    end_expectations_locked(loader);
    int64_t blocks = status == RP_OK ? blocks_at_hand_locked(loader, bytes) : 0;
    struct parked *dead = rp_park_dead_locked(&loader->park);
    if (status == RP_OK) {
        rp_feed *before = loader->feed;
        loader->feed = taken;
        taken = before;
        loader->ahead = ahead;
        if (rp_counted(&loader->counters.batches) == 0) {
            loader->first_ticket = (uint64_t)1 << 63 | loader->next_ticket;
        }
        loader->stream_bytes = bytes;
        loader->stream_rows = rp_feed_batch(loader->feed);
        loader->repeated = 0;
        loader->feed_ended = loader->starved = false;
        loader->stream_on = true;
        loader->era++;
        loader->block_limit = rp_loader_due_room(loader) + 1;
        loader->blocks_mapped = blocks;
        loader->last_progress_ns = rp_now_ns();
        rp_cond_broadcast(&loader->work);
    }
    rp_lock_release(&loader->lock);
    rp_park_bury(loader, dead);
    rp_feed_free(&taken);
    return status;
}

rp_status rp_loader_expect(rp_loader *loader, const int64_t *rows, int64_t n, struct rp_error *err)
{
    RP_TRY(rp_loader_check_usable(loader, err));
    RP_TRY(rp_loader_check_rows(loader, rows, n, err));
    struct batch *batch;
    rp_lock_acquire(&loader->lock);
    bool of_use = n > 0 && loader->n_fetchers > 0 && loader->stream_on && !loader->closing;
    if (of_use && rp_batch_take_free_locked(loader, &batch, NULL) == RP_OK &&
        rp_batch_set_rows(batch, rows, NULL, n, NULL) == RP_OK) {
        batch->expected = true;
        batch->ticket = NEVER_DUE;
        batch->state = BATCH_QUEUED;
        rp_cond_broadcast(&loader->work);
    }
    rp_lock_release(&loader->lock);
    return RP_OK;
}

void rp_pull_work(rp_loader *loader, struct batch *batch)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_batch_room(batch, rp_feed_batch(loader->feed), &err);
    if (status == RP_OK) {
        status = rp_feed_next(loader->feed, batch->rows, &batch->n, &batch->done, &batch->repeated,
                              &err);
    }
    rp_lock_acquire(&loader->lock);
    loader->pulling = false;
    if (status == RP_END || batch->cancelled) {
        loader->feed_ended = true;
        rp_batch_recycle_locked(loader, batch);
        rp_cond_broadcast(&loader->done);
    }
    else {
        if (status != RP_OK) { /* the stream ends with this batch */
            loader->feed_ended = true;
            batch->error_order = 0;
            batch->error = err;
        }
        batch->state = status == RP_OK ? BATCH_QUEUED : BATCH_LOCATED;
        rp_cond_broadcast(&loader->done); /* it may be waited for */
    }
    rp_lock_release(&loader->lock);
}

static struct batch *stream_front(rp_loader *loader)
{
    struct batch *front = NULL;
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state != BATCH_FREE && b->state != BATCH_PULLING && b->stream && !b->cancelled &&
            (front == NULL || b->ticket < front->ticket)) {
            front = b;
        }
    }
    return front;
}

/* A batch that was not let in yet is waited for, too. */
static rp_status wait_front_locked(rp_loader *loader, int64_t slice_ns, int64_t stall_ns,
                                   struct batch **front, struct rp_error *err)
{
    int64_t deadline = rp_now_ns() + slice_ns;
    while ((*front = stream_front(loader)) == NULL) {
        if (!loader->stream_on || (loader->feed_ended && !loader->pulling)) {
            return RP_END;
        }
        if (loader->closing) {
            RP_FAIL(err, RP_E_CLOSED, "the loader was closed");
        }
        if (loader->starved) {
            loader->stream_on = false;
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a batch");
        }
        if (loader->busy > 0) { /* with something else, or with the feed */
            RP_TRY(rp_loader_stalled_locked(loader, stall_ns, err));
        }
        rp_cond_broadcast(&loader->work);
        if (!rp_loader_help_locked(loader) &&
            !rp_cond_wait(&loader->done, &loader->lock,
                          deadline < rp_now_ns() + WAIT_NS / 10 ? deadline
                                                                : rp_now_ns() + WAIT_NS / 10) &&
            rp_now_ns() > deadline) {
            return RP_AGAIN;
        }
    }
    return RP_OK;
}

rp_status rp_loader_next(rp_loader *loader, int64_t slice_ns, int64_t stall_ns, rp_batch **out,
                         struct rp_error *err)
{
    RP_TRY(rp_loader_check_usable(loader, err));
    struct batch *front;
    rp_lock_acquire(&loader->lock);
    if (loader->taken) { /* by another thread: one batch has one taker */
        (void)rp_cond_wait(&loader->done, &loader->lock, rp_now_ns() + WAIT_NS); /* loops */
        rp_lock_release(&loader->lock);
        return RP_AGAIN;
    }
    loader->taken = true;
    rp_status status = wait_front_locked(loader, slice_ns, stall_ns, &front, err);
    if (status == RP_OK) {
        status = rp_loader_wait_locked(loader, front, slice_ns, stall_ns, err);
    }
    if (status == RP_OK) {
        status = rp_batch_hand_over_locked(loader, front, out, err);
        if (status != RP_OK) {
            rp_schedule_cancel_locked(loader);
        }
        rp_cond_broadcast(&loader->work); /* room for the next batch */
    }
    loader->taken = false;
    rp_cond_broadcast(&loader->done); /* others may take the next */
    struct parked *dead = rp_park_dead_locked(&loader->park);
    rp_lock_release(&loader->lock);
    rp_park_bury(loader, dead);
    return status;
}
