/* Which rows the batches of one rank and one worker hold, batch after batch: orders of one or more
 * data sets, cut by rank and worker. Pure integers: no I/O, clock, lock or environment. */
#ifndef RP_POOL_FEED_H
#define RP_POOL_FEED_H

#include "base/error.h"
#include "pool/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rp_feed rp_feed;

/* One data set of a feed. Of several, set d fills the positions that the pattern gives it: the
 * sorted pairs (d, n), n < lanes of d, by ((2 n + 1) / lanes of d, d), over and over; its x-th
 * sample is position x mod N of its own epoch x div N. Seed and window are used as they stand: each
 * set's own is the caller's to make. */
struct rp_feed_set {
    const struct rp_run *runs;
    size_t n_runs;
    struct rp_order_params params; /* lanes = its share of all lanes; 0: ascending ids, one lane;
                                    * epoch is not looked at */
    int64_t first_row;             /* row of the batch table where its rows begin, >= 0 */
};

struct rp_feed_options {
    uint32_t epoch;      /* where position 0 lies; sets of a mixture count their own from 0 */
    int64_t start;       /* first position, >= 0 */
    int64_t stop;        /* positions end here; < 0: never */
    int64_t batch;       /* samples per rank, 1 .. 2^31 - 1; a batch is batch * world positions */
    int64_t rank, world; /* 0 <= rank < world < 2^31 */
    int64_t worker, workers; /* this worker takes the batches n, counted from `start`, with n mod
                              * workers = worker */
    bool drop_last;          /* leave out a last batch that is short */
    int64_t part;            /* of one data set: a batch comes in parts of at most so many rows;
                              * 0: whole */
};

/* New feed over orders. A batch [p, q) has its positions as slots, sorted by (epoch, p mod lanes, p
 * div lanes), p counted in its epoch; for several sets by (p mod all lanes, p div all lanes). Rank
 * r takes slots [r n / world, (r + 1) n / world), or slot r mod n if n < world.
 * Owner: *out is the caller's; everything is copied. Thread: one at a time. Blocks: never.
 * Errors: RP_E_ARG, also where `start` or `stop` lies beyond epoch 2^32 - 1; RP_E_NOMEM. */
RP_CHECKED rp_status rp_feed_new(const struct rp_feed_set *sets, size_t n_sets,
                                 const struct rp_feed_options *options, rp_feed **out,
                                 struct rp_error *err);

/* New feed over given rows, in their order: batches of `batch`, the last one shorter unless
 * drop_last. Owner: *out is the caller's; rows[count] is copied. Thread: one at a time.
 * Blocks: never. Errors: RP_E_ARG; RP_E_NOMEM. */
RP_CHECKED rp_status rp_feed_new_rows(const int64_t *rows, int64_t count, int64_t batch,
                                      bool drop_last, rp_feed **out, struct rp_error *err);

/* Largest number of rows that a batch, or a part of one, can have. Owner: borrowed. Thread: any.
 * Blocks: never. */
int64_t rp_feed_batch(const rp_feed *feed);

/* Largest row that can come, + 1. Owner: borrowed. Thread: any. Blocks: never. */
int64_t rp_feed_rows_end(const rp_feed *feed);

/* Rows of the next batch, or of its next part. *done: positions delivered to all ranks once they
 * have this batch, from which another feed goes on (`start`); with a part that is not the last what
 * it was before the batch. *repeated: slots given to a second rank in this batch.
 * Owner: rows has room for rp_feed_batch; outputs are the caller's. Thread: the feed's. Blocks:
 * never. Returns RP_END after the last one. Errors: RP_E_NOMEM; RP_E_ARG where a feed without end
 * comes to epoch 2^32. After an error the feed is where it was: the next call asks for the same
 * batch. */
RP_CHECKED rp_status rp_feed_next(rp_feed *feed, int64_t *rows, int64_t *n, int64_t *done,
                                  int64_t *repeated, struct rp_error *err);

/* Rows [*first, *end) that the feed takes close together with `row`. False: it knows of none.
 * Owner: the numbers are the caller's. Thread: any, while the feed lives. Blocks: never. */
bool rp_feed_unit(const rp_feed *feed, int64_t row, int64_t *first, int64_t *end);

/* Free and null. NULL or pointer to NULL: nothing. Thread: the feed's. Blocks: never. */
void rp_feed_free(rp_feed **feed);

#endif
