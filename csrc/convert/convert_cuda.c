#include "convert/convert_cuda.h"

#include "base/memory.h"
#include "convert/convert_priv.h"

#include <string.h>

#define MAX_SIDE   32768
#define AXIS_SLOTS 16
#define MAX_BATCH  4096 /* pictures of one launch */

/* A resize's tables on the device. */
struct axis_slot {
    int in, out; /* samples; 0 = unused slot */
    uint64_t used;
    struct rp_cuda_axis axis;
    rp_cuda_block *tables;
};

struct rp_cuda_converter {
    rp_cuda *device; /* alive while the kernel is */
    rp_cuda_stream *stream;
    rp_cuda_kernel *kernel;
    struct axis_slot slot[AXIS_SLOTS];
    uint64_t clock; /* counts uses, for the least recently used slot */
    /* The launch that is being put together. */
    rp_cuda_block *pinned;
    int n, items;
    uint64_t began; /* clock at its start: slots used since then are its own */
};

rp_status rp_cuda_converter_new(rp_cuda *device, rp_cuda_stream *stream, const void *image,
                                rp_cuda_converter **out, struct rp_error *err)
{
    rp_cuda_converter *made = rp_calloc(1, sizeof(*made));
    if (made == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for conversions on a GPU");
    }
    rp_status status = rp_cuda_kernel_new(device, image, RP_CUDA_KERNEL, &made->kernel, err);
    if (status != RP_OK) {
        rp_free(made);
        return status;
    }
    made->device = device;
    made->stream = stream;
    *out = made;
    return RP_OK;
}

void rp_cuda_converter_free(rp_cuda_converter **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_cuda_converter *converter = *out;
    *out = NULL;
    /* No launch is left after it: work that fails is lost with its context. */
    rp_status ended = rp_cuda_stream_finish(converter->stream, NULL);
    (void)ended;
    rp_cuda_give(&converter->pinned, NULL);
    for (int i = 0; i < AXIS_SLOTS; i++) {
        rp_cuda_give(&converter->slot[i].tables, NULL);
    }
    rp_cuda_kernel_free(&converter->kernel);
    rp_free(converter);
}

static bool is_side(int n)
{
    return n >= 1 && n <= MAX_SIDE;
}

static bool is_paired(const struct rp_image *image)
{
    return image->format == RP_PIX_NV12 || image->format == RP_PIX_NV12J;
}

static bool are_strides(const struct rp_image *image)
{
    bool alike = is_paired(image) || image->stride[1] == image->stride[2];
    return alike && image->stride[0] >= 0 && image->stride[0] <= INT32_MAX &&
           image->stride[1] >= 0 && image->stride[1] <= INT32_MAX;
}

bool rp_cuda_converts(const struct rp_image *image, const struct rp_target *target)
{
    bool yuv = image->format == RP_PIX_I420 || image->format == RP_PIX_I420J || is_paired(image);
    bool type = target->type == RP_PIXEL_U8 || target->type == RP_PIXEL_F32;
    return yuv && type && target->depth_table == NULL && is_side(image->width) &&
           is_side(image->height) && is_side(target->width) && is_side(target->height) &&
           image->width % 2 == 0 && image->height % 2 == 0 && are_strides(image);
}

/* Start what has been put together; a new launch begins. */
static rp_status launch(rp_cuda_converter *converter, struct rp_error *err)
{
    rp_cuda_block *frames = NULL;
    rp_status status = RP_OK;
    if (converter->n > 0) {
        size_t bytes = (size_t)converter->n * sizeof(struct rp_cuda_frame);
        status = rp_cuda_take(converter->device, RP_CUDA_ON_DEVICE, bytes, true, &frames, err);
        if (status == RP_OK) {
            status = rp_cuda_upload(converter->stream, converter->pinned, 0, frames, 0, bytes, err);
        }
        if (status == RP_OK) {
            status = rp_cuda_launch(converter->stream, converter->kernel, frames->address,
                                    converter->n, converter->items, err);
        }
    }
    rp_cuda_give(&frames, converter->stream);
    rp_cuda_give(&converter->pinned, converter->stream);
    converter->n = converter->items = 0;
    converter->began = converter->clock;
    return status;
}

/* Tables in one block: first, count, weights. */
static rp_status upload_axis(rp_cuda_converter *converter, const struct rp_axis *axis,
                             struct axis_slot *slot, struct rp_error *err)
{
    size_t n = (size_t)axis->out, ints = n * sizeof(int32_t);
    size_t weights = n * (size_t)axis->taps * sizeof(int16_t);
    rp_cuda_block *pinned = NULL;
    RP_TRY(rp_cuda_take(converter->device, RP_CUDA_PINNED, 2 * ints + weights, true, &pinned, err));
    memcpy(pinned->host, axis->first, ints);
    memcpy(pinned->host + ints, axis->count, ints);
    memcpy(pinned->host + 2 * ints, axis->weight, weights);
    rp_status status = rp_cuda_take(converter->device, RP_CUDA_ON_DEVICE, 2 * ints + weights, true,
                                    &slot->tables, err);
    if (status == RP_OK) {
        status =
            rp_cuda_upload(converter->stream, pinned, 0, slot->tables, 0, 2 * ints + weights, err);
    }
    rp_cuda_give(&pinned, converter->stream);
    if (status != RP_OK) {
        rp_cuda_give(&slot->tables, converter->stream);
        return status;
    }
    uint64_t at = slot->tables->address;
    slot->axis = (struct rp_cuda_axis){.first = at,
                                       .count = at + ints,
                                       .weight = at + 2 * ints,
                                       .taps = axis->taps,
                                       .shift = axis->shift};
    slot->in = axis->in;
    slot->out = axis->out;
    return RP_OK;
}

/* The tables in -> out: on the device already, or computed into the least recently used slot. */
static rp_status find_axis(rp_cuda_converter *converter, int in, int out, struct rp_cuda_axis *axis,
                           struct rp_error *err)
{
    if (in == out) {
        *axis = (struct rp_cuda_axis){0};
        return RP_OK;
    }
    struct axis_slot *oldest = &converter->slot[0];
    for (int i = 0; i < AXIS_SLOTS; i++) {
        struct axis_slot *slot = &converter->slot[i];
        if (slot->in == in && slot->out == out) {
            slot->used = ++converter->clock;
            *axis = slot->axis;
            return RP_OK;
        }
        oldest = slot->used < oldest->used ? slot : oldest;
    }
    if (oldest->in != 0 && oldest->used > converter->began) {
        RP_TRY(launch(converter, err)); /* it needs the tables that are given up now */
    }
    rp_cuda_give(&oldest->tables, converter->stream);
    *oldest = (struct axis_slot){0};
    struct rp_axis made;
    RP_TRY(rp_axis_fill(&made, in, out, err));
    rp_status status = upload_axis(converter, &made, oldest, err);
    rp_axis_free(&made);
    oldest->used = ++converter->clock;
    *axis = oldest->axis;
    return status;
}

static void describe(const struct rp_cuda_job *job, struct rp_cuda_frame *frame)
{
    const struct rp_image *image = &job->image;
    const struct rp_target *target = &job->target;
    const struct rp_colour *colour = rp_colour_of(image->colorspace, rp_colour_is_full(image));
    bool pairs = is_paired(image);
    uint64_t cb = (uintptr_t)image->plane[1];
    *frame = (struct rp_cuda_frame){
        .luma = (uintptr_t)image->plane[0],
        .cb = cb,
        .cr = pairs ? cb + 1 : (uintptr_t)image->plane[2],
        .luma_stride = (int32_t)image->stride[0],
        .chroma_stride = (int32_t)image->stride[1],
        .chroma_step = pairs ? 2 : 1,
        .width = image->width,
        .height = image->height,
        .yc = colour->yc,
        .yoff = colour->yoff,
        .vr = colour->vr,
        .ub = colour->ub,
        .vg = colour->vg,
        .ug = colour->ug,
        .is_float = target->type == RP_PIXEL_F32,
        .out_width = target->width,
        .out_height = target->height,
        .out = (uintptr_t)target->data,
        .row_stride = target->row_stride,
        .plane_stride = target->plane_stride,
    };
}

static rp_status add(rp_cuda_converter *converter, const struct rp_cuda_job *job, int left,
                     struct rp_error *err)
{
    struct rp_cuda_frame frame;
    describe(job, &frame);
    RP_TRY(find_axis(converter, frame.width, frame.out_width, &frame.x, err));
    uint64_t x_used = converter->clock;
    RP_TRY(find_axis(converter, frame.height, frame.out_height, &frame.y, err));
    if (x_used <= converter->began && frame.x.taps != 0) {
        /* The second axis started a launch: the first one's tables belong to the next. */
        RP_TRY(find_axis(converter, frame.width, frame.out_width, &frame.x, err));
    }
    if (converter->pinned == NULL) {
        size_t most = (size_t)(left < MAX_BATCH ? left : MAX_BATCH);
        RP_TRY(rp_cuda_take(converter->device, RP_CUDA_PINNED, most * sizeof(frame), true,
                            &converter->pinned, err));
    }
    memcpy(converter->pinned->host + (size_t)converter->n * sizeof(frame), &frame, sizeof(frame));
    int items = frame.x.taps != 0 || frame.y.taps != 0 ? frame.out_width * frame.out_height
                                                       : (frame.width + 3) / 4 * (frame.height / 2);
    converter->items = items > converter->items ? items : converter->items;
    converter->n++;
    return converter->n == MAX_BATCH ? launch(converter, err) : RP_OK;
}

rp_status rp_cuda_convert(rp_cuda_converter *converter, const struct rp_cuda_job *jobs, int n,
                          struct rp_error *err)
{
    for (int i = 0; i < n; i++) {
        if (!rp_cuda_converts(&jobs[i].image, &jobs[i].target)) {
            RP_FAIL(err, RP_E_UNSUPPORTED, "a picture of format %d, %dx%d, is none for the GPU",
                    (int)jobs[i].image.format, jobs[i].image.width, jobs[i].image.height);
        }
    }
    rp_status status = RP_OK;
    for (int i = 0; i < n && status == RP_OK; i++) {
        status = add(converter, &jobs[i], n - i, err);
    }
    if (status == RP_OK) {
        return launch(converter, err);
    }
    converter->n = 0;              /* what was put together so far is given up */
    (void)launch(converter, NULL); /* of nothing: it only gives the memory back */
    return status;
}
