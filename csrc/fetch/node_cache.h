/* Bytes of remote files kept on the node's own disk, shared by the processes of the node.
 *
 * A file is known by a key that says its content. Its object is a folder `DIR/v1/<aa>/<key>/`
 * (<aa>: the last two characters of the key): `data` is sparse and holds bytes at the offset they
 * have in the file, `map` is a list of 64-byte records that only grows: which ranges are there,
 * their CRC-32C, who is fetching which range. Bytes are written first, then their records; nothing
 * is synced or locked. So a process may be killed at any instruction: at most records are lost.
 * Each read checks the sum of every piece it touches.
 *
 * A cache that does not work is no failure of its caller: what cannot be read is a miss, what
 * cannot be written is not kept, and the reason can be asked for once. */
#ifndef RP_FETCH_NODE_CACHE_H
#define RP_FETCH_NODE_CACHE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define RP_NODE_KEY_MIN  8 /* characters, of a-z 0-9 - */
#define RP_NODE_KEY_MAX  80
#define RP_NODE_SIZE_MAX (1LL << 43) /* bytes of a file; nothing of longer ones is kept */

typedef struct rp_node_cache rp_node_cache;

struct rp_node_cache_stats {
    int64_t hits, hit_bytes, misses; /* of reads */
    int64_t stored_bytes;            /* written to the disk */
    int64_t declined_bytes;          /* not kept: no room, and nothing old enough to go */
    int64_t evicted;                 /* objects removed to make room */
    int64_t corrupt;                 /* pieces and maps found damaged */
    int64_t waits;                   /* claims that found another at it */
    int off;                         /* 0 on, 1 nothing new is kept, 2 not used at all */
};

/* A cache below folder `dir` (CACHE/obj; made when first needed, 0700) that holds at most about
 * max_bytes (> 0) of disk, counted over all processes. Touches no disk. Owner: *out is the
 * caller's. Thread: any. Blocks: never. Errors: RP_E_ARG, RP_E_NOMEM. */
RP_CHECKED rp_status rp_node_cache_new(const char *dir, int64_t max_bytes, rp_node_cache **out,
                                       struct rp_error *err);

/* Share (0 to 1, at first 0.1) of the file system that stays free whatever max_bytes says. Call
 * before other threads know the cache. Thread: one. Blocks: never. */
void rp_node_cache_keep_free(rp_node_cache *cache, double share);

/* Whether a key is RP_NODE_KEY_MIN to _MAX characters a-z, 0-9, '-'. Thread: any. Blocks: never. */
bool rp_node_cache_key_ok(const char *key);

/* Bytes [offset, offset + len) of the file of `size` bytes. RP_OK: all were there and sound.
 * RP_AGAIN: not all; `to` may hold anything. Nothing else: whatever is wrong is a miss, arguments
 * out of range too. Owner: to is the caller's. Thread: any. Blocks: on the disk. */
RP_CHECKED rp_status rp_node_cache_read(rp_node_cache *cache, const char *key, int64_t size,
                                        int64_t offset, int64_t len, uint8_t *to);

/* Ask for the right to fetch, after a read that missed. RP_OK: fetch (the other caches of this node
 * are told, for 30 s; claim again to prolong), then call _store or _release for the same range.
 * RP_AGAIN: another live cache is fetching some of these bytes, or has just stored them: read again
 * in a moment. Claims of one cache do not exclude each other. Thread: any. Blocks: on the disk. */
RP_CHECKED rp_status rp_node_cache_claim(rp_node_cache *cache, const char *key, int64_t size,
                                         int64_t offset, int64_t len);

/* Keep fetched bytes, if there is room, and end the claim on them. What is there already is not
 * written again. Owner: bytes is borrowed. Thread: any. Blocks: on the disk; eviction may be part
 * of it. */
void rp_node_cache_store(rp_node_cache *cache, const char *key, int64_t size, int64_t offset,
                         int64_t len, const uint8_t *bytes);

/* End the claim on bytes that will not be stored. Thread: any. Blocks: on the disk. */
void rp_node_cache_release(rp_node_cache *cache, const char *key, int64_t size, int64_t offset,
                           int64_t len);

/* True once, after the cache switched itself off: *why says what was wrong (code, text, errno,
 * file). Owner: *why is the caller's, untouched when false. Thread: any. Blocks: never. */
bool rp_node_cache_trouble(rp_node_cache *cache, struct rp_error *why);

/* Counts since the start. Owner: *out is the caller's. Thread: any. Blocks: never. */
void rp_node_cache_stats(rp_node_cache *cache, struct rp_node_cache_stats *out);

/* Fork generation that the cache belongs to. Thread: any. Blocks: never. */
uint64_t rp_node_cache_generation(const rp_node_cache *cache);

/* In a forked child: close the inherited descriptors, leave the rest of the parent's cache alone,
 * and put a new one with the same arguments in its place. Owner: *cache stays the caller's; on
 * failure it is NULL. Thread: one. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_node_cache_renew(rp_node_cache **cache, struct rp_error *err);

/* Close, free, null. NULL or pointer to NULL: nothing; a parent's cache: its descriptors are
 * closed, the rest is left alone. No call is under way. Thread: any. Blocks: never. */
void rp_node_cache_free(rp_node_cache **cache);

#endif
