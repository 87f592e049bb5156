/* Inside decode: NVDEC through libavcodec's CUDA hwaccel. */
#ifndef RP_DECODE_DEC_CUDA_H
#define RP_DECODE_DEC_CUDA_H

#include "cuda/cuda.h"
#include "decode/decode_priv.h"

/* Backend whose host is a struct rp_cuda. Its frames lie in blocks of the device, as NV12 without
 * what pads it. From the first packet on a stream is RP_E_CUDA with sys RP_NVDEC_REFUSED if the
 * hwaccel does not start on it, be it for want of memory, and RP_NVDEC_NONE if there is none for
 * its kind. A picture that NVDEC fails on is
 * RP_E_DECODE, as damage is; a lost GPU RP_E_CUDA. */
extern const struct rp_decode_backend rp_decode_cuda;
#define RP_NVDEC_REFUSED (-1)
#define RP_NVDEC_NONE    (-2)

/* Whether this FFmpeg has an NVDEC hwaccel for the codec. Thread: any. Blocks: never. */
bool rp_decode_has_cuda(enum rp_codec codec);

#endif
