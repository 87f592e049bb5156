/* The arithmetic of the conversion kernel, and four by two pixels of a picture that keeps its size.
 * C11 and CUDA C++ at once: see convert_kernel.h. */
#ifndef RP_CUDA_PIXEL_KERNEL_H
#define RP_CUDA_PIXEL_KERNEL_H

#include "cuda/convert_frame.h"

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#    define RP_DEVICE static __device__ __forceinline__
#else
#    define RP_DEVICE static inline
#endif

RP_DEVICE int rp_cuda_mulhi(int a, int b)
{
    return (a * b) >> 16; /* floors, as in convert_c.c */
}

RP_DEVICE int rp_cuda_clip(int v)
{
    return v < 0 ? 0 : v > 255 ? 255 : v;
}

/* k / 255, correctly rounded. */
RP_DEVICE float rp_cuda_unit(int k)
{
#ifdef __CUDACC__
    return __fdiv_rn((float)k, 255.0f);
#else
    return (float)k / 255.0f;
#endif
}

struct rp_cuda_chroma {
    int r, g, b;
};

/* What a chroma sample adds to each channel. */
RP_DEVICE struct rp_cuda_chroma rp_cuda_chroma_of(const struct rp_cuda_frame *f, int u8, int v8)
{
    int u = 8 * u8 - 1024;
    int v = 8 * v8 - 1024;
    struct rp_cuda_chroma c;
    c.r = rp_cuda_mulhi(v, f->vr);
    c.g = rp_cuda_mulhi(u, f->ug) + rp_cuda_mulhi(v, f->vg);
    c.b = rp_cuda_mulhi(u, f->ub);
    return c;
}

RP_DEVICE int rp_cuda_luma_of(const struct rp_cuda_frame *f, int y8)
{
    return rp_cuda_mulhi(8 * y8 - f->yoff, f->yc);
}

/* The first n <= 4 bytes at p, the first one lowest, in one access where p permits it. */
RP_DEVICE uint32_t rp_cuda_load4(const uint8_t *p, int n)
{
    uint32_t word = 0;
    if (n == 4 && (uintptr_t)p % 4 == 0) {
#ifdef __CUDACC__
        word = *(const uint32_t *)p;
#else
        memcpy(&word, p, 4);
#endif
        return word;
    }
    for (int k = 0; k < n; k++) {
        word |= (uint32_t)p[k] << (8 * k);
    }
    return word;
}

/* The first n <= 4 of four values 0..255, to column x of row y of a channel. */
RP_DEVICE void rp_cuda_store4(const struct rp_cuda_frame *f, int channel, int x, int y, int n,
                              const int *value)
{
    uint8_t *row = (uint8_t *)(uintptr_t)f->out + channel * f->plane_stride + y * f->row_stride;
    if (f->is_float) {
        float *to = (float *)row + x;
        if (n == 4 && (uintptr_t)to % 16 == 0) {
#ifdef __CUDACC__
            *(float4 *)to = make_float4(rp_cuda_unit(value[0]), rp_cuda_unit(value[1]),
                                        rp_cuda_unit(value[2]), rp_cuda_unit(value[3]));
#else
            float four[4] = {rp_cuda_unit(value[0]), rp_cuda_unit(value[1]), rp_cuda_unit(value[2]),
                             rp_cuda_unit(value[3])};
            memcpy(to, four, sizeof(four));
#endif
            return;
        }
        for (int k = 0; k < 4; k++) {
            if (k < n) {
                to[k] = rp_cuda_unit(value[k]);
            }
        }
        return;
    }
    uint8_t *to = row + x;
    if (n == 4 && (uintptr_t)to % 4 == 0) {
        uint32_t word = (uint32_t)value[0] | (uint32_t)value[1] << 8 | (uint32_t)value[2] << 16 |
                        (uint32_t)value[3] << 24;
#ifdef __CUDACC__
        *(uint32_t *)to = word;
#else
        memcpy(to, &word, 4);
#endif
        return;
    }
    for (int k = 0; k < 4; k++) {
        if (k < n) {
            to[k] = (uint8_t)value[k];
        }
    }
}

/* Four columns (two at the end of some rows) of two rows, which share their chroma. */
RP_DEVICE void rp_cuda_quad(const struct rp_cuda_frame *f, int x, int y)
{
    const int n = f->width - x < 4 ? f->width - x : 4;
    const int64_t row = (int64_t)(y >> 1) * f->chroma_stride + (int64_t)(x >> 1) * f->chroma_step;
    const uint8_t *u = (const uint8_t *)(uintptr_t)f->cb + row;
    const uint8_t *v = (const uint8_t *)(uintptr_t)f->cr + row;
    const int next = n > 2 ? f->chroma_step : 0;
    struct rp_cuda_chroma c[2];
    c[0] = rp_cuda_chroma_of(f, u[0], v[0]);
    c[1] = rp_cuda_chroma_of(f, u[next], v[next]);
    for (int dy = 0; dy < 2; dy++) {
        const uint8_t *luma =
            (const uint8_t *)(uintptr_t)f->luma + (int64_t)(y + dy) * f->luma_stride + x;
        const uint32_t four = rp_cuda_load4(luma, n);
        int r[4], g[4], b[4];
        for (int k = 0; k < 4; k++) {
            const int l = rp_cuda_luma_of(f, (int)(four >> (8 * k) & 255));
            r[k] = rp_cuda_clip(l + c[k >> 1].r);
            g[k] = rp_cuda_clip(l + c[k >> 1].g);
            b[k] = rp_cuda_clip(l + c[k >> 1].b);
        }
        rp_cuda_store4(f, 0, x, y + dy, n, r);
        rp_cuda_store4(f, 1, x, y + dy, n, g);
        rp_cuda_store4(f, 2, x, y + dy, n, b);
    }
}

#endif
