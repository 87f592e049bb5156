#include "decode/nvdec_priv.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

/* Whether the GPU decodes a stream as the CPU does: asked of FFmpeg and the driver first, then seen
 * on the stream's own pictures. */

#define TRIAL   32 /* packets of the first run */
#define WAIT_NS ((int64_t)1000000000)

/* Both decodes of the first run. Pictures wait for their pair of the other decoder. */
struct trial {
    rp_nvdec *nvdec;
    rp_decoder_cache *cache;
    rp_decoder *cpu, *gpu;
    rp_cuda_stream *stream;
    rp_frame *waiting[2][TRIAL + 1]; /* of the CPU, of the GPU */
    int n[2];
    int compared;
    struct rp_nvdec_verdict *verdict;
    bool rejected; /* the verdict's reason says why */
};

static void reject(struct trial *t, const char *why)
{
    t->rejected = true;
    (void)snprintf(t->verdict->reason, sizeof(t->verdict->reason), "%s", why); /* cut, if long */
}

static bool are_alike(const struct rp_image *cpu, const struct rp_image *gpu)
{
    bool kind = (cpu->format == RP_PIX_I420 && gpu->format == RP_PIX_NV12) ||
                (cpu->format == RP_PIX_I420J && gpu->format == RP_PIX_NV12J);
    return kind && cpu->width == gpu->width && cpu->height == gpu->height &&
           cpu->colorspace == gpu->colorspace && cpu->color_range == gpu->color_range;
}

/* The greater of most and the greatest difference of n samples, `step` apart in the second. */
static int differ(const uint8_t *a, const uint8_t *b, int step, int n, int most)
{
    for (int x = 0; x < n; x++) {
        int d = a[x] > b[x * step] ? a[x] - b[x * step] : b[x * step] - a[x];
        most = d > most ? d : most;
    }
    return most;
}

/* The greatest difference of the planes, those of the GPU's picture at `pixels`. */
static int difference(const struct rp_image *cpu, const struct rp_image *gpu, const uint8_t *pixels)
{
    int most = 0;
    for (int y = 0; y < cpu->height; y++) {
        most = differ(cpu->plane[0] + y * cpu->stride[0], pixels + y * gpu->stride[0], 1,
                      cpu->width, most);
    }
    const uint8_t *pairs = pixels + (gpu->plane[1] - gpu->plane[0]);
    for (int y = 0; y < cpu->height / 2; y++, pairs += gpu->stride[1]) {
        for (int c = 0; c < 2; c++) {
            most = differ(cpu->plane[1 + c] + y * cpu->stride[1 + c], pairs + c, 2, cpu->width / 2,
                          most);
        }
    }
    return most;
}

static rp_status compare(struct trial *t, const rp_frame *cpu, const rp_frame *gpu,
                         struct rp_error *err)
{
    rp_cuda_block *block = gpu->on_device, *pinned = NULL;
    RP_TRY(rp_cuda_take(t->nvdec->device, RP_CUDA_PINNED, block->len, true, &pinned, err));
    rp_status status = rp_cuda_await(t->stream, block, err);
    if (status == RP_OK) {
        status = rp_cuda_download(t->stream, block, 0, pinned, 0, block->len, err);
    }
    if (status == RP_OK) {
        status = rp_cuda_stream_finish(t->stream, err);
    }
    if (status == RP_OK) {
        bool alike = are_alike(&cpu->image, &gpu->image);
        int most = alike ? difference(&cpu->image, &gpu->image, pinned->host) : -1;
        t->compared++;
        if (most != 0) {
            char why[120];
            (void)snprintf(why, sizeof(why), /* always fits */
                           most < 0 ? "NVDEC's pictures are of another size, range or matrix than "
                                      "the CPU's"
                                    : "NVDEC's pictures differ from the CPU's by up to %d",
                           most);
            reject(t, why);
        }
    }
    rp_cuda_give(&pinned, NULL); /* its work was waited for, or is lost with the context */
    return status;
}

/* Keep a picture until its pair comes, and compare the two. */
static rp_status pair(struct trial *t, int side, rp_frame *frame, struct rp_error *err)
{
    int other = 1 - side;
    for (int i = 0; i < t->n[other]; i++) {
        if (t->waiting[other][i]->pts == frame->pts) {
            rp_frame *twin = t->waiting[other][i];
            t->waiting[other][i] = t->waiting[other][--t->n[other]];
            rp_status status =
                side == 0 ? compare(t, frame, twin, err) : compare(t, twin, frame, err);
            rp_frame_unref(&twin);
            rp_frame_unref(&frame);
            return status;
        }
    }
    if (t->n[side] > TRIAL) {
        rp_frame_unref(&frame);
        reject(t, "NVDEC returns other pictures than the CPU");
        return RP_OK;
    }
    t->waiting[side][t->n[side]++] = frame;
    return RP_OK;
}

/* Send a packet (NULL: drain) to one of the two and take its pictures. */
static rp_status feed(struct trial *t, int side, const struct rp_packet *packet,
                      struct rp_error *err)
{
    rp_decoder *decoder = side == 0 ? t->cpu : t->gpu;
    rp_status status =
        packet == NULL ? rp_decoder_drain(decoder, err) : rp_decoder_send(decoder, packet, err);
    while (status == RP_OK && !t->rejected) {
        rp_frame *frame = NULL;
        status = rp_decoder_receive(decoder, &frame, err);
        if (status == RP_OK) {
            status = pair(t, side, frame, err);
        }
    }
    return status == RP_AGAIN || status == RP_END ? RP_OK : status;
}

/* The GPU's turn. That it cannot decode what the CPU can is a verdict; that it is lost, or short of
 * memory, is not. */
static rp_status feed_gpu(struct trial *t, const struct rp_packet *packet, struct rp_error *err)
{
    struct rp_error why;
    rp_error_clear(&why);
    rp_status status = feed(t, 1, packet, &why);
    if (status == RP_E_DECODE || status == RP_E_UNSUPPORTED) {
        reject(t, why.what);
        return RP_OK;
    }
    if (status != RP_OK) {
        *err = why;
    }
    return status;
}

/* Packet i of n to both; i == n: no more packets. */
static rp_status step(struct trial *t, const struct rp_codec_params *params,
                      const struct rp_packet *packets, int i, int n, struct rp_error *err)
{
    struct rp_packet packet = packets[i < n ? i : 0];
    const struct rp_packet *next = i < n ? &packet : NULL;
    packet.wanted = packet.pts >= packets[0].pts; /* the others lead: they are left out */
    RP_TRY(feed(t, 0, next, err));
    if (i == 0) { /* the CPU takes the stream: now the GPU is asked */
        RP_TRY(rp_nvdec_open(t->nvdec, params, next, true, true, &t->gpu, err));
    }
    return feed_gpu(t, next, err);
}

static rp_status run_trial(struct trial *t, const struct rp_codec_params *params,
                           const struct rp_packet *packets, int n, struct rp_error *err)
{
    n = n < TRIAL ? n : TRIAL;
    RP_TRY(rp_decoder_cache_get(t->cache, params, &packets[0], &t->cpu, err));
    for (int i = 0; i <= n && !t->rejected; i++) {
        RP_TRY(step(t, params, packets, i, n, err));
    }
    if (!t->rejected && (t->n[0] > 0 || t->n[1] > 0 || t->compared == 0)) {
        reject(t, "NVDEC returns other pictures than the CPU");
    }
    return RP_OK;
}

/* Whether the session did not start for a reason of the stream's: not the GPU's, nor want of
 * memory. */
static bool is_of_stream(rp_nvdec *nvdec, const struct rp_error *why)
{
    return why->sys != 0 && why->sys != RP_CUDA_NO_MEMORY &&
           rp_cuda_check(nvdec->device, NULL) == RP_OK;
}

static void end_trial(struct trial *t)
{
    for (int side = 0; side < 2; side++) {
        while (t->n[side] > 0) {
            rp_frame_unref(&t->waiting[side][--t->n[side]]);
        }
    }
    rp_nvdec_end(t->nvdec, &t->gpu);
    rp_decoder_cache_free(&t->cache);
    rp_cuda_stream_free(&t->stream);
    rp_free(t);
}

/* Decode the run on both. A refusal of the stream is a verdict, not an error. */
static rp_status try_stream(rp_nvdec *nvdec, const struct rp_codec_params *params,
                            const struct rp_packet *packets, int n,
                            struct rp_nvdec_verdict *verdict, struct rp_error *err)
{
    struct trial *t = rp_calloc(1, sizeof(*t));
    if (t == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for the first pictures on the GPU");
    }
    t->nvdec = nvdec;
    t->verdict = verdict;
    struct rp_error why;
    rp_error_clear(&why);
    rp_status status = rp_decoder_cache_new(1, &t->cache, &why);
    if (status == RP_OK) {
        status = rp_cuda_stream_new(nvdec->device, &t->stream, &why);
    }
    if (status == RP_OK) {
        status = run_trial(t, params, packets, n, &why);
    }
    if (status == RP_E_CUDA && t->gpu == NULL && is_of_stream(nvdec, &why)) {
        reject(t, why.what);
        status = RP_OK;
    }
    if (status == RP_OK && !t->rejected) {
        verdict->on_gpu = true;
        (void)snprintf(verdict->reason, sizeof(verdict->reason), /* always fits */
                       "%d pictures were those of the CPU", t->compared);
    }
    end_trial(t);
    if (status != RP_OK && err != NULL && err->code == RP_OK) {
        *err = why;
    }
    return status;
}

/* What is known without decoding. True: the verdict stands. */
static bool judge_by_caps(rp_nvdec *nvdec, struct rp_nvdec_verdict *v)
{
    const char *codec = rp_codec_name(v->codec);
    char *why = v->reason;
    size_t cap = sizeof(v->reason);
    if (rp_nvdec_codec(v->codec) == 0) {
        return snprintf(why, cap, "%s is decoded on the CPU", codec) > 0;
    }
    if (!rp_decode_has_cuda(v->codec)) {
        return snprintf(why, cap, "NVDEC: this FFmpeg was built without it for %s", codec) > 0;
    }
    if (v->width % 2 != 0 || v->height % 2 != 0) {
        return snprintf(why, cap, "pictures of %dx%d are odd", v->width, v->height) > 0;
    }
    struct rp_cuda_video_caps caps;
    struct rp_error err;
    rp_error_clear(&err);
    if (rp_cuda_video_caps(nvdec->device, nvdec->library, rp_nvdec_codec(v->codec), &caps, &err) !=
        RP_OK) {
        return snprintf(why, cap, "%s", err.what) > 0;
    }
    if (!caps.supported) {
        return snprintf(why, cap, "this GPU has no decoder for %s", codec) > 0;
    }
    int64_t blocks = (int64_t)((v->width + 15) / 16) * ((v->height + 15) / 16);
    if (v->width < caps.min_width || v->height < caps.min_height || v->width > caps.max_width ||
        v->height > caps.max_height || blocks > caps.max_blocks) {
        return snprintf(why, cap, "this GPU decodes %s from %dx%d to %dx%d, not %dx%d", codec,
                        caps.min_width, caps.min_height, caps.max_width, caps.max_height, v->width,
                        v->height) > 0;
    }
    return false;
}

/* The entry of these parameters, made if need be; NULL: memory is short. */
static struct rp_nvdec_entry *entry_locked(rp_nvdec *nvdec, const struct rp_codec_params *params)
{
    struct rp_nvdec_entry **link = &nvdec->entries;
    for (; *link != NULL; link = &(*link)->next) {
        const struct rp_nvdec_verdict *v = &(*link)->verdict;
        if (v->codec == params->codec && v->hash == params->hash && v->width == params->width &&
            v->height == params->height) {
            return *link;
        }
    }
    struct rp_nvdec_entry *made = rp_calloc(1, sizeof(*made));
    if (made != NULL) {
        made->verdict = (struct rp_nvdec_verdict){.codec = params->codec,
                                                  .width = params->width,
                                                  .height = params->height,
                                                  .hash = params->hash};
        *link = made;
    }
    return made;
}

/* Whether this is the first stream of its codec that goes to the CPU, for its failures or at once.
 */
static bool is_news_locked(const rp_nvdec *nvdec, const struct rp_nvdec_verdict *verdict,
                           bool demoted)
{
    for (const struct rp_nvdec_entry *e = nvdec->entries; e != NULL; e = e->next) {
        if (e->decided && !e->verdict.on_gpu && e->verdict.codec == verdict->codec &&
            e->demoted == demoted) {
            return false;
        }
    }
    return !verdict->on_gpu;
}

rp_status rp_nvdec_decide(rp_nvdec *nvdec, const struct rp_codec_params *params,
                          const struct rp_packet *packets, int n, struct rp_nvdec_verdict *out,
                          struct rp_error *err)
{
    RP_TRY(rp_cuda_check(nvdec->device, err));
    rp_lock_acquire(&nvdec->lock);
    struct rp_nvdec_entry *entry = entry_locked(nvdec, params);
    while (entry != NULL && entry->under_way) {
        (void)rp_cond_wait(&nvdec->changed, &nvdec->lock, rp_now_ns() + WAIT_NS); /* looked at */
    }
    bool decided = entry != NULL && entry->decided;
    if (decided) {
        *out = entry->verdict;
        entry->runs += n < 1;
    }
    else if (entry != NULL) {
        entry->under_way = n > 0;
    }
    rp_lock_release(&nvdec->lock);
    if (entry == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a stream's decoder");
    }
    if (decided || n < 1) {
        return decided ? RP_OK : RP_AGAIN;
    }
    struct rp_nvdec_verdict verdict = entry->verdict; /* its names; nobody else writes it now */
    rp_status status = RP_OK;
    if (!judge_by_caps(nvdec, &verdict)) {
        status = try_stream(nvdec, params, packets, n, &verdict, err);
    }
    rp_lock_acquire(&nvdec->lock);
    if (status == RP_OK) {
        entry->untold = is_news_locked(nvdec, &verdict, false);
        entry->verdict = verdict;
        entry->decided = true;
        *out = verdict;
    }
    entry->under_way = false;
    rp_cond_broadcast(&nvdec->changed);
    rp_lock_release(&nvdec->lock);
    return status;
}

int rp_nvdec_verdicts(rp_nvdec *nvdec, struct rp_nvdec_verdict *out, int cap)
{
    int n = 0;
    rp_lock_acquire(&nvdec->lock);
    for (const struct rp_nvdec_entry *e = nvdec->entries; e != NULL; e = e->next) {
        if (e->decided) {
            if (n < cap) {
                out[n] = e->verdict;
            }
            n++;
        }
    }
    rp_lock_release(&nvdec->lock);
    return n;
}

void rp_nvdec_failed(rp_nvdec *nvdec, const struct rp_codec_params *params, const char *why)
{
    rp_lock_acquire(&nvdec->lock);
    struct rp_nvdec_entry *entry = entry_locked(nvdec, params); /* made when it was decided */
    if (entry != NULL && entry->decided && entry->verdict.on_gpu) {
        struct rp_nvdec_verdict verdict = entry->verdict;
        entry->failed++;
        if (entry->failed >= RP_NVDEC_FAILURES && entry->failed * RP_NVDEC_IN_RUNS >= entry->runs) {
            verdict.on_gpu = false;
            (void)snprintf(verdict.reason, sizeof(verdict.reason), /* cut, if long */
                           "NVDEC failed on %lld of %lld runs that the CPU decodes: %s",
                           (long long)entry->failed, (long long)entry->runs, why);
            entry->untold = is_news_locked(nvdec, &verdict, true);
            entry->verdict = verdict;
            entry->demoted = true;
        }
    }
    rp_lock_release(&nvdec->lock);
}

bool rp_nvdec_notice(rp_nvdec *nvdec, struct rp_nvdec_verdict *out)
{
    rp_lock_acquire(&nvdec->lock);
    struct rp_nvdec_entry *entry = nvdec->entries;
    while (entry != NULL && !entry->untold) {
        entry = entry->next;
    }
    if (entry != NULL) {
        entry->untold = false;
        *out = entry->verdict;
    }
    rp_lock_release(&nvdec->lock);
    return entry != NULL;
}
