/* Parts of remote files that are fetched as one: the bytes of the frames of a unit, or of one GOP.
 * A decode run waits until its segment is in memory; the fetchers take segments by need, under a
 * budget in bytes. `_locked`: the caller holds the loader's lock. Not for other folders. */
#ifndef RP_POOL_SEGMENTS_H
#define RP_POOL_SEGMENTS_H

#include "base/error.h"
#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>

struct batch;
struct run;
struct want;
struct rp_loader;

/* Samples [first, end) of a file in decode order, whole GOPs, and their bytes. */
struct extent {
    int64_t first, end;
    int64_t offset, len; /* len 0: they are not fetched ahead */
};

enum segment_state {
    SEGMENT_WAITING,  /* to be fetched */
    SEGMENT_FETCHING, /* by one of the fetchers */
    SEGMENT_READY,
    SEGMENT_FAILED, /* until the runs that wait have looked */
    SEGMENT_EVICTED /* a mark: it was here, and in this era is not fetched as a whole again */
};

struct segment {
    struct segment *next_hash;
    struct segment *before, *after; /* in the list of its state */
    struct segment *group;          /* fetched with it */
    struct run *runs;               /* that need it, pending or under way */
    struct extent extent;
    int32_t file;
    int32_t readers; /* runs under way */
    enum segment_state state;
    uint64_t era;           /* FETCHING: since this one of the loader's; EVICTED: in it */
    bool idle;              /* READY, and no run needs it: in the list of the idle */
    uint64_t need;          /* ticket of the first batch that wants it */
    rp_buf *bytes;          /* READY; FETCHING: the fetcher's */
    struct rp_error *error; /* FAILED; NULL: out of memory */
};

struct segment_list {
    struct segment *first, *last;
};

struct segment_table {
    struct segment **bucket; /* n_buckets, a power of two; NULL: no file is remote */
    struct segment_list waiting, busy, idle; /* idle: least recently used first */
    uint32_t n_buckets;
    int32_t n_waiting, n_fetching, n_marks;
    int64_t bytes, cap;     /* of READY and FETCHING ones */
    int64_t idle_bytes;     /* of those: idle */
    int64_t evicted, again; /* segments given up while they were needed; fetched once more */
};

/* extent.c: what to fetch for a want, unit-wise where the stream's feed knows units. The index is
 * pinned. */
void rp_extent_of_locked(struct rp_loader *loader, const struct want *want, bool by_unit,
                         struct extent *out);

RP_CHECKED rp_status rp_segments_init(struct rp_loader *loader, struct rp_error *err);
/* A new run's first want: the run waits for its segment, true, or can go on at once. */
bool rp_segment_join_locked(struct rp_loader *loader, struct run *run, const struct want *want);
/* A further want of a run that waits. */
void rp_segment_hurry_locked(struct run *run, uint64_t ticket);
/* The run is worked on: its segment stays. */
void rp_segment_hold_locked(struct run *run);
/* The run is over, or given up. */
void rp_segment_leave_locked(struct rp_loader *loader, struct run *run);
/* What a located batch of the stream to come needs is fetched when nothing else is. */
void rp_segments_expect_locked(struct rp_loader *loader, const struct batch *batch);
/* Forget what was to be fetched for a stream to come. */
void rp_segments_forget_expected_locked(struct rp_loader *loader);
/* Next segments to fetch, chained by `group`, side by side in one file. NULL: none may be. */
RP_CHECKED struct segment *rp_segments_pick_locked(struct rp_loader *loader);
/* Those with bytes are here, the others are not (error may be NULL). */
void rp_segments_settle_locked(struct rp_loader *loader, struct segment *group,
                               const struct rp_error *error);
/* They are to be fetched after all. */
void rp_segments_put_back_locked(struct rp_loader *loader, struct segment *group);
void rp_segments_free(struct rp_loader *loader);

/* Copy bytes of a run's segment. RP_AGAIN: they are not in it. Without the lock, while held. */
RP_CHECKED rp_status rp_segment_read(const struct run *run, int64_t offset, int64_t len,
                                     uint8_t *to, struct rp_error *err);

/* fetcher.c: I/O threads of a loader with remote files. */
RP_CHECKED rp_status rp_fetchers_start(struct rp_loader *loader, struct rp_error *err);
void rp_fetchers_join(struct rp_loader *loader);

#endif
