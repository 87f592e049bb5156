/* For the tests of a loader whose GPU decodes: the demo's videos on the fake NVDEC. Included once
 * per program, which defines RP_HARNESS_OWN_MAIN. */
#ifndef RP_TESTS_LOADER_VIDEO_H
#define RP_TESTS_LOADER_VIDEO_H

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

static RP_UNUSED void check_clean(const struct fake_cuda *fake, const struct fake_nvcuvid *video)
{
    (void)CHECK(fake_is_clean(fake));
    (void)CHECK_EQ(video->decoders, 0);
    (void)CHECK_EQ(video->surfaces, 0);
    (void)CHECK_EQ(video->misuse, 0);
    (void)CHECK_EQ(video->unknown, 0);
}

/* The program: the demo's videos and what the CPU makes of them, then the tests. */
static int loader_video_main(int argc, char **argv)
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

#endif
