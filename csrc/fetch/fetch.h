/* Bytes of the dataset's files, local or behind http; a file is known by its number.
 * At the end: making a new file out of local ones. */
#ifndef RP_FETCH_FETCH_H
#define RP_FETCH_FETCH_H

#include "base/error.h"
#include "fetch/http_client.h"
#include "fetch/node_cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rp_files rp_files;

/* Register n paths (copied). Nothing is opened. At most max_open (>= 1) descriptors are kept, least
 * recently used closed first. Owner: *out is the caller's. Thread: any. Blocks: never.
 * Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_files_new(const char *const *paths, int n, int max_open, rp_files **out,
                                  struct rp_error *err);

/* A file behind http or https; http.url NULL: the file is local. */
struct rp_remote_file {
    struct rp_http_file http;
    rp_http_client *client; /* NULL: the network is switched off */
    rp_node_cache *cache;   /* NULL: none */
    const char *key;        /* its name there */
};

/* What reads of remote files came to. Bytes. */
struct rp_remote_stats {
    int64_t wanted, fetched, cached; /* asked for; from the network; from the node cache */
    int64_t waits_ns;                /* for another process that was fetching the same */
};

/* Register files of which some are remote (remote[n], may be NULL: none is). For these the path is
 * what messages say; rp_files_size and rp_files_read of them block on the network and have the
 * errors of rp_http_read as well, RP_E_UNSUPPORTED for a file of more than 64 MiB of a server
 * without ranges, RP_E_OFFLINE, and RP_E_CLOSED after rp_files_interrupt.
 * Owner: *out is the caller's; paths are copied, remote and all it points to are borrowed until the
 * end. Thread: any. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_files_new_remote(const char *const *paths, int n, int max_open,
                                         const struct rp_remote_file *remote, rp_files **out,
                                         struct rp_error *err);

/* Whether file i is remote. Thread: any. Blocks: never. */
bool rp_files_is_remote(const rp_files *files, int i);

/* Size of a remote file that can only be read whole, which shows when its size is asked for; else
 * 0. Thread: any. Blocks: never. */
int64_t rp_files_whole(const rp_files *files, int i);

/* End the network reads under way and to come, within a second. Thread: any. Blocks: never. */
void rp_files_interrupt(rp_files *files);

/* Since the files were registered. Thread: any. Blocks: never. */
void rp_files_remote_stats(const rp_files *files, struct rp_remote_stats *out);

/* Path of file i. Owner: borrowed. Thread: any. Blocks: never. */
const char *rp_files_path(const rp_files *files, int i);

/* Size in bytes. The first look at a file pins its size and modification time.
 * Owner: *size is the caller's. Thread: any. Blocks: on the disk. Errors: RP_E_NOT_FOUND, RP_E_IO,
 * RP_E_CHANGED size or time differ from the first look. */
RP_CHECKED rp_status rp_files_size(rp_files *files, int i, int64_t *size, struct rp_error *err);

/* Size and modification time (ns since 1970) as pinned by the first look, which this may be.
 * Owner: outputs are the caller's. Thread: any. Blocks: on the disk. Errors: as rp_files_size. */
RP_CHECKED rp_status rp_files_version(rp_files *files, int i, int64_t *size, int64_t *mtime_ns,
                                      struct rp_error *err);

/* Read exactly len bytes at offset into to. Owner: to is the caller's. Thread: any. Blocks: on the
 * disk. Errors: as rp_files_size; RP_E_FORMAT the file ends before offset + len. */
RP_CHECKED rp_status rp_files_read(rp_files *files, int i, int64_t offset, int64_t len, uint8_t *to,
                                   struct rp_error *err);

/* Read several parts of file i that lie together. RP_AGAIN: meanwhile another process brought some
 * of it into the node cache; ask for the rest. Owner: to is the caller's. Thread: any. Blocks,
 * errors: as rp_files_read. */
RP_CHECKED rp_status rp_files_read_parts(rp_files *files, int i, int64_t offset, int64_t len,
                                         uint8_t *to, struct rp_error *err);

/* Whether file i has a node cache. Thread: any. Blocks: never. */
bool rp_files_has_cache(const rp_files *files, int i);

/* Read what the node cache has; false: not all of it. Owner: to is the caller's. Thread: any.
 * Blocks: on the disk. */
bool rp_files_read_cached(rp_files *files, int i, int64_t offset, int64_t len, uint8_t *to);

/* Close all, free, null. NULL or pointer to NULL: nothing. No call is under way. Thread: any.
 * Blocks: never. */
void rp_files_free(rp_files **files);

/* In a forked child: close the inherited descriptors, touch nothing else of the parent's object.
 * Thread: any. Blocks: never. */
void rp_files_abandon(rp_files *files);

/* A file in the making: its bytes come in order, under another name in the same folder; it has its
 * own name once it is whole and on the disk. */
typedef struct rp_output rp_output;

/* Begin a file of `size` bytes, all of them reserved where the file system can. What an earlier
 * process left unfinished is not touched.
 * Owner: *out is the caller's until commit or abandon, untouched on failure. Thread: any.
 * Blocks: on the disk. Errors: RP_E_NOT_FOUND no such folder; RP_E_IO no space, no permission
 * (err->sys is the errno; err->file `path`); RP_E_NOMEM. */
RP_CHECKED rp_status rp_output_open(const char *path, int64_t size, rp_output **out,
                                    struct rp_error *err);

/* Append len bytes. Thread: one at a time. Blocks: on the disk. Errors: RP_E_IO. */
RP_CHECKED rp_status rp_output_write(rp_output *output, const void *data, size_t len,
                                     struct rp_error *err);

/* Sum up what is appended from now on: n pieces of sizes[k] bytes; sums[k] is the CRC-32C of piece
 * k once its last byte was appended. Replaces an earlier call. Owner: both are the caller's and
 * outlive the pieces. Thread: one at a time. Blocks: never. Errors: none. */
void rp_output_sum(rp_output *output, const uint32_t *sizes, int64_t n, uint32_t *sums);

/* Append the bytes [offset, offset + len) of file i.
 * Thread: one at a time. Blocks: on the disk. Errors: RP_E_IO; as rp_files_read for the source. */
RP_CHECKED rp_status rp_output_copy(rp_output *output, rp_files *files, int i, int64_t offset,
                                    int64_t len, struct rp_error *err);

/* Bring the bytes to the disk and give the file its name, in the place of one that has it. With
 * `later` the disk is only set to work on them: the caller syncs file and folder before anybody
 * relies on either. Frees and nulls, on failure too: then nothing is left behind. Thread: any.
 * Blocks: on the disk. Errors: RP_E_IO; RP_E_FORMAT not `size` bytes were appended. */
RP_CHECKED rp_status rp_output_commit(rp_output **output, bool later, struct rp_error *err);

/* Remove what was written, free, null. NULL or pointer to NULL: nothing. Thread: any. Blocks: on
 * the disk. */
void rp_output_abandon(rp_output **output);

#endif
