/* For the tests of a loader with a GPU: one on the fake driver, and what its batches hold. Included
 * once per program. */
#ifndef RP_TESTS_LOADER_GPU_H
#define RP_TESTS_LOADER_GPU_H

#include "fake_cuda_load.h"
#include "loader_fixture.h"

static struct demo demo;
static int64_t rows[512];
static const char image[8] = "an image";

static RP_UNUSED struct rp_loader_options gpu_options(int threads, int prefetch)
{
    struct rp_loader_options options = demo_options(threads, prefetch);
    options.device = (struct rp_device_options){
        .on = true, .library = fake_path(), .image = image, .keep_bytes = (size_t)1 << 40};
    return options;
}

/* The bytes of a batch in the process's own memory. */
static RP_UNUSED uint8_t *read_batch(const rp_batch *batch)
{
    struct rp_error err;
    rp_error_clear(&err);
    uint8_t *bytes = calloc(batch->bytes + 1, 1);
    REQUIRE(bytes != NULL);
    REQUIRE_OK(rp_batch_read(batch, 0, batch->bytes, bytes, &err), &err);
    return bytes;
}

static RP_UNUSED bool check_on_gpu(const rp_batch *batch, const int64_t *wanted, int64_t n)
{
    uint8_t *bytes = read_batch(batch);
    rp_block block = {.data = bytes};
    rp_batch copy = *batch;
    copy.block = &block;
    bool good = CHECK_EQ(rp_batch_device(batch), 0) && check_batch(&demo, &copy, wanted, n);
    free(bytes);
    return good;
}

/* A loader's life. Returns how it ended. */
static RP_UNUSED rp_status whole_life(struct fake_cuda *fake, int threads, bool lazy, bool keep,
                                      struct rp_error *err)
{
    rp_loader *loader = NULL;
    struct rp_loader_options options = gpu_options(threads, 2);
    rp_error_clear(err);
    if (!keep) { /* memory goes to the system at once */
        options.keep_bytes = options.device.keep_bytes = 0;
    }
    fake->lazy = lazy;
    rp_status status = rp_loader_new(&demo.desc, &options, &loader, err);
    if (status == RP_OK) {
        status = begin_rows(loader, rows, 8, 2, false, err);
    }
    for (int64_t at = 0; status == RP_OK; at += 2) {
        rp_batch *batch = NULL, *lent = NULL;
        status = next_batch(loader, &batch, err);
        if (status == RP_OK) {
            status = rp_batch_lend(batch, 0x7000, err);
            lent = status == RP_OK ? batch : NULL;
        }
        if (status == RP_OK) {
            static uint8_t bytes[2 * (FRONT + WRIST) + 4096]; /* not allocated: that may fail */
            REQUIRE(batch->bytes <= sizeof(bytes));
            status = rp_batch_read(batch, 0, batch->bytes, bytes, err);
            if (status == RP_OK) {
                rp_block block = {.data = bytes};
                rp_batch copy = *batch;
                copy.block = &block;
                (void)check_batch(&demo, &copy, rows + at, 2);
            }
        }
        if (lent != NULL) {
            rp_batch_return(&lent, 0x7000);
        }
        rp_batch_free(&batch);
    }
    rp_loader_close(&loader);
    fake->lazy = false;
    return status;
}

#endif
