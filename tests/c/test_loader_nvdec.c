/* rp_loader with batches in a GPU's memory and pictures that its video engine decodes, against
 * NVIDIA libraries that need no GPU: the bytes are the CPU's, whatever fails on the way. */
#define RP_HARNESS_OWN_MAIN
#include "loader_gpu.h"
#include "loader_rest.h"

#include "nvdec_table.h"

#include "cuda/cuda_video.h"

/* The demo's videos, known to the fake NVDEC, which decodes AV1, too. */
static struct fake_nvcuvid *video_start(void)
{
    need_reference();
    demo_init(&demo);
    struct fake_nvcuvid *video = fake_video_start();
    video->codecs |= 1u << RP_CUDA_AV1;
    return video;
}

static int64_t on_gpu; /* pictures that the last loader decoded there */

/* Two epochs of 70 rows, batch by batch. */
static void check_epochs(struct rp_loader_options options)
{
    struct rp_error err;
    rp_error_clear(&err);
    mixed_rows(rows, 70, 3);
    rp_loader *loader = open_loader(&demo, options);
    for (int epoch = 0; epoch < 2; epoch++) {
        REQUIRE_OK(begin_rows(loader, rows, 70, 16, false, &err), &err);
        rp_batch *batch = NULL;
        for (int64_t at = 0; at < 70; at += 16) {
            REQUIRE_OK(next_batch(loader, &batch, &err), &err);
            (void)check_on_gpu(batch, rows + at, at + 16 > 70 ? 70 - at : 16);
            rp_batch_free(&batch);
        }
        (void)CHECK_STATUS(next_batch(loader, &batch, &err), RP_END, &err);
    }
    struct rp_loader_stats stats;
    rp_loader_stats(loader, &stats);
    (void)CHECK_EQ(stats.device.converted, 2 * 2 * 70);
    on_gpu = stats.device.decoded;
    check_rest(loader);
    rp_loader_close(&loader);
}

static void check_clean(const struct fake_cuda *fake, const struct fake_nvcuvid *video)
{
    (void)CHECK(fake_is_clean(fake));
    (void)CHECK_EQ(video->decoders, 0);
    (void)CHECK_EQ(video->surfaces, 0);
    (void)CHECK_EQ(video->misuse, 0);
    (void)CHECK_EQ(video->unknown, 0);
}

RP_TEST(pictures_of_the_gpu_are_those_of_the_cpu)
{
    static const int thread_counts[] = {0, 1, 2, 8};
    for (int t = 0; t < 4; t++) {
        for (int lazy = 0; lazy < 2; lazy++) {
            struct fake_cuda *fake = fake_start();
            struct fake_nvcuvid *video = video_start();
            fake->lazy = lazy == 1;
            check_epochs(gpu_options(thread_counts[t], 2));
            (void)CHECK(on_gpu >= 2 * 70 && on_gpu <= video->mapped);
            (void)CHECK(video->made * 10 < video->mapped); /* opened seldom, used again */
            check_clean(fake, video);
        }
    }
}

RP_TEST(few_sessions_serve_many_threads)
{
    struct fake_cuda *fake = fake_start();
    struct fake_nvcuvid *video = video_start();
    video->most = 1;
    check_epochs(gpu_options(6, 3));
    check_clean(fake, video);
}

RP_TEST(what_the_gpu_fails_on_the_cpu_decodes)
{
    for (int kind = 0; kind < 4; kind++) {
        struct fake_cuda *fake = fake_start();
        struct fake_nvcuvid *video = video_start();
        video->decode_code = video->map_code = 999;
        video->decode_nth = kind == 0 ? 1 : kind == 1 ? 30 : 0;
        video->map_nth = kind == 2 ? 40 : 0;
        video->off_by = kind == 3;
        check_epochs(gpu_options(2, 2));
        (void)CHECK((on_gpu == 0) == (kind == 0 || kind == 3)); /* the trial said no */
        (void)CHECK(fake_is_clean(fake));
        (void)CHECK_EQ(video->decoders, 0);
    }
}

int main(int argc, char **argv)
{
    av_log_set_level(AV_LOG_QUIET);
    demo_init(&demo);
    for (int i = 0; i < FILES; i++) {
        if (!load_clip(demo.paths[i])) {
            fprintf(stderr, "%s cannot be read\n", demo.paths[i]);
            return 1;
        }
        tabulate(&clips[i]);
    }
    int status = rp_harness_run(argc, argv);
    free_table();
    free_clips();
    return status;
}
