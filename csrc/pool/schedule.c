#include "pool/work_priv.h"

#include <assert.h>

/* Pending runs stand in a heap by (first batch in need, file, key) and in a hash table by (file,
 * key), so that wants of later batches join a run that has not begun. Runs that only batches to
 * come would use stand at its end and are not begun. */

static struct run **bucket_of(const rp_loader *loader, int32_t file, int64_t key)
{
    return &loader->bucket[rp_place_hash(file, key) & (loader->n_buckets - 1)];
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

static void leave_heap(rp_loader *loader, struct run *run)
{
    int32_t at = run->heap_at;
    struct run *last = loader->heap[--loader->heap_len];
    if (last != run) {
        place(loader, last, at);
        sift_up(loader, last);
        sift_down(loader, last);
    }
    run->heap_at = -1;
    loader->runs_due -= run->first_ticket != NEVER_DUE;
}

/* There is room: grow() counts those that wait outside. */
static void enter_heap(rp_loader *loader, struct run *run)
{
    place(loader, run, loader->heap_len++);
    loader->runs_due += run->first_ticket != NEVER_DUE;
    sift_up(loader, run);
}

void rp_schedule_resume_locked(rp_loader *loader, struct run *run)
{
    if (run->awaits) {
        run->awaits = false;
        loader->n_awaiting--;
        enter_heap(loader, run);
    }
}

void rp_schedule_suspend_locked(rp_loader *loader, struct run *run)
{
    if (run->heap_at >= 0) {
        leave_heap(loader, run);
        run->awaits = true;
        loader->n_awaiting++;
    }
}

/* Out of heap and table: nobody joins it any more. */
static void detach(rp_loader *loader, struct run *run)
{
    if (run->awaits) {
        run->awaits = false;
        loader->n_awaiting--;
    }
    else {
        leave_heap(loader, run);
    }
    struct run **link = bucket_of(loader, run->file, run->key);
    while (*link != run) {
        link = &(*link)->next_hash;
    }
    *link = run->next_hash;
    run->next_hash = NULL;
}

static rp_status grow(rp_loader *loader, struct rp_error *err)
{
    if (loader->heap_len + loader->n_awaiting < loader->heap_cap) {
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

static rp_status new_run(rp_loader *loader, const struct want *want, struct run **out,
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
    *run = (struct run){.file = want->file,
                        .key = want->key,
                        .heap_at = -1,
                        .first_ticket = NEVER_DUE,
                        .sight = NEVER_DUE};
    struct run **bucket = bucket_of(loader, want->file, want->key);
    run->next_hash = *bucket;
    *bucket = run;
    run->awaits = rp_segment_join_locked(loader, run, want);
    if (run->awaits) {
        loader->n_awaiting++;
    }
    else {
        enter_heap(loader, run);
    }
    *out = run;
    return RP_OK;
}

void rp_schedule_need_locked(rp_loader *loader, struct run *run, uint64_t ticket)
{
    if (ticket < run->first_ticket) {
        loader->runs_due += !run->awaits && run->first_ticket == NEVER_DUE;
        run->first_ticket = ticket;
        rp_segment_hurry_locked(run, ticket);
        if (!run->awaits) {
            sift_up(loader, run);
        }
    }
}

rp_status rp_schedule_want_locked(rp_loader *loader, struct want *want, struct rp_error *err)
{
    struct run *run = *bucket_of(loader, want->file, want->key);
    while (run != NULL && (run->file != want->file || run->key != want->key)) {
        run = run->next_hash;
    }
    if (run == NULL) {
        RP_TRY(new_run(loader, want, &run, err));
    }
    rp_segment_hurry_locked(run, want->batch->ticket);
    rp_want_hang(want, &run->wants);
    want->run = run;
    want->written = false;
    if (want->batch->state == BATCH_FILLING) {
        rp_schedule_need_locked(loader, run, want->batch->ticket);
    }
    if (!want->batch->stream && want->batch->n == 1) {
        run->keep = loader->frames.bucket != NULL;
    }
    return RP_OK;
}

void rp_schedule_release_run_locked(rp_loader *loader, struct run *run)
{
    rp_segment_leave_locked(loader, run);
    run->next_hash = loader->free_runs;
    loader->free_runs = run;
}

static struct batch *first_in(const rp_loader *loader, enum batch_state state)
{
    struct batch *first = NULL;
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state == state && (first == NULL || b->ticket < first->ticket)) {
            first = b;
        }
    }
    return first;
}

/* The last of `prefetch_batches` batches waits as decoded pictures, which are smaller than a batch,
 * where they may be kept. */
static bool decodes_near(const rp_loader *loader)
{
    return loader->options.prefetch_batches > 1 && loader->park.cap > 0 &&
           loader->options.num_threads > 0;
}

int rp_loader_due_room(const rp_loader *loader)
{
    int room = loader->options.prefetch_batches - decodes_near(loader);
    return room > 0 ? room : 1;
}

/* The stream's first batch that is neither due nor near. NULL: none, or it is not located. */
static struct batch *next_located(const rp_loader *loader)
{
    struct batch *first = NULL;
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state != BATCH_FREE && b->stream && !b->due && !b->cancelled &&
            (first == NULL || b->ticket < first->ticket)) {
            first = b;
        }
    }
    return first != NULL && first->state == BATCH_LOCATED ? first : NULL;
}

/* Begin to decode the batch that is due next: its runs come after all others that are needed. */
static void call_near(rp_loader *loader)
{
    struct batch *batch = decodes_near(loader) ? next_located(loader) : NULL;
    if (batch == NULL || batch->near) {
        return;
    }
    batch->near = true;
    loader->near_ticket = batch->ticket;
    int64_t n = batch->located ? batch->n * loader->wants_per_sample : 0;
    for (int64_t w = 0; w < n; w++) {
        const struct want *want = &batch->want[w];
        if (want->open && want->run != NULL && rp_run_pends(want->run)) {
            rp_schedule_need_locked(loader, want->run, batch->ticket);
        }
    }
}

/* The stream's batches take their turns in their order, as many at a time as there is room for. */
static void give_turns(rp_loader *loader)
{
    int room = rp_loader_due_room(loader);
    while (loader->stream_due < room) {
        struct batch *first = next_located(loader);
        if (first == NULL) {
            return;
        }
        first->state = BATCH_DUE;
        first->due = true;
        loader->stream_due++;
    }
    call_near(loader);
}

/* Let the stream's next batch in. NULL: nothing to let in now. */
static struct batch *admit(rp_loader *loader)
{
    int room = loader->options.prefetch_batches > 0 ? loader->options.prefetch_batches : 1;
    if (!loader->stream_on || loader->feed_ended || loader->pulling ||
        loader->stream_in_flight >= room + loader->ahead) {
        return NULL;
    }
    struct batch *batch;
    if (rp_batch_take_free_locked(loader, &batch, NULL) != RP_OK) {
        loader->starved = loader->stream_in_flight == 0; /* else tried again when an item ends */
        return NULL;
    }
    batch->stream = true;
    batch->ticket = (uint64_t)1 << 63 | loader->next_ticket++;
    batch->state = BATCH_PULLING;
    loader->pulling = true;
    loader->stream_in_flight++;
    return batch;
}

/* Whether an earlier batch of the stream is about to be filled. */
static bool earlier_starts(const rp_loader *loader, const struct batch *batch)
{
    for (const struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state == BATCH_STARTING && b->ticket < batch->ticket) {
            return true;
        }
    }
    return false;
}

/* Filling comes before decoding; but while blocks are still being mapped, an earlier batch goes
 * before the mapping of a later one: fresh pages are slow, and the first batch should not share the
 * kernel with the second. */
static bool fill_goes_first(const rp_loader *loader, const struct batch *batch)
{
    if (batch->block != NULL || !batch->stream || loader->blocks_mapped >= loader->block_limit) {
        return true;
    }
    if (earlier_starts(loader, batch)) {
        return false;
    }
    return loader->runs_due < 2 * (loader->n_workers + 1) ||
           batch->ticket <= loader->heap[0]->first_ticket;
}

/* Whether somebody is just looking ahead: for that long a stream's run waits, since it could not
 * serve the batches that are about to be located, and their pictures would be decoded again. */
static bool sight_is_coming(const rp_loader *loader)
{
    for (const struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->stream && (b->state == BATCH_PULLING || b->state == BATCH_LOCATING)) {
            return true;
        }
    }
    return false;
}

/* A run for the near batch alone waits while it would drive out other pictures that wait. */
static bool is_too_early(const rp_loader *loader, const struct run *run)
{
    if (run->first_ticket != loader->near_ticket ||
        loader->park.bytes <= loader->park.cap / 4 * 3) {
        return false;
    }
    for (const struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->ticket == run->first_ticket) {
            return b->near && !b->due;
        }
    }
    return false;
}

static struct item pop_run(rp_loader *loader)
{
    struct run *run = loader->heap[0];
    detach(loader, run);
    rp_segment_hold_locked(run);
    for (struct want *want = run->wants; want != NULL; want = want->next) {
        want->direct = want->batch->state == BATCH_FILLING;
    }
    return (struct item){.kind = ITEM_RUN, .run = run};
}

struct item rp_schedule_pop_locked(rp_loader *loader)
{
    int32_t file;
    struct batch *batch = loader->sending ? NULL : first_in(loader, BATCH_STAGED);
    if (batch != NULL) {
        batch->state = BATCH_SENDING;
        batch->pending++; /* the worker holds it */
        loader->sending = true;
        return (struct item){.kind = ITEM_SEND, .batch = batch};
    }
    if (loader->n_fetchers == 0 && rp_index_pop_locked(loader, &file)) {
        return (struct item){.kind = ITEM_INDEX, .file = file};
    }
    give_turns(loader);
    batch = first_in(loader, BATCH_DUE);
    if (batch != NULL && fill_goes_first(loader, batch)) {
        batch->state = BATCH_STARTING;
        batch->pending++; /* the worker holds it */
        return (struct item){.kind = ITEM_FILL, .batch = batch};
    }
    batch = first_in(loader, BATCH_QUEUED);
    if (batch != NULL) {
        batch->state = BATCH_LOCATING;
        return (struct item){.kind = ITEM_LOCATE, .batch = batch};
    }
    batch = admit(loader);
    if (batch != NULL) {
        return (struct item){.kind = ITEM_PULL, .batch = batch};
    }
    if (loader->heap_len == 0 || loader->heap[0]->first_ticket == NEVER_DUE) {
        return (struct item){.kind = ITEM_NONE};
    }
    if (is_too_early(loader, loader->heap[0])) {
        return (struct item){.kind = ITEM_NONE};
    }
    bool of_stream = loader->heap[0]->first_ticket >> 63;
    if (of_stream && loader->ahead > 0 && sight_is_coming(loader)) {
        return (struct item){.kind = ITEM_NONE}; /* the end of that item wakes who waits */
    }
    return pop_run(loader);
}

static void take_off_run(rp_loader *loader, struct want *want)
{
    struct run *run = want->run;
    rp_want_unhang(want);
    want->run = NULL;
    if (run->wants == NULL) {
        detach(loader, run);
        rp_schedule_release_run_locked(loader, run);
    }
}

void rp_schedule_drop_wants_locked(rp_loader *loader, struct batch *batch)
{
    int64_t n = batch->located ? batch->n * loader->wants_per_sample : 0, dropped = 0;
    for (int64_t w = 0; w < n; w++) {
        struct want *want = &batch->want[w];
        if (!want->open || (want->run != NULL && !rp_run_pends(want->run)) || want->frame != NULL) {
            continue; /* settled, or in a worker's hands */
        }
        if (want->run != NULL) {
            take_off_run(loader, want);
        }
        if (want->parked != NULL) {
            rp_park_drop_locked(&loader->park, want);
        }
        want->open = false;
        dropped++;
    }
    if (dropped > 0) {
        rp_batch_settle_locked(loader, batch, dropped);
    }
}

/* End the stream: its batches are recycled as soon as no item works on them. */
void rp_schedule_cancel_locked(rp_loader *loader)
{
    loader->stream_on = false;
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state == BATCH_FREE || !b->stream) {
            continue;
        }
        b->cancelled = true;
        switch (b->state) {
        case BATCH_LOCATED:
        case BATCH_DUE:
        case BATCH_BLOCKED:
        case BATCH_STARTING:
        case BATCH_FILLING: rp_schedule_drop_wants_locked(loader, b); break;
        case BATCH_FREE:
        case BATCH_PULLING: /* whoever works on it ends it */
        case BATCH_LOCATING:
        case BATCH_QUEUED:
        case BATCH_INDEXING:
        case BATCH_STAGED:
        case BATCH_SENDING:
        case BATCH_DONE: break;
        }
        if (b->pending == 0 && b->state != BATCH_FREE && b->state != BATCH_PULLING &&
            b->state != BATCH_LOCATING) {
            rp_batch_recycle_locked(loader, b);
        }
    }
}

void rp_schedule_free(rp_loader *loader)
{
    for (uint32_t i = 0; i < loader->n_buckets && loader->bucket != NULL; i++) {
        while (loader->bucket[i] != NULL) {
            struct run *run = loader->bucket[i];
            detach(loader, run);
            rp_schedule_release_run_locked(loader, run);
        }
    }
    while (loader->free_runs != NULL) {
        struct run *run = loader->free_runs;
        loader->free_runs = run->next_hash;
        rp_free(run);
    }
    rp_free(loader->heap);
    rp_free(loader->bucket);
}
