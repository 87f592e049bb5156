/* Random pictures through a GPU and through the kernel's host build, compared bit for bit: with the
 * fake driver in test_cuda.c, on a real GPU in check_gpu.c. */
#ifndef RP_TESTS_CUDA_CASES_H
#define RP_TESTS_CUDA_CASES_H

#include "check.h"
#include "kernel_host.h"

#include "base/memory.h"
#include "base/rng.h"
#include "cuda/cuda.h"

#include <stdlib.h>

#define CASES_MAX 64 /* pictures of a batch */

/* Everything of a batch lies in one block: pictures, tables, descriptors; results in another. */
struct cuda_batch {
    rp_cuda_block *pinned, *inputs, *outputs, *back;
    uint8_t *expected;
    struct rp_cuda_frame frame[CASES_MAX]; /* offsets until place_frames */
    size_t in_bytes, out_bytes;
    int n, items;
};

static uint64_t case_random(uint64_t *at)
{
    return rp_hash64(11, 0, 5, (*at)++);
}

static int case_between(uint64_t *at, int low, int high)
{
    return low + (int)(case_random(at) % (uint64_t)(high - low + 1));
}

/* Room for len bytes in a block that is being laid out. */
static uint64_t case_room(size_t *used, size_t len, size_t align)
{
    *used = (*used + align - 1) / align * align;
    size_t at = *used;
    *used += len;
    return at;
}

/* A random axis: any tables that stay inside the picture are as good as those of a resize. */
static struct rp_cuda_axis case_axis(uint64_t *at, int out, int taps, size_t *used)
{
    struct rp_cuda_axis axis = {.taps = taps, .shift = case_between(at, 14, 22)};
    axis.first = case_room(used, 4 * (size_t)out, 4);
    axis.count = case_room(used, 4 * (size_t)out, 4);
    axis.weight = case_room(used, 2 * (size_t)out * (size_t)taps, 2);
    return axis;
}

static void case_fill_axis(uint64_t *at, const struct rp_cuda_axis *axis, int in, int out,
                           uint8_t *base)
{
    int32_t *first = (int32_t *)(base + axis->first), *count = (int32_t *)(base + axis->count);
    int16_t *weight = (int16_t *)(base + axis->weight);
    for (int i = 0; i < out; i++) {
        count[i] = case_between(at, 1, axis->taps < in ? axis->taps : in);
        first[i] = case_between(at, 0, in - count[i]);
        for (int k = 0; k < axis->taps; k++) {
            weight[i * axis->taps + k] = (int16_t)case_between(at, -3000, 32767 / axis->taps);
        }
    }
}

/* Lay out picture i: sizes, strides, alignment, format, type and axes at random. */
static void case_plan(struct cuda_batch *batch, int i, uint64_t *at, int max_side)
{
    struct rp_cuda_frame *f = &batch->frame[i];
    int half = max_side / 2;
    *f = (struct rp_cuda_frame){.width = 2 * case_between(at, 1, half),
                                .height = 2 * case_between(at, 1, half),
                                .chroma_step = case_between(at, 1, 2),
                                .is_float = case_between(at, 0, 1),
                                .yc = case_between(at, 8192, 9539),
                                .yoff = case_between(at, 0, 1) * 128,
                                .vr = case_between(at, 11000, 15000),
                                .ub = case_between(at, 14000, 18000),
                                .vg = -case_between(at, 3000, 7000),
                                .ug = -case_between(at, 1000, 4000)};
    f->out_width = f->width;
    f->out_height = f->height;
    int odd = case_between(at, 0, 2); /* 0: aligned rows */
    f->luma_stride = odd == 0 ? (f->width + 63) / 64 * 64 : f->width + case_between(at, 0, 70);
    f->chroma_stride = odd == 0 ? (f->width + 63) / 64 * 64
                                : f->width / 2 * f->chroma_step + case_between(at, 0, 70);
    size_t align = odd == 0 ? 64 : 1;
    size_t chroma = (size_t)f->chroma_stride * (size_t)f->height / 2;
    f->luma = case_room(&batch->in_bytes, (size_t)f->luma_stride * (size_t)f->height, align);
    f->cb = case_room(&batch->in_bytes, chroma, align);
    f->cr = f->chroma_step == 2 ? f->cb + 1 : case_room(&batch->in_bytes, chroma, align);
    if (case_between(at, 0, 2) == 0) {
        f->out_width = case_between(at, 1, max_side);
        f->x = case_axis(at, f->out_width, case_between(at, 1, 7), &batch->in_bytes);
    }
    if (case_between(at, 0, 2) == 0) {
        f->out_height = case_between(at, 1, max_side);
        f->y = case_axis(at, f->out_height, case_between(at, 1, 7), &batch->in_bytes);
    }
    int element = f->is_float ? 4 : 1;
    int gap = case_between(at, 0, 3);
    f->row_stride = (f->out_width + gap) * element;
    f->plane_stride = f->row_stride * f->out_height + case_between(at, 0, 5) * element;
    f->out =
        case_room(&batch->out_bytes, 3 * (size_t)f->plane_stride, gap == 0 ? 64 : (size_t)element);
}

/* Descriptors with real addresses instead of offsets. */
static void place_frames(const struct cuda_batch *batch, uint64_t inputs, uint64_t outputs,
                         struct rp_cuda_frame *placed)
{
    for (int i = 0; i < batch->n; i++) {
        struct rp_cuda_frame f = batch->frame[i];
        f.luma += inputs;
        f.cb += inputs;
        f.cr += inputs;
        f.out += outputs;
        struct rp_cuda_axis *axes[] = {&f.x, &f.y};
        for (int k = 0; k < 2; k++) {
            if (axes[k]->taps != 0) {
                axes[k]->first += inputs;
                axes[k]->count += inputs;
                axes[k]->weight += inputs;
            }
        }
        placed[i] = f;
    }
}

/* A batch of n random pictures, its inputs in pinned memory and its expected bytes made. */
static rp_status cuda_batch_make(rp_cuda *device, int n, int max_side, uint64_t seed,
                                 struct cuda_batch *batch, struct rp_error *err)
{
    uint64_t at = seed << 32;
    *batch = (struct cuda_batch){.n = n};
    for (int i = 0; i < n; i++) {
        case_plan(batch, i, &at, max_side);
        int items = rp_cuda_items(&batch->frame[i]);
        batch->items = items > batch->items ? items : batch->items;
    }
    size_t frames = case_room(&batch->in_bytes, (size_t)n * sizeof(struct rp_cuda_frame), 64);
    batch->in_bytes = frames + (size_t)n * sizeof(struct rp_cuda_frame);
    RP_TRY(rp_cuda_take(device, RP_CUDA_PINNED, batch->in_bytes, true, &batch->pinned, err));
    RP_TRY(rp_cuda_take(device, RP_CUDA_ON_DEVICE, batch->in_bytes, true, &batch->inputs, err));
    RP_TRY(rp_cuda_take(device, RP_CUDA_ON_DEVICE, batch->out_bytes, true, &batch->outputs, err));
    RP_TRY(rp_cuda_take(device, RP_CUDA_PINNED, batch->out_bytes, true, &batch->back, err));
    uint8_t *base = batch->pinned->host;
    for (size_t i = 0; i < frames; i += 8) {
        uint64_t eight = case_random(&at);
        memcpy(base + i, &eight, frames - i < 8 ? frames - i : 8);
    }
    for (int i = 0; i < n; i++) {
        const struct rp_cuda_frame *f = &batch->frame[i];
        if (f->x.taps != 0) {
            case_fill_axis(&at, &f->x, f->width, f->out_width, base);
        }
        if (f->y.taps != 0) {
            case_fill_axis(&at, &f->y, f->height, f->out_height, base);
        }
    }
    batch->expected = rp_calloc(1, batch->out_bytes);
    if (batch->expected == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a test's batch");
    }
    struct rp_cuda_frame placed[CASES_MAX];
    memset(batch->expected, 0xA5, batch->out_bytes);
    place_frames(batch, (uintptr_t)base, (uintptr_t)batch->expected, placed);
    kernel_on_host(placed, n);
    place_frames(batch, batch->inputs->address, batch->outputs->address, placed);
    memcpy(base + frames, placed, (size_t)n * sizeof(placed[0]));
    memset(batch->back->host, 0xA5, batch->out_bytes);
    return RP_OK;
}

/* Put the batch's work into the stream: up, convert, down. Bytes between rows keep 0xA5. */
static rp_status cuda_batch_run(struct cuda_batch *batch, rp_cuda_stream *stream,
                                const rp_cuda_kernel *kernel, struct rp_error *err)
{
    size_t frames = batch->in_bytes - (size_t)batch->n * sizeof(struct rp_cuda_frame);
    RP_TRY(rp_cuda_upload(stream, batch->pinned, 0, batch->inputs, 0, batch->in_bytes, err));
    RP_TRY(rp_cuda_upload(stream, batch->back, 0, batch->outputs, 0, batch->out_bytes, err));
    RP_TRY(rp_cuda_launch(stream, kernel, batch->inputs->address + frames, batch->n, batch->items,
                          err));
    return rp_cuda_download(stream, batch->outputs, 0, batch->back, 0, batch->out_bytes, err);
}

static void cuda_batch_free(struct cuda_batch *batch, rp_cuda_stream *stream)
{
    rp_cuda_give(&batch->pinned, stream);
    rp_cuda_give(&batch->inputs, stream);
    rp_cuda_give(&batch->outputs, stream);
    rp_cuda_give(&batch->back, stream);
    rp_free(batch->expected);
    *batch = (struct cuda_batch){0};
}

#endif
