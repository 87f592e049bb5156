/* For the tests of NVDEC on the fake GPU: what a run must give, against the CPU. Included once per
 * program, after harness.h. */
#ifndef RP_TESTS_NVDEC_CHECK_H
#define RP_TESTS_NVDEC_CHECK_H

#include "nvdec_rig.h"

static RP_UNUSED struct nvdec_rig rig_make(int sessions)
{
    struct nvdec_rig rig = {.cuda = fake_start()};
    rig.video = fake_video_start();
    CHECK_OK(nvdec_rig_open(&rig, fake_path(), sessions), &rig.err);
    return rig;
}

static RP_UNUSED void rig_end(struct nvdec_rig *rig)
{
    nvdec_rig_close(rig);
    CHECK(fake_is_clean(rig->cuda));
    CHECK_EQ(rig->video->decoders, 0);
    CHECK_EQ(rig->video->surfaces, 0);
    CHECK_EQ(rig->video->misuse, 0);
    CHECK_EQ(rig->video->unknown, 0);
}

static RP_UNUSED const struct clip *clip_named(const char *name)
{
    for (int i = 0; i < clip_count; i++) {
        if (strcmp(clips[i].name, name) == 0) {
            return &clips[i];
        }
    }
    return NULL;
}

#define NEED(variable, name)                                              \
    const struct clip *variable = clip_named(name);                       \
    if (variable == NULL) {                                               \
        SKIP("clips", "no clips; make them by tests/data/make_clips.py"); \
    }

/* Frames are what the CPU gives, in order. */
struct seen {
    struct nvdec_rig *rig;
    const struct clip *clip;
    int n, bad;
    int64_t last_pts;
};

static void check_frame(void *arg, rp_frame *frame)
{
    struct seen *seen = arg;
    const struct rp_image *image = rp_frame_image(frame);
    int at = entry_of(seen->clip, rp_frame_pts(frame));
    uint8_t *pixels = at >= 0 ? fetch(seen->rig, frame) : NULL;
    bool good =
        at >= 0 && pixels != NULL && rp_frame_pts(frame) > seen->last_pts &&
        image->width == facts[at].width && image->height == facts[at].height &&
        image->colorspace == facts[at].colorspace && image->color_range == facts[at].color_range &&
        (image->format == RP_PIX_NV12J) == (facts[at].format == RP_PIX_I420J) &&
        memcmp(pixels, table[at].nv12, (size_t)image->width * (size_t)image->height * 3 / 2) == 0;
    seen->bad += !good;
    seen->n++;
    seen->last_pts = rp_frame_pts(frame);
    free(pixels);
}

static void count_frame(void *arg, rp_frame *frame)
{
    (void)frame;
    ++*(int *)arg;
}

/* Pictures that the CPU gives of the run [key, end). */
static int cpu_count(rp_decoder_cache *cache, const struct clip *clip, int64_t key, int64_t end)
{
    int n = 0;
    rp_decoder *decoder = NULL;
    struct rp_packet packet = packet_at(clip, key, true);
    rp_status status =
        rp_decoder_cache_get(cache, rp_index_codec(clip->index), &packet, &decoder, NULL);
    for (int64_t i = key; i <= end && status == RP_OK; i++) {
        packet = packet_at(clip, i < end ? i : key, true);
        status =
            i < end ? rp_decoder_send(decoder, &packet, NULL) : rp_decoder_drain(decoder, NULL);
        status = status == RP_OK ? take_all(decoder, count_frame, &n, NULL) : status;
    }
    return status == RP_OK ? n : -1;
}

/* Every group of the clip as a run of its own, in which as many pictures come as on the CPU. How
 * many. */
static RP_UNUSED int check_clip(struct nvdec_rig *rig, const struct clip *clip)
{
    struct seen seen = {.rig = rig, .clip = clip};
    rp_decoder_cache *cache = NULL;
    CHECK_OK(rp_decoder_cache_new(1, &cache, &rig->err), &rig->err);
    for (int64_t key = 0; key < clip->n;) {
        int64_t end = next_key_of(clip, key);
        int before = seen.n, want = cpu_count(cache, clip, key, end);
        seen.last_pts = INT64_MIN;
        rp_error_clear(&rig->err);
        rp_status status = nvdec_run(rig->nvdec, clip, key, end, -1, check_frame, &seen, &rig->err);
        bool open = status == RP_E_UNSUPPORTED && strstr(rig->err.what, "open GOPs") != NULL;
        if (!open && !CHECK_OK(status, &rig->err)) {
            fprintf(stderr, "%s, key %d\n", clip->name, (int)key);
            break;
        }
        want = open ? 0 : want; /* the CPU's to judge */
        CHECK_EQ(seen.n - before, want);
        key = end;
    }
    if (!CHECK_EQ(seen.bad, 0)) {
        fprintf(stderr, "%s\n", clip->name);
    }
    rp_decoder_cache_free(&cache);
    return seen.n;
}

/* The program: all clips and what the CPU makes of them, then the tests. */
static int nvdec_main(int argc, char **argv)
{
    av_log_set_level(AV_LOG_QUIET); /* its hwcontext reports on its own each call that is refused */
    load_clip_folder();
    for (int i = 0; i < clip_count; i++) {
        tabulate(&clips[i]);
    }
    int status = rp_harness_run(argc, argv);
    free_table();
    free_clips();
    return status;
}

#endif
