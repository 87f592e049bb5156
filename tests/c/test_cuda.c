/* The driver's border, against a driver that needs no GPU (fake_cuda.c): what is said of what it
 * lacks, memory that is used again, the order of work, every call failing once. */
#include "harness.h"

#include "cuda_cases.h"
#include "fake_cuda_load.h"

#include "base/thread.h"
#include "cuda/cuda.h"

#include <sys/wait.h>

#define KEEP ((size_t)64 << 20)

static const char image[] = "an image";

/* A device, a stream and the kernel. */
struct rig {
    struct fake_cuda *fake;
    struct rp_error err;
    rp_cuda *device;
    rp_cuda_stream *stream;
    rp_cuda_kernel *kernel;
};

static rp_status rig_open(struct rig *rig)
{
    rp_error_clear(&rig->err);
    RP_TRY(rp_cuda_open(fake_path(), 1, KEEP, &rig->device, &rig->err));
    RP_TRY(rp_cuda_stream_new(rig->device, &rig->stream, &rig->err));
    return rp_cuda_kernel_new(rig->device, image, RP_CUDA_KERNEL, &rig->kernel, &rig->err);
}

static void rig_close(struct rig *rig)
{
    rp_cuda_kernel_free(&rig->kernel);
    rp_cuda_stream_free(&rig->stream);
    rp_cuda_close(&rig->device);
}

static struct rig rig_make(void)
{
    struct rig rig = {.fake = fake_start()};
    CHECK_OK(rig_open(&rig), &rig.err);
    return rig;
}

static void rig_end(struct rig *rig)
{
    rig_close(rig);
    CHECK(fake_is_clean(rig->fake));
}

RP_TEST(free_takes_null)
{
    rp_cuda *device = NULL;
    rp_cuda_stream *stream = NULL;
    rp_cuda_kernel *kernel = NULL;
    rp_cuda_block *block = NULL;
    rp_cuda_close(NULL);
    rp_cuda_close(&device);
    rp_cuda_stream_free(NULL);
    rp_cuda_stream_free(&stream);
    rp_cuda_kernel_free(NULL);
    rp_cuda_kernel_free(&kernel);
    rp_cuda_give(NULL, NULL);
    rp_cuda_give(&block, NULL);
}

RP_TEST(devices_are_described)
{
    struct fake_cuda *fake = fake_start();
    struct rp_cuda_info info[RP_CUDA_MAX_DEVICES];
    struct rp_error err;
    rp_error_clear(&err);
    int n = 0, version = 0;
    REQUIRE_OK(rp_cuda_list(fake_path(), info, &n, &version, &err), &err);
    CHECK_EQ(n, 2);
    CHECK_EQ(version, 13000);
    CHECK_STR(info[1].name, "Fake GPU 1");
    CHECK_EQ(info[1].bytes, (int64_t)2 << 33);
    CHECK_EQ(info[0].major, 9);
    CHECK_EQ(info[0].minor, 0);
    CHECK_EQ(info[0].processors, 132);
    fake->devices = 1000; /* more than there is room for */
    REQUIRE_OK(rp_cuda_list(fake_path(), info, &n, &version, &err), &err);
    CHECK_EQ(n, RP_CUDA_MAX_DEVICES);
    CHECK(fake_is_clean(fake));
}

/* What both ways in say of the driver. */
static void check_refusal(const char *library, const char *text, int sys)
{
    struct rp_cuda_info info[RP_CUDA_MAX_DEVICES];
    struct rp_error err;
    int n = 7, version = 0;
    rp_cuda *device = NULL;
    rp_error_clear(&err);
    CHECK_STATUS(rp_cuda_list(library, info, &n, &version, &err), RP_E_CUDA, &err);
    CHECK_CONTAINS(err.what, text);
    CHECK_EQ(err.sys, sys);
    CHECK_EQ(n, 0);
    rp_error_clear(&err);
    CHECK_STATUS(rp_cuda_open(library, 0, KEEP, &device, &err), RP_E_CUDA, &err);
    CHECK_CONTAINS(err.what, text);
    CHECK(device == NULL);
}

RP_TEST(a_missing_or_old_driver_is_named)
{
    struct fake_cuda *fake = fake_start();
    check_refusal("/nowhere/libcuda.so.1", "no NVIDIA driver here: /nowhere/libcuda.so.1", 0);
    check_refusal("libm.so.6", "too old: libm.so.6 has no cuInit", 0);
    fake->version = 11040;
    check_refusal(fake_path(), "it speaks CUDA 11.4, 12.0 is the oldest", 0);
    fake->reset();
    fake->devices = 0;
    check_refusal(fake_path(), "CUDA_VISIBLE_DEVICES", 100);
    fake->reset();
    fake->lost = 3; /* what the driver says in the child of a process that used it */
    check_refusal(fake_path(), "asking the NVIDIA driver for its version", 3);
    fake->reset();
    fake->fail_name = "cuInit";
    fake->fail_nth = 1;
    fake->fail_code = 3;
    struct rp_error err;
    rp_error_clear(&err);
    rp_cuda *device = NULL;
    CHECK_STATUS(rp_cuda_open(fake_path(), 0, KEEP, &device, &err), RP_E_CUDA, &err);
    CHECK_CONTAINS(err.what, "'spawn'");
    CHECK(fake_is_clean(fake));
}

RP_TEST(a_build_without_cuda_has_no_kernel)
{
    struct rig rig = rig_make();
    rp_cuda_kernel *none = NULL;
    CHECK_STATUS(rp_cuda_kernel_new(rig.device, NULL, RP_CUDA_KERNEL, &none, &rig.err), RP_E_CUDA,
                 &rig.err);
    CHECK_CONTAINS(rig.err.what, "REELPOOL_CUDA=1");
    CHECK_EQ(rp_cuda_image() == NULL, rp_cuda_built()[0] == 0);
    rig_end(&rig);
}

RP_TEST(a_device_that_is_not_there)
{
    struct fake_cuda *fake = fake_start();
    struct rp_error err;
    rp_cuda *device = NULL;
    for (int ordinal = -1; ordinal <= 2; ordinal += 3) {
        rp_error_clear(&err);
        CHECK_STATUS(rp_cuda_open(fake_path(), ordinal, KEEP, &device, &err), RP_E_CUDA, &err);
        CHECK_CONTAINS(err.what, "devices are cuda:0 to cuda:1");
    }
    CHECK(fake_is_clean(fake));
}

static void check_batches(struct rig *rig, uint64_t seed, int n, int max_side)
{
    struct cuda_batch batch = {0};
    rp_status status = cuda_batch_make(rig->device, n, max_side, seed, &batch, &rig->err);
    if (status == RP_OK) {
        status = cuda_batch_run(&batch, rig->stream, rig->kernel, &rig->err);
    }
    if (status == RP_OK) {
        status = rp_cuda_stream_finish(rig->stream, &rig->err);
    }
    if (CHECK_OK(status, &rig->err)) {
        CHECK_MEM(batch.back->host, batch.expected, batch.out_bytes);
    }
    cuda_batch_free(&batch, rig->stream);
}

RP_TEST(batches_equal_the_host_build)
{
    struct rig rig = rig_make();
    for (int lazy = 0; lazy < 2; lazy++) {
        rig.fake->lazy = lazy;
        for (uint64_t seed = 1; seed <= 12; seed++) {
            check_batches(&rig, seed, 1 + (int)seed % 7, 40);
        }
    }
    CHECK_EQ(rig.fake->launches, 24);
    rig_end(&rig);
}

RP_TEST(memory_is_used_again_behind_its_work)
{
    struct rig rig = rig_make();
    struct rp_cuda_stats stats;
    for (int memory = 0; memory < 2; memory++) {
        enum rp_cuda_memory kind = (enum rp_cuda_memory)memory;
        rp_cuda_block *a = NULL, *b = NULL;
        CHECK_STATUS(rp_cuda_take(rig.device, kind, 5000, false, &a, &rig.err), RP_AGAIN, NULL);
        REQUIRE_OK(rp_cuda_take(rig.device, kind, 5000, true, &a, &rig.err), &rig.err);
        CHECK_EQ(a->len, 8192);
        CHECK((a->host != NULL) == (kind == RP_CUDA_PINNED));
        CHECK((a->address != 0) == (kind == RP_CUDA_ON_DEVICE));
        const rp_cuda_block *first = a;
        rp_cuda_give(&a, NULL);
        CHECK(a == NULL);
        REQUIRE_OK(rp_cuda_take(rig.device, kind, 4097, true, &a, &rig.err), &rig.err);
        CHECK(a == first); /* nobody works on it */
        rig.fake->lazy = true;
        rp_cuda_give(&a, rig.stream);
        REQUIRE_OK(rp_cuda_take(rig.device, kind, 5000, true, &b, &rig.err), &rig.err);
        CHECK(b != first); /* work is left behind it */
        REQUIRE_OK(rp_cuda_take(rig.device, kind, 5000, false, &a, &rig.err), &rig.err);
        CHECK(a == first); /* waited for */
        rp_cuda_give(&a, rig.stream);
        rig.fake->run();
        CHECK_STATUS(rp_cuda_take(rig.device, kind, 4000, false, &a, &rig.err), RP_OK, NULL);
        CHECK(a == first); /* 4000 are in 4096, and 8192 are twice that */
        rp_cuda_give(&a, NULL);
        CHECK_STATUS(rp_cuda_take(rig.device, kind, 9000, false, &a, &rig.err), RP_AGAIN, NULL);
        rp_cuda_stats(rig.device, &stats);
        CHECK_EQ(stats.blocks[kind], 2);
        CHECK_EQ(stats.bytes[kind], 2 * 8192);
        CHECK_EQ(stats.free_blocks[kind], 1);
        CHECK_EQ(stats.free_bytes[kind], 8192);
        CHECK_EQ(stats.made[kind], 2);
        rp_cuda_give(&b, rig.stream);
    }
    rig_end(&rig);
}

RP_TEST(free_memory_above_the_limit_goes_back)
{
    struct rig rig = rig_make();
    rp_cuda_block *block[3] = {0};
    struct rp_cuda_stats stats;
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_ON_DEVICE, KEEP / 2, true, &block[i], &rig.err),
                   &rig.err);
    }
    rp_cuda_block *pinned = NULL;
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_PINNED, 9, true, &pinned, &rig.err), &rig.err);
    rig.fake->lazy = true;
    for (int i = 0; i < 3; i++) { /* the third has no room, and is freed behind its work */
        CHECK_OK(rp_cuda_upload(rig.stream, pinned, 0, block[i], 0, 9, &rig.err), &rig.err);
        rp_cuda_give(&block[i], rig.stream);
    }
    rp_cuda_give(&pinned, rig.stream);
    rp_cuda_stats(rig.device, &stats);
    CHECK_EQ(stats.blocks[RP_CUDA_ON_DEVICE], 2);
    CHECK_EQ(rig.fake->bytes, KEEP);
    rig_end(&rig);
}

RP_TEST(out_of_memory_gives_up_what_is_free_first)
{
    struct rig rig = rig_make();
    rp_cuda_block *a = NULL, *b = NULL;
    rig.fake->limit = 100 << 20;
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_ON_DEVICE, 60 << 20, true, &a, &rig.err), &rig.err);
    rp_cuda_give(&a, rig.stream);
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_ON_DEVICE, 99 << 20, true, &a, &rig.err), &rig.err);
    CHECK_STATUS(rp_cuda_take(rig.device, RP_CUDA_ON_DEVICE, 2 << 20, true, &b, &rig.err),
                 RP_E_CUDA, &rig.err);
    CHECK_EQ(rig.err.sys, 2);
    CHECK_CONTAINS(rig.err.what, "cuda:1: taking 2097152 bytes of GPU memory: out of memory");
    CHECK_CONTAINS(rig.err.what, "a smaller batch_size");
    CHECK(b == NULL);
    rp_cuda_give(&a, NULL);
    rp_error_clear(&rig.err); /* it is no end: the next one fits */
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_ON_DEVICE, 2 << 20, true, &b, &rig.err), &rig.err);
    rp_cuda_give(&b, NULL);
    rig_end(&rig);
}

RP_TEST(a_lost_gpu_fails_every_later_call_and_gives_all_back)
{
    struct rig rig = rig_make();
    rp_cuda_block *block = NULL, *none = NULL;
    rp_cuda_stream *second = NULL;
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_PINNED, 10, true, &block, &rig.err), &rig.err);
    rig.fake->fail_name = "cuStreamSynchronize";
    rig.fake->fail_nth = 1;
    rig.fake->calls = 0;
    rig.fake->fail_code = 719;
    CHECK_STATUS(rp_cuda_stream_finish(rig.stream, &rig.err), RP_E_CUDA, &rig.err);
    CHECK_CONTAINS(rig.err.what, "cuda:1: waiting for a stream");
    CHECK_CONTAINS(rig.err.what, "the GPU is lost to this process");
    rig.fake->lost = 719;
    for (int i = 0; i < 3; i++) {
        rp_error_clear(&rig.err);
        rp_status status = i == 0
                               ? rp_cuda_take(rig.device, RP_CUDA_PINNED, 10, true, &none, &rig.err)
                           : i == 1 ? rp_cuda_stream_finish(rig.stream, &rig.err)
                                    : rp_cuda_stream_new(rig.device, &second, &rig.err);
        CHECK_STATUS(status, RP_E_CUDA, &rig.err);
        CHECK_CONTAINS(rig.err.what, "the GPU failed before");
        CHECK_EQ(rig.err.sys, 719);
    }
    rp_error_clear(&rig.err);
    CHECK_EQ(rp_error_set(&rig.err, RP_E_ARG, "what came first"), RP_E_ARG);
    CHECK_EQ(rp_cuda_stream_finish(rig.stream, &rig.err), RP_E_CUDA);
    CHECK_EQ(rig.err.sys, 0);
    CHECK_STR(rig.err.what, "what came first");
    rp_cuda_give(&block, rig.stream);
    rig_end(&rig);
}

RP_TEST(the_device_lives_as_long_as_what_is_made_of_it)
{
    struct rig rig = rig_make();
    rp_cuda_block *block = NULL;
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_ON_DEVICE, 10, true, &block, &rig.err), &rig.err);
    rp_cuda_close(&rig.device);
    CHECK_EQ(rig.fake->live[FAKE_CONTEXT], 1);
    rp_cuda_stream_free(&rig.stream);
    rp_cuda_kernel_free(&rig.kernel);
    CHECK_EQ(rig.fake->live[FAKE_CONTEXT], 1);
    rp_cuda_give(&block, NULL);
    CHECK_EQ(rig.fake->live[FAKE_CONTEXT], 0);
    CHECK(fake_is_clean(rig.fake));
}

/* A producer writes on one stream what a consumer reads on another. */
static bool follows(struct rig *rig, bool in_order)
{
    rp_cuda_stream *consumer = NULL;
    rp_cuda_block *from = NULL, *middle = NULL, *to = NULL;
    REQUIRE_OK(rp_cuda_stream_new(rig->device, &consumer, &rig->err), &rig->err);
    REQUIRE_OK(rp_cuda_take(rig->device, RP_CUDA_PINNED, 8, true, &from, &rig->err), &rig->err);
    REQUIRE_OK(rp_cuda_take(rig->device, RP_CUDA_PINNED, 8, true, &to, &rig->err), &rig->err);
    REQUIRE_OK(rp_cuda_take(rig->device, RP_CUDA_ON_DEVICE, 8, true, &middle, &rig->err),
               &rig->err);
    memset(to->host, 0, 8);
    memset(from->host, in_order ? 77 : 78, 8);
    CHECK_OK(rp_cuda_upload(rig->stream, from, 0, middle, 0, 8, &rig->err), &rig->err);
    if (in_order) {
        CHECK_OK(rp_cuda_stream_follow(consumer, rig->stream, &rig->err), &rig->err);
    }
    CHECK_OK(rp_cuda_download(consumer, middle, 0, to, 0, 8, &rig->err), &rig->err);
    CHECK_OK(rp_cuda_stream_finish(consumer, &rig->err), &rig->err);
    bool right = to->host[7] == (in_order ? 77 : 78);
    rp_cuda_give(&from, rig->stream);
    rp_cuda_give(&middle, consumer);
    rp_cuda_give(&to, consumer);
    rp_cuda_stream_free(&consumer);
    return right;
}

RP_TEST(a_stream_follows_another)
{
    struct rig rig = rig_make();
    rig.fake->lazy = true;
    CHECK(follows(&rig, true));
    CHECK(!follows(&rig, false)); /* the fake would notice */
    rig.fake->run();
    rig_end(&rig);
}

RP_TEST(bytes_outside_of_a_block_are_refused)
{
    struct rig rig = rig_make();
    rp_cuda_block *pinned = NULL, *there = NULL, *none = NULL;
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_PINNED, 10, true, &pinned, &rig.err), &rig.err);
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_ON_DEVICE, 10, true, &there, &rig.err), &rig.err);
    CHECK_STATUS(rp_cuda_upload(rig.stream, pinned, 1, there, 0, 4096, NULL), RP_E_ARG, NULL);
    CHECK_STATUS(rp_cuda_upload(rig.stream, pinned, 0, there, SIZE_MAX, 2, NULL), RP_E_ARG, NULL);
    CHECK_STATUS(rp_cuda_upload(rig.stream, there, 0, there, 0, 1, NULL), RP_E_ARG, NULL);
    CHECK_STATUS(rp_cuda_download(rig.stream, there, 4096, pinned, 0, 1, NULL), RP_E_ARG, NULL);
    CHECK_STATUS(rp_cuda_download(rig.stream, pinned, 0, pinned, 0, 1, NULL), RP_E_ARG, NULL);
    CHECK_STATUS(rp_cuda_launch(rig.stream, rig.kernel, there->address, 0, 1, NULL), RP_E_ARG,
                 NULL);
    CHECK_STATUS(rp_cuda_launch(rig.stream, rig.kernel, there->address, 65536, 1, NULL), RP_E_ARG,
                 NULL);
    CHECK_STATUS(rp_cuda_take(rig.device, RP_CUDA_PINNED, 0, true, &none, NULL), RP_E_ARG, NULL);
    CHECK_STATUS(rp_cuda_take(rig.device, RP_CUDA_PINNED, SIZE_MAX, true, &none, NULL), RP_E_ARG,
                 NULL);
    rp_cuda_give(&pinned, NULL);
    rp_cuda_give(&there, NULL);
    rig_end(&rig);
}

/* Everything that there is, from the first call to the last. True: it succeeded. */
static bool whole_story(struct rig *rig, rp_status *status)
{
    struct cuda_batch batch = {0};
    rp_cuda_stream *second = NULL;
    *status = rig_open(rig);
    for (uint64_t seed = 1; seed <= 2 && *status == RP_OK; seed++) {
        *status = cuda_batch_make(rig->device, 2, 16, seed, &batch, &rig->err);
        if (*status == RP_OK) {
            *status = cuda_batch_run(&batch, rig->stream, rig->kernel, &rig->err);
        }
        if (*status == RP_OK) {
            *status = rp_cuda_stream_new(rig->device, &second, &rig->err);
        }
        if (*status == RP_OK) {
            *status = rp_cuda_stream_follow(second, rig->stream, &rig->err);
        }
        if (*status == RP_OK) {
            *status = rp_cuda_stream_finish(second, &rig->err);
        }
        if (*status == RP_OK) {
            CHECK_MEM(batch.back->host, batch.expected, batch.out_bytes);
        }
        cuda_batch_free(&batch, second != NULL ? second : rig->stream);
        rp_cuda_stream_free(&second);
    }
    rig_close(rig);
    return *status == RP_OK;
}

RP_TEST(every_call_of_the_driver_fails_once)
{
    static const int codes[] = {1, 2, 719, 12345};
    for (int lazy = 0; lazy < 2; lazy++) {
        for (int c = 0; c < 4; c++) {
            int failed = 0;
            bool met = true;
            for (long nth = 1; met; nth++) {
                struct rig rig = {.fake = fake_start()};
                rp_status status;
                int64_t alive = rp_live_objects();
                rig.fake->lazy = lazy;
                rig.fake->fail_nth = nth;
                rig.fake->fail_code = codes[c];
                bool fine = whole_story(&rig, &status);
                met = rig.fake->calls >= nth;
                failed += !fine;
                if (!fine) {
                    CHECK_EQ(status, RP_E_CUDA);
                    CHECK_EQ(rig.err.code, RP_E_CUDA);
                    CHECK_EQ(rig.err.sys, codes[c]);
                    CHECK(met);
                }
                CHECK_EQ(rp_live_objects(), alive);
                if (!CHECK(fake_is_clean(rig.fake))) {
                    fprintf(stderr, "call %ld fails with %d\n", nth, codes[c]);
                    return;
                }
            }
            CHECK(failed > 60);
        }
    }
}

static void story_under_fault(void *arg)
{
    struct rig rig = {.fake = fake_start()};
    rp_status status;
    (void)arg;
    if (!whole_story(&rig, &status)) {
        CHECK_EQ(status, RP_E_NOMEM);
    }
    CHECK(fake_is_clean(rig.fake));
}

RP_TEST(short_memory_is_a_typed_error)
{
    CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY | RP_FAULT_THREAD},
                         story_under_fault, NULL) >= 10);
}

RP_TEST(a_thousand_devices_one_after_the_other)
{
    int64_t alive = rp_live_objects();
    for (int i = 0; i < 1000; i++) {
        struct rig rig = {.fake = fake_start()};
        rp_status status;
        rig.fake->lazy = i % 2;
        if (!CHECK(whole_story(&rig, &status)) || !CHECK(fake_is_clean(rig.fake))) {
            return;
        }
    }
    CHECK_EQ(rp_live_objects(), alive);
}

RP_TEST(a_forked_child_is_told_to_spawn)
{
    struct rig rig = rig_make();
    rp_cuda_block *block = NULL, *none = NULL;
    REQUIRE_OK(rp_cuda_take(rig.device, RP_CUDA_PINNED, 10, true, &block, &rig.err), &rig.err);
    long calls = rig.fake->calls;
    pid_t child = fork();
    if (child == 0) {
        struct rp_error err;
        rp_error_clear(&err);
        bool right = rp_cuda_take(rig.device, RP_CUDA_PINNED, 10, true, &none, &err) == RP_E_CUDA &&
                     strstr(err.what, "'spawn'") != NULL;
        right = right && rp_cuda_stream_finish(rig.stream, NULL) == RP_E_CUDA;
        rp_cuda *fresh = NULL;
        rp_error_clear(&err);
        right = right && rig.fake->calls == calls && /* the driver was left alone */
                rp_cuda_open(fake_path(), 0, KEEP, &fresh, &err) == RP_E_CUDA &&
                strstr(err.what, "'spawn'") != NULL;
        calls = rig.fake->calls;
        rp_cuda_give(&block, rig.stream);
        rp_cuda_stream_free(&rig.stream);
        rp_cuda_kernel_free(&rig.kernel);
        rp_cuda_close(&rig.device);
        _exit(right && rig.fake->calls == calls ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    rp_cuda_give(&block, NULL);
    rig_end(&rig);
}

static void *churn(void *arg)
{
    struct rig *shared = arg;
    struct rig own = {.fake = shared->fake, .device = shared->device, .kernel = shared->kernel};
    rp_error_clear(&own.err);
    CHECK_OK(rp_cuda_stream_new(own.device, &own.stream, &own.err), &own.err);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        check_batches(&own, seed, 3, 20);
    }
    rp_cuda_stream_free(&own.stream);
    return NULL;
}

RP_TEST(threads_share_a_device)
{
    struct rig rig = rig_make();
    rp_thread thread[3];
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(rp_thread_start(&thread[i], "churn", churn, &rig, &rig.err), &rig.err);
    }
    for (int i = 0; i < 3; i++) {
        rp_thread_join(&thread[i]);
    }
    rig_end(&rig);
}
