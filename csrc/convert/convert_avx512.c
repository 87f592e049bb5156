#include "convert/convert_priv.h"

#if defined(__x86_64__)

#    include <immintrin.h>

/* 64 pixels of two rows at a time, in strips and lanes as in convert_avx2.c; the rest of a row is
 * one block under masks. */

#    define TARGET "avx512f,avx512bw,avx512vl,avx512dq"
#    define AVX512 __attribute__((target(TARGET)))
#    define INLINE __attribute__((target(TARGET), always_inline)) static inline
#    define BLOCK  64   /* pixels */
#    define STRIP  1024 /* pixels, a multiple of BLOCK */

struct constants {
    __m512i yc, yoff, vr, ub, vg, ug;
};

struct terms {
    __m512i r_low, r_high, g_low, g_high, b_low, b_high;
};

struct rgb {
    __m512i r, g, b;
};

INLINE struct constants load_constants(const struct rp_colour *c)
{
    return (struct constants){.yc = _mm512_set1_epi16(c->yc),
                              .yoff = _mm512_set1_epi16(c->yoff),
                              .vr = _mm512_set1_epi16(c->vr),
                              .ub = _mm512_set1_epi16(c->ub),
                              .vg = _mm512_set1_epi16(c->vg),
                              .ug = _mm512_set1_epi16(c->ug)};
}

/* The low `n` bits set, n = 1..64. */
INLINE __mmask64 first_bits(int n)
{
    return ~(__mmask64)0 >> (64 - n);
}

INLINE __m512i load_chroma(const uint8_t *from, __mmask32 mask)
{
    __m512i c = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, from));
    return _mm512_sub_epi16(_mm512_slli_epi16(c, 3), _mm512_set1_epi16(1024));
}

INLINE struct terms chroma_terms(const struct constants *k, const uint8_t *u8, const uint8_t *v8,
                                 int n)
{
    __mmask32 mask = (__mmask32)first_bits(n / 2);
    __m512i u = load_chroma(u8, mask);
    __m512i v = load_chroma(v8, mask);
    __m512i r = _mm512_mulhi_epi16(v, k->vr);
    __m512i g = _mm512_add_epi16(_mm512_mulhi_epi16(u, k->ug), _mm512_mulhi_epi16(v, k->vg));
    __m512i b = _mm512_mulhi_epi16(u, k->ub);
    return (struct terms){.r_low = _mm512_unpacklo_epi16(r, r),
                          .r_high = _mm512_unpackhi_epi16(r, r),
                          .g_low = _mm512_unpacklo_epi16(g, g),
                          .g_high = _mm512_unpackhi_epi16(g, g),
                          .b_low = _mm512_unpacklo_epi16(b, b),
                          .b_high = _mm512_unpackhi_epi16(b, b)};
}

INLINE struct rgb block_rgb(const struct constants *k, const struct terms *t, const uint8_t *luma,
                            int n)
{
    __m512i y = _mm512_maskz_loadu_epi8(first_bits(n), luma);
    __m512i zero = _mm512_setzero_si512();
    __m512i low = _mm512_slli_epi16(_mm512_unpacklo_epi8(y, zero), 3);
    __m512i high = _mm512_slli_epi16(_mm512_unpackhi_epi8(y, zero), 3);
    low = _mm512_mulhi_epi16(_mm512_sub_epi16(low, k->yoff), k->yc);
    high = _mm512_mulhi_epi16(_mm512_sub_epi16(high, k->yoff), k->yc);
    return (struct rgb){.r = _mm512_packus_epi16(_mm512_add_epi16(low, t->r_low),
                                                 _mm512_add_epi16(high, t->r_high)),
                        .g = _mm512_packus_epi16(_mm512_add_epi16(low, t->g_low),
                                                 _mm512_add_epi16(high, t->g_high)),
                        .b = _mm512_packus_epi16(_mm512_add_epi16(low, t->b_low),
                                                 _mm512_add_epi16(high, t->b_high))};
}

/* u / 255, correctly rounded for u = 0..255: one Newton step on u * (1/255). */
INLINE __m512 unit(__m128i u)
{
    const __m512 r = _mm512_set1_ps(1.0f / 255.0f);
    __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(u));
    __m512 q = _mm512_mul_ps(x, r);
    __m512 e = _mm512_fnmadd_ps(q, _mm512_set1_ps(255.0f), x);
    return _mm512_fmadd_ps(e, r, q);
}

struct strip {
    __attribute__((aligned(64))) uint8_t row[3][2][STRIP];
};

/* n pixels (even, up to 64) of rows y and y + 1 from column x of the picture, to column `at` of the
 * strip, which always has room for a whole block. */
INLINE void block(const struct rp_image *image, const struct constants *k, int x, int y, int n,
                  struct strip *strip, int at)
{
    struct terms t = chroma_terms(k, image->plane[1] + (y >> 1) * image->stride[1] + (x >> 1),
                                  image->plane[2] + (y >> 1) * image->stride[2] + (x >> 1), n);
    for (int dy = 0; dy < 2; dy++) {
        struct rgb c = block_rgb(k, &t, image->plane[0] + (y + dy) * image->stride[0] + x, n);
        _mm512_store_si512(&strip->row[0][dy][at], c.r);
        _mm512_store_si512(&strip->row[1][dy][at], c.g);
        _mm512_store_si512(&strip->row[2][dy][at], c.b);
    }
}

INLINE void fill_strip(const struct rp_image *image, const struct constants *k, int x0, int y,
                       int n, struct strip *strip)
{
    int x = 0;
    for (; x + BLOCK <= n; x += BLOCK) {
        block(image, k, x0 + x, y, BLOCK, strip, x);
    }
    if (x < n) {
        block(image, k, x0 + x, y, n - x, strip, x);
    }
}

INLINE void write_u8(const uint8_t *row, uint8_t *to, int n, bool stream)
{
    int x = 0;
    for (; x + BLOCK <= n; x += BLOCK) {
        __m512i v = _mm512_load_si512(row + x);
        if (stream) {
            _mm512_stream_si512((__m512i *)(void *)(to + x), v);
        }
        else {
            _mm512_storeu_si512(to + x, v);
        }
    }
    if (x < n) {
        _mm512_mask_storeu_epi8(to + x, first_bits(n - x), _mm512_load_si512(row + x));
    }
}

INLINE void store_16(float *to, __m128i v, int n, bool stream)
{
    if (stream) {
        _mm512_stream_ps(to, unit(v));
    }
    else if (n >= 16) {
        _mm512_storeu_ps(to, unit(v));
    }
    else if (n > 0) {
        _mm512_mask_storeu_ps(to, (__mmask16)first_bits(n), unit(v));
    }
}

INLINE void store_f32(float *to, __m512i v, int n, bool stream)
{
    store_16(to, _mm512_castsi512_si128(v), n, stream);
    store_16(to + 16, _mm512_extracti32x4_epi32(v, 1), n - 16, stream);
    store_16(to + 32, _mm512_extracti32x4_epi32(v, 2), n - 32, stream);
    store_16(to + 48, _mm512_extracti32x4_epi32(v, 3), n - 48, stream);
}

/* n pixels as floats of rows y and y + 1 at column x. */
INLINE void block_f32(const struct rp_image *image, const struct constants *k, int x, int y, int n,
                      const struct rp_planes *out, bool stream)
{
    struct terms t = chroma_terms(k, image->plane[1] + (y >> 1) * image->stride[1] + (x >> 1),
                                  image->plane[2] + (y >> 1) * image->stride[2] + (x >> 1), n);
    for (int dy = 0; dy < 2; dy++) {
        struct rgb c = block_rgb(k, &t, image->plane[0] + (y + dy) * image->stride[0] + x, n);
        ptrdiff_t at = (y + dy) * out->row_stride + x * (ptrdiff_t)sizeof(float);
        store_f32((float *)(void *)((char *)out->plane[0] + at), c.r, n, stream);
        store_f32((float *)(void *)((char *)out->plane[1] + at), c.g, n, stream);
        store_f32((float *)(void *)((char *)out->plane[2] + at), c.b, n, stream);
    }
}

INLINE void picture_u8(const struct rp_image *image, const struct rp_colour *colour,
                       const struct rp_planes *out, bool stream)
{
    const struct constants k = load_constants(colour);
    struct strip strip;
    for (int y = 0; y < image->height; y += 2) {
        rp_fetch_rows_ahead(image, y);
        for (int x = 0; x < image->width; x += STRIP) {
            int n = image->width - x < STRIP ? image->width - x : STRIP;
            fill_strip(image, &k, x, y, n, &strip);
            for (int c = 0; c < 3; c++) {
                uint8_t *to = (uint8_t *)out->plane[c] + y * out->row_stride + x;
                write_u8(strip.row[c][0], to, n, stream);
                write_u8(strip.row[c][1], to + out->row_stride, n, stream);
            }
        }
    }
}

INLINE void picture_f32(const struct rp_image *image, const struct rp_colour *colour,
                        const struct rp_planes *out, bool stream)
{
    const struct constants k = load_constants(colour);
    for (int y = 0; y < image->height; y += 2) {
        int x = 0;
        for (; x + BLOCK <= image->width; x += BLOCK) {
            block_f32(image, &k, x, y, BLOCK, out, stream);
        }
        if (x < image->width) {
            block_f32(image, &k, x, y, image->width - x, out, false);
        }
    }
}

AVX512 static void i420_u8(const struct rp_image *image, const struct rp_colour *colour,
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

AVX512 static void i420_f32(const struct rp_image *image, const struct rp_colour *colour,
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

AVX512 static void u8_f32(const uint8_t *in, float *out, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        store_16(out + i, _mm_loadu_si128((const __m128i *)(const void *)(in + i)), 16, false);
    }
    if (i < n) {
        int rest = (int)(n - i);
        store_16(out + i, _mm_maskz_loadu_epi8((__mmask16)first_bits(rest), in + i), rest, false);
    }
}

const struct rp_kernels rp_kernels_avx512 = {
    .i420_u8 = i420_u8,
    .i420_f32 = i420_f32,
    .u8_f32 = u8_f32,
};

#endif
