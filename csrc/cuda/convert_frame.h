/* What the conversion kernel must know of one picture: plain data that travels to the GPU.
 * Addresses are those of the machine that runs the kernel. */
#ifndef RP_CUDA_CONVERT_FRAME_H
#define RP_CUDA_CONVERT_FRAME_H

#include <stdint.h>

/* A resize along one axis, as rp_axis of convert has it. taps 0: the size stays. */
struct rp_cuda_axis {
    uint64_t first;  /* address of int32 per output sample: its first input sample */
    uint64_t count;  /* address of int32 per output sample: how many it is made of, <= taps */
    uint64_t weight; /* address of taps int16 per output sample */
    int32_t taps, shift;
};

struct rp_cuda_frame {
    uint64_t luma, cb, cr;              /* first samples; NV12: cr = cb + 1 */
    int32_t luma_stride, chroma_stride; /* bytes */
    int32_t chroma_step;                /* bytes from a chroma sample to the next: I420 1, NV12 2 */
    int32_t width, height;              /* of the picture, both even */
    int32_t yc, yoff, vr, ub, vg, ug;   /* of its matrix and range */
    int32_t is_float;                   /* 0: uint8; 1: float32, the uint8 value / 255 */
    int32_t out_width, out_height;
    uint64_t out;                     /* R of the first pixel */
    int64_t row_stride, plane_stride; /* bytes */
    struct rp_cuda_axis x, y;
};

#endif
