/* Inside demux: the box reader, what a track's boxes are gathered into, and the index itself. */
#ifndef RP_DEMUX_MP4_PRIV_H
#define RP_DEMUX_MP4_PRIV_H

#include "base/error.h"
#include "demux/demux.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_MAX_MOOV         (64 << 20) /* bytes */
#define RP_MAX_SAMPLES      (16 << 20)
#define RP_MAX_SAMPLE_BYTES (64u << 20)
#define RP_MAX_DEPTH        8 /* boxes inside each other, `moov` and sample entry included */
#define RP_MAX_GOP_PACKETS  4096
#define RP_MAX_GOP_BYTES    (256LL << 20)
#define RP_MAX_TICKS        (1LL << 60) /* magnitude of every time; sums of two cannot overflow */
#define RP_MAX_OFFSET       (1LL << 62) /* of a chunk; + 16 M samples of 64 MiB cannot overflow */

#define RP_ENTRY_HEAD 78 /* bytes of a VisualSampleEntry before its boxes */

#define RP_FOURCC(a, b, c, d) \
    ((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (uint32_t)(d))

/* One box: its payload, borrowed from the `moov` bytes. data == NULL: absent. */
struct rp_box {
    uint32_t type;
    size_t at; /* of the header, from the start of `moov` */
    const uint8_t *data;
    size_t len; /* bytes of payload */
};

/* The boxes still unread inside a parent. */
struct rp_box_cursor {
    const uint8_t *data;
    size_t len; /* bytes left */
    size_t at;  /* of data, from the start of `moov` */
};

struct rp_box_text {
    char s[5];
};

/* A box type as text, '.' for what does not print. Thread: any. Blocks: never. Errors: none. */
struct rp_box_text rp_box_name(uint32_t type);

/* The boxes in a payload, from byte `skip` <= box->len. Owner: borrowed. Thread: any. */
struct rp_box_cursor rp_box_open(const struct rp_box *box, size_t skip);

/* Take the next box: RP_OK or RP_END. Fewer than 8 zero bytes at the end are padding.
 * Thread: any. Blocks: never. Errors: RP_E_FORMAT a size below its header's or past the parent. */
RP_CHECKED rp_status rp_box_next(struct rp_box_cursor *cursor, struct rp_box *out,
                                 struct rp_error *err);

/* Check that the payload has at least `need` bytes. Thread: any. Errors: RP_E_FORMAT. */
RP_CHECKED rp_status rp_box_need(const struct rp_box *box, size_t need, struct rp_error *err);

/* Read the version byte of a full box and check its length: `need0` bytes of payload in version 0,
 * `need1` in version 1. Thread: any. Errors: RP_E_FORMAT short; RP_E_UNSUPPORTED version > 1. */
RP_CHECKED rp_status rp_box_version(const struct rp_box *box, size_t need0, size_t need1,
                                    int *version, struct rp_error *err);

/* A full box's table: a 32-bit count that ends at payload byte `head`, then entries of `entry`
 * bytes. Thread: any. Errors: RP_E_FORMAT the count is larger than the box. */
RP_CHECKED rp_status rp_box_table(const struct rp_box *box, size_t head, size_t entry,
                                  uint32_t *count, const uint8_t **entries, struct rp_error *err);

enum rp_track_box {
    RP_TB_TKHD,
    RP_TB_ELST,
    RP_TB_MDHD,
    RP_TB_HDLR,
    RP_TB_DREF,
    RP_TB_STSD,
    RP_TB_STTS,
    RP_TB_CTTS,
    RP_TB_STSS,
    RP_TB_STSZ,
    RP_TB_STZ2,
    RP_TB_STSC,
    RP_TB_STCO,
    RP_TB_CO64,
    RP_TB_COUNT
};

/* The boxes of one track, borrowed from the `moov` bytes. */
struct rp_track {
    struct rp_box box[RP_TB_COUNT];
    uint32_t doubled; /* type of a box that came twice, else 0 */
};

/* Consecutive samples of one duration. */
struct rp_time_run {
    int64_t dts;    /* of the first sample, ticks, before `shift` */
    uint32_t first; /* sample */
    uint32_t delta; /* ticks from each sample to the next */
};

/* Anchors at every 64th sample: from here any of the 64 is at most 63 additions away. */
struct rp_block {
    uint64_t offset; /* of its first sample in the file */
    uint64_t keys;   /* bit i: sample 64 * block + i is a sync sample */
    uint32_t chunk;  /* the break that its first sample belongs to */
    uint32_t run;    /* the time run that its first sample belongs to */
};

/* A place where samples stop following each other in the file. */
struct rp_break {
    uint32_t first;     /* sample */
    uint32_t offset_lo; /* of that sample in the file */
    uint32_t offset_hi;
};

struct rp_index {
    struct rp_codec_params codec; /* extradata lies in `entry` */
    uint8_t *entry;               /* [entry_len] payload of the sample entry */
    size_t entry_len;
    uint32_t entry_type;
    int64_t file_size; /* bytes */
    uint32_t timescale;
    uint32_t samples; /* n >= 1 */
    uint32_t blocks;  /* ceil(n / 64) */
    uint32_t runs;    /* >= 1 */
    uint32_t breaks;  /* >= 1 */
    uint32_t addressable;
    uint32_t first_shown; /* without `shown`: addressable samples are first_shown.. in order */
    uint32_t largest;     /* bytes of the largest sample */
    bool keys_ascend;     /* pts of the keys rise in decode order */
    int64_t shift;        /* added to every pts: edits, ticks */
    int64_t dts_shift;    /* added to every dts: `shift` - the largest negative ctts */
    int64_t shown_from, shown_to; /* addressable: shown_from <= pts < shown_to, ticks */
    int64_t duration;             /* ticks */
    size_t bytes;                 /* of all arrays */
    uint32_t *sizes;              /* [samples] bytes, 1..64 MiB */
    struct rp_block *block;       /* [blocks] */
    struct rp_time_run *run;      /* [runs], first ascending from 0 */
    struct rp_break *brk;         /* [breaks], first ascending from 0 */
    int32_t *ctts;                /* [samples] ticks, or NULL */
    uint32_t *shown; /* [addressable] samples by (pts, decode order); NULL when ctts is */
};

/* Fill codec, its hash and the sample entry from `stsd`. Owner: the entry becomes the index's.
 * Thread: any. Errors: RP_E_FORMAT, RP_E_UNSUPPORTED (docs/formats.md), RP_E_NOMEM. */
RP_CHECKED rp_status rp_codec_parse(const struct rp_box *stsd, rp_index *index,
                                    struct rp_error *err);

/* Fill the tables from stsz, stsc, stco/co64, stss, stts and ctts. timescale, file_size, shift and
 * the edit (shown_from, shown_to) stand in the index. Owner: the arrays become the index's, on
 * failure too. Thread: any. Errors: RP_E_FORMAT, RP_E_UNSUPPORTED (docs/formats.md), RP_E_NOMEM. */
RP_CHECKED rp_status rp_tables_build(const struct rp_track *track, rp_index *index,
                                     struct rp_error *err);

/* Allocate n * size zeroed bytes and count them in the index. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_index_alloc(rp_index *index, size_t n, size_t size, void **out,
                                    struct rp_error *err);

/* pts of sample i < samples, in ticks after edits. Thread: any. Blocks: never. Errors: none. */
int64_t rp_index_pts(const rp_index *index, uint32_t i);

/* Running sum of durations up to sample i, in ticks before any shift; *delta (may be NULL) is the
 * sample's own duration. Thread: any. Blocks: never. Errors: none. */
int64_t rp_index_decode_time(const rp_index *index, uint32_t i, uint32_t *delta);

#endif
