/* What the files of the pool offer each other. `_locked`: the caller holds the loader's lock. */
#ifndef RP_POOL_WORK_PRIV_H
#define RP_POOL_WORK_PRIV_H

#include "pool/pool_priv.h"

enum item_kind { ITEM_NONE, ITEM_PULL, ITEM_LOCATE, ITEM_FILL, ITEM_INDEX, ITEM_RUN, ITEM_SEND };

struct item {
    enum item_kind kind;
    struct batch *batch;
    struct run *run;
    int32_t file;
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

/* Spread of (file, sample or key) over hash buckets. */
static inline uint32_t rp_place_hash(int32_t file, int64_t at)
{
    uint64_t h = ((uint64_t)(uint32_t)file << 40) ^ (uint64_t)at;
    return (uint32_t)((h * 0x9E3779B97F4A7C15u) >> 32);
}

/* Into and out of the list of a run or of a parked picture. */
static inline void rp_want_hang(struct want *want, struct want **list)
{
    want->next = *list;
    want->link = list;
    if (want->next != NULL) {
        want->next->link = &want->next;
    }
    *list = want;
}

static inline void rp_want_unhang(struct want *want)
{
    *want->link = want->next;
    if (want->next != NULL) {
        want->next->link = want->link;
    }
    want->next = NULL;
}

/* loader.c: for those that wait. */
RP_CHECKED rp_status rp_loader_check_usable(const rp_loader *loader, struct rp_error *err);
/* RP_E_ARG: a row that does not exist. */
RP_CHECKED rp_status rp_loader_check_rows(const rp_loader *loader, const int64_t *rows, int64_t n,
                                          struct rp_error *err);
RP_CHECKED rp_status rp_loader_start(rp_loader *loader, struct rp_error *err);
/* Run one item in the caller's thread (num_threads = 0). False: nothing to do, or somebody else is
 * at it. */
bool rp_loader_help_locked(rp_loader *loader);
/* RP_E_STALLED when nothing has ended, begun or been taken for stall_ns. */
RP_CHECKED rp_status rp_loader_stalled_locked(const rp_loader *loader, int64_t stall_ns,
                                              struct rp_error *err);
/* Wait until the batch is done. RP_AGAIN: the slice is over. */
RP_CHECKED rp_status rp_loader_wait_locked(rp_loader *loader, struct batch *batch, int64_t slice_ns,
                                           int64_t stall_ns, struct rp_error *err);

/* stream.c: rows of the stream's next batch. */
void rp_pull_work(rp_loader *loader, struct batch *batch);

/* batch.c: batches in flight. `_locked` needs the lock; rp_batch_reserve needs none (the batch is
 * the caller's). */
RP_CHECKED rp_status rp_batch_take_free_locked(rp_loader *loader, struct batch **out,
                                               struct rp_error *err);
RP_CHECKED rp_status rp_batch_room(struct batch *batch, int64_t n, struct rp_error *err);
RP_CHECKED rp_status rp_batch_set_rows(struct batch *batch, const int64_t *rows,
                                       const double *times, int64_t n, struct rp_error *err);
size_t rp_camera_bytes(const struct rp_camera *camera); /* of one picture */
RP_CHECKED rp_status rp_batch_reserve(const rp_loader *loader, struct batch *batch,
                                      struct rp_error *err);
void rp_batch_unpin_locked(rp_loader *loader, struct batch *batch);
/* An error of the sample that the wanted picture `order` belongs to; `order` 0 may also be an error
 * of the whole batch. */
void rp_batch_fail_locked(rp_loader *loader, struct batch *batch, int32_t order,
                          const struct rp_error *err);
/* `wants` open wants or holds are settled, written or failed; the last one publishes the batch, or
 * sends it to have rows replaced. */
void rp_batch_settle_locked(rp_loader *loader, struct batch *batch, int64_t wants);
void rp_batch_recycle_locked(rp_loader *loader, struct batch *batch);
/* Nobody will take this batch of a ticket. */
void rp_batch_cancel_ticket_locked(rp_loader *loader, struct batch *batch);
/* A block is free: batches that wait for one try again. */
void rp_batch_wake_blocked_locked(rp_loader *loader);
RP_CHECKED rp_status rp_batch_hand_over_locked(rp_loader *loader, struct batch *batch,
                                               rp_batch **out, struct rp_error *err);
void rp_batches_free(rp_loader *loader);

/* table.c: columns and pads of a batch; no lock, the batch is being filled. */
void rp_batch_write_columns(const rp_loader *loader, struct batch *batch);
int64_t rp_desc_run_of(const struct rp_dataset_desc *desc, int64_t row);
int32_t rp_desc_set_of(const struct rp_dataset_desc *desc, int64_t run);
int64_t rp_desc_window_row(const struct rp_dataset_desc *desc, int64_t run, int64_t row,
                           int64_t delta, bool *outside);

/* schedule.c: which item next. */
/* How many batches of the stream have a block while they are worked on. */
int rp_loader_due_room(const rp_loader *loader);
struct item rp_schedule_pop_locked(rp_loader *loader);
/* Hang an open want on the run of its key. */
RP_CHECKED rp_status rp_schedule_want_locked(rp_loader *loader, struct want *want,
                                             struct rp_error *err);
/* A want of this pending run is needed now. */
void rp_schedule_need_locked(rp_loader *loader, struct run *run, uint64_t ticket);
/* Settle all open wants of a batch but those on runs under way. */
void rp_schedule_drop_wants_locked(rp_loader *loader, struct batch *batch);
void rp_schedule_release_run_locked(rp_loader *loader, struct run *run);
/* A pending run's bytes are here; are gone again. */
void rp_schedule_resume_locked(rp_loader *loader, struct run *run);
void rp_schedule_suspend_locked(rp_loader *loader, struct run *run);
/* Whether the run has not begun. */
static inline bool rp_run_pends(const struct run *run)
{
    return run->heap_at >= 0 || run->awaits;
}
void rp_schedule_cancel_locked(rp_loader *loader);
void rp_schedule_free(rp_loader *loader);

/* park.c: decoded pictures for batches to come. */
RP_CHECKED rp_status rp_park_init(struct park *park, size_t cap, struct rp_error *err);
/* Hang the want on the picture if it is parked. */
bool rp_park_find_locked(struct park *park, struct want *want);
/* Park want->frame (a further reference is taken; the caller gives its own back) and hang the want
 * on it. If memory is short the want hangs on nothing, or on a run. */
void rp_park_put_locked(rp_loader *loader, struct want *want);
/* The picture a want hangs on, to be given back by the caller; the want hangs on nothing. */
RP_CHECKED rp_frame *rp_park_take_locked(struct park *park, struct want *want);
void rp_park_drop_locked(struct park *park, struct want *want);
/* Pictures that nobody wants any more: taken with the lock, given back by rp_park_bury without. */
RP_CHECKED struct parked *rp_park_dead_locked(struct park *park);
void rp_park_bury(rp_loader *loader, struct parked *dead);
void rp_park_free(struct park *park);

/* index_table.c: the files' MP4 indexes. */
RP_CHECKED rp_status rp_index_table_init(rp_loader *loader, struct rp_error *err);
/* Pin and say whether it can be used (READY or FAILED); queues the work when it cannot. */
bool rp_index_pin_locked(rp_loader *loader, int32_t file);
void rp_index_unpin_locked(rp_loader *loader, int32_t file);
/* Take the next file to index. False: there is none. */
bool rp_index_pop_locked(rp_loader *loader, int32_t *file);
void rp_index_work(rp_loader *loader, int32_t file);
void rp_index_table_free(rp_loader *loader);

/* frame_cache.c: decoded pictures of recent single reads. */
RP_CHECKED rp_status rp_frame_cache_init(struct frame_cache *cache, size_t cap,
                                         struct rp_error *err);
rp_frame *rp_frame_cache_find_locked(struct frame_cache *cache, int32_t file, int64_t sample);
/* Returns the pictures that had to go: rp_frame_cache_drop gives them back, without the lock. */
RP_CHECKED struct cached_frame *rp_frame_cache_put_locked(struct frame_cache *cache, int32_t file,
                                                          int64_t sample, rp_frame *frame);
void rp_frame_cache_drop(struct cached_frame *dead);
void rp_frame_cache_free(struct frame_cache *cache);

/* locate.c, fill.c and run.c: the work itself. Entered without the lock. */
void rp_locate_work(struct worker *worker, struct batch *batch);
void rp_fill_work(struct worker *worker, struct batch *batch);
void rp_run_work(struct worker *worker, struct run *run);
void rp_want_place(const rp_loader *loader, const struct batch *batch, struct want *want);
/* Which of its camera's pictures of the batch a want is. */
int64_t rp_want_number(const rp_loader *loader, const struct want *want);
RP_CHECKED rp_status rp_want_convert(struct worker *worker, const struct want *want,
                                     rp_frame *frame, struct rp_error *err);
void rp_want_locate(const rp_loader *loader, const struct want *want, struct rp_error *err);
/* Convert the held pictures of a list of open wants, give them back, settle. */
void rp_wants_convert(struct worker *worker, struct want *wants);

#endif
