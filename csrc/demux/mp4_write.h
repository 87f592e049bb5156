/* Concatenating the video tracks of MP4 files without touching a coded picture: which bytes to
 * copy, and the boxes that stand before them (`ftyp`, `moov`, the head of `mdat`). Pure: no I/O.
 *
 * Use: rp_concat_add each source's index, rp_concat_finish, then write rp_concat_head followed by
 * the bytes of rp_concat_ranges. Equal sources give equal bytes.
 *
 * Times: pictures of a source keep their distances, exactly; sources follow each other without a
 * gap, the first at 0. Pictures that a source's edit list hides are copied too (others may need
 * them) and shown before and after its own; only then a gap lies between two sources. */
#ifndef RP_DEMUX_MP4_WRITE_H
#define RP_DEMUX_MP4_WRITE_H

#include "base/error.h"
#include "demux/demux.h"

#include <stddef.h>
#include <stdint.h>

typedef struct rp_concat rp_concat;

/* Where the pictures of a source are; times in ticks of rp_concat_timescale. */
struct rp_concat_part {
    int64_t frames;   /* pictures shown: rp_index_addressable */
    int64_t start;    /* time of the first one in the source; 0 unless the source starts late */
    int64_t offset;   /* its time in the output */
    int64_t duration; /* from the first one's start to the last one's end, > 0 */
};

/* Bytes of a source that come next in the output. */
struct rp_concat_range {
    int source; /* in the order of rp_concat_add */
    struct rp_byte_range bytes;
};

/* The sample entry as rp_concat writes it: what decoding needs, free of bit rates, encoder names
 * and padding. Sources with equal entries can be concatenated.
 * Owner: *out is the caller's (rp_free), untouched on failure. Thread: any. Blocks: never.
 * Errors: RP_E_FORMAT broken boxes in the entry; RP_E_NOMEM. */
RP_CHECKED rp_status rp_sample_entry(const rp_index *index, uint8_t **out, size_t *len,
                                     struct rp_error *err);

/* Owner: *out is the caller's. Thread: any. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_concat_new(rp_concat **out, struct rp_error *err);

/* Add the next source. Owner: *index is moved (nulled) on success, the caller's on failure; the
 * plan stays usable. Thread: one at a time. Blocks: never. Cost: O(samples).
 * Errors: RP_E_FORMAT a sample past the file's end ("truncated"), samples that overlap, no picture
 * shown, a picture without a key to start from; RP_E_UNSUPPORTED another sample entry than the
 * first source's, a picture without duration, several pictures at one time, a common timescale
 * >= 2^31, over 16 Mi samples; RP_E_NOMEM. */
RP_CHECKED rp_status rp_concat_add(rp_concat *concat, rp_index **index, struct rp_error *err);

/* Lay out the output; nothing may be added afterwards. At least one source was added.
 * Thread: one at a time. Blocks: never. Errors: RP_E_UNSUPPORTED times beyond what the boxes hold,
 * a `moov` over 64 MiB; RP_E_NOMEM. */
RP_CHECKED rp_status rp_concat_finish(rp_concat *concat, struct rp_error *err);

/* Results, after rp_concat_finish. Owner: borrowed from the plan. Thread: any. Blocks: never.
 * Errors: none. */
const uint8_t *rp_concat_head(const rp_concat *concat, size_t *len);
const struct rp_concat_range *rp_concat_ranges(const rp_concat *concat, size_t *count);
const struct rp_concat_part *rp_concat_parts(const rp_concat *concat, int *count);
/* Bytes of each sample of a source, in the order of the output. */
const uint32_t *rp_concat_sizes(const rp_concat *concat, int source, int64_t *count);
int64_t rp_concat_samples(const rp_concat *concat);    /* of all sources */
uint32_t rp_concat_timescale(const rp_concat *concat); /* ticks per second */
int64_t rp_concat_bytes(const rp_concat *concat);      /* of the whole output file */

/* Free and null. NULL or pointer to NULL: nothing. Thread: any. Blocks: never. */
void rp_concat_free(rp_concat **concat);

#endif
