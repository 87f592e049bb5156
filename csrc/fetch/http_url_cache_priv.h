/* Inside fetch: where redirects of files led, shared by the processes of a node (and by nodes,
 * where the folder is). One small file per file URL in DIR/<aa>/, named by the SHA-256 of that
 * URL: signed URL, its life, the file's size and versions; never a token. Whatever is wrong with a
 * file or a folder (damage, another owner, others may write) is a miss. */
#ifndef RP_FETCH_HTTP_URL_CACHE_PRIV_H
#define RP_FETCH_HTTP_URL_CACHE_PRIV_H

#include "fetch/http_state_priv.h"

#define RP_URL_LEASE_S 30 /* seconds that one process resolves while others wait */

/* Read the entry of file_url, if its target is fresh: found has its facts (fresh_ns of the
 * monotonic clock), target (RP_URL_MAX + 1 bytes) its URL. RP_AGAIN: none. Other codes: the folder
 * or a file in it cannot be used. Blocks: on the disk. */
RP_CHECKED rp_status rp_url_cache_load(const char *dir, const char *file_url,
                                       struct rp_http_known *found, char *target);

/* Keep where file_url leads; found as for load. Entries that ran out long ago are removed now and
 * then. Errors: RP_E_IO, RP_E_NOMEM, nothing is kept. Blocks: on the disk. */
RP_CHECKED rp_status rp_url_cache_store(const char *dir, const char *file_url,
                                        const struct rp_http_known *found, const char *target);

/* Forget the entry, if it still leads to target. Blocks: on the disk. */
void rp_url_cache_drop(const char *dir, const char *file_url, const char *target);

/* The right to resolve a file while other processes wait. */
struct rp_url_lease {
    bool held;
    uint64_t device, inode; /* of its file */
};

/* RP_OK: the caller resolves, and releases; RP_AGAIN: a live process does, since less than
 * RP_URL_LEASE_S. Other codes: there can be no leases here, the caller resolves. Blocks: on the
 * disk. */
RP_CHECKED rp_status rp_url_lease_take(const char *dir, const char *file_url,
                                       struct rp_url_lease *lease);
void rp_url_lease_release(const char *dir, const char *file_url, struct rp_url_lease *lease);

#endif
