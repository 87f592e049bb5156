#include "decode/decode_priv.h"

#include "base/memory.h"
#include "base/thread.h"

struct rp_decoder_cache {
    const struct rp_decode_backend *backend;
    struct rp_frame_pool *frames;
    uint64_t uses;
    int open, capacity; /* 0 <= open <= capacity */
    rp_decoder decoders[];
};

static rp_status new_cache(const struct rp_decode_backend *backend, int capacity,
                           rp_decoder_cache **out, struct rp_error *err)
{
    if (capacity < 1 || capacity > 4096) {
        RP_FAIL(err, RP_E_ARG, "a decoder cache holds 1 to 4096 decoders, not %d", capacity);
    }
    rp_decoder_cache *cache =
        rp_calloc(1, sizeof(*cache) + (size_t)capacity * sizeof(cache->decoders[0]));
    if (cache == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "no memory for a decoder cache");
    }
    cache->backend = backend;
    cache->capacity = capacity;
    rp_status status = rp_frame_pool_new(&cache->backend->pictures, &cache->frames, err);
    if (status != RP_OK) {
        rp_free(cache);
        return status;
    }
    *out = cache;
    return RP_OK;
}

rp_status rp_decoder_cache_new(int capacity, rp_decoder_cache **out, struct rp_error *err)
{
    return new_cache(&rp_decode_av, capacity, out, err);
}

rp_status rp_decoder_cache_new_strict(int capacity, rp_decoder_cache **out, struct rp_error *err)
{
    return new_cache(&rp_decode_av_strict, capacity, out, err);
}

void rp_decoder_close(rp_decoder *decoder)
{
    if (decoder->native != NULL) {
        rp_gate_enter();
        decoder->backend->close(decoder->native);
        rp_gate_leave();
        decoder->native = NULL;
    }
}

void rp_decoder_cache_free(rp_decoder_cache **cache)
{
    if (cache == NULL || *cache == NULL) {
        return;
    }
    for (int i = 0; i < (*cache)->open; i++) {
        rp_decoder_close(&(*cache)->decoders[i]);
    }
    rp_frame_pool_unref(&(*cache)->frames);
    rp_free(*cache);
    *cache = NULL;
}

/* Whether an AV1 temporal unit has a sequence header OBU before its first frame (AV1 5.3.1, 5.3.2).
 */
static bool has_sequence_header(const uint8_t *data, size_t len)
{
    enum { SEQUENCE_HEADER = 1, FRAME_HEADER = 3, TILE_GROUP = 4, FRAME = 6 };
    size_t at = 0;
    while (at < len) {
        unsigned header = data[at++];
        unsigned type = (header >> 3) & 15;
        if ((header & 0x80) != 0 || type == FRAME_HEADER || type == TILE_GROUP || type == FRAME) {
            return false;
        }
        at += (header >> 2) & 1; /* extension byte */
        if (type == SEQUENCE_HEADER) {
            return at < len;
        }
        if ((header & 2) == 0) {
            return false; /* without a size it is the last one */
        }
        uint64_t size = 0;
        for (unsigned i = 0; i < 8; i++) {
            if (at >= len) {
                return false;
            }
            uint8_t byte = data[at++];
            size |= (uint64_t)(byte & 0x7f) << (7 * i);
            if ((byte & 0x80) == 0) {
                break;
            }
        }
        if (size > len - at) {
            return false;
        }
        at += (size_t)size;
    }
    return false;
}

/* 7.4.1: slices are types 1 and 5. */
bool rp_starts_open_gop(const struct rp_codec_params *params, const struct rp_packet *packet)
{
    enum { SLICE = 1, IDR_SLICE = 5 };
    if (params->codec != RP_CODEC_H264 || params->extradata_len < 5 || params->extradata[0] != 1) {
        return false;
    }
    size_t prefix = (size_t)(params->extradata[4] & 3) + 1; /* lengthSizeMinusOne of avcC */
    bool slices = false;
    for (size_t at = 0; at < packet->len;) {
        uint64_t size = 0;
        for (size_t i = 0; i < prefix && at < packet->len; i++) {
            size = size << 8 | packet->data[at++];
        }
        if (size == 0 || size > packet->len - at) {
            return false; /* damaged: the decoder says so */
        }
        unsigned type = packet->data[at] & 31;
        if (type == IDR_SLICE) {
            return false;
        }
        slices = slices || type == SLICE;
        at += (size_t)size;
    }
    return slices;
}

rp_status rp_decoder_start(rp_decoder *decoder, const struct rp_codec_params *params,
                           const struct rp_packet *first, struct rp_error *err)
{
    rp_status status = RP_OK;
    rp_gate_enter();
    if (decoder->native == NULL) {
        status = decoder->backend->open(decoder->host, params, decoder->with_extradata,
                                        &decoder->native, err);
    }
    else if (decoder->used) {
        decoder->backend->flush(decoder->native);
    }
    rp_gate_leave();
    decoder->used = false;
    decoder->drained = false;
    decoder->has_start = decoder->primed = false;
    decoder->width = 0;
    decoder->open_gop = rp_starts_open_gop(params, first);
    return status;
}

rp_status rp_decoder_cache_get(rp_decoder_cache *cache, const struct rp_codec_params *params,
                               const struct rp_packet *first, rp_decoder **out,
                               struct rp_error *err)
{
    /* Shared AV1 decoders are told apart by picture size only, because a change of size makes the
     * library allocate its line buffers and frame pool anew. */
    bool with_extradata = !(params->codec == RP_CODEC_AV1 && first->key &&
                            has_sequence_header(first->data, first->len));
    uint64_t key = with_extradata
                       ? params->hash
                       : ((uint64_t)(uint32_t)params->width << 32) | (uint32_t)params->height;
    rp_decoder *found = NULL;
    rp_decoder *oldest = &cache->decoders[0];
    for (int i = 0; i < cache->open; i++) {
        rp_decoder *decoder = &cache->decoders[i];
        if (decoder->codec == params->codec && decoder->key == key &&
            decoder->with_extradata == with_extradata) {
            found = decoder;
        }
        if (decoder->last_use < oldest->last_use) {
            oldest = decoder;
        }
    }
    if (found == NULL) {
        if (cache->open < cache->capacity) {
            found = &cache->decoders[cache->open++];
        }
        else {
            found = oldest;
            rp_decoder_close(found);
        }
        *found = (rp_decoder){.backend = cache->backend,
                              .frames = cache->frames,
                              .codec = params->codec,
                              .key = key,
                              .with_extradata = with_extradata};
    }
    found->last_use = ++cache->uses;
    RP_TRY(rp_decoder_start(found, params, first, err));
    *out = found;
    return RP_OK;
}

/* A decoder that failed is never used again: its state is a guess from there on. */
static rp_status check_open(const rp_decoder *decoder, struct rp_error *err)
{
    if (decoder->native == NULL) {
        RP_FAIL(err, RP_E_DECODE, "the decoder failed before in this run");
    }
    return RP_OK;
}

/* What libavcodec calls invalid data at the start of an H.264 open GOP are references to pictures
 * before it. */
static rp_status fail_run(rp_decoder *decoder, rp_status status, struct rp_error *err)
{
    rp_decoder_close(decoder);
    if (decoder->open_gop && status == RP_E_DECODE) {
        RP_FAIL(err, RP_E_UNSUPPORTED, RP_OPEN_GOP);
    }
    RP_FAIL(err, status, "decoding failed"); /* the backend's text stands, if there is one */
}

/* Where the backend writes its text. */
static struct rp_error *detail(const rp_decoder *decoder, struct rp_error *err)
{
    return decoder->open_gop ? NULL : err;
}

rp_status rp_decoder_send(rp_decoder *decoder, const struct rp_packet *packet, struct rp_error *err)
{
    RP_TRY(check_open(decoder, err));
    bool primed = decoder->primed && packet->pts == decoder->start_pts;
    decoder->primed = false;
    if (primed) {
        return RP_OK;
    }
    if (!decoder->has_start) {
        decoder->has_start = true;
        decoder->start_pts = packet->pts;
    }
    else if (packet->pts < decoder->start_pts && !packet->wanted) {
        /* A leading picture of an open GOP: shown before the key, decoded after it, needing
         * pictures from before the key; nothing that is shown later refers to it. */
        return RP_OK;
    }
    decoder->used = true;
    rp_gate_enter();
    rp_status status = decoder->backend->send(decoder->native, packet, detail(decoder, err));
    rp_gate_leave();
    return status < 0 ? fail_run(decoder, status, err) : status;
}

rp_status rp_decoder_prime(rp_decoder *decoder, const struct rp_packet *first, struct rp_error *err)
{
    RP_TRY(rp_decoder_send(decoder, first, err));
    decoder->primed = true;
    return RP_OK;
}

rp_status rp_decoder_drain(rp_decoder *decoder, struct rp_error *err)
{
    RP_TRY(check_open(decoder, err));
    decoder->used = true;
    decoder->drained = true;
    rp_gate_enter();
    rp_status status = decoder->backend->send(decoder->native, NULL, detail(decoder, err));
    rp_gate_leave();
    return status < 0 ? fail_run(decoder, status, err) : status;
}

static rp_status check_same(rp_decoder *decoder, const struct rp_image *image, struct rp_error *err)
{
    if (decoder->width == 0) {
        decoder->width = image->width;
        decoder->height = image->height;
        decoder->native_format = image->native_format;
    }
    else if (decoder->width != image->width || decoder->height != image->height ||
             decoder->native_format != image->native_format) {
        RP_FAIL(err, RP_E_DECODE, "picture changed from %dx%d, format %d, to %dx%d, format %d",
                decoder->width, decoder->height, decoder->native_format, image->width,
                image->height, image->native_format);
    }
    return RP_OK;
}

rp_status rp_decoder_receive(rp_decoder *decoder, rp_frame **out, struct rp_error *err)
{
    RP_TRY(check_open(decoder, err));
    rp_frame *frame = NULL;
    RP_TRY(rp_frame_pool_get(decoder->frames, &frame, err));
    rp_gate_enter();
    rp_status status = decoder->backend->receive(decoder->native, frame, detail(decoder, err));
    rp_gate_leave();
    if (status == RP_OK) {
        status = check_same(decoder, &frame->image, err);
    }
    else if (status == RP_AGAIN && decoder->drained) {
        status = rp_error_set(err, RP_E_DECODE, "the decoder wants packets after the drain");
    }
    if (status != RP_OK) {
        rp_frame_unref(&frame);
        return status < 0 ? fail_run(decoder, status, err) : status;
    }
    *out = frame;
    return RP_OK;
}
