/* For NVDEC's tests: a GPU with its sessions, the fake one or a real one, and runs of clips on it.
 * Included once per program, after harness.h. */
#ifndef RP_TESTS_NVDEC_RIG_H
#define RP_TESTS_NVDEC_RIG_H

#include "nvdec_table.h"

#include "cuda/cuda_video.h"
#include "decode/nvdec.h"

#define KEEP ((size_t)64 << 20)

/* A device, its sessions, and a stream to look at pictures. */
struct nvdec_rig {
    struct fake_cuda *cuda; /* NULL: a real GPU */
    struct fake_nvcuvid *video;
    struct rp_error err;
    rp_cuda *device;
    rp_cuda_stream *stream;
    rp_nvdec *nvdec;
};

static RP_UNUSED rp_status nvdec_rig_open(struct nvdec_rig *rig, const char *driver, int sessions)
{
    rp_error_clear(&rig->err);
    RP_TRY(rp_cuda_open(driver, 0, KEEP, &rig->device, &rig->err));
    RP_TRY(rp_cuda_stream_new(rig->device, &rig->stream, &rig->err));
    return rp_nvdec_new(rig->device, NULL, sessions, &rig->nvdec, &rig->err);
}

static RP_UNUSED void nvdec_rig_close(struct nvdec_rig *rig)
{
    rp_nvdec_free(&rig->nvdec);
    rp_cuda_stream_free(&rig->stream);
    rp_cuda_close(&rig->device);
}

/* Packets [key, end) of a clip in one array, at most cap. How many. */
static RP_UNUSED int packets_of(const struct clip *clip, int64_t key, int64_t end,
                                struct rp_packet *out, int cap)
{
    int n = 0;
    for (int64_t i = key; i < end && n < cap; i++) {
        out[n++] = packet_at(clip, i, true);
    }
    return n;
}

/* The first key after `at`, or the clip's end. */
static RP_UNUSED int64_t next_key_of(const struct clip *clip, int64_t at)
{
    struct rp_sample sample;
    do {
        at++;
        if (at < clip->n) {
            rp_index_sample(clip->index, at, &sample);
        }
    } while (at < clip->n && !sample.key);
    return at;
}

static RP_UNUSED rp_status decide(struct nvdec_rig *rig, const struct clip *clip,
                                  struct rp_nvdec_verdict *verdict)
{
    struct rp_packet packets[32];
    int n = packets_of(clip, 0, next_key_of(clip, 0), packets, 32);
    rp_error_clear(&rig->err);
    return rp_nvdec_decide(rig->nvdec, rp_index_codec(clip->index), packets, n, verdict, &rig->err);
}

typedef void (*take_frame)(void *arg, rp_frame *frame); /* frame is lent */

static rp_status take_all(rp_decoder *decoder, take_frame take, void *arg, struct rp_error *err)
{
    for (;;) {
        rp_frame *frame = NULL;
        rp_status status = rp_decoder_receive(decoder, &frame, err);
        if (status != RP_OK) {
            return status == RP_AGAIN || status == RP_END ? RP_OK : status;
        }
        take(arg, frame);
        rp_frame_unref(&frame);
    }
}

/* One run on the GPU: packets [key, end), drain. only >= 0: the one picture that is wanted. */
static RP_UNUSED rp_status nvdec_run(rp_nvdec *nvdec, const struct clip *clip, int64_t key,
                                     int64_t end, int64_t only, take_frame take, void *arg,
                                     struct rp_error *err)
{
    struct rp_packet packet = packet_at(clip, key, only < 0 || only == key);
    rp_decoder *decoder = NULL;
    RP_TRY(rp_nvdec_begin(nvdec, rp_index_codec(clip->index), &packet, true, &decoder, err));
    rp_status status = RP_OK;
    for (int64_t i = key; i < end && status == RP_OK; i++) {
        packet = packet_at(clip, i, only < 0 || only == i);
        status = rp_decoder_send(decoder, &packet, err);
        if (status == RP_OK) {
            status = take_all(decoder, take, arg, err);
        }
    }
    if (status == RP_OK) {
        status = rp_decoder_drain(decoder, err);
    }
    if (status == RP_OK) {
        status = take_all(decoder, take, arg, err);
    }
    rp_nvdec_end(nvdec, &decoder);
    return status;
}

/* The pixels of a frame on the device, as to_nv12 lays them out. Owner: the caller's (free). */
static RP_UNUSED uint8_t *fetch(struct nvdec_rig *rig, const rp_frame *frame)
{
    const struct rp_image *image = rp_frame_image(frame);
    rp_cuda_block *block = rp_frame_on_device(frame), *pinned = NULL;
    uint8_t *out = NULL;
    rp_status status =
        rp_cuda_take(rig->device, RP_CUDA_PINNED, block->len, true, &pinned, &rig->err);
    if (status == RP_OK) {
        status = rp_cuda_await(rig->stream, block, &rig->err);
    }
    if (status == RP_OK) {
        status = rp_cuda_download(rig->stream, block, 0, pinned, 0, block->len, &rig->err);
    }
    rp_cuda_mark(block, rig->stream);
    if (status == RP_OK) {
        status = rp_cuda_stream_finish(rig->stream, &rig->err);
    }
    if (status == RP_OK) {
        size_t width = (size_t)image->width, rows = (size_t)image->height * 3 / 2;
        out = malloc(width * rows);
        for (size_t y = 0; y < rows; y++) {
            memcpy(out + y * width, pinned->host + y * (size_t)image->stride[0], width);
        }
    }
    rp_cuda_give(&pinned, rig->stream);
    return out;
}

#endif
