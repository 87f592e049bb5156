/* rp_convert: formats, types, refusals, resize, depth, and that memory is reused. */
#include "harness.h"

#include "base/rng.h"
#include "convert/convert.h"
#include "convert/convert_priv.h"

#include <libavutil/pixfmt.h>

#define MAX_W      160
#define MAX_H      120
#define MAX_PIXELS (MAX_W * MAX_H)
#define PADDED(n)  ((n) + 128)

/* Random planes with a decoder's padding, and an output with room for every type. */
struct fixture {
    struct rp_image image;
    struct rp_target target;
    struct rp_error err;
    rp_scratch *scratch;
    uint16_t codes[MAX_PIXELS];
    uint8_t planes[3][PADDED(MAX_W) * (MAX_H + 2)];
    float out[3 * MAX_PIXELS];
    float copy[3 * MAX_PIXELS];
};

static void set_target(struct fixture *f, enum rp_pixel_type type, int width, int height)
{
    int element = type == RP_PIXEL_U8 ? 1 : type == RP_PIXEL_U16 ? 2 : 4;
    f->target = (struct rp_target){.data = f->out,
                                   .type = type,
                                   .width = width,
                                   .height = height,
                                   .row_stride = width * element,
                                   .plane_stride = (ptrdiff_t)width * element * height};
}

static struct fixture *make(int width, int height)
{
    struct fixture *f = rp_calloc(1, sizeof(*f));
    if (f == NULL || rp_scratch_new(&f->scratch, &f->err) != RP_OK) {
        abort();
    }
    f->image = (struct rp_image){.format = RP_PIX_I420,
                                 .width = width,
                                 .height = height,
                                 .colorspace = 2,
                                 .native_format = AV_PIX_FMT_YUV420P};
    for (int p = 0; p < 3; p++) {
        for (size_t i = 0; i < sizeof(f->planes[p]); i++) {
            f->planes[p][i] = (uint8_t)rp_hash64(7, 0, (uint32_t)p, i);
        }
        f->image.plane[p] = f->planes[p];
        f->image.stride[p] = PADDED(MAX_W);
    }
    set_target(f, RP_PIXEL_U8, width, height);
    return f;
}

static void done(struct fixture *f)
{
    rp_scratch_free(&f->scratch);
    rp_free(f);
}

static rp_status convert(struct fixture *f)
{
    rp_error_clear(&f->err);
    return rp_convert(&f->image, &f->target, f->scratch, &f->err);
}

RP_TEST(free_takes_null)
{
    rp_scratch *none = NULL;
    rp_scratch_free(NULL);
    rp_scratch_free(&none);
}

RP_TEST(floats_are_bytes_by_255_in_every_path)
{
    /* Kernel, libswscale, and both behind a resize. */
    static const int sizes[][4] = {
        {64, 48, 64, 48}, {63, 47, 63, 47}, {64, 48, 30, 90}, {63, 47, 20, 20}};
    for (int i = 0; i < 4; i++) {
        struct fixture *f = make(sizes[i][0], sizes[i][1]);
        int n = 3 * sizes[i][2] * sizes[i][3];
        set_target(f, RP_PIXEL_U8, sizes[i][2], sizes[i][3]);
        CHECK_OK(convert(f), &f->err);
        memcpy(f->copy, f->out, sizeof(f->out));
        const uint8_t *bytes = (const uint8_t *)f->copy;
        set_target(f, RP_PIXEL_F32, sizes[i][2], sizes[i][3]);
        CHECK_OK(convert(f), &f->err);
        int wrong = 0;
        unsigned spread = 0;
        for (int k = 0; k < n; k++) {
            wrong += f->out[k] != (float)bytes[k] / 255.0f;
            spread |= bytes[k] ^ bytes[0];
        }
        CHECK_EQ(wrong, 0);
        CHECK(spread != 0);
        done(f);
    }
}

RP_TEST(strides_of_the_target_are_kept)
{
    struct fixture *f = make(34, 6);
    CHECK_OK(convert(f), &f->err);
    memcpy(f->copy, f->out, 3 * 34 * 6);
    const uint8_t *want = (const uint8_t *)f->copy;
    memset(f->out, 0xA5, sizeof(f->out));
    f->target.row_stride = 41;
    f->target.plane_stride = 500;
    CHECK_OK(convert(f), &f->err);
    const uint8_t *got = (const uint8_t *)f->out;
    int wrong = 0;
    for (int i = 0; i < 1600; i++) {
        int c = i / 500, y = i % 500 / 41, x = i % 500 % 41;
        bool pixel = c < 3 && y < 6 && x < 34;
        wrong += got[i] != (pixel ? want[c * 34 * 6 + y * 34 + x] : 0xA5);
    }
    CHECK_EQ(wrong, 0);
    done(f);
}

/* Kernels and libswscale agree where both can convert, so no seam shows between the two. */
RP_TEST(kernel_equals_libswscale)
{
#if defined(__x86_64__)
    static const int widths[] = {32, 64, 96, 98, 150};
    for (int w = 0; w < 5; w++) {
        for (int space = 1; space < 15; space++) { /* 0 (RGB): libswscale's versions differ */
            struct fixture *f = make(widths[w], 34);
            f->image.colorspace = space;
            f->image.color_range = space % 3;
            CHECK_OK(convert(f), &f->err);
            memcpy(f->copy, f->out, sizeof(f->out));
            f->image.format = RP_PIX_OTHER;
            CHECK_OK(convert(f), &f->err);
            CHECK_MEM(f->out, f->copy, (size_t)(3 * widths[w] * 34));
            done(f);
        }
    }
#else
    SKIP("x86", "libswscale's arithmetic differs on other CPUs");
#endif
}

RP_TEST(resize_by_hand)
{
    struct fixture *f = make(4, 2);
    rp_scratch *s = f->scratch;
    uint8_t in[8] = {0, 100, 200, 50, 10, 20, 30, 255};
    uint8_t out[3][8];
    struct rp_planes from = {.plane = {in, in, in}, .row_stride = 4};
    struct rp_planes to = {.plane = {out[0], out[1], out[2]}, .row_stride = 2};
    /* 4 -> 2 columns: weights 1, 3, 3, 1 around each pair, cut at the border: 3, 3, 1 of 7. */
    CHECK_OK(rp_resize_planes(&from, 4, 2, &to, 2, 2, s, &f->err), &f->err);
    CHECK_EQ(out[0][0], (int)((0 * 3 + 100 * 3 + 200) / 7.0 + 0.5));
    CHECK_EQ(out[0][1], (int)((100 + 200 * 3 + 50 * 3) / 7.0 + 0.5));
    CHECK_EQ(out[2][2], (int)((10 * 3 + 20 * 3 + 30) / 7.0 + 0.5));
    /* 1 row of two: both count alike in the middle. */
    to.row_stride = 4;
    CHECK_OK(rp_resize_planes(&from, 4, 2, &to, 4, 1, s, &f->err), &f->err);
    CHECK_EQ(out[1][0], 5);
    CHECK_EQ(out[1][3], 153); /* 152.5 rounds up */
    /* The size that stays is copied by no pass at all. */
    CHECK_EQ(s->axis[1].in, 2);
    CHECK_EQ(s->axis[1].out, 1);
    done(f);
}

/* torchvision 0.26, resize(uint8, antialias=True) of one row, and of one column. */
RP_TEST(resize_equals_stored_values)
{
    uint8_t in[11] = {3, 250, 17, 90, 201, 44, 255, 0, 128, 77, 9};
    static const struct {
        int n;
        uint8_t want[17];
    } cases[] = {
        {3, {109, 119, 79}},
        {4, {110, 117, 119, 63}},
        {7, {102, 94, 134, 121, 120, 92, 36}},
        {10, {34, 201, 38, 132, 129, 158, 96, 91, 88, 18}},
        {17, {3, 119, 223, 72, 47, 97, 168, 146, 44, 181, 180, 15, 75, 116, 83, 41, 9}},
    };
    struct fixture *f = make(2, 2);
    for (int i = 0; i < 5; i++) {
        uint8_t out[17];
        struct rp_planes from = {.plane = {in, in, in}, .row_stride = 11};
        struct rp_planes to = {.plane = {out, out, out}, .row_stride = 17};
        CHECK_OK(rp_resize_planes(&from, 11, 1, &to, cases[i].n, 1, f->scratch, &f->err), &f->err);
        CHECK_MEM(out, cases[i].want, (size_t)cases[i].n);
        from.row_stride = to.row_stride = 1;
        CHECK_OK(rp_resize_planes(&from, 1, 11, &to, 1, cases[i].n, f->scratch, &f->err), &f->err);
        CHECK_MEM(out, cases[i].want, (size_t)cases[i].n);
    }
    done(f);
}

RP_TEST(scratch_is_reused_and_bounded)
{
    struct fixture *f = make(64, 48);
    set_target(f, RP_PIXEL_F32, 32, 24);
    CHECK_OK(convert(f), &f->err);
    int64_t alive = rp_live_objects();
    rp_fault_arm(&(struct rp_fault){.calls = RP_FAULT_MEMORY, .nth = 1, .onward = true});
    for (int i = 0; i < 5; i++) {
        CHECK_OK(convert(f), &f->err); /* allocates nothing */
    }
    CHECK(!rp_fault_disarm());
    CHECK_EQ(rp_live_objects(), alive);
    for (int i = 1; i < 60; i++) { /* more sizes than slots */
        set_target(f, RP_PIXEL_U8, i, 61 - i);
        f->image.height = 47 - i % 2;
        f->image.width = 64 - i;
        CHECK_OK(convert(f), &f->err);
    }
    CHECK(rp_live_objects() < alive + 3 * RP_AXIS_SLOTS + 8);
    done(f);
}

static void convert_under_fault(void *arg)
{
    struct fixture *f = arg;
    rp_scratch *scratch = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_scratch_new(&scratch, &err);
    if (status == RP_OK) {
        status = rp_convert(&f->image, &f->target, scratch, &err);
    }
    if (status != RP_OK) {
        CHECK_EQ(status, RP_E_NOMEM);
        CHECK_EQ(err.code, RP_E_NOMEM);
    }
    rp_scratch_free(&scratch);
}

RP_TEST(short_memory_is_a_typed_error)
{
    struct fixture *f = make(63, 47);
    set_target(f, RP_PIXEL_F32, 30, 20);
    CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, convert_under_fault, f) >= 8);
    done(f);
}

RP_TEST(scratch_stays_usable_after_short_memory)
{
    for (long nth = 1; nth <= 12; nth++) {
        struct fixture *f = make(63, 47);
        set_target(f, RP_PIXEL_F32, 30, 20);
        rp_fault_arm(&(struct rp_fault){.calls = RP_FAULT_MEMORY, .nth = nth});
        rp_status status = convert(f);
        CHECK_EQ(status == RP_E_NOMEM, rp_fault_disarm());
        CHECK_OK(convert(f), &f->err);
        done(f);
    }
}

static struct fixture *make_depth(int width, int height)
{
    struct fixture *f = make(width, height);
    for (int i = 0; i < MAX_PIXELS; i++) {
        f->codes[i] = (uint16_t)(i * 7 % 4096);
    }
    f->image.format = RP_PIX_GRAY12;
    f->image.native_format = AV_PIX_FMT_GRAY12LE;
    f->image.plane[0] = (const uint8_t *)f->codes;
    f->image.stride[0] = MAX_W * 2;
    return f;
}

RP_TEST(depth_codes_and_values)
{
    struct fixture *f = make_depth(33, 7);
    float table[4096];
    for (int i = 0; i < 4096; i++) {
        table[i] = (float)i * -0.25f;
    }
    set_target(f, RP_PIXEL_U16, 33, 7);
    CHECK_OK(convert(f), &f->err);
    const uint16_t *codes = (const uint16_t *)f->out;
    int wrong = 0;
    for (int i = 0; i < 33 * 7; i++) {
        wrong += codes[i] != f->codes[i / 33 * MAX_W + i % 33];
    }
    CHECK_EQ(wrong, 0);
    set_target(f, RP_PIXEL_F32, 33, 7);
    f->target.depth_table = table;
    CHECK_OK(convert(f), &f->err);
    for (int i = 0; i < 33 * 7; i++) {
        wrong += f->out[i] != table[f->codes[i / 33 * MAX_W + i % 33]];
    }
    CHECK_EQ(wrong, 0);
    f->codes[3 * MAX_W + 32] = 4096; /* the last column counts */
    CHECK_STATUS(convert(f), RP_E_DECODE, &f->err);
    CHECK_CONTAINS(f->err.what, "row 3");
    f->codes[3 * MAX_W + 32] = 4095;
    memset(&f->codes[4 * MAX_W], 0, 33 * sizeof(f->codes[0]));
    f->codes[4 * MAX_W] = 4096; /* alone in its row */
    CHECK_STATUS(convert(f), RP_E_DECODE, &f->err);
    f->codes[4 * MAX_W] = 0;
    f->codes[3 * MAX_W + 33] = 9999; /* padding does not */
    CHECK_OK(convert(f), &f->err);
    done(f);
}

RP_TEST(refusals)
{
    struct fixture *f = make_depth(32, 8);
    float table[4096] = {0};
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err); /* depth as RGB bytes */
    set_target(f, RP_PIXEL_F32, 32, 8);
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err); /* floats without a table */
    set_target(f, RP_PIXEL_U16, 32, 8);
    f->target.depth_table = table;
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err); /* codes with a table */
    set_target(f, RP_PIXEL_U16, 16, 8);
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err); /* depth resized */
    CHECK_CONTAINS(f->err.what, "32x8");
    done(f);

    f = make(32, 8);
    set_target(f, RP_PIXEL_U16, 32, 8);
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err); /* colour as codes */
    set_target(f, RP_PIXEL_F32, 32, 8);
    f->target.depth_table = table;
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err); /* colour through a table */
    set_target(f, RP_PIXEL_U8, 32, 8);
    f->image.format = RP_PIX_NV12;
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err);
    f->image.format = RP_PIX_NV12J;
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err);
    f->image.format = RP_PIX_OTHER;
    f->image.native_format = AV_PIX_FMT_VAAPI; /* no pixels in memory */
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err);
    f->image.native_format = 100000;
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err);
    f->image.format = RP_PIX_I420;
    f->target.width = 0;
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err);
    f->target.width = 32769;
    CHECK_STATUS(convert(f), RP_E_UNSUPPORTED, &f->err);
    done(f);
}
