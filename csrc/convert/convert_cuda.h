/* Pictures in a GPU's memory -> tensor bytes there: one launch for a whole batch, the same values
 * as rp_convert gives. */
#ifndef RP_CONVERT_CONVERT_CUDA_H
#define RP_CONVERT_CONVERT_CUDA_H

#include "base/error.h"
#include "base/image.h"
#include "convert/convert.h"
#include "cuda/cuda.h"

#include <stdbool.h>

/* One picture and its place. Planes and data are addresses on the device. */
struct rp_cuda_job {
    struct rp_image image; /* RP_PIX_I420, RP_PIX_I420J; RP_PIX_NV12, RP_PIX_NV12J (planes Y, UV) */
    struct rp_target target;
};

/* Conversions in the order of one stream. */
typedef struct rp_cuda_converter rp_cuda_converter;

/* image: rp_cuda_image(). Owner: *out is the caller's (rp_cuda_converter_free, before the stream's
 * end); stream is borrowed until then. Thread: the stream's. Blocks: for the driver, seconds if it
 * compiles. Errors: as rp_cuda_kernel_new. free: NULL or pointer to NULL: nothing. */
RP_CHECKED rp_status rp_cuda_converter_new(rp_cuda *device, rp_cuda_stream *stream,
                                           const void *image, rp_cuda_converter **out,
                                           struct rp_error *err);
void rp_cuda_converter_free(rp_cuda_converter **converter);

/* Whether the kernel makes this picture to this target; else rp_convert does, on the CPU: odd
 * sizes, other formats, chroma planes of two strides, depth. Looks at no pixel. Thread: any.
 * Blocks: never. */
bool rp_cuda_converts(const struct rp_image *image, const struct rp_target *target);

/* Convert n pictures. Returns when the work is in the stream; what the jobs point to on the device
 * stays until it is done, `jobs` is not needed any more. Owner: borrowed. Thread: the stream's.
 * Blocks: for memory, the first time. Errors: RP_E_UNSUPPORTED rp_cuda_converts says no (nothing is
 * begun); RP_E_CUDA and RP_E_NOMEM (some targets may have been begun). */
RP_CHECKED rp_status rp_cuda_convert(rp_cuda_converter *converter, const struct rp_cuda_job *jobs,
                                     int n, struct rp_error *err);

#endif
