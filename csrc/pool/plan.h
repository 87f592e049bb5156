/* The sample order: which row comes next. Pure integers: no I/O, clock, lock or environment.
 * docs/design.md, "Sample order", states the rules; the golden values are in
 * tests/c/test_plan.c. */
#ifndef RP_POOL_PLAN_H
#define RP_POOL_PLAN_H

#include "base/error.h"

#include <stdbool.h>
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
 * Cost: O(count log count), 24 bytes per unit and 16 per frame of a lane while it runs.
 * Errors: RP_E_ARG a parameter outside its limits, or 2^32 units or frames of a unit and more;
 * RP_E_NOMEM. */
RP_CHECKED rp_status rp_order_rows(const struct rp_run *runs, size_t n_runs,
                                   const struct rp_order_params *params, int64_t *rows,
                                   struct rp_error *err);

/* One dataset's order as a stream, which holds the frames of the windows that are open and no more:
 * about R of them, 16 bytes each, up to twice as many after a seek. Where a window is the whole
 * lane, all frames of the lanes asked for. A frame is known by its row. */
typedef struct rp_order rp_order;

/* New stream. `params->epoch` is not looked at; lanes = 0 means ascending ids (the rest is unused).
 * Owner: *out is the caller's; runs and params are copied. Thread: one at a time. Blocks: never.
 * Cost: 24 bytes per unit, 32 per run. Errors: as rp_order_rows. */
RP_CHECKED rp_status rp_order_new(const struct rp_run *runs, size_t n_runs,
                                  const struct rp_order_params *params, rp_order **out,
                                  struct rp_error *err);

/* Frames of an epoch. Owner: borrowed. Thread: the stream's. Blocks: never. */
int64_t rp_order_frames(const rp_order *order);

/* Row number (0 .. frames - 1) at a position of an epoch. Cheap while the positions asked of a lane
 * ascend; a step back, a long step ahead or another epoch seeks the lane anew: about 2 R / C
 * hashes, and for another epoch one hash per unit. Lanes never asked for cost nothing.
 * Owner: *row is the caller's. Thread: the stream's. Blocks: never.
 * Errors: RP_E_NOMEM, and any position can be asked for again (position is asserted). */
RP_CHECKED rp_status rp_order_row(rp_order *order, uint32_t epoch, int64_t position, int64_t *row,
                                  struct rp_error *err);

/* Rows [*first, *end) that the order takes close together with `row`: those of its unit. False
 * where there is no such thing: ascending ids, a uniform permutation.
 * Owner: the numbers are the caller's. Thread: any, while the stream lives. Blocks: never. */
bool rp_order_unit(const rp_order *order, int64_t row, int64_t *first, int64_t *end);

/* Free and null. NULL or pointer to NULL: nothing. Thread: the stream's. Blocks: never. */
void rp_order_free(rp_order **order);

/* Slots [*from, *to) of a batch of n positions that rank r of world takes: [r n / world, (r + 1) n
 * / world), or slot r mod n if there are fewer positions than ranks. Owner: the numbers are the
 * caller's. Thread: any. Blocks: never. Errors: none (world < 2^31 and the rest is asserted). */
void rp_order_share(int64_t n, int64_t r, int64_t world, int64_t *from, int64_t *to);

/* Global positions in slots [from, to) of the batch of positions [p, q), whose slots are its
 * positions sorted by (position mod lanes, position / lanes). Owner: out has room for to - from.
 * Thread: any. Blocks: never. Errors: none (arguments are asserted). */
void rp_order_slots(int64_t lanes, int64_t p, int64_t q, int64_t from, int64_t to, int64_t *out);

/* Global positions that rank r of world takes from the batch of positions [p, q), in slot order, so
 * that the slices in rank order are the same list for every world: the slots of its share.
 * Owner: out has room for (q - p) / world + 1. Thread: any. Blocks: never.
 * Errors: none (arguments are asserted). Returns how many were written. */
int64_t rp_order_slice(int64_t lanes, int64_t p, int64_t q, int64_t r, int64_t world, int64_t *out);

#endif
