/* Whether a GPU decodes given files as the CPU does: for `reelpool doctor` and records of runs. */
#ifndef RP_POOL_NVDEC_PROBE_H
#define RP_POOL_NVDEC_PROBE_H

#include "base/error.h"
#include "decode/nvdec.h"

/* Decode the first run of each of n local files on the GPU and on the CPU; out[i]: what
 * rp_nvdec_decide says of it. driver, library: as in rp_cuda_open, rp_nvdec_new. Owner: all is the
 * caller's. Thread: any. Blocks: on the disk, the driver and two decodes of each. Errors: RP_E_CUDA
 * no GPU, none to be had; those of reading and decoding a file on the CPU. */
RP_CHECKED rp_status rp_nvdec_probe(const char *driver, const char *library, int ordinal,
                                    const char *const *paths, int n, struct rp_nvdec_verdict *out,
                                    struct rp_error *err);

#endif
