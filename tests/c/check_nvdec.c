/* What only a GPU can show of NVDEC: pictures against the CPU's, sessions, damage, speed. Without a
 * GPU it runs on the stand-ins (fake_cuda.c, fake_nvcuvid.c), so that it is not blind, and says so.
 * `check_nvdec --bench` prints frames per second instead. Clips: REELPOOL_TEST_CLIPS. */
#define RP_HARNESS_OWN_MAIN
#include "harness.h"

#include "nvdec_rig.h"

#include "base/thread.h"

#include <sys/wait.h>
#include <time.h>

static char reason[512]; /* why there is no GPU; "": there is one */
static const char *driver;

static struct nvdec_rig rig_make(int sessions)
{
    struct nvdec_rig rig = {0};
    if (reason[0] != '\0') {
        rig.cuda = fake_start();
        rig.video = fake_video_start();
    }
    CHECK_OK(nvdec_rig_open(&rig, driver, sessions), &rig.err);
    return rig;
}

RP_TEST(there_is_a_gpu)
{
    if (reason[0] != '\0') {
        SKIP("gpu", reason);
    }
    struct rp_cuda_info info[RP_CUDA_MAX_DEVICES];
    struct rp_error err;
    int n = 0, version = 0;
    rp_error_clear(&err);
    REQUIRE_OK(rp_cuda_list(NULL, info, &n, &version, &err), &err);
    fprintf(stderr, "%s, driver %d\n", info[0].name, version);
    struct nvdec_rig rig = rig_make(0);
    static const char *const names[] = {"h264", "hevc", "vp9", "av1"};
    static const enum rp_cuda_codec codecs[] = {RP_CUDA_H264, RP_CUDA_HEVC, RP_CUDA_VP9,
                                                RP_CUDA_AV1};
    for (int i = 0; i < 4; i++) {
        struct rp_cuda_video_caps c;
        REQUIRE_OK(rp_cuda_video_caps(rig.device, NULL, codecs[i], &c, &rig.err), &rig.err);
        fprintf(stderr, "%s: %s, %d engines, %dx%d to %dx%d, %d blocks\n", names[i],
                c.supported ? "yes" : "no", c.engines, c.min_width, c.min_height, c.max_width,
                c.max_height, (int)c.max_blocks);
    }
    nvdec_rig_close(&rig);
}

struct comparison {
    struct nvdec_rig *rig;
    const struct clip *clip;
    int n, missing, most;
};

static void compare_frame(void *arg, rp_frame *frame)
{
    struct comparison *c = arg;
    const struct rp_image *image = rp_frame_image(frame);
    int at = entry_of(c->clip, rp_frame_pts(frame));
    uint8_t *pixels = at >= 0 ? fetch(c->rig, frame) : NULL;
    c->n++;
    if (pixels == NULL || image->width != facts[at].width || image->height != facts[at].height ||
        image->colorspace != facts[at].colorspace || image->color_range != facts[at].color_range ||
        (image->format == RP_PIX_NV12J) != (facts[at].format == RP_PIX_I420J)) {
        c->missing++;
        free(pixels);
        return;
    }
    size_t bytes = (size_t)image->width * (size_t)image->height * 3 / 2;
    for (size_t i = 0; i < bytes; i++) {
        int d = pixels[i] - table[at].nv12[i];
        d = d < 0 ? -d : d;
        c->most = d > c->most ? d : c->most;
    }
    free(pixels);
}

/* xorshift64*, so that failures repeat. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

/* All groups of all clips, then random single pictures: the greatest difference of any sample. */
RP_TEST(pictures_are_those_of_the_cpu)
{
    struct nvdec_rig rig = rig_make(0);
    uint64_t random = 88172645463325252u;
    fprintf(stderr, "%-28s %-10s %8s %8s %s\n", "clip", "size", "pictures", "max diff", "verdict");
    for (int i = 0; i < clip_count; i++) {
        const struct clip *clip = &clips[i];
        const struct rp_codec_params *params = rp_index_codec(clip->index);
        struct rp_nvdec_verdict verdict = {0};
        struct comparison c = {.rig = &rig, .clip = clip};
        rp_status status = decide(&rig, clip, &verdict);
        for (int64_t key = 0; key < clip->n && status == RP_OK && verdict.on_gpu;) {
            int64_t end = next_key_of(clip, key);
            status = nvdec_run(rig.nvdec, clip, key, end, -1, compare_frame, &c, &rig.err);
            status = status == RP_E_UNSUPPORTED ? RP_OK : status; /* an open group of H.264 */
            key = end;
        }
        for (int k = 0; k < 40 && status == RP_OK && verdict.on_gpu; k++) {
            int64_t target = (int64_t)(next_random(&random) % (uint64_t)clip->n), key = 0;
            if (rp_index_start_key(clip->index, target, &key, NULL) == RP_OK) {
                status = nvdec_run(rig.nvdec, clip, key, target + 1, target, compare_frame, &c,
                                   &rig.err);
                status = status == RP_E_UNSUPPORTED ? RP_OK : status;
            }
        }
        char size[32];
        snprintf(size, sizeof(size), "%dx%d", params->width, params->height);
        fprintf(stderr, "%-28s %-10s %8d %8d %s; %s\n", clip->name, size, c.n, c.most,
                verdict.on_gpu ? "GPU" : "CPU", status == RP_OK ? verdict.reason : rig.err.what);
        bool refused = params->codec == RP_CODEC_AV1 && status == RP_E_UNSUPPORTED;
        CHECK(status == RP_OK || refused); /* refused: this FFmpeg has no CPU decoder of AV1 */
        CHECK_EQ(c.missing, 0);
        CHECK_EQ(c.most, 0);
        rp_error_clear(&rig.err);
    }
    struct rp_nvdec_stats stats;
    rp_nvdec_stats(rig.nvdec, &stats);
    fprintf(stderr, "sessions: at most %d, opened %d times for %d runs\n", stats.most,
            (int)stats.made, (int)stats.runs);
    nvdec_rig_close(&rig);
}

/* The first clip of the codec that the GPU decodes. */
static const struct clip *clip_on_gpu(struct nvdec_rig *rig, enum rp_codec codec)
{
    for (int i = 0; i < clip_count; i++) {
        struct rp_nvdec_verdict verdict;
        if (rp_index_codec(clips[i].index)->codec == codec &&
            decide(rig, &clips[i], &verdict) == RP_OK && verdict.on_gpu) {
            return &clips[i];
        }
    }
    return NULL;
}

static void drop_frame(void *arg, rp_frame *frame)
{
    (void)frame;
    ++*(int64_t *)arg;
}

static double seconds_since(int64_t began)
{
    return (double)(rp_now_ns() - began) / 1e9;
}

RP_TEST(sessions_open_and_close_a_thousand_times)
{
    struct nvdec_rig rig = rig_make(1);
    const struct clip *clip = clip_on_gpu(&rig, RP_CODEC_H264);
    REQUIRE(clip != NULL);
    int64_t n = 0, began = rp_now_ns();
    int cycles = rig.cuda != NULL ? 50 : 1000;
    for (int i = 0; i < cycles; i++) {
        rp_nvdec_free(&rig.nvdec);
        REQUIRE_OK(rp_nvdec_new(rig.device, NULL, 1, &rig.nvdec, &rig.err), &rig.err);
        REQUIRE_OK(nvdec_run(rig.nvdec, clip, 0, 1, -1, drop_frame, &n, &rig.err), &rig.err);
    }
    CHECK_EQ(n, cycles);
    fprintf(stderr, "a session and one picture: %.2f ms\n", seconds_since(began) * 1e3 / cycles);
    nvdec_rig_close(&rig);
}

RP_TEST(the_session_limit_is_a_typed_error)
{
    struct nvdec_rig rig = rig_make(RP_NVDEC_MAX_SESSIONS);
    if (rig.video != NULL) {
        rig.video->most = 20;
    }
    const struct clip *clip = clip_on_gpu(&rig, RP_CODEC_H264);
    REQUIRE(clip != NULL);
    rp_decoder *held[RP_NVDEC_MAX_SESSIONS] = {0};
    struct rp_packet packet = packet_at(clip, 0, true);
    int n = 0;
    rp_status status = RP_OK;
    while (n < RP_NVDEC_MAX_SESSIONS && status == RP_OK) {
        status = rp_nvdec_begin(rig.nvdec, rp_index_codec(clip->index), &packet, false, &held[n],
                                &rig.err);
        n += status == RP_OK;
    }
    fprintf(stderr, "%d sessions at once, then %s: %s\n", n, rp_status_name(status), rig.err.what);
    CHECK(n >= 2);
    CHECK(status == RP_OK || status == RP_AGAIN || status == RP_E_CUDA);
    while (n > 0) {
        rp_nvdec_end(rig.nvdec, &held[--n]);
    }
    nvdec_rig_close(&rig);
}

/* Bytes changed inside of one packet of a group: how many pictures come out wrong without a sign,
 * as the CPU's would (docs/decoding.md). No figure fails the test. */
RP_TEST(damage_is_counted)
{
    struct nvdec_rig rig = rig_make(2);
    static const enum rp_codec codecs[] = {RP_CODEC_H264, RP_CODEC_HEVC, RP_CODEC_VP9};
    for (int k = 0; k < 3; k++) {
        const struct clip *clip = clip_on_gpu(&rig, codecs[k]);
        uint64_t random = 4101842887655102017u;
        int refused = 0, right = 0, wrong = 0;
        for (int i = 0; clip != NULL && i < 100; i++) {
            struct clip bad = *clip;
            bad.file = malloc(clip->len);
            memcpy(bad.file, clip->file, clip->len);
            int64_t end = next_key_of(clip, 0);
            struct rp_packet hit =
                packet_at(&bad, (int64_t)(next_random(&random) % (uint64_t)end), true);
            bad.file[hit.data - bad.file + (ptrdiff_t)(next_random(&random) % hit.len)] ^=
                (uint8_t)(1u << next_random(&random) % 8);
            struct comparison c = {.rig = &rig, .clip = clip};
            rp_error_clear(&rig.err);
            rp_status status = nvdec_run(rig.nvdec, &bad, 0, end, -1, compare_frame, &c, &rig.err);
            refused += status != RP_OK;
            right += status == RP_OK && c.most == 0 && c.missing == 0;
            wrong += status == RP_OK && (c.most != 0 || c.missing != 0);
            CHECK(status == RP_OK || status == RP_E_DECODE);
            free(bad.file);
        }
        fprintf(stderr, "%s, one bit of a run: right %d, refused %d, wrong %d of 100\n",
                clip != NULL ? clip->name : "none", right, refused, wrong);
    }
    nvdec_rig_close(&rig);
}

RP_TEST(a_forked_child_is_told_to_spawn)
{
    struct nvdec_rig rig = rig_make(1);
    struct rp_nvdec_verdict verdict;
    REQUIRE(clip_on_gpu(&rig, RP_CODEC_H264) != NULL);
    pid_t child = fork();
    if (child == 0) {
        bool told = decide(&rig, &clips[0], &verdict) == RP_E_CUDA &&
                    strstr(rig.err.what, "'spawn'") != NULL;
        _exit(told ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    nvdec_rig_close(&rig);
}

/* -- speed -- */

#define MOST_THREADS 16

struct bench {
    struct nvdec_rig *rig; /* NULL: on the CPU */
    const struct clip *clip;
    int64_t until; /* ns */
    int64_t frames, cpu_ns;
    struct rp_error err;
    rp_status status;
};

static int64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One run on the CPU, frames dropped. */
static rp_status cpu_run(rp_decoder_cache *cache, const struct clip *clip, int64_t key, int64_t end,
                         int64_t *frames, struct rp_error *err)
{
    struct rp_packet packet = packet_at(clip, key, true);
    rp_decoder *decoder = NULL;
    RP_TRY(rp_decoder_cache_get(cache, rp_index_codec(clip->index), &packet, &decoder, err));
    for (int64_t i = key; i <= end; i++) {
        if (i < end) {
            packet = packet_at(clip, i, true);
            RP_TRY(rp_decoder_send(decoder, &packet, err));
        }
        else {
            RP_TRY(rp_decoder_drain(decoder, err));
        }
        RP_TRY(take_all(decoder, drop_frame, frames, err));
    }
    return RP_OK;
}

static void *bench_thread(void *arg)
{
    struct bench *b = arg;
    rp_decoder_cache *cache = NULL;
    int64_t cpu = thread_cpu_ns();
    rp_error_clear(&b->err);
    b->status = b->rig == NULL ? rp_decoder_cache_new(1, &cache, &b->err) : RP_OK;
    while (b->status == RP_OK && rp_now_ns() < b->until) {
        for (int64_t key = 0; key < b->clip->n && b->status == RP_OK && rp_now_ns() < b->until;) {
            int64_t end = next_key_of(b->clip, key);
            b->status = b->rig == NULL ? cpu_run(cache, b->clip, key, end, &b->frames, &b->err)
                                       : nvdec_run(b->rig->nvdec, b->clip, key, end, -1, drop_frame,
                                                   &b->frames, &b->err);
            key = end;
        }
    }
    rp_decoder_cache_free(&cache);
    b->cpu_ns = thread_cpu_ns() - cpu;
    return NULL;
}

/* Frames per second of n threads; *cpu_ms: of the CPU per frame. */
static double rate(struct nvdec_rig *rig, const struct clip *clip, int n, double seconds,
                   double *cpu_ms)
{
    rp_thread thread[MOST_THREADS];
    struct bench b[MOST_THREADS];
    int64_t began = rp_now_ns(), frames = 0, cpu = 0;
    for (int i = 0; i < n; i++) {
        b[i] = (struct bench){.rig = rig, .clip = clip, .until = began + (int64_t)(seconds * 1e9)};
        REQUIRE_OK(rp_thread_start(&thread[i], "bench", bench_thread, &b[i], NULL), NULL);
    }
    for (int i = 0; i < n; i++) {
        rp_thread_join(&thread[i]);
        frames += b[i].frames;
        cpu += b[i].cpu_ns;
        CHECK_OK(b[i].status, &b[i].err);
    }
    double took = seconds_since(began);
    *cpu_ms = frames > 0 ? (double)cpu / 1e6 / (double)frames : 0;
    return (double)frames / took;
}

/* A row of the table: CPU with one thread, then NVDEC with 1 .. most sessions. */
static void bench_clip(struct nvdec_rig *rig, const struct clip *clip, double seconds)
{
    struct rp_nvdec_verdict verdict = {0};
    rp_error_clear(&rig->err);
    if (decide(rig, clip, &verdict) != RP_OK || !verdict.on_gpu) {
        printf("| %s | %s |\n", clip->name, verdict.reason[0] ? verdict.reason : rig->err.what);
        return;
    }
    const struct rp_codec_params *params = rp_index_codec(clip->index);
    struct rp_nvdec_stats stats;
    double cpu_ms = 0, warm = 0;
    (void)rate(rig, clip, 1, seconds / 4, &warm);
    double cpu = rate(NULL, clip, 1, seconds, &cpu_ms);
    rp_nvdec_stats(rig->nvdec, &stats);
    printf("| %s | %s | %dx%d | %d | %.0f |", clip->name, rp_codec_name(params->codec),
           params->width, params->height, (int)next_key_of(clip, 0), cpu);
    for (int n = 1; n <= stats.most && n <= MOST_THREADS; n *= 2) {
        printf(" %d: %.0f", n, rate(rig, clip, n, seconds, &cpu_ms));
        (void)fflush(stdout);
    }
    int most = stats.most < MOST_THREADS ? stats.most : MOST_THREADS;
    printf(" %d: %.0f", most, rate(rig, clip, most, seconds, &cpu_ms));
    printf(" | %.3f |\n", cpu_ms);
}

static int bench(double seconds)
{
    struct nvdec_rig rig = rig_make(0);
    struct rp_nvdec_stats stats;
    rp_nvdec_stats(rig.nvdec, &stats);
    printf("%s; at most %d sessions (two an engine)\n",
           reason[0] != '\0' ? "no GPU: stand-ins, these figures mean nothing" : "NVDEC",
           stats.most);
    printf("| clip | codec | size | group | CPU, 1 thread, frames/s | NVDEC, sessions: frames/s | "
           "its CPU ms per frame |\n|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < clip_count; i++) {
        if (strncmp(clips[i].name, "bench_", 6) == 0) {
            bench_clip(&rig, &clips[i], seconds);
        }
    }
    nvdec_rig_close(&rig);
    return 0;
}

/* Whether there is a GPU: else the stand-ins are the driver. */
static void look(void)
{
    struct rp_cuda_info info[RP_CUDA_MAX_DEVICES];
    struct rp_error err;
    int n = 0, version = 0;
    rp_error_clear(&err);
    if (rp_cuda_list(NULL, info, &n, &version, &err) != RP_OK) {
        (void)snprintf(reason, sizeof(reason), "no gpu: %s", err.what);
        driver = fake_path();
    }
}

int main(int argc, char **argv)
{
    bool speed = argc > 1 && strcmp(argv[1], "--bench") == 0;
    av_log_set_level(AV_LOG_QUIET);
    look();
    load_clip_folder();
    for (int i = 0; i < clip_count; i++) {
        tabulate(&clips[i]);
    }
    if (clip_count == 0) {
        fprintf(stderr, "skipped: no clips: make them by tests/data/make_clips.py\n");
        return 0;
    }
    int status = speed ? bench(argc > 2 ? strtod(argv[2], NULL) : 2.0) : rp_harness_run(argc, argv);
    free_table();
    free_clips();
    return status;
}
