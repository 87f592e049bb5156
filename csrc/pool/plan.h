/* The sample order: which row comes next. Pure integers: no I/O, clock, lock or environment.
 * docs/design.md, "Sample order", states the rules; the golden values are in
 * tests/c/test_plan.c. */
#ifndef RP_POOL_PLAN_H
#define RP_POOL_PLAN_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* One selected episode. Runs ascend by id and do not overlap. */
struct rp_run {
    int64_t id;          /* `index` of its first frame, >= 0 */
    int64_t frame_index; /* frame_index of that frame in its episode, >= 0 */
    int64_t length;      /* frames, > 0 */
};

struct rp_order_params {
    uint64_t seed;
    uint32_t epoch;
    int64_t lanes;  /* C, 1..65536 */
    int64_t unit;   /* U frames, 0 = whole runs, < 2^31 */
    int64_t window; /* R frames over all lanes, >= 1; >= N means every window is the whole lane */
    int64_t visit;  /* k frames of a GOP per visit, >= 1 */
    int64_t gop;    /* g, >= k */
    int64_t span;   /* J rows within which a visit's frames lie */
};

/* Sum of the runs' lengths. Thread: any. Blocks: never.
 * Errors: RP_E_ARG runs empty, not ascending, or overflowing. */
RP_CHECKED rp_status rp_order_count(const struct rp_run *runs, size_t n_runs, int64_t *count,
                                    struct rp_error *err);

/* Write the epoch's whole sequence: for each global position the row number (0 .. count - 1, rows
 * numbered through the runs). Owner: rows[count] is the caller's. Thread: any. Blocks: never.
 * Cost: O(count log count), 24 bytes per frame of a lane while it runs.
 * Errors: RP_E_ARG a parameter outside its limits; RP_E_NOMEM. */
RP_CHECKED rp_status rp_order_rows(const struct rp_run *runs, size_t n_runs,
                                   const struct rp_order_params *params, int64_t *rows,
                                   struct rp_error *err);

/* Global positions that rank r of world takes from the batch of positions [p, q): slots
 * [r n / world, (r + 1) n / world) of the batch sorted by (position mod lanes, position / lanes),
 * in slot order, so that the slices in rank order are the same list for every world. If the batch
 * has fewer positions than ranks, slot r mod n.
 * Owner: out has room for (q - p) / world + 1. Thread: any. Blocks: never.
 * Errors: none (arguments are asserted). Returns how many were written. */
int64_t rp_order_slice(int64_t lanes, int64_t p, int64_t q, int64_t r, int64_t world, int64_t *out);

#endif
