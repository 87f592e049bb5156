#include "cuda/cuda_video.h"

#include "cuda/cuda_video_priv.h"

#include <dlfcn.h>
#include <string.h>

#define LIBRARY      "libnvcuvid.so.1"
#define DEVICE_SPACE 2 /* CU_MEMORYTYPE_DEVICE */

enum { CHROMA_420 = 1, SURFACE_NV12 = 0 };

void *rp_cuda_native_context(const rp_cuda *device)
{
    return device->context;
}

/* A function of the library, which stays loaded, as it does for others. */
static rp_status find(const char *library, const char *symbol, void *function, struct rp_error *err)
{
    library = library != NULL ? library : LIBRARY;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == NULL) {
        RP_FAIL(err, RP_E_CUDA,
                "no NVDEC here: %s; it comes with the driver, in a container with "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video",
                dlerror());
    }
    void *found = dlsym(handle, symbol);
    (void)dlclose(handle); /* it stays loaded; only our count goes */
    if (found == NULL) {
        RP_FAIL(err, RP_E_CUDA, "the NVIDIA driver is too old: %s has no %s; update it", library,
                symbol);
    }
    memcpy(function, &found, sizeof(found));
    return RP_OK;
}

rp_status rp_cuda_video_caps(rp_cuda *device, const char *library, enum rp_cuda_codec codec,
                             struct rp_cuda_video_caps *out, struct rp_error *err)
{
    int (*get)(struct rp_cuvid_caps *) = NULL;
    *out = (struct rp_cuda_video_caps){0};
    RP_TRY(find(library, "cuvidGetDecoderCaps", &get, err));
    struct rp_cuvid_caps caps = {.codec = (int)codec, .chroma = CHROMA_420};
    RP_TRY(rp_cuda_enter(device, err));
    int code = get(&caps);
    rp_status status = RP_OK;
    if (code != 0) {
        status = rp_cuda_failed(&device->api, device, code, "asking what NVDEC decodes", err);
    }
    rp_cuda_leave(device);
    if (status == RP_OK && caps.supported != 0 && (caps.output_formats >> SURFACE_NV12 & 1) != 0) {
        *out = (struct rp_cuda_video_caps){.supported = true,
                                           .engines = caps.engines,
                                           .min_width = caps.min_width,
                                           .min_height = caps.min_height,
                                           .max_width = (int)caps.max_width,
                                           .max_height = (int)caps.max_height,
                                           .max_blocks = caps.max_blocks};
    }
    return status;
}

rp_status rp_cuda_video_try(rp_cuda *device, const char *library, enum rp_cuda_codec codec,
                            int width, int height, struct rp_error *err)
{
    enum { SURFACES = 32, OUTPUTS = 2 }; /* as many as there can be: no stream needs more memory */
    int (*create)(void **, struct rp_cuvid_create *) = NULL;
    int (*destroy)(void *) = NULL;
    RP_TRY(find(library, "cuvidCreateDecoder", &create, err));
    RP_TRY(find(library, "cuvidDestroyDecoder", &destroy, err));
    unsigned long coded_width = ((unsigned long)width + 15) / 16 * 16;
    unsigned long coded_height = ((unsigned long)height + 15) / 16 * 16;
    struct rp_cuvid_create create_info = {.width = coded_width,
                                          .height = coded_height,
                                          .surfaces = SURFACES,
                                          .codec = (int)codec,
                                          .chroma = CHROMA_420,
                                          .output_format = SURFACE_NV12,
                                          .target_width = coded_width,
                                          .target_height = coded_height,
                                          .outputs = OUTPUTS};
    void *decoder = NULL;
    RP_TRY(rp_cuda_enter(device, err));
    int code = create(&decoder, &create_info);
    rp_status status = RP_OK;
    if (code == 0) {
        (void)destroy(decoder); /* nothing was decoded: there is nothing to lose */
    }
    else {
        status = rp_cuda_failed(&device->api, device, code, "opening an NVDEC decoder", err);
    }
    rp_cuda_leave(device);
    return status;
}

/* Leave the context after a call that gave `code`. */
static rp_status done(rp_cuda *device, int code, const char *doing, struct rp_error *err)
{
    rp_status status = RP_OK;
    if (code != 0) {
        status = rp_cuda_failed(&device->api, device, code, doing, err);
    }
    rp_cuda_leave(device);
    return status;
}

rp_status rp_cuda_copy_rows(rp_cuda_stream *stream, uint64_t from, size_t pitch,
                            const rp_cuda_block *block, size_t to, size_t to_pitch, size_t width,
                            size_t rows, struct rp_error *err)
{
    if (block->memory != RP_CUDA_ON_DEVICE || rows < 1 || width > to_pitch || width > pitch ||
        to > block->len || to_pitch > (block->len - to) / rows) {
        RP_FAIL(err, RP_E_ARG, "%zu rows of %zu bytes to %zu: outside of a block", rows, width, to);
    }
    rp_cuda *device = stream->device;
    struct rp_cuda_rows copy = {.from_space = DEVICE_SPACE,
                                .from = from,
                                .from_pitch = pitch,
                                .to_space = DEVICE_SPACE,
                                .to = block->address + to,
                                .to_pitch = to_pitch,
                                .width = width,
                                .rows = rows};
    RP_TRY(rp_cuda_enter(device, err));
    return done(device, device->api.copy_rows(&copy, stream->handle), "copying a picture", err);
}

void rp_cuda_mark(rp_cuda_block *block, rp_cuda_stream *stream)
{
    rp_cuda *device = block->device;
    if (rp_cuda_is_foreign(device)) {
        return;
    }
    bool entered = rp_cuda_enter_to_free(device);
    block->busy = entered && device->api.event_record(block->idle, stream->handle) == 0;
    if (!block->busy) {
        (void)device->api.stream_synchronize(
            stream->handle); /* what fails is told by its next use */
    }
    if (entered) {
        rp_cuda_leave(device);
    }
}

rp_status rp_cuda_await(rp_cuda_stream *stream, const rp_cuda_block *block, struct rp_error *err)
{
    rp_cuda *device = stream->device;
    RP_TRY(rp_cuda_enter(device, err));
    int code = block->busy ? device->api.stream_wait(stream->handle, block->idle, 0) : 0;
    return done(device, code, "waiting for a picture", err);
}
