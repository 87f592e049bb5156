/* Batches in a GPU's memory: how a loader is told, and how other libraries use what it made. */
#ifndef RP_POOL_DEVICE_H
#define RP_POOL_DEVICE_H

#include "base/error.h"
#include "decode/nvdec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rp_batch;
struct rp_loader;

struct rp_device_options {
    bool on; /* batches lie in a GPU's memory, else in the process's own */
    int ordinal;
    const char *library; /* the driver, for the call; NULL: libcuda.so.1 */
    const void *image;   /* the kernel, for the call; NULL: this build's */
    size_t keep_bytes;   /* of free memory for uploads kept for reuse, of each kind */
    int processes;       /* that share its video engines, this one included; 0: as 1 */
};

struct rp_device_stats {
    int64_t device_bytes, pinned_bytes; /* taken now */
    int64_t uploaded;                   /* bytes */
    int64_t converted;                  /* pictures, by the GPU; the others by the CPU */
    int64_t decoded;                    /* pictures, by its video engine; likewise */
};

/* What its user is to be told of streams that the CPU decodes instead of the loader's GPU, as
 * rp_nvdec_notice. Thread: any. Blocks: never for long. */
bool rp_loader_notice(struct rp_loader *loader, struct rp_nvdec_verdict *out);

/* Number of the GPU that holds the batch; -1: it lies in block->data. Thread: any. Blocks: never.
 */
int rp_batch_device(const struct rp_batch *batch);

/* Address there of the batch's first byte, to which field offsets are added. Thread: any. Blocks:
 * never. */
uint64_t rp_batch_address(const struct rp_batch *batch);

/* Let work on `stream` use the batch, as DLPack numbers streams: 1 the legacy default, 2 the
 * calling thread's, above 2 a handle; its work from now on begins after the batch is made. -1:
 * nothing is ordered. Owner: the user holds the batch until rp_batch_return. Thread: any. Blocks:
 * never for long. Errors: RP_E_CUDA, RP_E_NOMEM. */
RP_CHECKED rp_status rp_batch_lend(struct rp_batch *batch, int64_t stream, struct rp_error *err);

/* That use ends: the memory is used again behind the work that the stream (2, -1: the legacy
 * default one, which waits for all threads' own) has now. Nulls. Thread: any, with no lock of ours.
 * Blocks: where memory is freed, for its work. */
void rp_batch_return(struct rp_batch **batch, int64_t stream);

/* Copy bytes of the batch into the process's memory, as it was made: work of others is not waited
 * for. Owner: `to` is the caller's. Thread: any. Blocks: for the copy. Errors: RP_E_CUDA,
 * RP_E_NOMEM. */
RP_CHECKED rp_status rp_batch_read(const struct rp_batch *batch, size_t from, size_t len, void *to,
                                   struct rp_error *err);

#endif
