/* For decode's tests: a clip in memory and its right pictures, by a plain sequential decode. */
#ifndef RP_TESTS_DECODE_ORACLE_H
#define RP_TESTS_DECODE_ORACLE_H

#include "decode/decode.h"
#include "demux/demux.h"
#include "harness.h"

#include <libavcodec/avcodec.h>
#include <libavutil/imgutils.h>

struct clip {
    char name[256];
    uint8_t *file;
    size_t len;
    rp_index *index;
    int64_t n;        /* samples */
    uint64_t *hashes; /* of the picture of each sample, decode order; 0: none came */
};

static uint64_t hash_planes(const uint8_t *const *planes, const int *strides, int format, int width,
                            int height)
{
    int size = av_image_get_buffer_size(format, width, height, 1);
    uint8_t *flat = malloc((size_t)size);
    uint64_t hash = 14695981039346656037u;
    if (flat != NULL &&
        av_image_copy_to_buffer(flat, size, planes, strides, format, width, height, 1) == size) {
        for (int i = 0; i < size; i += 8) {
            uint64_t word = 0;
            memcpy(&word, flat + i, (size_t)(size - i < 8 ? size - i : 8));
            hash = (hash ^ word) * 1099511628211u;
            hash ^= hash >> 29;
        }
    }
    free(flat);
    return hash;
}

static int64_t sample_of_pts(const struct clip *clip, int64_t pts)
{
    for (int64_t i = 0; i < clip->n; i++) {
        struct rp_sample sample;
        rp_index_sample(clip->index, i, &sample);
        if (sample.pts == pts) {
            return i;
        }
    }
    return -1;
}

static void take_clip_pictures(struct clip *clip, AVCodecContext *context, AVFrame *picture)
{
    while (avcodec_receive_frame(context, picture) >= 0) {
        int64_t i = sample_of_pts(clip, picture->pts);
        if (i >= 0) {
            clip->hashes[i] = hash_planes((const uint8_t *const *)picture->data, picture->linesize,
                                          picture->format, picture->width, picture->height);
        }
    }
}

/* Decode all packets in order with defaults. */
static void decode_sequentially(struct clip *clip)
{
    static const char *const names[] = {"", "libdav1d", "h264", "hevc", "vp9", "mpeg4"};
    const struct rp_codec_params *params = rp_index_codec(clip->index);
    const AVCodec *codec = avcodec_find_decoder_by_name(names[params->codec]);
    AVCodecContext *context = avcodec_alloc_context3(codec);
    AVPacket *packet = av_packet_alloc();
    AVFrame *picture = av_frame_alloc();
    context->log_level_offset = 128;
    context->extradata = av_mallocz(params->extradata_len + AV_INPUT_BUFFER_PADDING_SIZE);
    memcpy(context->extradata, params->extradata, params->extradata_len);
    context->extradata_size = (int)params->extradata_len;
    if (avcodec_open2(context, codec, NULL) == 0) {
        for (int64_t i = 0; i < clip->n; i++) {
            struct rp_sample sample;
            rp_index_sample(clip->index, i, &sample);
            if (av_new_packet(packet, (int)sample.size) == 0) {
                memcpy(packet->data, clip->file + sample.offset, sample.size);
                packet->pts = sample.pts;
                packet->dts = sample.dts;
                (void)avcodec_send_packet(context, packet); /* a missing picture has hash 0 */
                av_packet_unref(packet);
            }
            take_clip_pictures(clip, context, picture);
        }
        (void)avcodec_send_packet(context, NULL); /* the drain cannot fail */
        take_clip_pictures(clip, context, picture);
    }
    av_frame_free(&picture);
    av_packet_free(&packet);
    avcodec_free_context(&context);
}

#endif
