#include "pool/gpu_priv.h"

#include "cuda/cuda_video.h"
#include "pool/work_priv.h"

#include <assert.h>

/* From a batch's stage to its block on the GPU. */

/* Bytes that lie one behind the other on both sides, copied at once. */
struct piece {
    rp_cuda_stream *stream;
    const rp_cuda_block *from, *to;
    size_t at, there, len; /* len 0: nothing */
};

struct sending {
    struct rp_gpu *gpu;
    const rp_loader *loader;
    struct batch *batch;
    struct gpu_block *block;
    rp_cuda_block *source; /* planes on the device; as the slots of the stage */
    struct piece planes, bytes;
    int64_t n_jobs;
};

static rp_status flush(struct sending *s, struct piece *piece, struct rp_error *err)
{
    size_t len = piece->len;
    piece->len = 0;
    if (len == 0) {
        return RP_OK;
    }
    rp_count(&s->gpu->uploaded, (int64_t)len);
    return rp_cuda_upload(piece->stream, piece->from, piece->at, piece->to, piece->there, len, err);
}

static rp_status extend(struct sending *s, struct piece *piece, size_t at, size_t there, size_t len,
                        struct rp_error *err)
{
    if (piece->len == 0 || piece->at + piece->len != at || piece->there + piece->len != there) {
        RP_TRY(flush(s, piece, err));
        piece->at = at;
        piece->there = there;
    }
    piece->len += len;
    return RP_OK;
}

static rp_status send_own(struct sending *s, struct picture *picture, size_t there, size_t len,
                          struct rp_error *err)
{
    rp_count(&s->gpu->uploaded, (int64_t)len);
    return rp_cuda_upload(s->gpu->work, picture->own, 0, s->block->memory, there, len, err);
}

/* What the kernel is to make of a picture's planes. */
static void add_job(struct sending *s, const struct rp_camera *camera,
                    const struct picture *picture, size_t there)
{
    ptrdiff_t element = camera->type == RP_PIXEL_U8 ? 1 : 4;
    struct rp_cuda_job *job = &s->gpu->jobs[s->n_jobs++];
    *job = (struct rp_cuda_job){
        .image = picture->image,
        .target = {.data = (void *)(uintptr_t)(s->block->memory->address + there),
                   .type = camera->type,
                   .width = camera->width,
                   .height = camera->height,
                   .row_stride = camera->width * element,
                   .plane_stride = (ptrdiff_t)camera->width * camera->height * element}};
    for (int p = 0; p < 3 && picture->how == STAGED_PLANES; p++) {
        uint64_t at = (uintptr_t)picture->image.plane[p];
        job->image.plane[p] = (const uint8_t *)(uintptr_t)(s->source->address + at);
    }
}

typedef rp_status send_one(struct sending *s, int camera, struct picture *picture, size_t at,
                           size_t there, struct rp_error *err);

/* A picture that was decoded on the GPU: the kernel reads it where it lies. */
static rp_status send_frame(struct sending *s, int camera, struct picture *picture, size_t there,
                            struct rp_error *err)
{
    RP_TRY(rp_cuda_await(s->gpu->work, rp_frame_on_device(picture->frame), err));
    add_job(s, &s->loader->desc->camera[camera], picture, there);
    return RP_OK;
}

static rp_status send_planes(struct sending *s, int camera, struct picture *picture, size_t at,
                             size_t there, struct rp_error *err)
{
    if (picture->how == STAGED_FRAME) {
        return send_frame(s, camera, picture, there, err);
    }
    if (picture->how == STAGED_PLANES) {
        const struct stage *stage = &s->batch->stage;
        add_job(s, &s->loader->desc->camera[camera], picture, there);
        return extend(s, &s->planes, at, at - stage->tail, stage->slots[camera].len, err);
    }
    return RP_OK;
}

static rp_status send_bytes(struct sending *s, int camera, struct picture *picture, size_t at,
                            size_t there, struct rp_error *err)
{
    size_t len = rp_camera_bytes(&s->loader->desc->camera[camera]);
    if (picture->how == STAGED_PLANES || picture->how == STAGED_FRAME) {
        return RP_OK;
    }
    if (picture->how != STAGED_BYTES) {
        RP_FAIL(err, RP_E_DECODE, "a picture of the batch was never made");
    }
    return picture->own != NULL ? send_own(s, picture, there, len, err)
                                : extend(s, &s->bytes, at, there, len, err);
}

/* All pictures in the order of the slots. */
static rp_status for_each(struct sending *s, send_one *send, struct rp_error *err)
{
    const rp_loader *loader = s->loader;
    struct stage *stage = &s->batch->stage;
    int64_t before = 0;
    for (int c = 0; c < loader->desc->n_cameras; c++) {
        const struct rp_camera *camera = &loader->desc->camera[c];
        size_t at = stage->slots[c].at, there = s->batch->offsets[c];
        for (int64_t i = 0; i < s->batch->n; i++) {
            for (int64_t step = 0; step < camera->window.n; step++) {
                int64_t order = i * loader->wants_per_sample + before + step;
                RP_TRY(send(s, c, &stage->picture[order], at, there, err));
                at += stage->slots[c].len;
                there += rp_camera_bytes(camera);
            }
        }
        before += camera->window.n;
    }
    return RP_OK;
}

static rp_status reserve_jobs(struct rp_gpu *gpu, int64_t n, struct rp_error *err)
{
    if (n > gpu->cap_jobs) {
        struct rp_cuda_job *grown = rp_realloc(gpu->jobs, (size_t)n, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld pictures", (long long)n);
        }
        gpu->jobs = grown;
        gpu->cap_jobs = n;
    }
    return RP_OK;
}

static rp_status send_all(struct sending *s, struct rp_error *err)
{
    struct rp_gpu *gpu = s->gpu;
    struct stage *stage = &s->batch->stage;
    RP_TRY(reserve_jobs(gpu, s->batch->n * s->loader->wants_per_sample, err));
    if (stage->bytes > stage->tail) {
        RP_TRY(rp_cuda_take(gpu->device, RP_CUDA_ON_DEVICE, stage->bytes - stage->tail, true,
                            &s->source, err));
    }
    s->planes = (struct piece){.stream = gpu->copies, .from = stage->memory, .to = s->source};
    RP_TRY(for_each(s, send_planes, err));
    RP_TRY(flush(s, &s->planes, err));
    RP_TRY(rp_gpu_hold_uses(s->block, err));
    s->bytes = (struct piece){.stream = gpu->work, .from = stage->memory, .to = s->block->memory};
    RP_TRY(extend(s, &s->bytes, 0, s->batch->bytes - stage->tail, stage->tail, err));
    RP_TRY(for_each(s, send_bytes, err));
    RP_TRY(flush(s, &s->bytes, err));
    RP_TRY(rp_cuda_stream_follow(gpu->work, gpu->copies, err));
    RP_TRY(rp_cuda_convert(gpu->converter, gpu->jobs, (int)s->n_jobs, err));
    rp_count(&gpu->converted, s->n_jobs);
    return rp_cuda_event_record(s->block->ready, rp_cuda_stream_handle(gpu->work), err);
}

/* Give the stage and the planes back behind the work; after a failure nothing is left to wait for.
 */
static void give_back(struct sending *s, rp_status status)
{
    struct stage *stage = &s->batch->stage;
    rp_cuda_stream *last = status == RP_OK ? s->gpu->work : NULL;
    bool widened = false;
    if (status != RP_OK) {
        rp_cuda_finish(s->gpu->device);
    }
    for (int64_t i = 0; i < stage->cap; i++) {
        widened = widened || stage->picture[i].own != NULL;
        rp_cuda_give(&stage->picture[i].own, last);
        if (stage->picture[i].frame != NULL) {
            if (last != NULL) {
                rp_cuda_mark(rp_frame_on_device(stage->picture[i].frame), last);
            }
            rp_frame_unref(&stage->picture[i].frame);
        }
    }
    rp_cuda_give(&stage->memory, last);
    rp_cuda_give(&s->source, last);
    if (widened) { /* batches to come need none of the sizes there are */
        (void)rp_cuda_trim(s->gpu->device);
    }
}

void rp_send_work(rp_loader *loader, struct batch *batch)
{
    struct rp_error err;
    rp_error_clear(&err);
    int64_t began = rp_now_ns();
    struct sending s = {
        .gpu = loader->gpu, .loader = loader, .batch = batch, .block = batch->block->memory};
    rp_status status = send_all(&s, &err);
    give_back(&s, status);
    rp_count(&loader->counters.convert_ns, rp_now_ns() - began);
    rp_lock_acquire(&loader->lock);
    loader->sending = false;
    if (status != RP_OK) {
        batch->error_order = 0;
        batch->error = err;
    }
    if (!batch->cancelled) {
        batch->state = BATCH_DONE;
    }
    rp_batch_settle_locked(loader, batch, 1); /* ends it if it was cancelled */
    rp_cond_broadcast(&loader->done);
    rp_lock_release(&loader->lock);
}
