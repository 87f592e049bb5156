/* Inside of the pool. Everything reachable from rp_loader that is not marked immutable is guarded
 * by its lock, but what a worker owns while it runs an item. */
#ifndef RP_POOL_POOL_PRIV_H
#define RP_POOL_POOL_PRIV_H

#include "base/memory.h"
#include "base/thread.h"
#include "decode/decode.h"
#include "demux/demux.h"
#include "fetch/fetch.h"
#include "pool/feed.h"
#include "pool/gpu_priv.h"
#include "pool/keep_priv.h"
#include "pool/pool.h"
#include "pool/segments.h"

#define RP_NO_DEADLINE INT64_MAX

struct batch;
struct run;
struct worker;

/* One picture to be written to one place of a batch. Until its batch is due (has a block and is
 * being filled) a want only says that the picture will be needed: a run that decodes its GOP
 * parks the picture for it. Open: not settled yet; it then hangs on a run, or on a parked picture,
 * or on nothing (it is scheduled when its batch is due). */
struct want {
    struct batch *batch;
    struct want *next;     /* of its run, or of its parked picture */
    struct want **link;    /* what points to it there */
    struct run *run;       /* pending or under way; NULL: none */
    struct parked *parked; /* its picture waits here */
    rp_frame *frame;       /* held for conversion by the worker that fills or decodes */
    void *to;              /* set when the batch is due */
    int64_t sample;        /* decode index in the file */
    int64_t key;           /* decode index of the start key */
    int64_t pts;           /* ticks */
    int64_t row;           /* row whose picture it is, for messages */
    double time;           /* queried seconds */
    int32_t camera;
    int32_t order; /* place in the batch: errors of the lowest place win */
    int32_t file;
    bool open;
    bool direct;  /* the run under way converts it; else it captures the picture */
    bool written; /* by the run under way */
    bool evicted; /* its picture was parked and had to go */
};

/* All wants that start decoding at one key of one file. */
struct run {
    struct run *next_hash; /* bucket chain; free list */
    struct want *wants;
    uint64_t first_ticket; /* of the first batch that is due, NEVER_DUE: none is */
    uint64_t sight;        /* of the first batch that wants a picture, due or not */
    int64_t key;           /* decode index of the start key */
    int32_t file;
    int32_t heap_at;         /* place in the heap, -1: being worked on, or it awaits its segment */
    bool keep;               /* decoded pictures go to the frame cache, none is skipped */
    bool awaits;             /* pending, but its bytes are not here */
    bool reads;              /* counted among the segment's readers */
    struct segment *segment; /* that it reads from; NULL: it reads the file */
    struct run *next_of_segment;
};

#define NEVER_DUE UINT64_MAX

enum batch_state {
    BATCH_FREE,
    BATCH_PULLING,  /* a worker asks the feed for its rows */
    BATCH_QUEUED,   /* to be located */
    BATCH_LOCATING, /* a worker looks up its pictures */
    BATCH_INDEXING, /* waits for indexes, then QUEUED again */
    BATCH_LOCATED,  /* waits for its turn; its wants wait with it */
    BATCH_DUE,      /* to be filled */
    BATCH_STARTING, /* a worker takes a block, writes columns, schedules the wants */
    BATCH_BLOCKED,  /* waits for a free block, then DUE again */
    BATCH_FILLING,  /* waits for its wants */
    BATCH_STAGED,   /* to be sent to the GPU */
    BATCH_SENDING,  /* a worker does that */
    BATCH_DONE
};

/* What became of a sample that could not be read. */
struct fault {
    int64_t wanted;        /* row, -1: none */
    int64_t tried;         /* candidates looked at so far */
    bool open;             /* the row in the batch could not be read: another is needed */
    bool redo;             /* another was put there: it is to be located */
    int32_t order;         /* of the error */
    struct rp_error error; /* of the first row */
};

struct batch {
    struct batch *next; /* list of all batches */
    enum batch_state state;
    uint64_t ticket;   /* ascending: order of need */
    bool stream;       /* belongs to the stream, else to a ticket */
    bool expected;     /* of the stream to come: located, so that its bytes are fetched; no more */
    bool cancelled;    /* nobody will take it */
    bool abandoned;    /* it failed: nothing more is written into it */
    bool due;          /* from DUE on: its wants are served at once */
    bool near;         /* it is due next: decoded, but not converted, before it has a block */
    bool may_grow;     /* may map a new block */
    bool pinned;       /* its files' indexes are pinned */
    bool located;      /* the wants are set; false: the batch failed before */
    bool mending;      /* rows that could not be read are being replaced */
    bool chosen;       /* while mending: the rows to try are in place */
    int64_t pending;   /* open wants, and holds of workers */
    struct want *want; /* n * wants_per_sample places */
    int64_t cap_wants;
    int64_t n;    /* samples */
    int64_t done; /* of the feed */
    int64_t repeated;
    int64_t *rows; /* n */
    double *times; /* n seconds, or NULL: the rows' own */
    int64_t cap_rows;
    int32_t *files; /* n * cameras, -1: not pinned */
    int64_t cap_files;
    int32_t awaits;      /* while INDEXING: the file whose index is waited for */
    struct fault *fault; /* n; NULL unless the loader substitutes */
    int64_t cap_faults;
    size_t *offsets; /* of the fields */
    rp_block *block;
    size_t bytes;
    struct stage stage; /* on the way to a GPU */
    int32_t error_order;
    struct rp_error error; /* error_order != INT32_MAX: failed */
};

struct rp_loader {
    /* immutable: */
    const struct rp_dataset_desc *desc;
    struct rp_loader_options options;
    uint64_t fork_generation;
    int64_t wants_per_sample;
    rp_files *files;
    rp_arena *arena;
    struct rp_gpu *gpu;          /* NULL: batches lie in the process's own memory */
    rp_arena *pictures;          /* blocks of captured pictures */
    struct rp_counters counters; /* atomics */
    rp_lock lock;
    rp_cond work;  /* waited on by workers; signalled when items or room appear */
    rp_cond done;  /* waited on by callers; signalled when a batch or an item ends */
    rp_cond fetch; /* waited on by fetchers; signalled when there is something to fetch */
    /* guarded by lock: */
    struct batch *batches;                /* all, in flight or free */
    struct run **heap;                    /* by (first_ticket, file, key) */
    int32_t heap_len, heap_cap, runs_due; /* due: in the heap, and needed by batches that are due */
    int32_t n_awaiting;                   /* pending runs that await a segment */
    struct run **bucket; /* pending runs by (file, key); n_buckets a power of two */
    uint32_t n_buckets;
    struct run *free_runs;
    struct index_table indexes;
    struct frame_cache frames;
    struct park park;
    struct segment_table segments;
    rp_feed *feed;       /* of the stream; used by the worker whose batch is PULLING */
    size_t stream_bytes; /* of a full batch; a shorter one takes as much, so that blocks fit all */
    int64_t stream_rows; /* likewise */
    int64_t ahead;       /* batches located beyond those that are due */
    int64_t repeated;
    int stream_in_flight; /* batches of the stream that are not free */
    int stream_due;       /* of those: due */
    bool stream_on, pulling, feed_ended, sending;
    bool starved;          /* no memory for the only batch of the stream */
    uint64_t first_ticket; /* of the loader's first batch of a stream */
    uint64_t near_ticket;  /* of the latest near batch; its runs fill idle time */
    uint64_t next_ticket;
    uint64_t era; /* streams begun and errors handed over: what was asked for in an era before, and
                   * fails, is asked for again if it is needed still */
    int64_t last_progress_ns;
    int busy;                /* items under way */
    int64_t block_limit;     /* blocks the stream may map without being asked again */
    int64_t blocks_mapped;   /* by stream batches */
    int64_t blocks_unmapped; /* of the arena, as last seen */
    uint64_t releases;       /* blocks that came back */
    bool closing, starting, caller_works;
    bool taken; /* a caller takes the stream's next batch */
    struct worker *workers;
    int n_workers;
    rp_thread *fetchers;
    int n_fetchers, fetching; /* fetching: those at work */
};

#endif
