/* rp_loader with batches in a GPU's memory and pictures that its video engine decodes, against
 * NVIDIA libraries that need no GPU: the bytes are the CPU's, whatever fails on the way. */
#define RP_HARNESS_OWN_MAIN
#include "loader_video.h"

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

RP_TEST(pictures_of_the_gpu_are_those_of_the_cpu)
{
#ifdef __SANITIZE_THREAD__ /* sees nothing in one thread, and takes ten times as long */
    static const int thread_counts[] = {2, 8};
#else
    static const int thread_counts[] = {0, 1, 2, 8};
#endif
    for (size_t t = 0; t < sizeof(thread_counts) / sizeof(thread_counts[0]); t++) {
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

/* What fails closes its session while others ask for one. */
RP_TEST(few_sessions_that_fail_serve_many_threads)
{
    for (int most = 1; most <= 2; most++) {
        struct fake_cuda *fake = fake_start();
        struct fake_nvcuvid *video = video_start();
        video->most = most;
        video->map_every = 60;
        video->map_code = 999;
        video->delay_us = 100;
        check_epochs(gpu_options(6, 3));
        (void)CHECK(on_gpu > 70);
        check_clean(fake, video);
    }
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

/* An epoch of 70 rows; the pictures that were decoded on the GPU until its end. */
static int64_t epoch_of(rp_loader *loader)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_batch *batch = NULL;
    REQUIRE_OK(begin_rows(loader, rows, 70, 16, false, &err), &err);
    for (int64_t at = 0; at < 70; at += 16) {
        REQUIRE_OK(next_batch(loader, &batch, &err), &err);
        (void)check_on_gpu(batch, rows + at, at + 16 > 70 ? 70 - at : 16);
        rp_batch_free(&batch);
    }
    (void)CHECK_STATUS(next_batch(loader, &batch, &err), RP_END, &err);
    struct rp_loader_stats stats;
    rp_loader_stats(loader, &stats);
    return stats.device.decoded;
}

RP_TEST(a_stream_that_keeps_failing_is_the_cpus)
{
    struct fake_cuda *fake = fake_start();
    struct fake_nvcuvid *video = video_start();
    struct rp_nvdec_verdict verdict;
    mixed_rows(rows, 70, 3);
    rp_loader *loader = open_loader(&demo, gpu_options(0, 2));
    int64_t good = epoch_of(loader);
    (void)CHECK(good > 0);
    (void)CHECK(!rp_loader_notice(loader, &verdict)); /* both streams are the GPU's */
    video->decode_nth = video->decoded + 1;
    video->decode_code = 700;
    (void)CHECK_EQ(epoch_of(loader), good);
    int notices = 0;
    for (; rp_loader_notice(loader, &verdict); notices++) {
        (void)CHECK(!verdict.on_gpu);
        CHECK_CONTAINS(verdict.reason, "runs that the CPU decodes: NVDEC ");
    }
    (void)CHECK_EQ(notices, 2); /* one of each codec */
    video->decode_nth = 0;
    long tried = video->decoded;
    (void)CHECK_EQ(epoch_of(loader), good);
    (void)CHECK_EQ(video->decoded, tried); /* it is not tried there again */
    rp_loader_close(&loader);
    check_clean(fake, video);
}

static void get_one(rp_loader *loader, int64_t row)
{
    struct rp_error err;
    rp_error_clear(&err);
    uint64_t ticket;
    rp_batch *batch = NULL;
    REQUIRE_OK(rp_loader_submit(loader, &row, NULL, 1, &ticket, &err), &err);
    REQUIRE_OK(take_ticket(loader, ticket, &batch, &err), &err);
    (void)check_on_gpu(batch, &row, 1);
    rp_batch_free(&batch);
}

/* What a single read decodes beside its picture stays on the GPU for its neighbours. */
RP_TEST(single_reads_find_pictures_on_the_gpu)
{
    for (int lazy = 0; lazy < 2; lazy++) {
        struct fake_cuda *fake = fake_start();
        struct fake_nvcuvid *video = video_start();
        fake->lazy = lazy == 1;
        struct rp_loader_options options = gpu_options(1, 2);
        options.frame_cache_bytes = 64 << 20;
        rp_loader *loader = open_loader(&demo, options);
        struct rp_loader_stats stats;
        for (int round = 0; round < 2; round++) {
            for (int64_t row = 0; row < 20; row++) {
                get_one(loader, row);
            }
        }
        rp_loader_stats(loader, &stats);
        (void)CHECK_EQ(stats.counters.decoded, 2 * 20); /* each picture once, GOPs of 2 */
        (void)CHECK_EQ(stats.counters.cache_hits, 2 * (10 + 20));
        (void)CHECK_EQ(stats.device.decoded, 2 * 20);
        (void)CHECK(stats.frame_cache_bytes > 0 && stats.frame_cache_bytes <= 64 << 20);
        rp_loader_close(&loader);
        check_clean(fake, video);
    }
}

/* A cache of three pictures: those that leave it may still wait for the GPU. */
RP_TEST(a_small_cache_of_the_gpu_lets_pictures_go)
{
    struct fake_cuda *fake = fake_start();
    struct fake_nvcuvid *video = video_start();
    fake->lazy = true;
    struct rp_loader_options options = gpu_options(2, 2);
    options.frame_cache_bytes = 400000;
    rp_loader *loader = open_loader(&demo, options);
    struct rp_loader_stats stats;
    for (int64_t row = 0; row < ROWS; row += 7) {
        get_one(loader, row);
        get_one(loader, row);
        rp_loader_stats(loader, &stats);
        (void)CHECK(stats.frame_cache_bytes <= 400000);
    }
    (void)CHECK(stats.device.decoded > 0);
    rp_loader_close(&loader);
    check_clean(fake, video);
}

/* One run in many is no reason to leave the GPU. */
RP_TEST(a_run_that_fails_once_changes_nothing)
{
    struct fake_cuda *fake = fake_start();
    struct fake_nvcuvid *video = video_start();
    struct rp_nvdec_verdict verdict;
    mixed_rows(rows, 70, 3);
    rp_loader *loader = open_loader(&demo, gpu_options(0, 2));
    int64_t before = epoch_of(loader);
    for (int i = 0; i < 2; i++) {
        video->map_once = video->mapped + 5;
        video->map_code = 700;
        int64_t now = epoch_of(loader);
        (void)CHECK(now > before);
        before = now;
    }
    (void)CHECK(!rp_loader_notice(loader, &verdict));
    rp_loader_close(&loader);
    check_clean(fake, video);
}

int main(int argc, char **argv)
{
    return loader_video_main(argc, argv);
}
