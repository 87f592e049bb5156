#include "pool/work_priv.h"

#include <math.h>

#define MAX_FURTHER 4096 /* rows of other episodes tried in the place of one */
#define NOT_LOCATED (-1) /* want.sample of a place that nothing is wanted for */

/* Locate a batch: see that its files are indexed, turn rows into wanted pictures, hang these on
 * decode runs. A batch whose rows could not be read comes here again with other rows. */

/* Whether sample i is to be located now. */
static bool needs_locating(const struct batch *batch, int64_t i)
{
    return !batch->mending || batch->fault[i].redo;
}

/* False: an index is missing, the batch waits in BATCH_INDEXING. */
static bool pin_files(rp_loader *loader, struct batch *batch)
{
    const struct rp_dataset_desc *desc = loader->desc;
    bool ready = true;
    rp_lock_acquire(&loader->lock);
    for (int64_t i = 0; i < batch->n && desc->n_cameras > 0; i++) {
        if (!needs_locating(batch, i)) {
            continue;
        }
        int64_t run = rp_desc_run_of(desc, batch->rows[i]);
        for (int c = 0; c < desc->n_cameras; c++) {
            int32_t *pinned = &batch->files[i * desc->n_cameras + c];
            int32_t file = desc->camera[c].run_file[run], before = *pinned;
            if (!rp_index_pin_locked(loader, file)) {
                ready = false;
                batch->awaits = file; /* the last: indexes are made in the order they are asked */
            }
            if (before >= 0) { /* after pinning: a failed index must not be forgotten and retried */
                rp_index_unpin_locked(loader, before);
            }
            *pinned = file;
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

static rp_status find_picture(rp_loader *loader, struct want *want, double tolerance,
                              struct rp_error *err)
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
    RP_TRY(rp_index_find(entry->index, want->time, tolerance, &want->sample, &nearest, err));
    struct rp_sample sample;
    rp_index_sample(entry->index, want->sample, &sample);
    want->pts = sample.pts;
    return rp_index_start_key(entry->index, want->sample, &want->key, err);
}

int64_t rp_want_number(const rp_loader *loader, const struct want *want)
{
    const struct rp_camera *camera = loader->desc->camera;
    int64_t i = want->order / loader->wants_per_sample, before = 0;
    for (int c = 0; c < want->camera; c++) {
        before += camera[c].window.n;
    }
    int64_t step = want->order % loader->wants_per_sample - before;
    return i * camera[want->camera].window.n + step;
}

/* Where in the batch a wanted picture goes, from its place. On the way to a GPU its place is in the
 * stage. */
void rp_want_place(const rp_loader *loader, const struct batch *batch, struct want *want)
{
    if (loader->gpu == NULL) {
        want->to = batch->block->data + batch->offsets[want->camera] +
                   (size_t)rp_want_number(loader, want) *
                       rp_camera_bytes(&loader->desc->camera[want->camera]);
    }
}

/* The wants of sample i; stops at the first that cannot be served, *made counts those before it. */
static rp_status locate_sample(rp_loader *loader, struct batch *batch, int64_t i, int64_t *made,
                               struct rp_error *err)
{
    const struct rp_dataset_desc *desc = loader->desc;
    int64_t row = batch->rows[i], run = rp_desc_run_of(desc, row);
    int32_t set = rp_desc_set_of(desc, run);
    struct want *want = &batch->want[i * loader->wants_per_sample];
    for (int c = 0; c < desc->n_cameras; c++) {
        const struct rp_camera *camera = &desc->camera[c];
        const int64_t *delta = camera->window.delta + (ptrdiff_t)set * camera->window.n;
        for (int d = 0; d < camera->window.n; d++, want++) {
            bool outside;
            int64_t at = rp_desc_window_row(desc, run, row, delta[d], &outside);
            *want = (struct want){.batch = batch,
                                  .row = at,
                                  .camera = c,
                                  .order = (int32_t)(want - batch->want),
                                  .file = camera->run_file[run]};
            want->time = batch->times != NULL
                             ? batch->times[i]
                             : camera->run_start[run] + (double)desc->timestamp[at];
            rp_status status = find_picture(loader, want, desc->tolerance[set], err);
            if (status != RP_OK) {
                rp_want_locate(loader, want, err);
                want->sample = NOT_LOCATED;
                return status;
            }
            ++*made;
        }
    }
    return RP_OK;
}

static void forget_wants(struct batch *batch, int64_t from, int64_t to)
{
    for (int64_t w = from; w < to; w++) {
        batch->want[w] = (struct want){.sample = NOT_LOCATED};
    }
}

/* Look up all that is wanted. A sample that cannot be served is a fault of a substituting loader;
 * else it is the batch's end, and only what stands before it is wanted: that may fail earlier. */
static void locate_samples(rp_loader *loader, struct batch *batch)
{
    int64_t step = loader->wants_per_sample;
    bool failed = false;
    for (int64_t i = 0; i < batch->n; i++) {
        if (!needs_locating(batch, i)) {
            continue;
        }
        forget_wants(batch, i * step, (i + 1) * step);
        int64_t made = 0;
        struct rp_error err;
        rp_error_clear(&err);
        if (failed || locate_sample(loader, batch, i, &made, &err) == RP_OK) {
            continue;
        }
        rp_lock_acquire(&loader->lock);
        rp_batch_fail_locked(loader, batch, (int32_t)(i * step + made), &err);
        failed = batch->error_order != INT32_MAX;
        rp_lock_release(&loader->lock);
        if (!failed) {
            forget_wants(batch, i * step, (i + 1) * step);
        }
    }
}

/* Next row in the place of one that could not be read, or -1: the next rows of its episode, those
 * before it, then those of the set's following episodes. */
static int64_t candidate(const struct rp_dataset_desc *desc, int64_t wanted, int64_t tried)
{
    int64_t run = rp_desc_run_of(desc, wanted);
    int64_t after = desc->run_first[run + 1] - 1 - wanted, before = wanted - desc->run_first[run];
    if (tried < after) {
        return wanted + 1 + tried;
    }
    tried -= after;
    if (tried < before) {
        return wanted - 1 - tried;
    }
    tried -= before;
    if (tried >= MAX_FURTHER) {
        return -1;
    }
    int32_t set = rp_desc_set_of(desc, run);
    for (int64_t next = (run + 1) % desc->n_runs; next != run; next = (next + 1) % desc->n_runs) {
        int64_t rows = desc->run_first[next + 1] - desc->run_first[next];
        if (rp_desc_set_of(desc, next) != set) {
            continue;
        }
        if (tried < rows) {
            return desc->run_first[next] + tried;
        }
        tried -= rows;
    }
    return -1;
}

/* Put other rows in the places of those that could not be read. Where none is left the batch fails
 * with that sample's own error. */
static void choose_rows(rp_loader *loader, struct batch *batch)
{
    for (int64_t i = 0; i < batch->n; i++) {
        struct fault *fault = &batch->fault[i];
        fault->redo = fault->open;
        if (!fault->open) {
            continue;
        }
        int64_t row = candidate(loader->desc, fault->wanted, fault->tried++);
        if (row >= 0) {
            batch->rows[i] = row;
            fault->open = false;
            continue;
        }
        rp_lock_acquire(&loader->lock);
        if (fault->order < batch->error_order) {
            batch->error_order = fault->order;
            batch->error = fault->error;
        }
        rp_lock_release(&loader->lock);
    }
}

/* Wants of a stream's batch that waits: they may be served by whoever decodes their GOP. */
static void hang_waiting_locked(rp_loader *loader, struct want *want)
{
    if (!rp_park_find_locked(&loader->park, want) &&
        rp_schedule_want_locked(loader, want, NULL) != RP_OK) {
        want->run = NULL; /* scheduled when the batch is due */
    }
}

static void hang_needed_locked(rp_loader *loader, struct batch *batch, struct want *want)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_want_place(loader, batch, want);
    if (rp_schedule_want_locked(loader, want, &err) != RP_OK) {
        rp_want_locate(loader, want, &err);
        rp_batch_fail_locked(loader, batch, want->order, &err);
        want->open = false;
        rp_batch_settle_locked(loader, batch, 1);
    }
}

static void hang_wants_locked(rp_loader *loader, struct batch *batch)
{
    int64_t step = loader->wants_per_sample;
    for (int64_t i = 0; i < batch->n && batch->located; i++) {
        if (!needs_locating(batch, i)) {
            continue;
        }
        for (int64_t w = i * step; w < (i + 1) * step; w++) {
            struct want *want = &batch->want[w];
            if (want->sample == NOT_LOCATED) {
                continue;
            }
            want->open = true;
            batch->pending++;
            if (batch->mending) {
                hang_needed_locked(loader, batch, want);
            }
            else if (batch->stream) {
                hang_waiting_locked(loader, want);
            }
        }
    }
}

/* After locating: wait for the turn, or go on at once. True: the batch is to be filled now. */
static bool go_on(rp_loader *loader, struct batch *batch)
{
    bool fill = false;
    rp_lock_acquire(&loader->lock);
    if (batch->expected) {
        rp_segments_expect_locked(loader, batch);
    }
    if (batch->cancelled || batch->expected) {
        rp_batch_recycle_locked(loader, batch);
        rp_cond_broadcast(&loader->done);
    }
    else if (batch->mending) {
        batch->state = BATCH_FILLING;
        batch->pending = 1; /* holds it until everything is handed out */
        if (batch->error_order == INT32_MAX) {
            hang_wants_locked(loader, batch);
        }
        rp_batch_settle_locked(loader, batch, 1);
    }
    else {
        hang_wants_locked(loader, batch);
        fill = !batch->stream;
        batch->state = fill ? BATCH_STARTING : BATCH_LOCATED;
        batch->pending += fill;
    }
    rp_lock_release(&loader->lock);
    return fill;
}

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

static void fail_whole(rp_loader *loader, struct batch *batch, const struct rp_error *err)
{
    rp_lock_acquire(&loader->lock);
    if (batch->error_order > 0) {
        batch->error_order = 0;
        batch->error = *err;
    }
    rp_lock_release(&loader->lock);
}

void rp_locate_work(struct worker *worker, struct batch *batch)
{
    rp_loader *loader = worker->loader;
    if (end_cancelled(loader, batch)) {
        return;
    }
    struct rp_error err;
    rp_error_clear(&err);
    int64_t began = rp_now_ns();
    if (batch->mending && !batch->chosen) {
        choose_rows(loader, batch);
        batch->chosen = true;
    }
    if (!batch->pinned && rp_batch_reserve(loader, batch, &err) != RP_OK) {
        fail_whole(loader, batch, &err);
    }
    if (batch->error_order == INT32_MAX) {
        if (!pin_files(loader, batch)) {
            return;
        }
        locate_samples(loader, batch);
        batch->located = true;
        if (batch->mending) {
            rp_batch_write_columns(loader, batch);
        }
    }
    bool fill = go_on(loader, batch);
    rp_count(&loader->counters.plan_ns, rp_now_ns() - began);
    if (fill) {
        rp_fill_work(worker, batch);
    }
}
