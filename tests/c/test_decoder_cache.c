/* Reuse, recycling, failure and lifetime of decoders and frames. */
#define RP_HARNESS_OWN_MAIN
#include "decode_run.h"

#include "base/thread.h"
#include "decode/decode_priv.h"

static rp_decoder_cache *new_cache(int capacity)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_decoder_cache *cache = NULL;
    CHECK_OK(rp_decoder_cache_new(capacity, &cache, &err), &err);
    return cache;
}

static void check_right(rp_decoder_cache *cache, const struct clip *clip, int64_t target)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_frame *frame = NULL;
    if (CHECK_OK(decode_target(cache, clip, target, &frame, &err), &err)) {
        CHECK(hash_frame(frame) == clip->hashes[target]);
    }
    rp_frame_unref(&frame);
}

/* A get followed by one packet. */
static rp_status begin(rp_decoder_cache *cache, const struct clip *clip, int64_t key,
                       rp_decoder **decoder, struct rp_error *err)
{
    struct rp_packet packet = packet_of(clip, key, true);
    RP_TRY(rp_decoder_cache_get(cache, rp_index_codec(clip->index), &packet, decoder, err));
    return rp_decoder_send(*decoder, &packet, err);
}

RP_TEST(capacity_is_checked)
{
    rp_decoder_cache *cache = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    CHECK_STATUS(rp_decoder_cache_new(0, &cache, &err), RP_E_ARG, &err);
    CHECK(cache == NULL);
    rp_decoder_cache_free(&cache);
    rp_decoder_cache_free(NULL);
    rp_frame_unref(NULL);
}

RP_TEST(an_abandoned_run_leaves_no_trace)
{
    NEED_CLIPS();
    for (int c = RP_CODEC_AV1; c <= RP_CODEC_MPEG4; c++) {
        const struct clip *clip = clip_of((enum rp_codec)c, 0);
        if (clip == NULL) {
            continue;
        }
        rp_decoder_cache *cache = new_cache(1);
        struct rp_error err;
        rp_error_clear(&err);
        rp_decoder *decoder = NULL;
        for (int drained = 0; drained < 2; drained++) {
            CHECK_OK(begin(cache, clip, 0, &decoder, &err), &err);
            if (drained) {
                CHECK_OK(rp_decoder_drain(decoder, &err), &err);
            }
            check_right(cache, clip, clip->n - 1);
        }
        rp_decoder_cache_free(&cache);
    }
}

RP_TEST(decoders_and_frames_are_reused)
{
    NEED_CLIPS();
    rp_decoder_cache *cache = new_cache(8);
    for (int c = 0; c < clip_count; c++) {
        if (strstr(clips[c].name, "open") == NULL) {
            check_right(cache, &clips[c], 0);
        }
        int64_t before = rp_live_objects();
        for (int64_t t = 0; t < clips[c].n && t < 40; t++) {
            rp_frame *frame = NULL;
            (void)decode_target(cache, &clips[c], t, &frame, NULL); /* counting objects only */
            rp_frame_unref(&frame);
        }
        /* A run needs at most the frame that is kept and the one being received. */
        CHECK(rp_live_objects() - before <= 2);
    }
    rp_decoder_cache_free(&cache);
}

/* AV1 files of one size share a decoder: the second get gives the first one's. */
RP_TEST(av1_files_share_a_decoder)
{
    NEED_CLIPS();
    rp_decoder_cache *cache = new_cache(8);
    int pairs = 0;
    for (int a = 0; a < clip_count; a++) {
        for (int b = 0; b < clip_count; b++) {
            const struct rp_codec_params *p = rp_index_codec(clips[a].index);
            const struct rp_codec_params *q = rp_index_codec(clips[b].index);
            if (a == b || p->codec != RP_CODEC_AV1 || q->codec != RP_CODEC_AV1) {
                continue;
            }
            struct rp_packet first = packet_of(&clips[a], 0, true);
            struct rp_packet second = packet_of(&clips[b], 0, true);
            rp_decoder *one = NULL, *two = NULL;
            CHECK_OK(rp_decoder_cache_get(cache, p, &first, &one, NULL), NULL);
            CHECK_OK(rp_decoder_cache_get(cache, q, &second, &two, NULL), NULL);
            CHECK_EQ(one == two, p->width == q->width && p->height == q->height);
            pairs++;
        }
    }
    rp_decoder_cache_free(&cache);
    if (pairs == 0) {
        SKIP("clips", "only one AV1 clip");
    }
}

/* Copy a key packet without its sequence header and temporal delimiter OBUs. */
static size_t strip_headers(const struct rp_packet *packet, uint8_t *out)
{
    size_t at = 0, len = 0;
    while (at < packet->len) {
        size_t start = at;
        unsigned header = packet->data[at];
        at += 1 + ((header >> 2) & 1);
        size_t size = 0;
        unsigned shift = 0;
        uint8_t byte = 0x80;
        while ((byte & 0x80) != 0 && at < packet->len) {
            byte = packet->data[at++];
            size |= (size_t)(byte & 0x7f) << shift;
            shift += 7;
        }
        at += size;
        unsigned type = (header >> 3) & 15;
        if (type != 1 && type != 2) {
            memcpy(out + len, packet->data + start, at - start);
            len += at - start;
        }
    }
    return len;
}

/* AV1's file format demands a sequence header in every key packet. Without one the decoder gets
 * that of the container, which libdav1d reads but does not use in FFmpeg 5.1: right or refused. */
RP_TEST(av1_without_sequence_header_is_right_or_refused)
{
    NEED_CLIPS();
    const struct clip *clip = clip_of(RP_CODEC_AV1, 0);
    const struct rp_codec_params *params = rp_index_codec(clip->index);
    struct rp_packet whole = packet_of(clip, 0, true);
    struct rp_packet packet = whole;
    uint8_t *bytes = malloc(packet.len);
    packet.data = bytes;
    packet.len = strip_headers(&whole, bytes);
    REQUIRE(packet.len < whole.len);
    rp_decoder_cache *cache = new_cache(2);
    struct rp_error err;
    rp_error_clear(&err);
    rp_decoder *shared = NULL, *decoder = NULL;
    rp_frame *frame = NULL;
    REQUIRE_OK(rp_decoder_cache_get(cache, params, &whole, &shared, &err), &err);
    REQUIRE_OK(rp_decoder_cache_get(cache, params, &packet, &decoder, &err), &err);
    CHECK(decoder != shared);
    rp_status status = rp_decoder_send(decoder, &packet, &err);
    if (status == RP_OK) {
        status = rp_decoder_receive(decoder, &frame, &err);
    }
    CHECK(status == RP_E_DECODE || (status == RP_OK && hash_frame(frame) == clip->hashes[0]));
    rp_frame_unref(&frame);
    check_right(cache, clip, 0);
    rp_decoder_cache_free(&cache);
    free(bytes);
}

static void *drop_frame(void *arg)
{
    rp_frame *frame = arg;
    rp_frame_unref(&frame);
    return NULL;
}

RP_TEST(frames_outlive_their_cache)
{
    NEED_CLIPS();
    for (int c = RP_CODEC_AV1; c <= RP_CODEC_H264; c++) {
        const struct clip *clip = clip_of((enum rp_codec)c, 0);
        rp_decoder_cache *cache = new_cache(1);
        rp_frame *frames[8] = {NULL};
        for (int64_t t = 0; t < 8 && t < clip->n; t++) {
            REQUIRE_OK(decode_target(cache, clip, t, &frames[t], NULL), NULL);
        }
        rp_decoder_cache_free(&cache);
        for (int64_t t = 0; t < 8 && t < clip->n; t++) {
            CHECK(hash_frame(frames[t]) == clip->hashes[t]);
            rp_frame *again = rp_frame_ref(frames[t]);
            rp_thread thread = {0};
            CHECK_OK(rp_thread_start(&thread, "test", drop_frame, frames[t], NULL), NULL);
            CHECK(hash_frame(again) == clip->hashes[t]);
            rp_frame_unref(&again);
            CHECK(again == NULL);
            rp_thread_join(&thread);
        }
    }
}

static rp_arena *new_store(void)
{
    rp_arena *store = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    CHECK_OK(rp_arena_new((size_t)64 << 20, false, &store, &err), &err);
    rp_arena_reuse_exactly(store);
    return store;
}

static int64_t blocks_grown(rp_arena *store)
{
    struct rp_arena_stats stats;
    rp_arena_stats(store, &stats);
    return stats.grown;
}

/* Between the first and the last byte of the copy. */
static bool lies_in(const rp_frame *frame, const uint8_t *byte)
{
    return byte >= frame->block->data && byte < frame->block->data + frame->block->len;
}

static void check_copy(const rp_frame *copy, const rp_frame *frame)
{
    const struct rp_image *image = rp_frame_image(copy), *from = rp_frame_image(frame);
    if (!CHECK(copy != frame && copy->block != NULL)) {
        return;
    }
    CHECK_EQ(rp_frame_pts(copy), rp_frame_pts(frame));
    CHECK_EQ(rp_frame_bytes(copy), copy->block->len);
    CHECK_EQ(image->colorspace, from->colorspace);
    CHECK_EQ(image->color_range, from->color_range);
    CHECK_EQ(image->format, from->format);
    CHECK(hash_frame(copy) == hash_frame(frame));
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(image->plane[i] == NULL, from->plane[i] == NULL);
        if (image->plane[i] == NULL) {
            continue;
        }
        CHECK_EQ((uintptr_t)image->plane[i] % 64, 0);
        CHECK_EQ(image->stride[i] % 64, 0);
        /* Converters read up to 64 bytes past a row. */
        CHECK(lies_in(copy, image->plane[i]));
        CHECK(lies_in(copy, image->plane[i] + (ptrdiff_t)frame->rows[i] * image->stride[i] + 63));
    }
}

RP_TEST(a_kept_picture_is_a_copy_of_its_size)
{
    NEED_CLIPS();
    rp_arena *store = new_store();
    rp_decoder_cache *cache = new_cache(8);
    for (int c = 0; c < clip_count; c++) {
        rp_frame *frame = NULL;
        if (decode_target(cache, &clips[c], 0, &frame, NULL) != RP_OK) {
            continue; /* an open GOP */
        }
        rp_frame *copy = rp_frame_keep(frame, store);
        check_copy(copy, frame);
        size_t tight = (size_t)av_image_get_buffer_size(rp_frame_image(frame)->native_format,
                                                        rp_frame_image(frame)->width,
                                                        rp_frame_image(frame)->height, 64);
        CHECK(rp_frame_bytes(copy) < tight + 64 + 4096);
        rp_frame_unref(&frame);
        rp_frame *again = rp_frame_keep(copy, store); /* a copy is counted */
        CHECK(again == copy);
        rp_frame_unref(&copy);
        CHECK(hash_frame(again) == clips[c].hashes[0]);
        rp_frame_unref(&again);
    }
    rp_decoder_cache_free(&cache);
    rp_arena_close(&store);
}

/* The decoder goes on, another thread gives back, cache and store go: copies stay as they are, and
 * their blocks are used again. */
RP_TEST(kept_pictures_are_the_holders)
{
    NEED_CLIPS();
    for (int c = RP_CODEC_AV1; c <= RP_CODEC_H264; c++) {
        const struct clip *clip = clip_of((enum rp_codec)c, 0);
        rp_arena *store = new_store();
        rp_decoder_cache *cache = new_cache(1);
        rp_frame *kept[8] = {NULL};
        int n = clip->n < 8 ? (int)clip->n : 8;
        for (int round = 0; round < 2; round++) {
            for (int t = 0; t < n; t++) {
                rp_frame *frame = NULL;
                REQUIRE_OK(decode_target(cache, clip, t, &frame, NULL), NULL);
                kept[t] = rp_frame_keep(frame, store);
                rp_frame_unref(&frame);
            }
            CHECK_EQ(blocks_grown(store), n);
            for (int t = 0; t < n && round == 0; t++) {
                CHECK(hash_frame(kept[t]) == clip->hashes[t]);
                rp_thread thread = {0};
                CHECK_OK(rp_thread_start(&thread, "test", drop_frame, kept[t], NULL), NULL);
                rp_thread_join(&thread);
            }
        }
        rp_decoder_cache_free(&cache);
        rp_arena_close(&store);
        for (int t = 0; t < n; t++) {
            CHECK(hash_frame(kept[t]) == clip->hashes[t]);
            rp_frame_unref(&kept[t]);
        }
    }
}

/* Without allocating, unlike hash_frame. */
static bool same_luma(const rp_frame *a, const rp_frame *b)
{
    const struct rp_image *x = rp_frame_image(a), *y = rp_frame_image(b);
    for (int row = 0; row < x->height; row++) {
        if (memcmp(x->plane[0] + row * x->stride[0], y->plane[0] + row * y->stride[0],
                   (size_t)x->width) != 0) {
            return false;
        }
    }
    return true;
}

static void keep_with_faults(void *arg)
{
    rp_frame *frame = arg;
    rp_arena *store = NULL;
    if (rp_arena_new(1 << 20, false, &store, NULL) != RP_OK) {
        return;
    }
    rp_frame *kept = rp_frame_keep(frame, store);
    rp_arena_close(&store);
    CHECK(kept == frame || kept->block != NULL);
    CHECK(same_luma(kept, frame));
    rp_frame_unref(&kept);
}

/* Without memory for a copy the decoder's own picture is kept. */
RP_TEST(a_picture_is_kept_when_memory_is_short)
{
    NEED_CLIPS();
    const struct clip *clip = clip_of(RP_CODEC_AV1, 0);
    rp_decoder_cache *cache = new_cache(1);
    rp_frame *frame = NULL;
    REQUIRE_OK(decode_target(cache, clip, 0, &frame, NULL), NULL);
    struct rp_fault fault = {.calls = RP_FAULT_MEMORY};
    CHECK(rp_fault_sweep(fault, keep_with_faults, frame) >= 3);
    rp_arena *store = new_store();
    rp_fault_arm(&(struct rp_fault){.calls = RP_FAULT_MEMORY, .nth = 1, .onward = true});
    rp_frame *kept = rp_frame_keep(frame, store);
    CHECK(rp_fault_disarm());
    CHECK(kept == frame);
    rp_frame_unref(&kept);
    CHECK(hash_frame(frame) == clip->hashes[0]);
    rp_frame_unref(&frame);
    rp_decoder_cache_free(&cache);
    rp_arena_close(&store);
}

enum { PASSED = 2000 };

struct passing {
    rp_frame *frames[PASSED]; /* atomic slots */
};

static void *drop_all(void *arg)
{
    struct passing *passing = arg;
    for (int i = 0; i < PASSED; i++) {
        rp_frame *frame = NULL;
        while ((frame = __atomic_exchange_n(&passing->frames[i], NULL, __ATOMIC_ACQ_REL)) == NULL) {
        }
        rp_frame_unref(&frame);
    }
    return NULL;
}

/* Frames taken on one thread and given back on another, all the time. */
RP_TEST(frames_come_back_from_another_thread)
{
    static struct passing passing;
    struct rp_frame_pool *pool = NULL;
    REQUIRE_OK(rp_frame_pool_new(&rp_decode_av.pictures, &pool, NULL), NULL);
    rp_thread thread = {0};
    REQUIRE_OK(rp_thread_start(&thread, "test", drop_all, &passing, NULL), NULL);
    for (int i = 0; i < PASSED; i++) {
        rp_frame *frame = NULL;
        CHECK_OK(rp_frame_pool_get(pool, &frame, NULL), NULL);
        __atomic_store_n(&passing.frames[i], frame, __ATOMIC_RELEASE);
    }
    rp_frame_pool_unref(&pool);
    rp_thread_join(&thread);
}

RP_TEST(a_failed_decoder_is_replaced)
{
    NEED_CLIPS();
    for (int c = RP_CODEC_AV1; c <= RP_CODEC_H264; c++) {
        const struct clip *clip = clip_of((enum rp_codec)c, 0);
        rp_decoder_cache *cache = new_cache(1);
        struct rp_packet packet = packet_of(clip, 0, true);
        uint8_t *noise = malloc(packet.len);
        memcpy(noise, packet.data, packet.len);
        memset(noise + packet.len / 2, 0xa5, packet.len - packet.len / 2);
        packet.data = noise;
        packet.len = packet.len / 2 + 8; /* cut, too */
        struct rp_error err;
        rp_error_clear(&err);
        rp_decoder *decoder = NULL;
        REQUIRE_OK(
            rp_decoder_cache_get(cache, rp_index_codec(clip->index), &packet, &decoder, &err),
            &err);
        rp_status status = rp_decoder_send(decoder, &packet, &err);
        rp_frame *frame = NULL;
        if (status == RP_OK) {
            status = rp_decoder_receive(decoder, &frame, &err);
        }
        CHECK_EQ(status, RP_E_DECODE);
        CHECK_EQ(err.code, RP_E_DECODE);
        CHECK(err.what[0] != 0);
        CHECK(frame == NULL);
        struct rp_packet good = packet_of(clip, 0, true);
        CHECK_EQ(rp_decoder_send(decoder, &good, NULL), RP_E_DECODE);
        CHECK_EQ(rp_decoder_receive(decoder, &frame, NULL), RP_E_DECODE);
        CHECK_EQ(rp_decoder_drain(decoder, NULL), RP_E_DECODE);
        check_right(cache, clip, clip->n - 1);
        free(noise);
        rp_decoder_cache_free(&cache);
    }
}

RP_TEST(a_change_of_size_within_a_run_is_refused)
{
    NEED_CLIPS();
    const struct clip *small = clip_of(RP_CODEC_AV1, 0);
    const struct clip *other = NULL;
    for (int n = 1; clip_of(RP_CODEC_AV1, n) != NULL; n++) {
        const struct clip *clip = clip_of(RP_CODEC_AV1, n);
        if (rp_index_codec(clip->index)->width != rp_index_codec(small->index)->width) {
            other = clip;
        }
    }
    if (other == NULL) {
        SKIP("clips", "all AV1 clips have one size");
    }
    rp_decoder_cache *cache = new_cache(1);
    struct rp_error err;
    rp_error_clear(&err);
    rp_decoder *decoder = NULL;
    rp_frame *frame = NULL;
    REQUIRE_OK(begin(cache, small, 0, &decoder, &err), &err);
    REQUIRE_OK(rp_decoder_receive(decoder, &frame, &err), &err);
    rp_frame_unref(&frame);
    struct rp_packet packet = packet_of(other, 0, true);
    packet.pts = 1 << 30;
    rp_status status = rp_decoder_send(decoder, &packet, &err);
    while (status == RP_OK) {
        rp_frame_unref(&frame);
        status = rp_decoder_receive(decoder, &frame, &err);
    }
    CHECK_EQ(status, RP_E_DECODE);
    CHECK(strstr(err.what, "changed") != NULL);
    check_right(cache, small, 1);
    rp_decoder_cache_free(&cache);
}

RP_TEST(refused_parameters_are_named)
{
    NEED_CLIPS();
    const struct clip *clip = clip_of(RP_CODEC_H264, 0);
    struct rp_codec_params params = *rp_index_codec(clip->index);
    static const uint8_t broken[] = {1, 77, 64, 30, 255, 225, 255, 255, 103};
    params.extradata = broken;
    params.extradata_len = sizeof(broken);
    params.hash ^= 1;
    rp_decoder_cache *cache = new_cache(1);
    struct rp_error err;
    rp_error_clear(&err);
    rp_decoder *decoder = NULL;
    struct rp_packet packet = packet_of(clip, 0, true);
    CHECK_STATUS(rp_decoder_cache_get(cache, &params, &packet, &decoder, &err), RP_E_DECODE, &err);
    CHECK(strstr(err.what, "h264") != NULL);
    check_right(cache, clip, 1);
    rp_decoder_cache_free(&cache);
}

RP_TEST(an_empty_packet_is_refused)
{
    NEED_CLIPS();
    const struct clip *clip = clip_of(RP_CODEC_H264, 0);
    rp_decoder_cache *cache = new_cache(1);
    struct rp_packet packet = packet_of(clip, 0, true);
    packet.len = 0;
    struct rp_error err;
    rp_error_clear(&err);
    rp_decoder *decoder = NULL;
    REQUIRE_OK(rp_decoder_cache_get(cache, rp_index_codec(clip->index), &packet, &decoder, &err),
               &err);
    CHECK_STATUS(rp_decoder_send(decoder, &packet, &err), RP_E_DECODE, &err);
    rp_decoder_cache_free(&cache);
}

static void decode_with_faults(void *arg)
{
    const struct clip *clip = arg;
    rp_decoder_cache *cache = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    rp_frame *frame = NULL;
    rp_status status = rp_decoder_cache_new(2, &cache, &err);
    if (status == RP_OK) {
        status = decode_target(cache, clip, 1, &frame, &err);
    }
    CHECK(status == RP_OK || status == RP_E_NOMEM);
    CHECK_EQ(err.code, status);
    CHECK_EQ(frame != NULL, status == RP_OK);
    rp_frame_unref(&frame);
    rp_decoder_cache_free(&cache);
}

RP_TEST(memory_may_run_short_anywhere)
{
    NEED_CLIPS();
    for (int c = RP_CODEC_AV1; c <= RP_CODEC_H264; c++) {
        struct rp_fault fault = {.calls = RP_FAULT_MEMORY};
        CHECK(rp_fault_sweep(fault, decode_with_faults,
                             (void *)(uintptr_t)clip_of((enum rp_codec)c, 0)) >= 4);
    }
}

int main(int argc, char **argv)
{
    load_clips();
    int status = rp_harness_run(argc, argv);
    free_clips();
    return status;
}
