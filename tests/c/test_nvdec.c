/* Runs on NVDEC through FFmpeg's own hwaccel, against NVIDIA libraries that need no GPU
 * (fake_cuda.c, fake_nvcuvid.c): the fake gives the right planes for the right coded picture only,
 * so order, flush, surfaces, sessions and streams are tested; that a GPU decodes rightly is not. */
#define RP_HARNESS_OWN_MAIN
#include "harness.h"

#include "nvdec_check.h"

#include "base/thread.h"

RP_TEST(free_takes_null)
{
    rp_nvdec *none = NULL;
    rp_nvdec_free(NULL);
    rp_nvdec_free(&none);
    rp_nvdec_end(NULL, NULL);
    rp_decoder *decoder = NULL;
    rp_nvdec_end(NULL, &decoder);
}

RP_TEST(every_clip_goes_where_it_can_be_decoded)
{
    NEED(any, "h264_g2.mp4");
    struct nvdec_rig rig = rig_make(0);
    int on_gpu = 0, on_cpu = 0;
    for (int i = 0; i < clip_count; i++) {
        const struct clip *clip = &clips[i];
        struct rp_nvdec_verdict verdict;
        REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
        enum rp_codec codec = rp_index_codec(clip->index)->codec;
        bool can = entry_of(clip, packet_at(clip, 0, true).pts) >= 0 && codec != RP_CODEC_MPEG4 &&
                   codec != RP_CODEC_AV1; /* this GPU has no AV1 */
        if (!CHECK_EQ(verdict.on_gpu, can)) {
            fprintf(stderr, "%s: %s\n", clip->name, verdict.reason);
        }
        on_gpu += verdict.on_gpu;
        on_cpu += !verdict.on_gpu;
        CHECK_CONTAINS(verdict.reason, verdict.on_gpu ? "pictures were those of the CPU" : "");
        if (strcmp(clip->name, "h264_g2.mp4") != 0 && verdict.on_gpu) {
            CHECK(check_clip(&rig, clip) > 0);
        }
        CHECK(verdict.reason[0] != '\0');
    }
    CHECK(on_gpu >= 15);
    CHECK(on_cpu >= 5);
    CHECK_EQ(check_clip(&rig, any), any->n);
    struct rp_nvdec_verdict all[MAX_CLIPS];
    CHECK(rp_nvdec_verdicts(rig.nvdec, all, MAX_CLIPS) <= clip_count); /* some are alike */
    CHECK_EQ(rp_nvdec_verdicts(rig.nvdec, all, 1), rp_nvdec_verdicts(rig.nvdec, NULL, 0));
    rig_end(&rig);
}

RP_TEST(a_gpu_that_has_av1_decodes_it)
{
    NEED(clip, "av1_svt_g2.mp4");
    NEED(pairs, "av1_aom_g2.mp4");
    struct nvdec_rig rig = rig_make(2);
    rig.video->codecs |= 1u << RP_CUDA_AV1;
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, pairs, &verdict), &rig.err);
    CHECK_CONTAINS(verdict.reason, "pictures were those of the CPU");
    CHECK_EQ(check_clip(&rig, pairs), pairs->n);
    CHECK_EQ(rig.video->made, 1);
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    CHECK_CONTAINS(verdict.reason, "pictures were those of the CPU");
    CHECK_EQ(check_clip(&rig, clip), clip->n);
    rig_end(&rig);
}

RP_TEST(the_full_range_mark_is_kept)
{
    NEED(clip, "h264_odd_full.mp4");
    struct nvdec_rig rig = rig_make(1);
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    CHECK(verdict.on_gpu);
    CHECK_EQ(facts[entry_of(clip, packet_at(clip, 0, true).pts)].format, RP_PIX_I420J);
    CHECK_EQ(check_clip(&rig, clip), clip->n); /* it compares the mark */
    rig_end(&rig);
}

RP_TEST(sessions_are_flushed_not_opened_again)
{
    NEED(clip, "h264_bpyramid.mp4");
    NEED(other, "hevc_g2.mp4");
    struct nvdec_rig rig = rig_make(2);
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    CHECK(verdict.on_gpu && !rp_nvdec_notice(rig.nvdec, &verdict));
    REQUIRE_OK(decide(&rig, other, &verdict), &rig.err);
    CHECK_EQ(rig.video->made, 2); /* those of the trials go on */
    uint64_t random = 7;
    for (int i = 0; i < 60; i++) {
        const struct clip *c = i % 2 ? clip : other;
        int64_t target = (int64_t)((random = random * 6364136223846793005u + 1) >> 33) % c->n;
        int64_t key = 0;
        REQUIRE_OK(rp_index_start_key(c->index, target, &key, &rig.err), &rig.err);
        struct seen seen = {.rig = &rig, .clip = c, .last_pts = INT64_MIN};
        REQUIRE_OK(nvdec_run(rig.nvdec, c, key, target + 1, target, check_frame, &seen, &rig.err),
                   &rig.err);
        CHECK_EQ(seen.bad, 0);
        CHECK(seen.n >= 1);
    }
    CHECK_EQ(rig.video->made, 2);
    struct rp_nvdec_stats stats;
    rp_nvdec_stats(rig.nvdec, &stats);
    CHECK_EQ(stats.made, 2);
    CHECK_EQ(stats.open, 2);
    CHECK_EQ(stats.busy, 0);
    CHECK_EQ(stats.runs, 62);
    rig_end(&rig);
}

RP_TEST(a_run_may_end_without_a_drain)
{
    NEED(clip, "h264_bpyramid.mp4");
    NEED(other, "hevc_faststart.mp4");
    struct nvdec_rig rig = rig_make(2);
    for (int i = 0; i < 12; i++) {
        const struct clip *c = i % 2 ? clip : other;
        struct seen seen = {.rig = &rig, .clip = c, .last_pts = INT64_MIN};
        struct rp_packet packet = packet_at(c, 0, true);
        rp_decoder *decoder = NULL;
        REQUIRE_OK(
            rp_nvdec_begin(rig.nvdec, rp_index_codec(c->index), &packet, true, &decoder, &rig.err),
            &rig.err);
        for (int64_t k = 0; k < 3 + i; k++) { /* pictures stay inside */
            packet = packet_at(c, k, true);
            CHECK_OK(rp_decoder_send(decoder, &packet, &rig.err), &rig.err);
            CHECK_OK(take_all(decoder, check_frame, &seen, &rig.err), &rig.err);
        }
        rp_nvdec_end(rig.nvdec, &decoder);
        CHECK(seen.n < 3 + i);
        CHECK_EQ(seen.bad, 0);
        CHECK(check_clip(&rig, c) > 0); /* and none of them comes here */
    }
    CHECK_EQ(rig.video->made, 2);
    rig_end(&rig);
}

RP_TEST(work_may_be_done_late)
{
    NEED(clip, "h264_bpyramid.mp4");
    struct nvdec_rig rig = rig_make(1);
    rig.cuda->lazy = true;
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    CHECK(verdict.on_gpu);
    CHECK_EQ(check_clip(&rig, clip), clip->n);
    int n = 0; /* frames that nobody reads give their blocks back before they are copied to */
    REQUIRE_OK(nvdec_run(rig.nvdec, clip, 0, clip->n, -1, count_frame, &n, &rig.err), &rig.err);
    CHECK_EQ(check_clip(&rig, clip), clip->n);
    rig_end(&rig);
}

RP_TEST(frames_outlive_their_session)
{
    NEED(clip, "h264_g2.mp4");
    struct nvdec_rig rig = rig_make(1);
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    struct rp_packet packet = packet_at(clip, 0, true);
    rp_decoder *decoder = NULL;
    rp_frame *frame = NULL, *kept = NULL;
    REQUIRE_OK(
        rp_nvdec_begin(rig.nvdec, rp_index_codec(clip->index), &packet, true, &decoder, &rig.err),
        &rig.err);
    CHECK_OK(rp_decoder_send(decoder, &packet, &rig.err), &rig.err);
    CHECK_OK(rp_decoder_drain(decoder, &rig.err), &rig.err);
    CHECK_OK(rp_decoder_receive(decoder, &frame, &rig.err), &rig.err);
    rp_nvdec_end(rig.nvdec, &decoder);
    rp_arena *arena = NULL;
    REQUIRE_OK(rp_arena_new(1 << 20, false, &arena, &rig.err), &rig.err);
    kept = rp_frame_keep(frame, arena); /* it is counted up: its pixels are not ours to read */
    CHECK(kept == frame);
    rp_arena_close(&arena);
    rp_nvdec_free(&rig.nvdec);
    CHECK_EQ(rig.video->decoders, 0);
    struct seen seen = {.rig = &rig, .clip = clip, .last_pts = INT64_MIN};
    check_frame(&seen, kept);
    CHECK_EQ(seen.bad, 0);
    rp_frame_unref(&kept);
    rp_frame_unref(&frame);
    rig_end(&rig);
}

/* What is decided when the rig has been spoilt. */
static void check_refusal(struct nvdec_rig *rig, const struct clip *clip, const char *text)
{
    struct rp_nvdec_verdict verdict;
    if (CHECK_OK(decide(rig, clip, &verdict), &rig->err)) {
        CHECK(!verdict.on_gpu);
        CHECK_CONTAINS(verdict.reason, text);
        CHECK(rp_nvdec_notice(rig->nvdec, &verdict));
        CHECK_CONTAINS(verdict.reason, text);
        REQUIRE_OK(decide(rig, clip, &verdict), &rig->err);
        CHECK(!rp_nvdec_notice(rig->nvdec, &verdict)); /* it is told once */
    }
    rp_nvdec_free(&rig->nvdec);
    rig->cuda->reset();
    rig->video->reset();
    rig->video->pictures = table;
    rig->video->n = table_n;
    CHECK_OK(rp_nvdec_new(rig->device, NULL, 2, &rig->nvdec, &rig->err), &rig->err);
}

RP_TEST(what_nvdec_does_not_take_goes_to_the_cpu)
{
    NEED(h264, "h264_bpyramid.mp4");
    NEED(deep, "h264_10bit.mp4");
    NEED(av1, "av1_svt_g2.mp4");
    NEED(mpeg4, "mpeg4_bframes.mp4");
    struct nvdec_rig rig = rig_make(2);
    check_refusal(&rig, av1, "this GPU has no decoder for av1");
    check_refusal(&rig, mpeg4, "mpeg4 is decoded on the CPU");
    check_refusal(&rig, deep, "FFmpeg has no NVDEC for this kind of stream");
    rig.video->codecs = 0;
    check_refusal(&rig, h264, "this GPU has no decoder for h264");
    rig.video->min_width = 400;
    check_refusal(&rig, h264, "from 400x16 to 4096x4096, not 320x240");
    rig.video->max_height = 200;
    check_refusal(&rig, h264, "to 4096x200, not 320x240");
    rig.video->create_code = 801;
    check_refusal(&rig, h264, "opening an NVDEC decoder: as told (CUDA_ERROR_OF_THE_FAKE 801)");
    rig.video->off_by = 1;
    check_refusal(&rig, h264, "differ from the CPU's by up to 1");
    rig.video->decode_nth = 3;
    rig.video->decode_code = 999;
    check_refusal(&rig, h264, "NVDEC refuses a packet");
    rig.video->map_nth = 2;
    rig.video->map_code = 1;
    check_refusal(&rig, h264, "NVDEC refuses a packet"); /* libavcodec maps it then */
    rig_end(&rig);
}

RP_TEST(a_missing_or_old_library_goes_to_the_cpu)
{
    NEED(clip, "h264_g2.mp4");
    const char *const libraries[][2] = {
        {"/nowhere/libnvcuvid.so.1", "no NVDEC here: /nowhere/libnvcuvid.so.1"},
        {"libm.so.6", "too old: libm.so.6 has no cuvidGetDecoderCaps"}};
    for (int i = 0; i < 2; i++) {
        struct nvdec_rig rig = rig_make(1);
        rp_nvdec_free(&rig.nvdec);
        REQUIRE_OK(rp_nvdec_new(rig.device, libraries[i][0], 0, &rig.nvdec, &rig.err), &rig.err);
        struct rp_nvdec_verdict verdict;
        REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
        CHECK(!verdict.on_gpu);
        CHECK_CONTAINS(verdict.reason, libraries[i][1]);
        rig_end(&rig);
    }
}

/* Two sessions for each of the fake's three engines; DataLoader workers divide them. */
RP_TEST(processes_share_the_engines)
{
    static const int wanted[][2] = {{0, 6}, {-1, 6}, {-2, 3}, {-4, 1}, {-100, 1}, {5, 5}};
    for (int i = 0; i < 6; i++) {
        struct nvdec_rig rig = rig_make(1);
        rp_nvdec_free(&rig.nvdec);
        REQUIRE_OK(rp_nvdec_new(rig.device, NULL, wanted[i][0], &rig.nvdec, &rig.err), &rig.err);
        struct rp_nvdec_stats stats;
        rp_nvdec_stats(rig.nvdec, &stats);
        CHECK_EQ(stats.most, wanted[i][1]);
        rig_end(&rig);
    }
}

RP_TEST(no_session_is_an_error_with_advice)
{
    NEED(clip, "h264_g2.mp4");
    struct nvdec_rig rig = rig_make(3);
    struct rp_nvdec_verdict verdict;
    rig.video->create_code = 2;
    CHECK_STATUS(decide(&rig, clip, &verdict), RP_E_CUDA, &rig.err);
    CHECK_CONTAINS(rig.err.what, "fewer DataLoader workers (num_workers), 0, or Loader");
    rig.video->create_code = 0;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err); /* nothing was decided before */
    CHECK(verdict.on_gpu);
    rp_nvdec_free(&rig.nvdec);
    REQUIRE_OK(rp_nvdec_new(rig.device, NULL, 3, &rig.nvdec, &rig.err), &rig.err);
    rig.video->create_code = 2;
    struct rp_packet packet = packet_at(clip, 0, true);
    rp_decoder *decoder = NULL;
    CHECK_STATUS(
        rp_nvdec_begin(rig.nvdec, rp_index_codec(clip->index), &packet, true, &decoder, &rig.err),
        RP_E_CUDA, &rig.err);
    CHECK_CONTAINS(rig.err.what, "num_workers");
    rp_cuda_stream_free(&rig.stream);
    rig_end(&rig);
}

RP_TEST(fewer_sessions_than_asked_for_will_do)
{
    NEED(clip, "h264_g2.mp4");
    NEED(other, "hevc_g2.mp4");
    struct nvdec_rig rig = rig_make(3);
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    rig.video->most = 1;
    REQUIRE_OK(decide(&rig, other, &verdict), &rig.err); /* the idle one makes room */
    CHECK(verdict.on_gpu);
    struct rp_packet packet = packet_at(clip, 0, true);
    rp_decoder *first = NULL, *second = NULL;
    const struct rp_codec_params *params = rp_index_codec(clip->index);
    REQUIRE_OK(rp_nvdec_begin(rig.nvdec, params, &packet, false, &first, &rig.err), &rig.err);
    CHECK_EQ(rp_nvdec_begin(rig.nvdec, params, &packet, false, &second, &rig.err), RP_AGAIN);
    struct rp_nvdec_stats stats;
    rp_nvdec_stats(rig.nvdec, &stats);
    CHECK_EQ(stats.most, 1);
    CHECK_EQ(stats.busy, 1);
    CHECK_EQ(stats.open, 1);
    rp_nvdec_end(rig.nvdec, &first);
    CHECK(check_clip(&rig, other) > 0);
    rig_end(&rig);
}

struct share {
    struct nvdec_rig *rig;
    const struct clip *clip;
};

static void *work(void *arg)
{
    struct share *share = arg;
    struct nvdec_rig own = *share->rig; /* a stream of its own to look at pictures */
    rp_error_clear(&own.err);
    if (CHECK_OK(rp_cuda_stream_new(own.device, &own.stream, &own.err), &own.err)) {
        struct rp_nvdec_verdict verdict;
        CHECK_OK(decide(&own, share->clip, &verdict), &own.err);
        CHECK(verdict.on_gpu);
        CHECK(check_clip(&own, share->clip) > 0);
        rp_cuda_stream_free(&own.stream);
    }
    return NULL;
}

RP_TEST(threads_share_sessions)
{
    NEED(clip, "h264_g2.mp4");
    NEED(other, "hevc_faststart.mp4");
    for (int limit = 1; limit <= 3; limit += 2) {
        struct nvdec_rig rig = rig_make(limit == 1 ? 2 : 3);
        rig.video->most = limit == 1 ? 1 : 1000; /* the driver gives fewer than we want */
        rp_thread thread[5];
        struct share share[5];
        for (int i = 0; i < 5; i++) {
            share[i] = (struct share){&rig, i % 2 ? clip : other};
            REQUIRE_OK(rp_thread_start(&thread[i], "work", work, &share[i], &rig.err), &rig.err);
        }
        for (int i = 0; i < 5; i++) {
            rp_thread_join(&thread[i]);
        }
        struct rp_nvdec_verdict all[4];
        CHECK_EQ(rp_nvdec_verdicts(rig.nvdec, all, 4), 2);
        rig_end(&rig);
    }
}

int main(int argc, char **argv)
{
    return nvdec_main(argc, argv);
}
