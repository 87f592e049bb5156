/* Which bytes of an MP4 file hold which frames. Pure: no I/O, clock, lock or environment; input may
 * be hostile. Time is kept in integer ticks of the video track (`timescale` ticks per second).
 *
 * Use: rp_moov_find until it says where `moov` lies (reading the ranges it asks for), then
 * rp_index_parse on those bytes. An index is immutable: calls on it may run side by side. */
#ifndef RP_DEMUX_DEMUX_H
#define RP_DEMUX_DEMUX_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rp_byte_range {
    int64_t offset; /* bytes from the start of the file */
    int64_t len;    /* bytes, > 0 */
};

/* Search for the `moov` box. Zero it before the first call; read its fields never. */
struct rp_moov_search {
    int64_t at; /* offset of the next top-level box header to look at */
    int boxes;  /* top-level boxes seen, capped */
};

/* One step of the search. `data` holds the file's bytes [data_offset, data_offset + len).
 * Returns RP_OK: *moov is the box, header included; RP_AGAIN: read *need (inside the file,
 * 4 KiB of the head, later <= 1 MiB; past `mdat` that is usually all of `moov`)
 * and call again with those bytes; first call: len = 0 is allowed, it asks for the head.
 * Owner: everything is the caller's. Thread: any. Blocks: never. NULL: only err.
 * Errors: RP_E_FORMAT no moov, broken box; RP_E_UNSUPPORTED fragmented (moof), moov too large. */
RP_CHECKED rp_status rp_moov_find(struct rp_moov_search *search, const uint8_t *data,
                                  int64_t data_offset, size_t len, int64_t file_size,
                                  struct rp_byte_range *need, struct rp_byte_range *moov,
                                  struct rp_error *err);

enum rp_codec {
    RP_CODEC_AV1 = 1,
    RP_CODEC_H264 = 2,
    RP_CODEC_HEVC = 3,
    RP_CODEC_VP9 = 4,
    RP_CODEC_MPEG4 = 5
};

/* "av1", "h264", "hevc", "vp9", "mpeg4". Owner: constant. Thread: any. Blocks: never. */
const char *rp_codec_name(enum rp_codec codec);

/* What a decoder must know before its first packet. Pointers live as long as the index. */
struct rp_codec_params {
    enum rp_codec codec;
    int width, height;        /* pixels, from the sample entry */
    const uint8_t *extradata; /* payload of av1C/avcC/hvcC/vpcC or of esds' DecoderSpecificInfo */
    size_t extradata_len;
    bool has_colour;                 /* a `colr` box of type nclx or nclc is present */
    int primaries, transfer, matrix; /* its ISO 23091-2 numbers (= AVColor* numbers) */
    int full_range;                  /* 1 full, 0 limited, -1 not stated (nclc) */
    uint64_t hash;                   /* of all the above: equal parameters have equal hashes */
};

typedef struct rp_index rp_index;

/* One sample (coded picture) of the video track, by its position in decode order. */
struct rp_sample {
    int64_t offset;   /* bytes from the start of the file */
    uint32_t size;    /* bytes, > 0 */
    bool key;         /* sync sample */
    bool addressable; /* pts >= 0 and inside the edit */
    int64_t pts, dts; /* ticks, after edits; dts <= pts */
};

/* Parse a whole `moov` box (header included) into an index.
 * Owner: *out is the caller's (rp_index_free), untouched on failure; moov is borrowed for the call.
 * Thread: any. Blocks: never. Cost: O(samples). Limits: moov 64 MiB, 16 M samples, depth 8.
 * NULL: only err. Errors: RP_E_FORMAT, RP_E_UNSUPPORTED as in docs/formats.md; RP_E_NOMEM. */
RP_CHECKED rp_status rp_index_parse(const uint8_t *moov, size_t len, int64_t file_size,
                                    rp_index **out, struct rp_error *err);

/* Free and null. NULL or pointer to NULL: nothing. Thread: any. Blocks: never. */
void rp_index_free(rp_index **index);

/* Facts of the track. Owner: borrowed from the index. Thread: any. Blocks: never. Errors: none. */
const struct rp_codec_params *rp_index_codec(const rp_index *index);
int64_t rp_index_samples(const rp_index *index);     /* coded pictures */
int64_t rp_index_addressable(const rp_index *index); /* pictures that a time can name */
uint32_t rp_index_timescale(const rp_index *index);  /* ticks per second, > 0 */
int64_t rp_index_duration(const rp_index *index);    /* ticks, pts 0 to the last picture's end */
size_t rp_index_bytes(const rp_index *index);        /* memory it takes */

/* Read sample i in decode order, 0 <= i < rp_index_samples. Owner: *out is the caller's. Thread:
 * any. Blocks: never. Cost: O(1), amortised over ascending i. Errors: none (i is asserted). */
void rp_index_sample(const rp_index *index, int64_t i, struct rp_sample *out);

/* Find the picture shown nearest to time t (seconds, f64), ties to the earlier; accepted if the
 * distance is <= tolerance in f64 or in f32. *nearest (may be NULL) is that picture's time in
 * seconds, set on RP_E_TIMESTAMP too.
 * Owner: outputs are the caller's, *sample untouched on failure. Thread: any. Blocks: never.
 * Cost: O(log n). Errors: RP_E_TIMESTAMP beyond the tolerance (err->time, err->nearest are set), t
 * not finite, or two pictures share the pts; RP_E_FORMAT the picture lies past the file's end
 * ("truncated"). */
RP_CHECKED rp_status rp_index_find(const rp_index *index, double t, double tolerance,
                                   int64_t *sample, double *nearest, struct rp_error *err);

/* n-th addressable picture in presentation order, 0 <= n < rp_index_addressable, as its decode
 * index. Thread: any. Blocks: never. Cost: O(1). Errors: none (n is asserted). */
int64_t rp_index_nth(const rp_index *index, int64_t n);

/* The key sample from which decoding must start to show `sample` right: the key with the greatest
 * pts <= its pts and decode index <= its own. Owner: *key is the caller's. Thread: any. Blocks:
 * never. Cost: O(log keys). Errors: RP_E_FORMAT no such key; RP_E_UNSUPPORTED the distance exceeds
 * 4096 packets or 256 MiB (value and limit in the text). */
RP_CHECKED rp_status rp_index_start_key(const rp_index *index, int64_t sample, int64_t *key,
                                        struct rp_error *err);

/* Bytes to read for samples first..last (decode order, inclusive): *range covers samples
 * first..*covered, as many as follow each other in the file with gaps <= 64 KiB and a total of at
 * most 64 MiB (always at least `first`). Call again from *covered + 1 for the rest.
 * Owner: outputs are the caller's. Thread: any. Blocks: never. Errors: RP_E_FORMAT a sample lies
 * past the file's end. */
RP_CHECKED rp_status rp_index_range(const rp_index *index, int64_t first, int64_t last,
                                    int64_t *covered, struct rp_byte_range *range,
                                    struct rp_error *err);

#endif
