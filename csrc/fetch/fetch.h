/* Bytes of the dataset's files. This version reads local files; a file is known by its number. */
#ifndef RP_FETCH_FETCH_H
#define RP_FETCH_FETCH_H

#include "base/error.h"

#include <stdint.h>

typedef struct rp_files rp_files;

/* Register n paths (copied). Nothing is opened. At most max_open (>= 1) descriptors are kept, least
 * recently used closed first. Owner: *out is the caller's. Thread: any. Blocks: never.
 * Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_files_new(const char *const *paths, int n, int max_open, rp_files **out,
                                  struct rp_error *err);

/* Path of file i. Owner: borrowed. Thread: any. Blocks: never. */
const char *rp_files_path(const rp_files *files, int i);

/* Size in bytes. The first look at a file pins its size and modification time.
 * Owner: *size is the caller's. Thread: any. Blocks: on the disk. Errors: RP_E_NOT_FOUND, RP_E_IO,
 * RP_E_CHANGED size or time differ from the first look. */
RP_CHECKED rp_status rp_files_size(rp_files *files, int i, int64_t *size, struct rp_error *err);

/* Read exactly len bytes at offset into to. Owner: to is the caller's. Thread: any. Blocks: on the
 * disk. Errors: as rp_files_size; RP_E_FORMAT the file ends before offset + len. */
RP_CHECKED rp_status rp_files_read(rp_files *files, int i, int64_t offset, int64_t len, uint8_t *to,
                                   struct rp_error *err);

/* Close all, free, null. NULL or pointer to NULL: nothing. No call is under way. Thread: any.
 * Blocks: never. */
void rp_files_free(rp_files **files);

/* In a forked child: close the inherited descriptors, touch nothing else of the parent's object.
 * Thread: any. Blocks: never. */
void rp_files_abandon(rp_files *files);

#endif
