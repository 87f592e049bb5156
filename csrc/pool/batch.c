#include "pool/work_priv.h"

#include <assert.h>
#include <string.h>

#define FIELD_ALIGN     64
#define MAX_BATCH_BYTES ((size_t)1 << 40)

size_t rp_camera_bytes(const struct rp_camera *camera)
{
    size_t element = camera->type == RP_PIXEL_U8 ? 1 : camera->type == RP_PIXEL_U16 ? 2 : 4;
    return (size_t)camera->height * (size_t)camera->width * (size_t)camera->channels * element;
}

static rp_status add_field(int64_t n, size_t sample_bytes, size_t count, size_t *at,
                           size_t **offset, struct rp_error *err)
{
    size_t bytes, end;
    if (__builtin_mul_overflow(sample_bytes, count, &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)n, &bytes) ||
        __builtin_add_overflow(*at, bytes, &end) || end > MAX_BATCH_BYTES) {
        RP_FAIL(err, RP_E_ARG, "a batch of %lld samples exceeds 2^40 bytes", (long long)n);
    }
    if (*offset != NULL) {
        *(*offset)++ = *at;
    }
    *at = (end + FIELD_ALIGN - 1) / FIELD_ALIGN * FIELD_ALIGN;
    return RP_OK;
}

rp_status rp_loader_layout(const rp_loader *loader, int64_t n, size_t *offset, size_t *bytes,
                           struct rp_error *err)
{
    const struct rp_dataset_desc *desc = loader->desc;
    size_t at = 0;
    for (int i = 0; i < desc->n_cameras; i++) {
        const struct rp_camera *camera = &desc->camera[i];
        RP_TRY(add_field(n, rp_camera_bytes(camera), (size_t)camera->window.n, &at, &offset, err));
    }
    for (int i = 0; i < desc->n_columns; i++) {
        const struct rp_column *column = &desc->column[i];
        RP_TRY(add_field(n, column->row_bytes, (size_t)column->window.n, &at, &offset, err));
    }
    for (int i = 0; i < desc->n_pads; i++) {
        RP_TRY(add_field(n, 1, (size_t)desc->pad[i].window.n, &at, &offset, err));
    }
    *bytes = at;
    return RP_OK;
}

rp_status rp_batch_take_free_locked(rp_loader *loader, struct batch **out, struct rp_error *err)
{
    struct batch *batch = loader->batches;
    while (batch != NULL && batch->state != BATCH_FREE) {
        batch = batch->next;
    }
    if (batch == NULL) {
        batch = rp_calloc(1, sizeof(*batch));
        if (batch == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a batch");
        }
        batch->next = loader->batches;
        loader->batches = batch;
    }
    rp_free(batch->times);
    batch->times = NULL;
    batch->stream = batch->expected = batch->cancelled = batch->abandoned = batch->due =
        batch->near = batch->may_grow = false;
    batch->located = batch->mending = batch->chosen = false;
    batch->pending = batch->n = batch->done = batch->repeated = 0;
    batch->error_order = INT32_MAX;
    rp_error_clear(&batch->error);
    *out = batch;
    return RP_OK;
}

rp_status rp_batch_room(struct batch *batch, int64_t n, struct rp_error *err)
{
    if (n > batch->cap_rows) {
        int64_t *grown = rp_realloc(batch->rows, (size_t)n, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a batch of %lld samples", (long long)n);
        }
        batch->rows = grown;
        batch->cap_rows = n;
    }
    return RP_OK;
}

rp_status rp_batch_set_rows(struct batch *batch, const int64_t *rows, const double *times,
                            int64_t n, struct rp_error *err)
{
    if (times != NULL) {
        batch->times = rp_calloc((size_t)n, sizeof(*times));
        if (batch->times == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld times", (long long)n);
        }
        memcpy(batch->times, times, (size_t)n * sizeof(*times));
    }
    RP_TRY(rp_batch_room(batch, n, err));
    memcpy(batch->rows, rows, (size_t)n * sizeof(*rows));
    batch->n = n;
    return RP_OK;
}

static rp_status reserve_faults(struct batch *batch, struct rp_error *err)
{
    if (batch->n > batch->cap_faults) {
        struct fault *grown = rp_realloc(batch->fault, (size_t)batch->n, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a batch of %lld samples",
                    (long long)batch->n);
        }
        batch->fault = grown;
        batch->cap_faults = batch->n;
    }
    for (int64_t i = 0; i < batch->n; i++) {
        struct fault *fault = &batch->fault[i];
        fault->wanted = -1;
        fault->open = fault->redo = false;
    }
    return RP_OK;
}

rp_status rp_batch_reserve(const rp_loader *loader, struct batch *batch, struct rp_error *err)
{
    const struct rp_dataset_desc *desc = loader->desc;
    int64_t wants, files = batch->n * desc->n_cameras;
    if (__builtin_mul_overflow(batch->n, loader->wants_per_sample, &wants) || wants > INT32_MAX) {
        RP_FAIL(err, RP_E_ARG, "a batch of %lld samples has too many pictures",
                (long long)batch->n);
    }
    if (wants > batch->cap_wants) {
        struct want *grown = rp_realloc(batch->want, (size_t)wants, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld pictures", (long long)wants);
        }
        batch->want = grown;
        batch->cap_wants = wants;
    }
    if (files > batch->cap_files) {
        int32_t *grown = rp_realloc(batch->files, (size_t)files, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld files", (long long)files);
        }
        batch->files = grown;
        batch->cap_files = files;
    }
    for (int64_t i = 0; i < files; i++) {
        batch->files[i] = -1;
    }
    if (loader->options.substitute) {
        RP_TRY(reserve_faults(batch, err));
    }
    if (batch->offsets == NULL) {
        size_t fields = (size_t)(desc->n_cameras + desc->n_columns + desc->n_pads);
        batch->offsets = rp_calloc(fields, sizeof(*batch->offsets));
        if (batch->offsets == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a batch");
        }
    }
    return rp_loader_layout(loader, batch->n, batch->offsets, &batch->bytes, err);
}

/* Whether an error lies in the file's bytes, so that it comes again at every read. */
static bool is_content(rp_status code)
{
    return code == RP_E_DECODE || code == RP_E_FORMAT || code == RP_E_UNSUPPORTED ||
           code == RP_E_TIMESTAMP;
}

void rp_batch_fail_locked(rp_loader *loader, struct batch *batch, int32_t order,
                          const struct rp_error *err)
{
    if (!loader->options.substitute || !is_content(err->code)) {
        if (order < batch->error_order) {
            batch->error_order = order;
            batch->error = *err;
        }
        return;
    }
    struct fault *fault = &batch->fault[order / loader->wants_per_sample];
    fault->open = true;
    if (fault->wanted < 0 || (fault->tried == 0 && order < fault->order)) {
        if (fault->wanted < 0) {
            fault->wanted = batch->rows[order / loader->wants_per_sample];
            fault->tried = 0;
        }
        fault->order = order;
        fault->error = *err;
    }
}

void rp_batch_unpin_locked(rp_loader *loader, struct batch *batch)
{
    if (batch->pinned) {
        for (int64_t i = 0; i < batch->n * loader->desc->n_cameras; i++) {
            if (batch->files[i] >= 0) {
                rp_index_unpin_locked(loader, batch->files[i]);
            }
        }
        batch->pinned = false;
    }
}

static bool has_faults(const rp_loader *loader, const struct batch *batch)
{
    bool open = false;
    for (int64_t i = 0; loader->options.substitute && i < batch->n && !open; i++) {
        open = batch->fault[i].open;
    }
    return open;
}

void rp_batch_settle_locked(rp_loader *loader, struct batch *batch, int64_t wants)
{
    batch->pending -= wants;
    assert(batch->pending >= 0);
    if (batch->pending > 0) {
        return;
    }
    if (batch->cancelled) {
        if (batch->state != BATCH_LOCATING && batch->state != BATCH_PULLING) {
            rp_batch_recycle_locked(loader, batch);
            rp_cond_broadcast(&loader->done);
        }
        return;
    }
    if (batch->state != BATCH_FILLING) {
        return;
    }
    if (batch->error_order == INT32_MAX && has_faults(loader, batch)) {
        batch->state = BATCH_QUEUED;
        batch->mending = true;
        batch->chosen = false;
        rp_cond_broadcast(&loader->work);
        return;
    }
    rp_batch_unpin_locked(loader, batch);
    bool send = loader->gpu != NULL && batch->error_order == INT32_MAX;
    batch->state = send ? BATCH_STAGED : BATCH_DONE;
    if (send) {
        rp_cond_broadcast(&loader->work);
    }
    rp_cond_broadcast(&loader->done);
}

void rp_batch_wake_blocked_locked(rp_loader *loader)
{
    loader->releases++;
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state == BATCH_BLOCKED) {
            b->state = BATCH_DUE;
        }
    }
    rp_cond_broadcast(&loader->work);
    rp_cond_broadcast(&loader->done);
}

/* A block stays with the free batch until one that is filled takes it: the arena's lock cannot be
 * taken here. */
void rp_batch_recycle_locked(rp_loader *loader, struct batch *batch)
{
    rp_batch_unpin_locked(loader, batch);
    if (batch->stream) {
        loader->stream_in_flight--;
        loader->stream_due -= batch->due;
    }
    batch->stream = batch->expected = batch->due = false;
    batch->state = BATCH_FREE;
    if (batch->block != NULL) {
        rp_batch_wake_blocked_locked(loader);
    }
}

void rp_batch_cancel_ticket_locked(rp_loader *loader, struct batch *batch)
{
    batch->cancelled = true;
    if (batch->state == BATCH_DONE || batch->state == BATCH_STAGED) {
        rp_batch_recycle_locked(loader, batch);
    }
    else if (batch->state == BATCH_STARTING || batch->state == BATCH_FILLING) {
        rp_schedule_drop_wants_locked(loader, batch); /* else whoever works on it ends it */
    }
}

/* The samples that were replaced, by place. */
static rp_status list_substitutes(rp_loader *loader, const struct batch *batch, rp_batch *handed,
                                  struct rp_error *err)
{
    int64_t n = 0;
    for (int64_t i = 0; loader->options.substitute && i < batch->n; i++) {
        n += batch->fault[i].wanted >= 0;
    }
    if (n == 0) {
        return RP_OK;
    }
    handed->substitutes = rp_calloc((size_t)n, sizeof(*handed->substitutes));
    if (handed->substitutes == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld replaced samples", (long long)n);
    }
    for (int64_t i = 0; i < batch->n; i++) {
        const struct fault *fault = &batch->fault[i];
        if (fault->wanted >= 0) {
            handed->substitutes[handed->n_substitutes++] = (struct rp_substitute){
                .place = i, .wanted = fault->wanted, .row = batch->rows[i], .error = fault->error};
        }
    }
    rp_count(&loader->counters.substituted, n);
    return RP_OK;
}

rp_status rp_batch_hand_over_locked(rp_loader *loader, struct batch *batch, rp_batch **out,
                                    struct rp_error *err)
{
    assert(batch->state == BATCH_DONE);
    rp_status status = batch->error_order != INT32_MAX ? batch->error.code : RP_OK;
    rp_batch *handed = NULL;
    if (status != RP_OK) {
        loader->era++;
        if (err != NULL) {
            *err = batch->error;
        }
    }
    else {
        handed = rp_calloc(1, sizeof(*handed));
        if (handed == NULL) {
            status = rp_error_set(err, RP_E_NOMEM, "out of memory for a batch");
        }
        else {
            status = list_substitutes(loader, batch, handed, err);
        }
    }
    if (status != RP_OK) {
        rp_free(handed);
    }
    else {
        handed->block = batch->block;
        handed->refs = 1;
        handed->n = batch->n;
        handed->done = batch->done;
        handed->rows = batch->rows;
        handed->field_offset = batch->offsets;
        handed->bytes = batch->bytes;
        batch->block = NULL;
        batch->rows = NULL;
        batch->cap_rows = 0;
        batch->offsets = NULL;
        rp_count(&loader->counters.samples, handed->n);
        rp_count(&loader->counters.batches, 1);
        loader->repeated += batch->repeated;
        loader->last_progress_ns = rp_now_ns(); /* all may have been done long ago */
        *out = handed;
    }
    rp_batch_recycle_locked(loader, batch);
    return status;
}

void rp_batch_free(rp_batch **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_batch *batch = *out;
    *out = NULL;
    if (__atomic_sub_fetch(&batch->refs, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    rp_block_release(&batch->block);
    rp_free((void *)(uintptr_t)batch->rows);
    rp_free((void *)(uintptr_t)batch->field_offset);
    rp_free(batch->substitutes);
    rp_free(batch);
}

void rp_batches_free(rp_loader *loader)
{
    while (loader->batches != NULL) {
        struct batch *batch = loader->batches;
        loader->batches = batch->next;
        rp_block_release(&batch->block);
        rp_stage_free(&batch->stage);
        rp_free(batch->want);
        rp_free(batch->rows);
        rp_free(batch->times);
        rp_free(batch->files);
        rp_free(batch->fault);
        rp_free(batch->offsets);
        rp_free(batch);
    }
}
