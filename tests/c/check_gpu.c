/* What only a GPU can show: the kernel's values on it, the driver's own refusals, and that nothing
 * is left behind. `check_gpu --bench` prints the time of the kernel and of the way up instead.
 * Needs gcc, nvcc and a driver, nothing else. */
#define RP_HARNESS_OWN_MAIN
#include "harness.h"

#include "cuda_cases.h"

#include "base/thread.h"
#include "cuda/cuda.h"

#include <sys/wait.h>
#include <unistd.h>

#define KEEP ((size_t)1 << 30)

struct rig {
    struct rp_error err;
    rp_cuda *device;
    rp_cuda_stream *stream;
    rp_cuda_kernel *kernel;
};

static char reason[512];

/* Why there is nothing to test; NULL: there is a GPU and a kernel for it. */
static const char *absent(void)
{
    struct rp_cuda_info info[RP_CUDA_MAX_DEVICES];
    struct rp_error err;
    int n = 0, version = 0;
    rp_error_clear(&err);
    if (rp_cuda_list(NULL, info, &n, &version, &err) != RP_OK) {
        (void)snprintf(reason, sizeof(reason), "no gpu: %s", err.what);
        return reason;
    }
    if (rp_cuda_image() == NULL) {
        return "no gpu kernel: nvcc was not found when this program was built";
    }
    fprintf(stderr, "%s, compute capability %d.%d, %d processors, driver %d, built by %s\n",
            info[0].name, info[0].major, info[0].minor, info[0].processors, version,
            rp_cuda_built());
    return NULL;
}

#define NEED_GPU()                   \
    do {                             \
        const char *why_ = absent(); \
        if (why_ != NULL) {          \
            SKIP("gpu", why_);       \
        }                            \
    } while (0)

static rp_status rig_open(struct rig *rig)
{
    rp_error_clear(&rig->err);
    RP_TRY(rp_cuda_open(NULL, 0, KEEP, &rig->device, &rig->err));
    RP_TRY(rp_cuda_stream_new(rig->device, &rig->stream, &rig->err));
    return rp_cuda_kernel_new(rig->device, rp_cuda_image(), RP_CUDA_KERNEL, &rig->kernel,
                              &rig->err);
}

static void rig_close(struct rig *rig)
{
    rp_cuda_kernel_free(&rig->kernel);
    rp_cuda_stream_free(&rig->stream);
    rp_cuda_close(&rig->device);
}

static bool check_batch(struct rig *rig, uint64_t seed, int n, int max_side)
{
    struct cuda_batch batch = {0};
    rp_status status = cuda_batch_make(rig->device, n, max_side, seed, &batch, &rig->err);
    if (status == RP_OK) {
        status = cuda_batch_run(&batch, rig->stream, rig->kernel, &rig->err);
    }
    if (status == RP_OK) {
        status = rp_cuda_stream_finish(rig->stream, &rig->err);
    }
    bool same =
        CHECK_OK(status, &rig->err) && CHECK_MEM(batch.back->host, batch.expected, batch.out_bytes);
    cuda_batch_free(&batch, rig->stream);
    return same;
}

RP_TEST(the_gpu_gives_the_bytes_of_the_host)
{
    NEED_GPU();
    struct rig rig = {0};
    REQUIRE_OK(rig_open(&rig), &rig.err);
    for (uint64_t seed = 1; seed <= 40; seed++) {
        int side = seed % 4 == 0 ? 700 : seed % 4 == 1 ? 8 : 150;
        if (!check_batch(&rig, seed, 1 + (int)seed * 7 % CASES_MAX, side)) {
            fprintf(stderr, "seed %d\n", (int)seed);
            break;
        }
    }
    rig_close(&rig);
}

static void *churn(void *arg)
{
    struct rig *shared = arg;
    struct rig own = {.device = shared->device, .kernel = shared->kernel};
    rp_error_clear(&own.err);
    CHECK_OK(rp_cuda_stream_new(own.device, &own.stream, &own.err), &own.err);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        (void)check_batch(&own, seed, 8, 100); /* it counts its failures */
    }
    rp_cuda_stream_free(&own.stream);
    return NULL;
}

RP_TEST(threads_share_a_device)
{
    NEED_GPU();
    struct rig rig = {0};
    rp_thread thread[4];
    REQUIRE_OK(rig_open(&rig), &rig.err);
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(rp_thread_start(&thread[i], "churn", churn, &rig, &rig.err), &rig.err);
    }
    for (int i = 0; i < 4; i++) {
        rp_thread_join(&thread[i]);
    }
    rig_close(&rig);
}

RP_TEST(a_thousand_times_open_and_close)
{
    NEED_GPU();
    struct rig outer = {0}; /* keeps the context, which takes a quarter of a second to make */
    REQUIRE_OK(rig_open(&outer), &outer.err);
    for (int i = 0; i < 1000; i++) {
        struct rig rig = {0};
        REQUIRE_OK(rig_open(&rig), &rig.err);
        if (!check_batch(&rig, (uint64_t)i, 2, 32)) {
            break;
        }
        rig_close(&rig);
    }
    rig_close(&outer);
    for (int i = 0; i < 5; i++) { /* the context, too */
        REQUIRE_OK(rig_open(&outer), &outer.err);
        rig_close(&outer);
    }
}

RP_TEST(the_driver_refuses_and_goes_on)
{
    NEED_GPU();
    struct rig rig = {0};
    rp_cuda_block *block = NULL;
    rp_cuda_kernel *kernel = NULL;
    rp_cuda *none = NULL;
    REQUIRE_OK(rig_open(&rig), &rig.err);
    CHECK_STATUS(
        rp_cuda_take(rig.device, RP_CUDA_ON_DEVICE, (size_t)1 << 44, true, &block, &rig.err),
        RP_E_CUDA, &rig.err);
    CHECK_EQ(rig.err.sys, 2);
    fprintf(stderr, "  %s\n", rig.err.what);
    rp_error_clear(&rig.err);
    CHECK_STATUS(
        rp_cuda_kernel_new(rig.device, "no image at all", RP_CUDA_KERNEL, &kernel, &rig.err),
        RP_E_CUDA, &rig.err);
    fprintf(stderr, "  %s\n", rig.err.what);
    rp_error_clear(&rig.err);
    CHECK_STATUS(
        rp_cuda_kernel_new(rig.device, rp_cuda_image(), "no_such_kernel", &kernel, &rig.err),
        RP_E_CUDA, &rig.err);
    rp_error_clear(&rig.err);
    CHECK_STATUS(rp_cuda_open(NULL, RP_CUDA_MAX_DEVICES, KEEP, &none, &rig.err), RP_E_CUDA,
                 &rig.err);
    rp_error_clear(&rig.err);
    (void)check_batch(&rig, 1, 4, 50); /* it counts its failures */
    rig_close(&rig);
}

RP_TEST(a_forked_child_is_told_to_spawn)
{
    NEED_GPU();
    struct rig rig = {0};
    REQUIRE_OK(rig_open(&rig), &rig.err);
    fflush(stderr);
    pid_t child = fork();
    if (child == 0) {
        struct rig fresh = {0};
        bool right = rp_cuda_stream_finish(rig.stream, &fresh.err) == RP_E_CUDA &&
                     strstr(fresh.err.what, "'spawn'") != NULL;
        right = right && rig_open(&fresh) == RP_E_CUDA; /* the driver itself says so */
        fprintf(stderr, "  %s\n", fresh.err.what);
        right = right && strstr(fresh.err.what, "'spawn'") != NULL;
        rig_close(&rig);
        _exit(right ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    (void)check_batch(&rig, 1, 4, 50); /* it counts its failures */
    rig_close(&rig);
}

/* A batch of pictures of one size, all alike. */
struct load {
    const char *name;
    int width, height, out_width, out_height, is_float;
};

#define BENCH_N CASES_MAX
#define TIMES   50

struct bench {
    struct cuda_batch batch;
    size_t picture, result, bytes, frames; /* of one; of all that goes up; where descriptors lie */
};

static struct rp_cuda_frame frame_of(const struct load *load, size_t picture, size_t result, int i)
{
    uint64_t luma = (size_t)i * picture;
    uint64_t cb = luma + (uint64_t)load->width * (uint64_t)load->height;
    return (struct rp_cuda_frame){.luma = luma,
                                  .cb = cb,
                                  .cr = cb + picture / 6,
                                  .luma_stride = load->width,
                                  .chroma_stride = load->width / 2,
                                  .chroma_step = 1,
                                  .width = load->width,
                                  .height = load->height,
                                  .yc = 9539,
                                  .yoff = 128,
                                  .vr = 13075,
                                  .ub = 16525,
                                  .vg = -6660,
                                  .ug = -3209,
                                  .is_float = load->is_float,
                                  .out_width = load->out_width,
                                  .out_height = load->out_height,
                                  .out = (size_t)i * result,
                                  .row_stride = load->out_width * (load->is_float ? 4 : 1),
                                  .plane_stride = (int64_t)(result / 3)};
}

static rp_status bench_make(struct rig *rig, const struct load *load, struct bench *bench)
{
    struct cuda_batch *batch = &bench->batch;
    struct rp_cuda_frame placed[BENCH_N];
    uint64_t at = 0;
    *bench = (struct bench){.batch = {.n = BENCH_N}};
    bench->picture = (size_t)load->width * (size_t)load->height * 3 / 2;
    bench->result = 3 * (size_t)load->out_width * (size_t)load->out_height;
    bench->result *= load->is_float ? 4 : 1;
    bench->bytes = BENCH_N * bench->picture;
    struct rp_cuda_axis x = {0}, y = {0};
    if (load->out_width != load->width) {
        x = case_axis(&at, load->out_width, load->width / load->out_width * 2 + 3, &bench->bytes);
        y = case_axis(&at, load->out_height, load->height / load->out_height * 2 + 3,
                      &bench->bytes);
    }
    bench->frames = case_room(&bench->bytes, sizeof(placed), 64);
    struct rp_error *err = &rig->err;
    RP_TRY(rp_cuda_take(rig->device, RP_CUDA_PINNED, bench->bytes, true, &batch->pinned, err));
    RP_TRY(rp_cuda_take(rig->device, RP_CUDA_ON_DEVICE, bench->bytes, true, &batch->inputs, err));
    RP_TRY(rp_cuda_take(rig->device, RP_CUDA_ON_DEVICE, BENCH_N * bench->result, true,
                        &batch->outputs, err));
    uint8_t *base = batch->pinned->host;
    for (size_t i = 0; i < BENCH_N * bench->picture; i++) {
        base[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    if (x.taps != 0) {
        case_fill_axis(&at, &x, load->width, load->out_width, base);
        case_fill_axis(&at, &y, load->height, load->out_height, base);
    }
    for (int i = 0; i < BENCH_N; i++) {
        batch->frame[i] = frame_of(load, bench->picture, bench->result, i);
        batch->frame[i].x = x;
        batch->frame[i].y = y;
    }
    batch->items = rp_cuda_items(&batch->frame[0]);
    place_frames(batch, batch->inputs->address, batch->outputs->address, placed);
    memcpy(base + bench->frames, placed, sizeof(placed));
    return RP_OK;
}

/* TIMES rounds of the way up, or of the kernel; microseconds per picture. */
static rp_status bench_time(struct rig *rig, const struct bench *bench, bool up, double *took)
{
    const struct cuda_batch *batch = &bench->batch;
    int64_t began = 0;
    for (int i = -5; i < TIMES; i++) {
        if (i == 0) {
            RP_TRY(rp_cuda_stream_finish(rig->stream, &rig->err));
            began = rp_now_ns();
        }
        if (up) {
            RP_TRY(rp_cuda_upload(rig->stream, batch->pinned, 0, batch->inputs, 0, bench->bytes,
                                  &rig->err));
        }
        else {
            RP_TRY(rp_cuda_launch(rig->stream, rig->kernel, batch->inputs->address + bench->frames,
                                  batch->n, batch->items, &rig->err));
        }
    }
    RP_TRY(rp_cuda_stream_finish(rig->stream, &rig->err));
    *took = (double)(rp_now_ns() - began) / TIMES / BENCH_N / 1e3;
    return RP_OK;
}

static int bench_one(struct rig *rig, const struct load *load)
{
    struct bench bench;
    double up = 0, kernel = 0;
    rp_status status = bench_make(rig, load, &bench);
    if (status == RP_OK) {
        status = bench_time(rig, &bench, true, &up);
    }
    if (status == RP_OK) {
        status = bench_time(rig, &bench, false, &kernel);
    }
    if (status == RP_OK) {
        printf("%-28s kernel %8.3f us/picture %7.0f GB/s   up %8.2f us/picture %6.1f GB/s\n",
               load->name, kernel, (double)(bench.picture + bench.result) / kernel / 1e3, up,
               (double)bench.picture / up / 1e3);
    }
    cuda_batch_free(&bench.batch, rig->stream);
    return status != RP_OK;
}

static int bench(void)
{
    static const struct load loads[] = {
        {"640x480 uint8", 640, 480, 640, 480, 0},
        {"640x480 float32", 640, 480, 640, 480, 1},
        {"1920x1080 uint8", 1920, 1080, 1920, 1080, 0},
        {"1920x1080 float32", 1920, 1080, 1920, 1080, 1},
        {"640x480 to 224x224 float32", 640, 480, 224, 224, 1},
        {"1920x1080 to 224x224 uint8", 1920, 1080, 224, 224, 0},
    };
    struct rig rig = {0};
    const char *why = absent();
    if (why != NULL) {
        fprintf(stderr, "%s\n", why);
        return 2;
    }
    int failed = rig_open(&rig) != RP_OK;
    for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]) && !failed; i++) {
        failed = bench_one(&rig, &loads[i]);
    }
    if (failed) {
        fprintf(stderr, "%s\n", rig.err.what);
    }
    rig_close(&rig);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--bench") == 0) {
        return bench();
    }
    return rp_harness_run(argc, argv);
}
