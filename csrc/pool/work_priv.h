/* What the files of the pool offer each other. `_locked`: the caller holds the loader's lock. */
#ifndef RP_POOL_WORK_PRIV_H
#define RP_POOL_WORK_PRIV_H

#include "pool/pool_priv.h"

/* batch.c: batches in flight. `_locked` needs the lock; rp_batch_reserve needs none (the batch is
 * the caller's). */
RP_CHECKED rp_status rp_batch_take_free_locked(rp_loader *loader, struct batch **out,
                                               struct rp_error *err);
RP_CHECKED rp_status rp_batch_reserve(const rp_loader *loader, struct batch *batch,
                                      struct rp_error *err);
RP_CHECKED rp_status rp_batch_set_rows(struct batch *batch, const int64_t *rows,
                                       const double *times, int64_t n, struct rp_error *err);
void rp_batch_fail_locked(struct batch *batch, int32_t order, const struct rp_error *err);
void rp_batch_settle_locked(rp_loader *loader, struct batch *batch, int64_t wants);
void rp_batch_recycle_locked(rp_loader *loader, struct batch *batch);
RP_CHECKED rp_status rp_batch_hand_over_locked(rp_loader *loader, struct batch *batch,
                                               rp_batch **out, struct rp_error *err);
void rp_batches_free(rp_loader *loader);

/* table.c: columns and pads of a batch; no lock, the batch is being planned. */
void rp_batch_write_columns(const rp_loader *loader, struct batch *batch);
int64_t rp_desc_run_of(const struct rp_dataset_desc *desc, int64_t row);
int64_t rp_desc_window_row(const struct rp_dataset_desc *desc, int64_t run, int64_t row,
                           int64_t delta, bool *outside);

/* schedule.c: which item next. */
struct item rp_schedule_pop_locked(rp_loader *loader);
RP_CHECKED rp_status rp_schedule_want_locked(rp_loader *loader, struct want *want, int32_t file,
                                             int64_t key, struct rp_error *err);
void rp_schedule_release_run_locked(rp_loader *loader, struct run *run);
void rp_schedule_cancel_locked(rp_loader *loader);
void rp_schedule_free(rp_loader *loader);

/* index_table.c: the files' MP4 indexes. */
RP_CHECKED rp_status rp_index_table_init(rp_loader *loader, struct rp_error *err);
/* Pin and say whether it can be used (READY or FAILED); queues the work when it cannot. */
bool rp_index_pin_locked(rp_loader *loader, int32_t file);
void rp_index_unpin_locked(rp_loader *loader, int32_t file);
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

/* plan_batch.c and run.c: the work itself. Entered without the lock. */
void rp_plan_batch_work(struct worker *worker, struct batch *batch);
void rp_run_work(struct worker *worker, struct run *run);
RP_CHECKED rp_status rp_want_convert(struct worker *worker, const struct want *want,
                                     const rp_frame *frame, struct rp_error *err);
void rp_want_locate(const rp_loader *loader, const struct want *want, struct rp_error *err);

#endif
