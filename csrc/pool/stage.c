#include "pool/gpu_priv.h"

#include "pool/work_priv.h"

#include <string.h>

/* The memory that a batch is put together in on its way to a GPU. */

#define ALIGN 64u

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Bytes of columns and pads of n samples, as rp_loader_layout lays them out. */
static size_t tail_bytes(const struct rp_dataset_desc *desc, int64_t n)
{
    size_t bytes = 0;
    for (int i = 0; i < desc->n_columns; i++) {
        const struct rp_column *column = &desc->column[i];
        bytes += aligned((size_t)n * (size_t)column->window.n * column->row_bytes);
    }
    for (int i = 0; i < desc->n_pads; i++) {
        bytes += aligned((size_t)n * (size_t)desc->pad[i].window.n);
    }
    return bytes;
}

/* Bytes of a stage for n samples; slots[] per camera if not NULL. The batch's own layout is known
 * to be below 2^40 bytes, so nothing overflows here. */
static size_t plan(const rp_loader *loader, int64_t n, struct slots *slots)
{
    const struct rp_dataset_desc *desc = loader->desc;
    size_t at = tail_bytes(desc, n);
    for (int c = 0; c < desc->n_cameras; c++) {
        size_t len = (size_t)rp_counted(&loader->gpu->slot_bytes[c]);
        if (slots != NULL) {
            slots[c] = (struct slots){.at = at, .len = len};
        }
        at += len * (size_t)n * (size_t)desc->camera[c].window.n;
    }
    return at;
}

static void free_own(struct stage *stage)
{
    for (int64_t i = 0; i < stage->cap; i++) {
        rp_cuda_give(&stage->picture[i].own, NULL);
        rp_frame_unref(&stage->picture[i].frame);
    }
}

void rp_stage_free(struct stage *stage)
{
    free_own(stage);
    rp_cuda_give(&stage->memory, NULL);
    rp_free(stage->picture);
    rp_free(stage->slots);
    *stage = (struct stage){0};
}

static rp_status reserve(const rp_loader *loader, struct batch *batch, struct rp_error *err)
{
    struct stage *stage = &batch->stage;
    int64_t wants = batch->n * loader->wants_per_sample;
    free_own(stage);
    if (stage->slots == NULL) {
        stage->slots = rp_calloc((size_t)loader->desc->n_cameras + 1, sizeof(*stage->slots));
        if (stage->slots == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a batch");
        }
    }
    if (wants > stage->cap) {
        struct picture *grown = rp_realloc(stage->picture, (size_t)wants, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld pictures", (long long)wants);
        }
        stage->picture = grown;
        stage->cap = wants;
    }
    if (stage->cap > 0) {
        memset(stage->picture, 0, (size_t)stage->cap * sizeof(*stage->picture));
    }
    return RP_OK;
}

/* What batches that were given up left behind; else this thread's batch has its own. */
static void inherit(rp_loader *loader, struct batch *batch)
{
    rp_lock_acquire(&loader->lock);
    for (struct batch *b = loader->batches; b != NULL && batch->stage.memory == NULL; b = b->next) {
        if (b->state == BATCH_FREE) {
            batch->stage.memory = b->stage.memory;
            b->stage.memory = NULL;
        }
    }
    rp_lock_release(&loader->lock);
}

rp_status rp_stage_take(rp_loader *loader, struct batch *batch, struct rp_error *err)
{
    struct stage *stage = &batch->stage;
    rp_cuda *device = loader->gpu->device;
    RP_TRY(reserve(loader, batch, err));
    stage->tail = tail_bytes(loader->desc, batch->n);
    stage->bytes = plan(loader, batch->n, stage->slots);
    size_t need = stage->bytes;
    if (batch->stream && loader->stream_rows > batch->n) { /* so that all stages are as large */
        need = plan(loader, loader->stream_rows, NULL);
    }
    need = need > 0 ? need : ALIGN;
    while (inherit(loader, batch), stage->memory != NULL) {
        if (stage->memory->len >= need) {
            return RP_OK;
        }
        rp_cuda_give(&stage->memory, NULL);
    }
    /* A consumer can be far ahead of its GPU: more memory than this is waited for. */
    struct rp_cuda_stats stats;
    rp_cuda_stats(device, &stats);
    size_t most = need * ((size_t)rp_loader_due_room(loader) + 2);
    bool may_grow = (size_t)stats.bytes[RP_CUDA_PINNED] + need <= most;
    rp_count(&loader->gpu->waits, !may_grow);
    rp_status status = rp_cuda_take(device, RP_CUDA_PINNED, need, may_grow, &stage->memory, err);
    rp_count(&loader->gpu->waits, -(int64_t)!may_grow);
    return status == RP_AGAIN
               ? rp_cuda_take(device, RP_CUDA_PINNED, need, true, &stage->memory, err)
               : status;
}

/* The planes of a picture as they lie in a slot: rows without gaps. Bytes of it; 0: it has no
 * planes of that kind. */
static size_t pack(const struct rp_image *image, struct rp_image *packed)
{
    if ((image->format != RP_PIX_I420 && image->format != RP_PIX_I420J) || image->width <= 0 ||
        image->height <= 0) {
        return 0;
    }
    size_t width = (size_t)image->width, height = (size_t)image->height;
    *packed = *image;
    packed->stride[0] = image->width;
    packed->stride[1] = packed->stride[2] = image->width / 2;
    return width * height + 2 * (width / 2) * (height / 2);
}

static uint8_t *copy_plane(uint8_t *to, const uint8_t *from, ptrdiff_t stride, int width,
                           int height)
{
    size_t row = (size_t)width;
    if (stride == width) {
        memcpy(to, from, row * (size_t)height);
        return to + row * (size_t)height;
    }
    for (int y = 0; y < height; y++, to += row, from += stride) {
        memcpy(to, from, row);
    }
    return to;
}

/* Copy the planes; `packed` gets their addresses, counted from the first slot. */
static void put_planes(const struct stage *stage, size_t at, const struct rp_image *image,
                       struct rp_image *packed)
{
    uint8_t *base = stage->memory->host + stage->tail, *to = stage->memory->host + at;
    for (int p = 0; p < 3; p++) {
        int half = p > 0 ? 2 : 1;
        packed->plane[p] = (const uint8_t *)(uintptr_t)(to - base);
        to = copy_plane(to, image->plane[p], image->stride[p], image->width / half,
                        image->height / half);
    }
}

/* The slot is too small for pictures of this kind: further batches get larger ones. */
static void widen(struct rp_gpu *gpu, int camera, size_t bytes)
{
    int64_t need = (int64_t)aligned(bytes), known = rp_counted(&gpu->slot_bytes[camera]);
    while (known < need && !__atomic_compare_exchange_n(&gpu->slot_bytes[camera], &known, need,
                                                        true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* Where the bytes of a picture go that the CPU converts. */
static rp_status place_bytes(struct rp_gpu *gpu, struct picture *picture, uint8_t *slot,
                             size_t room, size_t bytes, void **to, struct rp_error *err)
{
    if (bytes <= room) {
        rp_cuda_give(&picture->own, NULL);
        *to = slot;
        return RP_OK;
    }
    if (picture->own == NULL) {
        RP_TRY(rp_cuda_take(gpu->device, RP_CUDA_PINNED, bytes, true, &picture->own, err));
    }
    *to = picture->own->host;
    return RP_OK;
}

rp_status rp_stage_picture(struct worker *worker, const struct want *want,
                           const struct rp_image *image, struct rp_target *target,
                           struct rp_error *err)
{
    const rp_loader *loader = worker->loader;
    struct stage *stage = &want->batch->stage;
    struct picture *picture = &stage->picture[want->order];
    const struct slots *slots = &stage->slots[want->camera];
    size_t at = slots->at + slots->len * (size_t)rp_want_number(loader, want);
    struct rp_image packed = {0};
    size_t planes = pack(image, &packed);
    bool suits = planes > 0 && rp_cuda_converts(&packed, target);
    rp_frame_unref(&picture->frame); /* of a sample that this one takes the place of */
    if (suits && planes <= slots->len) {
        put_planes(stage, at, image, &packed);
        picture->image = packed;
        picture->how = STAGED_PLANES;
        return RP_OK;
    }
    size_t bytes = rp_camera_bytes(&loader->desc->camera[want->camera]);
    widen(loader->gpu, want->camera, suits ? planes : bytes);
    RP_TRY(place_bytes(loader->gpu, picture, stage->memory->host + at, slots->len, bytes,
                       &target->data, err));
    RP_TRY(rp_convert(image, target, worker->scratch, err));
    picture->how = STAGED_BYTES;
    return RP_OK;
}

rp_status rp_stage_frame(struct worker *worker, const struct want *want, rp_frame *frame,
                         const struct rp_target *target, struct rp_error *err)
{
    (void)worker; /* nothing of its own is needed */
    struct picture *picture = &want->batch->stage.picture[want->order];
    const struct rp_image *image = rp_frame_image(frame);
    if (!rp_cuda_converts(image, target)) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "a picture of the GPU that its kernel does not take");
    }
    rp_frame_unref(&picture->frame);
    picture->frame = rp_frame_ref(frame);
    picture->image = *image;
    picture->how = STAGED_FRAME;
    return RP_OK;
}
