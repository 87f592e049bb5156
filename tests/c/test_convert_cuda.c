/* The GPU's conversion against the one of the CPU, bit for bit, with a driver that runs the
 * kernel's host build (fake_cuda.c). */
#include "harness.h"

#include "fake_cuda_load.h"
#include "kernel_host.h"

#include "base/rng.h"
#include "convert/convert_cuda.h"
#include "convert/convert_priv.h"

#include <libavutil/pixfmt.h>

#define MAX_SIDE_  200
#define STRIDE_MAX 320
#define PLANE      (STRIDE_MAX * (MAX_SIDE_ + 2))
#define OUT_BYTES  (1 << 21)

static const char module[] = "an image";

/* A picture in main memory, the same in device memory, and what both make of it. */
struct rig {
    struct fake_cuda *fake;
    struct rp_error err;
    rp_cuda *device;
    rp_cuda_stream *stream;
    rp_cuda_converter *converter;
    rp_scratch *scratch;
    rp_cuda_block *pinned, *there, *result, *back; /* 4 planes: Y, U, V, UV */
    uint8_t want[OUT_BYTES];
};

static struct rig *rig_make(void)
{
    struct rig *rig = rp_calloc(1, sizeof(*rig));
    if (rig == NULL) {
        abort();
    }
    rig->fake = fake_start();
    rp_error_clear(&rig->err);
    struct rp_error *err = &rig->err;
    bool made =
        CHECK_OK(rp_cuda_open(fake_path(), 0, (size_t)1 << 28, &rig->device, err), err) &&
        CHECK_OK(rp_cuda_stream_new(rig->device, &rig->stream, err), err) &&
        CHECK_OK(rp_cuda_converter_new(rig->device, rig->stream, module, &rig->converter, err),
                 err) &&
        CHECK_OK(rp_scratch_new(&rig->scratch, err), err) &&
        CHECK_OK(rp_cuda_take(rig->device, RP_CUDA_PINNED, 4 * PLANE, true, &rig->pinned, err),
                 err) &&
        CHECK_OK(rp_cuda_take(rig->device, RP_CUDA_ON_DEVICE, 4 * PLANE, true, &rig->there, err),
                 err) &&
        CHECK_OK(rp_cuda_take(rig->device, RP_CUDA_ON_DEVICE, OUT_BYTES, true, &rig->result, err),
                 err) &&
        CHECK_OK(rp_cuda_take(rig->device, RP_CUDA_PINNED, OUT_BYTES, true, &rig->back, err), err);
    if (!made) {
        abort();
    }
    return rig;
}

static void rig_end(struct rig *rig)
{
    rp_cuda_converter_free(&rig->converter);
    rp_cuda_give(&rig->pinned, NULL);
    rp_cuda_give(&rig->there, NULL);
    rp_cuda_give(&rig->result, NULL);
    rp_cuda_give(&rig->back, NULL);
    rp_cuda_stream_free(&rig->stream);
    rp_cuda_close(&rig->device);
    rp_scratch_free(&rig->scratch);
    CHECK(fake_is_clean(rig->fake));
    rp_free(rig);
}

/* Random planes; UV holds what U and V hold. */
static void fill(struct rig *rig, uint64_t seed, int chroma_stride)
{
    uint8_t *plane = rig->pinned->host;
    for (size_t i = 0; i < 3 * PLANE; i++) {
        plane[i] = (uint8_t)rp_hash64(seed, 0, 9, i);
    }
    uint8_t *u = plane + PLANE, *v = plane + 2 * PLANE, *pairs = plane + 3 * PLANE;
    for (int y = 0; y < MAX_SIDE_ / 2; y++) {
        for (int x = 0; x < MAX_SIDE_ / 2; x++) {
            pairs[y * STRIDE_MAX + 2 * x] = u[y * chroma_stride + x];
            pairs[y * STRIDE_MAX + 2 * x + 1] = v[y * chroma_stride + x];
        }
    }
    CHECK_OK(rp_cuda_upload(rig->stream, rig->pinned, 0, rig->there, 0, 4 * PLANE, &rig->err),
             &rig->err);
}

struct shape {
    int width, height, out_width, out_height;
    int luma_stride, chroma_stride, gap; /* gap: bytes' worth of pixels between rows */
    enum rp_pixel_type type;
    bool pairs; /* NV12 */
    int colorspace, color_range;
    bool full_format;
};

static struct rp_target target_of(const struct shape *s, void *data)
{
    int element = s->type == RP_PIXEL_U8 ? 1 : 4;
    ptrdiff_t row = (ptrdiff_t)(s->out_width + s->gap) * element;
    return (struct rp_target){.data = data,
                              .type = s->type,
                              .width = s->out_width,
                              .height = s->out_height,
                              .row_stride = row,
                              .plane_stride = row * s->out_height + element * s->gap};
}

static struct rp_image image_of(const struct shape *s, const uint8_t *base)
{
    return (struct rp_image){.format = s->full_format ? RP_PIX_I420J : RP_PIX_I420,
                             .native_format = AV_PIX_FMT_YUV420P,
                             .width = s->width,
                             .height = s->height,
                             .colorspace = s->colorspace,
                             .color_range = s->color_range,
                             .plane = {base, base + PLANE, base + 2 * PLANE},
                             .stride = {s->luma_stride, s->chroma_stride, s->chroma_stride}};
}

static struct rp_cuda_job job_of(const struct rig *rig, const struct shape *s)
{
    struct rp_cuda_job job = {.image = image_of(s, (const uint8_t *)(uintptr_t)rig->there->address),
                              .target = target_of(s, (void *)(uintptr_t)rig->result->address)};
    if (s->pairs) {
        job.image.format = s->full_format ? RP_PIX_NV12J : RP_PIX_NV12;
        job.image.plane[1] = job.image.plane[0] + 3 * PLANE;
        job.image.plane[2] = NULL;
        job.image.stride[1] = STRIDE_MAX;
        job.image.stride[2] = 0;
    }
    return job;
}

/* Both ways; every byte of the result, also between rows and behind the picture. */
static bool check_shape(struct rig *rig, const struct shape *s)
{
    struct rp_image image = image_of(s, rig->pinned->host);
    struct rp_target target = target_of(s, rig->want);
    struct rp_cuda_job job = job_of(rig, s);
    size_t bytes = 3 * (size_t)target.plane_stride;
    memset(rig->want, 0xA5, bytes);
    memset(rig->back->host, 0xA5, bytes);
    bool done =
        CHECK_OK(rp_convert(&image, &target, rig->scratch, &rig->err), &rig->err) &&
        CHECK_OK(rp_cuda_upload(rig->stream, rig->back, 0, rig->result, 0, bytes, &rig->err),
                 &rig->err) &&
        CHECK(rp_cuda_converts(&job.image, &job.target)) &&
        CHECK_OK(rp_cuda_convert(rig->converter, &job, 1, &rig->err), &rig->err) &&
        CHECK_OK(rp_cuda_download(rig->stream, rig->result, 0, rig->back, 0, bytes, &rig->err),
                 &rig->err) &&
        CHECK_OK(rp_cuda_stream_finish(rig->stream, &rig->err), &rig->err);
    return done && CHECK_MEM(rig->back->host, rig->want, bytes);
}

RP_TEST(free_takes_null)
{
    rp_cuda_converter *none = NULL;
    rp_cuda_converter_free(NULL);
    rp_cuda_converter_free(&none);
}

RP_TEST(every_matrix_and_range)
{
    struct rig *rig = rig_make();
    for (int colorspace = 0; colorspace < 15; colorspace++) {
        for (int range = 0; range < 3; range++) {
            for (int kind = 0; kind < 8; kind++) {
                struct shape s = {.width = kind & 1 ? 64 : 66,
                                  .height = 6,
                                  .luma_stride = 96,
                                  .chroma_stride = 48,
                                  .colorspace = colorspace,
                                  .color_range = range,
                                  .pairs = kind & 2,
                                  .full_format = kind & 4,
                                  .type = kind & 4 ? RP_PIXEL_F32 : RP_PIXEL_U8};
                s.out_width = s.width;
                s.out_height = s.height;
                fill(rig, (uint64_t)(colorspace * 100 + range * 10 + kind), s.chroma_stride);
                if (!check_shape(rig, &s)) {
                    rig_end(rig);
                    return;
                }
            }
        }
    }
    rig_end(rig);
}

RP_TEST(every_width_stride_and_type)
{
    struct rig *rig = rig_make();
    fill(rig, 1, 110);
    int n = 0;
    for (int width = 2; width <= MAX_SIDE_; width += width < 40 ? 2 : 26) {
        for (int kind = 0; kind < 12; kind++, n++) {
            struct shape s = {.width = width,
                              .height = 2 + n % 4 * 2,
                              .luma_stride = width + kind % 3 * 13,
                              .chroma_stride = 110,
                              .gap = kind / 2 % 3,
                              .pairs = n % 2,
                              .colorspace = 1 + n % 9,
                              .color_range = n % 3,
                              .type = kind % 2 ? RP_PIXEL_F32 : RP_PIXEL_U8};
            s.out_width = s.width;
            s.out_height = s.height;
            if (!check_shape(rig, &s)) {
                rig_end(rig);
                return;
            }
        }
    }
    rig_end(rig);
}

RP_TEST(resizes)
{
    static const int sizes[][4] = {
        {64, 48, 32, 24},   {64, 48, 30, 90},  {200, 200, 7, 5},  {2, 2, 31, 17},
        {98, 34, 98, 17},   {98, 34, 49, 34},  {64, 64, 63, 65},  {200, 150, 1, 1},
        {150, 200, 209, 3}, {40, 30, 208, 96}, {96, 96, 95, 200}, {128, 2, 3, 2},
    };
    struct rig *rig = rig_make();
    fill(rig, 2, 100);
    for (int i = 0; i < 12; i++) {
        for (int kind = 0; kind < 4; kind++) {
            struct shape s = {.width = sizes[i][0],
                              .height = sizes[i][1],
                              .out_width = sizes[i][2],
                              .out_height = sizes[i][3],
                              .luma_stride = sizes[i][0] + kind,
                              .chroma_stride = 100,
                              .gap = kind / 2,
                              .colorspace = 2,
                              .pairs = kind % 2,
                              .type = kind < 2 ? RP_PIXEL_U8 : RP_PIXEL_F32};
            if (!check_shape(rig, &s)) {
                rig_end(rig);
                return;
            }
        }
    }
    rig_end(rig);
}

#define MANY 60

/* Pictures of one call: what the CPU makes of them, one behind the other. */
struct many {
    struct rp_cuda_job job[MANY];
    size_t at[MANY + 1];
    int n;
};

static void add_picture(struct rig *rig, struct many *many, int out_width, int out_height)
{
    int i = many->n++;
    struct shape s = {.width = 64,
                      .height = 48,
                      .out_width = out_width,
                      .out_height = out_height,
                      .luma_stride = 64,
                      .chroma_stride = 100,
                      .colorspace = i % 11,
                      .pairs = i % 2,
                      .type = i % 3 ? RP_PIXEL_U8 : RP_PIXEL_F32};
    struct rp_image image = image_of(&s, rig->pinned->host);
    struct rp_target target = target_of(&s, rig->want + many->at[i]);
    many->job[i] = job_of(rig, &s);
    many->job[i].target.data = (void *)((uintptr_t)rig->result->address + many->at[i]);
    many->at[i + 1] = many->at[i] + ((size_t)target.plane_stride * 3 + 63) / 64 * 64;
    REQUIRE(many->at[i + 1] <= OUT_BYTES);
    CHECK_OK(rp_convert(&image, &target, rig->scratch, &rig->err), &rig->err);
}

/* All of them in one call; how many launches that took. */
static long check_many(struct rig *rig, const struct many *many)
{
    long before = rig->fake->launches;
    size_t bytes = many->at[many->n];
    memset(rig->back->host, 0, bytes);
    CHECK_OK(rp_cuda_convert(rig->converter, many->job, many->n, &rig->err), &rig->err);
    CHECK_OK(rp_cuda_download(rig->stream, rig->result, 0, rig->back, 0, bytes, &rig->err),
             &rig->err);
    CHECK_OK(rp_cuda_stream_finish(rig->stream, &rig->err), &rig->err);
    for (int i = 0; i < many->n; i++) {
        if (!CHECK_MEM(rig->back->host + many->at[i], rig->want + many->at[i],
                       3 * (size_t)many->job[i].target.plane_stride)) {
            fprintf(stderr, "picture %d\n", i);
            break;
        }
    }
    return rig->fake->launches - before;
}

/* Mixed pictures in one call, more sizes than there are slots for, the work done late. */
RP_TEST(one_call_for_many_pictures)
{
    struct rig *rig = rig_make();
    struct many many = {.n = 0};
    rig->fake->lazy = true;
    fill(rig, 3, 100);
    for (int i = 0; i < 8; i++) {
        add_picture(rig, &many, i % 2 ? 64 : 20 + i, i % 3 ? 48 : 20 + i);
    }
    CHECK_EQ(check_many(rig, &many), 1);
    CHECK_EQ(check_many(rig, &many), 1);
    for (int i = 8; i < MANY; i++) {
        add_picture(rig, &many, i % 5 == 0 ? 64 : 20 + i % 33, i % 5 == 1 ? 48 : 20 + i % 29);
    }
    for (int round = 0; round < 3; round++) {
        CHECK(check_many(rig, &many) > 1); /* tables had to go in between */
    }
    rig_end(rig);
}

/* Picture 16 finds the tables of its width, and with those of its height begins a new launch, which
 * then needs the former as much as the latter. */
RP_TEST(tables_stay_until_the_launch_that_needs_them)
{
    for (int lazy = 0; lazy < 2; lazy++) {
        struct rig *rig = rig_make();
        struct many many = {.n = 0};
        rig->fake->lazy = lazy;
        fill(rig, 5, 100);
        for (int i = 0; i < 16; i++) {
            add_picture(rig, &many, 20 + i, 48);
        }
        add_picture(rig, &many, 20, 20);
        for (int i = 0; i < 23; i++) {
            add_picture(rig, &many, 40 + i, 48);
        }
        CHECK_EQ(check_many(rig, &many), 3);
        rig_end(rig);
    }
}

RP_TEST(what_the_kernel_does_not_make)
{
    struct rig *rig = rig_make();
    struct shape s = {.width = 64,
                      .height = 48,
                      .out_width = 64,
                      .out_height = 48,
                      .luma_stride = 64,
                      .chroma_stride = 32};
    float table[1] = {0};
    struct rp_cuda_job job = job_of(rig, &s), bad[9];
    CHECK(rp_cuda_converts(&job.image, &job.target));
    for (int i = 0; i < 9; i++) {
        bad[i] = job;
    }
    bad[0].image.width = 63;
    bad[1].image.height = 47;
    bad[2].image.format = RP_PIX_OTHER;
    bad[3].image.format = RP_PIX_GRAY12;
    bad[4].image.stride[2] = 33;
    bad[5].image.stride[0] = -64;
    bad[6].target.type = RP_PIXEL_U16;
    bad[7].target.depth_table = table;
    bad[8].target.width = 0;
    for (int i = 0; i < 9; i++) {
        struct rp_cuda_job two[2] = {job, bad[i]};
        CHECK(!rp_cuda_converts(&bad[i].image, &bad[i].target));
        rp_error_clear(&rig->err);
        CHECK_STATUS(rp_cuda_convert(rig->converter, two, 2, &rig->err), RP_E_UNSUPPORTED,
                     &rig->err);
    }
    CHECK_EQ(rig->fake->launches, 0);
    rig_end(rig);
}

/* A conversion that fails leaves nothing behind, and the next one is right. */
RP_TEST(every_call_of_the_driver_fails_once)
{
    int failed = 0;
    bool met = true;
    for (long nth = 1; met; nth++) {
        struct rig *rig = rig_make();
        struct shape s = {.width = 64,
                          .height = 48,
                          .out_width = 20,
                          .out_height = 30,
                          .luma_stride = 64,
                          .chroma_stride = 32};
        fill(rig, 4, 32);
        struct rp_cuda_job jobs[2] = {job_of(rig, &s), job_of(rig, &s)};
        jobs[1].target.height = 31;
        rig->fake->calls = 0;
        rig->fake->fail_nth = nth;
        rig->fake->fail_code = 1;
        rp_error_clear(&rig->err);
        rp_status status = rp_cuda_convert(rig->converter, jobs, 2, &rig->err);
        met = rig->fake->calls >= nth;
        rig->fake->fail_nth = 0;
        if (status != RP_OK) {
            failed++;
            CHECK_EQ(status, RP_E_CUDA);
            CHECK_EQ(rig->err.sys, 1);
        }
        rp_error_clear(&rig->err);
        status = rp_cuda_stream_finish(rig->stream, &rig->err);
        if (status == RP_OK) { /* the device did not fail for good */
            CHECK(check_shape(rig, &s));
        }
        rig_end(rig);
    }
    CHECK(failed > 20);
}

/* All 2^24 triples of one matrix, a part of them for the others: the host build of the kernel
 * against the reference, without a driver. */
RP_TEST(every_triple)
{
    enum { W = 512, H = 128 };
    static uint8_t luma[H][W], u[H / 2][W / 2], v[H / 2][W / 2], want[3][H][W], got[3][H][W];
    static const int spaces[] = {2, 1, 4, 7, 9};
    for (int y = 0; y < H; y++) {
        for (int x = 0; x < W; x++) {
            luma[y][x] = (uint8_t)(4 * (y / 2) + 2 * (y % 2) + x % 2);
            v[y / 2][x / 2] = (uint8_t)(x / 2);
        }
    }
    for (int table = 0; table < 10; table++) {
        for (int k = 0; k < 256; k += table == 0 ? 1 : 15) {
            const struct rp_colour *c = rp_colour_of(spaces[table / 2], table % 2);
            struct rp_image image = {.format = RP_PIX_I420,
                                     .width = W,
                                     .height = H,
                                     .plane = {luma[0], u[0], v[0]},
                                     .stride = {W, W / 2, W / 2}};
            struct rp_planes planes = {.plane = {want[0], want[1], want[2]}, .row_stride = W};
            struct rp_cuda_frame frame = {.luma = (uintptr_t)luma,
                                          .cb = (uintptr_t)u,
                                          .cr = (uintptr_t)v,
                                          .luma_stride = W,
                                          .chroma_stride = W / 2,
                                          .chroma_step = 1,
                                          .width = W,
                                          .height = H,
                                          .yc = c->yc,
                                          .yoff = c->yoff,
                                          .vr = c->vr,
                                          .ub = c->ub,
                                          .vg = c->vg,
                                          .ug = c->ug,
                                          .out_width = W,
                                          .out_height = H,
                                          .out = (uintptr_t)got,
                                          .row_stride = W,
                                          .plane_stride = W * H};
            memset(u, k, sizeof(u));
            rp_kernels_c.i420_u8(&image, c, &planes);
            kernel_on_host(&frame, 1);
            if (!CHECK_MEM(got, want, sizeof(want))) {
                return;
            }
        }
    }
}
