/* For decode's tests: runs of clips through decode.h. Included after decode_clip.h. */
#ifndef RP_TESTS_DECODE_RUN_H
#define RP_TESTS_DECODE_RUN_H

#include "decode_clip.h"

static RP_UNUSED uint64_t hash_frame(const rp_frame *frame)
{
    const struct rp_image *image = rp_frame_image(frame);
    int strides[4];
    for (int i = 0; i < 4; i++) {
        strides[i] = (int)image->stride[i];
    }
    return hash_planes(image->plane, strides, image->native_format, image->width, image->height);
}

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
