/* rp_loader whose GPU decodes, when things go wrong: an end at any moment, every call of the driver
 * and every allocation fails once. */
#define RP_HARNESS_OWN_MAIN
#include "loader_video.h"

RP_TEST(closing_and_beginning_anew_while_pictures_are_decoded)
{
    for (int i = 0; i < 24; i++) {
        struct fake_cuda *fake = fake_start();
        struct fake_nvcuvid *video = video_start();
        struct rp_error err;
        rp_error_clear(&err);
        mixed_rows(rows, 96, 13);
        fake->lazy = i % 2;
        video->most = i % 3 == 0 ? 1 : 1000;
        video->delay_us = i % 4 == 0 ? 200 : 0;
        rp_loader *loader = open_loader(&demo, gpu_options(i % 4, 3));
        rp_batch *batch = NULL;
        REQUIRE_OK(begin_rows(loader, rows, 96, 8, false, &err), &err);
        for (int k = 0; k < i % 4; k++) {
            REQUIRE_OK(next_batch(loader, &batch, &err), &err);
            rp_batch_free(&batch);
        }
        if (i % 5 == 0) {
            REQUIRE_OK(begin_rows(loader, rows + 5, 40, 8, false, &err), &err);
            REQUIRE_OK(next_batch(loader, &batch, &err), &err);
            (void)check_on_gpu(batch, rows + 5, 8);
        }
        rp_loader_close(&loader);
        rp_batch_free(&batch);
        fake->lazy = false;
        check_clean(fake, video);
    }
}

RP_TEST(every_call_of_the_driver_fails_once)
{
    struct fake_cuda *fake = fake_start();
    struct fake_nvcuvid *video = video_start();
    mixed_rows(rows, 8, 14);
    struct rp_error err;
    int64_t alive = rp_live_objects();
    int failures = 0;
    for (int threads = 0; threads <= 2; threads += 2) {
        bool reached = true;
        for (long nth = 1; reached; nth += 1 + nth / 40) {
            fake->reset();
            fake->fail_nth = nth;
            fake->spare_name = "cuCtxPushCurrent"; /* FFmpeg frees without a context then */
            fake->fail_code = nth % 3 == 0 ? 719 : nth % 3 == 1 ? 2 : 999;
            rp_status status = whole_life(fake, threads, nth % 2, nth % 4 < 2, &err);
            reached = fake->calls >= nth;
            fake->fail_nth = 0;
            if (status != RP_END) {
                failures++;
                (void)CHECK_EQ(status, RP_E_CUDA);
                (void)CHECK(err.what[0] != '\0');
            }
            if (!CHECK(fake_is_clean(fake)) || !CHECK_EQ(rp_live_objects(), alive) ||
                !CHECK_EQ(video->decoders, 0)) {
                fprintf(stderr, "call %ld failed, with %d threads\n", nth, threads);
                return;
            }
        }
    }
    (void)CHECK(failures > 100);
    (void)CHECK(video->mapped > 1000);
}

static void use_gpu(void *arg)
{
    struct fake_cuda *fake = arg;
    struct rp_error err;
    rp_status status = whole_life(fake, 0, false, true, &err);
    (void)CHECK(status == RP_END || status == RP_E_NOMEM || status == RP_E_CUDA);
}

RP_TEST(every_allocation_may_fail)
{
    struct fake_cuda *fake = fake_start();
    struct fake_nvcuvid *video = video_start();
    mixed_rows(rows, 8, 17);
    (void)CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, use_gpu, fake) > 0);
    check_clean(fake, video);
}

int main(int argc, char **argv)
{
    return loader_video_main(argc, argv);
}
