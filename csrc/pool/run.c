#include "pool/work_priv.h"

#include "base/crc32c.h"

#include <assert.h>
#include <stdlib.h>

#define LOOK_AHEAD 8 /* further pictures a kept run decodes for the next single reads */

/* State of one decode run while it is worked on. */
struct decoding {
    struct worker *worker;
    const struct run *run;
    const rp_index *index;
    rp_decoder *decoder;
    rp_decoder *session;     /* the same, if it is one of the GPU */
    bool on_gpu;             /* it was: what fails may be the GPU's */
    struct rp_error refused; /* why the GPU did not begin what it was decided for, if it did not */
    int64_t saved, lost;     /* wants that it failed on and the CPU decoded, or failed on, too */
    struct want **want;      /* by pts */
    int64_t n, left;         /* wants; not written yet */
    int64_t last;            /* decode index of the last wanted picture */
    int64_t end;             /* last picture to send, >= last */
    bool keep;               /* decoded pictures go to the frame cache, none is skipped */
    struct want *alone;      /* the only want to serve; NULL: all of the run */
};

/* A run serves wants of batches that are being filled (direct: it converts) and of batches to come
 * (it captures their picture, which is parked when the run ends). */

static int by_pts(const void *a, const void *b)
{
    const struct want *x = *(struct want *const *)a, *y = *(struct want *const *)b;
    return x->pts < y->pts ? -1 : x->pts > y->pts;
}

static const float *depth_table(const struct rp_dataset_desc *desc, const struct want *want)
{
    const float *table = desc->camera[want->camera].depth_table;
    if (table == NULL || desc->run_set == NULL) {
        return table;
    }
    return table + (ptrdiff_t)4096 * rp_desc_set_of(desc, rp_desc_run_of(desc, want->row));
}

rp_status rp_want_convert(struct worker *worker, const struct want *want, rp_frame *frame,
                          struct rp_error *err)
{
    const struct rp_camera *camera = &worker->loader->desc->camera[want->camera];
    const struct rp_image *image = rp_frame_image(frame);
    if (!camera->resize && (image->width != camera->width || image->height != camera->height)) {
        RP_FAIL(err, RP_E_FORMAT, "the video holds %dx%d pictures, info.json declares %dx%d",
                image->width, image->height, camera->width, camera->height);
    }
    ptrdiff_t element = camera->type == RP_PIXEL_U8 ? 1 : camera->type == RP_PIXEL_U16 ? 2 : 4;
    struct rp_target target = {.data = want->to,
                               .type = camera->type,
                               .width = camera->width,
                               .height = camera->height,
                               .row_stride = camera->width * element,
                               .plane_stride = (ptrdiff_t)camera->width * camera->height * element,
                               .depth_table = depth_table(worker->loader->desc, want)};
    if (camera->channels == 3 && image->format == RP_PIX_GRAY12) {
        RP_FAIL(err, RP_E_FORMAT, "the video holds depth, info.json declares RGB");
    }
    if (rp_frame_on_device(frame) != NULL) {
        return rp_stage_frame(worker, want, frame, &target, err);
    }
    return worker->loader->gpu != NULL ? rp_stage_picture(worker, want, image, &target, err)
                                       : rp_convert(image, &target, worker->scratch, err);
}

/* All wants of the run, or the one that is decoded alone. */
static rp_status collect_wants(struct decoding *d, struct rp_error *err)
{
    struct worker *worker = d->worker;
    if (d->alone != NULL) {
        d->want = &d->alone;
        d->n = d->left = 1;
        d->last = d->end = d->alone->sample;
        return RP_OK;
    }
    size_t n = 0;
    for (struct want *w = d->run->wants; w != NULL; w = w->next) {
        n++;
    }
    if (n > worker->cap_sorted) {
        struct want **grown = rp_realloc(worker->sorted, n, sizeof(struct want *));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu pictures", n);
        }
        worker->sorted = grown;
        worker->cap_sorted = n;
    }
    d->want = worker->sorted;
    d->n = 0;
    d->last = d->run->key;
    for (struct want *w = d->run->wants; w != NULL; w = w->next) {
        d->want[d->n++] = w;
        d->last = w->sample > d->last ? w->sample : d->last;
    }
    d->left = d->n;
    qsort(d->want, (size_t)d->n, sizeof(*d->want), by_pts);
    d->end = d->last;
    if (d->keep) {
        struct rp_sample sample;
        while (d->end + 1 < rp_index_samples(d->index) && d->end < d->last + LOOK_AHEAD) {
            rp_index_sample(d->index, d->end + 1, &sample);
            if (sample.key) {
                break;
            }
            d->end++;
        }
    }
    return RP_OK;
}

/* First want with pts >= the given one. */
static int64_t first_want(const struct decoding *d, int64_t pts)
{
    int64_t lo = 0, hi = d->n;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (d->want[mid]->pts < pts) {
            lo = mid + 1;
        }
        else {
            hi = mid;
        }
    }
    return lo;
}

static rp_status deliver(struct decoding *d, rp_frame *frame, struct rp_error *err)
{
    rp_loader *loader = d->worker->loader;
    int64_t pts = rp_frame_pts(frame), began = rp_now_ns(), served = 0, delivered = 0;
    rp_frame *kept = NULL; /* borrowed from the first want that captures it */
    rp_status status = RP_OK;
    for (int64_t i = first_want(d, pts); i < d->n && d->want[i]->pts == pts; i++) {
        struct want *want = d->want[i];
        if (want->written) {
            status = rp_error_set(err, RP_E_DECODE, "the decoder returned a picture twice");
        }
        else if (want->direct) {
            status = rp_want_convert(d->worker, want, frame, err);
            delivered += status == RP_OK;
        }
        else {
            kept = kept == NULL ? rp_frame_keep(frame, loader->pictures) : rp_frame_ref(kept);
            want->frame = kept;
        }
        if (status != RP_OK) {
            break;
        }
        want->written = true;
        served++;
        rp_count(&loader->counters.redecoded, want->evicted);
    }
    d->left -= served;
    rp_count(&loader->counters.decoded, 1);
    if (d->session != NULL) {
        rp_count(&loader->gpu->decoded, 1);
    }
    rp_count(&loader->counters.preroll, served == 0);
    rp_count(&loader->counters.delivered, delivered);
    rp_count(&loader->counters.convert_ns, rp_now_ns() - began);
    return status;
}

/* Keep a decoded picture for later single reads. Its sample is found through its time. */
static void keep_frame(struct decoding *d, rp_frame *frame)
{
    rp_loader *loader = d->worker->loader;
    double seconds = (double)rp_frame_pts(frame) / (double)rp_index_timescale(d->index);
    int64_t sample;
    if (rp_index_find(d->index, seconds, 1e-9, &sample, NULL, NULL) != RP_OK) {
        return; /* a picture outside the edit is not addressable */
    }
    rp_lock_acquire(&loader->lock);
    struct cached_frame *dead =
        rp_frame_cache_put_locked(&loader->frames, d->run->file, sample, frame);
    rp_lock_release(&loader->lock);
    rp_frame_cache_drop(dead);
}

static rp_status receive_all(struct decoding *d, struct rp_error *err)
{
    for (;;) {
        rp_frame *frame = NULL;
        int64_t began = rp_now_ns();
        rp_status status = rp_decoder_receive(d->decoder, &frame, err);
        rp_count(&d->worker->loader->counters.decode_ns, rp_now_ns() - began);
        if (status == RP_AGAIN || status == RP_END) {
            return RP_OK;
        }
        if (status != RP_OK) {
            return status;
        }
        status = deliver(d, frame, err);
        if (status == RP_OK && d->keep) {
            keep_frame(d, frame);
        }
        rp_frame_unref(&frame);
        if (status != RP_OK) {
            return status;
        }
    }
}

static bool is_wanted(const struct decoding *d, int64_t pts)
{
    int64_t i = first_want(d, pts);
    return d->keep || (i < d->n && d->want[i]->pts == pts);
}

/* Which bytes an error is about. */
static void locate_sample(const struct decoding *d, int64_t i, struct rp_error *err)
{
    struct rp_sample sample;
    rp_index_sample(d->index, i, &sample);
    rp_error_at_file(err, rp_files_path(d->worker->loader->files, d->run->file), sample.offset,
                     sample.size);
}

/* Compare a packet with its check sum. Bytes that differ are read once more, since what is wrong
 * may be memory or a network rather than the disk; they never reach the decoder. */
static rp_status check_packet(const struct decoding *d, int64_t i, const struct rp_sample *sample,
                              uint8_t *data, struct rp_error *err)
{
    rp_loader *loader = d->worker->loader;
    const uint32_t *sums = loader->indexes.entry[d->run->file].sums;
    if (sums == NULL) {
        return RP_OK;
    }
    if (rp_crc32c(0, data, sample->size) != sums[i]) {
        RP_TRY(rp_files_read(loader->files, d->run->file, sample->offset, sample->size, data, err));
        rp_count(&loader->counters.bytes_read, sample->size);
        if (rp_crc32c(0, data, sample->size) != sums[i]) {
            (void)rp_error_set(err, RP_E_DECODE, /* returned below */
                               "checksum differs: bytes changed since they were summed up");
            locate_sample(d, i, err);
            return RP_E_DECODE;
        }
    }
    rp_count(&loader->counters.checked, 1);
    return RP_OK;
}

/* The packets [i, end] of the range, at most cap, as far as their sums are right. How many. */
static int gather_packets(const struct decoding *d, int64_t i, int64_t end,
                          const struct rp_byte_range *range, struct rp_packet *out, int cap)
{
    int n = 0;
    for (; n < cap && i + n <= end; n++) {
        struct rp_sample sample;
        rp_index_sample(d->index, i + n, &sample);
        uint8_t *data = d->worker->bytes + (sample.offset - range->offset);
        if (check_packet(d, i + n, &sample, data, NULL) != RP_OK) {
            break; /* its own turn tells it */
        }
        out[n] = (struct rp_packet){.data = data,
                                    .len = sample.size,
                                    .pts = sample.pts,
                                    .dts = sample.dts,
                                    .key = sample.key,
                                    .wanted = true};
    }
    return n;
}

/* A session for a stream that the GPU decodes; what is not decided yet is decided by the packets
 * [i, end]. RP_AGAIN: it is the CPU's. */
static rp_status open_session(struct decoding *d, int64_t i, int64_t end,
                              const struct rp_byte_range *range, const struct rp_packet *first,
                              struct rp_error *err)
{
    enum { MOST = 32 };
    struct rp_packet packets[MOST];
    struct rp_nvdec_verdict verdict;
    rp_nvdec *nvdec = d->worker->loader->gpu->nvdec;
    const struct rp_codec_params *params = rp_index_codec(d->index);
    rp_status status = rp_nvdec_decide(nvdec, params, NULL, 0, &verdict, err);
    if (status == RP_AGAIN) {
        int n = gather_packets(d, i, end, range, packets, MOST);
        status = n > 0 ? rp_nvdec_decide(nvdec, params, packets, n, &verdict, err) : RP_AGAIN;
    }
    if (status == RP_OK && !verdict.on_gpu) {
        return RP_AGAIN;
    }
    if (status == RP_OK) {
        status = rp_nvdec_begin(nvdec, params, first, true, &d->session, err);
        if (status == RP_E_DECODE) {
            d->refused = *err;
        }
    }
    d->decoder = d->session;
    d->on_gpu = status == RP_OK;
    return status;
}

static rp_status open_decoder(struct decoding *d, int64_t i, const struct rp_byte_range *range,
                              const struct rp_packet *first, struct rp_error *err)
{
    int64_t end = i;
    struct rp_sample sample;
    while (end < d->end) { /* what the range holds */
        rp_index_sample(d->index, end + 1, &sample);
        if (sample.offset < range->offset ||
            sample.offset + sample.size > range->offset + range->len) {
            break;
        }
        end++;
    }
    rp_status status = RP_AGAIN;
    struct rp_error why;
    rp_error_clear(&why);
    if (d->worker->loader->gpu != NULL && d->alone == NULL &&
        d->worker->loader->desc->camera[d->want[0]->camera].channels == 3) {
        status = open_session(d, i, end, range, first, &why);
    }
    if (status == RP_OK || status == RP_E_CUDA || status == RP_E_NOMEM) {
        if (status != RP_OK) {
            *err = why;
        }
        return status;
    }
    return rp_decoder_cache_get(d->worker->decoders, rp_index_codec(d->index), first, &d->decoder,
                                err); /* also what the CPU may say of it better */
}

static rp_status send_sample(struct decoding *d, int64_t i, const struct rp_byte_range *range,
                             struct rp_error *err)
{
    struct rp_sample sample;
    rp_index_sample(d->index, i, &sample);
    uint8_t *data = d->worker->bytes + (sample.offset - range->offset);
    RP_TRY(check_packet(d, i, &sample, data, err));
    struct rp_packet packet = {.data = data,
                               .len = sample.size,
                               .pts = sample.pts,
                               .dts = sample.dts,
                               .key = sample.key,
                               .wanted = is_wanted(d, sample.pts)};
    if (d->decoder == NULL) {
        RP_TRY(open_decoder(d, i, range, &packet, err));
    }
    int64_t began = rp_now_ns();
    rp_status status = rp_decoder_send(d->decoder, &packet, err);
    rp_count(&d->worker->loader->counters.decode_ns, rp_now_ns() - began);
    if (status == RP_AGAIN) { /* all pictures were taken before: it has no reason to wait */
        status = rp_error_set(err, RP_E_DECODE, "the decoder takes no packet and gives no picture");
    }
    if (status == RP_OK) {
        status = receive_all(d, err);
    }
    if (status != RP_OK) {
        locate_sample(d, i, err);
    }
    return status;
}

static rp_status read_range(struct decoding *d, const struct rp_byte_range *range,
                            struct rp_error *err)
{
    struct worker *worker = d->worker;
    if ((size_t)range->len > worker->cap_bytes) {
        size_t cap = (size_t)range->len + (size_t)range->len / 2;
        uint8_t *grown = rp_realloc(worker->bytes, cap, 1);
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld bytes of video",
                    (long long)range->len);
        }
        worker->bytes = grown;
        worker->cap_bytes = cap;
    }
    int64_t began = rp_now_ns();
    rp_status status = rp_segment_read(d->run, range->offset, range->len, worker->bytes, err);
    if (status == RP_AGAIN) {
        status = rp_files_read(worker->loader->files, d->run->file, range->offset, range->len,
                               worker->bytes, err);
    }
    rp_count(&worker->loader->counters.read_ns, rp_now_ns() - began);
    rp_count(&worker->loader->counters.bytes_read, range->len);
    return status;
}

static rp_status decode_packets(struct decoding *d, struct rp_error *err)
{
    RP_TRY(collect_wants(d, err));
    for (int64_t at = d->run->key; at <= d->end;) {
        struct rp_byte_range range;
        int64_t covered;
        RP_TRY(rp_index_range(d->index, at, d->end, &covered, &range, err));
        RP_TRY(read_range(d, &range, err));
        for (; at <= covered; at++) {
            rp_status status = send_sample(d, at, &range, err);
            if (status != RP_OK) {
                return status;
            }
        }
    }
    if (d->left > 0 || d->keep) {
        RP_TRY(rp_decoder_drain(d->decoder, err));
        RP_TRY(receive_all(d, err));
    }
    if (d->left > 0) {
        int64_t missing = 0;
        while (d->want[missing]->written) {
            missing++;
        }
        (void)rp_error_set(err, RP_E_DECODE, /* returned below */
                           "the decoder did not return %lld of %lld wanted pictures",
                           (long long)d->left, (long long)d->n);
        locate_sample(d, d->want[missing]->sample, err);
        return RP_E_DECODE;
    }
    return RP_OK;
}

static rp_status decode_run(struct decoding *d, struct rp_error *err)
{
    rp_status status = decode_packets(d, err);
    if (d->session != NULL) {
        rp_nvdec_end(d->worker->loader->gpu->nvdec, &d->session);
    }
    return status;
}

/* What a want of a failed run gets. Who shares a run depends on the moment, and a picture that
 * needs none of the bad bytes must not fail by its company: it is decoded alone, on the CPU. */
static rp_status judge_want(const struct decoding *d, const struct rp_error *failure,
                            struct want *want, struct rp_error *err)
{
    bool content = failure->code == RP_E_DECODE || failure->code == RP_E_FORMAT ||
                   failure->code == RP_E_UNSUPPORTED;
    if (!content || (d->n == 1 && !d->keep && !d->on_gpu)) {
        *err = *failure;
        return failure->code;
    }
    rp_error_clear(err);
    struct decoding one = {.worker = d->worker, .run = d->run, .index = d->index, .alone = want};
    return decode_run(&one, err);
}

void rp_wants_convert(struct worker *worker, struct want *wants)
{
    rp_loader *loader = worker->loader;
    while (wants != NULL) {
        struct want *want = wants;
        wants = want->next; /* a settled want may be reused at once */
        struct rp_error err;
        rp_error_clear(&err);
        int64_t began = rp_now_ns();
        rp_frame *frame = want->frame;
        rp_status status = rp_want_convert(worker, want, frame, &err);
        rp_count(&loader->counters.convert_ns, rp_now_ns() - began);
        rp_count(&loader->counters.delivered, status == RP_OK);
        if (status != RP_OK) {
            rp_want_locate(loader, want, &err);
        }
        rp_lock_acquire(&loader->lock);
        if (status != RP_OK) {
            rp_batch_fail_locked(loader, want->batch, want->order, &err);
        }
        want->frame = NULL; /* until here it says that the want is in a worker's hands */
        want->open = false;
        rp_batch_settle_locked(loader, want->batch, 1);
        rp_lock_release(&loader->lock);
        rp_frame_unref(&frame);
    }
}

/* A want that the run converts: written, or failed. */
static void settle_direct(struct decoding *d, struct want *want, rp_status outcome,
                          const struct rp_error *err)
{
    rp_loader *loader = d->worker->loader;
    rp_status status = RP_OK;
    struct rp_error located;
    if (outcome != RP_OK && !want->written) {
        status = judge_want(d, err, want, &located);
        d->saved += status == RP_OK;
        d->lost += status != RP_OK;
    }
    if (status != RP_OK) {
        rp_want_locate(loader, want, &located);
    }
    rp_lock_acquire(&loader->lock);
    if (status != RP_OK) {
        rp_batch_fail_locked(loader, want->batch, want->order, &located);
    }
    want->run = NULL;
    want->open = false;
    rp_batch_settle_locked(loader, want->batch, 1);
    rp_lock_release(&loader->lock);
}

/* A want whose batch began to be filled while the run went on without its picture. */
static void need_again_locked(rp_loader *loader, struct want *want)
{
    struct rp_error err;
    rp_error_clear(&err);
    if (rp_schedule_want_locked(loader, want, &err) != RP_OK) {
        rp_want_locate(loader, want, &err);
        rp_batch_fail_locked(loader, want->batch, want->order, &err);
        want->open = false;
        rp_batch_settle_locked(loader, want->batch, 1);
    }
}

/* A want of a batch to come. *late grows by it if that batch is being filled by now and its picture
 * is here. An error of the run is not its error: it is decoded again when it is needed. */
static void settle_captured(struct decoding *d, struct want *want, struct want **late)
{
    rp_loader *loader = d->worker->loader;
    rp_frame *spare = NULL;
    rp_lock_acquire(&loader->lock);
    struct batch *batch = want->batch;
    want->run = NULL;
    if (batch->cancelled || batch->abandoned) {
        spare = want->frame;
        want->frame = NULL;
        want->open = false;
        rp_batch_settle_locked(loader, batch, 1);
    }
    else if (batch->state == BATCH_FILLING) {
        if (want->frame != NULL) {
            want->next = *late;
            *late = want;
        }
        else {
            need_again_locked(loader, want);
        }
    }
    else if (want->frame != NULL) {
        spare = want->frame;
        rp_park_put_locked(loader, want);
        want->frame = NULL;
    }
    struct parked *dead = rp_park_dead_locked(&loader->park);
    rp_lock_release(&loader->lock);
    rp_frame_unref(&spare);
    rp_park_bury(loader, dead);
}

static void settle_wants(struct decoding *d, rp_status outcome, const struct rp_error *err)
{
    struct want *want = d->run->wants, *late = NULL;
    while (want != NULL) {
        struct want *next = want->next; /* a settled want may be reused at once */
        if (want->direct) {
            settle_direct(d, want, outcome, err);
        }
        else {
            settle_captured(d, want, &late);
        }
        want = next;
    }
    rp_wants_convert(d->worker, late);
}

/* Tell of what NVDEC failed on and the CPU did not. */
static void note_failure(const struct decoding *d, rp_status status, const struct rp_error *err)
{
    bool at_once = d->refused.code != RP_OK && status == RP_OK;
    bool later = d->on_gpu && status != RP_OK && d->saved > 0 && d->lost == 0;
    if (at_once || later) {
        rp_nvdec_failed(d->worker->loader->gpu->nvdec, rp_index_codec(d->index),
                        at_once ? d->refused.what : err->what);
    }
}

void rp_run_work(struct worker *worker, struct run *run)
{
    rp_loader *loader = worker->loader;
    struct rp_error err;
    rp_error_clear(&err);
    struct decoding d = {.worker = worker,
                         .run = run,
                         .index = loader->indexes.entry[run->file].index,
                         .keep = run->keep};
    rp_status status = decode_run(&d, &err);
    rp_count(&loader->counters.runs, 1);
    settle_wants(&d, status, &err);
    note_failure(&d, status, &err);
    rp_lock_acquire(&loader->lock);
    rp_schedule_release_run_locked(loader, run);
    rp_lock_release(&loader->lock);
}
