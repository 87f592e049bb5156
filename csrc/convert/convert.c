#include "convert/convert.h"

#include "base/memory.h"
#include "convert/convert_priv.h"

#define MAX_SIDE 32768

/* Process-wide by rule: the kernel table, set once; 0 = not yet, else tier + 1. */
static int chosen_tier;

const struct rp_kernels *rp_kernels_of(enum rp_cpu_tier tier)
{
    switch (tier) {
#if defined(__x86_64__)
    case RP_CPU_AVX2: return &rp_kernels_avx2;
    case RP_CPU_AVX512: return &rp_kernels_avx512;
#endif
    default: return &rp_kernels_c;
    }
}

enum rp_cpu_tier rp_convert_init(enum rp_cpu_tier highest)
{
    int none = 0;
    int wanted = (int)rp_cpu_limit(highest) + 1;
    if (__atomic_compare_exchange_n(&chosen_tier, &none, wanted, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
        return (enum rp_cpu_tier)(wanted - 1);
    }
    return (enum rp_cpu_tier)(none - 1);
}

static const struct rp_kernels *kernels(void)
{
    int tier = __atomic_load_n(&chosen_tier, __ATOMIC_ACQUIRE);
    if (tier == 0) {
        return rp_kernels_of(rp_convert_init(rp_cpu_detect()));
    }
    return rp_kernels_of((enum rp_cpu_tier)(tier - 1));
}

rp_status rp_scratch_new(rp_scratch **out, struct rp_error *err)
{
    rp_scratch *scratch = rp_calloc(1, sizeof(*scratch));
    if (scratch == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for conversion buffers");
    }
    *out = scratch;
    return RP_OK;
}

void rp_scratch_free(rp_scratch **scratch)
{
    if (scratch == NULL || *scratch == NULL) {
        return;
    }
    rp_scratch *dead = *scratch;
    *scratch = NULL;
    rp_free(dead->full.data);
    rp_free(dead->middle.data);
    rp_free(dead->small.data);
    rp_free(dead->packed.data);
    for (int i = 0; i < RP_AXIS_SLOTS; i++) {
        rp_axis_free(&dead->axis[i]);
    }
    for (int i = 0; i < RP_SWS_SLOTS; i++) {
        rp_sws_slot_free(&dead->sws[i]);
    }
    rp_free(dead);
}

rp_status rp_grown_reserve(struct rp_grown *buffer, size_t size, struct rp_error *err)
{
    if (size <= buffer->cap) {
        return RP_OK;
    }
    rp_free(buffer->data);
    *buffer = (struct rp_grown){.data = rp_realloc(NULL, size, 1)};
    if (buffer->data == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu bytes of pixels", size);
    }
    buffer->cap = size;
    return RP_OK;
}

/* Three u8 planes of width x height, rows packed, inside a grown buffer. */
static rp_status reserve_planes(struct rp_grown *buffer, int width, int height,
                                struct rp_planes *out, struct rp_error *err)
{
    size_t plane = (size_t)width * (size_t)height;
    RP_TRY(rp_grown_reserve(buffer, 3 * plane, err));
    *out =
        (struct rp_planes){.plane = {buffer->data, buffer->data + plane, buffer->data + 2 * plane},
                           .row_stride = width};
    return RP_OK;
}

static struct rp_planes target_planes(const struct rp_target *target)
{
    char *data = target->data;
    return (struct rp_planes){
        .plane = {data, data + target->plane_stride, data + 2 * target->plane_stride},
        .row_stride = target->row_stride};
}

static bool has_kernel(const struct rp_image *image)
{
    return (image->format == RP_PIX_I420 || image->format == RP_PIX_I420J) &&
           image->width % 2 == 0 && image->height % 2 == 0;
}

/* The picture as u8 planes of its own size. */
static rp_status to_u8(const struct rp_image *image, const struct rp_planes *out,
                       rp_scratch *scratch, struct rp_error *err)
{
    if (!has_kernel(image)) {
        return rp_sws_planes(image, out, scratch, err);
    }
    kernels()->i420_u8(image, rp_colour_of(image->colorspace, rp_colour_is_full(image)), out);
    return RP_OK;
}

static void divide(const struct rp_planes *in, const struct rp_planes *out, int width, int height)
{
    for (int c = 0; c < 3; c++) {
        for (int y = 0; y < height; y++) {
            kernels()->u8_f32((const uint8_t *)in->plane[c] + y * in->row_stride,
                              (float *)((char *)out->plane[c] + y * out->row_stride),
                              (size_t)width);
        }
    }
}

static rp_status resized(const struct rp_image *image, const struct rp_target *target,
                         rp_scratch *scratch, struct rp_error *err)
{
    struct rp_planes full;
    struct rp_planes final = target_planes(target);
    struct rp_planes small = final;
    RP_TRY(reserve_planes(&scratch->full, image->width, image->height, &full, err));
    RP_TRY(to_u8(image, &full, scratch, err));
    if (target->type == RP_PIXEL_F32) {
        RP_TRY(reserve_planes(&scratch->small, target->width, target->height, &small, err));
    }
    RP_TRY(rp_resize_planes(&full, image->width, image->height, &small, target->width,
                            target->height, scratch, err));
    if (target->type == RP_PIXEL_F32) {
        divide(&small, &final, target->width, target->height);
    }
    return RP_OK;
}

static bool is_size(int width, int height)
{
    return width >= 1 && height >= 1 && width <= MAX_SIDE && height <= MAX_SIDE;
}

rp_status rp_convert(const struct rp_image *image, const struct rp_target *target,
                     rp_scratch *scratch, struct rp_error *err)
{
    if (!is_size(image->width, image->height) || !is_size(target->width, target->height)) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "a picture of %dx%d to %dx%d: sides are 1 to %d pixels",
                image->width, image->height, target->width, target->height, MAX_SIDE);
    }
    if (image->format == RP_PIX_GRAY12) {
        return rp_depth(image, target, err);
    }
    if (target->depth_table != NULL || target->type == RP_PIXEL_U16) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "pixel format %d (%d) is not 12-bit depth",
                (int)image->format, image->native_format);
    }
    if (image->width != target->width || image->height != target->height) {
        return resized(image, target, scratch, err);
    }
    struct rp_planes final = target_planes(target);
    if (target->type == RP_PIXEL_U8) {
        return to_u8(image, &final, scratch, err);
    }
    if (has_kernel(image)) {
        const struct rp_colour *colour = rp_colour_of(image->colorspace, rp_colour_is_full(image));
        kernels()->i420_f32(image, colour, &final);
        return RP_OK;
    }
    struct rp_planes small;
    RP_TRY(reserve_planes(&scratch->small, image->width, image->height, &small, err));
    RP_TRY(to_u8(image, &small, scratch, err));
    divide(&small, &final, image->width, image->height);
    return RP_OK;
}
