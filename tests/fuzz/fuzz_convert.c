/* Any picture and target: no access outside them, a status of the contract, every tier the same
 * bytes. Input: 10 bytes of parameters, then sample values, repeated to fill the planes. */
#include "base/memory.h"
#include "convert/convert.h"
#include "convert/convert_priv.h"

#include <libavutil/pixfmt.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SIDE 160

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const int natives[] = {AV_PIX_FMT_YUV444P,
                              AV_PIX_FMT_YUV422P,
                              AV_PIX_FMT_YUV420P10LE,
                              AV_PIX_FMT_GRAY8,
                              AV_PIX_FMT_GBRP,
                              AV_PIX_FMT_VAAPI,
                              -1,
                              1 << 20};

/* A plane with room for 16-bit samples at full size and a decoder's padding. */
static uint8_t *make_plane(const uint8_t *data, size_t size, size_t stride, size_t rows)
{
    uint8_t *plane = rp_calloc(stride * rows + 64, 1);
    for (size_t i = 0; plane != NULL && size > 0 && i < stride * rows; i++) {
        plane[i] = data[i % size];
    }
    return plane;
}

static void compare_tiers(const struct rp_image *image)
{
    size_t row = (size_t)image->width * 4;
    size_t size = 3 * row * (size_t)image->height;
    const struct rp_colour *colour = rp_colour_of(image->colorspace, rp_colour_is_full(image));
    char *want = rp_calloc(size, 1);
    char *got = rp_calloc(size, 1);
    if (want == NULL || got == NULL) {
        abort();
    }
    struct rp_planes out = {.plane = {want, want + size / 3, want + 2 * (size / 3)},
                            .row_stride = (ptrdiff_t)row};
    rp_kernels_c.i420_f32(image, colour, &out);
    for (int tier = RP_CPU_AVX2; tier <= RP_CPU_NEON; tier++) {
        if (rp_cpu_limit((enum rp_cpu_tier)tier) == (enum rp_cpu_tier)tier) {
            out = (struct rp_planes){.plane = {got, got + size / 3, got + 2 * (size / 3)},
                                     .row_stride = (ptrdiff_t)row};
            rp_kernels_of((enum rp_cpu_tier)tier)->i420_f32(image, colour, &out);
            if (memcmp(got, want, size) != 0) {
                abort();
            }
        }
    }
    rp_free(want);
    rp_free(got);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 10) {
        return 0;
    }
    struct rp_image image = {.format = (enum rp_pixel_format)(data[0] % 5),
                             .native_format = natives[data[1] % 8],
                             .width = 1 + data[2] % MAX_SIDE,
                             .height = 1 + data[3] % MAX_SIDE,
                             .colorspace = data[4] % 16,
                             .color_range = data[5] % 3};
    struct rp_target target = {
        .type = (enum rp_pixel_type)(data[6] % 3), .width = image.width, .height = image.height};
    if (data[7] % 2 != 0) {
        target.width = data[8] % (2 * MAX_SIDE);
        target.height = data[9] % (2 * MAX_SIDE);
    }
    static const float table[4096];
    target.depth_table = data[7] % 4 >= 2 ? table : NULL;
    target.row_stride = target.width * 4;
    target.plane_stride = target.row_stride * target.height;
    float *out = rp_calloc(3 * (size_t)target.plane_stride + 1, 1);
    size_t stride = ((size_t)image.width * 2 + 127) / 64 * 64;
    uint8_t *planes[3];
    for (int p = 0; p < 3; p++) {
        planes[p] = make_plane(data + 10, size - 10, stride, (size_t)image.height + 1);
        image.plane[p] = planes[p];
        image.stride[p] = (ptrdiff_t)stride;
        if (planes[p] == NULL) {
            abort();
        }
    }
    target.data = out;
    rp_scratch *scratch = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    if (out == NULL || rp_scratch_new(&scratch, &err) != RP_OK) {
        abort();
    }
    rp_status status = rp_convert(&image, &target, scratch, &err);
    if (status != RP_OK && status != RP_E_UNSUPPORTED && status != RP_E_DECODE) {
        abort();
    }
    if (image.format == RP_PIX_I420 && image.width % 2 == 0 && image.height % 2 == 0) {
        compare_tiers(&image);
    }
    rp_scratch_free(&scratch);
    rp_free(out);
    for (int p = 0; p < 3; p++) {
        rp_free(planes[p]);
    }
    return 0;
}
