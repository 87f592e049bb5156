#include "decode/dec_av.h"

#include "base/memory.h"

#include <libavutil/buffer.h>
#include <libavutil/error.h>
#include <libavutil/frame.h>
#include <libavutil/imgutils.h>
#include <libavutil/mem.h>
#include <libavutil/pixdesc.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Packet copies come from pools of buffers of 2^12 .. 2^22 bytes; what is larger is rare and is not
 * kept. */
enum { SMALLEST_CLASS = 12, LARGEST_CLASS = 22, CLASSES = LARGEST_CLASS - SMALLEST_CLASS + 1 };

_Static_assert(CLASSES == RP_AV_POOLS, "one pool for each");

static const char *const DECODERS[][2] = {
    [RP_CODEC_AV1] = {"libdav1d", "libaom-av1"}, /* "av1" decodes by hardware only */
    [RP_CODEC_H264] = {"h264", NULL},
    [RP_CODEC_HEVC] = {"hevc", NULL},
    [RP_CODEC_VP9] = {"vp9", NULL},
    [RP_CODEC_MPEG4] = {"mpeg4", NULL},
};

static const AVCodec *find_decoder(enum rp_codec codec)
{
    if (codec < RP_CODEC_AV1 || codec > RP_CODEC_MPEG4) {
        return NULL;
    }
    const AVCodec *found = avcodec_find_decoder_by_name(DECODERS[codec][0]);
    if (found == NULL && DECODERS[codec][1] != NULL) {
        found = avcodec_find_decoder_by_name(DECODERS[codec][1]);
    }
    return found;
}

bool rp_decode_supports(enum rp_codec codec)
{
    return find_decoder(codec) != NULL;
}

/* The decoder that reads do not use, where there are two. */
static const AVCodec *find_other(enum rp_codec codec)
{
    const AVCodec *usual = find_decoder(codec);
    const char *name = usual == NULL ? NULL : DECODERS[codec][1];
    const AVCodec *other = name == NULL ? NULL : avcodec_find_decoder_by_name(name);
    return other == usual ? NULL : other;
}

bool rp_decode_has_strict(enum rp_codec codec)
{
    return find_other(codec) != NULL;
}

void rp_decode_describe(char *text, size_t cap)
{
    unsigned codec = avcodec_version();
    unsigned util = avutil_version();
    int n = snprintf(text, cap, "libavcodec %u.%u.%u, libavutil %u.%u.%u", AV_VERSION_MAJOR(codec),
                     AV_VERSION_MINOR(codec), AV_VERSION_MICRO(codec), AV_VERSION_MAJOR(util),
                     AV_VERSION_MINOR(util), AV_VERSION_MICRO(util));
    for (int c = RP_CODEC_AV1; c <= RP_CODEC_MPEG4; c++) {
        for (int i = 0; i < 2 && DECODERS[c][i] != NULL; i++) {
            if (n < 0 || (size_t)n >= cap) {
                return; /* cut, as the caller's buffer is */
            }
            bool there = avcodec_find_decoder_by_name(DECODERS[c][i]) != NULL;
            int more = snprintf(text + n, cap - (size_t)n, ", %s %s", DECODERS[c][i],
                                there ? "yes" : "no");
            n = more < 0 ? -1 : n + more;
        }
    }
}

rp_status rp_av_failed(struct rp_error *err, int code, const char *what, const char *decoder)
{
    char reason[AV_ERROR_MAX_STRING_SIZE] = "";
    (void)av_strerror(code, reason, sizeof(reason)); /* fills in a text in any case */
    rp_status status = code == AVERROR(ENOMEM) ? RP_E_NOMEM : RP_E_DECODE;
    bool first = err != NULL && err->code == RP_OK;
    (void)rp_error_set(err, status, "%s %s: %s", decoder, what, reason); /* returned below */
    if (first) {
        err->sys = code;
    }
    return status;
}

void rp_av_close(void *native)
{
    struct rp_av_decoder *decoder = native;
    avcodec_free_context(&decoder->context);
    av_packet_free(&decoder->packet);
    for (int i = 0; i < CLASSES; i++) {
        av_buffer_pool_uninit(&decoder->pools[i]);
    }
    rp_free(decoder);
}

static void set_options(AVCodecContext *context, const struct rp_codec_params *params)
{
    context->thread_count = 1;
    context->err_recognition = AV_EF_CRCCHECK | AV_EF_BITSTREAM | AV_EF_BUFFER | AV_EF_EXPLODE;
    context->flags &= ~AV_CODEC_FLAG_OUTPUT_CORRUPT;
    /* Above every level that somebody may ask for, below 256: only the low byte counts. */
    context->log_level_offset = 128;
    if (params->codec == RP_CODEC_AV1) {
        context->flags |= AV_CODEC_FLAG_LOW_DELAY;
    }
    context->width = params->width;
    context->height = params->height;
    /* A damaged header may ask for gigabytes; honest ones differ from the sample entry by padding.
     */
    int64_t pixels = 4 * (int64_t)params->width * params->height;
    context->max_pixels = pixels > (1 << 20) ? pixels : (1 << 20);
    if (params->has_colour) {
        context->color_primaries = (enum AVColorPrimaries)params->primaries;
        context->color_trc = (enum AVColorTransferCharacteristic)params->transfer;
        context->colorspace = (enum AVColorSpace)params->matrix;
        if (params->full_range >= 0) {
            context->color_range = params->full_range ? AVCOL_RANGE_JPEG : AVCOL_RANGE_MPEG;
        }
    }
}

static rp_status set_extradata(AVCodecContext *context, const struct rp_codec_params *params,
                               struct rp_error *err)
{
    if (params->extradata_len == 0 || params->codec == RP_CODEC_VP9) {
        return RP_OK; /* vpcC holds nothing that a VP9 decoder reads */
    }
    if (params->extradata_len > INT_MAX - AV_INPUT_BUFFER_PADDING_SIZE) {
        RP_FAIL(err, RP_E_DECODE, "codec parameters of %zu bytes", params->extradata_len);
    }
    context->extradata = av_mallocz(params->extradata_len + AV_INPUT_BUFFER_PADDING_SIZE);
    if (context->extradata == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "no memory for codec parameters");
    }
    memcpy(context->extradata, params->extradata, params->extradata_len);
    context->extradata_size = (int)params->extradata_len;
    return RP_OK;
}

rp_status rp_av_open(const AVCodec *codec, const struct rp_codec_params *params,
                     bool with_extradata, rp_av_prepare prepare, void *arg, void **out,
                     struct rp_error *err)
{
    if (codec == NULL) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "this FFmpeg has no decoder for %s (libavcodec %u.%u)",
                rp_codec_name(params->codec), AV_VERSION_MAJOR(avcodec_version()),
                AV_VERSION_MINOR(avcodec_version()));
    }
    struct rp_av_decoder *decoder = rp_calloc(1, sizeof(*decoder));
    if (decoder == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "no memory for a decoder");
    }
    AVDictionary *options = NULL;
    rp_status status = RP_OK;
    decoder->context = avcodec_alloc_context3(codec);
    decoder->packet = av_packet_alloc();
    if (decoder->context == NULL || decoder->packet == NULL) {
        status = rp_error_set(err, RP_E_NOMEM, "no memory for a decoder");
        goto fail;
    }
    set_options(decoder->context, params);
    if (with_extradata) {
        status = set_extradata(decoder->context, params, err);
    }
    if (status == RP_OK && prepare != NULL) {
        status = prepare(decoder->context, arg, err);
    }
    if (status != RP_OK) {
        goto fail;
    }
    int rc = av_dict_set(&options, "alllayers", "0", 0); /* decoders without it leave it there */
    rc = rc < 0 ? rc : avcodec_open2(decoder->context, codec, &options);
    av_dict_free(&options);
    if (rc < 0) {
        status = rp_av_failed(err, rc, "refuses the codec parameters", codec->name);
        goto fail;
    }
    *out = decoder;
    return RP_OK;

fail:
    rp_av_close(decoder);
    return status;
}

static rp_status av_open(void *host, const struct rp_codec_params *params, bool with_extradata,
                         void **out, struct rp_error *err)
{
    (void)host; /* the CPU is always there */
    return rp_av_open(find_decoder(params->codec), params, with_extradata, NULL, NULL, out, err);
}

static rp_status av_open_strict(void *host, const struct rp_codec_params *params,
                                bool with_extradata, void **out, struct rp_error *err)
{
    const AVCodec *other = find_other(params->codec);
    (void)host; /* the CPU is always there */
    return rp_av_open(other != NULL ? other : find_decoder(params->codec), params, with_extradata,
                      NULL, NULL, out, err);
}

void rp_av_flush(void *native)
{
    struct rp_av_decoder *decoder = native;
    avcodec_flush_buffers(decoder->context);
}

/* A recycled buffer of at least `bytes`. NULL: memory is short. */
static AVBufferRef *take_buffer(struct rp_av_decoder *decoder, size_t bytes)
{
    unsigned index = 0;
    while (index < CLASSES && ((size_t)1 << (SMALLEST_CLASS + index)) < bytes) {
        index++;
    }
    if (index == CLASSES) {
        return av_buffer_alloc(bytes);
    }
    if (decoder->pools[index] == NULL) {
        decoder->pools[index] =
            av_buffer_pool_init((size_t)1 << (SMALLEST_CLASS + index), av_buffer_alloc);
        if (decoder->pools[index] == NULL) {
            return NULL;
        }
    }
    return av_buffer_pool_get(decoder->pools[index]);
}

/* The copy is what lets a decoder keep a reference to the bytes and read past their end. */
static rp_status fill_packet(struct rp_av_decoder *decoder, const struct rp_packet *packet,
                             struct rp_error *err)
{
    if (packet->len == 0 || packet->len > INT_MAX - AV_INPUT_BUFFER_PADDING_SIZE) {
        RP_FAIL(err, RP_E_DECODE, "a packet of %zu bytes", packet->len);
    }
    AVBufferRef *buffer = take_buffer(decoder, packet->len + AV_INPUT_BUFFER_PADDING_SIZE);
    if (buffer == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "no memory for a packet of %zu bytes", packet->len);
    }
    memcpy(buffer->data, packet->data, packet->len);
    memset(buffer->data + packet->len, 0, AV_INPUT_BUFFER_PADDING_SIZE);
    AVPacket *to = decoder->packet;
    to->buf = buffer;
    to->data = buffer->data;
    to->size = (int)packet->len;
    to->pts = packet->pts;
    to->dts = packet->dts;
    /* Not AV_PKT_FLAG_DISCARD for what is not wanted: libavcodec would drop a concealed reference
     * before its error flags are seen, and wrong pictures would follow as if right. */
    to->flags = packet->key ? AV_PKT_FLAG_KEY : 0;
    return RP_OK;
}

rp_status rp_av_feed(struct rp_av_decoder *decoder, const struct rp_packet *packet, int *rc,
                     struct rp_error *err)
{
    AVCodecContext *context = decoder->context;
    if (packet == NULL) {
        *rc = avcodec_send_packet(context, NULL);
        *rc = *rc == AVERROR_EOF ? 0 : *rc;
    }
    else {
        RP_TRY(fill_packet(decoder, packet, err));
        context->skip_frame = packet->wanted ? AVDISCARD_DEFAULT : AVDISCARD_NONREF;
        *rc = avcodec_send_packet(context, decoder->packet);
        av_packet_unref(decoder->packet);
    }
    return *rc == AVERROR(EAGAIN) ? RP_AGAIN : RP_OK;
}

static rp_status av_send(void *native, const struct rp_packet *packet, struct rp_error *err)
{
    struct rp_av_decoder *decoder = native;
    int rc = 0;
    rp_status status = rp_av_feed(decoder, packet, &rc, err);
    if (status == RP_OK && rc < 0) {
        return rp_av_failed(err, rc, packet == NULL ? "cannot be drained" : "refuses a packet",
                            decoder->context->codec->name);
    }
    return status;
}

static enum rp_pixel_format pixel_format(int format)
{
    switch (format) {
    case AV_PIX_FMT_YUV420P: return RP_PIX_I420;
    case AV_PIX_FMT_YUVJ420P: return RP_PIX_I420J;
    case AV_PIX_FMT_GRAY12LE: return RP_PIX_GRAY12;
    case AV_PIX_FMT_NV12: return RP_PIX_NV12;
    default: return RP_PIX_OTHER;
    }
}

static void describe_plane(const AVFrame *picture, int plane, rp_frame *frame)
{
    const AVPixFmtDescriptor *format = av_pix_fmt_desc_get((enum AVPixelFormat)picture->format);
    frame->image.plane[plane] = picture->data[plane];
    frame->image.stride[plane] = picture->linesize[plane];
    frame->rows[plane] = frame->row_bytes[plane] = 0;
    if (picture->data[plane] == NULL || format == NULL) {
        return;
    }
    int shift = plane == 1 || plane == 2 ? format->log2_chroma_h : 0;
    int64_t stride = picture->linesize[plane] < 0 ? -(int64_t)picture->linesize[plane]
                                                  : picture->linesize[plane];
    int row = av_image_get_linesize((enum AVPixelFormat)picture->format, picture->width, plane);
    frame->rows[plane] = (size_t)AV_CEIL_RSHIFT(picture->height, shift);
    frame->row_bytes[plane] = row > 0 ? (size_t)row : 0;
    frame->bytes += frame->rows[plane] * (size_t)stride;
}

rp_status rp_av_accept(const AVFrame *picture, const char *name, rp_frame *frame,
                       struct rp_error *err)
{
    if ((picture->flags & AV_FRAME_FLAG_CORRUPT) != 0 || picture->decode_error_flags != 0) {
        RP_FAIL(err, RP_E_DECODE, "%s returned a corrupt picture (flags %d, errors %d)", name,
                picture->flags, picture->decode_error_flags);
    }
    if (picture->pts == AV_NOPTS_VALUE) {
        RP_FAIL(err, RP_E_DECODE, "%s returned a picture without a time", name);
    }
    if (picture->width < 1 || picture->height < 1 || picture->data[0] == NULL) {
        RP_FAIL(err, RP_E_DECODE, "%s returned an empty picture", name);
    }
    frame->pts = picture->pts;
    frame->bytes = 0;
    frame->image = (struct rp_image){.format = pixel_format(picture->format),
                                     .native_format = picture->format,
                                     .width = picture->width,
                                     .height = picture->height,
                                     .colorspace = picture->colorspace,
                                     .color_range = picture->color_range};
    return RP_OK;
}

static rp_status av_receive(void *native, rp_frame *frame, struct rp_error *err)
{
    struct rp_av_decoder *decoder = native;
    AVFrame *picture = frame->picture;
    const char *name = decoder->context->codec->name;
    int rc = avcodec_receive_frame(decoder->context, picture);
    if (rc == AVERROR(EAGAIN)) {
        return RP_AGAIN;
    }
    if (rc == AVERROR_EOF) {
        return RP_END;
    }
    if (rc < 0) {
        return rp_av_failed(err, rc, "cannot decode", name);
    }
    RP_TRY(rp_av_accept(picture, name, frame, err));
    for (int i = 0; i < 4; i++) {
        describe_plane(picture, i, frame);
    }
    return RP_OK;
}

static void *create_picture(void)
{
    return av_frame_alloc();
}

static void reset_picture(void *picture)
{
    av_frame_unref(picture);
}

static void destroy_picture(void *picture)
{
    AVFrame *frame = picture;
    av_frame_free(&frame);
}

const struct rp_decode_backend rp_decode_av = {
    .pictures = {create_picture, reset_picture, destroy_picture},
    .open = av_open,
    .send = av_send,
    .receive = av_receive,
    .flush = rp_av_flush,
    .close = rp_av_close,
};

const struct rp_decode_backend rp_decode_av_strict = {
    .pictures = {create_picture, reset_picture, destroy_picture},
    .open = av_open_strict,
    .send = av_send,
    .receive = av_receive,
    .flush = rp_av_flush,
    .close = rp_av_close,
};
