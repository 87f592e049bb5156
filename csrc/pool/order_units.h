/* The part of the sample order that its two forms share: the units of one set, how they lie in the
 * lanes, and the keys of their frames. Not for other folders. */
#ifndef RP_POOL_ORDER_UNITS_H
#define RP_POOL_ORDER_UNITS_H

#include "base/error.h"
#include "pool/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Consecutive frames of a run. 24 bytes, also after the shuffle: sorting needs the hash, everything
 * later the sum. */
struct rp_unit {
    union {
        uint64_t hash;
        int64_t end; /* frames in the shuffled units up to and with this one */
    };
    int64_t row;   /* row number of its first frame */
    uint32_t run;  /* number of its run */
    uint32_t size; /* frames */
};

/* Where a frame stands in its lane: frames ascend by (key, row). */
struct rp_order_entry {
    uint64_t key;
    int64_t row;
};

struct rp_units {
    struct rp_order_params params; /* k = 1 made (1, 1, 0) */
    int64_t count;                 /* frames */
    int64_t window;                /* rows of a lane over which a unit is spread */
    struct rp_run *run;
    int64_t *run_row; /* row number of a run's first frame */
    size_t n_runs;
    struct rp_unit *unit;
    size_t n;
    struct rp_order_entry *rank; /* for the frames of a GOP while they are ranked */
};

/* Units [first, last) lie in a lane of n frames, which begins at frame `from` of all shuffled. */
struct rp_lane {
    int64_t from, n;
    size_t first, last;
};

/* A unit clipped to its lane: what is left after `cut` frames fills rows [s, e), and its frames may
 * come on rows [lo, hi). */
struct rp_clip {
    int64_t cut, s, e, lo, hi;
};

/* Number of the last of n >= 1 runs that begins at or before a row; first[] are the rows at which
 * they begin, ascending, first[0] <= row. Thread: any. Blocks: never. */
int64_t rp_run_at(const int64_t *first, int64_t n, int64_t row);

/* Check and copy runs and parameters, make room for the units. Owner: *units is the caller's, freed
 * with rp_units_free also after a failure. Thread: any. Blocks: never.
 * Errors: RP_E_ARG; RP_E_NOMEM. */
RP_CHECKED rp_status rp_units_init(struct rp_units *units, const struct rp_run *runs, size_t n_runs,
                                   const struct rp_order_params *params, struct rp_error *err);

/* Cut and shuffle an epoch's units; params.epoch is set. Thread: the owner's. Blocks: never. */
void rp_units_shuffle(struct rp_units *units, uint32_t epoch);

/* Lane c < params.lanes of the shuffled units. Thread: the owner's. Blocks: never. */
struct rp_lane rp_units_lane(const struct rp_units *units, int64_t c);

/* Unit i of a lane, first <= i < last. Thread: the owner's. Blocks: never. */
struct rp_clip rp_units_clip(const struct rp_units *units, const struct rp_lane *lane, size_t i);

/* Write the entries of a clipped unit, in any order. Owner: out has room for e - s; units->rank is
 * written. Thread: the owner's. Blocks: never. */
void rp_units_keys(const struct rp_units *units, size_t i, const struct rp_clip *clip,
                   struct rp_order_entry *out);

/* Rows [*first, *end) of the unit that a row is of, as it was cut; false where units say nothing of
 * which rows come close together. Thread: any, as long as the units live. Blocks: never. */
bool rp_units_at(const struct rp_units *units, int64_t row, int64_t *first, int64_t *end);

/* Whether a comes before b; rows ascend with ids. Thread: any. Blocks: never. */
static inline bool rp_order_before(const struct rp_order_entry *a, const struct rp_order_entry *b)
{
    return a->key < b->key || (a->key == b->key && a->row < b->row);
}

/* Comparison of entries for qsort. Thread: any. Blocks: never. */
int rp_order_by_key(const void *a, const void *b);

/* Free what init allocated. Thread: the owner's. Blocks: never. */
void rp_units_free(struct rp_units *units);

#endif
