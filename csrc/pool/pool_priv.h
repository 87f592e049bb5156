/* Inside of the pool. Everything reachable from rp_loader that is not marked immutable is guarded
 * by its lock, but what a worker owns while it runs an item. */
#ifndef RP_POOL_POOL_PRIV_H
#define RP_POOL_POOL_PRIV_H

#include "base/memory.h"
#include "base/thread.h"
#include "decode/decode.h"
#include "demux/demux.h"
#include "fetch/fetch.h"
#include "pool/pool.h"

#define RP_NO_DEADLINE INT64_MAX

struct batch;
struct run;

/* One picture to be written to one place. */
struct want {
    struct batch *batch;
    struct want *next; /* in its run */
    void *to;
    int64_t sample; /* decode index in the file */
    int64_t pts;    /* ticks */
    int64_t row;    /* row whose picture it is, for messages */
    double time;    /* queried seconds */
    int32_t camera;
    int32_t order; /* place in the batch: errors of the lowest place win */
    int32_t file;
    rp_frame *cached; /* found in the frame cache while planning */
    bool written;
};

/* All wants that start decoding at one key of one file. */
struct run {
    struct run *next_hash; /* bucket chain; free list */
    struct want *wants;
    uint64_t first_ticket; /* of the first batch in need */
    int64_t key;           /* decode index of the start key */
    int32_t file;
    int32_t heap_at; /* place in the heap, -1: being worked on */
    bool keep;       /* decoded pictures go to the frame cache, none is skipped */
};

enum batch_state {
    BATCH_FREE,
    BATCH_QUEUED,   /* to be planned */
    BATCH_PLANNING, /* a worker plans it */
    BATCH_BLOCKED,  /* waits for a free block */
    BATCH_INDEXING, /* waits for indexes */
    BATCH_FILLING,  /* waits for its wants */
    BATCH_DONE
};

struct batch {
    struct batch *next; /* list of all batches */
    enum batch_state state;
    uint64_t ticket; /* ascending: order of need */
    bool stream;     /* belongs to the stream, else to a ticket */
    bool cancelled;
    bool may_grow; /* may map a new block */
    bool pinned;   /* its files' indexes are pinned */
    bool has_columns;
    int64_t pending; /* wants not written yet */
    struct want *want;
    int64_t n_wants, cap_wants;
    int64_t n;        /* samples */
    int64_t position; /* of its first sample in the stream */
    int64_t *rows;    /* n */
    double *times;    /* n seconds, or NULL: the rows' own */
    int64_t cap_rows;
    int32_t *files; /* n * cameras */
    int64_t cap_files;
    size_t *offsets; /* of the fields */
    rp_block *block;
    size_t bytes;
    int32_t error_order;
    struct rp_error error; /* error.code != 0: failed */
};

enum item_kind { ITEM_NONE, ITEM_PLAN, ITEM_INDEX, ITEM_RUN };

struct item {
    enum item_kind kind;
    struct batch *batch;
    struct run *run;
    int32_t file;
};

enum index_state { INDEX_NONE, INDEX_QUEUED, INDEX_WORKING, INDEX_READY, INDEX_FAILED };

struct index_entry {
    enum index_state state;
    int32_t pins; /* plans and runs that use it */
    uint64_t last_use;
    rp_index *index;
    struct rp_error *error; /* when FAILED */
};

struct index_table {
    struct index_entry *entry; /* n_files */
    int32_t *queue;            /* ring of files to index, n_files places */
    int32_t queue_head, queue_len;
    int32_t working; /* queued or worked on */
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

/* What one thread owns while it runs items. */
struct worker {
    rp_loader *loader;
    rp_thread thread;
    rp_decoder_cache *decoders;
    rp_scratch *scratch;
    uint8_t *bytes; /* file bytes of the run at work */
    size_t cap_bytes;
    struct want **sorted; /* wants of the run at work, by pts */
    size_t cap_sorted;
    enum item_kind doing; /* for stall messages; atomic */
};

struct rp_loader {
    /* immutable: */
    const struct rp_dataset_desc *desc;
    struct rp_loader_options options;
    uint64_t fork_generation;
    int64_t wants_per_sample;
    rp_files *files;
    rp_arena *arena;
    struct rp_counters counters; /* atomics */
    rp_lock lock;
    rp_cond work; /* waited on by workers; signalled when items or room appear */
    rp_cond done; /* waited on by callers; signalled when a batch or an item ends */
    /* guarded by lock: */
    struct batch *batches; /* all, in flight or free */
    struct run **heap;     /* by (first_ticket, file, key) */
    int32_t heap_len, heap_cap;
    struct run **bucket; /* pending runs by (file, key); n_buckets a power of two */
    uint32_t n_buckets;
    struct run *free_runs;
    struct index_table indexes;
    struct frame_cache frames;
    const int64_t *stream_rows;
    int64_t stream_count, stream_at, stream_batch; /* stream_at: first row not admitted */
    int64_t stream_taken;                          /* samples handed over */
    int stream_in_flight;
    bool stream_drop_last, stream_on;
    uint64_t next_ticket;
    int64_t last_progress_ns;
    int busy;              /* items under way */
    int64_t block_limit;   /* blocks the stream may map without being asked again */
    int64_t blocks_mapped; /* by stream batches */
    uint64_t releases;     /* blocks that came back */
    bool closing, starting, caller_works;
    struct worker *workers;
    int n_workers;
};

#endif
