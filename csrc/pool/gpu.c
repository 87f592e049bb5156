#include "pool/gpu_priv.h"

#include "pool/work_priv.h"

#include <assert.h>
#include <string.h>

/* The GPU of a loader: its memory for batches, and who else works on that. */

#define LEGACY     1u /* the default stream, which waits for all threads' own and they for it */
#define SLOT_ALIGN 64

static void free_uses(struct gpu_block *block)
{
    while (block->uses != NULL) {
        struct gpu_use *use = block->uses;
        block->uses = use->next;
        rp_cuda_event_free(&use->event);
        rp_free(use);
    }
}

static rp_status map_block(void *cookie, size_t len, void **memory, struct rp_error *err)
{
    struct rp_gpu *gpu = cookie;
    struct gpu_block *block = rp_calloc(1, sizeof(*block));
    if (block == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a block");
    }
    block->gpu = gpu;
    rp_status status = rp_cuda_take(gpu->device, RP_CUDA_ON_DEVICE, len, true, &block->memory, err);
    if (status == RP_OK) {
        status = rp_cuda_event_new(gpu->device, &block->ready, err);
    }
    if (status == RP_OK) { /* so that it can be waited for before anything was done */
        status = rp_cuda_event_record(block->ready, rp_cuda_stream_handle(gpu->work), err);
    }
    if (status != RP_OK) {
        rp_cuda_event_free(&block->ready);
        rp_cuda_give(&block->memory, NULL);
        rp_free(block);
        return status;
    }
    *memory = block;
    return RP_OK;
}

/* The memory goes back behind our work and that of all others, and no other work waits for that. */
static void unmap_block(void *cookie, void *memory)
{
    struct rp_gpu *gpu = cookie;
    struct gpu_block *block = memory;
    uint64_t retire = rp_cuda_stream_handle(gpu->retire);
    rp_status status = rp_cuda_event_hold(block->ready, retire, NULL);
    for (const struct gpu_use *use = block->uses; use != NULL && status == RP_OK; use = use->next) {
        status = use->recorded ? rp_cuda_event_hold(use->event, retire, NULL) : RP_OK;
    }
    if (status != RP_OK) {
        rp_cuda_finish(gpu->device);
    }
    rp_cuda_give(&block->memory, gpu->retire);
    free_uses(block);
    rp_cuda_event_free(&block->ready);
    rp_free(block);
}

static void end_arena(void *cookie)
{
    struct rp_gpu *gpu = cookie;
    rp_gpu_unref(&gpu);
}

rp_status rp_gpu_arena(struct rp_gpu *gpu, size_t keep_bytes, rp_arena **out, struct rp_error *err)
{
    struct rp_arena_source source = {
        .map = map_block, .unmap = unmap_block, .end = end_arena, .cookie = gpu};
    RP_TRY(rp_arena_new_from(keep_bytes, &source, out, err));
    (void)__atomic_add_fetch(&gpu->refs, 1, __ATOMIC_RELAXED); /* the count is not needed */
    return RP_OK;
}

/* What a picture of the size that is delivered takes: as planes, where the GPU converts it. */
static int64_t first_guess(const struct rp_camera *camera)
{
    int64_t pixels = (int64_t)camera->width * camera->height;
    bool planes = camera->channels == 3 && camera->width % 2 == 0 && camera->height % 2 == 0;
    int64_t bytes = planes ? pixels / 2 * 3 : (int64_t)rp_camera_bytes(camera);
    return (bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

static rp_status open_streams(struct rp_gpu *gpu, const void *image, struct rp_error *err)
{
    RP_TRY(rp_cuda_stream_new(gpu->device, &gpu->copies, err));
    RP_TRY(rp_cuda_stream_new(gpu->device, &gpu->work, err));
    RP_TRY(rp_cuda_stream_new(gpu->device, &gpu->retire, err));
    return rp_cuda_converter_new(gpu->device, gpu->work, image, &gpu->converter, err);
}

rp_status rp_gpu_open(rp_loader *loader, struct rp_error *err)
{
    const struct rp_dataset_desc *desc = loader->desc;
    const struct rp_device_options *options = &loader->options.device;
    struct rp_gpu *gpu = rp_calloc(1, sizeof(*gpu));
    int64_t *slots = rp_calloc((size_t)desc->n_cameras + 1, sizeof(*slots));
    rp_status status = gpu == NULL || slots == NULL
                           ? rp_error_set(err, RP_E_NOMEM, "out of memory for a GPU")
                           : rp_lock_init(&gpu->lock, err);
    if (status != RP_OK) {
        rp_free(slots);
        rp_free(gpu);
        return status;
    }
    for (int c = 0; c < desc->n_cameras; c++) {
        slots[c] = first_guess(&desc->camera[c]);
    }
    gpu->refs = 1;
    gpu->slot_bytes = slots;
    gpu->fork_generation = rp_fork_generation();
    status =
        rp_cuda_open(options->library, options->ordinal, options->keep_bytes, &gpu->device, err);
    if (status == RP_OK) {
        const void *image = options->image != NULL ? options->image : rp_cuda_image();
        status = open_streams(gpu, image, err);
    }
    if (status == RP_OK) {
        int share = options->processes > 1 ? -options->processes : 0;
        status = rp_nvdec_new(gpu->device, NULL, share, &gpu->nvdec, err);
    }
    if (status != RP_OK) {
        rp_gpu_unref(&gpu);
        return status;
    }
    loader->gpu = gpu;
    return RP_OK;
}

void rp_gpu_unref(struct rp_gpu **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    struct rp_gpu *gpu = *out;
    *out = NULL;
    if (__atomic_sub_fetch(&gpu->refs, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    rp_nvdec_free(&gpu->nvdec);
    rp_cuda_converter_free(&gpu->converter);
    rp_cuda_stream_free(&gpu->copies);
    rp_cuda_stream_free(&gpu->work);
    rp_cuda_stream_free(&gpu->retire);
    rp_cuda_close(&gpu->device);
    rp_free(gpu->jobs);
    rp_free(gpu->slot_bytes);
    rp_lock_free(&gpu->lock);
    rp_free(gpu);
}

void rp_gpu_stats(struct rp_gpu *gpu, struct rp_device_stats *out)
{
    struct rp_cuda_stats stats;
    rp_cuda_stats(gpu->device, &stats);
    *out = (struct rp_device_stats){.device_bytes = stats.bytes[RP_CUDA_ON_DEVICE],
                                    .pinned_bytes = stats.bytes[RP_CUDA_PINNED],
                                    .uploaded = rp_counted(&gpu->uploaded),
                                    .converted = rp_counted(&gpu->converted),
                                    .decoded = rp_counted(&gpu->decoded)};
}

bool rp_loader_notice(rp_loader *loader, struct rp_nvdec_verdict *out)
{
    return loader->gpu != NULL && rp_nvdec_notice(loader->gpu->nvdec, out);
}

rp_status rp_gpu_hold_uses(struct gpu_block *block, struct rp_error *err)
{
    uint64_t work = rp_cuda_stream_handle(block->gpu->work);
    for (struct gpu_use *use = block->uses; use != NULL; use = use->next) {
        if (use->recorded) {
            RP_TRY(rp_cuda_event_hold(use->event, work, err));
            use->recorded = false;
        }
    }
    return RP_OK;
}

static struct gpu_block *block_of(const struct rp_batch *batch)
{
    return batch->block->memory;
}

int rp_batch_device(const struct rp_batch *batch)
{
    return block_of(batch) != NULL ? rp_cuda_ordinal(block_of(batch)->gpu->device) : -1;
}

uint64_t rp_batch_address(const struct rp_batch *batch)
{
    return block_of(batch)->memory->address;
}

static struct gpu_use *find_use(const struct gpu_block *block, uint64_t stream)
{
    struct gpu_use *use = block->uses;
    while (use != NULL && use->stream != stream) {
        use = use->next;
    }
    return use;
}

/* An entry for the stream, now: when it is needed there is nobody to be told of a failure. */
static rp_status need_use(struct gpu_block *block, uint64_t stream, struct rp_error *err)
{
    struct rp_gpu *gpu = block->gpu;
    rp_lock_acquire(&gpu->lock);
    bool known = find_use(block, stream) != NULL;
    rp_lock_release(&gpu->lock);
    if (known) {
        return RP_OK;
    }
    struct gpu_use *made = rp_calloc(1, sizeof(*made));
    if (made == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a stream");
    }
    made->stream = stream;
    rp_status status = rp_cuda_event_new(gpu->device, &made->event, err);
    if (status == RP_OK) {
        rp_lock_acquire(&gpu->lock);
        if (find_use(block, stream) == NULL) {
            made->next = block->uses;
            block->uses = made;
            made = NULL;
        }
        rp_lock_release(&gpu->lock);
    }
    if (made != NULL) { /* it failed, or another thread was faster */
        rp_cuda_event_free(&made->event);
        rp_free(made);
    }
    return status;
}

/* A thread's own stream cannot be named from another thread. */
static uint64_t waits_on(int64_t stream)
{
    return stream > 2 ? (uint64_t)stream : LEGACY;
}

rp_status rp_batch_lend(struct rp_batch *batch, int64_t stream, struct rp_error *err)
{
    struct gpu_block *block = block_of(batch);
    RP_TRY(rp_cuda_check(block->gpu->device, err));
    RP_TRY(need_use(block, waits_on(stream), err));
    if (stream >= 0) {
        RP_TRY(rp_cuda_event_hold(block->ready, (uint64_t)stream, err));
    }
    (void)__atomic_add_fetch(&batch->refs, 1, __ATOMIC_RELAXED); /* the count is not needed */
    return RP_OK;
}

void rp_batch_return(struct rp_batch **batch, int64_t stream)
{
    struct gpu_block *block = block_of(*batch);
    struct rp_gpu *gpu = block->gpu;
    if (gpu->fork_generation == rp_fork_generation()) {
        rp_lock_acquire(&gpu->lock);
        struct gpu_use *use = find_use(block, waits_on(stream));
        rp_lock_release(&gpu->lock);
        assert(use != NULL); /* made when it was lent */
        if (rp_cuda_event_mark(use->event, use->stream)) {
            rp_lock_acquire(&gpu->lock);
            use->recorded = true;
            rp_lock_release(&gpu->lock);
        }
    }
    rp_batch_free(batch);
}

static rp_status read_by(rp_cuda_stream *stream, const struct gpu_block *block, size_t from,
                         const rp_cuda_block *pinned, size_t len, struct rp_error *err)
{
    RP_TRY(rp_cuda_event_hold(block->ready, rp_cuda_stream_handle(stream), err));
    RP_TRY(rp_cuda_download(stream, block->memory, from, pinned, 0, len, err));
    return rp_cuda_stream_finish(stream, err);
}

rp_status rp_batch_read(const struct rp_batch *batch, size_t from, size_t len, void *to,
                        struct rp_error *err)
{
    const struct gpu_block *block = block_of(batch);
    rp_cuda *device = block->gpu->device;
    rp_cuda_stream *stream = NULL;
    rp_cuda_block *pinned = NULL;
    if (len == 0) {
        return RP_OK;
    }
    RP_TRY(rp_cuda_stream_new(device, &stream, err));
    rp_status status = rp_cuda_take(device, RP_CUDA_PINNED, len, true, &pinned, err);
    if (status == RP_OK) {
        status = read_by(stream, block, from, pinned, len, err);
    }
    if (status == RP_OK) {
        memcpy(to, pinned->host, len);
    }
    rp_cuda_stream_free(&stream); /* waits for a copy whose end was not seen */
    rp_cuda_give(&pinned, NULL);
    return status;
}
