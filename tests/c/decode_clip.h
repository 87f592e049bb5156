/* For decode's tests: MP4 clips in memory, their pictures' hashes from a plain sequential decode
 * with libavcodec's defaults (the oracle), and runs through decode.h.
 *
 * Clips are all files that demux accepts in REELPOOL_TEST_CLIPS (default build/clips) and one real
 * file of the data folder; included once per program, after harness.h. */
#ifndef RP_TESTS_DECODE_CLIP_H
#define RP_TESTS_DECODE_CLIP_H

#include "decode/decode.h"
#include "demux/demux.h"
#include "harness.h"

#include <dirent.h>
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

enum { MAX_CLIPS = 64 };
static struct clip clips[MAX_CLIPS];
static int clip_count;

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

static RP_UNUSED uint64_t hash_frame(const rp_frame *frame)
{
    const struct rp_image *image = rp_frame_image(frame);
    int strides[4];
    for (int i = 0; i < 4; i++) {
        strides[i] = (int)image->stride[i];
    }
    return hash_planes(image->plane, strides, image->native_format, image->width, image->height);
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

static void take_pictures(struct clip *clip, AVCodecContext *context, AVFrame *picture)
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
            take_pictures(clip, context, picture);
        }
        (void)avcodec_send_packet(context, NULL); /* the drain cannot fail */
        take_pictures(clip, context, picture);
    }
    av_frame_free(&picture);
    av_packet_free(&packet);
    avcodec_free_context(&context);
}

static rp_status parse_clip(const uint8_t *file, size_t len, rp_index **index, struct rp_error *err)
{
    struct rp_moov_search search = {0};
    struct rp_byte_range need = {0}, moov = {0};
    rp_status status;
    while ((status = rp_moov_find(&search, file + need.offset, need.offset, (size_t)need.len,
                                  (int64_t)len, &need, &moov, err)) == RP_AGAIN) {
    }
    RP_TRY(status);
    return rp_index_parse(file + moov.offset, (size_t)moov.len, (int64_t)len, index, err);
}

static void free_clip(struct clip *clip)
{
    rp_index_free(&clip->index);
    free(clip->file);
    free(clip->hashes);
    *clip = (struct clip){0};
}

/* Load a file as the next clip; false when demux refuses it. */
static bool load_clip(const char *path)
{
    struct clip clip = {0};
    clip.file = rp_read_file(path, &clip.len);
    if (clip_count == MAX_CLIPS || clip.file == NULL ||
        parse_clip(clip.file, clip.len, &clip.index, NULL) != RP_OK) {
        free_clip(&clip);
        return false;
    }
    const char *base = strrchr(path, '/');
    snprintf(clip.name, sizeof(clip.name), "%s", base != NULL ? base + 1 : path);
    clip.n = rp_index_samples(clip.index);
    for (int64_t i = 0; i < clip.n; i++) {
        struct rp_sample sample;
        rp_index_sample(clip.index, i, &sample);
        if (sample.offset + sample.size > (int64_t)clip.len) {
            free_clip(&clip); /* truncated: nothing to learn about decoding */
            return false;
        }
    }
    if (clip.n == 0 || !rp_decode_supports(rp_index_codec(clip.index)->codec)) {
        free_clip(&clip);
        return false;
    }
    clip.hashes = calloc((size_t)clip.n, sizeof(clip.hashes[0]));
    decode_sequentially(&clip);
    clips[clip_count++] = clip;
    return true;
}

static void load_clips(void)
{
    char path[1024];
    const char *folder = getenv("REELPOOL_TEST_CLIPS");
    folder = folder != NULL ? folder : "build/clips";
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(entries[i]->d_name);
        if (len > 4 && strcmp(entries[i]->d_name + len - 4, ".mp4") == 0) {
            snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
            (void)load_clip(path); /* refused files are demux's to test */
        }
        free(entries[i]);
    }
    free(entries);
    const char *root = rp_data_root();
    if (root != NULL) {
        snprintf(path, sizeof(path), "%s/cam3/videos/observation.images.top/chunk-000/file-004.mp4",
                 root);
        (void)load_clip(path); /* absent where only some data is */
    }
}

static RP_UNUSED void free_clips(void)
{
    while (clip_count > 0) {
        free_clip(&clips[--clip_count]);
    }
}

/* The n-th clip of a codec, NULL when there is none. */
static RP_UNUSED const struct clip *clip_of(enum rp_codec codec, int n)
{
    for (int i = 0; i < clip_count; i++) {
        if (rp_index_codec(clips[i].index)->codec == codec && n-- == 0) {
            return &clips[i];
        }
    }
    return NULL;
}

/* Skip unless there are AV1 and H.264 clips. */
#define NEED_CLIPS()                                                                 \
    do {                                                                             \
        if (clip_of(RP_CODEC_AV1, 0) == NULL || clip_of(RP_CODEC_H264, 0) == NULL) { \
            SKIP("clips", "no clips; make them by tests/data/make_clips.py");        \
        }                                                                            \
    } while (0)

static struct rp_packet packet_of(const struct clip *clip, int64_t i, bool wanted)
{
    struct rp_sample sample;
    rp_index_sample(clip->index, i, &sample);
    return (struct rp_packet){.data = clip->file + sample.offset,
                              .len = sample.size,
                              .pts = sample.pts,
                              .dts = sample.dts,
                              .key = sample.key,
                              .wanted = wanted};
}

/* Receive until the decoder wants more; *kept gets the frame of `pts`, its count goes to *found. */
static rp_status receive_all(rp_decoder *decoder, int64_t pts, rp_frame **kept, int *found,
                             struct rp_error *err)
{
    for (;;) {
        rp_frame *frame = NULL;
        rp_status status = rp_decoder_receive(decoder, &frame, err);
        if (status != RP_OK) {
            return status;
        }
        if (rp_frame_pts(frame) == pts) {
            (*found)++;
            rp_frame_unref(kept);
            *kept = rp_frame_ref(frame);
        }
        rp_frame_unref(&frame);
    }
}

/* One run: start key .. target, drain. RP_OK with *kept, RP_END when the picture did not come. */
static RP_UNUSED rp_status decode_target(rp_decoder_cache *cache, const struct clip *clip,
                                         int64_t target, rp_frame **kept, struct rp_error *err)
{
    int64_t key = 0;
    RP_TRY(rp_index_start_key(clip->index, target, &key, err));
    struct rp_packet packet = packet_of(clip, key, key == target);
    int64_t pts = packet_of(clip, target, true).pts;
    rp_decoder *decoder = NULL;
    RP_TRY(rp_decoder_cache_get(cache, rp_index_codec(clip->index), &packet, &decoder, err));
    int found = 0;
    rp_status status = RP_AGAIN;
    for (int64_t i = key; i <= target && status == RP_AGAIN; i++) {
        packet = packet_of(clip, i, i == target);
        status = rp_decoder_send(decoder, &packet, err);
        if (status == RP_OK) {
            status = receive_all(decoder, pts, kept, &found, err);
        }
    }
    if (status == RP_AGAIN) {
        status = rp_decoder_drain(decoder, err);
        if (status == RP_OK) {
            status = receive_all(decoder, pts, kept, &found, err);
        }
    }
    if (status == RP_END && found == 1) {
        return RP_OK;
    }
    rp_frame_unref(kept);
    return status;
}

/* xorshift64*, so that failures repeat. */
static RP_UNUSED uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

#endif
