/* Check sums of whole video files, and every picture decoded once: what `reelpool verify` does. */
#ifndef RP_POOL_SUMS_H
#define RP_POOL_SUMS_H

#include "base/error.h"
#include "base/memory.h"
#include "demux/demux.h"
#include "fetch/fetch.h"

#include <stdbool.h>
#include <stdint.h>

/* rp_video_index_read that also gives the CRC-32C of the `moov` box. Owner: *out is the caller's
 * (rp_index_free), *bytes_read (may be NULL) grows. Thread: any. Blocks: on the disk. Errors: as
 * rp_video_index_read. */
RP_CHECKED rp_status rp_video_header_read(rp_files *files, int i, rp_index **out,
                                          uint32_t *header_sum, int64_t *bytes_read,
                                          struct rp_error *err);

/* Read all of file i and write its sidecar (demux/index_sidecar.h) into *out. `path` is what the
 * sidecar will name: the file's real path. Owner: *out is the caller's (rp_buf_unref); path is
 * borrowed. Thread: any. Blocks: on the disk, for the whole file. Errors: as rp_video_index_read
 * and rp_files_read; RP_E_FORMAT a sample past the file's end; RP_E_ARG a path beyond 4096 bytes;
 * RP_E_NOMEM. err->file is set. */
RP_CHECKED rp_status rp_video_sums(rp_files *files, int i, const char *path, rp_buf **out,
                                   struct rp_error *err);

/* Read the check sums of file i from `place`, if they are of its present version. `index` and
 * `header_sum` are what rp_video_header_read gave. Owner: *out is the caller's (rp_free), one sum
 * per sample, untouched unless RP_OK. Thread: any. Blocks: on the disk. Returns RP_END: there are
 * none; RP_AGAIN: damaged, or of another version. Errors: RP_E_FORMAT the file's header is not the
 * one that was summed up; RP_E_NOMEM; as rp_files_size of file i. */
RP_CHECKED rp_status rp_video_sums_load(rp_files *files, int i, const char *place,
                                        const rp_index *index, uint32_t header_sum, uint32_t **out,
                                        struct rp_error *err);

/* A picture that a reader would not get. */
struct rp_bad_picture {
    int64_t sample;        /* its place in decode order */
    struct rp_error error; /* offset and length: the coded picture at which decoding failed */
};

/* What decoding a part of a file gave. Zero it before the first call. */
struct rp_picture_check {
    int64_t pictures;           /* looked at */
    struct rp_bad_picture *bad; /* by run, then place */
    int64_t n_bad, cap_bad;
};

/* Decode every addressable picture whose start key lies in decode order [first, end), each once,
 * as reads do: from its start key, and alone where a run fails, so that a picture is bad only if
 * it cannot be read by itself (of a failing run, the 64 nearest are tried alone). `strict`: by the
 * stricter of two libraries, where there is one (rp_decode_has_strict). Adds to *check.
 * Owner: check->bad is the caller's (rp_picture_check_free), on failure too; index is that of file
 * i, borrowed. Thread: any; enters the fork gate. Blocks: on the disk and for all the decoding.
 * Errors: what is no matter of content: RP_E_IO, RP_E_NOT_FOUND, RP_E_CHANGED, RP_E_NOMEM. */
RP_CHECKED rp_status rp_video_check_pictures(rp_files *files, int i, const rp_index *index,
                                             int64_t first, int64_t end, bool strict,
                                             struct rp_picture_check *check, struct rp_error *err);

/* Whether a strict check of this codec differs from the usual one. Thread: any. Blocks: never. */
bool rp_video_has_strict(enum rp_codec codec);

/* Free what the check holds. NULL: nothing. Thread: any. Blocks: never. */
void rp_picture_check_free(struct rp_picture_check *check);

#endif
