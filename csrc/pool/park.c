#include "pool/work_priv.h"

#include <stdlib.h>

#define BUCKETS 2048

rp_status rp_park_init(struct park *park, size_t cap, struct rp_error *err)
{
    park->bucket = rp_calloc(BUCKETS, sizeof(struct parked *));
    park->cap_n = 64;
    park->all = rp_calloc((size_t)park->cap_n, sizeof(struct parked *));
    park->aged = rp_calloc((size_t)park->cap_n, sizeof(*park->aged));
    if (park->bucket == NULL || park->all == NULL || park->aged == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for decoded pictures that wait");
    }
    park->n_buckets = BUCKETS;
    park->cap = (int64_t)cap;
    return RP_OK;
}

static struct parked **bucket_of(struct park *park, int32_t file, int64_t sample)
{
    return &park->bucket[rp_place_hash(file, sample) & (park->n_buckets - 1)];
}

static struct parked *find(struct park *park, int32_t file, int64_t sample)
{
    struct parked *p = *bucket_of(park, file, sample);
    while (p != NULL && (p->file != file || p->sample != sample)) {
        p = p->next_hash;
    }
    return p;
}

static void claim(struct parked *entry, struct want *want)
{
    rp_want_hang(want, &entry->wants);
    want->parked = entry;
}

bool rp_park_find_locked(struct park *park, struct want *want)
{
    struct parked *entry = find(park, want->file, want->sample);
    if (entry != NULL) {
        claim(entry, want);
    }
    return entry != NULL;
}

/* Out of table and list; the entry keeps its picture. */
static void detach(struct park *park, struct parked *entry)
{
    struct parked **link = bucket_of(park, entry->file, entry->sample);
    while (*link != entry) {
        link = &(*link)->next_hash;
    }
    *link = entry->next_hash;
    struct parked *last = park->all[--park->n];
    park->all[entry->at] = last;
    last->at = entry->at;
    park->bytes -= (int64_t)rp_frame_bytes(entry->frame);
}

/* The picture cannot be given back under the lock. */
static void bury(struct park *park, struct parked *entry)
{
    entry->next_hash = park->dead;
    park->dead = entry;
}

static void unclaim(struct want *want)
{
    rp_want_unhang(want);
    want->parked = NULL;
}

rp_frame *rp_park_take_locked(struct park *park, struct want *want)
{
    struct parked *entry = want->parked;
    unclaim(want);
    if (entry->wants != NULL) {
        return rp_frame_ref(entry->frame);
    }
    detach(park, entry);
    rp_frame *frame = entry->frame;
    entry->frame = NULL;
    entry->next_hash = park->free;
    park->free = entry;
    return frame;
}

void rp_park_drop_locked(struct park *park, struct want *want)
{
    struct parked *entry = want->parked;
    unclaim(want);
    if (entry->wants == NULL) {
        detach(park, entry);
        bury(park, entry);
    }
}

static uint64_t next_use(const struct parked *entry)
{
    uint64_t next = NEVER_DUE;
    for (const struct want *w = entry->wants; w != NULL; w = w->next) {
        next = w->batch->ticket < next ? w->batch->ticket : next;
    }
    return next;
}

static int by_use(const void *a, const void *b)
{
    const struct aged *x = a, *y = b;
    return x->use < y->use ? 1 : x->use > y->use ? -1 : 0;
}

/* Its wants go back to the schedule: whoever decodes that GOP next may serve them. */
static void let_go(rp_loader *loader, struct parked *entry)
{
    detach(&loader->park, entry);
    bury(&loader->park, entry);
    while (entry->wants != NULL) {
        struct want *want = entry->wants;
        unclaim(want);
        want->evicted = true;
        if (rp_schedule_want_locked(loader, want, NULL) != RP_OK) {
            want->run = NULL; /* scheduled when its batch is due */
        }
    }
}

/* Let go of the pictures that are needed last, and of a sixteenth more than must go: so one look at
 * all of them serves many pictures to come. */
static void evict(rp_loader *loader)
{
    struct park *park = &loader->park;
    if (park->bytes <= park->cap) {
        return;
    }
    int32_t n = park->n;
    for (int32_t i = 0; i < n; i++) {
        park->aged[i] = (struct aged){.use = next_use(park->all[i]), .entry = park->all[i]};
    }
    qsort(park->aged, (size_t)n, sizeof(*park->aged), by_use);
    for (int32_t i = 0; i < n && park->bytes > park->cap - park->cap / 16; i++) {
        let_go(loader, park->aged[i].entry);
    }
}

/* A place in the list and an entry, or NULL: then the picture is decoded again. */
static struct parked *new_entry(struct park *park)
{
    if (park->n == park->cap_n) {
        size_t cap = (size_t)park->cap_n * 2;
        struct aged *aged = rp_realloc(park->aged, cap, sizeof(*aged));
        if (aged == NULL) {
            return NULL;
        }
        park->aged = aged;
        struct parked **all = rp_realloc(park->all, cap, sizeof(*all));
        if (all == NULL) {
            return NULL;
        }
        park->all = all;
        park->cap_n = (int32_t)cap;
    }
    struct parked *entry = park->free;
    if (entry != NULL) {
        park->free = entry->next_hash;
        return entry;
    }
    return rp_calloc(1, sizeof(*entry));
}

void rp_park_put_locked(rp_loader *loader, struct want *want)
{
    struct park *park = &loader->park;
    struct parked *entry = find(park, want->file, want->sample);
    rp_frame *frame = want->frame;
    if (entry == NULL) {
        entry = new_entry(park);
        if (entry == NULL) {
            return; /* the want keeps nothing; its caller gives the picture back */
        }
        struct parked **bucket = bucket_of(park, want->file, want->sample);
        *entry = (struct parked){.next_hash = *bucket,
                                 .frame = rp_frame_ref(frame),
                                 .sample = want->sample,
                                 .file = want->file,
                                 .at = park->n};
        *bucket = entry;
        park->all[park->n++] = entry;
        park->bytes += (int64_t)rp_frame_bytes(frame);
    }
    claim(entry, want);
    rp_count(&loader->counters.parked, 1);
    evict(loader);
}

struct parked *rp_park_dead_locked(struct park *park)
{
    struct parked *dead = park->dead;
    park->dead = NULL;
    return dead;
}

void rp_park_bury(rp_loader *loader, struct parked *dead)
{
    if (dead == NULL) {
        return;
    }
    struct parked *last = NULL;
    for (struct parked *p = dead; p != NULL; p = p->next_hash) {
        rp_frame_unref(&p->frame);
        last = p;
    }
    rp_lock_acquire(&loader->lock);
    last->next_hash = loader->park.free;
    loader->park.free = dead;
    rp_lock_release(&loader->lock);
}

static void free_list(struct parked *list)
{
    while (list != NULL) {
        struct parked *next = list->next_hash;
        rp_frame_unref(&list->frame);
        rp_free(list);
        list = next;
    }
}

void rp_park_free(struct park *park)
{
    for (int32_t i = 0; i < park->n; i++) {
        park->all[i]->next_hash = NULL;
        free_list(park->all[i]);
    }
    free_list(park->free);
    free_list(park->dead);
    rp_free(park->bucket);
    rp_free(park->all);
    rp_free(park->aged);
    *park = (struct park){0};
}
