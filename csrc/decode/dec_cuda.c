#include "decode/dec_cuda.h"

#include "base/memory.h"
#include "cuda/cuda_video.h"
#include "decode/dec_av.h"

#include <libavutil/error.h>
#include <libavutil/hwcontext.h>
#include <libavutil/pixdesc.h>

#include <string.h>

/* The header wants CUDA's own for two handle types; these have the same shape. */
#define CUDA_VERSION 12000
typedef void *CUcontext;
typedef void *CUstream;
#include <libavutil/hwcontext_cuda.h>

#define ROW_ALIGN 64 /* bytes: the kernel loads words of rows */
#define MAX_DELAY 16 /* pictures of H.264 that wait for their turn (A.3.1) */

/* One NVDEC decoder with a stream of its own. Its pictures are copied out of NVDEC's surfaces in
 * the order of that stream, so a surface is given back before the copy is done: NVDEC fills it
 * again in the same order.
 *
 * libavcodec's flush of H.264 makes the hwaccel anew, which costs more than a run. So runs of H.264
 * that begin with an IDR picture follow each other without a flush: it refers to nothing before it.
 * Instead of a drain the run's key picture is sent again, until the pictures before have come out.
 * What still comes of an earlier run is known by its number and dropped. */
struct cuda_decoder {
    struct rp_av_decoder *av;
    rp_cuda *device;
    rp_cuda_stream *stream;
    AVFrame *picture;
    bool offered;   /* libavcodec has tried to start the hwaccel */
    bool refused;   /* and failed, or does not have it for this stream */
    bool started;   /* it took a packet */
    bool begun;     /* the run's first packet was seen */
    bool drained;   /* for good: only a flush goes on from here */
    bool pushing;   /* no more packets come: pictures are pushed out by the key */
    int pushes;     /* left */
    size_t prefix;  /* bytes of a NAL unit's length in H.264; 0: another codec, or not known */
    int64_t number; /* of the next packet: it travels as the packet's time */
    int64_t first;  /* number of the run's first packet */
    int64_t *pts;   /* of the run's packets, ticks */
    size_t n, cap;  /* of pts */
    uint8_t *key;   /* the run's first packet, if it is IDR */
    size_t key_len, key_cap;
};

/* What an rp_frame keeps: rp_frame.on_device while it is out. */
struct device_picture {
    rp_cuda_block *block;
};

static const AVCodec *find_codec(enum rp_codec codec)
{
    switch (codec) {
    case RP_CODEC_AV1: return avcodec_find_decoder_by_name("av1"); /* decodes by hardware only */
    case RP_CODEC_H264: return avcodec_find_decoder_by_name("h264");
    case RP_CODEC_HEVC: return avcodec_find_decoder_by_name("hevc");
    case RP_CODEC_VP9: return avcodec_find_decoder_by_name("vp9");
    default: return NULL; /* MPEG-4 part 2: rare, and quick on the CPU */
    }
}

bool rp_decode_has_cuda(enum rp_codec codec)
{
    const AVCodec *found = find_codec(codec);
    for (int i = 0; found != NULL; i++) {
        const AVCodecHWConfig *config = avcodec_get_hw_config(found, i);
        if (config == NULL) {
            break;
        }
        if (config->device_type == AV_HWDEVICE_TYPE_CUDA &&
            (config->methods & AV_CODEC_HW_CONFIG_METHOD_HW_DEVICE_CTX) != 0) {
            return true;
        }
    }
    return false;
}

/* libavcodec asks this once it has read the stream's header, and again without CUDA when that
 * failed. Nothing else is taken: the CPU's decoder is another one. */
static enum AVPixelFormat get_format(AVCodecContext *context, const enum AVPixelFormat *formats)
{
    struct cuda_decoder *decoder = context->opaque;
    bool is_8bit =
        context->sw_pix_fmt == AV_PIX_FMT_YUV420P || context->sw_pix_fmt == AV_PIX_FMT_YUVJ420P;
    for (int i = 0; is_8bit && formats[i] != AV_PIX_FMT_NONE; i++) {
        if (formats[i] == AV_PIX_FMT_CUDA) {
            decoder->offered = true;
            return AV_PIX_FMT_CUDA;
        }
    }
    decoder->refused = true;
    return AV_PIX_FMT_NONE;
}

/* FFmpeg's own way to the primary context refuses one that others made with other flags (PyTorch's
 * has none), so it is given ours. */
static rp_status prepare(AVCodecContext *context, void *arg, struct rp_error *err)
{
    struct cuda_decoder *decoder = arg;
    AVBufferRef *ref = av_hwdevice_ctx_alloc(AV_HWDEVICE_TYPE_CUDA);
    if (ref == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "no memory for a decoder on the GPU");
    }
    AVHWDeviceContext *device = (AVHWDeviceContext *)(void *)ref->data;
    AVCUDADeviceContext *cuda = device->hwctx;
    cuda->cuda_ctx = rp_cuda_native_context(decoder->device);
    cuda->stream = (void *)(uintptr_t)rp_cuda_stream_handle(decoder->stream);
    int rc = av_hwdevice_ctx_init(ref);
    if (rc < 0) {
        av_buffer_unref(&ref);
        rp_status status = rp_av_failed(err, rc, "cannot use the NVIDIA driver", "FFmpeg");
        if (err != NULL && status != RP_E_NOMEM) {
            err->code = RP_E_CUDA; /* the same text: it is the driver's matter */
        }
        return status == RP_E_NOMEM ? status : RP_E_CUDA;
    }
    context->hw_device_ctx = ref;
    context->opaque = decoder;
    context->get_format = get_format;
    /* Surfaces beyond those the codec needs: libavcodec adds five, and one is held at a time. */
    context->extra_hw_frames = 0;
#ifdef AV_HWACCEL_FLAG_UNSAFE_OUTPUT
    context->hwaccel_flags |= AV_HWACCEL_FLAG_UNSAFE_OUTPUT; /* we copy: it need not */
#endif
    return RP_OK;
}

static void cuda_close(void *native)
{
    struct cuda_decoder *decoder = native;
    av_frame_free(&decoder->picture);
    if (decoder->av != NULL) {
        rp_av_close(decoder->av);
    }
    rp_cuda_stream_free(&decoder->stream);
    rp_free(decoder->pts);
    rp_free(decoder->key);
    rp_free(decoder);
}

static rp_status cuda_open(void *host, const struct rp_codec_params *params, bool with_extradata,
                           void **out, struct rp_error *err)
{
    struct cuda_decoder *decoder = rp_calloc(1, sizeof(*decoder));
    if (decoder == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "no memory for a decoder on the GPU");
    }
    decoder->device = host;
    if (params->codec == RP_CODEC_H264 && params->extradata_len >= 5 && params->extradata[0] == 1) {
        decoder->prefix = (size_t)(params->extradata[4] & 3) + 1; /* lengthSizeMinusOne of avcC */
    }
    decoder->picture = av_frame_alloc();
    rp_status status = RP_OK;
    if (decoder->picture == NULL) {
        status = rp_error_set(err, RP_E_NOMEM, "no memory for a decoder on the GPU");
    }
    if (status == RP_OK) {
        status = rp_cuda_stream_new(decoder->device, &decoder->stream, err);
    }
    if (status == RP_OK) {
        void *av = NULL;
        status = rp_av_open(find_codec(params->codec), params, with_extradata, prepare, decoder,
                            &av, err);
        decoder->av = av;
    }
    if (status != RP_OK) {
        cuda_close(decoder);
        return status;
    }
    *out = decoder;
    return RP_OK;
}

/* The next packet tells whether it takes libavcodec's flush. */
static void cuda_flush(void *native)
{
    struct cuda_decoder *decoder = native;
    decoder->begun = decoder->pushing = false;
}

/* Whether the first slice of an H.264 packet is one of an IDR picture (7.4.1: types 1 to 5). */
static bool is_idr(const struct cuda_decoder *decoder, const struct rp_packet *packet)
{
    enum { SLICE = 1, IDR_SLICE = 5 };
    for (size_t at = 0; decoder->prefix > 0 && at < packet->len;) {
        uint64_t size = 0;
        for (size_t i = 0; i < decoder->prefix && at < packet->len; i++) {
            size = size << 8 | packet->data[at++];
        }
        if (size == 0 || size > packet->len - at) {
            return false;
        }
        unsigned type = packet->data[at] & 31;
        if (type >= SLICE && type <= IDR_SLICE) {
            return type == IDR_SLICE;
        }
        at += (size_t)size;
    }
    return false;
}

static rp_status begin_run(struct cuda_decoder *decoder, const struct rp_packet *packet,
                           struct rp_error *err)
{
    bool idr = is_idr(decoder, packet);
    if (decoder->started && (!idr || decoder->drained)) {
        rp_av_flush(decoder->av);
    }
    decoder->begun = true;
    decoder->drained = decoder->pushing = false;
    decoder->first = decoder->number;
    decoder->n = decoder->key_len = 0;
    if (idr && packet->len > decoder->key_cap) {
        size_t cap = packet->len + packet->len / 2;
        uint8_t *grown = rp_realloc(decoder->key, cap, 1);
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "no memory for a packet of %zu bytes", packet->len);
        }
        decoder->key = grown;
        decoder->key_cap = cap;
    }
    if (idr) {
        memcpy(decoder->key, packet->data, packet->len);
        decoder->key_len = packet->len;
    }
    return RP_OK;
}

/* Note the packet's time under its number. */
static rp_status note_time(struct cuda_decoder *decoder, int64_t pts, struct rp_error *err)
{
    if (decoder->n == decoder->cap) {
        size_t cap = decoder->cap + decoder->cap / 2 + 64;
        int64_t *grown = rp_realloc(decoder->pts, cap, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "no memory for the times of %zu packets", cap);
        }
        decoder->pts = grown;
        decoder->cap = cap;
    }
    decoder->pts[decoder->n++] = pts;
    return RP_OK;
}

/* Send with the next number as time. */
static rp_status feed(struct cuda_decoder *decoder, struct rp_packet packet, int *rc,
                      struct rp_error *err)
{
    packet.pts = packet.dts = decoder->number;
    rp_status status = rp_av_feed(decoder->av, &packet, rc, err);
    decoder->number += status == RP_OK;
    return status;
}

/* What libavcodec's failure means: the stream was refused, the GPU is lost, or the picture cannot
 * be decoded. */
static rp_status judge(struct cuda_decoder *decoder, int rc, const char *what, struct rp_error *err)
{
    RP_TRY(rp_cuda_stream_finish(decoder->stream, err)); /* a lost GPU says so here */
    if (decoder->refused && decoder->started) {
        RP_FAIL(err, RP_E_DECODE, "the stream changes to what NVDEC does not take");
    }
    if (decoder->refused) {
        rp_status status =
            rp_error_set(err, RP_E_CUDA, "%s",
                         decoder->offered ? "FFmpeg cannot start NVDEC on this stream"
                                          : "FFmpeg has no NVDEC for this kind of stream");
        if (err != NULL) {
            err->sys = decoder->offered ? RP_NVDEC_REFUSED : RP_NVDEC_NONE;
        }
        return status;
    }
    rp_status status = rp_av_failed(err, rc, what, "NVDEC");
    if (status == RP_E_NOMEM && err != NULL) {
        err->code = RP_E_DECODE; /* "no surface left": a stream that needs more than it states */
    }
    return RP_E_DECODE;
}

static rp_status drain(struct cuda_decoder *decoder, struct rp_error *err)
{
    if (decoder->key_len > 0) {
        int delay = decoder->av->context->has_b_frames; /* pictures that wait for their turn */
        decoder->pushing = true;
        decoder->pushes = delay < 0 ? 0 : delay > MAX_DELAY ? MAX_DELAY : delay;
        return RP_OK;
    }
    int rc = 0;
    decoder->drained = true;
    rp_status status = rp_av_feed(decoder->av, NULL, &rc, err);
    return status == RP_OK && rc < 0 ? judge(decoder, rc, "cannot be drained", err) : status;
}

static rp_status cuda_send(void *native, const struct rp_packet *packet, struct rp_error *err)
{
    struct cuda_decoder *decoder = native;
    if (packet == NULL) {
        return drain(decoder, err);
    }
    if (!decoder->begun) {
        RP_TRY(begin_run(decoder, packet, err));
    }
    int rc = 0;
    RP_TRY(note_time(decoder, packet->pts, err));
    rp_status status = feed(decoder, *packet, &rc, err);
    if (status != RP_OK) {
        decoder->n--; /* not taken: it comes again */
    }
    else if (rc < 0 || decoder->refused) { /* libavcodec is silent about what nobody wants */
        return judge(decoder, rc, "refuses a packet", err);
    }
    decoder->started = decoder->started || status == RP_OK;
    return status;
}

/* Push one picture out by the key. RP_END: none is left inside. */
static rp_status push(struct cuda_decoder *decoder, struct rp_error *err)
{
    if (decoder->pushes < 1) {
        return RP_END;
    }
    int rc = 0;
    struct rp_packet key = {
        .data = decoder->key, .len = decoder->key_len, .key = true, .wanted = true};
    decoder->pushes--;
    RP_TRY(feed(decoder, key, &rc, err)); /* RP_AGAIN cannot be: all pictures were taken */
    return rc < 0 || decoder->refused ? judge(decoder, rc, "cannot be drained", err) : RP_OK;
}

/* Copy the mapped surface to a block of ours. */
static rp_status copy_out(struct cuda_decoder *decoder, rp_frame *frame, struct rp_error *err)
{
    const AVFrame *picture = decoder->picture;
    struct device_picture *keep = frame->picture;
    size_t width = (size_t)picture->width, height = (size_t)picture->height;
    size_t stride = (width + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
    size_t luma = stride * height, pitch = (size_t)picture->linesize[0];
    RP_TRY(
        rp_cuda_take(decoder->device, RP_CUDA_ON_DEVICE, luma + luma / 2, true, &keep->block, err));
    RP_TRY(rp_cuda_copy_rows(decoder->stream, (uintptr_t)picture->data[0], pitch, keep->block, 0,
                             stride, width, height, err));
    rp_status status = rp_cuda_copy_rows(decoder->stream, (uintptr_t)picture->data[1],
                                         (size_t)picture->linesize[1], keep->block, luma, stride,
                                         width, height / 2, err);
    rp_cuda_mark(keep->block, decoder->stream); /* also behind a first copy whose second failed */
    uintptr_t at = (uintptr_t)keep->block->address;
    frame->on_device = keep->block;
    frame->bytes = keep->block->len;
    frame->image.plane[0] = (const uint8_t *)at;
    frame->image.plane[1] = (const uint8_t *)(at + luma);
    frame->image.stride[0] = frame->image.stride[1] = (ptrdiff_t)stride;
    return status;
}

static rp_status take_picture(struct cuda_decoder *decoder, rp_frame *frame, struct rp_error *err)
{
    const AVFrame *picture = decoder->picture;
    RP_TRY(rp_av_accept(picture, "NVDEC", frame, err));
    frame->pts = decoder->pts[picture->pts - decoder->first];
    const AVHWFramesContext *frames = NULL;
    if (picture->hw_frames_ctx != NULL) {
        frames = (const AVHWFramesContext *)(const void *)picture->hw_frames_ctx->data;
    }
    if (picture->format != AV_PIX_FMT_CUDA || frames == NULL ||
        frames->sw_format != AV_PIX_FMT_NV12 || picture->linesize[0] < picture->width ||
        picture->linesize[1] < picture->width) {
        RP_FAIL(err, RP_E_DECODE, "NVDEC returned a picture that is no NV12");
    }
    if (picture->crop_left != 0 || picture->crop_top != 0 || picture->width % 2 != 0 ||
        picture->height % 2 != 0) {
        RP_FAIL(err, RP_E_DECODE,
                "NVDEC returned a picture of an odd size, or cut at its top left");
    }
    bool full = decoder->av->context->sw_pix_fmt == AV_PIX_FMT_YUVJ420P;
    frame->image.format = full ? RP_PIX_NV12J : RP_PIX_NV12;
    frame->image.native_format = AV_PIX_FMT_NV12;
    return copy_out(decoder, frame, err);
}

/* Whether the picture that libavcodec gave is one of this run, and not of the key that pushed
 * others out. One without a time is told by its own check. */
static bool is_of_run(const struct cuda_decoder *decoder)
{
    int64_t number = decoder->picture->pts;
    return number == AV_NOPTS_VALUE ||
           (number >= decoder->first && (size_t)(number - decoder->first) < decoder->n);
}

static rp_status cuda_receive(void *native, rp_frame *frame, struct rp_error *err)
{
    struct cuda_decoder *decoder = native;
    for (;;) {
        int rc = avcodec_receive_frame(decoder->av->context, decoder->picture);
        if (rc == AVERROR(EAGAIN)) {
            if (!decoder->pushing) {
                return RP_AGAIN;
            }
            RP_TRY(push(decoder, err));
            continue;
        }
        if (rc == AVERROR_EOF) {
            return RP_END;
        }
        if (rc < 0) {
            return judge(decoder, rc, "cannot decode", err);
        }
        bool ours = is_of_run(decoder);
        rp_status status = ours ? take_picture(decoder, frame, err) : RP_OK;
        av_frame_unref(decoder->picture);
        if (ours || status != RP_OK) {
            return status;
        }
    }
}

static void *create_picture(void)
{
    return rp_calloc(1, sizeof(struct device_picture));
}

/* The block is free behind what was marked on it: the copy, or its last user's work. */
static void reset_picture(void *picture)
{
    struct device_picture *keep = picture;
    rp_cuda_give(&keep->block, NULL);
}

static void destroy_picture(void *picture)
{
    rp_free(picture);
}

const struct rp_decode_backend rp_decode_cuda = {
    .pictures = {create_picture, reset_picture, destroy_picture},
    .open = cuda_open,
    .send = cuda_send,
    .receive = cuda_receive,
    .flush = cuda_flush,
    .close = cuda_close,
};
