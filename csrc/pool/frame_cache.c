#include "pool/work_priv.h"

#define BUCKETS 256

rp_status rp_frame_cache_init(struct frame_cache *cache, size_t cap, struct rp_error *err)
{
    if (cap == 0) {
        return RP_OK;
    }
    cache->bucket = rp_calloc(BUCKETS, sizeof(struct cached_frame *));
    if (cache->bucket == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for the frame cache");
    }
    cache->n_buckets = BUCKETS;
    cache->cap = (int64_t)cap;
    return RP_OK;
}

static struct cached_frame **bucket_of(struct frame_cache *cache, int32_t file, int64_t sample)
{
    return &cache->bucket[rp_place_hash(file, sample) & (cache->n_buckets - 1)];
}

static void unlink_age(struct frame_cache *cache, struct cached_frame *f)
{
    *(f->newer != NULL ? &f->newer->older : &cache->newest) = f->older;
    *(f->older != NULL ? &f->older->newer : &cache->oldest) = f->newer;
}

static void link_newest(struct frame_cache *cache, struct cached_frame *f)
{
    f->newer = NULL;
    f->older = cache->newest;
    *(cache->newest != NULL ? &cache->newest->newer : &cache->oldest) = f;
    cache->newest = f;
}

static struct cached_frame *find(struct frame_cache *cache, int32_t file, int64_t sample)
{
    struct cached_frame *f = *bucket_of(cache, file, sample);
    while (f != NULL && (f->file != file || f->sample != sample)) {
        f = f->next_hash;
    }
    return f;
}

rp_frame *rp_frame_cache_find_locked(struct frame_cache *cache, int32_t file, int64_t sample)
{
    if (cache->bucket == NULL) {
        return NULL;
    }
    struct cached_frame *f = find(cache, file, sample);
    if (f == NULL) {
        return NULL;
    }
    unlink_age(cache, f);
    link_newest(cache, f);
    return rp_frame_ref(f->frame);
}

/* Unlinked, not freed: the pixels may not be given back under the loader's lock. */
static struct cached_frame *take_oldest(struct frame_cache *cache)
{
    struct cached_frame *f = cache->oldest;
    unlink_age(cache, f);
    struct cached_frame **link = bucket_of(cache, f->file, f->sample);
    while (*link != f) {
        link = &(*link)->next_hash;
    }
    *link = f->next_hash;
    cache->bytes -= (int64_t)rp_frame_bytes(f->frame);
    return f;
}

struct cached_frame *rp_frame_cache_put_locked(struct frame_cache *cache, int32_t file,
                                               int64_t sample, rp_frame *frame)
{
    int64_t bytes = (int64_t)rp_frame_bytes(frame);
    if (cache->bucket == NULL || bytes > cache->cap || find(cache, file, sample) != NULL) {
        return NULL;
    }
    struct cached_frame *f = rp_calloc(1, sizeof(*f)), *dead = NULL;
    if (f == NULL) {
        return NULL; /* a cache may forget: the picture is decoded again */
    }
    while (cache->bytes + bytes > cache->cap) {
        struct cached_frame *oldest = take_oldest(cache);
        oldest->next_hash = dead;
        dead = oldest;
    }
    struct cached_frame **bucket = bucket_of(cache, file, sample);
    *f = (struct cached_frame){
        .next_hash = *bucket, .frame = rp_frame_ref(frame), .sample = sample, .file = file};
    *bucket = f;
    link_newest(cache, f);
    cache->bytes += bytes;
    return dead;
}

void rp_frame_cache_drop(struct cached_frame *dead)
{
    while (dead != NULL) {
        struct cached_frame *next = dead->next_hash;
        rp_frame_unref(&dead->frame);
        rp_free(dead);
        dead = next;
    }
}

void rp_frame_cache_free(struct frame_cache *cache)
{
    while (cache->oldest != NULL) {
        struct cached_frame *oldest = take_oldest(cache);
        oldest->next_hash = NULL;
        rp_frame_cache_drop(oldest);
    }
    rp_free(cache->bucket);
    *cache = (struct frame_cache){0};
}
