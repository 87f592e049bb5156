#include "pool/work_priv.h"

#include <assert.h>
#include <stdio.h>

#define MAX_OPEN_FILES 64
#define IDLE_WAIT_NS   1000000000
#define RUN_BUCKETS    4096
#define FREE_PICTURES  ((size_t)64 << 20) /* bytes, at least: for some batches to come */

static rp_status check_cameras(const struct rp_dataset_desc *desc, struct rp_error *err)
{
    for (int c = 0; c < desc->n_cameras; c++) {
        const struct rp_camera *camera = &desc->camera[c];
        if (camera->width <= 0 || camera->height <= 0 || camera->width > 65536 ||
            camera->height > 65536 || camera->window.n <= 0) {
            RP_FAIL(err, RP_E_ARG, "camera %s: %dx%d pixels, %d steps", camera->key, camera->width,
                    camera->height, camera->window.n);
        }
        bool depth = camera->type == RP_PIXEL_U16 || camera->depth_table != NULL;
        if (camera->channels != (depth ? 1 : 3)) { /* so many are written */
            RP_FAIL(err, RP_E_ARG, "camera %s: %d channels", camera->key, camera->channels);
        }
        for (int64_t i = 0; i < desc->n_runs; i++) {
            int32_t file = camera->run_file[i];
            if (file < 0 || file >= desc->n_files) {
                RP_FAIL(err, RP_E_ARG, "camera %s: file number %d of %d", camera->key, file,
                        desc->n_files);
            }
        }
    }
    return RP_OK;
}

static rp_status check_desc(const struct rp_dataset_desc *desc, struct rp_error *err)
{
    if (desc->n_sets < 1) {
        RP_FAIL(err, RP_E_ARG, "%d data sets", desc->n_sets);
    }
    for (int64_t i = 0; i < desc->n_runs && desc->run_set != NULL; i++) {
        if (desc->run_set[i] < 0 || desc->run_set[i] >= desc->n_sets) {
            RP_FAIL(err, RP_E_ARG, "data set number %d of %d", desc->run_set[i], desc->n_sets);
        }
    }
    if (desc->n_rows <= 0 || desc->n_runs <= 0 || desc->run_first[0] != 0 ||
        desc->run_first[desc->n_runs] != desc->n_rows) {
        RP_FAIL(err, RP_E_ARG, "the episodes do not cover the %lld rows", (long long)desc->n_rows);
    }
    for (int64_t i = 0; i < desc->n_runs; i++) {
        if (desc->run_first[i] >= desc->run_first[i + 1]) {
            RP_FAIL(err, RP_E_ARG, "episode %lld has no rows", (long long)desc->run_episode[i]);
        }
    }
    return check_cameras(desc, err);
}

static void notice_release(void *cookie)
{
    rp_loader *loader = cookie;
    rp_lock_acquire(&loader->lock);
    rp_batch_wake_blocked_locked(loader);
    rp_lock_release(&loader->lock);
}

static rp_status init_parts(rp_loader *loader, struct rp_error *err)
{
    const struct rp_dataset_desc *desc = loader->desc;
    RP_TRY(rp_files_new_remote(desc->paths, desc->n_files, MAX_OPEN_FILES, desc->remote,
                               &loader->files, err));
    RP_TRY(rp_segments_init(loader, err));
    if (loader->options.device.on) {
        RP_TRY(rp_gpu_open(loader, err));
        RP_TRY(rp_gpu_arena(loader->gpu, loader->options.keep_bytes, &loader->arena, err));
    }
    else {
        RP_TRY(
            rp_arena_new(loader->options.keep_bytes, loader->options.shared, &loader->arena, err));
    }
    /* Parked pictures come and go by many at a time; giving their pages back and taking them again
     * costs more than it frees, as the next wave needs them. */
    size_t free_pictures = loader->options.parked_bytes / 2 > FREE_PICTURES
                               ? loader->options.parked_bytes / 2
                               : FREE_PICTURES;
    RP_TRY(rp_arena_new(free_pictures, false, &loader->pictures, err));
    rp_arena_reuse_exactly(loader->pictures);
    RP_TRY(rp_index_table_init(loader, err));
    RP_TRY(rp_frame_cache_init(&loader->frames, loader->options.frame_cache_bytes, err));
    RP_TRY(rp_park_init(&loader->park, loader->options.parked_bytes, err));
    loader->heap_cap = 256;
    loader->heap = rp_calloc((size_t)loader->heap_cap, sizeof(struct run *));
    loader->n_buckets = RUN_BUCKETS;
    loader->bucket = rp_calloc(loader->n_buckets, sizeof(struct run *));
    int n = loader->options.num_threads > 0 ? loader->options.num_threads : 1;
    loader->workers = rp_calloc((size_t)n, sizeof(*loader->workers));
    if (loader->heap == NULL || loader->bucket == NULL || loader->workers == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a loader");
    }
    rp_arena_on_release(loader->arena, notice_release, loader);
    return RP_OK;
}

static rp_status init_sync(rp_loader *loader, struct rp_error *err)
{
    RP_TRY(rp_lock_init(&loader->lock, err));
    rp_status status = rp_cond_init(&loader->work, err);
    if (status == RP_OK) {
        status = rp_cond_init(&loader->done, err);
        if (status == RP_OK) {
            status = rp_cond_init(&loader->fetch, err);
            if (status == RP_OK) {
                return RP_OK;
            }
            rp_cond_free(&loader->done);
        }
        rp_cond_free(&loader->work);
    }
    rp_lock_free(&loader->lock);
    return status;
}

rp_status rp_loader_new(const struct rp_dataset_desc *desc, const struct rp_loader_options *options,
                        rp_loader **out, struct rp_error *err)
{
    RP_TRY(check_desc(desc, err));
    if (options->device.on && options->shared) {
        RP_FAIL(err, RP_E_ARG, "blocks of a GPU are not lent to other processes");
    }
    if (options->num_threads < 0 || options->num_threads > 1024 || options->prefetch_batches < 0 ||
        options->prefetch_batches > 1024 || options->max_decoders < 1) {
        RP_FAIL(err, RP_E_ARG, "%d threads, %d batches ahead, %d decoders: out of range",
                options->num_threads, options->prefetch_batches, options->max_decoders);
    }
    RP_TRY(rp_fork_watch(err));
    rp_loader *loader = rp_calloc(1, sizeof(*loader));
    if (loader == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a loader");
    }
    loader->desc = desc;
    loader->options = *options;
    loader->fork_generation = rp_fork_generation();
    for (int c = 0; c < desc->n_cameras; c++) {
        loader->wants_per_sample += desc->camera[c].window.n;
    }
    rp_status status = init_sync(loader, err);
    if (status != RP_OK) {
        rp_free(loader);
        return status;
    }
    status = init_parts(loader, err);
    if (status != RP_OK) {
        rp_loader_close(&loader);
        return status;
    }
    *out = loader;
    return RP_OK;
}

static rp_status worker_init(struct worker *worker, rp_loader *loader, struct rp_error *err)
{
    worker->loader = loader;
    RP_TRY(rp_scratch_new(&worker->scratch, err));
    return rp_decoder_cache_new(loader->options.max_decoders, &worker->decoders, err);
}

static void worker_free(struct worker *worker)
{
    rp_decoder_cache_free(&worker->decoders);
    rp_scratch_free(&worker->scratch);
    rp_free(worker->bytes);
    rp_free(worker->sorted);
}

static void loader_run_item(struct worker *worker, const struct item *item)
{
    __atomic_store_n(&worker->doing, item->kind, __ATOMIC_RELAXED);
    switch (item->kind) {
    case ITEM_PULL: rp_pull_work(worker->loader, item->batch); break;
    case ITEM_LOCATE: rp_locate_work(worker, item->batch); break;
    case ITEM_FILL: rp_fill_work(worker, item->batch); break;
    case ITEM_INDEX: rp_index_work(worker->loader, item->file); break;
    case ITEM_RUN: rp_run_work(worker, item->run); break;
    case ITEM_SEND: rp_send_work(worker->loader, item->batch); break;
    case ITEM_NONE: break;
    }
    __atomic_store_n(&worker->doing, ITEM_NONE, __ATOMIC_RELAXED);
}

/* An item that begins after a time without any is no sign of a stall. */
static void begin_item_locked(rp_loader *loader)
{
    if (loader->busy++ == 0) {
        loader->last_progress_ns = rp_now_ns();
    }
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    rp_loader *loader = worker->loader;
    rp_lock_acquire(&loader->lock);
    while (!loader->closing) {
        struct item item = rp_schedule_pop_locked(loader);
        if (item.kind == ITEM_NONE) {
            (void)rp_cond_wait(&loader->work, &loader->lock,
                               rp_now_ns() + IDLE_WAIT_NS); /* loops */
            continue;
        }
        begin_item_locked(loader);
        rp_lock_release(&loader->lock);
        loader_run_item(worker, &item);
        rp_lock_acquire(&loader->lock);
        loader->busy--;
        loader->last_progress_ns = rp_now_ns();
        if (item.kind != ITEM_RUN) {
            rp_cond_broadcast(&loader->work); /* rows, places and indexes make work for others */
        }
        if (!loader->stream_on || loader->closing) {
            rp_cond_broadcast(&loader->done); /* begin and close wait for items to end */
        }
    }
    rp_lock_release(&loader->lock);
    return NULL;
}

static rp_status start_workers(rp_loader *loader, struct rp_error *err)
{
    int n = loader->options.num_threads > 0 ? loader->options.num_threads : 1;
    RP_TRY(rp_fetchers_start(loader, err));
    for (int i = 0; i < n; i++) {
        struct worker *worker = &loader->workers[i];
        rp_status status = worker_init(worker, loader, err);
        if (status == RP_OK && loader->options.num_threads > 0) {
            char name[16];
            (void)snprintf(name, sizeof(name), "rp-work-%d", i % 1000); /* fits */
            status = rp_thread_start(&worker->thread, name, work, worker, err);
        }
        if (status != RP_OK) {
            worker_free(worker);
            *worker = (struct worker){0};
            if (i == 0) {
                return status;
            }
            rp_error_clear(err);
            break; /* fewer threads do the same work */
        }
        rp_lock_acquire(&loader->lock);
        loader->n_workers = i + 1;
        rp_lock_release(&loader->lock);
    }
    return RP_OK;
}

/* Threads start at the first use, never at construction; callers that come meanwhile wait. */
rp_status rp_loader_start(rp_loader *loader, struct rp_error *err)
{
    rp_lock_acquire(&loader->lock);
    while (loader->starting) {
        (void)rp_cond_wait(&loader->done, &loader->lock, rp_now_ns() + IDLE_WAIT_NS); /* loops */
    }
    bool mine = loader->n_workers == 0;
    loader->starting = mine;
    rp_lock_release(&loader->lock);
    if (!mine) {
        return RP_OK;
    }
    rp_status status = start_workers(loader, err);
    rp_lock_acquire(&loader->lock);
    loader->starting = false;
    rp_cond_broadcast(&loader->done);
    rp_lock_release(&loader->lock);
    return status;
}

rp_status rp_loader_check_usable(const rp_loader *loader, struct rp_error *err)
{
    if (loader->fork_generation != rp_fork_generation()) {
        RP_FAIL(err, RP_E_CLOSED, "the loader belongs to a parent process");
    }
    return RP_OK;
}

rp_status rp_loader_check_rows(const rp_loader *loader, const int64_t *rows, int64_t n,
                               struct rp_error *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (rows[i] < 0 || rows[i] >= loader->desc->n_rows) {
            RP_FAIL(err, RP_E_ARG, "row %lld is outside 0..%lld", (long long)rows[i],
                    (long long)loader->desc->n_rows - 1);
        }
    }
    return RP_OK;
}

bool rp_loader_help_locked(rp_loader *loader)
{
    if (loader->options.num_threads > 0 || loader->caller_works) {
        return false;
    }
    struct item item = rp_schedule_pop_locked(loader);
    if (item.kind == ITEM_NONE) {
        return false;
    }
    loader->caller_works = true;
    begin_item_locked(loader);
    rp_lock_release(&loader->lock);
    loader_run_item(&loader->workers[0], &item);
    rp_lock_acquire(&loader->lock);
    loader->busy--;
    loader->caller_works = false;
    loader->last_progress_ns = rp_now_ns();
    rp_cond_broadcast(&loader->done);
    return true;
}

rp_status rp_loader_submit(rp_loader *loader, const int64_t *rows, const double *times, int64_t n,
                           uint64_t *ticket, struct rp_error *err)
{
    RP_TRY(rp_loader_check_usable(loader, err));
    if (n <= 0) {
        RP_FAIL(err, RP_E_ARG, "a batch needs at least one row");
    }
    RP_TRY(rp_loader_check_rows(loader, rows, n, err));
    RP_TRY(rp_loader_start(loader, err));
    struct batch *batch;
    rp_lock_acquire(&loader->lock);
    rp_status status = rp_batch_take_free_locked(loader, &batch, err);
    if (status == RP_OK) {
        status = rp_batch_set_rows(batch, rows, times, n, err);
    }
    if (status == RP_OK) {
        batch->ticket = *ticket = loader->next_ticket++;
        batch->state = BATCH_QUEUED;
        loader->last_progress_ns = rp_now_ns();
        rp_cond_broadcast(&loader->work);
    }
    rp_lock_release(&loader->lock);
    return status;
}

static const char *item_name(enum item_kind kind)
{
    switch (kind) {
    case ITEM_PULL: return "ordering";
    case ITEM_LOCATE: return "locating";
    case ITEM_FILL: return "filling";
    case ITEM_INDEX: return "indexing";
    case ITEM_RUN: return "decoding";
    case ITEM_SEND: return "sending";
    case ITEM_NONE: break;
    }
    return "idle";
}

static rp_status fail_stalled(const rp_loader *loader, int64_t stalled_ns, struct rp_error *err)
{
    char states[96];
    size_t at = 0;
    states[0] = '\0';
    for (int i = 0; i < loader->n_workers && at + 16 < sizeof(states); i++) {
        enum item_kind doing = __atomic_load_n(&loader->workers[i].doing, __ATOMIC_RELAXED);
        int n = snprintf(states + at, sizeof(states) - at, " %d:%s", i, item_name(doing));
        at += n > 0 ? (size_t)n : 0;
    }
    RP_FAIL(err, RP_E_STALLED, "no work item finished for %.0f s; threads:%s; %d decode runs wait",
            (double)stalled_ns / 1e9, states, loader->runs_due);
}

rp_status rp_loader_stalled_locked(const rp_loader *loader, int64_t stall_ns, struct rp_error *err)
{
    int64_t stalled_ns = rp_now_ns() - loader->last_progress_ns;
    if (loader->fetching > 0 && loader->busy == 0) {
        return RP_OK; /* the network has its own deadline */
    }
    if (loader->gpu != NULL && rp_counted(&loader->gpu->waits) > 0) {
        return RP_OK; /* the consumer's own work is in the way */
    }
    return stalled_ns > stall_ns ? fail_stalled(loader, stalled_ns, err) : RP_OK;
}

rp_status rp_loader_wait_locked(rp_loader *loader, struct batch *batch, int64_t slice_ns,
                                int64_t stall_ns, struct rp_error *err)
{
    int64_t began = rp_now_ns();
    rp_status status = RP_OK;
    while (batch->state != BATCH_DONE && status == RP_OK) {
        if (loader->closing) {
            status = rp_error_set(err, RP_E_CLOSED, "the loader was closed");
            break;
        }
        if (batch->state == BATCH_BLOCKED) { /* the consumer keeps its batches: map one more */
            batch->may_grow = true;
            batch->state = BATCH_DUE;
            loader->last_progress_ns = rp_now_ns(); /* until now nobody was meant to work */
            rp_cond_broadcast(&loader->work);
        }
        int64_t now = rp_now_ns();
        if (now - began > slice_ns) {
            status = RP_AGAIN;
        }
        else if (rp_loader_help_locked(loader)) {
            continue;
        }
        else {
            status = rp_loader_stalled_locked(loader, stall_ns, err);
            if (status == RP_OK) {
                bool starves = loader->fetching > 0 && loader->busy == 0 && loader->runs_due == 0;
                (void)rp_cond_wait(&loader->done, &loader->lock, began + slice_ns); /* loops */
                rp_count(&loader->counters.starve_ns, starves ? rp_now_ns() - now : 0);
            }
        }
    }
    rp_count(&loader->counters.wait_ns, rp_now_ns() - began);
    return status;
}

static struct batch *find_ticket(rp_loader *loader, uint64_t ticket)
{
    struct batch *b = loader->batches;
    while (b != NULL && (b->state == BATCH_FREE || b->stream || b->ticket != ticket)) {
        b = b->next;
    }
    return b;
}

rp_status rp_loader_take(rp_loader *loader, uint64_t ticket, int64_t slice_ns, int64_t stall_ns,
                         rp_batch **out, struct rp_error *err)
{
    RP_TRY(rp_loader_check_usable(loader, err));
    rp_lock_acquire(&loader->lock);
    struct batch *batch = find_ticket(loader, ticket);
    rp_status status;
    if (batch == NULL) {
        status =
            rp_error_set(err, RP_E_ARG, "no batch with ticket %llu", (unsigned long long)ticket);
    }
    else {
        status = rp_loader_wait_locked(loader, batch, slice_ns, stall_ns, err);
        if (status == RP_OK) {
            status = rp_batch_hand_over_locked(loader, batch, out, err);
        }
        else if (status != RP_AGAIN) {
            rp_batch_cancel_ticket_locked(loader, batch);
        }
    }
    rp_lock_release(&loader->lock);
    return status;
}

void rp_loader_drop(rp_loader *loader, uint64_t ticket)
{
    if (loader->fork_generation != rp_fork_generation()) {
        return;
    }
    rp_lock_acquire(&loader->lock);
    struct batch *batch = find_ticket(loader, ticket);
    if (batch != NULL) {
        rp_batch_cancel_ticket_locked(loader, batch);
    }
    rp_lock_release(&loader->lock);
}

void rp_loader_stats(rp_loader *loader, struct rp_loader_stats *out)
{
    if (loader->fork_generation != rp_fork_generation()) {
        *out = (struct rp_loader_stats){0}; /* the parent's locks may be held */
        return;
    }
    rp_arena_stats(loader->arena, &out->arena);
    const int64_t *from = (const int64_t *)&loader->counters;
    int64_t *to = (int64_t *)&out->counters;
    for (size_t i = 0; i < sizeof(struct rp_counters) / sizeof(int64_t); i++) {
        to[i] = rp_counted(&from[i]);
    }
    rp_files_remote_stats(loader->files, &out->remote);
    out->device = (struct rp_device_stats){0};
    if (loader->gpu != NULL) {
        rp_gpu_stats(loader->gpu, &out->device);
    }
    rp_lock_acquire(&loader->lock);
    out->frame_cache_bytes = loader->frames.bytes;
    out->parked_bytes = loader->park.bytes;
    out->parked = loader->park.n;
    out->repeated_tail = loader->repeated;
    out->index_bytes = loader->indexes.bytes;
    out->read_ahead_bytes = loader->segments.bytes;
    out->fetch_pending = loader->segments.n_waiting + loader->segments.n_fetching;
    out->fetch_evicted = loader->segments.evicted;
    out->fetch_again = loader->segments.again;
    out->threads = loader->options.num_threads > 0 ? loader->n_workers : 0;
    rp_lock_release(&loader->lock);
}

void rp_pool_describe(char *text, size_t cap)
{
    rp_decode_describe(text, cap);
}

bool rp_pool_supports(enum rp_codec codec)
{
    return rp_decode_supports(codec);
}

void rp_loader_interrupt(rp_loader *loader)
{
    if (loader->fork_generation != rp_fork_generation()) {
        return; /* the parent's; every call fails here anyway */
    }
    if (loader->files != NULL) {
        rp_files_interrupt(loader->files);
    }
    rp_lock_acquire(&loader->lock);
    loader->closing = true;
    rp_cond_broadcast(&loader->work);
    rp_cond_broadcast(&loader->done);
    rp_cond_broadcast(&loader->fetch);
    rp_lock_release(&loader->lock);
}

void rp_loader_close(rp_loader **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_loader *loader = *out;
    *out = NULL;
    if (loader->fork_generation != rp_fork_generation()) {
        if (loader->files != NULL) {
            rp_files_abandon(loader->files);
        }
        return;
    }
    if (loader->arena != NULL) {
        rp_arena_on_release(loader->arena, NULL, NULL);
    }
    rp_loader_interrupt(loader);
    for (int i = 0; i < loader->n_workers; i++) {
        rp_thread_join(&loader->workers[i].thread);
        worker_free(&loader->workers[i]);
    }
    rp_fetchers_join(loader);
    rp_batches_free(loader);
    rp_schedule_free(loader);
    rp_segments_free(loader);
    rp_index_table_free(loader);
    rp_frame_cache_free(&loader->frames);
    rp_park_free(&loader->park);
    rp_feed_free(&loader->feed);
    rp_free(loader->workers);
    rp_arena_close(&loader->arena);
    rp_arena_close(&loader->pictures);
    rp_gpu_unref(&loader->gpu);
    rp_files_free(&loader->files);
    rp_cond_free(&loader->fetch);
    rp_cond_free(&loader->done);
    rp_cond_free(&loader->work);
    rp_lock_free(&loader->lock);
    rp_free(loader);
}
