#include "convert/convert_priv.h"

/* The reference: what every other tier must equal, bit for bit. */

#define U4(k)                                                                  \
    (float)(k) / 255.0f, (float)((k) + 1) / 255.0f, (float)((k) + 2) / 255.0f, \
        (float)((k) + 3) / 255.0f
#define U16(k) U4(k), U4((k) + 4), U4((k) + 8), U4((k) + 12)
#define U64(k) U16(k), U16((k) + 16), U16((k) + 32), U16((k) + 48)

const float rp_unit_table[256] = {U64(0), U64(64), U64(128), U64(192)};

static inline int mulhi(int a, int b)
{
    return (a * b) >> 16; /* floors, as pmulhw does; gcc and clang shift signed values so */
}

static inline uint8_t clip8(int v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

struct chroma {
    int r, g, b;
};

static inline struct chroma chroma_of(const struct rp_colour *c, int u8, int v8)
{
    int u = 8 * u8 - 1024;
    int v = 8 * v8 - 1024;
    return (struct chroma){
        .r = mulhi(v, c->vr), .g = mulhi(u, c->ug) + mulhi(v, c->vg), .b = mulhi(u, c->ub)};
}

void rp_i420_tail_u8(const struct rp_image *image, const struct rp_colour *colour,
                     const struct rp_planes *out, int x0, int y)
{
    const uint8_t *u = image->plane[1] + (y >> 1) * image->stride[1];
    const uint8_t *v = image->plane[2] + (y >> 1) * image->stride[2];
    for (int dy = 0; dy < 2; dy++) {
        const uint8_t *luma = image->plane[0] + (y + dy) * image->stride[0];
        uint8_t *r = (uint8_t *)out->plane[0] + (y + dy) * out->row_stride;
        uint8_t *g = (uint8_t *)out->plane[1] + (y + dy) * out->row_stride;
        uint8_t *b = (uint8_t *)out->plane[2] + (y + dy) * out->row_stride;
        for (int x = x0; x < image->width; x++) {
            struct chroma c = chroma_of(colour, u[x >> 1], v[x >> 1]);
            int l = mulhi(8 * luma[x] - colour->yoff, colour->yc);
            r[x] = clip8(l + c.r);
            g[x] = clip8(l + c.g);
            b[x] = clip8(l + c.b);
        }
    }
}

void rp_i420_tail_f32(const struct rp_image *image, const struct rp_colour *colour,
                      const struct rp_planes *out, int x0, int y)
{
    const uint8_t *u = image->plane[1] + (y >> 1) * image->stride[1];
    const uint8_t *v = image->plane[2] + (y >> 1) * image->stride[2];
    for (int dy = 0; dy < 2; dy++) {
        const uint8_t *luma = image->plane[0] + (y + dy) * image->stride[0];
        float *r = (float *)((char *)out->plane[0] + (y + dy) * out->row_stride);
        float *g = (float *)((char *)out->plane[1] + (y + dy) * out->row_stride);
        float *b = (float *)((char *)out->plane[2] + (y + dy) * out->row_stride);
        for (int x = x0; x < image->width; x++) {
            struct chroma c = chroma_of(colour, u[x >> 1], v[x >> 1]);
            int l = mulhi(8 * luma[x] - colour->yoff, colour->yc);
            r[x] = rp_unit_table[clip8(l + c.r)];
            g[x] = rp_unit_table[clip8(l + c.g)];
            b[x] = rp_unit_table[clip8(l + c.b)];
        }
    }
}

static void i420_u8(const struct rp_image *image, const struct rp_colour *colour,
                    const struct rp_planes *out)
{
    for (int y = 0; y < image->height; y += 2) {
        rp_i420_tail_u8(image, colour, out, 0, y);
    }
}

static void i420_f32(const struct rp_image *image, const struct rp_colour *colour,
                     const struct rp_planes *out)
{
    for (int y = 0; y < image->height; y += 2) {
        rp_i420_tail_f32(image, colour, out, 0, y);
    }
}

static void u8_f32(const uint8_t *in, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = rp_unit_table[in[i]];
    }
}

const struct rp_kernels rp_kernels_c = {
    .i420_u8 = i420_u8,
    .i420_f32 = i420_f32,
    .u8_f32 = u8_f32,
};
