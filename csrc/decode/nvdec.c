#include "decode/nvdec.h"

#include "base/memory.h"
#include "decode/nvdec_priv.h"

#include <stdio.h>
#include <string.h>

#define WAIT_NS  ((int64_t)1000000000)
#define IN_USE   4 /* times as many runs as sessions: who served none of them is idle */
#define FALLBACK 4 /* sessions where the driver does not tell its engines */
#define NO_SESSION                                                                           \
    "NVDEC gives no decode session (%.100s): fewer DataLoader workers (num_workers), 0, or " \
    "Loader, whose threads share them"

enum rp_cuda_codec rp_nvdec_codec(enum rp_codec codec)
{
    switch (codec) {
    case RP_CODEC_AV1: return RP_CUDA_AV1;
    case RP_CODEC_H264: return RP_CUDA_H264;
    case RP_CODEC_HEVC: return RP_CUDA_HEVC;
    case RP_CODEC_VP9: return RP_CUDA_VP9;
    default: return (enum rp_cuda_codec)0;
    }
}

bool rp_nvdec_in_ffmpeg(enum rp_codec codec)
{
    return rp_decode_has_cuda(codec);
}

static int sessions_of(rp_cuda *device, const char *library)
{
    struct rp_cuda_video_caps caps;
    if (rp_cuda_video_caps(device, library, RP_CUDA_H264, &caps, NULL) != RP_OK ||
        caps.engines < 1) {
        return FALLBACK;
    }
    return 2 * caps.engines < RP_NVDEC_MAX_SESSIONS ? 2 * caps.engines : RP_NVDEC_MAX_SESSIONS;
}

static void free_all(rp_nvdec *nvdec)
{
    for (int i = 0; i < nvdec->n; i++) {
        rp_decoder_close(&nvdec->session[i].decoder);
        rp_frame_pool_unref(&nvdec->session[i].decoder.frames);
    }
    while (nvdec->entries != NULL) {
        struct rp_nvdec_entry *next = nvdec->entries->next;
        rp_free(nvdec->entries);
        nvdec->entries = next;
    }
    rp_free(nvdec);
}

rp_status rp_nvdec_new(rp_cuda *device, const char *library, int sessions, rp_nvdec **out,
                       struct rp_error *err)
{
    if (sessions > RP_NVDEC_MAX_SESSIONS) {
        RP_FAIL(err, RP_E_ARG, "%d decode sessions: at most %d", sessions, RP_NVDEC_MAX_SESSIONS);
    }
    if (sessions <= 0) {
        int all = sessions_of(device, library);
        sessions = sessions == 0 ? all : all >= -sessions ? all / -sessions : 1;
    }
    rp_nvdec *nvdec = rp_calloc(1, sizeof(*nvdec) + (size_t)sessions * sizeof(nvdec->session[0]));
    if (nvdec == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for decode sessions");
    }
    nvdec->device = device;
    nvdec->library = library;
    nvdec->generation = rp_fork_generation();
    nvdec->stats.most = sessions;
    rp_status status = RP_OK;
    for (; nvdec->n < sessions && status == RP_OK; nvdec->n++) {
        rp_decoder *decoder = &nvdec->session[nvdec->n].decoder;
        decoder->backend = &rp_decode_cuda;
        decoder->host = device;
        status = rp_frame_pool_new(&rp_decode_cuda.pictures, &decoder->frames, err);
    }
    if (status == RP_OK) {
        status = rp_lock_init(&nvdec->lock, err);
    }
    if (status == RP_OK) {
        status = rp_cond_init(&nvdec->changed, err);
        if (status == RP_OK) {
            *out = nvdec;
            return RP_OK;
        }
        rp_lock_free(&nvdec->lock);
    }
    free_all(nvdec);
    return status;
}

void rp_nvdec_free(rp_nvdec **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_nvdec *nvdec = *out;
    *out = NULL;
    if (nvdec->generation != rp_fork_generation()) {
        return; /* libavcodec would call a driver that does not work here */
    }
    rp_cond_free(&nvdec->changed);
    rp_lock_free(&nvdec->lock);
    free_all(nvdec);
}

static bool serves(const rp_decoder *decoder, const struct rp_codec_params *params)
{
    return decoder->native != NULL && decoder->codec == params->codec &&
           decoder->key == params->hash;
}

static bool is_in_use(const rp_nvdec *nvdec, const struct rp_nvdec_session *session)
{
    return session != NULL &&
           nvdec->uses - session->decoder.last_use <= (uint64_t)(IN_USE * nvdec->n);
}

/* The sessions as a stream sees them. */
struct choice {
    struct rp_nvdec_session *same, *closed, *oldest; /* free ones; NULL: none of the kind */
    int busy, alike;                                 /* all that are; those of the stream */
};

static struct choice survey_locked(rp_nvdec *nvdec, const struct rp_codec_params *params)
{
    struct choice c = {0};
    for (int i = 0; i < nvdec->n; i++) {
        struct rp_nvdec_session *s = &nvdec->session[i];
        if (s->busy) {
            c.busy++;
            c.alike += s->stream == params->hash;
        }
        else if (serves(&s->decoder, params)) {
            c.same = s;
        }
        else if (s->decoder.native == NULL) {
            c.closed = s;
        }
        else if (c.oldest == NULL || s->decoder.last_use < c.oldest->decoder.last_use) {
            c.oldest = s;
        }
    }
    return c;
}

/* Mark a session as busy: one that has this stream open, else one that is closed, else the one not
 * used for longest; who gets one of the last two opens it. NULL: all are busy, or as many are open
 * as there may be, or others of this stream are worth waiting for, or a session is being opened. */
static struct rp_nvdec_session *reserve_locked(rp_nvdec *nvdec,
                                               const struct rp_codec_params *params)
{
    struct choice c = survey_locked(nvdec, params);
    struct rp_nvdec_session *found = c.same;
    if (found == NULL && !nvdec->opening) {
        bool room = nvdec->stats.open < nvdec->stats.most && c.closed != NULL;
        /* Else two streams would take sessions from each other for ever. */
        bool may_take = c.alike == 0 || !is_in_use(nvdec, c.oldest);
        found = room ? c.closed : may_take ? c.oldest : NULL;
    }
    if (found == NULL || c.busy >= nvdec->stats.most) {
        return NULL;
    }
    found->busy = true;
    found->stream = params->hash;
    found->decoder.last_use = ++nvdec->uses;
    nvdec->opening = nvdec->opening || found != c.same;
    nvdec->stats.busy++;
    nvdec->stats.open += found->decoder.native == NULL;
    return found;
}

/* Give a session back, open or closed. opener: it was reserved to be opened, and is not. */
static void release(rp_nvdec *nvdec, struct rp_nvdec_session *session, bool opener)
{
    rp_lock_acquire(&nvdec->lock);
    session->busy = false;
    nvdec->opening = nvdec->opening && !opener;
    nvdec->stats.busy--;
    nvdec->stats.open -= session->decoder.native == NULL;
    rp_cond_broadcast(&nvdec->changed);
    rp_lock_release(&nvdec->lock);
}

/* Open the stream on a session that is ours. Only its first packet shows whether NVDEC takes it. */
static rp_status open_session(rp_decoder *decoder, const struct rp_codec_params *params,
                              const struct rp_packet *first, struct rp_error *err)
{
    rp_decoder_close(decoder);
    decoder->codec = params->codec;
    decoder->key = params->hash;
    decoder->with_extradata = true;
    RP_TRY(rp_decoder_start(decoder, params, first, err));
    return rp_decoder_prime(decoder, first, err);
}

/* Whether an open that was refused beside `before` other sessions is worth another try. As only one
 * is opened at a time, they can but have become fewer since. is_short: they may be all that there
 * are. */
static bool has_others(rp_nvdec *nvdec, int before, bool is_short)
{
    rp_lock_acquire(&nvdec->lock);
    int others = nvdec->stats.open - 1;
    if (is_short && others == before && others > 0) {
        nvdec->stats.most = others; /* the driver gives no more */
    }
    rp_lock_release(&nvdec->lock);
    return others < before || (is_short && others > 0);
}

/* NVDEC did not start on the session that is being opened, beside `before` others. RP_AGAIN: they
 * are fewer now, or as many as they are will do, or it may have been a moment's want: *doubts
 * counts those. */
static rp_status make_room(rp_nvdec *nvdec, const struct rp_codec_params *params, bool trial,
                           int before, int *doubts, struct rp_error *err)
{
    struct rp_error why;
    rp_error_clear(&why);
    rp_status status =
        rp_cuda_video_try(nvdec->device, nvdec->library, rp_nvdec_codec(params->codec),
                          params->width, params->height, &why);
    bool is_doubtful = status == RP_OK && (*doubts)++ == 0;
    bool is_short = status == RP_OK ? !trial : why.sys == RP_CUDA_NO_MEMORY;
    if (is_doubtful) {
        return RP_AGAIN;
    }
    if ((is_short || status == RP_OK) && has_others(nvdec, before, is_short)) {
        return RP_AGAIN;
    }
    const char *what = status == RP_OK ? "FFmpeg cannot start NVDEC on this stream" : why.what;
    if (is_short) {
        (void)rp_error_set(err, RP_E_CUDA, NO_SESSION, what); /* returned below */
        err->sys = RP_CUDA_NO_MEMORY;
    }
    else {
        (void)rp_error_set(err, RP_E_CUDA, "%s", what); /* returned below */
        err->sys = status == RP_OK ? RP_NVDEC_REFUSED : why.sys;
    }
    return RP_E_CUDA;
}

/* A session of ours, waited for. *others: further ones that are open. RP_AGAIN: none, and it may
 * not wait. */
static rp_status reserve(rp_nvdec *nvdec, const struct rp_codec_params *params, bool may_wait,
                         struct rp_nvdec_session **out, int *others)
{
    rp_lock_acquire(&nvdec->lock);
    struct rp_nvdec_session *session = reserve_locked(nvdec, params);
    nvdec->stats.waits += session == NULL && may_wait;
    while (session == NULL && may_wait) {
        (void)rp_cond_wait(&nvdec->changed, &nvdec->lock, rp_now_ns() + WAIT_NS); /* looked at */
        session = reserve_locked(nvdec, params);
    }
    *others = nvdec->stats.open - 1;
    rp_lock_release(&nvdec->lock);
    *out = session;
    return session == NULL ? RP_AGAIN : RP_OK;
}

/* The run has begun; a session that was opened for it is. */
static void note_begun(rp_nvdec *nvdec, bool opener)
{
    rp_lock_acquire(&nvdec->lock);
    nvdec->stats.runs++;
    nvdec->stats.made += opener;
    if (opener) {
        nvdec->opening = false;
        rp_cond_broadcast(&nvdec->changed);
    }
    rp_lock_release(&nvdec->lock);
}

rp_status rp_nvdec_open(rp_nvdec *nvdec, const struct rp_codec_params *params,
                        const struct rp_packet *first, bool may_wait, bool trial, rp_decoder **out,
                        struct rp_error *err)
{
    int doubts = 0;
    if (rp_starts_open_gop(params, first)) { /* the CPU's to refuse: nothing says here that it */
        RP_FAIL(err, RP_E_UNSUPPORTED, RP_OPEN_GOP); /* refers to pictures of the run before */
    }
    for (;;) {
        RP_TRY(rp_cuda_check(nvdec->device, err));
        struct rp_nvdec_session *session = NULL;
        int others = 0;
        RP_TRY(reserve(nvdec, params, may_wait, &session, &others));
        rp_decoder *decoder = &session->decoder;
        bool opener = !serves(decoder, params);
        struct rp_error why;
        rp_error_clear(&why);
        rp_status status = opener ? open_session(decoder, params, first, &why)
                                  : rp_decoder_start(decoder, params, first, &why);
        if (status == RP_OK) {
            note_begun(nvdec, opener);
            *out = decoder;
            return RP_OK;
        }
        rp_decoder_close(decoder);
        if (status == RP_E_CUDA && why.sys == RP_NVDEC_REFUSED) {
            rp_error_clear(&why);
            status = make_room(nvdec, params, trial, others, &doubts, &why);
        }
        release(nvdec, session, opener);
        if (status != RP_AGAIN) {
            if (err != NULL && err->code == RP_OK) {
                *err = why;
            }
            return status;
        }
    }
}

rp_status rp_nvdec_begin(rp_nvdec *nvdec, const struct rp_codec_params *params,
                         const struct rp_packet *first, bool may_wait, rp_decoder **out,
                         struct rp_error *err)
{
    return rp_nvdec_open(nvdec, params, first, may_wait, false, out, err);
}

void rp_nvdec_end(rp_nvdec *nvdec, rp_decoder **decoder)
{
    if (decoder == NULL || *decoder == NULL) {
        return;
    }
    struct rp_nvdec_session *session = (struct rp_nvdec_session *)(void *)*decoder;
    *decoder = NULL;
    if (nvdec->generation == rp_fork_generation()) {
        release(nvdec, session, false);
    }
}

void rp_nvdec_stats(rp_nvdec *nvdec, struct rp_nvdec_stats *out)
{
    rp_lock_acquire(&nvdec->lock);
    *out = nvdec->stats;
    rp_lock_release(&nvdec->lock);
}
