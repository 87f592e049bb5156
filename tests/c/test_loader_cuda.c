/* rp_loader with batches in a GPU's memory, against the fake driver: the bytes are those of a
 * loader on the CPU, and memory is not used again before the work that uses it. */
#include "loader_gpu.h"
#include "loader_rest.h"

/* Bytes of a field for one sample. */
static size_t field_bytes(int field)
{
    if (field < 2) {
        const struct rp_camera *camera = &demo.camera[field];
        return (size_t)(camera->window.n * camera->height * camera->width) * 3 *
               (camera->type == RP_PIXEL_U8 ? 1 : 4);
    }
    return (size_t)(field == 2 ? demo.column[0].window.n * 8 : demo.pad[field - 3].window.n);
}

static void compare_batches(const rp_batch *found, const rp_batch *expected)
{
    REQUIRE(found->bytes == expected->bytes && found->n == expected->n);
    (void)CHECK_EQ(found->done, expected->done);
    uint8_t *bytes = read_batch(found);
    for (int field = 0; field < 5; field++) {
        size_t at = expected->field_offset[field];
        REQUIRE(found->field_offset[field] == at);
        if (memcmp(bytes + at, expected->block->data + at, (size_t)found->n * field_bytes(field)) !=
            0) {
            rp_fail_at(__FILE__, __LINE__, "field %d differs", field);
        }
    }
    free(bytes);
}

/* Batches of a device and of the CPU, one beside the other. */
static void compare_streams(const struct rp_loader_options *options, int64_t count, int64_t size)
{
    struct rp_error err;
    rp_loader *cpu = open_loader(&demo, demo_options(1, 2));
    rp_loader *gpu = open_loader(&demo, *options);
    rp_error_clear(&err);
    REQUIRE_OK(begin_rows(cpu, rows, count, size, false, &err), &err);
    REQUIRE_OK(begin_rows(gpu, rows, count, size, false, &err), &err);
    rp_status status = RP_OK;
    while (status == RP_OK) {
        rp_batch *expected = NULL, *found = NULL;
        status = next_batch(cpu, &expected, &err);
        (void)CHECK_STATUS(next_batch(gpu, &found, &err), status, &err);
        if (status == RP_OK) {
            compare_batches(found, expected);
        }
        rp_batch_free(&expected);
        rp_batch_free(&found);
    }
    (void)CHECK_STATUS(status, RP_END, &err);
    rp_loader_close(&cpu);
    rp_loader_close(&gpu);
}

RP_TEST(batches_hold_what_those_of_the_cpu_hold)
{
    static const int thread_counts[] = {0, 1, 2, 8};
    struct fake_cuda *fake = fake_start();
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 70, 3);
    for (int t = 0; t < 4; t++) {
        rp_loader *loader = open_loader(&demo, gpu_options(thread_counts[t], 2));
        struct rp_error err;
        rp_error_clear(&err);
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
        (void)CHECK_EQ(stats.device.converted, 4 * 70); /* all by the kernel */
        (void)CHECK(stats.device.uploaded >= 2 * 70 * (FRONT + WRIST) / 2);
        (void)CHECK(stats.arena.grown <= 3 && stats.arena.bytes <= stats.device.device_bytes);
        (void)CHECK(stats.device.pinned_bytes > 0);
        check_rest(loader);
        rp_loader_close(&loader);
        (void)CHECK(fake_is_clean(fake));
    }
}

RP_TEST(types_sizes_and_windows)
{
    static const int64_t steps[] = {-3, -1, 0, 2};
    struct fake_cuda *fake = fake_start();
    mixed_rows(rows, 30, 5);
    for (int kind = 0; kind < 5; kind++) {
        demo_init(&demo);
        if (kind >= 1) { /* float32 */
            demo.camera[0].type = RP_PIXEL_F32;
        }
        if (kind >= 2) { /* smaller, of odd sides; larger: slots that are too small at first */
            demo.camera[0].resize = demo.camera[1].resize = true;
            demo.camera[0].height = kind == 4 ? 300 : 33;
            demo.camera[0].width = kind == 4 ? 402 : 51;
            demo.camera[1].height = 20;
            demo.camera[1].width = 28;
        }
        if (kind >= 3) {
            demo.camera[1].window = demo.pad[0].window = (struct rp_window){steps, 4};
            demo.column[0].window = demo.pad[1].window = (struct rp_window){steps + 1, 3};
        }
        for (int threads = 0; threads <= 2; threads += 2) {
            struct rp_loader_options options = gpu_options(threads, 2);
            compare_streams(&options, 30, 4);
            options.device.keep_bytes = 0; /* nothing is used again */
            options.keep_bytes = 0;
            compare_streams(&options, 7, 4);
        }
        (void)CHECK(fake_is_clean(fake));
    }
}

RP_TEST(slots_grow_to_what_the_pictures_need)
{
    struct fake_cuda *fake = fake_start();
    demo_init(&demo);
    mixed_rows(rows, 60, 6);
    for (int c = 0; c < 2; c++) {
        demo.camera[c].resize = true;
        demo.camera[c].height = 16;
        demo.camera[c].width = 20;
        demo.camera[c].type = RP_PIXEL_F32;
    }
    rp_loader *loader = open_loader(&demo, gpu_options(0, 1));
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(begin_rows(loader, rows, 60, 4, false, &err), &err);
    struct rp_loader_stats stats;
    int64_t first = 0;
    for (int i = 0; i < 15; i++) {
        rp_batch *batch = NULL;
        REQUIRE_OK(next_batch(loader, &batch, &err), &err);
        rp_batch_free(&batch);
        rp_loader_stats(loader, &stats);
        first = i == 1 ? stats.device.converted : first;
    }
    (void)CHECK(first < 16);                               /* the CPU did some */
    (void)CHECK(stats.device.converted >= 2 * 60 - 2 * 8); /* but soon none any more */
    rp_loader_close(&loader);
    (void)CHECK(fake_is_clean(fake));
}

RP_TEST(tickets_are_served_too)
{
    struct fake_cuda *fake = fake_start();
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 12, 8);
    for (int threads = 0; threads <= 2; threads += 2) {
        rp_loader *loader = open_loader(&demo, gpu_options(threads, 0));
        struct rp_error err;
        rp_error_clear(&err);
        uint64_t ticket[3];
        rp_batch *batch = NULL;
        for (int i = 0; i < 3; i++) {
            REQUIRE_OK(rp_loader_submit(loader, rows + i, NULL, 3 + i, &ticket[i], &err), &err);
        }
        rp_loader_drop(loader, ticket[1]);
        for (int i = 0; i < 3; i += 2) {
            REQUIRE_OK(take_ticket(loader, ticket[i], &batch, &err), &err);
            (void)check_on_gpu(batch, rows + i, 3 + i);
            rp_batch_free(&batch);
        }
        check_rest(loader);
        rp_loader_close(&loader);
        (void)CHECK(fake_is_clean(fake));
    }
}

/* Work done as late as the rules of streams permit: what was staged must still be there. */
RP_TEST(a_stage_is_not_written_again_before_it_was_read)
{
    struct fake_cuda *fake = fake_start();
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 96, 9);
    for (int threads = 0; threads <= 2; threads += 2) {
        rp_loader *loader = open_loader(&demo, gpu_options(threads, 2));
        struct rp_error err;
        rp_error_clear(&err);
        fake->lazy = true;
        REQUIRE_OK(begin_rows(loader, rows, 96, 8, false, &err), &err);
        rp_batch *kept[12] = {0};
        for (int i = 0; i < 12; i++) {
            REQUIRE_OK(next_batch(loader, &kept[i], &err), &err);
        }
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        int64_t stage = 8 * (FRONT + WRIST) / 2;
        (void)CHECK(stats.device.pinned_bytes <= 5 * stage); /* however late the GPU is */
        uint64_t work = rp_cuda_stream_handle(loader->gpu->work);
        fake->run_but((void *)(uintptr_t)work); /* uploads are far ahead of conversions */
        rp_loader_close(&loader);
        for (int i = 0; i < 12; i++) {
            (void)check_on_gpu(kept[i], rows + 8 * i, 8);
            rp_batch_free(&kept[i]);
        }
        fake->lazy = false;
        (void)CHECK(fake_is_clean(fake));
    }
}

typedef int fake_download(void *to, uint64_t from, size_t len, void *stream);
typedef int fake_push(void *context);
typedef int fake_pop(void **context);

/* A function of the driver, which a consumer calls by itself. */
static void find(const char *name, void *out)
{
    void *library = dlopen(fake_path(), RTLD_NOW | RTLD_NODELETE);
    void *found = dlsym(library, name);
    REQUIRE(found != NULL);
    memcpy(out, &found, sizeof(found));
    dlclose(library);
}

/* A training step: work on a stream of its own that reads the batch, at some time. */
static void consume(const rp_batch *batch, void *stream, uint8_t *to)
{
    fake_download *download;
    fake_push *push;
    fake_pop *pop;
    void *context = (void *)40;
    find("cuMemcpyDtoHAsync_v2", &download);
    find("cuCtxPushCurrent_v2", &push);
    find("cuCtxPopCurrent_v2", &pop);
    REQUIRE(push(context) == 0);
    REQUIRE(download(to, rp_batch_address(batch), batch->bytes, stream) == 0);
    REQUIRE(pop(&context) == 0);
}

/* The consumer is far ahead of its GPU: it gives batches back while its work on them waits. */
static void run_ahead(struct fake_cuda *fake, int64_t lent_as, uintptr_t stream, int threads)
{
    rp_loader *loader = open_loader(&demo, gpu_options(threads, 2));
    struct rp_error err;
    rp_error_clear(&err);
    fake->lazy = true;
    REQUIRE_OK(begin_rows(loader, rows, 96, 8, false, &err), &err);
    size_t bytes = 0;
    uint8_t *seen = calloc(12, 8 * (FRONT + WRIST) + 4096);
    rp_batch first = {0};
    for (int i = 0; i < 12; i++) {
        rp_batch *batch = NULL, *lent = NULL;
        REQUIRE_OK(next_batch(loader, &batch, &err), &err);
        REQUIRE_OK(rp_batch_lend(batch, lent_as, &err), &err);
        lent = batch;
        bytes = batch->bytes;
        consume(batch, (void *)stream, seen + (size_t)i * bytes);
        if (i == 0) {
            first = *batch;
            first.field_offset = malloc(5 * sizeof(size_t));
            REQUIRE(first.field_offset != NULL);
            memcpy((void *)(uintptr_t)first.field_offset, batch->field_offset, 5 * sizeof(size_t));
        }
        rp_batch_return(&lent, lent_as);
        rp_batch_free(&batch);
    }
    struct rp_loader_stats stats;
    rp_loader_stats(loader, &stats);
    (void)CHECK(stats.arena.grown <= 3); /* it kept none */
    fake->run_but((void *)stream);
    fake->run();
    for (int i = 0; i < 12; i++) {
        rp_block block = {.data = seen + (size_t)i * bytes};
        first.block = &block;
        first.rows = rows + 8 * i;
        (void)check_batch(&demo, &first, rows + 8 * i, 8);
    }
    free((void *)(uintptr_t)first.field_offset);
    free(seen);
    fake->lazy = false;
    rp_loader_close(&loader);
    (void)CHECK(fake_is_clean(fake));
}

RP_TEST(a_block_is_not_written_again_before_its_consumer_read_it)
{
    struct fake_cuda *fake = fake_start();
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 96, 10);
    for (int threads = 0; threads <= 2; threads += 2) {
        run_ahead(fake, 0x7000, 0x7000, threads); /* a stream of its own */
        run_ahead(fake, 1, 1, threads);           /* the legacy default one */
        run_ahead(fake, 2, 2, threads);           /* this thread's */
        run_ahead(fake, -1, 1, threads);          /* it orders its work by itself */
    }
}

/* The consumer's stream comes first: what it needs of the others is done before, no more. */
RP_TEST(a_consumer_begins_after_the_batch_is_made)
{
    struct fake_cuda *fake = fake_start();
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 32, 18);
    int (*synchronize)(void *);
    find("cuStreamSynchronize", &synchronize);
    static const int64_t streams[] = {0x7000, 1, 2, 0x7001};
    rp_loader *loader = open_loader(&demo, gpu_options(1, 2));
    struct rp_error err;
    rp_error_clear(&err);
    fake->lazy = true;
    REQUIRE_OK(begin_rows(loader, rows, 32, 8, false, &err), &err);
    for (int i = 0; i < 4; i++) {
        rp_batch *batch = NULL, *lent = NULL;
        REQUIRE_OK(next_batch(loader, &batch, &err), &err);
        uint8_t *seen = calloc(1, batch->bytes);
        REQUIRE_OK(rp_batch_lend(batch, streams[i], &err), &err);
        lent = batch;
        consume(batch, (void *)(uintptr_t)streams[i], seen);
        REQUIRE(synchronize((void *)(uintptr_t)streams[i]) == 0);
        rp_block block = {.data = seen};
        rp_batch copy = *batch;
        copy.block = &block;
        (void)check_batch(&demo, &copy, rows + (ptrdiff_t)8 * i, 8);
        rp_batch_return(&lent, streams[i]);
        rp_batch_free(&batch);
        free(seen);
    }
    rp_loader_close(&loader);
    fake->lazy = false;
    (void)CHECK(fake_is_clean(fake));
}

/* Batches that outlive the loader, in use by two streams, are freed behind both. */
RP_TEST(freed_memory_waits_for_all_who_use_it)
{
    struct fake_cuda *fake = fake_start();
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 8, 11);
    rp_loader *loader = open_loader(&demo, gpu_options(1, 1));
    struct rp_error err;
    rp_error_clear(&err);
    fake->lazy = true;
    REQUIRE_OK(begin_rows(loader, rows, 8, 8, false, &err), &err);
    rp_batch *batch = NULL;
    REQUIRE_OK(next_batch(loader, &batch, &err), &err);
    rp_loader_close(&loader);
    uint8_t *seen = calloc(2, batch->bytes);
    rp_batch *lent[2] = {batch, batch};
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(rp_batch_lend(batch, 0x7000 + i, &err), &err);
        consume(batch, (void *)(uintptr_t)(0x7000 + i), seen + (size_t)i * batch->bytes);
    }
    uint8_t *bytes = read_batch(batch);
    size_t len = batch->bytes;
    rp_batch_free(&batch);
    rp_batch_return(&lent[1], 0x7001);
    (void)CHECK(fake->live[FAKE_MEMORY] > 0);
    rp_batch_return(&lent[0], 0x7000); /* the last one: all of it is freed, not before its time */
    (void)CHECK(memcmp(seen, bytes, len) == 0 && memcmp(seen + len, bytes, len) == 0);
    free(bytes);
    free(seen);
    fake->lazy = false;
    (void)CHECK(fake_is_clean(fake));
}

struct lender {
    rp_thread thread;
    rp_batch *batch;
    int64_t stream;
};

static void *lend_often(void *arg)
{
    struct lender *lender = arg;
    for (int i = 0; i < 200; i++) {
        rp_batch *lent = lender->batch;
        (void)CHECK_OK(rp_batch_lend(lent, lender->stream, NULL), NULL);
        rp_batch_return(&lent, lender->stream);
    }
    return NULL;
}

RP_TEST(threads_lend_one_batch)
{
    struct fake_cuda *fake = fake_start();
    demo_init(&demo);
    mixed_rows(rows, 8, 12);
    rp_loader *loader = open_loader(&demo, gpu_options(2, 2));
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(begin_rows(loader, rows, 8, 4, false, &err), &err);
    rp_batch *batch = NULL;
    REQUIRE_OK(next_batch(loader, &batch, &err), &err);
    struct lender lender[4];
    for (int i = 0; i < 4; i++) {
        lender[i] = (struct lender){.batch = batch, .stream = 0x7000 + i / 2};
        REQUIRE_OK(rp_thread_start(&lender[i].thread, "lend", lend_often, &lender[i], &err), &err);
    }
    for (int i = 0; i < 4; i++) {
        rp_thread_join(&lender[i].thread);
    }
    rp_batch_free(&batch);
    rp_loader_close(&loader);
    (void)CHECK(fake_is_clean(fake));
}
