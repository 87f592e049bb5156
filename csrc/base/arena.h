/* Recycled, pre-faulted blocks of memory for batches: private mappings, shared ones that another
 * process may map too, or memory of another kind, that of a GPU.
 *
 * An arena is counted: it lives until its owner and the last block taken from it are gone, so a
 * batch may outlive its loader. A block is given out to one holder at a time and is never unmapped
 * while held. */
#ifndef RP_BASE_ARENA_H
#define RP_BASE_ARENA_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rp_arena rp_arena;

typedef struct rp_block {
    uint8_t *data; /* first usable byte, 4096-aligned; NULL: `memory` holds them */
    void *memory;  /* of the arena's source; NULL: it has none */
    size_t len;    /* usable bytes */
    int fd;        /* memory file to be mapped by others; -1: private block */
    uint64_t id;   /* unique in this process */
    rp_arena *arena;
    struct rp_block *next; /* guarded by the arena's lock */
    bool lent; /* guarded by the arena's lock: another process decides when it is free */
} rp_block;

/* Called without any lock held, by whichever thread gave a block back. Must not block for long. */
typedef void (*rp_arena_notify)(void *cookie);

/* New arena. `keep_bytes`: free blocks above this are unmapped. `shared`: blocks are memory files.
 * Owner: *out is the caller's (rp_arena_close). Thread: any. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_arena_new(size_t keep_bytes, bool shared, rp_arena **out,
                                  struct rp_error *err);

/* Where blocks of another kind come from. Called by whichever thread takes or gives back a block,
 * holding no lock. `end` comes last, with the arena. */
struct rp_arena_source {
    rp_status (*map)(void *cookie, size_t len, void **memory, struct rp_error *err);
    void (*unmap)(void *cookie, void *memory);
    void (*end)(void *cookie);
    void *cookie;
};

/* New arena of such blocks. Owner: *out is the caller's; *source is copied, and on failure nothing
 * of it was called. Thread: any. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_arena_new_from(size_t keep_bytes, const struct rp_arena_source *source,
                                       rp_arena **out, struct rp_error *err);

/* From now on a free block is reused only for the length it was mapped for (in pages), instead of
 * for lengths down to its half: for many blocks of few lengths. Call before the first
 * rp_arena_take. Thread: any. Blocks: never. */
void rp_arena_reuse_exactly(rp_arena *arena);

/* Set or remove (NULL) the notification. On return the old one is not running any more.
 * Thread: any. Blocks: while a notification runs. */
void rp_arena_on_release(rp_arena *arena, rp_arena_notify notify, void *cookie);

/* Take a block of at least len bytes: the smallest free one that is no more than twice as large
 * (rp_arena_reuse_exactly: one of that very length), else a new one if `may_grow`. New blocks are
 * touched page by page before they are handed out.
 * Owner: *out is the caller's (rp_block_release). Thread: any. Blocks: for the kernel to give
 * pages. Errors: RP_AGAIN nothing free and growing is not allowed; RP_E_NOMEM; RP_E_IO no memory
 * file; those of the arena's source. */
RP_CHECKED rp_status rp_arena_take(rp_arena *arena, size_t len, bool may_grow, rp_block **out,
                                   struct rp_error *err);

/* Give a block back and null the pointer. NULL or pointer to NULL: nothing. Thread: any.
 * Blocks: never. */
void rp_block_release(rp_block **block);

/* Hand a shared block to another process: it is free again once that process has called
 * rp_lent_release on its mapping. Owner: the block is the other process's now, *block is nulled.
 * Thread: any. Blocks: never. */
void rp_block_lend(rp_block **block);

/* Owner's end: no block is given out afterwards; memory goes with the last holder. Nulls the
 * pointer. Thread: any. Blocks: never. */
void rp_arena_close(rp_arena **arena);

struct rp_arena_stats {
    int64_t blocks; /* mapped now */
    int64_t free;   /* of those: waiting to be used again */
    int64_t bytes;  /* mapped now */
    int64_t grown;  /* blocks ever mapped */
};
/* Counts at this moment. Owner: *out is the caller's. Thread: any. Blocks: never. */
void rp_arena_stats(rp_arena *arena, struct rp_arena_stats *out);

/* A lent block as its receiver sees it. Maps fd (which stays the caller's to close).
 * Owner: *out is the caller's (rp_lent_unmap). Thread: any. Blocks: never. Errors: RP_E_IO;
 * RP_E_FORMAT the file is not a block of at least len bytes. */
typedef struct rp_lent {
    uint8_t *data;
    size_t len;
    uint8_t *base; /* mapping, header page included */
} rp_lent;
RP_CHECKED rp_status rp_lent_map(int fd, size_t len, rp_lent *out, struct rp_error *err);

/* Tell the owner that the block may be reused. Thread: any. Blocks: never. */
void rp_lent_release(const rp_lent *lent);
void rp_lent_unmap(rp_lent *lent);

#endif
