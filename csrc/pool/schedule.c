#include "pool/work_priv.h"

#include <assert.h>

/* Pending runs stand in a heap by (first batch in need, file, key) and in a hash table by (file,
 * key), so that wants of later batches join a run that has not begun. */

static uint32_t bucket_of(const rp_loader *loader, int32_t file, int64_t key)
{
    uint64_t h = ((uint64_t)(uint32_t)file << 40) ^ (uint64_t)key;
    h *= 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) & (loader->n_buckets - 1);
}

static bool comes_first(const struct run *a, const struct run *b)
{
    if (a->first_ticket != b->first_ticket) {
        return a->first_ticket < b->first_ticket;
    }
    if (a->file != b->file) {
        return a->file < b->file;
    }
    return a->key < b->key;
}

static void place(rp_loader *loader, struct run *run, int32_t at)
{
    loader->heap[at] = run;
    run->heap_at = at;
}

static void sift_up(rp_loader *loader, struct run *run)
{
    int32_t at = run->heap_at;
    while (at > 0 && comes_first(run, loader->heap[(at - 1) / 2])) {
        place(loader, loader->heap[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    place(loader, run, at);
}

static void sift_down(rp_loader *loader, struct run *run)
{
    int32_t at = run->heap_at;
    for (;;) {
        int32_t child = 2 * at + 1;
        if (child >= loader->heap_len) {
            break;
        }
        if (child + 1 < loader->heap_len &&
            comes_first(loader->heap[child + 1], loader->heap[child])) {
            child++;
        }
        if (!comes_first(loader->heap[child], run)) {
            break;
        }
        place(loader, loader->heap[child], at);
        at = child;
    }
    place(loader, run, at);
}

/* Out of heap and table: nobody joins it any more. */
static void detach(rp_loader *loader, struct run *run)
{
    int32_t at = run->heap_at;
    struct run *last = loader->heap[--loader->heap_len];
    if (last != run) {
        place(loader, last, at);
        sift_up(loader, last);
        sift_down(loader, last);
    }
    run->heap_at = -1;
    struct run **link = &loader->bucket[bucket_of(loader, run->file, run->key)];
    while (*link != run) {
        link = &(*link)->next_hash;
    }
    *link = run->next_hash;
    run->next_hash = NULL;
}

static rp_status grow(rp_loader *loader, struct rp_error *err)
{
    if (loader->heap_len < loader->heap_cap) {
        return RP_OK;
    }
    int32_t cap = loader->heap_cap * 2;
    struct run **heap = rp_realloc(loader->heap, (size_t)cap, sizeof(*heap));
    if (heap == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %d decode runs", cap);
    }
    loader->heap = heap;
    loader->heap_cap = cap;
    return RP_OK;
}

static rp_status new_run(rp_loader *loader, int32_t file, int64_t key, struct run **out,
                         struct rp_error *err)
{
    RP_TRY(grow(loader, err));
    struct run *run = loader->free_runs;
    if (run != NULL) {
        loader->free_runs = run->next_hash;
    }
    else {
        run = rp_calloc(1, sizeof(*run));
        if (run == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a decode run");
        }
    }
    *run = (struct run){.file = file, .key = key, .first_ticket = UINT64_MAX};
    struct run **bucket = &loader->bucket[bucket_of(loader, file, key)];
    run->next_hash = *bucket;
    *bucket = run;
    place(loader, run, loader->heap_len++);
    *out = run;
    return RP_OK;
}

rp_status rp_schedule_want_locked(rp_loader *loader, struct want *want, int32_t file, int64_t key,
                                  struct rp_error *err)
{
    struct run *run = loader->bucket[bucket_of(loader, file, key)];
    while (run != NULL && (run->file != file || run->key != key)) {
        run = run->next_hash;
    }
    if (run == NULL) {
        RP_TRY(new_run(loader, file, key, &run, err));
    }
    want->next = run->wants;
    run->wants = want;
    if (want->batch->ticket < run->first_ticket) {
        run->first_ticket = want->batch->ticket;
        sift_up(loader, run);
    }
    if (!want->batch->stream && want->batch->n == 1) {
        run->keep = loader->frames.bucket != NULL;
    }
    return RP_OK;
}

void rp_schedule_release_run_locked(rp_loader *loader, struct run *run)
{
    run->next_hash = loader->free_runs;
    loader->free_runs = run;
}

static struct batch *first_queued(rp_loader *loader)
{
    struct batch *first = NULL;
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state == BATCH_QUEUED && (first == NULL || b->ticket < first->ticket)) {
            first = b;
        }
    }
    return first;
}

/* Let the stream's next batch in. False: nothing to let in now. */
static bool admit(rp_loader *loader)
{
    int room = loader->options.prefetch_batches > 0 ? loader->options.prefetch_batches : 1;
    int64_t left = loader->stream_count - loader->stream_at;
    if (!loader->stream_on || loader->stream_in_flight >= room || left <= 0 ||
        (loader->stream_drop_last && left < loader->stream_batch)) {
        return false;
    }
    struct batch *batch;
    if (rp_batch_take_free_locked(loader, &batch, NULL) != RP_OK) {
        return false; /* memory is short: tried again when the next item ends */
    }
    int64_t n = left < loader->stream_batch ? left : loader->stream_batch;
    if (rp_batch_set_rows(batch, loader->stream_rows + loader->stream_at, NULL, n, NULL) != RP_OK) {
        return false; /* likewise */
    }
    batch->stream = true;
    batch->ticket = (uint64_t)1 << 63 | loader->next_ticket++;
    batch->position = loader->stream_at;
    batch->state = BATCH_QUEUED;
    loader->stream_at += n;
    loader->stream_in_flight++;
    return true;
}

/* Whether an earlier batch of the stream is being planned. */
static bool earlier_in_planning(const rp_loader *loader, const struct batch *batch)
{
    for (const struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state == BATCH_PLANNING && b->ticket < batch->ticket) {
            return true;
        }
    }
    return false;
}

/* Planning comes first, since later batches then join runs that have not begun; but while blocks
 * are still being mapped, an earlier batch goes before the mapping of a later one: fresh pages are
 * slow, and the first batch should not share the kernel with the second. */
static bool plan_goes_first(const rp_loader *loader, const struct batch *batch)
{
    if (batch->block != NULL || !batch->stream || loader->blocks_mapped >= loader->block_limit) {
        return true;
    }
    if (earlier_in_planning(loader, batch)) {
        return false;
    }
    return loader->heap_len < 2 * (loader->n_workers + 1) ||
           batch->ticket < loader->heap[0]->first_ticket;
}

struct item rp_schedule_pop_locked(rp_loader *loader)
{
    while (admit(loader)) {
    }
    struct index_table *table = &loader->indexes;
    if (table->queue_len > 0) {
        int32_t file = table->queue[table->queue_head];
        table->queue_head = (table->queue_head + 1) % loader->desc->n_files;
        table->queue_len--;
        table->entry[file].state = INDEX_WORKING;
        return (struct item){.kind = ITEM_INDEX, .file = file};
    }
    struct batch *batch = first_queued(loader);
    if (batch != NULL && plan_goes_first(loader, batch)) {
        batch->state = BATCH_PLANNING;
        return (struct item){.kind = ITEM_PLAN, .batch = batch};
    }
    if (loader->heap_len > 0) {
        struct run *run = loader->heap[0];
        detach(loader, run);
        return (struct item){.kind = ITEM_RUN, .run = run};
    }
    return (struct item){.kind = ITEM_NONE};
}

static void drop_cancelled_wants(rp_loader *loader, struct run *run)
{
    struct want **link = &run->wants;
    while (*link != NULL) {
        struct want *want = *link;
        if (want->batch->cancelled) {
            *link = want->next;
            rp_batch_settle_locked(loader, want->batch, 1);
        }
        else {
            link = &want->next;
        }
    }
}

/* End the stream: its batches are recycled as soon as no item works on them. */
void rp_schedule_cancel_locked(rp_loader *loader)
{
    loader->stream_on = false;
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        b->cancelled = b->state != BATCH_FREE && (b->cancelled || b->stream);
        if (b->cancelled && b->stream &&
            (b->state == BATCH_QUEUED || b->state == BATCH_BLOCKED || b->state == BATCH_INDEXING ||
             b->state == BATCH_DONE)) {
            rp_batch_recycle_locked(loader, b);
        }
    }
    for (int32_t i = loader->heap_len - 1; i >= 0; i--) {
        drop_cancelled_wants(loader, loader->heap[i]);
    }
    for (int32_t i = 0; i < loader->heap_len;) {
        struct run *run = loader->heap[i];
        if (run->wants == NULL) {
            detach(loader, run);
            rp_schedule_release_run_locked(loader, run);
            i = 0; /* the heap moved; runs without wants are few, the loop is not hot */
        }
        else {
            i++;
        }
    }
}

void rp_schedule_free(rp_loader *loader)
{
    while (loader->heap_len > 0) {
        struct run *run = loader->heap[0];
        detach(loader, run);
        rp_schedule_release_run_locked(loader, run);
    }
    while (loader->free_runs != NULL) {
        struct run *run = loader->free_runs;
        loader->free_runs = run->next_hash;
        rp_free(run);
    }
    rp_free(loader->heap);
    rp_free(loader->bucket);
}
