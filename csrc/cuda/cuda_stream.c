#include "cuda/cuda_priv.h"

#include "base/memory.h"

/* Streams, copies in their order, and the conversion kernel. */

#define NON_BLOCKING 1u /* does not wait for the legacy default stream, nor the other way */
#define NO_TIMING    2u
#define THREADS      256
#define MAX_FRAMES   65535 /* the third dimension of a grid */
#define MAX_ROW      4096  /* blocks of a picture; each thread of them takes several items then */

struct rp_cuda_kernel {
    rp_cuda *device;
    void *module, *function;
};

rp_status rp_cuda_stream_new(rp_cuda *device, rp_cuda_stream **out, struct rp_error *err)
{
    rp_cuda_stream *stream = rp_calloc(1, sizeof(*stream));
    if (stream == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a stream");
    }
    rp_status status = rp_cuda_enter(device, err);
    if (status == RP_OK) {
        const struct rp_cuda_api *api = &device->api;
        int code = api->stream_create(&stream->handle, NON_BLOCKING);
        if (code == 0) {
            code = api->event_create(&stream->event, NO_TIMING);
            if (code != 0) {
                (void)api->stream_destroy(stream->handle); /* the event's failure is reported */
            }
        }
        if (code != 0) {
            status = rp_cuda_failed(api, device, code, "making a stream", err);
        }
        rp_cuda_leave(device);
    }
    if (status != RP_OK) {
        rp_free(stream);
        return status;
    }
    stream->device = rp_cuda_ref(device);
    *out = stream;
    return RP_OK;
}

void rp_cuda_stream_free(rp_cuda_stream **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_cuda_stream *stream = *out;
    *out = NULL;
    if (rp_cuda_is_foreign(stream->device)) {
        return;
    }
    const struct rp_cuda_api *api = &stream->device->api;
    bool entered = rp_cuda_enter_to_free(stream->device);
    (void)api->stream_synchronize(stream->handle); /* failures have nobody left to be told */
    (void)api->stream_destroy(stream->handle);
    (void)api->event_destroy(stream->event);
    if (entered) {
        rp_cuda_leave(stream->device);
    }
    rp_cuda_unref(&stream->device);
    rp_free(stream);
}

/* Leave the context after a call that gave `code`. */
static rp_status done(rp_cuda_stream *stream, int code, const char *doing, struct rp_error *err)
{
    rp_status status = RP_OK;
    if (code != 0) {
        status = rp_cuda_failed(&stream->device->api, stream->device, code, doing, err);
    }
    rp_cuda_leave(stream->device);
    return status;
}

rp_status rp_cuda_stream_finish(rp_cuda_stream *stream, struct rp_error *err)
{
    const struct rp_cuda_api *api = &stream->device->api;
    RP_TRY(rp_cuda_enter(stream->device, err));
    return done(stream, api->stream_synchronize(stream->handle), "waiting for a stream", err);
}

rp_status rp_cuda_stream_follow(rp_cuda_stream *follower, rp_cuda_stream *leader,
                                struct rp_error *err)
{
    const struct rp_cuda_api *api = &leader->device->api;
    RP_TRY(rp_cuda_enter(leader->device, err));
    int code = api->event_record(leader->event, leader->handle);
    if (code == 0) {
        code = api->stream_wait(follower->handle, leader->event, 0);
    }
    return done(leader, code, "ordering two streams", err);
}

static bool lies_in(const rp_cuda_block *block, enum rp_cuda_memory memory, size_t at, size_t len)
{
    return block->memory == memory && at <= block->len && len <= block->len - at;
}

rp_status rp_cuda_upload(rp_cuda_stream *stream, const rp_cuda_block *pinned, size_t from,
                         const rp_cuda_block *on_device, size_t to, size_t len,
                         struct rp_error *err)
{
    if (!lies_in(pinned, RP_CUDA_PINNED, from, len) ||
        !lies_in(on_device, RP_CUDA_ON_DEVICE, to, len)) {
        RP_FAIL(err, RP_E_ARG, "%zu bytes, from %zu to %zu: outside of a block", len, from, to);
    }
    const struct rp_cuda_api *api = &stream->device->api;
    RP_TRY(rp_cuda_enter(stream->device, err));
    int code = api->upload(on_device->address + to, pinned->host + from, len, stream->handle);
    return done(stream, code, "copying to the GPU", err);
}

rp_status rp_cuda_download(rp_cuda_stream *stream, const rp_cuda_block *on_device, size_t from,
                           const rp_cuda_block *pinned, size_t to, size_t len, struct rp_error *err)
{
    if (!lies_in(on_device, RP_CUDA_ON_DEVICE, from, len) ||
        !lies_in(pinned, RP_CUDA_PINNED, to, len)) {
        RP_FAIL(err, RP_E_ARG, "%zu bytes, from %zu to %zu: outside of a block", len, from, to);
    }
    const struct rp_cuda_api *api = &stream->device->api;
    RP_TRY(rp_cuda_enter(stream->device, err));
    int code = api->download(pinned->host + to, on_device->address + from, len, stream->handle);
    return done(stream, code, "copying from the GPU", err);
}

rp_status rp_cuda_kernel_new(rp_cuda *device, const void *image, const char *name,
                             rp_cuda_kernel **out, struct rp_error *err)
{
    if (image == NULL) {
        RP_FAIL(err, RP_E_CUDA,
                "this build of reelpool has no kernel for GPUs: build it where "
                "nvcc is found, with REELPOOL_CUDA=1");
    }
    rp_cuda_kernel *kernel = rp_calloc(1, sizeof(*kernel));
    if (kernel == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a kernel");
    }
    rp_status status = rp_cuda_enter(device, err);
    if (status == RP_OK) {
        const struct rp_cuda_api *api = &device->api;
        int code = api->module_load(&kernel->module, image);
        if (code == 0) {
            code = api->module_function(&kernel->function, kernel->module, name);
            if (code != 0) {
                (void)api->module_unload(kernel->module); /* the failure before it is reported */
            }
        }
        if (code != 0) {
            status = rp_cuda_failed(api, device, code, "loading reelpool's kernel", err);
        }
        rp_cuda_leave(device);
    }
    if (status != RP_OK) {
        rp_free(kernel);
        return status;
    }
    kernel->device = rp_cuda_ref(device);
    *out = kernel;
    return RP_OK;
}

void rp_cuda_kernel_free(rp_cuda_kernel **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_cuda_kernel *kernel = *out;
    *out = NULL;
    if (rp_cuda_is_foreign(kernel->device)) {
        return;
    }
    bool entered = rp_cuda_enter_to_free(kernel->device);
    (void)kernel->device->api.module_unload(kernel->module); /* else it goes with its context */
    if (entered) {
        rp_cuda_leave(kernel->device);
    }
    rp_cuda_unref(&kernel->device);
    rp_free(kernel);
}

rp_status rp_cuda_launch(rp_cuda_stream *stream, const rp_cuda_kernel *kernel, uint64_t frames,
                         int n, int items, struct rp_error *err)
{
    if (n < 1 || n > MAX_FRAMES || items < 1) {
        RP_FAIL(err, RP_E_ARG, "%d pictures of %d items in one launch", n, items);
    }
    const struct rp_cuda_api *api = &stream->device->api;
    int row = (items - 1) / THREADS + 1;
    void *arguments[] = {&frames};
    RP_TRY(rp_cuda_enter(stream->device, err));
    int code = api->launch(kernel->function, (unsigned)(row < MAX_ROW ? row : MAX_ROW), 1,
                           (unsigned)n, THREADS, 1, 1, 0, stream->handle, arguments, NULL);
    return done(stream, code, "starting the conversion", err);
}
