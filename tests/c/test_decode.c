/* Packets to pictures: every clip, random targets, damage. */
#define RP_HARNESS_OWN_MAIN
#include "decode_run.h"

#include "base/thread.h"

enum { TARGETS = 300, FEWER = 15, DAMAGES = 5, THREADS = 4 };

/* Open GOPs of H.264 cannot be entered in the middle: an error, or the picture is missing. */
static bool is_open_h264(const struct clip *clip, rp_status status)
{
    return rp_index_codec(clip->index)->codec == RP_CODEC_H264 &&
           strstr(clip->name, "open") != NULL && (status == RP_E_UNSUPPORTED || status == RP_END);
}

static void check_target(rp_decoder_cache *cache, const struct clip *clip, int64_t target)
{
    if (clip->hashes[target] == 0) {
        return; /* no picture in the sequential decode either */
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_frame *frame = NULL;
    rp_status status = decode_target(cache, clip, target, &frame, &err);
    if (status == RP_OK) {
        if (!CHECK(hash_frame(frame) == clip->hashes[target])) {
            fprintf(stderr, "  %s: sample %" PRId64 " differs\n", clip->name, target);
        }
    }
    else if (!is_open_h264(clip, status)) {
        CHECK_EQ(status, RP_OK);
        fprintf(stderr, "  %s: sample %" PRId64 ": %s\n", clip->name, target, err.what);
    }
    rp_frame_unref(&frame);
}

static rp_decoder_cache *new_cache(int capacity)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_decoder_cache *cache = NULL;
    CHECK_OK(rp_decoder_cache_new(capacity, &cache, &err), &err);
    return cache;
}

RP_TEST(random_targets_equal_a_sequential_decode)
{
    NEED_CLIPS();
    rp_decoder_cache *cache = new_cache(8);
    for (int c = 0; c < clip_count; c++) {
        uint64_t random = 1 + (uint64_t)c;
        bool first = clip_of(rp_index_codec(clips[c].index)->codec, 0) == &clips[c];
        for (int i = 0; i < (first ? TARGETS : FEWER); i++) {
            check_target(cache, &clips[c], (int64_t)(next_random(&random) % (uint64_t)clips[c].n));
        }
    }
    rp_decoder_cache_free(&cache);
}

RP_TEST(files_share_decoders)
{
    NEED_CLIPS();
    for (int capacity = 1; capacity <= 8; capacity += 7) {
        rp_decoder_cache *cache = new_cache(capacity);
        uint64_t random = 99;
        for (int i = 0; i < TARGETS; i++) {
            const struct clip *clip = &clips[next_random(&random) % (uint64_t)clip_count];
            check_target(cache, clip, (int64_t)(next_random(&random) % (uint64_t)clip->n));
        }
        rp_decoder_cache_free(&cache);
    }
}

static void *decode_on_thread(void *arg)
{
    uint64_t random = (uint64_t)(uintptr_t)arg;
    rp_decoder_cache *cache = new_cache(8);
    for (int i = 0; i < TARGETS / THREADS; i++) {
        const struct clip *clip = &clips[next_random(&random) % (uint64_t)clip_count];
        check_target(cache, clip, (int64_t)(next_random(&random) % (uint64_t)clip->n));
    }
    rp_decoder_cache_free(&cache);
    return NULL;
}

RP_TEST(threads_do_not_disturb_each_other)
{
    NEED_CLIPS();
    rp_thread threads[THREADS] = {{0}};
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK_OK(rp_thread_start(&threads[i], "test", decode_on_thread, (void *)(i + 1), NULL),
                 NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        rp_thread_join(&threads[i]);
    }
}

/* Decode key `first` .. before `end` with every picture wanted. Marks what came. */
static void check_whole_run(rp_decoder_cache *cache, const struct clip *clip, int64_t first,
                            int64_t end, int *came)
{
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_packet packet = packet_of(clip, first, true);
    rp_decoder *decoder = NULL;
    REQUIRE_OK(rp_decoder_cache_get(cache, rp_index_codec(clip->index), &packet, &decoder, &err),
               &err);
    for (int64_t i = first; i <= end; i++) {
        if (i < end) {
            packet = packet_of(clip, i, true);
            REQUIRE_OK(rp_decoder_send(decoder, &packet, &err), &err);
        }
        else {
            REQUIRE_OK(rp_decoder_drain(decoder, &err), &err);
        }
        rp_status status;
        rp_frame *frame = NULL;
        while ((status = rp_decoder_receive(decoder, &frame, &err)) == RP_OK) {
            int64_t sample = sample_of_pts(clip, rp_frame_pts(frame));
            REQUIRE(sample >= first && sample < end);
            CHECK(hash_frame(frame) == clip->hashes[sample]);
            const struct rp_image *image = rp_frame_image(frame);
            CHECK(rp_frame_bytes(frame) >= (size_t)image->width * (size_t)image->height);
            came[sample]++;
            rp_frame_unref(&frame);
        }
        REQUIRE_EQ(status, i < end ? RP_AGAIN : RP_END);
    }
}

RP_TEST(a_gop_gives_each_picture_once)
{
    NEED_CLIPS();
    for (int c = RP_CODEC_AV1; c <= RP_CODEC_H264; c++) {
        const struct clip *clip = clip_of((enum rp_codec)c, 0);
        rp_decoder_cache *cache = new_cache(1);
        int *came = calloc((size_t)clip->n, sizeof(int));
        int64_t first = 0;
        for (int64_t i = 1; i <= clip->n; i++) {
            if (i == clip->n || packet_of(clip, i, true).key) {
                check_whole_run(cache, clip, first, i, came);
                first = i;
            }
        }
        for (int64_t i = 0; i < clip->n; i++) {
            CHECK_EQ(came[i], 1);
        }
        free(came);
        rp_decoder_cache_free(&cache);
    }
}

RP_TEST(images_describe_their_pixels)
{
    NEED_CLIPS();
    for (int c = 0; c < clip_count; c++) {
        rp_decoder_cache *cache = new_cache(1);
        rp_frame *frame = NULL;
        if (decode_target(cache, &clips[c], 0, &frame, NULL) == RP_OK) {
            const struct rp_image *image = rp_frame_image(frame);
            enum rp_pixel_format want = RP_PIX_OTHER;
            switch (image->native_format) {
            case AV_PIX_FMT_YUV420P: want = RP_PIX_I420; break;
            case AV_PIX_FMT_YUVJ420P: want = RP_PIX_I420J; break;
            case AV_PIX_FMT_GRAY12LE: want = RP_PIX_GRAY12; break;
            default: break;
            }
            CHECK_EQ(image->format, want);
            CHECK_EQ(image->width, rp_index_codec(clips[c].index)->width);
            CHECK_EQ(image->height, rp_index_codec(clips[c].index)->height);
        }
        rp_frame_unref(&frame);
        rp_decoder_cache_free(&cache);
    }
}

/* A stated colour matrix decides where the stream itself has none (H.264 without VUI colour). */
RP_TEST(colour_of_the_container_counts)
{
    NEED_CLIPS();
    for (int n = 0; clip_of(RP_CODEC_H264, n) != NULL; n++) {
        const struct clip *clip = clip_of(RP_CODEC_H264, n);
        struct rp_codec_params params = *rp_index_codec(clip->index);
        rp_frame *frames[2] = {NULL, NULL};
        for (int stated = 0; stated < 2; stated++) {
            params.has_colour = stated != 0;
            params.primaries = params.transfer = params.matrix = 7;
            params.full_range = 0;
            rp_decoder_cache *cache = new_cache(1);
            struct rp_packet packet = packet_of(clip, 0, true);
            rp_decoder *decoder = NULL;
            struct rp_error err;
            rp_error_clear(&err);
            REQUIRE_OK(rp_decoder_cache_get(cache, &params, &packet, &decoder, &err), &err);
            REQUIRE_OK(rp_decoder_send(decoder, &packet, &err), &err);
            REQUIRE_OK(rp_decoder_drain(decoder, &err), &err);
            REQUIRE_OK(rp_decoder_receive(decoder, &frames[stated], &err), &err);
            rp_decoder_cache_free(&cache);
        }
        if (rp_frame_image(frames[0])->colorspace == AVCOL_SPC_UNSPECIFIED) {
            CHECK_EQ(rp_frame_image(frames[1])->colorspace, 7);
        }
        else {
            CHECK_EQ(rp_frame_image(frames[1])->colorspace, rp_frame_image(frames[0])->colorspace);
        }
        rp_frame_unref(&frames[0]);
        rp_frame_unref(&frames[1]);
    }
}

static int messages; /* that libav would have shown */

static void count_message(void *context, int level, const char *format, va_list args)
{
    (void)context;
    (void)format;
    (void)args;
    messages += (level & 0xff) <= AV_LOG_DEBUG;
}

/* Damage one sample for a while, decode up to 6 targets from there on; counts by outcome. */
static void damage_once(struct clip *clip, uint64_t *random, int counts[3])
{
    int64_t victim = (int64_t)(next_random(random) % (uint64_t)clip->n);
    struct rp_packet packet = packet_of(clip, victim, true);
    uint8_t *bytes = clip->file + (packet.data - clip->file);
    uint8_t *saved = malloc(packet.len);
    memcpy(saved, bytes, packet.len);
    for (int i = 0; i < 4; i++) {
        bytes[next_random(random) % packet.len] ^= (uint8_t)(1u << (next_random(random) % 8));
    }
    rp_decoder_cache *cache = new_cache(1);
    for (int64_t t = victim; t < clip->n && t < victim + 6; t++) {
        struct rp_error err;
        rp_error_clear(&err);
        rp_frame *frame = NULL;
        rp_status status = decode_target(cache, clip, t, &frame, &err);
        if (status == RP_OK) {
            counts[hash_frame(frame) == clip->hashes[t] ? 0 : 2]++;
        }
        else {
            counts[1]++; /* RP_END: the caller misses the picture and says so */
            CHECK(status == RP_END || status == RP_E_DECODE || is_open_h264(clip, status));
            CHECK(status == RP_END || err.what[0] != 0);
        }
        rp_frame_unref(&frame);
    }
    rp_decoder_cache_free(&cache);
    memcpy(bytes, saved, packet.len);
    free(saved);
}

RP_TEST(damaged_packets_give_errors_and_no_message)
{
    NEED_CLIPS();
    messages = 0;
    int h264_errors = 0, h264_wrong = 0;
    for (int c = 0; c < clip_count; c++) {
        int counts[3] = {0, 0, 0};
        uint64_t random = 4711 + (uint64_t)c;
        av_log_set_callback(count_message);
        for (int i = 0; i < DAMAGES; i++) {
            damage_once(&clips[c], &random, counts);
        }
        av_log_set_callback(av_log_default_callback);
        fprintf(stderr, "  %s: %d right, %d errors, %d wrong\n", clips[c].name, counts[0],
                counts[1], counts[2]);
        if (rp_index_codec(clips[c].index)->codec == RP_CODEC_H264) {
            h264_errors += counts[1];
            h264_wrong += counts[2];
        }
    }
    CHECK_EQ(messages, 0);
    /* Flipped bits may decode to other pixels without any sign; what libavcodec conceals has signs,
     * and looking away from them (AV_PKT_FLAG_DISCARD, no explode) triples the wrong pictures. */
    CHECK(h264_errors > 0 && h264_wrong * 8 <= h264_errors);
}

RP_TEST(the_libraries_are_named)
{
    char text[256];
    rp_decode_describe(text, sizeof(text));
    CHECK(strstr(text, "libavcodec ") == text);
    CHECK(strstr(text, "libdav1d ") != NULL && strstr(text, "mpeg4 ") != NULL);
    char cut[16];
    rp_decode_describe(cut, sizeof(cut));
    CHECK(strlen(cut) < sizeof(cut));
    CHECK(rp_decode_supports(RP_CODEC_H264));
    CHECK(!rp_decode_supports((enum rp_codec)0));
    CHECK(!rp_decode_supports((enum rp_codec)6));
}

int main(int argc, char **argv)
{
    load_clips();
    int status = rp_harness_run(argc, argv);
    free_clips();
    return status;
}
