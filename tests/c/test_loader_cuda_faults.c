/* rp_loader with batches in a GPU's memory, against the fake driver: an end at any moment, every
 * call of the driver and every allocation fails, the GPU is lost or short of memory, refusals. */
#include "loader_gpu.h"

#include "pool/work_priv.h"

RP_TEST(closing_and_beginning_anew_while_work_is_under_way)
{
    struct fake_cuda *fake = fake_start();
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 96, 13);
    for (int i = 0; i < 20; i++) {
        fake->lazy = i % 2;
        rp_loader *loader = open_loader(&demo, gpu_options(i % 3, 3));
        struct rp_error err;
        rp_error_clear(&err);
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
        (void)CHECK(fake_is_clean(fake));
    }
}

RP_TEST(every_call_of_the_driver_fails_once)
{
    struct fake_cuda *fake = fake_start();
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 8, 14);
    struct rp_error err;
    int64_t alive = rp_live_objects();
    int failures = 0;
    for (int threads = 0; threads <= 1; threads++) {
        bool reached = true;
        for (long nth = 1; reached; nth += threads == 0 ? 1 : 7) {
            fake->reset();
            fake->fail_nth = nth;
            fake->fail_code = nth % 3 == 0 ? 719 : nth % 3 == 1 ? 2 : 999;
            rp_status status = whole_life(fake, threads, nth % 2, nth % 4 < 2, &err);
            reached = fake->calls >= nth;
            fake->fail_nth = 0;
            if (status != RP_END) {
                failures++;
                (void)CHECK_EQ(status, RP_E_CUDA);
                (void)CHECK(err.what[0] != '\0');
            }
            if (!CHECK(fake_is_clean(fake)) || !CHECK_EQ(rp_live_objects(), alive)) {
                fprintf(stderr, "call %ld failed, with %d threads\n", nth, threads);
                return;
            }
        }
    }
    (void)CHECK(failures > 100);
}

RP_TEST(a_gpu_that_is_lost)
{
    struct fake_cuda *fake = fake_start();
    demo_init(&demo);
    mixed_rows(rows, 96, 15);
    for (int threads = 0; threads <= 2; threads += 2) {
        rp_loader *loader = open_loader(&demo, gpu_options(threads, 2));
        struct rp_error err;
        rp_error_clear(&err);
        REQUIRE_OK(begin_rows(loader, rows, 96, 8, false, &err), &err);
        rp_batch *batch = NULL;
        rp_status status = next_batch(loader, &batch, &err);
        REQUIRE_OK(status, &err);
        fake->lost = 719;
        rp_batch_free(&batch);
        while (status == RP_OK) {
            status = next_batch(loader, &batch, &err);
            rp_batch_free(&batch);
        }
        (void)CHECK_STATUS(status, RP_E_CUDA, &err);
        (void)CHECK_EQ(err.sys, 719);
        fake->lost = 0;
        rp_loader_close(&loader);
        (void)CHECK(fake_is_clean(fake));
    }
}

RP_TEST(a_slow_gpu_is_no_stall)
{
    struct fake_cuda *fake = fake_start();
    demo_init(&demo);
    rp_loader *loader = open_loader(&demo, gpu_options(0, 1));
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_stalled_locked(loader, 1, &err), RP_E_STALLED, &err);
    loader->gpu->waits = 1;
    REQUIRE_OK(rp_loader_stalled_locked(loader, 1, &err), &err);
    loader->gpu->waits = 0;
    rp_loader_close(&loader);
    (void)CHECK(fake_is_clean(fake));
}

RP_TEST(memory_of_the_gpu_is_short)
{
    struct fake_cuda *fake = fake_start();
    demo_init(&demo);
    mixed_rows(rows, 32, 16);
    rp_loader *loader = open_loader(&demo, gpu_options(1, 2));
    struct rp_error err;
    rp_error_clear(&err);
    fake->limit = 8 * (FRONT + WRIST); /* not a batch and its planes */
    REQUIRE_OK(begin_rows(loader, rows, 32, 8, false, &err), &err);
    rp_batch *batch = NULL;
    (void)CHECK_STATUS(next_batch(loader, &batch, &err), RP_E_CUDA, &err);
    (void)CHECK(strstr(err.what, "prefetch_batches") != NULL);
    rp_loader_close(&loader);
    (void)CHECK(fake_is_clean(fake));
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
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 8, 17);
    (void)CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, use_gpu, fake) > 0);
    (void)CHECK(fake_is_clean(fake));
}

RP_TEST(refusals)
{
    struct fake_cuda *fake = fake_start();
    demo_init(&demo);
    struct rp_error err;
    rp_loader *loader = NULL;
    struct rp_loader_options options = gpu_options(1, 1);
    options.device.library = "/nowhere/libcuda.so.1";
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_new(&demo.desc, &options, &loader, &err), RP_E_CUDA, &err);
    (void)CHECK(strstr(err.what, "no NVIDIA driver here") != NULL);
    options = gpu_options(1, 1);
    options.device.ordinal = 2;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_new(&demo.desc, &options, &loader, &err), RP_E_CUDA, &err);
    (void)CHECK(strstr(err.what, "cuda:2") != NULL);
    options = gpu_options(1, 1);
    options.shared = true;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_loader_new(&demo.desc, &options, &loader, &err), RP_E_ARG, &err);
    (void)CHECK(loader == NULL);
    (void)CHECK(fake_is_clean(fake));
}
