/* A decoded picture in a GPU's memory -> tensor bytes there, by the integers of docs/pixels.md.
 *
 * One source for two compilers: convert_kernel.cu makes the GPU's kernel of it, and the tests
 * compile it for the host and hold it against the C reference, bit for bit. So this file is C11 and
 * CUDA C++ at once. A picture is cut into items, and each item is one call of rp_cuda_item: which
 * threads make them in which order changes nothing. */
#ifndef RP_CUDA_CONVERT_KERNEL_H
#define RP_CUDA_CONVERT_KERNEL_H

#include "cuda/pixel_kernel.h"

struct rp_cuda_rgb {
    int r, g, b;
};

/* One pixel of the picture. */
RP_DEVICE struct rp_cuda_rgb rp_cuda_pixel(const struct rp_cuda_frame *f, int x, int y)
{
    const int64_t at = (int64_t)(y >> 1) * f->chroma_stride + (int64_t)(x >> 1) * f->chroma_step;
    const int u = ((const uint8_t *)(uintptr_t)f->cb)[at];
    const int v = ((const uint8_t *)(uintptr_t)f->cr)[at];
    const uint8_t *luma = (const uint8_t *)(uintptr_t)f->luma + (int64_t)y * f->luma_stride;
    const int l = rp_cuda_luma_of(f, luma[x]);
    const struct rp_cuda_chroma c = rp_cuda_chroma_of(f, u, v);
    struct rp_cuda_rgb p;
    p.r = rp_cuda_clip(l + c.r);
    p.g = rp_cuda_clip(l + c.g);
    p.b = rp_cuda_clip(l + c.b);
    return p;
}

/* One pixel after the pass along x, which is rounded to uint8. */
RP_DEVICE struct rp_cuda_rgb rp_cuda_pixel_x(const struct rp_cuda_frame *f, int x, int y)
{
    if (f->x.taps == 0) {
        return rp_cuda_pixel(f, x, y);
    }
    const int first = ((const int32_t *)(uintptr_t)f->x.first)[x];
    const int count = ((const int32_t *)(uintptr_t)f->x.count)[x];
    const int16_t *weight = (const int16_t *)(uintptr_t)f->x.weight + (int64_t)x * f->x.taps;
    struct rp_cuda_rgb sum;
    sum.r = sum.g = sum.b = 1 << (f->x.shift - 1);
    for (int k = 0; k < count; k++) {
        const struct rp_cuda_rgb p = rp_cuda_pixel(f, first + k, y);
        sum.r += p.r * weight[k];
        sum.g += p.g * weight[k];
        sum.b += p.b * weight[k];
    }
    sum.r = rp_cuda_clip(sum.r >> f->x.shift);
    sum.g = rp_cuda_clip(sum.g >> f->x.shift);
    sum.b = rp_cuda_clip(sum.b >> f->x.shift);
    return sum;
}

/* One pixel of the output. */
RP_DEVICE struct rp_cuda_rgb rp_cuda_pixel_xy(const struct rp_cuda_frame *f, int x, int y)
{
    if (f->y.taps == 0) {
        return rp_cuda_pixel_x(f, x, y);
    }
    const int first = ((const int32_t *)(uintptr_t)f->y.first)[y];
    const int count = ((const int32_t *)(uintptr_t)f->y.count)[y];
    const int16_t *weight = (const int16_t *)(uintptr_t)f->y.weight + (int64_t)y * f->y.taps;
    struct rp_cuda_rgb sum;
    sum.r = sum.g = sum.b = 1 << (f->y.shift - 1);
    for (int k = 0; k < count; k++) {
        const struct rp_cuda_rgb p = rp_cuda_pixel_x(f, x, first + k);
        sum.r += p.r * weight[k];
        sum.g += p.g * weight[k];
        sum.b += p.b * weight[k];
    }
    sum.r = rp_cuda_clip(sum.r >> f->y.shift);
    sum.g = rp_cuda_clip(sum.g >> f->y.shift);
    sum.b = rp_cuda_clip(sum.b >> f->y.shift);
    return sum;
}

RP_DEVICE void rp_cuda_store_pixel(const struct rp_cuda_frame *f, int x, int y,
                                   struct rp_cuda_rgb p)
{
    uint8_t *row = (uint8_t *)(uintptr_t)f->out + y * f->row_stride;
    if (f->is_float) {
        ((float *)row)[x] = rp_cuda_unit(p.r);
        ((float *)(row + f->plane_stride))[x] = rp_cuda_unit(p.g);
        ((float *)(row + 2 * f->plane_stride))[x] = rp_cuda_unit(p.b);
        return;
    }
    row[x] = (uint8_t)p.r;
    row[f->plane_stride + x] = (uint8_t)p.g;
    row[2 * f->plane_stride + x] = (uint8_t)p.b;
}

RP_DEVICE int rp_cuda_is_resized(const struct rp_cuda_frame *f)
{
    return f->x.taps != 0 || f->y.taps != 0;
}

/* Items of a picture: its output's pixels if it is resized, else pieces of 4 x 2 pixels. */
RP_DEVICE int rp_cuda_items(const struct rp_cuda_frame *f)
{
    return rp_cuda_is_resized(f) ? f->out_width * f->out_height
                                 : (f->width + 3) / 4 * (f->height / 2);
}

RP_DEVICE void rp_cuda_item(const struct rp_cuda_frame *f, int item)
{
    if (rp_cuda_is_resized(f)) {
        const int y = item / f->out_width;
        const int x = item - y * f->out_width;
        rp_cuda_store_pixel(f, x, y, rp_cuda_pixel_xy(f, x, y));
        return;
    }
    const int across = (f->width + 3) / 4;
    const int row = item / across;
    rp_cuda_quad(f, 4 * (item - row * across), 2 * row);
}

#endif
