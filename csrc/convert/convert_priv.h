/* Inside convert: kernel tables, the scratch, and the stages that convert.c chooses from. */
#ifndef RP_CONVERT_CONVERT_PRIV_H
#define RP_CONVERT_CONVERT_PRIV_H

#include "base/error.h"
#include "base/image.h"
#include "convert/colour.h"
#include "convert/convert.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Three planes to write: R, G, B. row_stride in bytes. */
struct rp_planes {
    void *plane[3];
    ptrdiff_t row_stride;
};

/* Whether every row of every plane starts at a cache line. Thread: any. Blocks: never. */
static inline bool rp_planes_are_aligned(const struct rp_planes *planes)
{
    uintptr_t bits = (uintptr_t)planes->plane[0] | (uintptr_t)planes->plane[1] |
                     (uintptr_t)planes->plane[2] | (uintptr_t)planes->row_stride;
    return bits % 64 == 0;
}

/* The kernels of one CPU tier. All are pure, write the pixels of the picture and no other byte,
 * read no byte outside its rows, and give the bytes of the C tier. */
struct rp_kernels {
    /* Planar 4:2:0 of even width and height -> planes of uint8 or float32. */
    void (*i420_u8)(const struct rp_image *image, const struct rp_colour *colour,
                    const struct rp_planes *out);
    void (*i420_f32)(const struct rp_image *image, const struct rp_colour *colour,
                     const struct rp_planes *out);
    /* n values: u8 / 255 by true division. */
    void (*u8_f32)(const uint8_t *in, float *out, size_t n);
};

extern const struct rp_kernels rp_kernels_c;
#if defined(__x86_64__)
extern const struct rp_kernels rp_kernels_avx2;
extern const struct rp_kernels rp_kernels_avx512;
#endif

/* Table of a tier that this machine has (rp_cpu_limit). Owner: constant. Thread: any.
 * Blocks: never. */
const struct rp_kernels *rp_kernels_of(enum rp_cpu_tier tier);

/* Pixels x0 .. width-1 of a pair of rows in scalar code: what the SIMD tiers leave over.
 * Owner: borrowed. Thread: any. Blocks: never. */
void rp_i420_tail_u8(const struct rp_image *image, const struct rp_colour *colour,
                     const struct rp_planes *out, int x0, int y);
void rp_i420_tail_f32(const struct rp_image *image, const struct rp_colour *colour,
                      const struct rp_planes *out, int x0, int y);

/* Ask for the lines of a later pair of rows: a picture that waited since it was decoded comes from
 * memory, and its rows are too short for the CPU to see what comes next (a fifth of the time on
 * Zen 4). Owner: borrowed. Thread: any. Blocks: never. */
static inline void rp_fetch_rows_ahead(const struct rp_image *image, int y)
{
    y += 8;
    if (y + 1 >= image->height) {
        return;
    }
    const uint8_t *luma = image->plane[0] + y * image->stride[0];
    const uint8_t *u = image->plane[1] + (y >> 1) * image->stride[1];
    const uint8_t *v = image->plane[2] + (y >> 1) * image->stride[2];
    for (int x = 0; x < image->width; x += 64) {
        __builtin_prefetch(luma + x);
        __builtin_prefetch(luma + image->stride[0] + x);
    }
    for (int x = 0; x < image->width / 2; x += 64) {
        __builtin_prefetch(u + x);
        __builtin_prefetch(v + x);
    }
}

/* k / 255.0f for k = 0..255. */
extern const float rp_unit_table[256];

/* One axis of a resize: output i is the sum over k < count[i] of weight[i * taps + k] *
 * input[first[i] + k], rounded by 2^(shift-1), >> shift, clipped. */
struct rp_axis {
    int in, out; /* samples; 0 = unused slot */
    int taps, shift;
    uint64_t used; /* scratch clock of the last use */
    int *first, *count;
    int16_t *weight;
};

/* One libswscale context and what it was made for. */
struct rp_sws_slot {
    void *context; /* struct SwsContext; NULL = unused slot */
    int width, height, format, colorspace, color_range;
    uint64_t used;
};

/* A buffer that only grows. */
struct rp_grown {
    uint8_t *data;
    size_t cap; /* bytes */
};

#define RP_AXIS_SLOTS 8
#define RP_SWS_SLOTS  4

struct rp_scratch {
    struct rp_grown full;   /* RGB planes of the picture's size */
    struct rp_grown middle; /* after the horizontal pass */
    struct rp_grown small;  /* RGB planes of the target's size, before the division */
    struct rp_grown packed; /* RGB24 from libswscale */
    struct rp_axis axis[RP_AXIS_SLOTS];
    struct rp_sws_slot sws[RP_SWS_SLOTS];
    uint64_t clock; /* counts uses, for the least recently used slot */
};

/* Make `buffer` hold at least `size` bytes; contents are lost when it grows. Owner: the scratch.
 * Thread: the scratch's. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_grown_reserve(struct rp_grown *buffer, size_t size, struct rp_error *err);

/* Resize three u8 planes (in: in_w x in_h with in->row_stride) into `out`.
 * Owner: borrowed. Thread: the scratch's. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_resize_planes(const struct rp_planes *in, int in_w, int in_h,
                                      const struct rp_planes *out, int out_w, int out_h,
                                      rp_scratch *scratch, struct rp_error *err);
void rp_axis_free(struct rp_axis *axis);

/* The weights of a resize from `in` to `out` samples. Owner: *axis is the caller's (rp_axis_free),
 * empty on failure. Thread: any. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_axis_fill(struct rp_axis *axis, int in, int out, struct rp_error *err);

/* Any picture that libswscale reads -> u8 planes of its own size. Rows of `image` must be padded as
 * the decoder pads them (libswscale reads past their end).
 * Owner: borrowed. Thread: the scratch's. Blocks: only while a fork is under way.
 * Errors: RP_E_UNSUPPORTED, RP_E_NOMEM. */
RP_CHECKED rp_status rp_sws_planes(const struct rp_image *image, const struct rp_planes *out,
                                   rp_scratch *scratch, struct rp_error *err);
void rp_sws_slot_free(struct rp_sws_slot *slot);

/* 12-bit codes -> target->type, through target->depth_table when there is one.
 * Owner: borrowed. Thread: any. Blocks: never. Errors: RP_E_DECODE a code > 4095;
 * RP_E_UNSUPPORTED another size or type. */
RP_CHECKED rp_status rp_depth(const struct rp_image *image, const struct rp_target *target,
                              struct rp_error *err);

#endif
