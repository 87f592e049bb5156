#include "convert/convert_priv.h"

#include <string.h>

#define CODE_MAX 4095

/* The bitwise or of a row exceeds 4095 exactly when one of its codes does. */
static unsigned row_bits(const uint16_t *codes, int n)
{
    unsigned bits = 0;
    for (int x = 0; x < n; x++) {
        bits |= codes[x];
    }
    return bits;
}

rp_status rp_depth(const struct rp_image *image, const struct rp_target *target,
                   struct rp_error *err)
{
    if (image->width != target->width || image->height != target->height) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "depth of %dx%d cannot be resized to %dx%d", image->width,
                image->height, target->width, target->height);
    }
    bool codes_out = target->type == RP_PIXEL_U16 && target->depth_table == NULL;
    if (!codes_out && (target->type != RP_PIXEL_F32 || target->depth_table == NULL)) {
        RP_FAIL(err, RP_E_UNSUPPORTED,
                "a depth picture converts to uint16 codes or, by a table, to float32");
    }
    for (int y = 0; y < image->height; y++) {
        const uint16_t *in =
            (const uint16_t *)(const void *)(image->plane[0] + y * image->stride[0]);
        void *out = (char *)target->data + y * target->row_stride;
        if (row_bits(in, image->width) > CODE_MAX) {
            RP_FAIL(err, RP_E_DECODE, "row %d of a 12-bit depth picture holds a code above %d", y,
                    CODE_MAX);
        }
        if (codes_out) {
            memcpy(out, in, (size_t)image->width * sizeof(*in));
        }
        else {
            float *values = out;
            for (int x = 0; x < image->width; x++) {
                values[x] = target->depth_table[in[x]];
            }
        }
    }
    return RP_OK;
}
