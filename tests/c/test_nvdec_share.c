/* Sessions of NVDEC that the driver refuses at the moments that matter: while another run ends,
 * while another session is opened or tried, in the middle of a stream. */
#define RP_HARNESS_OWN_MAIN
#include "harness.h"

#include "nvdec_check.h"

#include "base/thread.h"

/* What happens when the driver refuses (or grants) the nth creation from now on. */
struct event {
    struct nvdec_rig *rig;
    const struct clip *clip;
    rp_decoder *other; /* a run under way */
    int nth, seen;
    bool granted; /* creations that are counted: granted or refused ones */
    bool fail;    /* the other run ends by a failure, which closes its session */
    rp_status begun;
};

static rp_status begin_clip(struct nvdec_rig *rig, const struct clip *clip, bool wanted,
                            bool may_wait, rp_decoder **out)
{
    struct rp_packet packet = packet_at(clip, 0, wanted);
    rp_error_clear(&rig->err);
    return rp_nvdec_begin(rig->nvdec, rp_index_codec(clip->index), &packet, may_wait, out,
                          &rig->err);
}

static bool is_due(struct event *event, int code)
{
    return (code == 0) == event->granted && ++event->seen == event->nth;
}

/* The other run ends. */
static void end_other(void *arg, int code)
{
    struct event *event = arg;
    if (is_due(event, code)) {
        if (event->fail) {
            struct rp_packet packet = packet_at(event->clip, 1, true);
            packet.len = 0;
            packet.pts++;
            CHECK_EQ(rp_decoder_send(event->other, &packet, NULL), RP_E_DECODE);
        }
        rp_nvdec_end(event->rig->nvdec, &event->other);
    }
}

/* A further run is asked for. */
static void begin_other(void *arg, int code)
{
    struct event *event = arg;
    if (is_due(event, code)) {
        struct rp_error err;
        rp_error_clear(&err);
        struct rp_packet packet = packet_at(event->clip, 0, true);
        event->begun = rp_nvdec_begin(event->rig->nvdec, rp_index_codec(event->clip->index),
                                      &packet, false, &event->other, &err);
    }
}

/* The stream is decided for the GPU although the only session is another run's, which ends at the
 * nth refusal. */
static void check_decided(int nth, bool fail)
{
    NEED(clip, "h264_g2.mp4");
    NEED(other, "hevc_g2.mp4");
    struct nvdec_rig rig = rig_make(3);
    struct rp_nvdec_verdict verdict;
    struct event event = {.rig = &rig, .clip = clip, .nth = nth, .fail = fail};
    rig.video->most = 1;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    CHECK_OK(begin_clip(&rig, clip, true, false, &event.other), &rig.err);
    rig.video->arg = &event;
    rig.video->created = end_other;
    if (CHECK_OK(decide(&rig, other, &verdict), &rig.err)) {
        CHECK(verdict.on_gpu);
        CHECK_CONTAINS(verdict.reason, "pictures were those of the CPU");
    }
    rig.video->created = NULL;
    CHECK(event.other == NULL);
    rp_nvdec_end(rig.nvdec, &event.other);
    CHECK(check_clip(&rig, other) > 0);
    CHECK_EQ(check_clip(&rig, clip), clip->n);
    rig_end(&rig);
}

RP_TEST(a_run_that_ends_meanwhile_leaves_its_session)
{
    for (int nth = 1; nth <= 2; nth++) {
        check_decided(nth, false);
        check_decided(nth, true);
    }
}

/* The same of a run. */
RP_TEST(a_run_waits_for_the_last_session)
{
    NEED(clip, "h264_g2.mp4");
    NEED(other, "hevc_g2.mp4");
    for (int i = 0; i < 4; i++) {
        struct nvdec_rig rig = rig_make(3);
        struct rp_nvdec_verdict verdict;
        struct event event = {.rig = &rig, .clip = other, .nth = 1 + i / 2, .fail = i % 2 == 1};
        REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
        rig.video->most = 1;
        REQUIRE_OK(decide(&rig, other, &verdict), &rig.err);
        rp_nvdec_free(&rig.nvdec);
        REQUIRE_OK(rp_nvdec_new(rig.device, NULL, 3, &rig.nvdec, &rig.err), &rig.err);
        CHECK_OK(begin_clip(&rig, other, true, false, &event.other), &rig.err);
        rig.video->arg = &event;
        rig.video->created = end_other;
        rp_decoder *decoder = NULL;
        CHECK_OK(begin_clip(&rig, clip, true, true, &decoder), &rig.err);
        rig.video->created = NULL;
        rp_nvdec_end(rig.nvdec, &decoder);
        rp_nvdec_end(rig.nvdec, &event.other);
        rig_end(&rig);
    }
}

/* While a session is opened, and while one is tried, others wait: what the driver refuses them
 * says nothing. */
RP_TEST(sessions_are_opened_one_at_a_time)
{
    NEED(clip, "h264_g2.mp4");
    NEED(other, "hevc_g2.mp4");
    for (int granted = 0; granted < 2; granted++) {
        struct nvdec_rig rig = rig_make(3);
        struct rp_nvdec_verdict verdict;
        struct event event = {.rig = &rig, .clip = clip, .nth = 1, .granted = granted == 1};
        REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
        rp_nvdec_free(&rig.nvdec);
        REQUIRE_OK(rp_nvdec_new(rig.device, NULL, 3, &rig.nvdec, &rig.err), &rig.err);
        rig.video->create_code = granted ? 0 : 801;
        rig.video->arg = &event;
        rig.video->created = begin_other;
        CHECK_OK(decide(&rig, other, &verdict), &rig.err);
        CHECK_EQ(verdict.on_gpu, granted == 1);
        CHECK_EQ(event.begun, RP_AGAIN);
        rig.video->created = NULL;
        rp_nvdec_end(rig.nvdec, &event.other);
        rig_end(&rig);
    }
}

/* The driver has room again. */
static void make_room(void *arg, int code)
{
    struct event *event = arg;
    if (is_due(event, code)) {
        event->rig->video->create_code = 0;
    }
}

RP_TEST(a_moments_want_is_not_the_streams)
{
    NEED(clip, "h264_g2.mp4");
    NEED(other, "hevc_g2.mp4");
    struct nvdec_rig rig = rig_make(2);
    struct rp_nvdec_verdict verdict;
    for (int trial = 0; trial < 2; trial++) {
        struct event event = {.rig = &rig, .nth = 1};
        rig.video->create_code = 2;
        rig.video->arg = &event;
        rig.video->created = make_room;
        REQUIRE_OK(decide(&rig, trial == 0 ? clip : other, &verdict), &rig.err);
        CHECK(verdict.on_gpu);
    }
    rp_nvdec_free(&rig.nvdec);
    REQUIRE_OK(rp_nvdec_new(rig.device, NULL, 2, &rig.nvdec, &rig.err), &rig.err);
    struct event event = {.rig = &rig, .nth = 1};
    rig.video->create_code = 2;
    rig.video->arg = &event;
    rp_decoder *decoder = NULL;
    CHECK_OK(begin_clip(&rig, clip, true, true, &decoder), &rig.err);
    rig.video->created = NULL;
    rp_nvdec_end(rig.nvdec, &decoder);
    struct rp_nvdec_stats stats;
    rp_nvdec_stats(rig.nvdec, &stats);
    CHECK_EQ(stats.most, 2);
    rig_end(&rig);
}

/* libavcodec keeps silent about a hwaccel that did not start on a picture that nobody wants. */
RP_TEST(a_refusal_on_an_unwanted_picture_is_one)
{
    NEED(clip, "h264_bpyramid.mp4");
    NEED(other, "hevc_g2.mp4");
    NEED(vp9, "vp9_g30.mp4");
    const struct clip *const kinds[] = {clip, other, vp9};
    for (int i = 0; i < 3; i++) {
        struct nvdec_rig rig = rig_make(3);
        struct rp_nvdec_verdict verdict;
        REQUIRE_OK(decide(&rig, kinds[i], &verdict), &rig.err);
        REQUIRE_OK(decide(&rig, kinds[(i + 1) % 3], &verdict), &rig.err);
        rp_nvdec_free(&rig.nvdec);
        REQUIRE_OK(rp_nvdec_new(rig.device, NULL, 3, &rig.nvdec, &rig.err), &rig.err);
        rp_decoder *held = NULL, *decoder = NULL;
        rig.video->most = 1;
        CHECK_OK(begin_clip(&rig, kinds[(i + 1) % 3], true, false, &held), &rig.err);
        CHECK_EQ(begin_clip(&rig, kinds[i], false, false, &decoder), RP_AGAIN);
        rp_nvdec_end(rig.nvdec, &decoder);
        rp_nvdec_end(rig.nvdec, &held);
        rig_end(&rig);
    }
}

int main(int argc, char **argv)
{
    return nvdec_main(argc, argv);
}
