#include "convert/convert_priv.h"

#include "base/thread.h"

#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

/* Formats that the kernels do not cover, by the calls that torchcodec makes: flags 0 and the
 * format's own range when the width is a multiple of 32; else the settings of libavfilter's `scale`
 * (bicubic, the frame's range, centred vertical chroma for yuv420p). */

#define PACKED_ALIGN 64

static enum AVPixelFormat source_format(const struct rp_image *image)
{
    switch (image->format) {
    case RP_PIX_I420: return AV_PIX_FMT_YUV420P;
    case RP_PIX_I420J: return AV_PIX_FMT_YUVJ420P;
    case RP_PIX_OTHER: return (enum AVPixelFormat)image->native_format;
    default: return AV_PIX_FMT_NONE;
    }
}

void rp_sws_slot_free(struct rp_sws_slot *slot)
{
    if (slot->context != NULL) {
        rp_gate_enter();
        sws_freeContext(slot->context);
        rp_gate_leave();
    }
    *slot = (struct rp_sws_slot){0};
}

/* Matrix and range; fails for sources that have none (RGB), where there is nothing to set. */
static int set_colour(struct SwsContext *context, const struct rp_image *image)
{
    int *inverse;
    int *table;
    int from, to, brightness, contrast, saturation;
    int rc = sws_getColorspaceDetails(context, &inverse, &from, &table, &to, &brightness, &contrast,
                                      &saturation);
    if (rc < 0) {
        return rc;
    }
    int colorspace = image->colorspace;
    if (image->width % 32 != 0) {
        if (image->color_range != 0) {
            from = image->color_range == 2;
        }
        colorspace = colorspace == 0 ? SWS_CS_DEFAULT : colorspace;
    }
    return sws_setColorspaceDetails(context, sws_getCoefficients(colorspace), from, table, to,
                                    brightness, contrast, saturation);
}

/* A context for the picture, or NULL. Runs inside the gate. */
static struct SwsContext *make_context(const struct rp_image *image, enum AVPixelFormat format)
{
    bool filtered = image->width % 32 != 0;
    struct SwsContext *context = sws_alloc_context();
    if (context == NULL) {
        return NULL;
    }
    int rc = av_opt_set_int(context, "srcw", image->width, 0);
    rc |= av_opt_set_int(context, "srch", image->height, 0);
    rc |= av_opt_set_int(context, "dstw", image->width, 0);
    rc |= av_opt_set_int(context, "dsth", image->height, 0);
    rc |= av_opt_set_int(context, "src_format", format, 0);
    rc |= av_opt_set_int(context, "dst_format", AV_PIX_FMT_RGB24, 0);
    rc |= av_opt_set_int(context, "sws_flags", filtered ? SWS_BICUBIC : 0, 0);
    if (filtered && format == AV_PIX_FMT_YUV420P) {
        rc |= av_opt_set_int(context, "src_v_chr_pos", 128, 0);
    }
    const AVPixFmtDescriptor *kind = av_pix_fmt_desc_get(format);
    bool is_rgb = (kind->flags & AV_PIX_FMT_FLAG_RGB) != 0;
    if (rc != 0 || sws_init_context(context, NULL, NULL) < 0 ||
        (!is_rgb && set_colour(context, image) < 0)) {
        sws_freeContext(context);
        return NULL;
    }
    return context;
}

/* The context for the picture, from the cache or made in its least recently used slot. */
static rp_status get_context(const struct rp_image *image, enum AVPixelFormat format,
                             rp_scratch *scratch, struct SwsContext **out, struct rp_error *err)
{
    struct rp_sws_slot *oldest = &scratch->sws[0];
    for (int i = 0; i < RP_SWS_SLOTS; i++) {
        struct rp_sws_slot *slot = &scratch->sws[i];
        if (slot->context != NULL && slot->width == image->width && slot->height == image->height &&
            slot->format == (int)format && slot->colorspace == image->colorspace &&
            slot->color_range == image->color_range) {
            slot->used = ++scratch->clock;
            *out = slot->context;
            return RP_OK;
        }
        oldest = slot->used < oldest->used ? slot : oldest;
    }
    rp_sws_slot_free(oldest);
    rp_gate_enter();
    struct SwsContext *context = make_context(image, format);
    rp_gate_leave();
    if (context == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "libswscale gives no converter for %dx%d pixels of format %d",
                image->width, image->height, (int)format);
    }
    *oldest = (struct rp_sws_slot){.context = context,
                                   .width = image->width,
                                   .height = image->height,
                                   .format = (int)format,
                                   .colorspace = image->colorspace,
                                   .color_range = image->color_range,
                                   .used = ++scratch->clock};
    *out = context;
    return RP_OK;
}

static void split_row(const uint8_t *in, uint8_t *r, uint8_t *g, uint8_t *b, int n)
{
    for (int x = 0; x < n; x++) {
        r[x] = in[3 * x];
        g[x] = in[3 * x + 1];
        b[x] = in[3 * x + 2];
    }
}

rp_status rp_sws_planes(const struct rp_image *image, const struct rp_planes *out,
                        rp_scratch *scratch, struct rp_error *err)
{
    enum AVPixelFormat format = source_format(image);
    if (format == AV_PIX_FMT_NONE || sws_isSupportedInput(format) == 0) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "pixel format %d (%d) cannot be converted to RGB",
                (int)image->format, image->native_format);
    }
    struct SwsContext *context = NULL;
    RP_TRY(get_context(image, format, scratch, &context, err));

    /* Wider than the picture: libswscale writes whole vectors. */
    int stride = (image->width * 3 + 2 * PACKED_ALIGN - 1) / PACKED_ALIGN * PACKED_ALIGN;
    RP_TRY(rp_grown_reserve(&scratch->packed, (size_t)stride * (size_t)image->height + PACKED_ALIGN,
                            err));
    int strides[4];
    for (int i = 0; i < 4; i++) {
        strides[i] = (int)image->stride[i];
    }
    uint8_t *packed[4] = {scratch->packed.data, NULL, NULL, NULL};
    const int packed_strides[4] = {stride, 0, 0, 0};
    rp_gate_enter();
    int rows = sws_scale(context, image->plane, strides, 0, image->height, packed, packed_strides);
    rp_gate_leave();
    if (rows != image->height) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "libswscale converted %d of %d rows of pixel format %d",
                rows, image->height, (int)format);
    }
    for (int y = 0; y < image->height; y++) {
        ptrdiff_t at = y * out->row_stride;
        split_row(packed[0] + (ptrdiff_t)y * stride, (uint8_t *)out->plane[0] + at,
                  (uint8_t *)out->plane[1] + at, (uint8_t *)out->plane[2] + at, image->width);
    }
    return RP_OK;
}
