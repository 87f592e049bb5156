/* For NVDEC's tests: the fake NVIDIA libraries, fed with what the CPU decodes the clips to.
 * Included once per program, after harness.h. */
#ifndef RP_TESTS_NVDEC_TABLE_H
#define RP_TESTS_NVDEC_TABLE_H

#include "decode_clip.h"
#include "fake_cuda_load.h"
#include "fake_nvcuvid.h"

enum { MAX_PICTURES = 8192 };
static struct fake_picture table[MAX_PICTURES]; /* of the fake */
static struct rp_image facts[MAX_PICTURES];     /* format, size and tags that the CPU gives */
static int table_n;

static RP_UNUSED struct rp_packet packet_at(const struct clip *clip, int64_t i, bool wanted)
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

static RP_UNUSED bool is_planar(const struct rp_image *picture)
{
    return (picture->format == RP_PIX_I420 || picture->format == RP_PIX_I420J) &&
           picture->width % 2 == 0 && picture->height % 2 == 0;
}

/* Planes without padding, as NV12. Owner: the caller's (free). */
static RP_UNUSED uint8_t *to_nv12(const struct rp_image *picture)
{
    size_t width = (size_t)picture->width, height = (size_t)picture->height;
    uint8_t *out = malloc(width * height * 3 / 2), *to = out;
    for (size_t y = 0; y < height; y++, to += width) {
        memcpy(to, picture->plane[0] + (ptrdiff_t)y * picture->stride[0], width);
    }
    for (size_t y = 0; y < height / 2; y++, to += width) {
        for (size_t x = 0; x < width; x++) {
            to[x] = picture->plane[1 + x % 2]
                                  [(ptrdiff_t)y * picture->stride[1 + x % 2] + (ptrdiff_t)x / 2];
        }
    }
    return out;
}

/* The entry of a clip's picture with this time; -1: there is none. */
static RP_UNUSED int entry_of(const struct clip *clip, int64_t pts)
{
    int64_t i = sample_of_pts(clip, pts);
    struct rp_packet packet = packet_at(clip, i < 0 ? 0 : i, true);
    for (int k = 0; i >= 0 && k < table_n; k++) {
        if (table[k].packet == packet.data) {
            return k;
        }
    }
    return -1;
}

/* Split a VP9 packet (annex B): ends of its frames; all but the last are hidden. How many. */
static int frames_of(const struct clip *clip, const struct rp_packet *packet, size_t end[8])
{
    unsigned mark = packet->data[packet->len - 1];
    size_t frames = (mark & 7) + 1, width = (mark >> 3 & 3) + 1, index = 2 + frames * width;
    end[0] = packet->len;
    if (rp_index_codec(clip->index)->codec != RP_CODEC_VP9 || (mark & 0xE0) != 0xC0 ||
        packet->len < index || packet->data[packet->len - index] != mark) {
        return 1;
    }
    const uint8_t *at = packet->data + packet->len - index + 1;
    for (size_t i = 0; i < frames; i++) {
        size_t size = 0;
        for (size_t b = 0; b < width; b++) {
            size |= (size_t)*at++ << (8 * b);
        }
        end[i] = (i > 0 ? end[i - 1] : 0) + size;
    }
    return (int)frames;
}

static void note(const struct clip *clip, const rp_frame *frame)
{
    const struct rp_image *picture = rp_frame_image(frame);
    int64_t i = sample_of_pts(clip, rp_frame_pts(frame));
    if (i >= 0 && is_planar(picture) && table_n < MAX_PICTURES) {
        struct rp_packet packet = packet_at(clip, i, true);
        size_t end[8];
        int n = frames_of(clip, &packet, end);
        facts[table_n] = *picture;
        table[table_n++] = (struct fake_picture){.packet = packet.data,
                                                 .len = end[n - 1],
                                                 .nv12 = to_nv12(picture),
                                                 .width = picture->width,
                                                 .height = picture->height};
        for (int k = 0; k + 1 < n && table_n < MAX_PICTURES; k++) { /* hidden: nothing is seen */
            table[table_n++] = (struct fake_picture){.packet = packet.data, .len = end[k]};
        }
    }
}

/* Decode a clip in one run on the CPU and note its pictures in the table. */
static RP_UNUSED void tabulate(const struct clip *clip)
{
    rp_decoder_cache *cache = NULL;
    rp_decoder *decoder = NULL;
    struct rp_packet packet = packet_at(clip, 0, true);
    rp_status status = rp_decoder_cache_new(1, &cache, NULL);
    if (status == RP_OK) {
        status = rp_decoder_cache_get(cache, rp_index_codec(clip->index), &packet, &decoder, NULL);
    }
    for (int64_t i = 0; i <= clip->n && status == RP_OK; i++) {
        if (i < clip->n) {
            packet = packet_at(clip, i, true);
        }
        status =
            i < clip->n ? rp_decoder_send(decoder, &packet, NULL) : rp_decoder_drain(decoder, NULL);
        rp_frame *frame = NULL;
        while (status == RP_OK && rp_decoder_receive(decoder, &frame, NULL) == RP_OK) {
            note(clip, frame);
            rp_frame_unref(&frame);
        }
    }
    rp_decoder_cache_free(&cache);
}

static RP_UNUSED void free_table(void)
{
    while (table_n > 0) {
        free((void *)(uintptr_t)table[--table_n].nv12);
    }
}

/* The fake NVDEC beside the running program, as at the start, with the table. After fake_start. */
static RP_UNUSED struct fake_nvcuvid *fake_video_start(void)
{
    char path[600];
    snprintf(path, sizeof(path), "%.*s/fake_libnvcuvid.so.1",
             (int)(strrchr(fake_path(), '/') - fake_path()), fake_path());
    void *library = dlopen(path, RTLD_NOW | RTLD_NODELETE);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    struct fake_nvcuvid *(*state)(void);
    void *found = dlsym(library, FAKE_NVCUVID_SYMBOL);
    memcpy(&state, &found, sizeof(found));
    dlclose(library);
    state()->reset();
    state()->pictures = table;
    state()->n = table_n;
    return state();
}

#endif
