/* NVIDIA GPUs through the driver's own API. The driver is loaded when it is first asked for, and
 * nothing links to it: the module imports on machines that have none.
 *
 * Each call makes the device's primary context current for its duration and leaves the thread's own
 * as it was. The driver does not survive a fork: a handle made before one answers in the child with
 * an error that names "spawn", and is abandoned there, not freed. So no call needs the fork gate.
 * All failures are RP_E_CUDA with the driver's number in `sys`, if nothing else is said. */
#ifndef RP_CUDA_CUDA_H
#define RP_CUDA_CUDA_H

#include "base/error.h"
#include "cuda/convert_frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_CUDA_MAX_DEVICES 64

struct rp_cuda_info {
    char name[96];
    int major, minor; /* compute capability */
    int processors;   /* streaming multiprocessors */
    int64_t bytes;    /* of memory */
};

/* What there is: *n devices, at most RP_CUDA_MAX_DEVICES, into out[], and the CUDA version that the
 * driver speaks (12040 = 12.4). library: NULL for libcuda.so.1. Makes no context.
 * Owner: the caller's. Thread: any. Blocks: for the driver to start, up to seconds. Errors: no
 * driver, too old a driver, no device, a forked child. */
RP_CHECKED rp_status rp_cuda_list(const char *library, struct rp_cuda_info out[], int *n,
                                  int *version, struct rp_error *err);

/* One GPU in use: its primary context, which other libraries of the process share, and memory that
 * is used again. Counted: what was made of it keeps it alive. */
typedef struct rp_cuda rp_cuda;

/* Owner: *out is the caller's (rp_cuda_close). library as in rp_cuda_list; keep_bytes: of free
 * memory, above which it goes back to the system, for each kind. Thread: any. Blocks: up to
 * seconds. Errors: as rp_cuda_list, no such device, no context; RP_E_NOMEM. */
RP_CHECKED rp_status rp_cuda_open(const char *library, int ordinal, size_t keep_bytes,
                                  rp_cuda **out, struct rp_error *err);

/* The owner's end. Everything goes with the last block, stream and kernel. Nulls the pointer; NULL
 * or pointer to NULL: nothing. Thread: any. Blocks: while the GPU works on what is freed. */
void rp_cuda_close(rp_cuda **device);

/* Its number. Thread: any. Blocks: never. */
int rp_cuda_ordinal(const rp_cuda *device);

/* Whether calls can succeed. Thread: any. Blocks: never. Errors: RP_E_CUDA in a forked child, or
 * after the GPU was lost. */
RP_CHECKED rp_status rp_cuda_check(rp_cuda *device, struct rp_error *err);

/* Wait for all work of the device, also others'; if that fails, no later call succeeds. Thread:
 * any. Blocks: for that. */
void rp_cuda_finish(rp_cuda *device);

/* Give all free blocks back to the system, for good. Returns how many. Thread: any. Blocks: for
 * their work. */
int rp_cuda_trim(rp_cuda *device);

/* A stream: work in order. One thread at a time uses it. */
typedef struct rp_cuda_stream rp_cuda_stream;

/* Owner: *out is the caller's (rp_cuda_stream_free). Thread: any. Blocks: never for long. Errors:
 * RP_E_CUDA, RP_E_NOMEM. free: waits for the work; NULL or pointer to NULL: nothing. */
RP_CHECKED rp_status rp_cuda_stream_new(rp_cuda *device, rp_cuda_stream **out,
                                        struct rp_error *err);
void rp_cuda_stream_free(rp_cuda_stream **stream);

/* Wait until all work is done. Thread: the stream's. Blocks: for that, without using the CPU.
 * Errors: what went wrong with the work. */
RP_CHECKED rp_status rp_cuda_stream_finish(rp_cuda_stream *stream, struct rp_error *err);

/* Work given to `follower` from now on begins after what `leader` has now. Thread: that of both.
 * Blocks: never. Errors: RP_E_CUDA. */
RP_CHECKED rp_status rp_cuda_stream_follow(rp_cuda_stream *follower, rp_cuda_stream *leader,
                                           struct rp_error *err);

/* The driver's handle of a stream, for what takes streams of others too: 1 is the legacy default
 * stream, 2 the calling thread's own. Thread: any. Blocks: never. */
uint64_t rp_cuda_stream_handle(const rp_cuda_stream *stream);

/* A point in the work of a stream, ours or another library's. */
typedef struct rp_cuda_event rp_cuda_event;

/* Owner: *out is the caller's (rp_cuda_event_free). Thread: any. Blocks: never for long. Errors:
 * RP_E_CUDA, RP_E_NOMEM. free: what holds on it keeps doing so; NULL or pointer to NULL: nothing.
 */
RP_CHECKED rp_status rp_cuda_event_new(rp_cuda *device, rp_cuda_event **out, struct rp_error *err);
void rp_cuda_event_free(rp_cuda_event **event);

/* The event is now behind the work that the stream has. Thread: any; where several do it at once,
 * into one stream, the last one counts. Blocks: never. Errors: RP_E_CUDA. */
RP_CHECKED rp_status rp_cuda_event_record(rp_cuda_event *event, uint64_t stream,
                                          struct rp_error *err);

/* The same where nobody can be told of a failure: then all work of the device is waited for, or if
 * that fails too no later call succeeds; false: there is nothing to hold on to. In a forked child
 * nothing is done. Thread: as record. Blocks: only after a failure. */
bool rp_cuda_event_mark(rp_cuda_event *event, uint64_t stream);

/* Work given to the stream from now on begins after the event, which was recorded. Thread: as
 * record; with stream 2 the one whose stream is meant. Blocks: never. Errors: RP_E_CUDA. */
RP_CHECKED rp_status rp_cuda_event_hold(const rp_cuda_event *event, uint64_t stream,
                                        struct rp_error *err);

enum rp_cuda_memory {
    RP_CUDA_ON_DEVICE = 0,
    RP_CUDA_PINNED = 1 /* host memory that the GPU reads and writes by itself */
};

typedef struct rp_cuda_block {
    uint64_t address; /* RP_CUDA_ON_DEVICE */
    uint8_t *host;    /* RP_CUDA_PINNED */
    size_t len;       /* bytes, >= those asked for */
    enum rp_cuda_memory memory;
    rp_cuda *device;
    void *idle; /* event behind which it is free */
    bool busy;  /* guarded by the device's lock: the event was recorded and not yet seen */
    struct rp_cuda_block *next; /* guarded by the device's lock */
} rp_cuda_block;

/* A block of at least len bytes, its contents undefined: a free one of up to twice the size behind
 * which no work is left, else a new one if `may_grow`, else one whose work is waited for.
 * Owner: *out is the caller's (rp_cuda_give). Thread: any. Blocks: for the driver, or that work.
 * Errors: RP_AGAIN nothing fits and it may not grow; RP_E_CUDA out of memory, after all that is
 * free was given up; RP_E_NOMEM. */
RP_CHECKED rp_status rp_cuda_take(rp_cuda *device, enum rp_cuda_memory memory, size_t len,
                                  bool may_grow, rp_cuda_block **out, struct rp_error *err);

/* Give a block back and null the pointer. It is used again behind the work that `last`, the stream
 * that used it last, has now; NULL: at once. NULL or pointer to NULL: nothing. Thread: any, and the
 * stream's. Blocks: where memory is freed, for its work. */
void rp_cuda_give(rp_cuda_block **block, rp_cuda_stream *last);

struct rp_cuda_stats {
    int64_t blocks[2], bytes[2];           /* alive, by enum rp_cuda_memory */
    int64_t free_blocks[2], free_bytes[2]; /* of those: waiting to be used again */
    int64_t made[2];                       /* ever */
};
/* Thread: any. Blocks: never. */
void rp_cuda_stats(rp_cuda *device, struct rp_cuda_stats *out);

/* Copy len bytes between a pinned block and one on the device, in the order of the stream. Both
 * stay alive until it is done (rp_cuda_give with this stream sees to that). Thread: the stream's.
 * Blocks: never for long. Errors: RP_E_ARG outside of a block; RP_E_CUDA. */
RP_CHECKED rp_status rp_cuda_upload(rp_cuda_stream *stream, const rp_cuda_block *pinned,
                                    size_t from, const rp_cuda_block *on_device, size_t to,
                                    size_t len, struct rp_error *err);
RP_CHECKED rp_status rp_cuda_download(rp_cuda_stream *stream, const rp_cuda_block *on_device,
                                      size_t from, const rp_cuda_block *pinned, size_t to,
                                      size_t len, struct rp_error *err);

/* A kernel of a module's image (cubin, fatbin, PTX text; NULL: refused). Owner: *out is the
 * caller's (rp_cuda_kernel_free, when no launch of it is left); image is borrowed for the call.
 * Thread: any. Blocks: for the driver, seconds if it compiles. Errors: a GPU or driver that the
 * image is not for; RP_E_NOMEM. free: NULL or pointer to NULL: nothing. */
typedef struct rp_cuda_kernel rp_cuda_kernel;
RP_CHECKED rp_status rp_cuda_kernel_new(rp_cuda *device, const void *image, const char *name,
                                        rp_cuda_kernel **out, struct rp_error *err);
void rp_cuda_kernel_free(rp_cuda_kernel **kernel);

/* Run the conversion kernel over n descriptors at `frames` on the device; `items`: the most that
 * one of them has. Thread: the stream's. Blocks: never for long. Errors: RP_E_ARG n outside
 * 1..65535; RP_E_CUDA. */
RP_CHECKED rp_status rp_cuda_launch(rp_cuda_stream *stream, const rp_cuda_kernel *kernel,
                                    uint64_t frames, int n, int items, struct rp_error *err);

/* The conversion kernel of this build, for rp_cuda_kernel_new; NULL: it was built without CUDA.
 * Owner: constant. Thread: any. Blocks: never. */
const void *rp_cuda_image(void);
#define RP_CUDA_KERNEL "rp_convert_batch"

/* "nvcc 13.0, sm_80 sm_90 compute_75", or "" for a build without CUDA. Owner: constant. Thread:
 * any. Blocks: never. */
const char *rp_cuda_built(void);

#endif
