/* Inside fetch: descriptors of local files, and the error of a failed system call. */
#ifndef RP_FETCH_FETCH_PRIV_H
#define RP_FETCH_FETCH_PRIV_H

#include "fetch/fetch.h"

/* A descriptor of file i, which is the version that was first looked at; it stays open until
 * rp_files_release. Read it by position only. Owner: the files'. Thread: any. Blocks: on the disk.
 * Errors: as rp_files_size. */
RP_CHECKED rp_status rp_files_acquire(rp_files *files, int i, int *fd, struct rp_error *err);
void rp_files_release(rp_files *files, int i);

/* Record "cannot VERB the file" with errno `code`: RP_E_NOT_FOUND or RP_E_IO, which is returned.
 * Thread: any. Blocks: never. */
rp_status rp_fail_io(struct rp_error *err, const char *verb, const char *path, int code);

#endif
