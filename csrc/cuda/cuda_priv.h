/* Inside cuda: the driver's calls and what a device consists of. */
#ifndef RP_CUDA_CUDA_PRIV_H
#define RP_CUDA_CUDA_PRIV_H

#include "base/error.h"
#include "base/thread.h"
#include "cuda/cuda.h"

struct rp_cuda_rows; /* cuda_video_priv.h */

/* The driver's types as its ABI has them: CUresult, CUdevice and CUdevice_attribute are int,
 * CUdeviceptr is 64 bits wide, the rest are pointers. tests/gpu holds this list against cuda.h. */
#define RP_CUDA_CALLS(X)                                                                          \
    X(init, cuInit, (unsigned flags))                                                             \
    X(driver_version, cuDriverGetVersion, (int *version))                                         \
    X(error_name, cuGetErrorName, (int code, const char **text))                                  \
    X(error_text, cuGetErrorString, (int code, const char **text))                                \
    X(device_count, cuDeviceGetCount, (int *n))                                                   \
    X(device_get, cuDeviceGet, (int *device, int ordinal))                                        \
    X(device_name, cuDeviceGetName, (char *text, int cap, int device))                            \
    X(device_bytes, cuDeviceTotalMem_v2, (size_t * bytes, int device))                            \
    X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device))            \
    X(context_retain, cuDevicePrimaryCtxRetain, (void **context, int device))                     \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                \
    X(context_push, cuCtxPushCurrent_v2, (void *context))                                         \
    X(context_pop, cuCtxPopCurrent_v2, (void **context))                                          \
    X(context_synchronize, cuCtxSynchronize, (void))                                              \
    X(memory_alloc, cuMemAlloc_v2, (uint64_t * address, size_t len))                              \
    X(memory_free, cuMemFree_v2, (uint64_t address))                                              \
    X(host_alloc, cuMemHostAlloc, (void **data, size_t len, unsigned flags))                      \
    X(host_free, cuMemFreeHost, (void *data))                                                     \
    X(upload, cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t len, void *stream))    \
    X(download, cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t len, void *stream))        \
    X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                             \
    X(stream_destroy, cuStreamDestroy_v2, (void *stream))                                         \
    X(stream_synchronize, cuStreamSynchronize, (void *stream))                                    \
    X(stream_wait, cuStreamWaitEvent, (void *stream, void *event, unsigned flags))                \
    X(event_create, cuEventCreate, (void **event, unsigned flags))                                \
    X(event_destroy, cuEventDestroy_v2, (void *event))                                            \
    X(event_record, cuEventRecord, (void *event, void *stream))                                   \
    X(event_query, cuEventQuery, (void *event))                                                   \
    X(event_synchronize, cuEventSynchronize, (void *event))                                       \
    X(module_load, cuModuleLoadData, (void **module, const void *image))                          \
    X(module_unload, cuModuleUnload, (void *module))                                              \
    X(module_function, cuModuleGetFunction, (void **function, void *module, const char *name))    \
    X(copy_rows, cuMemcpy2DAsync_v2, (const struct rp_cuda_rows *rows, void *stream))             \
    X(launch, cuLaunchKernel,                                                                     \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,       \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **arguments, \
       void **extra))

struct rp_cuda_api {
    void *library;
#define RP_CUDA_FIELD(field, symbol, parameters) int(*field) parameters;
    RP_CUDA_CALLS(RP_CUDA_FIELD)
#undef RP_CUDA_FIELD
};

/* Numbers of the driver that are decided on. */
enum {
    RP_CU_OUT_OF_MEMORY = 2,
    RP_CU_NOT_INITIALIZED = 3,
    RP_CU_NO_DEVICE = 100,
    RP_CU_NOT_READY = 600
};

struct rp_cuda {
    struct rp_cuda_api api;
    uint64_t generation; /* of forks, when it was opened */
    int ordinal, device; /* the driver's handle */
    void *context;
    int refs; /* atomic: the owner, blocks that were taken, streams, kernels */
    int lost; /* atomic: the driver's number of a failure that no later call survives; 0 */
    size_t keep_bytes;
    rp_lock lock;
    rp_cuda_block *free[2];     /* by memory; longest free first; guarded by lock */
    struct rp_cuda_stats stats; /* guarded by lock */
};

struct rp_cuda_stream {
    rp_cuda *device;
    void *handle;
    void *event; /* for rp_cuda_stream_follow */
};

/* Record a failure of the driver: `doing` what, its number, and what to do about it. device: NULL
 * before there is one; a failure that ends the context is noted in it. Returns RP_E_CUDA. Thread:
 * any. Blocks: never. */
RP_CHECKED rp_status rp_cuda_failed(const struct rp_cuda_api *api, rp_cuda *device, int code,
                                    const char *doing, struct rp_error *err);

/* Enter the context of the device. RP_E_CUDA in a forked child, or if the GPU was lost. Pairs with
 * rp_cuda_leave. Thread: any. Blocks: never. */
RP_CHECKED rp_status rp_cuda_enter(rp_cuda *device, struct rp_error *err);

/* The same for giving things back, also if the GPU was lost. False: it could not be entered; what
 * is to be freed is offered to the driver all the same. Not in a forked child. */
bool rp_cuda_enter_to_free(rp_cuda *device);

/* Leave it. Where the driver refuses, the next one to enter is told. Thread: the one that entered.
 * Blocks: never. */
void rp_cuda_leave(rp_cuda *device);

/* Count up and down; the last one frees everything. Thread: any. Blocks: unref, where memory is
 * freed. */
rp_cuda *rp_cuda_ref(rp_cuda *device);
void rp_cuda_unref(rp_cuda **device);

/* Whether the handle belongs to a parent process. Thread: any. Blocks: never. */
bool rp_cuda_is_foreign(const rp_cuda *device);

#endif
