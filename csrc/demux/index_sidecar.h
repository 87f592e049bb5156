/* Check sums of one video file, kept apart from it: CRC-32C of its header (`moov`) and of each
 * sample. Pure: no I/O; input may be hostile.
 *
 * Little-endian: "rpsums\x1a\n", version u32 = 1, sum u32 of all that follows, file size u64,
 * modification time i64 (ns), samples u64, header sum u32, path length u32, path, sums u32 each. */
#ifndef RP_DEMUX_INDEX_SIDECAR_H
#define RP_DEMUX_INDEX_SIDECAR_H

#include "base/error.h"
#include "base/memory.h"

#include <stddef.h>
#include <stdint.h>

#define RP_SIDECAR_MAX_PATH    4096       /* bytes */
#define RP_SIDECAR_MAX_SAMPLES (16 << 20) /* as many as an index takes */

/* What a sidecar says. Pointers are borrowed from its bytes. */
struct rp_sidecar {
    int64_t file_size; /* bytes, >= 0 */
    int64_t mtime_ns;  /* of the file, since 1970 */
    int64_t samples;   /* in decode order, 1..RP_SIDECAR_MAX_SAMPLES */
    uint32_t header;   /* sum of `moov` */
    const char *path;  /* the file's real path, not terminated */
    size_t path_len;   /* 1..RP_SIDECAR_MAX_PATH */
    const uint8_t *sums;
};

/* Read a sidecar. Owner: data is borrowed and outlives *out, which is untouched on failure. Thread:
 * any. Blocks: never. Cost: O(len), the sum of all bytes is checked. NULL: only err. Errors:
 * RP_E_FORMAT not a sidecar, another version, a length that is not what its fields say, a wrong
 * sum. */
RP_CHECKED rp_status rp_sidecar_parse(const uint8_t *data, size_t len, struct rp_sidecar *out,
                                      struct rp_error *err);

/* Sum of sample i, 0 <= i < samples. Thread: any. Blocks: never. Errors: none (i is asserted). */
uint32_t rp_sidecar_sum(const struct rp_sidecar *sidecar, int64_t i);

/* Write a sidecar: the fields of *facts (but `sums`), then sums[facts->samples]. Owner: *out is the
 * caller's (rp_buf_unref), untouched on failure; the rest is borrowed. Thread: any. Blocks: never.
 * NULL: only err. Errors: RP_E_ARG a field out of its range; RP_E_NOMEM. */
RP_CHECKED rp_status rp_sidecar_write(const struct rp_sidecar *facts, const uint32_t *sums,
                                      rp_buf **out, struct rp_error *err);

#endif
