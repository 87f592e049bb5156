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

/* A remote file as it is read. */
struct rp_remote_read {
    const struct rp_remote_file *file;
    struct rp_remote_stats *stats; /* counted into */
    struct rp_http_watch watch;
    int64_t size; /* bytes, as pinned */
    bool whole;   /* the server knows no ranges */
    bool parts;   /* of what another process fetches, some may do: RP_AGAIN */
};

/* Size of a remote file that is not known yet. Owner: outputs are the caller's. Thread: any.
 * Blocks: on the network. Errors: as rp_files_size of a remote file. */
RP_CHECKED rp_status rp_remote_size(const struct rp_remote_read *read, int64_t *size, bool *whole,
                                    struct rp_error *err);

/* Read a range of a remote file: from the node cache, else from the network into both. Owner: to is
 * the caller's. Thread: any. Blocks: on disk and network, and while another process is fetching
 * the same bytes. Errors: as rp_files_read of a remote file. */
RP_CHECKED rp_status rp_remote_bytes(const struct rp_remote_read *read, int64_t offset, int64_t len,
                                     uint8_t *to, struct rp_error *err);

/* Read a range that the node cache has; false: it has not. Owner: to is the caller's. Thread: any.
 * Blocks: on the disk. */
bool rp_remote_cached(const struct rp_remote_read *read, int64_t offset, int64_t len, uint8_t *to);

#endif
