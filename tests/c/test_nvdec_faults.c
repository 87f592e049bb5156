/* What goes wrong on NVDEC, against NVIDIA libraries that need no GPU: runs that fail, a GPU that
 * is lost or full, a forked child, every call and every allocation failing once. */
#define RP_HARNESS_OWN_MAIN
#include "harness.h"

#include "nvdec_check.h"

#include <sys/wait.h>

RP_TEST(a_run_that_fails_ends_its_session_alone)
{
    NEED(clip, "h264_bpyramid.mp4");
    struct nvdec_rig rig = rig_make(2);
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    int n = 0;
    rig.video->decode_nth = rig.video->decoded + 4;
    rig.video->decode_code = 700;
    CHECK_STATUS(nvdec_run(rig.nvdec, clip, 0, clip->n, -1, count_frame, &n, &rig.err), RP_E_DECODE,
                 &rig.err);
    CHECK_CONTAINS(rig.err.what, "NVDEC refuses a packet");
    CHECK_EQ(rig.video->decoders, 0);
    rig.video->decode_nth = 0;
    CHECK_EQ(check_clip(&rig, clip), clip->n);
    CHECK_EQ(rig.video->made, 2);
    struct clip cut = *clip; /* a picture whose first slice states an impossible length */
    cut.file = malloc(clip->len);
    memcpy(cut.file, clip->file, clip->len);
    struct rp_packet packet = packet_at(&cut, 5, true);
    memset(cut.file + (packet.data - cut.file), 0xEE, 8);
    rp_error_clear(&rig.err);
    CHECK_STATUS(nvdec_run(rig.nvdec, &cut, 0, next_key_of(&cut, 0), -1, count_frame, &n, &rig.err),
                 RP_E_DECODE, &rig.err);
    free(cut.file);
    CHECK_EQ(check_clip(&rig, clip), clip->n);
    rig_end(&rig);
}

RP_TEST(an_open_group_of_h264_is_refused)
{
    NEED(clip, "h264_open_gop.mp4");
    struct nvdec_rig rig = rig_make(1);
    struct rp_nvdec_verdict verdict;
    int n = 0;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    REQUIRE_OK(nvdec_run(rig.nvdec, clip, 0, next_key_of(clip, 0), -1, count_frame, &n, &rig.err),
               &rig.err);
    int64_t key = next_key_of(clip, 0);
    CHECK_STATUS(
        nvdec_run(rig.nvdec, clip, key, next_key_of(clip, key), -1, count_frame, &n, &rig.err),
        RP_E_UNSUPPORTED, &rig.err);
    CHECK_CONTAINS(rig.err.what, "open GOPs");
    CHECK_EQ(rig.video->made, 1); /* its session stays */
    CHECK_EQ(rig.video->decoders, 1);
    CHECK(check_clip(&rig, clip) > 0);
    rig_end(&rig);
}

RP_TEST(a_lost_gpu_is_a_cuda_error)
{
    NEED(clip, "h264_bpyramid.mp4");
    struct nvdec_rig rig = rig_make(2);
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    rig.cuda->lost = 719;
    int n = 0;
    CHECK_STATUS(nvdec_run(rig.nvdec, clip, 0, clip->n, -1, count_frame, &n, &rig.err), RP_E_CUDA,
                 &rig.err);
    CHECK_EQ(rig.err.sys, 719);
    rp_error_clear(&rig.err);
    NEED(other, "hevc_g2.mp4");
    CHECK_STATUS(decide(&rig, other, &verdict), RP_E_CUDA, &rig.err);
    rig.cuda->lost = 0; /* else the fake counts nothing that is given back */
    rig_end(&rig);
}

RP_TEST(gpu_memory_runs_out)
{
    NEED(clip, "h264_bpyramid.mp4");
    struct nvdec_rig rig = rig_make(2);
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    rig.cuda->limit = rig.cuda->bytes + 1000;
    rp_frame *held[64];
    int n = 0, failed = 0;
    struct rp_packet packet = packet_at(clip, 0, true);
    rp_decoder *decoder = NULL;
    REQUIRE_OK(
        rp_nvdec_begin(rig.nvdec, rp_index_codec(clip->index), &packet, true, &decoder, &rig.err),
        &rig.err);
    for (int64_t i = 0; i < clip->n && !failed; i++) {
        packet = packet_at(clip, i, true);
        rp_frame *frame = NULL;
        rp_status status = rp_decoder_send(decoder, &packet, &rig.err);
        while (status == RP_OK &&
               (status = rp_decoder_receive(decoder, &frame, &rig.err)) == RP_OK) {
            held[n++] = frame;
        }
        failed = status < 0;
        CHECK(status == RP_AGAIN || status == RP_E_CUDA);
    }
    CHECK(failed);
    CHECK_CONTAINS(rig.err.what, "bytes of GPU memory: out of memory");
    rp_nvdec_end(rig.nvdec, &decoder);
    while (n > 0) {
        rp_frame_unref(&held[--n]);
    }
    rig.cuda->limit = 0;
    CHECK_EQ(check_clip(&rig, clip), clip->n);
    rig_end(&rig);
}

RP_TEST(a_forked_child_is_told_to_spawn)
{
    NEED(clip, "h264_g2.mp4");
    struct nvdec_rig rig = rig_make(2);
    struct rp_nvdec_verdict verdict;
    REQUIRE_OK(decide(&rig, clip, &verdict), &rig.err);
    pid_t child = fork();
    if (child == 0) {
        struct rp_packet packet = packet_at(clip, 0, true);
        rp_decoder *decoder = NULL;
        bool told =
            decide(&rig, clip, &verdict) == RP_E_CUDA && strstr(rig.err.what, "'spawn'") != NULL;
        rp_error_clear(&rig.err);
        told = told && rp_nvdec_begin(rig.nvdec, rp_index_codec(clip->index), &packet, true,
                                      &decoder, &rig.err) == RP_E_CUDA;
        told = told && strstr(rig.err.what, "'spawn'") != NULL;
        nvdec_rig_close(&rig);
        _exit(told ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    CHECK_EQ(check_clip(&rig, clip), clip->n);
    rig_end(&rig);
}

/* Decide and decode a few pictures; only success or a typed error will do. */
static void attempt(void *arg)
{
    const struct clip *clip = arg;
    struct nvdec_rig rig = {.cuda = fake_start()}; /* it keeps what was armed */
    int n = 0;
    struct rp_nvdec_verdict verdict = {0};
    rp_status status = nvdec_rig_open(&rig, fake_path(), 2);
    if (status == RP_OK) {
        status = decide(&rig, clip, &verdict);
    }
    if (status == RP_OK && verdict.on_gpu) {
        status = nvdec_run(rig.nvdec, clip, 0, 4, -1, count_frame, &n, &rig.err);
        CHECK(status != RP_OK || n == 4);
    }
    CHECK(status == RP_OK || status == RP_E_NOMEM || status == RP_E_CUDA || status == RP_E_DECODE);
    CHECK(status == RP_OK || rig.err.what[0] != '\0');
    nvdec_rig_close(&rig);
}

RP_TEST(memory_fails_once)
{
    NEED(clip, "h264_bpyramid.mp4");
    struct fake_cuda *cuda = fake_start();
    struct fake_nvcuvid *video = fake_video_start();
    struct rp_fault fault = {.calls = RP_FAULT_MEMORY | RP_FAULT_THREAD};
    CHECK(rp_fault_sweep(fault, attempt, (void *)(uintptr_t)clip) > 20);
    CHECK(fake_is_clean(cuda));
    CHECK_EQ(video->decoders, 0);
    CHECK_EQ(video->misuse, 0);
}

RP_TEST(every_driver_call_fails_once)
{
    NEED(clip, "h264_bpyramid.mp4");
    struct fake_cuda *cuda = fake_start();
    struct fake_nvcuvid *video = fake_video_start();
    struct nvdec_rig rig = {.cuda = cuda, .video = video};
    CHECK_OK(nvdec_rig_open(&rig, fake_path(), 2), &rig.err);
    const int codes[] = {1, 2, 700};
    for (int k = 0; k < 3; k++) {
        long met = 1;
        for (long nth = 1; met > 0 && nth < 100000; nth += 1 + nth / 60) {
            struct rp_nvdec_verdict verdict = {0};
            int n = 0;
            struct nvdec_rig one = {.cuda = cuda, .video = video};
            cuda->calls = 0;
            cuda->fail_name = NULL;
            cuda->fail_nth = nth;
            cuda->fail_code = codes[k];
            rp_status status = nvdec_rig_open(&one, fake_path(), 2);
            if (status == RP_OK) {
                status = decide(&one, clip, &verdict);
            }
            if (status == RP_OK && verdict.on_gpu) {
                status = nvdec_run(one.nvdec, clip, 0, 4, -1, count_frame, &n, &one.err);
                CHECK(status != RP_OK || n == 4);
            }
            CHECK(status == RP_OK || status == RP_E_CUDA || status == RP_E_DECODE);
            met = cuda->calls >= nth;
            cuda->fail_nth = 0;
            nvdec_rig_close(&one);
            if (video->decoders != 0 || video->surfaces != 0) {
                fprintf(stderr, "call %ld, code %d\n", nth, codes[k]);
                CHECK_EQ(video->decoders, 0);
                break;
            }
        }
    }
    nvdec_rig_close(&rig);
    CHECK_EQ(video->surfaces, 0);
}

RP_TEST(many_times_open_and_close)
{
    NEED(clip, "h264_g2.mp4");
    for (int i = 0; i < 200; i++) {
        struct nvdec_rig rig = rig_make(2);
        int n = 0;
        REQUIRE_OK(nvdec_run(rig.nvdec, clip, 0, 2, -1, count_frame, &n, &rig.err), &rig.err);
        CHECK_EQ(n, 2);
        rig_end(&rig);
    }
}

int main(int argc, char **argv)
{
    return nvdec_main(argc, argv);
}
