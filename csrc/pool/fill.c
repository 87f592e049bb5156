#include "pool/work_priv.h"

/* Fill a batch whose turn it is: take a block, write columns and pads, convert what is decoded
 * already, and see that the rest is decoded. */

/* Whether a new block may be mapped for the batch; counts it at once, so that two threads do not
 * both take the last one. Blocks that the arena did not keep make room for others. */
static bool may_map(rp_loader *loader, struct batch *batch)
{
    struct rp_arena_stats stats;
    rp_arena_stats(loader->arena, &stats);
    int64_t unmapped = stats.grown - stats.blocks;
    rp_lock_acquire(&loader->lock);
    if (unmapped > loader->blocks_unmapped) {
        int64_t gone = unmapped - loader->blocks_unmapped;
        loader->blocks_mapped -= gone < loader->blocks_mapped ? gone : loader->blocks_mapped;
        loader->blocks_unmapped = unmapped;
    }
    bool may = !batch->stream || batch->may_grow || loader->blocks_mapped < loader->block_limit;
    if (may && batch->stream) {
        loader->blocks_mapped++;
    }
    rp_lock_release(&loader->lock);
    return may;
}

/* No block is free: wait for one, unless one came back meanwhile. */
static void wait_for_block(rp_loader *loader, struct batch *batch, uint64_t releases)
{
    rp_lock_acquire(&loader->lock);
    bool blocked = loader->releases == releases && !batch->may_grow;
    batch->state = blocked ? BATCH_BLOCKED : BATCH_DUE;
    rp_batch_settle_locked(loader, batch, 1); /* ends it if it was cancelled */
    if (blocked) {
        rp_cond_broadcast(&loader->done); /* a consumer that waits for it lets it grow */
    }
    rp_lock_release(&loader->lock);
}

/* Batches that were given up keep their blocks, and others may have got these batches since: take
 * such a block over. NULL: there is none. */
static rp_block *idle_block(rp_loader *loader, uint64_t *releases)
{
    rp_block *block = NULL;
    rp_lock_acquire(&loader->lock);
    for (struct batch *b = loader->batches; b != NULL && block == NULL; b = b->next) {
        if (b->state == BATCH_FREE || (b->stream && !b->due)) {
            block = b->block;
            b->block = NULL;
        }
    }
    *releases = loader->releases;
    rp_lock_release(&loader->lock);
    return block;
}

/* As the arena has it: not one of more than twice the size, which others may need. */
static bool fits(const rp_block *block, size_t bytes)
{
    return block->len >= bytes && (block->len / 2 <= bytes || block->len <= 4096);
}

/* RP_AGAIN: no block is free now, the batch waits. */
static rp_status take_block(rp_loader *loader, struct batch *batch, struct rp_error *err)
{
    size_t bytes = batch->stream ? loader->stream_bytes : batch->bytes;
    uint64_t releases = 0;
    if (batch->block == NULL) {
        batch->block = idle_block(loader, &releases);
    }
    while (batch->block != NULL) {
        if (fits(batch->block, bytes)) {
            return RP_OK;
        }
        rp_block_release(&batch->block);
        batch->block = idle_block(loader, &releases);
    }
    rp_status status = rp_arena_take(loader->arena, bytes, false, &batch->block, err);
    if (status == RP_AGAIN && may_map(loader, batch)) {
        status = rp_arena_take(loader->arena, bytes, true, &batch->block, err);
        if (status != RP_OK && batch->stream) {
            rp_lock_acquire(&loader->lock);
            loader->blocks_mapped--;
            rp_lock_release(&loader->lock);
        }
    }
    if (status == RP_AGAIN) {
        wait_for_block(loader, batch, releases);
    }
    return status;
}

/* From now on the open want is served at once. True: its picture is at hand, in want->frame. */
static bool need_want_locked(rp_loader *loader, struct batch *batch, struct want *want)
{
    if (want->parked != NULL) {
        want->frame = rp_park_take_locked(&loader->park, want);
        return true;
    }
    if (want->run != NULL) { /* under way: its worker sees that the batch is being filled */
        if (rp_run_pends(want->run)) {
            rp_schedule_need_locked(loader, want->run, batch->ticket);
        }
        return false;
    }
    if (!batch->stream) {
        want->frame = rp_frame_cache_find_locked(&loader->frames, want->file, want->sample);
        if (want->frame != NULL) {
            rp_count(&loader->counters.cache_hits, 1);
            return true;
        }
    }
    struct rp_error err;
    rp_error_clear(&err);
    if (rp_schedule_want_locked(loader, want, &err) != RP_OK) {
        rp_want_locate(loader, want, &err);
        rp_batch_fail_locked(loader, batch, want->order, &err);
        want->open = false;
        rp_batch_settle_locked(loader, batch, 1);
    }
    return false;
}

static struct want *need_wants_locked(rp_loader *loader, struct batch *batch)
{
    struct want *held = NULL, **last = &held;
    for (int64_t w = 0; w < batch->n * loader->wants_per_sample; w++) {
        struct want *want = &batch->want[w];
        if (want->open && need_want_locked(loader, batch, want)) {
            want->next = NULL;
            *last = want;
            last = &want->next;
        }
    }
    return held;
}

/* A batch that failed as a whole, or gets no memory now: nothing of it is served. */
static void give_up(rp_loader *loader, struct batch *batch, const struct rp_error *err)
{
    rp_lock_acquire(&loader->lock);
    if (batch->error_order > 0) {
        batch->error_order = 0;
        batch->error = *err;
    }
    rp_schedule_drop_wants_locked(loader, batch);
    batch->abandoned = true; /* wants on runs under way are dropped by these */
    batch->state = BATCH_FILLING;
    rp_batch_settle_locked(loader, batch, 1);
    rp_cond_broadcast(&loader->work);
    rp_lock_release(&loader->lock);
}

static void start_filling(struct worker *worker, struct batch *batch)
{
    rp_loader *loader = worker->loader;
    struct want *held = NULL;
    rp_lock_acquire(&loader->lock);
    batch->state = BATCH_FILLING;
    if (!batch->cancelled) {
        held = need_wants_locked(loader, batch);
    }
    rp_batch_settle_locked(loader, batch, 1);
    rp_cond_broadcast(&loader->work);
    rp_lock_release(&loader->lock);
    rp_wants_convert(worker, held);
}

void rp_fill_work(struct worker *worker, struct batch *batch)
{
    rp_loader *loader = worker->loader;
    struct rp_error err;
    rp_error_clear(&err);
    int64_t began = rp_now_ns();
    rp_status status = RP_OK;
    if (batch->error_order > 0) { /* else it failed as a whole */
        status = take_block(loader, batch, &err);
        if (status == RP_AGAIN) {
            return;
        }
        if (status == RP_OK && loader->gpu != NULL) {
            status = rp_stage_take(loader, batch, &err);
        }
    }
    if (batch->error_order == 0 || status != RP_OK) {
        give_up(loader, batch, &err);
        return;
    }
    for (int64_t w = 0; w < batch->n * loader->wants_per_sample; w++) {
        if (batch->want[w].sample >= 0) {
            rp_want_place(loader, batch, &batch->want[w]);
        }
    }
    rp_batch_write_columns(loader, batch);
    start_filling(worker, batch);
    rp_count(&loader->counters.plan_ns, rp_now_ns() - began);
}
