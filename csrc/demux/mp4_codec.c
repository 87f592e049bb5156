/* The sample description: which codec, which extradata, which colour tags. */
#include "demux/mp4_priv.h"

#include "base/bytes.h"
#include "base/memory.h"

#include <string.h>

struct entry_kind {
    uint32_t type;   /* of the sample entry */
    uint32_t config; /* box that holds the extradata */
    enum rp_codec codec;
    bool config_needed;
};

static const struct entry_kind kinds[] = {
    {RP_FOURCC('a', 'v', '0', '1'), RP_FOURCC('a', 'v', '1', 'C'), RP_CODEC_AV1, true},
    {RP_FOURCC('a', 'v', 'c', '1'), RP_FOURCC('a', 'v', 'c', 'C'), RP_CODEC_H264, true},
    {RP_FOURCC('a', 'v', 'c', '3'), RP_FOURCC('a', 'v', 'c', 'C'), RP_CODEC_H264, true},
    {RP_FOURCC('h', 'v', 'c', '1'), RP_FOURCC('h', 'v', 'c', 'C'), RP_CODEC_HEVC, true},
    {RP_FOURCC('h', 'e', 'v', '1'), RP_FOURCC('h', 'v', 'c', 'C'), RP_CODEC_HEVC, true},
    {RP_FOURCC('v', 'p', '0', '9'), RP_FOURCC('v', 'p', 'c', 'C'), RP_CODEC_VP9, false},
    {RP_FOURCC('m', 'p', '4', 'v'), RP_FOURCC('e', 's', 'd', 's'), RP_CODEC_MPEG4, true},
};

const char *rp_codec_name(enum rp_codec codec)
{
    switch (codec) {
    case RP_CODEC_AV1: return "av1";
    case RP_CODEC_H264: return "h264";
    case RP_CODEC_HEVC: return "hevc";
    case RP_CODEC_VP9: return "vp9";
    case RP_CODEC_MPEG4: return "mpeg4";
    }
    return "unknown";
}

/* Take the header of an MPEG-4 descriptor (tag, length in 7-bit groups); the cursor moves to its
 * payload and *len is the payload's. */
static rp_status take_descriptor(const struct rp_box *box, size_t *pos, int tag, size_t *len,
                                 struct rp_error *err)
{
    size_t at = *pos;
    size_t size = 0;
    if (at >= box->len || box->data[at] != tag) {
        RP_FAIL(err, RP_E_FORMAT, "esds at byte %zu of moov lacks descriptor %d", box->at, tag);
    }
    at++;
    for (int i = 0;; i++) {
        if (i == 4 || at >= box->len) {
            RP_FAIL(err, RP_E_FORMAT, "esds at byte %zu of moov has a broken length", box->at);
        }
        uint8_t group = box->data[at++];
        size = size << 7 | (group & 0x7F);
        if ((group & 0x80) == 0) {
            break;
        }
    }
    if (size > box->len - at) {
        RP_FAIL(err, RP_E_FORMAT, "esds at byte %zu of moov: descriptor %d of %zu bytes, %zu left",
                box->at, tag, size, box->len - at);
    }
    *pos = at;
    *len = size;
    return RP_OK;
}

/* ISO/IEC 14496-1: ES_Descriptor > DecoderConfigDescriptor > DecoderSpecificInfo. */
static rp_status read_esds(const struct rp_box *box, const uint8_t **data, size_t *len,
                           struct rp_error *err)
{
    size_t pos = 4;
    size_t size;
    RP_TRY(rp_box_need(box, pos, err));
    RP_TRY(take_descriptor(box, &pos, 3, &size, err));
    RP_TRY(rp_box_need(box, pos + 3, err));
    uint8_t flags = box->data[pos + 2];
    pos += 3;
    pos += flags & 0x80 ? 2 : 0;
    if (flags & 0x40) {
        RP_TRY(rp_box_need(box, pos + 1, err));
        pos += 1 + (size_t)box->data[pos];
    }
    pos += flags & 0x20 ? 2 : 0;
    RP_TRY(take_descriptor(box, &pos, 4, &size, err));
    RP_TRY(rp_box_need(box, pos + 13, err));
    if (box->data[pos] != 0x20) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "unknown codec: mp4v with object type 0x%02x",
                box->data[pos]);
    }
    if (size <= 13) {
        return RP_OK; /* no DecoderSpecificInfo: the headers stand in the stream */
    }
    pos += 13;
    RP_TRY(take_descriptor(box, &pos, 5, len, err));
    *data = box->data + pos;
    return RP_OK;
}

/* Numbers outside ISO 23091-2 as known to decoders mean "unspecified". */
static int tag_or_unspecified(uint32_t value, uint32_t highest)
{
    return value <= highest ? (int)value : 2;
}

static rp_status read_colr(const struct rp_box *box, struct rp_codec_params *codec,
                           struct rp_error *err)
{
    RP_TRY(rp_box_need(box, 4, err));
    uint32_t kind = rp_be32(box->data);
    bool nclx = kind == RP_FOURCC('n', 'c', 'l', 'x');
    if (!nclx && kind != RP_FOURCC('n', 'c', 'l', 'c')) {
        return RP_OK; /* an ICC profile: decoders and LeRobot ignore it */
    }
    RP_TRY(rp_box_need(box, nclx ? 11 : 10, err));
    codec->has_colour = true;
    codec->primaries = tag_or_unspecified(rp_be16(box->data + 4), 22);
    codec->transfer = tag_or_unspecified(rp_be16(box->data + 6), 18);
    codec->matrix = tag_or_unspecified(rp_be16(box->data + 8), 14);
    codec->full_range = nclx ? box->data[10] >> 7 : -1;
    return RP_OK;
}

static void hash_bytes(uint64_t *hash, const void *data, size_t len)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < len; i++) { /* FNV-1a */
        *hash = (*hash ^ bytes[i]) * 0x100000001B3u;
    }
}

static uint64_t hash_params(const struct rp_codec_params *codec)
{
    const int32_t numbers[] = {(int32_t)codec->codec, codec->width,     codec->height,
                               codec->has_colour,     codec->primaries, codec->transfer,
                               codec->matrix,         codec->full_range};
    uint64_t hash = 0xCBF29CE484222325u;
    hash_bytes(&hash, numbers, sizeof(numbers));
    hash_bytes(&hash, codec->extradata, codec->extradata_len);
    return hash;
}

static const struct entry_kind *find_kind(uint32_t type)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i].type == type) {
            return &kinds[i];
        }
    }
    return NULL;
}

/* Read the boxes behind a sample entry's fixed part; *config gets the codec's box. */
static rp_status read_entry_boxes(const struct rp_box *entry, const struct entry_kind *kind,
                                  struct rp_box *config, struct rp_codec_params *codec,
                                  struct rp_error *err)
{
    struct rp_box_cursor cursor = rp_box_open(entry, RP_ENTRY_HEAD);
    struct rp_box box;
    rp_status status;
    while ((status = rp_box_next(&cursor, &box, err)) == RP_OK) {
        if (box.type == kind->config) {
            if (config->data != NULL) {
                RP_FAIL(err, RP_E_FORMAT, "two boxes '%s' in one sample entry",
                        rp_box_name(box.type).s);
            }
            *config = box;
        }
        else if (box.type == RP_FOURCC('c', 'o', 'l', 'r')) {
            RP_TRY(read_colr(&box, codec, err));
        }
        else if (box.type == RP_FOURCC('s', 'i', 'n', 'f')) {
            RP_FAIL(err, RP_E_UNSUPPORTED, "encrypted video (box 'sinf')");
        }
    }
    return status == RP_END ? RP_OK : status;
}

static rp_status take_entry(const struct rp_box *stsd, struct rp_box *entry,
                            const struct entry_kind **kind, struct rp_error *err)
{
    uint32_t count;
    const uint8_t *entries;
    RP_TRY(rp_box_table(stsd, 8, 8, &count, &entries, err));
    if (count > 1) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "%u sample descriptions in one track, 1 is supported",
                count);
    }
    struct rp_box_cursor cursor = rp_box_open(stsd, 8);
    rp_status status = rp_box_next(&cursor, entry, err);
    if (status < 0) {
        return status;
    }
    if (count == 0 || status == RP_END) {
        RP_FAIL(err, RP_E_FORMAT, "stsd at byte %zu of moov is empty", stsd->at);
    }
    if (entry->type == RP_FOURCC('e', 'n', 'c', 'v')) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "encrypted video (sample entry 'encv')");
    }
    *kind = find_kind(entry->type);
    if (*kind == NULL) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "unknown codec: sample entry '%s'",
                rp_box_name(entry->type).s);
    }
    return rp_box_need(entry, RP_ENTRY_HEAD, err);
}

rp_status rp_codec_parse(const struct rp_box *stsd, rp_index *index, struct rp_error *err)
{
    struct rp_codec_params *codec = &index->codec;
    struct rp_box entry;
    const struct entry_kind *kind = NULL;
    RP_TRY(take_entry(stsd, &entry, &kind, err));
    codec->codec = kind->codec;
    codec->width = (int)rp_be16(entry.data + 24);
    codec->height = (int)rp_be16(entry.data + 26);
    if (codec->width == 0 || codec->height == 0) {
        RP_FAIL(err, RP_E_FORMAT, "picture size %d x %d", codec->width, codec->height);
    }
    codec->primaries = codec->transfer = codec->matrix = 2;
    codec->full_range = -1;
    struct rp_box config = {.data = NULL};
    RP_TRY(read_entry_boxes(&entry, kind, &config, codec, err));
    if (config.data == NULL && kind->config_needed) {
        RP_FAIL(err, RP_E_FORMAT, "sample entry '%s' has no box '%s'", rp_box_name(entry.type).s,
                rp_box_name(kind->config).s);
    }
    const uint8_t *data = config.data;
    size_t len = config.len;
    if (config.data != NULL && kind->codec == RP_CODEC_MPEG4) {
        len = 0;
        RP_TRY(read_esds(&config, &data, &len, err));
    }
    void *copy;
    RP_TRY(rp_index_alloc(index, entry.len, 1, &copy, err));
    memcpy(copy, entry.data, entry.len);
    index->entry = copy;
    index->entry_len = entry.len;
    index->entry_type = entry.type;
    codec->extradata = index->entry + (len > 0 ? data - entry.data : 0);
    codec->extradata_len = len;
    codec->hash = hash_params(codec);
    return RP_OK;
}
