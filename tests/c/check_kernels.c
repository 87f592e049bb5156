/* Every kernel of every CPU tier against a scalar formula and against the C tier, bit for bit.
 * `check_kernels --bench` prints the time of each instead (median of 5 interleaved runs). */
#define RP_HARNESS_OWN_MAIN
#include "harness.h"

#include "base/cpu.h"
#include "base/rng.h"
#include "convert/convert_priv.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const enum rp_cpu_tier all_tiers[] = {RP_CPU_C, RP_CPU_AVX2, RP_CPU_AVX512, RP_CPU_NEON};
#define TIERS ((int)(sizeof(all_tiers) / sizeof(all_tiers[0])))

#define GUARD 0xA5

static bool tier_exists(enum rp_cpu_tier tier)
{
    return rp_cpu_limit(tier) == tier;
}

/* docs/pixels.md, spelled with divisions that floor, and with its own table. */
struct reference {
    int colorspace;
    int full;
    int yc, yoff, vr, ub, vg, ug;
};

static const struct reference references[] = {
    {2, 0, 9539, 128, 13075, 16525, -6660, -3209}, {2, 1, 8192, 0, 11485, 14516, -5850, -2819},
    {1, 0, 9539, 128, 14686, 17305, -4366, -1747}, {1, 1, 8192, 0, 12901, 15201, -3835, -1534},
    {4, 0, 9539, 128, 13056, 16600, -6639, -3095}, {4, 1, 8192, 0, 11469, 14582, -5831, -2719},
    {7, 0, 9539, 128, 14697, 17029, -4445, -2113}, {7, 1, 8192, 0, 12911, 14959, -3904, -1856},
    {9, 0, 9539, 128, 13752, 17545, -5328, -1535}, {9, 1, 8192, 0, 12080, 15412, -4680, -1348},
};
#define REFERENCES ((int)(sizeof(references) / sizeof(references[0])))

static int high_word(int a, int b)
{
    int product = a * b;
    int quotient = product / 65536;
    return product % 65536 < 0 ? quotient - 1 : quotient;
}

static uint8_t to_byte(int v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void formula(const struct reference *k, int y, int u, int v, uint8_t rgb[3])
{
    int luma = high_word(8 * y - k->yoff, k->yc);
    rgb[0] = to_byte(luma + high_word(8 * v - 1024, k->vr));
    rgb[1] = to_byte(luma + high_word(8 * u - 1024, k->ug) + high_word(8 * v - 1024, k->vg));
    rgb[2] = to_byte(luma + high_word(8 * u - 1024, k->ub));
}

/* One u per picture; chroma columns hold every v, row pairs every y. */
#define ALL_W 512
#define ALL_H 128

struct all_triples {
    uint8_t y[ALL_H][ALL_W];
    uint8_t u[ALL_H / 2][ALL_W / 2];
    uint8_t v[ALL_H / 2][ALL_W / 2];
    uint8_t want[3][ALL_H][ALL_W];
    uint8_t got[3][ALL_H][ALL_W];
    float got_f32[3][ALL_H][ALL_W];
};

static void fill_triples(struct all_triples *all, const struct reference *k, int u)
{
    memset(all->u, u, sizeof(all->u));
    for (int row = 0; row < ALL_H; row++) {
        for (int x = 0; x < ALL_W; x++) {
            int y = 4 * (row / 2) + 2 * (row % 2) + x % 2;
            uint8_t rgb[3];
            formula(k, y, u, x / 2, rgb);
            all->y[row][x] = (uint8_t)y;
            all->v[row / 2][x / 2] = (uint8_t)(x / 2);
            for (int c = 0; c < 3; c++) {
                all->want[c][row][x] = rgb[c];
            }
        }
    }
}

static void check_triples(struct all_triples *all, const struct reference *k, int u)
{
    struct rp_image image = {.format = RP_PIX_I420,
                             .width = ALL_W,
                             .height = ALL_H,
                             .plane = {all->y[0], all->u[0], all->v[0]},
                             .stride = {ALL_W, ALL_W / 2, ALL_W / 2}};
    const struct rp_colour *colour = rp_colour_of(k->colorspace, k->full != 0);
    struct rp_planes u8 = {.plane = {all->got[0], all->got[1], all->got[2]}, .row_stride = ALL_W};
    struct rp_planes f32 = {.plane = {all->got_f32[0], all->got_f32[1], all->got_f32[2]},
                            .row_stride = ALL_W * 4};
    fill_triples(all, k, u);
    for (int t = 0; t < TIERS; t++) {
        if (!tier_exists(all_tiers[t])) {
            continue;
        }
        const struct rp_kernels *kernels = rp_kernels_of(all_tiers[t]);
        memset(all->got, GUARD, sizeof(all->got));
        kernels->i420_u8(&image, colour, &u8);
        if (!CHECK_MEM(all->got, all->want, sizeof(all->want))) {
            rp_fail_at(__FILE__, __LINE__, "tier %s, matrix %d, full %d, u %d",
                       rp_cpu_name(all_tiers[t]), k->colorspace, k->full, u);
        }
        memset(all->got_f32, GUARD, sizeof(all->got_f32));
        kernels->i420_f32(&image, colour, &f32);
        int wrong = 0;
        for (int i = 0; i < 3 * ALL_H * ALL_W; i++) {
            wrong += (&all->got_f32[0][0][0])[i] != (float)(&all->want[0][0][0])[i] / 255.0f;
        }
        CHECK_EQ(wrong, 0);
    }
}

RP_TEST(every_triple_of_the_default_matrix_is_the_formula)
{
    struct all_triples *all = rp_calloc(1, sizeof(*all));
    REQUIRE(all != NULL);
    for (int u = 0; u < 256; u++) {
        check_triples(all, &references[0], u);
    }
    rp_free(all);
}

RP_TEST(every_matrix_and_range_is_the_formula)
{
    struct all_triples *all = rp_calloc(1, sizeof(*all));
    REQUIRE(all != NULL);
    for (int k = 1; k < REFERENCES; k++) {
        for (int u = 0; u < 256; u += 15) { /* 0 .. 255 */
            check_triples(all, &references[k], u);
        }
    }
    rp_free(all);
}

RP_TEST(matrix_numbers_map_as_in_libswscale)
{
    static const int same[][2] = {{0, 1}, {3, 2},  {5, 2},  {6, 2},
                                  {8, 2}, {10, 9}, {11, 2}, {14, 2}};
    for (int i = 0; i < (int)(sizeof(same) / sizeof(same[0])); i++) {
        CHECK(rp_colour_of(same[i][0], false) == rp_colour_of(same[i][1], false));
        CHECK(rp_colour_of(same[i][0], true) == rp_colour_of(same[i][1], true));
    }
}

RP_TEST(range_follows_format_or_tag_by_width)
{
    struct rp_image image = {.format = RP_PIX_I420, .width = 64, .height = 2, .color_range = 2};
    CHECK(!rp_colour_is_full(&image));
    image.width = 66;
    CHECK(rp_colour_is_full(&image));
    image.color_range = 0;
    CHECK(!rp_colour_is_full(&image));
    image.format = RP_PIX_I420J;
    CHECK(rp_colour_is_full(&image));
    image.color_range = 1;
    CHECK(!rp_colour_is_full(&image));
    image.width = 64;
    CHECK(rp_colour_is_full(&image));
}

RP_TEST(all_floats_are_the_division)
{
    uint8_t in[256 + 64];
    float out[256 + 64 + 2];
    for (int i = 0; i < (int)sizeof(in); i++) {
        in[i] = (uint8_t)i;
    }
    for (int t = 0; t < TIERS; t++) {
        if (!tier_exists(all_tiers[t])) {
            continue;
        }
        for (int n = 0; n <= (int)sizeof(in); n++) {
            for (int i = 0; i < n + 2; i++) {
                out[i] = -1.0f;
            }
            rp_kernels_of(all_tiers[t])->u8_f32(in, out + 1, (size_t)n);
            int wrong = out[0] != -1.0f || out[n + 1] != -1.0f;
            for (int i = 0; i < n; i++) {
                wrong += out[i + 1] != (float)in[i] / 255.0f;
            }
            CHECK_EQ(wrong, 0);
        }
    }
}

/* Planes and outputs that end where their memory ends, so that a sanitizer sees an over-read, and
 * outputs with guard bytes around every row. */
struct shape {
    int width, height;
    int pad;   /* bytes between source rows */
    int extra; /* elements between output rows */
    int shift; /* elements before the first output */
};

enum filling { RANDOM, EXTREMES, ZEROS, ONES };

static void fill(uint8_t *to, size_t n, enum filling kind, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t h = kind == RANDOM || kind == EXTREMES ? rp_hash64(seed, 0, 1, i) : 0;
        to[i] = kind == RANDOM     ? (uint8_t)h
                : kind == EXTREMES ? (uint8_t)(h & 1 ? 255 : 0)
                : kind == ONES     ? 255
                                   : 0;
    }
}

/* Source planes whose last row ends at the end of its block. */
static bool make_image(struct rp_image *image, const struct shape *s, enum filling kind,
                       uint8_t *blocks[3])
{
    *image = (struct rp_image){.format = RP_PIX_I420, .width = s->width, .height = s->height};
    bool made = true;
    for (int p = 0; p < 3; p++) {
        int w = p == 0 ? s->width : s->width / 2;
        int h = p == 0 ? s->height : s->height / 2;
        size_t size = (size_t)(w + s->pad) * (size_t)(h - 1) + (size_t)w;
        blocks[p] = rp_calloc(size, 1);
        made = made && blocks[p] != NULL;
        if (blocks[p] != NULL) {
            fill(blocks[p], size, kind, (uint64_t)(p + 1));
        }
        image->plane[p] = blocks[p];
        image->stride[p] = w + s->pad;
    }
    return made;
}

/* Convert with one tier into `memory` of `size` bytes, all guard before. */
static void convert_with(enum rp_cpu_tier tier, const struct rp_image *image, const struct shape *s,
                         bool f32, uint8_t *memory, size_t size)
{
    ptrdiff_t element = f32 ? 4 : 1;
    ptrdiff_t row = (s->width + s->extra) * element;
    uint8_t *first = memory + s->shift * element;
    struct rp_planes out = {.plane = {first, first + row * s->height, first + 2 * row * s->height},
                            .row_stride = row};
    memset(memory, GUARD, size);
    const struct rp_kernels *kernels = rp_kernels_of(tier);
    (f32 ? kernels->i420_f32 : kernels->i420_u8)(image, rp_colour_of(2, false), &out);
}

/* Bytes that belong to no pixel must hold the guard. */
static int touched_guards(const struct shape *s, bool f32, const uint8_t *memory, size_t size)
{
    size_t element = f32 ? 4 : 1;
    size_t row = (size_t)(s->width + s->extra) * element;
    size_t begin = (size_t)s->shift * element;
    int touched = 0;
    for (size_t i = 0; i < size; i++) {
        bool is_pixel = i >= begin && i < begin + 3 * row * (size_t)s->height &&
                        (i - begin) % row < (size_t)s->width * element;
        touched += !is_pixel && memory[i] != GUARD;
    }
    return touched;
}

static void check_shape(const struct shape *s, enum filling kind)
{
    struct rp_image image;
    uint8_t *blocks[3];
    size_t size = (size_t)(s->shift + 3 * (s->width + s->extra) * s->height + 16) * 4;
    uint8_t *want = rp_calloc(size + 64, 1);
    uint8_t *got = rp_calloc(size + 64, 1);
    if (CHECK(make_image(&image, s, kind, blocks) && want != NULL && got != NULL)) {
        /* Aligned like an arena's slot, so that aligned rows take the streaming stores. */
        uint8_t *want_at = want + (64 - (uintptr_t)want % 64) % 64;
        uint8_t *got_at = got + (64 - (uintptr_t)got % 64) % 64;
        for (int f32 = 0; f32 < 2; f32++) {
            convert_with(RP_CPU_C, &image, s, f32, want_at, size);
            CHECK_EQ(touched_guards(s, f32, want_at, size), 0);
            for (int t = 1; t < TIERS; t++) {
                if (!tier_exists(all_tiers[t])) {
                    continue;
                }
                convert_with(all_tiers[t], &image, s, f32, got_at, size);
                if (!CHECK_MEM(got_at, want_at, size)) {
                    rp_fail_at(__FILE__, __LINE__, "tier %s: %dx%d, pad %d, extra %d, shift %d",
                               rp_cpu_name(all_tiers[t]), s->width, s->height, s->pad, s->extra,
                               s->shift);
                }
            }
        }
    }
    for (int p = 0; p < 3; p++) {
        rp_free(blocks[p]);
    }
    rp_free(want);
    rp_free(got);
}

RP_TEST(tiers_equal_the_reference_on_every_shape)
{
    static const int widths[] = {2,   4,   14,  16,   18,   30,   32,   34,  48,
                                 62,  64,  66,  94,   96,   126,  128,  130, 320,
                                 638, 640, 642, 1022, 1024, 1040, 1060, 2050};
    for (int w = 0; w < (int)(sizeof(widths) / sizeof(widths[0])); w++) {
        for (int i = 0; i < 6; i++) {
            struct shape s = {.width = widths[w],
                              .height = 2 + 2 * (i % 3),
                              .pad = i % 2 ? 0 : 3 + i,
                              .extra = i < 2   ? 0
                                       : i < 4 ? 16
                                               : 5,
                              .shift = i % 2 ? 0 : 1};
            for (int kind = RANDOM; kind <= ONES; kind++) {
                check_shape(&s, (enum filling)kind);
            }
        }
    }
}

/* Planes that end where readable memory ends: masked loads are invisible to a sanitizer. */
RP_TEST(no_byte_behind_a_plane_is_read)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *memory =
        mmap(NULL, 6 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    uint8_t *end[3];
    for (size_t p = 0; p < 3; p++) {
        end[p] = memory + (2 * p + 1) * page;
        REQUIRE(mprotect(end[p], page, PROT_NONE) == 0);
    }
    static float out[3 * 2 * 256];
    for (int width = 2; width <= 256; width += 2) {
        struct rp_image image = {.format = RP_PIX_I420, .width = width, .height = 2};
        for (int p = 0; p < 3; p++) {
            image.stride[p] = p == 0 ? width : width / 2;
            image.plane[p] = end[p] - (p == 0 ? 2 * width : width / 2);
        }
        struct rp_planes to = {.plane = {out, out + 512, out + 1024}, .row_stride = width * 4};
        for (int t = 0; t < TIERS; t++) {
            if (tier_exists(all_tiers[t])) {
                rp_kernels_of(all_tiers[t])->i420_u8(&image, rp_colour_of(2, false), &to);
                rp_kernels_of(all_tiers[t])->i420_f32(&image, rp_colour_of(2, false), &to);
                rp_kernels_of(all_tiers[t])->u8_f32(end[0] - width, out, (size_t)width);
            }
        }
    }
    CHECK(munmap(memory, 6 * page) == 0);
}

RP_TEST(init_keeps_its_first_choice)
{
    enum rp_cpu_tier first = rp_convert_init(RP_CPU_C);
    CHECK_EQ(first, RP_CPU_C);
    CHECK_EQ(rp_convert_init(rp_cpu_detect()), first);
}

/* ---- --bench ---- */

#define BENCH_W     640
#define BENCH_H     480
#define BENCH_SLOTS 32 /* destinations in turn, as the slots of an arena */
#define BENCH_RUNS  5

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* CPU time of this thread: other load on the machine then counts less. */
static double cpu_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* cannot fail on Linux */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* CPU microseconds per picture; without kernels those of memset. */
static double bench_one(const struct rp_kernels *kernels, const struct rp_image *image, bool f32,
                        uint8_t *slots)
{
    ptrdiff_t row = BENCH_W * (f32 ? 4 : 1);
    size_t size = (size_t)row * 3 * BENCH_H;
    int rounds = f32 ? 4 : 16;
    double start = cpu_us();
    for (int i = 0; i < rounds * BENCH_SLOTS; i++) {
        uint8_t *at = slots + (size_t)(i % BENCH_SLOTS) * size;
        if (kernels == NULL) {
            memset(at, i, size);
            continue;
        }
        struct rp_planes out = {.plane = {at, at + row * BENCH_H, at + 2 * row * BENCH_H},
                                .row_stride = row};
        (f32 ? kernels->i420_f32 : kernels->i420_u8)(image, rp_colour_of(2, false), &out);
    }
    return (cpu_us() - start) / (rounds * BENCH_SLOTS);
}

static int bench(void)
{
    struct shape s = {.width = BENCH_W, .height = BENCH_H};
    struct rp_image image;
    uint8_t *blocks[3];
    size_t size = (size_t)BENCH_SLOTS * BENCH_W * BENCH_H * 3 * 4;
    uint8_t *slots = aligned_alloc(64, size);
    if (slots == NULL || !make_image(&image, &s, RANDOM, blocks)) {
        fprintf(stderr, "out of memory\n");
        return 1;
    }
    memset(slots, 1, size);
    fprintf(stderr, "CPU us per %dx%d picture, median (best) of %d\n", BENCH_W, BENCH_H,
            BENCH_RUNS);
    for (int f32 = 0; f32 < 2; f32++) {
        double us[TIERS + 1][BENCH_RUNS] = {{0}};
        for (int run = 0; run < BENCH_RUNS; run++) {
            us[TIERS][run] = bench_one(NULL, &image, f32, slots);
            for (int t = 0; t < TIERS; t++) {
                if (tier_exists(all_tiers[t])) {
                    us[t][run] = bench_one(rp_kernels_of(all_tiers[t]), &image, f32, slots);
                }
            }
        }
        for (int t = TIERS; t >= 0; t--) {
            if (t == TIERS || tier_exists(all_tiers[t])) {
                qsort(us[t], BENCH_RUNS, sizeof(us[t][0]), compare_doubles);
                fprintf(stderr, "%s %-7s %7.1f (%.1f)\n", f32 ? "f32" : "u8 ",
                        t == TIERS ? "memset" : rp_cpu_name(all_tiers[t]), us[t][BENCH_RUNS / 2],
                        us[t][0]);
            }
        }
    }
    free(slots);
    for (int p = 0; p < 3; p++) {
        rp_free(blocks[p]);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--bench") == 0) {
        return bench();
    }
    return rp_harness_run(argc, argv);
}
