#include "demux/mp4_boxes.h"

#include "base/bytes.h"
#include "base/memory.h"
#include "demux/mp4_priv.h"
#include "demux/mp4_write.h"

#include <string.h>

void rp_box_writer_free(struct rp_box_writer *w)
{
    rp_free(w->data);
    *w = (struct rp_box_writer){.data = NULL};
}

/* Room for len more bytes, or NULL. */
static uint8_t *extend(struct rp_box_writer *w, size_t len)
{
    if (w->failed) {
        return NULL;
    }
    if (w->data == NULL || len > w->room - w->len) {
        size_t room = 2 * w->room + len + 1024;
        uint8_t *data = rp_realloc(w->data, room, 1);
        if (data == NULL) {
            w->failed = true;
            return NULL;
        }
        w->data = data;
        w->room = room;
    }
    w->len += len;
    return w->data + w->len - len;
}

void rp_box_put(struct rp_box_writer *w, const void *data, size_t len)
{
    uint8_t *to = extend(w, len);
    if (to != NULL && len > 0) {
        memcpy(to, data, len);
    }
}

void rp_box_zeros(struct rp_box_writer *w, size_t len)
{
    uint8_t *to = extend(w, len);
    if (to != NULL && len > 0) {
        memset(to, 0, len);
    }
}

static void put_be(struct rp_box_writer *w, uint64_t value, size_t bytes)
{
    uint8_t *to = extend(w, bytes);
    for (size_t i = 0; to != NULL && i < bytes; i++) {
        to[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
    }
}

void rp_box_put16(struct rp_box_writer *w, uint32_t value)
{
    put_be(w, value, 2);
}

void rp_box_put32(struct rp_box_writer *w, uint32_t value)
{
    put_be(w, value, 4);
}

void rp_box_put64(struct rp_box_writer *w, uint64_t value)
{
    put_be(w, value, 8);
}

void rp_box_set32(struct rp_box_writer *w, size_t at, uint32_t value)
{
    if (!w->failed) {
        rp_put_be32(w->data + at, value);
    }
}

size_t rp_box_begin(struct rp_box_writer *w, const char *type)
{
    size_t box = w->len;
    rp_box_put32(w, 0);
    rp_box_put(w, type, 4);
    return box;
}

size_t rp_box_begin_full(struct rp_box_writer *w, const char *type, uint32_t version,
                         uint32_t flags)
{
    size_t box = rp_box_begin(w, type);
    rp_box_put32(w, version << 24 | flags);
    return box;
}

void rp_box_end(struct rp_box_writer *w, size_t box)
{
    rp_box_set32(w, box, (uint32_t)(w->len - box));
}

void rp_box_mdat(struct rp_box_writer *w, uint64_t bytes)
{
    bool wide = bytes + 8 > UINT32_MAX;
    rp_box_put32(w, wide ? 1 : (uint32_t)bytes + 8);
    rp_box_put(w, "mdat", 4);
    if (wide) {
        rp_box_put64(w, bytes + 16);
    }
}

struct rp_box_runs rp_box_runs_begin(struct rp_box_writer *w, const char *type)
{
    struct rp_box_runs runs = {.to = w, .box = rp_box_begin_full(w, type, 0, 0)};
    rp_box_put32(w, 0);
    return runs;
}

static void flush(struct rp_box_runs *runs)
{
    if (runs->run > 0) {
        rp_box_put32(runs->to, runs->run);
        rp_box_put32(runs->to, runs->value);
        runs->rows++;
    }
}

void rp_box_runs_add(struct rp_box_runs *runs, uint32_t value)
{
    if (runs->run == 0 || runs->value != value) {
        flush(runs);
        runs->run = 0;
        runs->value = value;
    }
    runs->run++;
}

void rp_box_runs_end(struct rp_box_runs *runs)
{
    flush(runs);
    rp_box_set32(runs->to, runs->box + 12, runs->rows);
    rp_box_end(runs->to, runs->box);
}

/* ISO/IEC 14496-1, from the codec's parameters alone: sources differ in their bit rates. */
static void put_esds(struct rp_box_writer *w, const struct rp_codec_params *codec)
{
    uint32_t len = (uint32_t)codec->extradata_len;
    uint32_t info = len > 0 ? 5 + len : 0; /* DecoderSpecificInfo with its header */
    const uint8_t mp4_visual[] = {0x20, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const struct {
        uint8_t tag;
        uint32_t len;
    } descriptor[] = {{3, 3 + 5 + 13 + info + 6}, {4, 13 + info}, {5, len}};
    size_t box = rp_box_begin_full(w, "esds", 0, 0);
    for (int d = 0; d < (len > 0 ? 3 : 2); d++) {
        uint8_t head[5] = {descriptor[d].tag};
        for (int i = 1; i <= 4; i++) { /* the length in 7-bit groups; all but the last flagged */
            uint32_t group = descriptor[d].len >> 7 * (4 - i) & 0x7F;
            head[i] = (uint8_t)(group | (i < 4 ? 0x80 : 0));
        }
        rp_box_put(w, head, 5);
        if (d == 0) {
            rp_box_put(w, "\0\1\0", 3); /* ES_ID 1, no flags */
        }
        else if (d == 1) {
            rp_box_put(w, mp4_visual, sizeof(mp4_visual));
        }
    }
    rp_box_put(w, codec->extradata, len);
    rp_box_put(w, "\6\x80\x80\x80\1\2", 6); /* SLConfigDescriptor: MP4 */
    rp_box_end(w, box);
}

static void put_entry_box(struct rp_box_writer *w, const rp_index *index, const struct rp_box *box)
{
    switch (box->type) {
    case RP_FOURCC('b', 't', 'r', 't'):
    case RP_FOURCC('f', 'r', 'e', 'e'):
    case RP_FOURCC('s', 'k', 'i', 'p'): return;
    case RP_FOURCC('e', 's', 'd', 's'): put_esds(w, &index->codec); return;
    default: break;
    }
    rp_box_put32(w, (uint32_t)box->len + 8);
    rp_box_put32(w, box->type);
    rp_box_put(w, box->data, box->len);
}

/* ISO/IEC 14496-12, 8.5.2 and 12.1.3: what is not kept from the source has its template's value. */
static void put_entry_head(struct rp_box_writer *w, const rp_index *index)
{
    rp_box_put32(w, 0);
    rp_box_put32(w, index->entry_type);
    rp_box_zeros(w, 6);
    rp_box_put16(w, 1); /* data_reference_index */
    rp_box_zeros(w, 16);
    rp_box_put16(w, (uint32_t)index->codec.width);
    rp_box_put16(w, (uint32_t)index->codec.height);
    rp_box_put32(w, 0x480000); /* 72 dpi */
    rp_box_put32(w, 0x480000);
    rp_box_zeros(w, 4);
    rp_box_put16(w, 1); /* frames per sample */
    rp_box_zeros(w, 32);
    rp_box_put(w, index->entry + 74, 2); /* depth: alpha or not */
    rp_box_put16(w, 0xFFFF);
}

rp_status rp_sample_entry(const rp_index *index, uint8_t **out, size_t *len, struct rp_error *err)
{
    struct rp_box_writer w = {.data = NULL};
    const struct rp_box entry = {
        .type = index->entry_type, .data = index->entry, .len = index->entry_len};
    struct rp_box_cursor cursor = rp_box_open(&entry, RP_ENTRY_HEAD);
    struct rp_box box;
    rp_status status;
    put_entry_head(&w, index);
    while ((status = rp_box_next(&cursor, &box, err)) == RP_OK) {
        put_entry_box(&w, index, &box);
    }
    rp_box_end(&w, 0);
    if (status == RP_END && !w.failed) {
        *out = w.data;
        *len = w.len;
        return RP_OK;
    }
    status = status < 0
                 ? status
                 : rp_error_set(err, RP_E_NOMEM, "out of memory for a sample entry of %zu bytes",
                                index->entry_len);
    rp_box_writer_free(&w);
    return status;
}

static void put_ftyp(struct rp_box_writer *w, enum rp_codec codec)
{
    size_t ftyp = rp_box_begin(w, "ftyp");
    rp_box_put(w, "isom", 4);
    rp_box_put32(w, 0x200);
    rp_box_put(w, "isomiso2mp41", 12);
    if (codec == RP_CODEC_H264) {
        rp_box_put(w, "avc1", 4);
    }
    else if (codec == RP_CODEC_AV1) {
        rp_box_put(w, "av01", 4);
    }
    rp_box_end(w, ftyp);
}

static void put_matrix(struct rp_box_writer *w)
{
    static const uint32_t straight[] = {0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000};
    for (size_t i = 0; i < sizeof(straight) / sizeof(straight[0]); i++) {
        rp_box_put32(w, straight[i]);
    }
}

static void put_mvhd(struct rp_box_writer *w, const struct rp_movie_facts *facts)
{
    size_t mvhd = rp_box_begin_full(w, "mvhd", 1, 0);
    rp_box_zeros(w, 16); /* creation and modification time: unknown */
    rp_box_put32(w, facts->timescale);
    rp_box_put64(w, facts->duration);
    rp_box_put32(w, 0x10000); /* rate */
    rp_box_put16(w, 0x100);   /* volume */
    rp_box_zeros(w, 10);
    put_matrix(w);
    rp_box_zeros(w, 24);
    rp_box_put32(w, 2); /* next track */
    rp_box_end(w, mvhd);
}

static void put_tkhd(struct rp_box_writer *w, const struct rp_movie_facts *facts)
{
    size_t tkhd = rp_box_begin_full(w, "tkhd", 1, 3); /* enabled, part of the movie */
    rp_box_zeros(w, 16);
    rp_box_put32(w, 1); /* track */
    rp_box_zeros(w, 4);
    rp_box_put64(w, facts->duration);
    rp_box_zeros(w, 16);
    put_matrix(w);
    rp_box_put32(w, facts->width << 16);
    rp_box_put32(w, facts->height << 16);
    rp_box_end(w, tkhd);
}

static void put_edits(struct rp_box_writer *w, const struct rp_movie_facts *facts)
{
    size_t edts = rp_box_begin(w, "edts");
    size_t elst = rp_box_begin_full(w, "elst", 1, 0);
    rp_box_put32(w, 1);
    rp_box_put64(w, facts->duration);
    rp_box_put64(w, facts->media_time);
    rp_box_put32(w, 0x10000); /* rate */
    rp_box_end(w, elst);
    rp_box_end(w, edts);
}

static void put_media_headers(struct rp_box_writer *w, const struct rp_movie_facts *facts)
{
    size_t mdhd = rp_box_begin_full(w, "mdhd", 1, 0);
    rp_box_zeros(w, 16);
    rp_box_put32(w, facts->timescale);
    rp_box_put64(w, facts->duration);
    rp_box_put16(w, 0x55C4); /* language: undetermined */
    rp_box_put16(w, 0);
    rp_box_end(w, mdhd);
    size_t hdlr = rp_box_begin_full(w, "hdlr", 0, 0);
    rp_box_zeros(w, 4);
    rp_box_put(w, "vide", 4);
    rp_box_zeros(w, 12);
    rp_box_put(w, "VideoHandler", 13);
    rp_box_end(w, hdlr);
}

static void put_media_information(struct rp_box_writer *w)
{
    size_t vmhd = rp_box_begin_full(w, "vmhd", 0, 1);
    rp_box_zeros(w, 8);
    rp_box_end(w, vmhd);
    size_t dinf = rp_box_begin(w, "dinf");
    size_t dref = rp_box_begin_full(w, "dref", 0, 0);
    rp_box_put32(w, 1);
    rp_box_end(w, rp_box_begin_full(w, "url ", 0, 1)); /* the samples lie in this file */
    rp_box_end(w, dref);
    rp_box_end(w, dinf);
}

void rp_movie_begin(struct rp_box_writer *w, const struct rp_movie_facts *facts,
                    struct rp_movie_boxes *open)
{
    put_ftyp(w, facts->codec);
    open->moov = rp_box_begin(w, "moov");
    put_mvhd(w, facts);
    open->trak = rp_box_begin(w, "trak");
    put_tkhd(w, facts);
    if (facts->media_time > 0) {
        put_edits(w, facts);
    }
    open->mdia = rp_box_begin(w, "mdia");
    put_media_headers(w, facts);
    open->minf = rp_box_begin(w, "minf");
    put_media_information(w);
}

void rp_movie_end(struct rp_box_writer *w, const struct rp_movie_boxes *open)
{
    rp_box_end(w, open->minf);
    rp_box_end(w, open->mdia);
    rp_box_end(w, open->trak);
    rp_box_end(w, open->moov);
}
