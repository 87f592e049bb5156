#include "fetch/node_cache.h"

#include "base/crc32c.h"
#include "base/memory.h"
#include "fetch/node_cache_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TOUCH_NS 60000000000LL /* at most so often an object is said to be in use */
#define BATCH    64            /* pieces per round: 16 MiB */

int64_t rp_node_time_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* always there on Linux */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

bool rp_node_cache_key_ok(const char *key)
{
    size_t len = strnlen(key, RP_NODE_KEY_MAX + 1);
    return len >= RP_NODE_KEY_MIN && len <= RP_NODE_KEY_MAX &&
           strspn(key, "abcdefghijklmnopqrstuvwxyz0123456789-") == len;
}

bool rp_node_args_ok(const char *key, int64_t size, int64_t offset, int64_t len)
{
    return rp_node_cache_key_ok(key) && size <= RP_NODE_SIZE_MAX && offset >= 0 && len >= 0 &&
           offset <= size && len <= size - offset;
}

/* ---- trouble */

static int level_of(int code)
{
    switch (code) {
    case ENOENT: /* somebody removed it */
    case ESTALE:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EINTR: return 0;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EROFS:
    case EACCES:
    case EPERM: return RP_NODE_READ_ONLY;
    default: return RP_NODE_OFF;
    }
}

void rp_node_trouble(rp_node_cache *cache, const char *verb, const char *name, int code)
{
    int level = code == 0 ? RP_NODE_OFF : level_of(code);
    rp_lock_acquire(&cache->lock);
    if (level > cache->stats.off) {
        const char *state =
            level == RP_NODE_OFF ? "the disk cache is off" : "the disk cache takes no more";
        cache->stats.off = level;
        cache->told = false;
        rp_error_clear(&cache->why);
        if (code == 0) {
            (void)rp_error_set(&cache->why, RP_E_IO, "%s: its folder or file %s", state, verb);
        }
        else {
            (void)rp_error_set(&cache->why, RP_E_IO, "%s: cannot %s its folder or file: %s", state,
                               verb, strerror(code));
            cache->why.sys = code;
        }
        char path[sizeof(cache->why.file)];
        (void)snprintf(path, sizeof(path), "%s%s%s", cache->dir, name[0] != '\0' ? "/" : "", name);
        rp_error_at_file(&cache->why, path, -1, -1);
    }
    rp_lock_release(&cache->lock);
}

bool rp_node_cache_trouble(rp_node_cache *cache, struct rp_error *why)
{
    rp_lock_acquire(&cache->lock);
    bool news = cache->stats.off != 0 && !cache->told;
    if (news) {
        cache->told = true;
        *why = cache->why;
    }
    rp_lock_release(&cache->lock);
    return news;
}

int rp_node_off(rp_node_cache *cache)
{
    rp_lock_acquire(&cache->lock);
    int level = cache->stats.off;
    rp_lock_release(&cache->lock);
    return level;
}

/* ---- reading */

enum outcome { WHOLE, DAMAGED, FAILED };

/* One extent that the request does not hold wholly: read it all, copy what is wanted. */
static enum outcome read_part(rp_node_cache *cache, int fd, const struct rp_node_extent *extent,
                              int64_t offset, int64_t len, uint8_t *to)
{
    uint8_t *all = rp_realloc(NULL, extent->len, 1);
    if (all == NULL) {
        return FAILED;
    }
    int got = rp_node_pread(fd, all, extent->len, extent->offset);
    enum outcome outcome = WHOLE;
    if (got < 0) {
        rp_node_trouble(cache, "read", "v1", errno);
        outcome = FAILED;
    }
    else if (got == 0 || rp_crc32c(0, all, extent->len) != extent->crc) {
        outcome = DAMAGED;
    }
    else {
        memcpy(to, all + (offset - extent->offset), (size_t)len);
    }
    rp_free(all);
    return outcome;
}

/* Extents that lie one behind the other and wholly inside the request. */
static enum outcome read_run(rp_node_cache *cache, int fd, const struct rp_node_extent *extent,
                             size_t n, uint8_t *to, size_t *bad)
{
    int64_t from = extent[0].offset, end = extent[n - 1].offset + extent[n - 1].len;
    int got = rp_node_pread(fd, to, (size_t)(end - from), from);
    if (got < 0) {
        rp_node_trouble(cache, "read", "v1", errno);
        return FAILED;
    }
    for (*bad = 0; *bad < n; (*bad)++) {
        const struct rp_node_extent *e = &extent[*bad];
        if (rp_crc32c(0, to + (e->offset - from), e->len) != e->crc) {
            return DAMAGED;
        }
    }
    *bad = n - 1; /* where the file ends too early, `to` happened to hold the bytes before */
    return got == 1 ? WHOLE : DAMAGED;
}

static enum outcome read_extents(rp_node_cache *cache, int fd, const struct rp_node_extent *extent,
                                 size_t n, int64_t offset, int64_t len, uint8_t *to, size_t *bad)
{
    int64_t at = offset, stop = offset + len;
    for (size_t i = 0; i < n && at < stop;) {
        size_t run = 0;
        for (int64_t end = at;
             i + run < n && extent[i + run].offset == end && end + extent[i + run].len <= stop;
             run++) {
            end += extent[i + run].len;
        }
        int64_t end =
            extent[i + (run > 0 ? run - 1 : 0)].offset + extent[i + (run > 0 ? run - 1 : 0)].len;
        end = end < stop ? end : stop;
        size_t in_run = 0;
        enum outcome outcome =
            run > 0 ? read_run(cache, fd, &extent[i], run, to + (at - offset), &in_run)
                    : read_part(cache, fd, &extent[i], at, end - at, to + (at - offset));
        if (outcome != WHOLE) {
            *bad = i + in_run;
            return outcome;
        }
        i += run > 0 ? run : 1;
        at = end;
    }
    return WHOLE;
}

/* The bytes from what is known of the object. */
static rp_status read_known(rp_node_cache *cache, struct rp_node_object *object, int64_t offset,
                            int64_t len, uint8_t *to)
{
    for (int64_t at = offset, stop = offset + len; at < stop;) {
        struct rp_node_extent extent[BATCH];
        int64_t end;
        size_t bad = 0;
        rp_lock_acquire(&cache->lock);
        size_t n = rp_node_view_cover(&object->view, at, stop - at, extent, BATCH, &end);
        rp_lock_release(&cache->lock);
        if (n == 0 || (n < BATCH && end < stop)) {
            return RP_AGAIN; /* at least one byte is not there */
        }
        end = end < stop ? end : stop;
        enum outcome outcome =
            read_extents(cache, object->fd, extent, n, at, end - at, to + (at - offset), &bad);
        if (outcome == FAILED) {
            return RP_AGAIN;
        }
        if (outcome == WHOLE) {
            at = end;
            continue;
        }
        rp_lock_acquire(&cache->lock); /* and look again: another extent may hold the bytes */
        rp_node_view_forget(&object->view, &extent[bad]);
        cache->stats.corrupt++;
        rp_lock_release(&cache->lock);
    }
    return RP_OK;
}

static void touch_if_due(rp_node_cache *cache, struct rp_node_object *object)
{
    int64_t now = rp_now_ns();
    rp_lock_acquire(&cache->lock);
    bool due = object->touched_ns == 0 || now - object->touched_ns > TOUCH_NS;
    if (due) {
        object->touched_ns = now;
    }
    rp_lock_release(&cache->lock);
    if (due) {
        rp_node_touch(cache, object->key);
    }
}

/* Look at the disk, which may know more. */
static struct rp_node_object *reopen(rp_node_cache *cache, const char *key, int64_t size)
{
    int root = rp_node_open_root(cache, false);
    if (root < 0) {
        return NULL;
    }
    struct rp_node_files files;
    struct rp_node_object *object = NULL;
    if (rp_node_open_object(cache, root, key, RP_NODE_READ, &files)) {
        object = rp_node_object_of(cache, key, size, &files);
        if (object != NULL && !rp_node_refresh(cache, object, files.map)) {
            rp_node_object_drop(cache, object);
            object = NULL;
        }
        rp_node_close_object(&files);
    }
    (void)close(root); /* a folder: nothing to lose */
    return object;
}

static rp_status look_up(rp_node_cache *cache, const char *key, int64_t size, int64_t offset,
                         int64_t len, uint8_t *to)
{
    struct rp_node_object *object = rp_node_object_find(cache, key, size);
    rp_status status = object != NULL ? read_known(cache, object, offset, len, to) : RP_AGAIN;
    if (status != RP_OK) {
        if (object != NULL) {
            rp_node_object_drop(cache, object);
        }
        object = reopen(cache, key, size);
        status = object != NULL ? read_known(cache, object, offset, len, to) : RP_AGAIN;
    }
    if (status == RP_OK) {
        touch_if_due(cache, object);
    }
    if (object != NULL) {
        rp_node_object_drop(cache, object);
    }
    return status;
}

rp_status rp_node_cache_read(rp_node_cache *cache, const char *key, int64_t size, int64_t offset,
                             int64_t len, uint8_t *to)
{
    if (!rp_node_args_ok(key, size, offset, len) || rp_node_off(cache) == RP_NODE_OFF) {
        return RP_AGAIN;
    }
    rp_status status = len > 0 ? look_up(cache, key, size, offset, len, to) : RP_OK;
    rp_lock_acquire(&cache->lock);
    cache->stats.hits += status == RP_OK;
    cache->stats.hit_bytes += status == RP_OK ? len : 0;
    cache->stats.misses += status != RP_OK;
    rp_lock_release(&cache->lock);
    return status;
}

/* ---- life */

rp_status rp_node_cache_new(const char *dir, int64_t max_bytes, rp_node_cache **out,
                            struct rp_error *err)
{
    if (dir[0] == '\0' || max_bytes <= 0) {
        RP_FAIL(err, RP_E_ARG, "no disk cache of %lld bytes in '%s'", (long long)max_bytes, dir);
    }
    RP_TRY(rp_fork_watch(err));
    rp_node_cache *cache = rp_calloc(1, sizeof(*cache));
    if (cache == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a disk cache");
    }
    cache->dir = rp_strdup(dir);
    if (cache->dir == NULL) {
        rp_free(cache);
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a disk cache");
    }
    rp_status status = rp_lock_init(&cache->lock, err);
    if (status != RP_OK) {
        rp_free(cache->dir);
        rp_free(cache);
        return status;
    }
    size_t len = strlen(cache->dir);
    while (len > 1 && cache->dir[len - 1] == '/') { /* a link is refused: "link/" would be none */
        cache->dir[--len] = '\0';
    }
    cache->max_bytes = max_bytes;
    cache->keep_free = 0.1;
    cache->generation = rp_fork_generation();
    cache->pid = (uint32_t)getpid();
    cache->owner = (uint64_t)rp_node_time_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)cache->pid << 40 ^
                   (uint64_t)(uintptr_t)cache;
    *out = cache;
    return RP_OK;
}

void rp_node_cache_keep_free(rp_node_cache *cache, double share)
{
    cache->keep_free = share;
}

void rp_node_cache_stats(rp_node_cache *cache, struct rp_node_cache_stats *out)
{
    rp_lock_acquire(&cache->lock);
    *out = cache->stats;
    rp_lock_release(&cache->lock);
}

uint64_t rp_node_cache_generation(const rp_node_cache *cache)
{
    return cache->generation;
}

/* The parent's lock may be held for ever, its table be half changed: the descriptors alone. */
static void abandon(rp_node_cache *cache)
{
    for (int i = 0; i < cache->objects && i < RP_NODE_OBJECTS; i++) {
        (void)close(cache->object[i]->fd); /* read-only descriptor: nothing to lose */
    }
}

rp_status rp_node_cache_renew(rp_node_cache **cache, struct rp_error *err)
{
    rp_node_cache *old = *cache;
    *cache = NULL;
    abandon(old);
    RP_TRY(rp_node_cache_new(old->dir, old->max_bytes, cache, err));
    (*cache)->keep_free = old->keep_free;
    return RP_OK;
}

void rp_node_cache_free(rp_node_cache **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_node_cache *cache = *out;
    *out = NULL;
    if (cache->generation != rp_fork_generation()) {
        abandon(cache);
        return;
    }
    for (int i = 0; i < cache->objects; i++) {
        assert(cache->object[i]->users == 0);
        rp_node_object_free(cache->object[i]);
    }
    rp_lock_free(&cache->lock);
    rp_free(cache->dir);
    rp_free(cache);
}
