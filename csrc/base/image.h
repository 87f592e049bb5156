/* A decoded picture as plain data: planes, strides, format, colour tags. Owns nothing. */
#ifndef RP_BASE_IMAGE_H
#define RP_BASE_IMAGE_H

#include <stddef.h>
#include <stdint.h>

enum rp_pixel_format {
    RP_PIX_OTHER = 0,  /* convert_sws.c, by `native_format` */
    RP_PIX_I420 = 1,   /* planar YUV 4:2:0, 8 bit (yuv420p) */
    RP_PIX_I420J = 2,  /* the same, decoder says full range by format (yuvj420p) */
    RP_PIX_GRAY12 = 3, /* one plane of uint16 codes 0..4095 (gray12le): depth */
    RP_PIX_NV12 = 4,   /* Y plane and interleaved UV (NVDEC) */
    RP_PIX_NV12J = 5   /* the same of a stream that a CPU decodes to yuvj420p */
};

struct rp_image {
    enum rp_pixel_format format;
    int native_format; /* the decoder library's own number (AVPixelFormat), for the fallback */
    int width, height; /* pixels */
    int colorspace;    /* AVColorSpace number: 1 = BT.709, 2 = unspecified, 5/6 = BT.601 ... */
    int color_range;   /* AVColorRange number: 0 unspecified, 1 limited, 2 full */
    const uint8_t *plane[4];
    ptrdiff_t stride[4]; /* bytes */
};

#endif
