#include "pool/work_priv.h"

#include <math.h>

/* Plan one batch: take a block, see that its files are indexed, turn rows into wanted pictures,
 * write columns and pads, hand the wants to the schedule. */

static size_t picture_bytes(const struct rp_camera *camera)
{
    size_t element = camera->type == RP_PIXEL_U8 ? 1 : camera->type == RP_PIXEL_U16 ? 2 : 4;
    return (size_t)camera->height * (size_t)camera->width * (size_t)camera->channels * element;
}

/* Whether a new block may be mapped for the batch; counts it at once, so that two threads do not
 * both take the last one. */
static bool may_map(rp_loader *loader, struct batch *batch)
{
    rp_lock_acquire(&loader->lock);
    bool may = !batch->stream || batch->may_grow || loader->blocks_mapped < loader->block_limit;
    if (may && batch->stream) {
        loader->blocks_mapped++;
    }
    rp_lock_release(&loader->lock);
    return may;
}

/* RP_AGAIN: no block is free now, the batch waits in BATCH_BLOCKED. */
static rp_status take_block(rp_loader *loader, struct batch *batch, struct rp_error *err)
{
    if (batch->block != NULL) {
        if (batch->block->len >= batch->bytes) {
            return RP_OK;
        }
        rp_block_release(&batch->block);
    }
    rp_lock_acquire(&loader->lock);
    uint64_t releases = loader->releases;
    rp_lock_release(&loader->lock);
    rp_status status = rp_arena_take(loader->arena, batch->bytes, false, &batch->block, err);
    if (status == RP_AGAIN && may_map(loader, batch)) {
        status = rp_arena_take(loader->arena, batch->bytes, true, &batch->block, err);
        if (status != RP_OK && batch->stream) {
            rp_lock_acquire(&loader->lock);
            loader->blocks_mapped--;
            rp_lock_release(&loader->lock);
        }
    }
    if (status != RP_AGAIN) {
        return status;
    }
    rp_lock_acquire(&loader->lock);
    bool blocked = loader->releases == releases && !batch->may_grow && !batch->cancelled;
    batch->state = blocked ? BATCH_BLOCKED : BATCH_QUEUED;
    if (blocked) {
        rp_cond_broadcast(&loader->done); /* a consumer that waits for it lets it grow */
    }
    rp_lock_release(&loader->lock);
    return RP_AGAIN;
}

static bool pin_files(rp_loader *loader, struct batch *batch)
{
    const struct rp_dataset_desc *desc = loader->desc;
    int64_t at = 0;
    for (int64_t i = 0; i < batch->n && desc->n_cameras > 0; i++) {
        int64_t run = rp_desc_run_of(desc, batch->rows[i]);
        for (int c = 0; c < desc->n_cameras; c++) {
            batch->files[at++] = desc->camera[c].run_file[run];
        }
    }
    bool ready = true;
    rp_lock_acquire(&loader->lock);
    for (int64_t i = 0; i < at; i++) {
        if (!rp_index_pin_locked(loader, batch->files[i])) {
            ready = false;
        }
    }
    batch->pinned = true;
    if (!ready) {
        batch->state = BATCH_INDEXING;
    }
    rp_lock_release(&loader->lock);
    return ready;
}

void rp_want_locate(const rp_loader *loader, const struct want *want, struct rp_error *err)
{
    const struct rp_dataset_desc *desc = loader->desc;
    int64_t run = rp_desc_run_of(desc, want->row);
    rp_error_at_file(err, rp_files_path(loader->files, want->file), -1, -1);
    rp_error_at_frame(err, desc->camera[want->camera].key, desc->run_episode[run],
                      want->row - desc->run_first[run]);
    if (err != NULL && isnan(err->time)) {
        err->time = want->time;
    }
}

static rp_status find_picture(rp_loader *loader, struct want *want, struct rp_error *err)
{
    const struct index_entry *entry = &loader->indexes.entry[want->file];
    if (entry->state == INDEX_FAILED) {
        if (entry->error == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory while indexing a video file");
        }
        *err = *entry->error;
        return err->code;
    }
    double nearest;
    RP_TRY(rp_index_find(entry->index, want->time, loader->desc->tolerance, &want->sample, &nearest,
                         err));
    struct rp_sample sample;
    rp_index_sample(entry->index, want->sample, &sample);
    want->pts = sample.pts;
    return RP_OK;
}

/* All wants of the batch in order; stops at the first that cannot be served. */
static rp_status make_wants(rp_loader *loader, struct batch *batch, struct rp_error *err)
{
    const struct rp_dataset_desc *desc = loader->desc;
    int64_t n = 0;
    for (int64_t i = 0; i < batch->n; i++) {
        int64_t row = batch->rows[i], run = rp_desc_run_of(desc, row);
        for (int c = 0; c < desc->n_cameras; c++) {
            const struct rp_camera *camera = &desc->camera[c];
            size_t bytes = picture_bytes(camera);
            uint8_t *to = batch->block->data + batch->offsets[c] +
                          (size_t)i * (size_t)camera->window.n * bytes;
            for (int d = 0; d < camera->window.n; d++, to += bytes) {
                bool outside;
                int64_t at = rp_desc_window_row(desc, run, row, camera->window.delta[d], &outside);
                struct want *want = &batch->want[n];
                *want = (struct want){.batch = batch,
                                      .to = to,
                                      .row = at,
                                      .camera = c,
                                      .order = (int32_t)n,
                                      .file = camera->run_file[run]};
                want->time = batch->times != NULL
                                 ? batch->times[i]
                                 : camera->run_start[run] + (double)desc->timestamp[at];
                rp_status status = find_picture(loader, want, err);
                if (status != RP_OK) {
                    rp_want_locate(loader, want, err);
                    batch->n_wants = n;
                    return status;
                }
                n++;
            }
        }
    }
    batch->n_wants = n;
    return RP_OK;
}

static rp_status schedule_wants_locked(rp_loader *loader, struct batch *batch, int64_t *scheduled,
                                       int64_t *cached, struct rp_error *err)
{
    bool look = !batch->stream && loader->frames.bucket != NULL;
    for (int64_t i = 0; i < batch->n_wants; i++) {
        struct want *want = &batch->want[i];
        if (look) {
            want->cached = rp_frame_cache_find_locked(&loader->frames, want->file, want->sample);
            if (want->cached != NULL) {
                ++*cached;
                continue;
            }
        }
        int64_t key;
        rp_status status =
            rp_index_start_key(loader->indexes.entry[want->file].index, want->sample, &key, err);
        if (status == RP_OK) {
            status = rp_schedule_want_locked(loader, want, want->file, key, err);
        }
        if (status != RP_OK) {
            rp_want_locate(loader, want, err);
            rp_batch_fail_locked(batch, want->order, err);
            batch->n_wants = i;
            return status;
        }
        ++*scheduled;
    }
    return RP_OK;
}

/* Pictures that lay in the frame cache. */
static void convert_cached(struct worker *worker, struct batch *batch, int64_t n_wants,
                           int64_t cached)
{
    rp_loader *loader = worker->loader;
    struct rp_error err;
    rp_error_clear(&err);
    int32_t failed = INT32_MAX;
    for (int64_t i = 0; i < n_wants && cached > 0; i++) {
        struct want *want = &batch->want[i];
        if (want->cached == NULL) {
            continue;
        }
        if (failed == INT32_MAX && rp_want_convert(worker, want, want->cached, &err) != RP_OK) {
            rp_want_locate(loader, want, &err);
            failed = want->order;
        }
        rp_frame_unref(&want->cached);
        rp_count(&loader->counters.cache_hits, 1);
    }
    rp_lock_acquire(&loader->lock);
    if (failed != INT32_MAX) {
        rp_batch_fail_locked(batch, failed, &err);
    }
    rp_batch_settle_locked(loader, batch, cached);
    rp_lock_release(&loader->lock);
}

static void fail_whole(rp_loader *loader, struct batch *batch, const struct rp_error *err)
{
    rp_lock_acquire(&loader->lock);
    rp_batch_fail_locked(batch, 0, err);
    batch->state = BATCH_FILLING;
    rp_batch_settle_locked(loader, batch, 0);
    rp_lock_release(&loader->lock);
}

/* A batch given up before it was planned ends here: it may never get a block. */
static bool end_cancelled(rp_loader *loader, struct batch *batch)
{
    rp_lock_acquire(&loader->lock);
    bool cancelled = batch->cancelled;
    if (cancelled) {
        rp_batch_recycle_locked(loader, batch);
        rp_cond_broadcast(&loader->done);
    }
    rp_lock_release(&loader->lock);
    return cancelled;
}

void rp_plan_batch_work(struct worker *worker, struct batch *batch)
{
    rp_loader *loader = worker->loader;
    if (end_cancelled(loader, batch)) {
        return;
    }
    struct rp_error err;
    rp_error_clear(&err);
    int64_t began = rp_now_ns();
    rp_status status = RP_OK;
    if (!batch->pinned) {
        status = rp_batch_reserve(loader, batch, &err);
        if (status == RP_OK && !pin_files(loader, batch)) {
            return;
        }
    }
    if (status == RP_OK) {
        status = take_block(loader, batch, &err);
    }
    if (status == RP_AGAIN) {
        return;
    }
    if (status != RP_OK) {
        fail_whole(loader, batch, &err);
        return;
    }
    status = make_wants(loader, batch, &err);
    rp_batch_write_columns(loader, batch);

    int64_t scheduled = 0, cached = 0;
    rp_lock_acquire(&loader->lock);
    if (status != RP_OK) {
        rp_batch_fail_locked(batch, (int32_t)batch->n_wants, &err);
    }
    batch->state = BATCH_FILLING;
    if (batch->cancelled) {
        batch->n_wants = 0;
    }
    rp_error_clear(&err);
    batch->pending = 1; /* holds the batch until everything is handed out */
    (void)schedule_wants_locked(loader, batch, &scheduled, &cached, &err); /* stored in batch */
    int64_t n_wants = scheduled + cached;
    batch->pending += n_wants;
    rp_batch_settle_locked(loader, batch, 1);
    rp_cond_broadcast(&loader->work);
    rp_lock_release(&loader->lock);
    rp_count(&loader->counters.plan_ns, rp_now_ns() - began);
    if (cached > 0) {
        convert_cached(worker, batch, n_wants, cached);
    }
}
