#include "convert/convert_priv.h"

#if defined(__x86_64__)

#    include <immintrin.h>
#    include <string.h>

/* 32 pixels of two rows at a time; both rows share the chroma terms. Unpacking works per 128-bit
 * lane: "low" holds pixels 0-7 and 16-23, "high" 8-15 and 24-31, and packing undoes it.
 *
 * Rows that start at a cache line are written by streaming stores: a batch is larger than the
 * caches, so reading its old lines first, as plain stores do, is waste. Bytes go by way of a strip
 * of two rows in the first-level cache, then row by row: six rows written 32 bytes in turn would
 * flush the write buffers half full. */

#    define AVX2   __attribute__((target("avx2,fma")))
#    define INLINE __attribute__((target("avx2,fma"), always_inline)) static inline
#    define BLOCK  32   /* pixels */
#    define STRIP  1024 /* pixels, a multiple of BLOCK */

struct constants {
    __m256i yc, yoff, vr, ub, vg, ug;
};

/* Chroma terms of a block, doubled to one per pixel. */
struct terms {
    __m256i r_low, r_high, g_low, g_high, b_low, b_high;
};

struct rgb {
    __m256i r, g, b;
};

INLINE struct constants load_constants(const struct rp_colour *c)
{
    return (struct constants){.yc = _mm256_set1_epi16(c->yc),
                              .yoff = _mm256_set1_epi16(c->yoff),
                              .vr = _mm256_set1_epi16(c->vr),
                              .ub = _mm256_set1_epi16(c->ub),
                              .vg = _mm256_set1_epi16(c->vg),
                              .ug = _mm256_set1_epi16(c->ug)};
}

INLINE __m256i load_chroma(const uint8_t *from)
{
    __m256i c = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from));
    return _mm256_sub_epi16(_mm256_slli_epi16(c, 3), _mm256_set1_epi16(1024));
}

INLINE struct terms chroma_terms(const struct constants *k, const uint8_t *u8, const uint8_t *v8)
{
    __m256i u = load_chroma(u8);
    __m256i v = load_chroma(v8);
    __m256i r = _mm256_mulhi_epi16(v, k->vr);
    __m256i g = _mm256_add_epi16(_mm256_mulhi_epi16(u, k->ug), _mm256_mulhi_epi16(v, k->vg));
    __m256i b = _mm256_mulhi_epi16(u, k->ub);
    return (struct terms){.r_low = _mm256_unpacklo_epi16(r, r),
                          .r_high = _mm256_unpackhi_epi16(r, r),
                          .g_low = _mm256_unpacklo_epi16(g, g),
                          .g_high = _mm256_unpackhi_epi16(g, g),
                          .b_low = _mm256_unpacklo_epi16(b, b),
                          .b_high = _mm256_unpackhi_epi16(b, b)};
}

INLINE struct rgb block_rgb(const struct constants *k, const struct terms *t, const uint8_t *luma)
{
    __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)luma);
    __m256i zero = _mm256_setzero_si256();
    __m256i low = _mm256_slli_epi16(_mm256_unpacklo_epi8(y, zero), 3);
    __m256i high = _mm256_slli_epi16(_mm256_unpackhi_epi8(y, zero), 3);
    low = _mm256_mulhi_epi16(_mm256_sub_epi16(low, k->yoff), k->yc);
    high = _mm256_mulhi_epi16(_mm256_sub_epi16(high, k->yoff), k->yc);
    return (struct rgb){.r = _mm256_packus_epi16(_mm256_add_epi16(low, t->r_low),
                                                 _mm256_add_epi16(high, t->r_high)),
                        .g = _mm256_packus_epi16(_mm256_add_epi16(low, t->g_low),
                                                 _mm256_add_epi16(high, t->g_high)),
                        .b = _mm256_packus_epi16(_mm256_add_epi16(low, t->b_low),
                                                 _mm256_add_epi16(high, t->b_high))};
}

/* u / 255, correctly rounded for u = 0..255: one Newton step on u * (1/255). */
INLINE __m256 unit(__m256i u)
{
    const __m256 r = _mm256_set1_ps(1.0f / 255.0f);
    __m256 x = _mm256_cvtepi32_ps(u);
    __m256 q = _mm256_mul_ps(x, r);
    __m256 e = _mm256_fnmadd_ps(q, _mm256_set1_ps(255.0f), x);
    return _mm256_fmadd_ps(e, r, q);
}

struct strip {
    __attribute__((aligned(64))) uint8_t row[3][2][STRIP];
};

INLINE void store_u8(uint8_t *to, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)to, v);
}

/* 32 pixels of rows y and y + 1 from column x of the picture, to column `at` of the strip. */
INLINE void block(const struct rp_image *image, const struct constants *k, int x, int y,
                  struct strip *strip, int at)
{
    struct terms t = chroma_terms(k, image->plane[1] + (y >> 1) * image->stride[1] + (x >> 1),
                                  image->plane[2] + (y >> 1) * image->stride[2] + (x >> 1));
    for (int dy = 0; dy < 2; dy++) {
        struct rgb c = block_rgb(k, &t, image->plane[0] + (y + dy) * image->stride[0] + x);
        store_u8(&strip->row[0][dy][at], c.r);
        store_u8(&strip->row[1][dy][at], c.g);
        store_u8(&strip->row[2][dy][at], c.b);
    }
}

/* n pixels, at least BLOCK and even; the last block overlaps its neighbour. */
INLINE void fill_strip(const struct rp_image *image, const struct constants *k, int x0, int y,
                       int n, struct strip *strip)
{
    int x = 0;
    for (; x + BLOCK <= n; x += BLOCK) {
        block(image, k, x0 + x, y, strip, x);
    }
    if (x < n) {
        block(image, k, x0 + n - BLOCK, y, strip, n - BLOCK);
    }
}

INLINE void write_u8(const uint8_t *row, uint8_t *to, int n, bool stream)
{
    int x = 0;
    for (; x + BLOCK <= n; x += BLOCK) {
        __m256i v = _mm256_load_si256((const __m256i *)(const void *)(row + x));
        if (stream) {
            _mm256_stream_si256((__m256i *)(void *)(to + x), v);
        }
        else {
            store_u8(to + x, v);
        }
    }
    memcpy(to + x, row + x, (size_t)(n - x));
}

INLINE void store_8(float *to, __m128i v, bool stream)
{
    __m256 f = unit(_mm256_cvtepu8_epi32(v));
    if (stream) {
        _mm256_stream_ps(to, f);
    }
    else {
        _mm256_storeu_ps(to, f);
    }
}

INLINE void store_f32(float *to, __m256i v, bool stream)
{
    __m128i low = _mm256_castsi256_si128(v);
    __m128i high = _mm256_extracti128_si256(v, 1);
    store_8(to, low, stream);
    store_8(to + 8, _mm_srli_si128(low, 8), stream);
    store_8(to + 16, high, stream);
    store_8(to + 24, _mm_srli_si128(high, 8), stream);
}

/* One block of floats of rows y and y + 1 at column x. */
INLINE void block_f32(const struct rp_image *image, const struct constants *k, int x, int y,
                      const struct rp_planes *out, bool stream)
{
    struct terms t = chroma_terms(k, image->plane[1] + (y >> 1) * image->stride[1] + (x >> 1),
                                  image->plane[2] + (y >> 1) * image->stride[2] + (x >> 1));
    for (int dy = 0; dy < 2; dy++) {
        struct rgb c = block_rgb(k, &t, image->plane[0] + (y + dy) * image->stride[0] + x);
        ptrdiff_t at = (y + dy) * out->row_stride + x * (ptrdiff_t)sizeof(float);
        store_f32((float *)(void *)((char *)out->plane[0] + at), c.r, stream);
        store_f32((float *)(void *)((char *)out->plane[1] + at), c.g, stream);
        store_f32((float *)(void *)((char *)out->plane[2] + at), c.b, stream);
    }
}

INLINE void picture_u8(const struct rp_image *image, const struct rp_colour *colour,
                       const struct rp_planes *out, bool stream)
{
    const struct constants k = load_constants(colour);
    struct strip strip;
    for (int y = 0; y < image->height; y += 2) {
        rp_fetch_rows_ahead(image, y);
        int x = 0;
        for (; x + BLOCK <= image->width; x += STRIP) {
            int n = image->width - x < STRIP ? image->width - x : STRIP;
            fill_strip(image, &k, x, y, n, &strip);
            for (int c = 0; c < 3; c++) {
                uint8_t *to = (uint8_t *)out->plane[c] + y * out->row_stride + x;
                write_u8(strip.row[c][0], to, n, stream);
                write_u8(strip.row[c][1], to + out->row_stride, n, stream);
            }
        }
        rp_i420_tail_u8(image, colour, out, x, y);
    }
}

INLINE void picture_f32(const struct rp_image *image, const struct rp_colour *colour,
                        const struct rp_planes *out, bool stream)
{
    const struct constants k = load_constants(colour);
    for (int y = 0; y < image->height; y += 2) {
        int x = 0;
        for (; x + BLOCK <= image->width; x += BLOCK) {
            block_f32(image, &k, x, y, out, stream);
        }
        if (x < image->width && x > 0) {
            block_f32(image, &k, image->width - BLOCK, y, out, false);
        }
        else {
            rp_i420_tail_f32(image, colour, out, x, y);
        }
    }
}

AVX2 static void i420_u8(const struct rp_image *image, const struct rp_colour *colour,
                         const struct rp_planes *out)
{
    if (rp_planes_are_aligned(out)) {
        picture_u8(image, colour, out, true);
        _mm_sfence(); /* streaming stores are not ordered with the flag that publishes a batch */
    }
    else {
        picture_u8(image, colour, out, false);
    }
}

AVX2 static void i420_f32(const struct rp_image *image, const struct rp_colour *colour,
                          const struct rp_planes *out)
{
    if (rp_planes_are_aligned(out)) {
        picture_f32(image, colour, out, true);
        _mm_sfence(); /* as above */
    }
    else {
        picture_f32(image, colour, out, false);
    }
}

AVX2 static void u8_f32(const uint8_t *in, float *out, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        store_8(out + i, _mm_loadl_epi64((const __m128i *)(const void *)(in + i)), false);
    }
    rp_kernels_c.u8_f32(in + i, out + i, n - i);
}

const struct rp_kernels rp_kernels_avx2 = {
    .i420_u8 = i420_u8,
    .i420_f32 = i420_f32,
    .u8_f32 = u8_f32,
};

#endif
