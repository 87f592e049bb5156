#include "fetch/node_cache_priv.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define IDLE_NS 300000000000LL /* an object not used since then is closed: it may be evicted */
#define TAIL    (1 << 16)      /* bytes of a map read at a time */

void rp_node_object_free(struct rp_node_object *object)
{
    (void)close(object->fd); /* read-only here: nothing to lose */
    rp_node_view_free(&object->view);
    rp_free(object);
}

/* Out of the table. Returns what is to be freed outside the lock; NULL: its last user frees it. */
static struct rp_node_object *unlist_locked(rp_node_cache *cache, int i)
{
    struct rp_node_object *object = cache->object[i];
    cache->object[i] = cache->object[--cache->objects];
    object->listed = false;
    return object->users == 0 ? object : NULL;
}

void rp_node_object_drop(rp_node_cache *cache, struct rp_node_object *object)
{
    rp_lock_acquire(&cache->lock);
    bool last = --object->users == 0 && !object->listed;
    rp_lock_release(&cache->lock);
    if (last) {
        rp_node_object_free(object);
    }
}

/* The object with one more user, or NULL. */
static struct rp_node_object *find_locked(rp_node_cache *cache, const char *key, int64_t size)
{
    for (int i = 0; i < cache->objects; i++) {
        struct rp_node_object *object = cache->object[i];
        if (object->view.size == size && strcmp(object->key, key) == 0) {
            object->users++;
            object->last_ns = rp_now_ns();
            return object;
        }
    }
    return NULL;
}

struct rp_node_object *rp_node_object_find(rp_node_cache *cache, const char *key, int64_t size)
{
    rp_lock_acquire(&cache->lock);
    struct rp_node_object *object = find_locked(cache, key, size);
    rp_lock_release(&cache->lock);
    return object;
}

/* Close what has not been used for long, and one more where the table is full. */
static void make_place(rp_node_cache *cache)
{
    for (bool more = true; more;) {
        struct rp_node_object *old = NULL;
        rp_lock_acquire(&cache->lock);
        int oldest = -1;
        for (int i = 0; i < cache->objects; i++) {
            if (oldest < 0 || cache->object[i]->last_ns < cache->object[oldest]->last_ns) {
                oldest = i;
            }
        }
        more = oldest >= 0 && (cache->objects == RP_NODE_OBJECTS ||
                               cache->object[oldest]->last_ns < rp_now_ns() - IDLE_NS);
        if (more) {
            old = unlist_locked(cache, oldest);
        }
        rp_lock_release(&cache->lock);
        if (old != NULL) {
            rp_node_object_free(old);
        }
    }
}

static struct rp_node_object *object_new(const char *key, int64_t size,
                                         const struct rp_node_files *files)
{
    struct rp_node_object *object = rp_calloc(1, sizeof(*object));
    if (object == NULL) {
        return NULL;
    }
    object->fd = fcntl(files->data, F_DUPFD_CLOEXEC, 0);
    if (object->fd < 0) {
        rp_free(object);
        return NULL;
    }
    (void)snprintf(object->key, sizeof(object->key), "%s", key);
    object->dev = files->dev;
    object->ino = files->ino;
    object->users = 1;
    object->last_ns = rp_now_ns();
    object->view.size = size;
    return object;
}

/* The object of these files, with one more user: the one in the table, or a new one in its place.
 * NULL: no memory or descriptor. */
/* The same `data`, and a map that goes on from where it was read last: somebody may have removed
 * the map alone, and a new one may have the same inode. */
static bool is_of(rp_node_cache *cache, struct rp_node_object *object,
                  const struct rp_node_files *files)
{
    uint8_t known[RP_NODE_RECORD], now[RP_NODE_RECORD];
    rp_lock_acquire(&cache->lock);
    int64_t parsed = object->view.parsed;
    memcpy(known, object->view.last, sizeof(known));
    rp_lock_release(&cache->lock);
    return object->dev == files->dev && object->ino == files->ino &&
           (parsed == 0 ||
            (rp_node_pread(files->map, now, sizeof(now), parsed - RP_NODE_RECORD) == 1 &&
             memcmp(known, now, sizeof(now)) == 0));
}

struct rp_node_object *rp_node_object_of(rp_node_cache *cache, const char *key, int64_t size,
                                         const struct rp_node_files *files)
{
    struct rp_node_object *object = rp_node_object_find(cache, key, size);
    if (object != NULL && is_of(cache, object, files)) {
        return object;
    }
    if (object != NULL) {
        rp_node_object_drop(cache, object);
    }
    make_place(cache);
    object = object_new(key, size, files);
    if (object == NULL) {
        return NULL;
    }
    struct rp_node_object *old = NULL;
    rp_lock_acquire(&cache->lock);
    for (int i = cache->objects; i-- > 0 && old == NULL;) {
        if (cache->object[i]->view.size == size && strcmp(cache->object[i]->key, key) == 0) {
            old = unlist_locked(cache, i); /* removed meanwhile, or another thread was here */
        }
    }
    object->listed = cache->objects < RP_NODE_OBJECTS;
    if (object->listed) {
        cache->object[cache->objects] = object;
        __atomic_store_n(&cache->objects, cache->objects + 1, __ATOMIC_RELEASE); /* fork: abandon */
    }
    rp_lock_release(&cache->lock);
    if (old != NULL) {
        rp_node_object_free(old);
    }
    return object;
}

/* Add what the map has beyond what is known. False: it could not be read. */
bool rp_node_refresh(rp_node_cache *cache, struct rp_node_object *object, int map)
{
    uint8_t *tail = rp_realloc(NULL, TAIL, 1);
    bool more = tail != NULL, read = more;
    while (more) {
        rp_lock_acquire(&cache->lock);
        int64_t from = object->view.parsed;
        rp_lock_release(&cache->lock);
        ssize_t got;
        do {
            got = pread(map, tail, TAIL, (off_t)from);
        } while (got < 0 && errno == EINTR);
        if (got < 0) {
            rp_node_trouble(cache, "read", "v1", errno);
            read = false;
            break;
        }
        rp_lock_acquire(&cache->lock);
        if (object->view.parsed == from) {
            read &= rp_node_view_add(&object->view, tail, (size_t)got, rp_node_time_ns()) == RP_OK;
        }
        more = got >= RP_NODE_RECORD && object->view.parsed > from;
        rp_lock_release(&cache->lock);
    }
    rp_free(tail);
    return read;
}
