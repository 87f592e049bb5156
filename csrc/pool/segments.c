#include "pool/segments.h"

#include "pool/work_priv.h"

#include <string.h>

#define BUCKETS     4096
#define MOST_MARKS  16384
#define MOST_IDLE   (INT64_C(256) << 20) /* bytes kept that no run is known to need */
#define MOST_GROUP  (INT64_C(8) << 20)   /* bytes of one request, ... */
#define FIRST_GROUP (INT64_C(1) << 20)   /* ... until the first batch is there */
#define LONG_UNIT   (INT64_C(256) << 10) /* bytes */
#define MOST_GAP    (INT64_C(256) << 10) /* bytes that nobody wants, between two wanted parts */

/* Lists: WAITING segments; idle ones; busy: all else but marks, which are in the table alone. */

static void list_put(struct segment_list *list, struct segment *s)
{
    s->before = list->last;
    s->after = NULL;
    *(list->last != NULL ? &list->last->after : &list->first) = s;
    list->last = s;
}

static void list_take(struct segment_list *list, struct segment *s)
{
    *(s->before != NULL ? &s->before->after : &list->first) = s->after;
    *(s->after != NULL ? &s->after->before : &list->last) = s->before;
    s->before = s->after = NULL;
}

static struct segment **bucket_of(struct segment_table *table, int32_t file, int64_t first)
{
    return &table->bucket[rp_place_hash(file, first) & (table->n_buckets - 1)];
}

rp_status rp_segments_init(rp_loader *loader, struct rp_error *err)
{
    struct segment_table *table = &loader->segments;
    bool remote = false;
    for (int i = 0; i < loader->desc->n_files; i++) {
        remote = remote || rp_files_is_remote(loader->files, i);
    }
    if (!remote) {
        return RP_OK;
    }
    table->n_buckets = BUCKETS;
    table->cap = (int64_t)loader->options.read_ahead_bytes;
    table->bucket = rp_calloc(BUCKETS, sizeof(struct segment *));
    if (table->bucket == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a loader");
    }
    return RP_OK;
}

static struct segment *find(struct segment_table *table, int32_t file, const struct extent *e)
{
    struct segment *s = *bucket_of(table, file, e->first);
    while (s != NULL &&
           (s->file != file || s->extent.first != e->first || s->extent.end != e->end)) {
        s = s->next_hash;
    }
    return s;
}

static struct segment *make(struct segment_table *table, int32_t file, const struct extent *e)
{
    struct segment *s = rp_calloc(1, sizeof(*s));
    if (s != NULL) {
        s->file = file;
        s->extent = *e;
        s->need = NEVER_DUE;
        struct segment **bucket = bucket_of(table, file, e->first);
        s->next_hash = *bucket;
        *bucket = s;
        list_put(&table->waiting, s);
        table->n_waiting++;
    }
    return s;
}

/* Out of the table and away; it is in no list. */
static void forget(struct segment_table *table, struct segment *s)
{
    struct segment **link = bucket_of(table, s->file, s->extent.first);
    while (*link != s) {
        link = &(*link)->next_hash;
    }
    *link = s->next_hash;
    rp_buf_unref(&s->bytes);
    rp_free(s->error);
    rp_free(s);
}

/* The bytes of a READY segment, which is in no list, are given up; a mark stays. */
static void give_up(rp_loader *loader, struct segment *s)
{
    struct segment_table *table = &loader->segments;
    table->bytes -= s->extent.len;
    rp_buf_unref(&s->bytes);
    if (table->n_marks < MOST_MARKS) {
        s->state = SEGMENT_EVICTED;
        s->era = loader->era;
        table->n_marks++;
    }
    else {
        forget(table, s);
    }
}

static void leave_idle(struct segment_table *table, struct segment *s)
{
    list_take(&table->idle, s);
    table->idle_bytes -= s->extent.len;
    s->idle = false;
}

/* A READY segment that no run needs, in no list: it may be needed again, or be used up. */
static void rest(rp_loader *loader, struct segment *s)
{
    struct segment_table *table = &loader->segments;
    list_put(&table->idle, s);
    table->idle_bytes += s->extent.len;
    s->idle = true;
    while (table->idle_bytes > MOST_IDLE && table->idle.first != s) {
        struct segment *oldest = table->idle.first;
        leave_idle(table, oldest);
        give_up(loader, oldest);
    }
}

static struct segment *wake(rp_loader *loader, struct segment *s)
{
    struct segment_table *table = &loader->segments;
    s->state = SEGMENT_WAITING;
    s->need = NEVER_DUE;
    table->n_marks--;
    table->n_waiting++;
    table->again += s->era == loader->era;
    list_put(&table->waiting, s);
    return s;
}

/* The segment that a run of this want is to wait for; NULL: none. Instead of long units the first
 * batch waits for its own GOPs, so that it is there soon; these come once more with their units.
 * What was given up is fetched GOP by GOP from then on, since most of a unit may have been used; in
 * a later stream it is a whole unit again. */
static struct segment *segment_for(rp_loader *loader, const struct want *want)
{
    struct segment_table *table = &loader->segments;
    struct extent e;
    rp_extent_of_locked(loader, want, want->batch->stream || want->batch->expected, &e);
    if (want->batch->stream && want->batch->ticket == loader->first_ticket && e.len > LONG_UNIT) {
        rp_extent_of_locked(loader, want, false, &e);
    }
    struct segment *s = e.len > 0 ? find(table, want->file, &e) : NULL;
    bool used = s != NULL && s->state == SEGMENT_EVICTED && s->era == loader->era;
    if (used && !want->batch->expected) {
        rp_extent_of_locked(loader, want, false, &e);
        s = e.len > 0 ? find(table, want->file, &e) : NULL;
    }
    if (s != NULL) {
        return s->state == SEGMENT_EVICTED ? wake(loader, s) : s;
    }
    return e.len > 0 ? make(table, want->file, &e) : NULL;
}

bool rp_segment_join_locked(rp_loader *loader, struct run *run, const struct want *want)
{
    run->segment = NULL;
    if (loader->segments.bucket == NULL || !rp_files_is_remote(loader->files, want->file)) {
        return false;
    }
    struct segment *s = segment_for(loader, want);
    if (s == NULL) {
        return false; /* it reads for itself */
    }
    run->segment = s;
    run->next_of_segment = s->runs;
    s->runs = run;
    if (s->idle) {
        leave_idle(&loader->segments, s);
        list_put(&loader->segments.busy, s);
    }
    if (s->state == SEGMENT_WAITING) {
        rp_cond_signal(&loader->fetch);
    }
    return s->state == SEGMENT_WAITING || s->state == SEGMENT_FETCHING;
}

void rp_segment_hurry_locked(struct run *run, uint64_t ticket)
{
    run->sight = ticket < run->sight ? ticket : run->sight;
    if (run->segment != NULL && ticket < run->segment->need) {
        run->segment->need = ticket;
    }
}

void rp_segment_hold_locked(struct run *run)
{
    if (run->segment != NULL) {
        run->segment->readers++;
        run->reads = true;
    }
}

void rp_segment_leave_locked(rp_loader *loader, struct run *run)
{
    struct segment_table *table = &loader->segments;
    struct segment *s = run->segment;
    if (s == NULL) {
        return;
    }
    struct run **link = &s->runs;
    while (*link != run) {
        link = &(*link)->next_of_segment;
    }
    *link = run->next_of_segment;
    s->readers -= run->reads;
    run->reads = false;
    run->segment = NULL;
    s->need = NEVER_DUE;
    for (const struct run *other = s->runs; other != NULL; other = other->next_of_segment) {
        s->need = other->sight < s->need ? other->sight : s->need;
    }
    if (s->runs != NULL) {
        return;
    }
    switch (s->state) {
    case SEGMENT_WAITING:
        list_take(&table->waiting, s);
        table->n_waiting--;
        forget(table, s);
        break;
    case SEGMENT_FAILED:
        list_take(&table->busy, s);
        forget(table, s);
        break;
    case SEGMENT_READY:
        list_take(&table->busy, s);
        rest(loader, s);
        if (table->n_waiting > 0) { /* there is room for another */
            rp_cond_signal(&loader->fetch);
        }
        break;
    case SEGMENT_FETCHING: /* idle when it is here */
    case SEGMENT_EVICTED: break;
    }
}

void rp_segments_expect_locked(rp_loader *loader, const struct batch *batch)
{
    struct segment_table *table = &loader->segments;
    int64_t n = batch->located && !batch->cancelled ? batch->n * loader->wants_per_sample : 0;
    int64_t bytes = 0;
    for (int64_t w = 0; w < n && bytes < table->cap / 4; w++) {
        const struct want *want = &batch->want[w];
        if (want->sample < 0 || !rp_files_is_remote(loader->files, want->file)) {
            continue;
        }
        const struct segment *s = segment_for(loader, want);
        bytes += s != NULL && s->state == SEGMENT_WAITING && s->runs == NULL ? s->extent.len : 0;
    }
    rp_count(&loader->counters.foreseen, 1);
    rp_cond_broadcast(&loader->fetch);
}

void rp_segments_forget_expected_locked(rp_loader *loader)
{
    struct segment_table *table = &loader->segments;
    struct segment *next;
    for (struct segment *s = table->waiting.first; s != NULL; s = next) {
        next = s->after;
        if (s->runs == NULL) {
            list_take(&table->waiting, s);
            table->n_waiting--;
            forget(table, s);
        }
    }
}

/* The runs of a segment that is not in memory any more wait for their own GOPs. */
static void send_back(rp_loader *loader, struct segment *s)
{
    while (s->runs != NULL) {
        struct run *run = s->runs;
        s->runs = run->next_of_segment;
        rp_schedule_suspend_locked(loader, run);
        if (!rp_segment_join_locked(loader, run, run->wants)) {
            rp_schedule_resume_locked(loader, run);
        }
        rp_segment_hurry_locked(run, run->sight);
    }
}

/* Make room for a segment that is needed by batch `need`; false: nothing may go. */
static bool make_room(rp_loader *loader, uint64_t need)
{
    struct segment_table *table = &loader->segments;
    struct segment *victim = table->idle.first;
    if (victim != NULL) {
        leave_idle(table, victim);
        give_up(loader, victim);
        return true;
    }
    for (struct segment *s = table->busy.first; s != NULL; s = s->after) {
        bool may = s->state == SEGMENT_READY && s->readers == 0 && s->need > need;
        if (may && (victim == NULL || s->need > victim->need)) {
            victim = s;
        }
    }
    if (victim == NULL) {
        return false;
    }
    table->evicted++;
    list_take(&table->busy, victim);
    struct segment gone = *victim; /* it may be forgotten */
    victim->runs = NULL;
    give_up(loader, victim);
    send_back(loader, &gone);
    return true;
}

static bool admit(rp_loader *loader, const struct segment *s)
{
    struct segment_table *table = &loader->segments;
    while (table->bytes > 0 && table->bytes + s->extent.len > table->cap) {
        if (!make_room(loader, s->need)) {
            /* what is needed now comes in if nothing else could go on */
            return table->n_fetching == 0 && loader->runs_due == 0 && loader->busy == 0;
        }
    }
    return true;
}

/* Waiting segments that may be fetched with `best` in `most` bytes, chained by `group`. */
static struct segment *in_reach(const struct segment_table *table, const struct segment *best,
                                int64_t most)
{
    struct segment *chain = NULL;
    int64_t from = best->extent.offset, to = from + best->extent.len;
    for (struct segment *s = table->waiting.first; s != NULL; s = s->after) {
        int64_t first = s->extent.offset, end = first + s->extent.len;
        if (s != best && s->file == best->file && end - from <= most && to - first <= most) {
            s->group = chain;
            chain = s;
        }
    }
    return chain;
}

/* Whether a waiting segment lies beside bytes [from, to) of its file, or among them (then they are
 * fetched anyway), and which bytes there are then. */
static bool lies_beside(const struct segment *s, int64_t most_bytes, int64_t *from, int64_t *to)
{
    int64_t first = s->extent.offset, end = first + s->extent.len;
    int64_t gap = first >= *to ? first - *to : end <= *from ? *from - end : 0;
    int64_t most = (*to - *from) / 25 < MOST_GAP ? (*to - *from) / 25 : MOST_GAP;
    if (gap > most) {
        return false;
    }
    int64_t a = first < *from ? first : *from, b = end > *to ? end : *to;
    if (b - a > most_bytes) {
        return false;
    }
    *from = a;
    *to = b;
    return true;
}

static void begin(rp_loader *loader, struct segment *s)
{
    struct segment_table *table = &loader->segments;
    list_take(&table->waiting, s);
    list_put(&table->busy, s);
    table->n_waiting--;
    table->n_fetching++;
    table->bytes += s->extent.len;
    s->state = SEGMENT_FETCHING;
    s->era = loader->era;
}

/* What failed was asked for before its runs came: they are not to suffer from that. */
static void begin_again(struct segment_table *table, struct segment *s)
{
    list_take(&table->busy, s);
    list_put(&table->waiting, s);
    table->n_waiting++;
    s->state = SEGMENT_WAITING;
}

struct segment *rp_segments_pick_locked(rp_loader *loader)
{
    struct segment_table *table = &loader->segments;
    struct segment *best = NULL;
    for (struct segment *s = table->waiting.first; s != NULL; s = s->after) {
        bool sooner = best == NULL || s->need < best->need ||
                      (s->need == best->need &&
                       (s->file < best->file ||
                        (s->file == best->file && s->extent.offset < best->extent.offset)));
        best = sooner ? s : best;
    }
    if (best == NULL || !admit(loader, best)) {
        return NULL;
    }
    int64_t from = best->extent.offset, to = from + best->extent.len;
    int64_t most = rp_counted(&loader->counters.batches) > 0 ? MOST_GROUP : FIRST_GROUP;
    struct segment *reach = in_reach(table, best, most);
    best->group = NULL;
    begin(loader, best);
    for (bool more = true; more;) { /* others may lie beside after each that is added */
        more = false;
        for (struct segment **link = &reach; *link != NULL;) {
            struct segment *s = *link;
            if (table->bytes + s->extent.len > table->cap || !lies_beside(s, most, &from, &to)) {
                link = &s->group;
                continue;
            }
            *link = s->group;
            begin(loader, s);
            s->group = best->group;
            best->group = s;
            more = true;
        }
    }
    return best;
}

void rp_segments_settle_locked(rp_loader *loader, struct segment *group,
                               const struct rp_error *error)
{
    struct segment_table *table = &loader->segments;
    while (group != NULL) {
        struct segment *s = group;
        group = s->group;
        s->group = NULL;
        table->n_fetching--;
        if (s->bytes != NULL) {
            s->state = SEGMENT_READY;
        }
        else {
            table->bytes -= s->extent.len;
            if (s->runs != NULL && s->era != loader->era) {
                begin_again(table, s); /* the fetcher that calls looks for more */
                continue;
            }
            s->state = SEGMENT_FAILED;
            s->error = rp_calloc(1, sizeof(*s->error)); /* NULL is read as "out of memory" */
            if (s->error != NULL && error != NULL) {
                *s->error = *error;
            }
        }
        for (struct run *run = s->runs; run != NULL; run = run->next_of_segment) {
            rp_schedule_resume_locked(loader, run);
        }
        if (s->runs == NULL) {
            list_take(&table->busy, s);
            if (s->state == SEGMENT_FAILED) {
                forget(table, s);
                continue;
            }
            rest(loader, s);
        }
    }
}

void rp_segments_put_back_locked(rp_loader *loader, struct segment *group)
{
    struct segment_table *table = &loader->segments;
    while (group != NULL) {
        struct segment *s = group;
        group = s->group;
        s->group = NULL;
        table->n_fetching--;
        table->bytes -= s->extent.len;
        begin_again(table, s);
    }
}

rp_status rp_segment_read(const struct run *run, int64_t offset, int64_t len, uint8_t *to,
                          struct rp_error *err)
{
    const struct segment *s = run->segment;
    if (s == NULL || offset < s->extent.offset || offset + len > s->extent.offset + s->extent.len) {
        return RP_AGAIN;
    }
    if (s->state == SEGMENT_FAILED) {
        if (s->error == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for bytes of video");
        }
        *err = *s->error;
        return s->error->code;
    }
    memcpy(to, s->bytes->data + (offset - s->extent.offset), (size_t)len);
    return RP_OK;
}

void rp_segments_free(rp_loader *loader)
{
    struct segment_table *table = &loader->segments;
    for (uint32_t i = 0; i < table->n_buckets; i++) {
        while (table->bucket[i] != NULL) {
            forget(table, table->bucket[i]);
        }
    }
    rp_free(table->bucket);
}
