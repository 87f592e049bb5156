/* Samples -> batches: the engine behind Loader, __getitems__ and DataLoader workers.
 *
 * Threads and locks (docs/threading.md holds the same list):
 *   rp-work-K   num_threads per loader, run work items; wait on `work`
 *   rp-fetch-K  fetch_threads per loader with remote files, read these; wait on `fetch`
 *   caller      without the GIL; waits on `done` in slices; num_threads = 0: runs the work items
 * Locks, never two by one thread: loader (all here), files, arena (free blocks), gpu (uses).
 * Work items: pull (feed -> rows), locate (rows -> wanted pictures), index (MP4 header -> index),
 * fill (a block; columns), run (one start key: bytes -> pictures -> batches), send (to a GPU). */
#ifndef RP_POOL_POOL_H
#define RP_POOL_POOL_H

#include "base/arena.h"
#include "base/counters.h"
#include "base/error.h"
#include "convert/convert.h"
#include "demux/demux.h"
#include "fetch/fetch.h"
#include "pool/device.h"
#include "pool/feed.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Frame offsets relative to the sample's row, clamped to its episode. */
struct rp_window {
    const int64_t *delta; /* rows: n_sets times n */
    int n;                /* >= 1 */
};

struct rp_camera {
    const char *key;             /* feature name, for messages */
    struct rp_window window;     /* {0} of length 1 when the key has no deltas */
    int height, width, channels; /* as delivered; 3 RGB, 1 depth */
    enum rp_pixel_type type;
    const float *depth_table; /* n_sets times 4096 values, or NULL */
    const int32_t *run_file;  /* per run: file number */
    const double *run_start;  /* per run: seconds at which its first frame lies in the file */
    bool resize;              /* pictures of another size are resized, else refused */
};

struct rp_column {
    struct rp_window window;
    const uint8_t *data; /* n_rows * row_bytes */
    size_t row_bytes;
};

/* For one window: which of its rows lie outside the episode (one byte each, 0 or 1). */
struct rp_pad {
    struct rp_window window;
};

/* What a loader serves. Borrowed while the loader lives. */
struct rp_dataset_desc {
    const char *const *paths; /* video files */
    const char *const *sums;  /* per file: where its check sums lie, if there are any; or NULL */
    const struct rp_remote_file *remote; /* per file; NULL: all are local */
    int n_files;
    int64_t n_rows, n_runs;
    const int64_t *run_first;   /* n_runs + 1 row numbers: run k = rows [run_first[k], [k + 1]) */
    const int64_t *run_episode; /* the dataset's episode_index, for messages */
    const int32_t *run_set;     /* which data set of a mixture a run is of; NULL: one set */
    int n_sets;                 /* >= 1 */
    const int64_t *row_index;   /* the dataset's `index` of a row, for messages */
    const float *timestamp;     /* seconds in the episode, per row */
    const double *tolerance;    /* seconds, per set */
    const struct rp_camera *camera;
    int n_cameras;
    const struct rp_column *column;
    int n_columns;
    const struct rp_pad *pad;
    int n_pads;
};

struct rp_loader_options {
    int num_threads;          /* 0: the caller works */
    int prefetch_batches;     /* worked on ahead of the consumer, >= 0 */
    bool shared, substitute;  /* blocks can be lent to other processes; samples are replaced */
    size_t keep_bytes;        /* free batch memory kept for reuse */
    size_t frame_cache_bytes; /* decoded pictures kept for single reads */
    size_t parked_bytes;      /* decoded pictures kept for batches of the stream to come */
    size_t index_bytes;       /* MP4 indexes kept */
    size_t read_ahead_bytes;  /* of remote files kept in memory: ahead of their use, and after it */
    int fetch_threads;        /* that read remote files, each over its own connection; >= 1 */
    int max_decoders;         /* open decoders per thread */
    struct rp_device_options device;
};

typedef struct rp_loader rp_loader;

/* A sample that could not be read, and the row in its place: the next readable one of its episode,
 * else the nearest before, else the first of the following episodes. */
struct rp_substitute {
    int64_t place;  /* in the batch */
    int64_t wanted; /* row */
    int64_t row;    /* delivered */
    struct rp_error error;
};

/* A finished batch. Fields lie one behind the other in its block: cameras, columns, pads, each
 * 64-byte aligned at `field_offset`, samples contiguous inside a field. */
typedef struct rp_batch {
    rp_block *block;                   /* in a GPU's memory: pool/device.h */
    int refs;                          /* atomic: who made it, and who it is lent to */
    int64_t n;                         /* samples */
    int64_t done;                      /* of the stream's feed; 0 for a ticket */
    const int64_t *rows;               /* n row numbers, as delivered; owned by the batch */
    struct rp_substitute *substitutes; /* n_substitutes, by place; owned by the batch */
    int64_t n_substitutes;
    const size_t *field_offset; /* n_cameras + n_columns + n_pads; owned by the batch */
    size_t bytes;               /* used bytes of the block */
} rp_batch;

/* New loader. Starts no thread. Owner: *out is the caller's (rp_loader_close), desc and all it
 * points to are borrowed until then. Thread: any. Blocks: with a device, for its driver to start.
 * Errors: RP_E_ARG, RP_E_NOMEM, RP_E_CUDA. */
RP_CHECKED rp_status rp_loader_new(const struct rp_dataset_desc *desc,
                                   const struct rp_loader_options *options, rp_loader **out,
                                   struct rp_error *err);

/* Start a stream of the feed's batches; pictures of `ahead` batches beyond those being filled are
 * looked up, so that a decode run serves them too. Ends the stream before. Owner: *feed is the
 * loader's, also on failure, and nulled. Thread: one at a time. Blocks: for work items under way
 * (milliseconds). Errors: RP_E_ARG a row out of range, batch too large, or ahead outside 0..65536;
 * RP_E_CLOSED; RP_E_NOMEM. */
RP_CHECKED rp_status rp_loader_begin(rp_loader *loader, rp_feed **feed, int64_t ahead,
                                     struct rp_error *err);

/* Take the stream's next batch. Owner: *out is the caller's (rp_batch_free). Thread: any.
 * Blocks: up to slice_ns, then RP_AGAIN (so that the caller can look at signals).
 * Returns RP_END after the last batch. Errors: what went wrong with this batch, with coordinates
 * (the stream ends there); RP_E_STALLED no work item finished for stall_ns; RP_E_CLOSED. */
RP_CHECKED rp_status rp_loader_next(rp_loader *loader, int64_t slice_ns, int64_t stall_ns,
                                    rp_batch **out, struct rp_error *err);

/* A hint: the next stream begins with these rows (copied). What they need of remote files is
 * fetched when nothing else is. Thread: any. Blocks: never. Errors: RP_E_ARG a row; RP_E_CLOSED. */
RP_CHECKED rp_status rp_loader_expect(rp_loader *loader, const int64_t *rows, int64_t n,
                                      struct rp_error *err);

/* Ask for a batch of rows (copied), before any stream. It is taken (rp_loader_take) or given up
 * (rp_loader_drop). times: seconds in the file per row, NULL: run start + timestamp. Owner: *ticket
 * names it. Thread: any. Blocks: never. Errors: RP_E_ARG a row out of range; RP_E_NOMEM;
 * RP_E_CLOSED. */
RP_CHECKED rp_status rp_loader_submit(rp_loader *loader, const int64_t *rows, const double *times,
                                      int64_t n, uint64_t *ticket, struct rp_error *err);

/* Nobody will take this batch. Thread: any. Blocks: never. Errors: none. */
void rp_loader_drop(rp_loader *loader, uint64_t ticket);

/* Take a submitted batch. After any result but RP_AGAIN the ticket is spent. Owner: *out is the
 * caller's (rp_batch_free). Thread: one at a time per ticket. Blocks: up to slice_ns, then
 * RP_AGAIN. Errors: as rp_loader_next. */
RP_CHECKED rp_status rp_loader_take(rp_loader *loader, uint64_t ticket, int64_t slice_ns,
                                    int64_t stall_ns, rp_batch **out, struct rp_error *err);

/* Count down and null; the last one gives the memory back. NULL or pointer to NULL: nothing. The
 * batch may outlive its loader. Thread: any. Blocks: never; a GPU's, where memory is freed. */
void rp_batch_free(rp_batch **batch);

/* Snapshot of counters and memory. Owner: *out is the caller's. Thread: any. Blocks: never. */
struct rp_loader_stats {
    struct rp_counters counters;
    struct rp_arena_stats arena;
    int64_t frame_cache_bytes, parked_bytes, index_bytes;
    int64_t parked;        /* pictures */
    int64_t repeated_tail; /* slots of the stream given to a second rank */
    struct rp_remote_stats remote;
    int64_t read_ahead_bytes;                          /* in memory */
    int64_t fetch_pending, fetch_evicted, fetch_again; /* segments: awaited; given up; read again */
    int threads;
    struct rp_device_stats device;
};
void rp_loader_stats(rp_loader *loader, struct rp_loader_stats *out);

/* Bytes of a batch of n samples, field offsets into offset[] if not NULL (room for all fields).
 * Thread: any. Blocks: never. Errors: RP_E_ARG more than 2^40 bytes. */
RP_CHECKED rp_status rp_loader_layout(const rp_loader *loader, int64_t n, size_t *offset,
                                      size_t *bytes, struct rp_error *err);

/* Read and parse the MP4 index of file i. Owner: *out is the caller's (rp_index_free). Thread: any.
 * Blocks: on the disk. *bytes_read (may be NULL) grows by what was read.
 * Errors: as rp_files_read, rp_moov_find, rp_index_parse; err->file is set. */
RP_CHECKED rp_status rp_video_index_read(rp_files *files, int i, rp_index **out,
                                         int64_t *bytes_read, struct rp_error *err);

/* Versions and decoders linked, cut to cap bytes; what they decode. Thread: any. Blocks: never. */
void rp_pool_describe(char *text, size_t cap);
bool rp_pool_supports(enum rp_codec codec);

/* Calls that wait return RP_E_CLOSED, now and later. Thread: any. Blocks: never. */
void rp_loader_interrupt(rp_loader *loader);

/* Stop threads, free all but batches handed out, null. NULL or pointer to NULL: nothing. A parent's
 * loader is abandoned: descriptors are closed, the rest is left alone. Thread: any but the workers.
 * Blocks: until the items under way end (one decode run each). */
void rp_loader_close(rp_loader **loader);

#endif
