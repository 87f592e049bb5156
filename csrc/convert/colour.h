/* The integer coefficients of YUV -> RGB, by matrix and range (docs/pixels.md). Constants only. */
#ifndef RP_CONVERT_COLOUR_H
#define RP_CONVERT_COLOUR_H

#include "base/image.h"

#include <stdbool.h>
#include <stdint.h>

/* y' = mulhi(8Y - yoff, yc), R = y' + mulhi(8V - 1024, vr) and so on, with
 * mulhi(a, b) = (a * b) >> 16. */
struct rp_colour {
    int16_t yc, yoff;
    int16_t vr, ub, vg, ug;
};

/* Whether the picture holds full-range values. With a width that is a multiple of 32 only the
 * decoder's format says so (AV1's color_range is ignored), else its color_range tag does, and
 * without one its format: what torchcodec does, value for value.
 * Owner: image is borrowed. Thread: any. Blocks: never. */
static inline bool rp_colour_is_full(const struct rp_image *image)
{
    if (image->width % 32 == 0 || image->color_range == 0) {
        return image->format == RP_PIX_I420J || image->format == RP_PIX_NV12J;
    }
    return image->color_range == 2;
}

/* The coefficients for an AVColorSpace number. Owner: constant. Thread: any. Blocks: never. */
static inline const struct rp_colour *rp_colour_of(int colorspace, bool full)
{
    static const struct rp_colour table[5][2] = {
        /* BT.601 */
        {{9539, 128, 13075, 16525, -6660, -3209}, {8192, 0, 11485, 14516, -5850, -2819}},
        /* BT.709 */
        {{9539, 128, 14686, 17305, -4366, -1747}, {8192, 0, 12901, 15201, -3835, -1534}},
        /* FCC */
        {{9539, 128, 13056, 16600, -6639, -3095}, {8192, 0, 11469, 14582, -5831, -2719}},
        /* SMPTE 240M */
        {{9539, 128, 14697, 17029, -4445, -2113}, {8192, 0, 12911, 14959, -3904, -1856}},
        /* BT.2020 */
        {{9539, 128, 13752, 17545, -5328, -1535}, {8192, 0, 12080, 15412, -4680, -1348}},
    };
    /* Numbers beyond those named are BT.601, as in libswscale. */
    int row = 0;
    switch (colorspace) {
    case 0: row = 1; break;
    case 1: row = 1; break;
    case 4: row = 2; break;
    case 7: row = 3; break;
    case 9: row = 4; break;
    case 10: row = 4; break;
    default: break;
    }
    return &table[row][full ? 1 : 0];
}

#endif
