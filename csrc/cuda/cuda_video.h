/* What a decoder of another library needs of a GPU: its handles, NVDEC's own word on what it
 * decodes, copies of rows, and the order of work by block instead of by stream. */
#ifndef RP_CUDA_CUDA_VIDEO_H
#define RP_CUDA_CUDA_VIDEO_H

#include "base/error.h"
#include "cuda/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The driver's own handle of the device's primary context (CUcontext), for a library that is told
 * which to use. Owner: borrowed, as long as the device. Thread: any. Blocks: never. */
void *rp_cuda_native_context(const rp_cuda *device);

/* Codecs by NVDEC's numbers (cudaVideoCodec). */
enum rp_cuda_codec { RP_CUDA_H264 = 4, RP_CUDA_HEVC = 8, RP_CUDA_VP9 = 10, RP_CUDA_AV1 = 11 };

/* What NVDEC says of 8-bit 4:2:0 of a codec. */
struct rp_cuda_video_caps {
    bool supported; /* to NV12; the rest is valid if so */
    int engines;    /* that decode it; 0: the driver does not tell */
    int min_width, min_height, max_width, max_height; /* of coded pictures */
    int64_t max_blocks;                               /* of 16x16 pixels */
};

/* Ask for them. library: NULL for libnvcuvid.so.1, which comes with the driver. Owner: *out is the
 * caller's. Thread: any. Blocks: for the driver. Errors: RP_E_CUDA no such library, one that is too
 * old, the driver's failure. */
RP_CHECKED rp_status rp_cuda_video_caps(rp_cuda *device, const char *library,
                                        enum rp_cuda_codec codec, struct rp_cuda_video_caps *out,
                                        struct rp_error *err);

/* Make a decoder of this size and end it again: RP_E_CUDA with the driver's number in err->sys if
 * it refuses (RP_CUDA_NO_MEMORY: memory or sessions are used up). Thread: any. Blocks: for the
 * driver, tens of milliseconds. */
RP_CHECKED rp_status rp_cuda_video_try(rp_cuda *device, const char *library,
                                       enum rp_cuda_codec codec, int width, int height,
                                       struct rp_error *err);
#define RP_CUDA_NO_MEMORY 2

/* Copy rows of `width` bytes on the device, in the order of the stream: from an address, `pitch`
 * bytes apart, to byte `to` of a block, to_pitch bytes apart. Source and block stay until it is
 * done. Thread: the stream's. Blocks: never for long. Errors: RP_E_ARG outside of the block;
 * RP_E_CUDA. */
RP_CHECKED rp_status rp_cuda_copy_rows(rp_cuda_stream *stream, uint64_t from, size_t pitch,
                                       const rp_cuda_block *block, size_t to, size_t to_pitch,
                                       size_t width, size_t rows, struct rp_error *err);

/* Note that the stream's work up to now uses the block: rp_cuda_give(block, NULL) then frees it
 * behind that work, and rp_cuda_await makes other streams wait for it. Replaces what was noted
 * before: a stream that uses a block that another one used awaits it first. Where the driver
 * refuses, the work is waited for. Thread: the stream's; one at a time per block. Blocks: never for
 * long. */
void rp_cuda_mark(rp_cuda_block *block, rp_cuda_stream *stream);

/* Work given to the stream from now on begins after what rp_cuda_mark noted. Thread: the stream's;
 * one at a time per block. Blocks: never. Errors: RP_E_CUDA. */
RP_CHECKED rp_status rp_cuda_await(rp_cuda_stream *stream, const rp_cuda_block *block,
                                   struct rp_error *err);

#endif
