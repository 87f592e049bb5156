/* Inside of the pool: batches that are born in a GPU's memory.
 *
 * A batch's block is memory on the device; what goes there waits in pinned memory, its *stage*:
 * columns and pads, and one slot per wanted picture. Workers put decoded pictures into the slots,
 * as planes that the GPU converts, or where it cannot as converted bytes. When the last want is
 * settled, an item (rp_send_work) uploads the stage, starts the one conversion, and the batch is
 * done: nobody waits for the GPU. Memory comes back behind the work that uses it.
 *
 * Streams: `copies` carries planes up, which need no memory of a consumer; `work` all that writes
 * into blocks, behind those who used them before; `retire` only waits, for what is freed. The first
 * two are used by one SEND item at a time. */
#ifndef RP_POOL_GPU_PRIV_H
#define RP_POOL_GPU_PRIV_H

#include "base/arena.h"
#include "base/image.h"
#include "base/thread.h"
#include "convert/convert_cuda.h"
#include "cuda/cuda.h"
#include "decode/nvdec.h"
#include "pool/pool.h"

struct batch;
struct want;
struct worker;

struct rp_gpu {
    int refs; /* atomic: the loader, the arena of its blocks */
    uint64_t fork_generation;
    rp_cuda *device;
    rp_cuda_stream *copies, *work, *retire;
    rp_cuda_converter *converter; /* in `work` */
    rp_nvdec *nvdec;              /* decodes what it can; the rest is the CPU's */
    rp_lock lock;                 /* guards the uses of all blocks */
    int64_t *slot_bytes;          /* per camera, atomic: of a picture's slot; grows */
    struct rp_cuda_job *jobs;     /* of the SEND item */
    int64_t cap_jobs;
    int64_t uploaded, converted, decoded; /* atomic */
    int64_t waits; /* atomic: threads that wait for the GPU to read a stage */
};

/* Another library's work on a block: one entry per stream. */
struct gpu_use {
    struct gpu_use *next;
    uint64_t stream;
    rp_cuda_event *event;
    bool recorded; /* there is something to wait for */
};

/* What an arena's block holds. */
struct gpu_block {
    struct rp_gpu *gpu;
    rp_cuda_block *memory;
    rp_cuda_event *ready; /* behind our own work on it */
    struct gpu_use *uses; /* guarded by the GPU's lock while the block is lent */
};

enum staged { NOT_STAGED, STAGED_PLANES, STAGED_BYTES, STAGED_FRAME };

/* A wanted picture on its way. */
struct picture {
    enum staged how;
    struct rp_image image; /* planes: addresses counted from the first slot; of a frame: its own */
    rp_cuda_block *own;    /* bytes that are too many for the slot */
    rp_frame *frame;       /* decoded on the GPU: held until the batch is sent */
};

struct slots {
    size_t at, len; /* bytes: of the camera's first slot in the stage, of each slot */
};

/* A batch's stage. Columns and pads lie as in the batch, from 0; then slots by (camera, sample,
 * step). */
struct stage {
    rp_cuda_block *memory;
    size_t tail;             /* bytes of columns and pads; there the slots begin */
    size_t bytes;            /* all */
    struct slots *slots;     /* per camera */
    struct picture *picture; /* by a want's order */
    int64_t cap;
};

/* gpu.c. Owner: the loader's, counted. Errors: as rp_cuda_open, rp_cuda_kernel_new. */
RP_CHECKED rp_status rp_gpu_open(rp_loader *loader, struct rp_error *err);
void rp_gpu_unref(struct rp_gpu **gpu);
/* Arena of the batches' blocks. */
RP_CHECKED rp_status rp_gpu_arena(struct rp_gpu *gpu, size_t keep_bytes, rp_arena **out,
                                  struct rp_error *err);
void rp_gpu_stats(struct rp_gpu *gpu, struct rp_device_stats *out);
/* Work on `work` begins behind those who used the block. */
RP_CHECKED rp_status rp_gpu_hold_uses(struct gpu_block *block, struct rp_error *err);

/* stage.c. Take the memory that the batch is put together in; no lock is held, the batch is the
 * caller's. */
RP_CHECKED rp_status rp_stage_take(rp_loader *loader, struct batch *batch, struct rp_error *err);
/* Put a picture into its slot. */
RP_CHECKED rp_status rp_stage_picture(struct worker *worker, const struct want *want,
                                      const struct rp_image *image, struct rp_target *target,
                                      struct rp_error *err);
/* The same for a frame on the device, which is counted up. Errors: RP_E_UNSUPPORTED the kernel does
 * not take it. */
RP_CHECKED rp_status rp_stage_frame(struct worker *worker, const struct want *want, rp_frame *frame,
                                    const struct rp_target *target, struct rp_error *err);
/* Give all of it back; nothing of it is on its way to the GPU. */
void rp_stage_free(struct stage *stage);

/* send.c: upload and convert a staged batch. Entered without the lock. */
void rp_send_work(rp_loader *loader, struct batch *batch);

#endif
