/* What a loader keeps between work items: indexes of files, pictures of recent reads, pictures
 * for batches to come. All guarded by the loader's lock. */
#ifndef RP_POOL_KEEP_PRIV_H
#define RP_POOL_KEEP_PRIV_H

#include "decode/decode.h"
#include "demux/demux.h"

#include <stdbool.h>
#include <stdint.h>

struct want;

enum index_state { INDEX_NONE, INDEX_QUEUED, INDEX_WORKING, INDEX_READY, INDEX_FAILED };

struct index_entry {
    enum index_state state;
    int32_t pins; /* plans and runs that use it */
    uint64_t last_use;
    uint64_t era; /* WORKING: since this one of the loader's */
    rp_index *index;
    uint32_t *sums;         /* of the index's samples, or NULL */
    struct rp_error *error; /* when FAILED */
};

struct index_table {
    struct index_entry *entry; /* n_files */
    int32_t *queue;            /* ring of files to index, n_files places */
    int32_t queue_head, queue_len;
    int64_t bytes;
    uint64_t clock;
};

struct cached_frame {
    struct cached_frame *next_hash, *newer, *older;
    rp_frame *frame;
    int64_t sample;
    int32_t file;
};

struct frame_cache {
    struct cached_frame **bucket; /* n_buckets, a power of two; NULL: cache off */
    struct cached_frame *newest, *oldest;
    int64_t bytes, cap;
    uint32_t n_buckets;
};

/* A decoded picture that waits for batches which are not due yet. */
struct parked {
    struct parked *next_hash; /* bucket chain; free list; list of the dead */
    struct want *wants;
    rp_frame *frame;
    int64_t sample;
    int32_t file;
    int32_t at; /* place in the park's list */
};

struct aged {
    uint64_t use; /* ticket of the first batch that wants the picture */
    struct parked *entry;
};

struct park {
    struct parked **bucket;     /* n_buckets, a power of two */
    struct parked **all;        /* n entries in no order */
    struct aged *aged;          /* cap_n places to sort in */
    struct parked *free, *dead; /* dead: their pictures are given back without the lock */
    uint32_t n_buckets;
    int32_t n, cap_n;
    int64_t bytes, cap;
};

#endif
