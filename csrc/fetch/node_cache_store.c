#include "fetch/node_cache_priv.h"

#include "base/crc32c.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#define BATCH      64            /* pieces per round: 16 MiB */
#define FULL_NS    5000000000LL  /* claims are not recorded for so long after a declined store */
#define REFRESH_NS 10000000000LL /* an own claim older than that is recorded anew */

/* One object under way, to be written. */
struct writing {
    rp_node_cache *cache;
    int root;
    int64_t size;
    struct rp_node_files files;
    struct rp_node_object *object;
};

static void writing_end(struct writing *w)
{
    if (w->object != NULL) {
        rp_node_object_drop(w->cache, w->object);
    }
    rp_node_close_object(&w->files);
    if (w->root >= 0) {
        (void)close(w->root); /* a folder: nothing to lose */
    }
}

static bool is_damaged(struct writing *w)
{
    struct stat st;
    if (fstat(w->files.map, &st) != 0 || st.st_size > RP_NODE_MAP_MAX) {
        return true;
    }
    rp_lock_acquire(&w->cache->lock);
    bool bad = w->object->view.bad || st.st_size % RP_NODE_RECORD != 0;
    rp_lock_release(&w->cache->lock);
    return bad;
}

/* Open the object below w->root and know all that its map says. A damaged map would hide what comes
 * after it: such an object begins anew. */
static bool writing_open(struct writing *w, const char *key, enum rp_node_mode mode)
{
    for (int tries = 0; tries < 3; tries++) {
        if (!rp_node_open_object(w->cache, w->root, key, mode, &w->files)) {
            if (mode == RP_NODE_MAKE && errno == ENOENT) {
                continue; /* removed between its folder and its files */
            }
            return false;
        }
        w->object = rp_node_object_of(w->cache, key, w->size, &w->files);
        if (w->object == NULL || !rp_node_refresh(w->cache, w->object, w->files.map)) {
            return false;
        }
        if (!is_damaged(w) ||
            (rp_node_refresh(w->cache, w->object, w->files.map) && !is_damaged(w))) {
            return true;
        }
        char name[RP_NODE_KEY_MAX + 4];
        rp_node_object_name(key, name);
        (void)rp_node_remove(w->cache, w->root, name); /* another may have been first */
        rp_lock_acquire(&w->cache->lock);
        w->cache->stats.corrupt++;
        rp_lock_release(&w->cache->lock);
        rp_node_object_drop(w->cache, w->object);
        w->object = NULL;
        rp_node_close_object(&w->files);
    }
    return false;
}

static bool writing_begin(struct writing *w, rp_node_cache *cache, const char *key, int64_t size,
                          enum rp_node_mode mode)
{
    *w =
        (struct writing){.cache = cache, .size = size, .files = {.dir = -1, .map = -1, .data = -1}};
    w->root = rp_node_open_root(cache, mode == RP_NODE_MAKE);
    return w->root >= 0 && writing_open(w, key, mode);
}

static void fill_record(const struct writing *w, enum rp_node_kind kind, int64_t offset,
                        int64_t len, uint32_t serial, struct rp_node_record *out)
{
    *out = (struct rp_node_record){.kind = kind,
                                   .offset = offset,
                                   .len = len,
                                   .size = w->size,
                                   .time_ns = rp_node_time_ns(),
                                   .pid = w->cache->pid,
                                   .serial = serial,
                                   .owner = w->cache->owner};
}

static bool append_one(struct writing *w, enum rp_node_kind kind, int64_t offset, int64_t len,
                       uint32_t serial)
{
    uint8_t bytes[RP_NODE_RECORD];
    struct rp_node_record record;
    fill_record(w, kind, offset, len, serial, &record);
    rp_node_record_write(&record, bytes);
    if (!rp_node_append(w->files.map, bytes, sizeof(bytes))) {
        rp_node_trouble(w->cache, "write", "v1", errno);
        return false;
    }
    return true;
}

/* Whether a claim of this cache meets the range; on bytes that are there, none counts. */
static bool has_claim(struct writing *w, int64_t offset, int64_t len)
{
    rp_lock_acquire(&w->cache->lock);
    bool found = rp_node_view_intent(&w->object->view, offset, len, w->cache->owner, false, 0,
                                     rp_node_time_ns()) != NULL;
    rp_lock_release(&w->cache->lock);
    return found;
}

static void end_claim(struct writing *w, int64_t offset, int64_t len)
{
    if (has_claim(w, offset, len) && append_one(w, RP_NODE_OVER, offset, len, 0)) {
        (void)rp_node_refresh(w->cache, w->object, w->files.map); /* a failure has been reported */
    }
}

/* Whether these bytes are there already. */
static bool is_there(struct writing *w, int64_t offset, int64_t len)
{
    rp_lock_acquire(&w->cache->lock);
    bool there = !rp_node_view_gap(&w->object->view, &offset, &len);
    rp_lock_release(&w->cache->lock);
    return there;
}

/* Write the missing pieces of up to BATCH pieces, then their records in one go. Returns the bytes
 * written, -1 on failure; *done counts the bytes looked at. */
static int64_t store_batch(struct writing *w, int64_t offset, int64_t len, const uint8_t *bytes,
                           int64_t *done)
{
    uint8_t records[BATCH * RP_NODE_RECORD];
    int n = 0;
    int64_t at = offset, stop = offset + len, written = 0;
    while (n < BATCH && at < stop) {
        int64_t end = (at / RP_NODE_PIECE + 1) * RP_NODE_PIECE;
        end = end < stop ? end : stop;
        const uint8_t *from = bytes + (at - offset);
        if (!is_there(w, at, end - at)) {
            struct rp_node_record record;
            fill_record(w, RP_NODE_EXTENT, at, end - at, 0, &record);
            record.crc = rp_crc32c(0, from, (size_t)(end - at));
            if (!rp_node_pwrite(w->files.data, from, (size_t)(end - at), at)) {
                rp_node_trouble(w->cache, "write", "v1", errno);
                return -1;
            }
            rp_node_record_write(&record, &records[n++ * RP_NODE_RECORD]);
            written += end - at;
        }
        at = end;
    }
    *done = at - offset;
    if (n > 0 && !rp_node_append(w->files.map, records, (size_t)n * RP_NODE_RECORD)) {
        rp_node_trouble(w->cache, "write", "v1", errno);
        return -1;
    }
    return written;
}

static void store_all(struct writing *w, int64_t offset, int64_t len, const uint8_t *bytes)
{
    int64_t at = 0, written = 0;
    while (at < len) {
        int64_t done, n = store_batch(w, offset + at, len - at, bytes + at, &done);
        if (n < 0) {
            break;
        }
        at += done;
        written += n;
    }
    if (written > 0) {
        rp_lock_acquire(&w->cache->lock);
        w->object->touched_ns = rp_now_ns(); /* writing has set the map's time */
        rp_lock_release(&w->cache->lock);
        rp_node_account(w->cache, w->root, written);
    }
}

static void decline(rp_node_cache *cache, int64_t len)
{
    rp_lock_acquire(&cache->lock);
    cache->stats.declined_bytes += len;
    cache->full_ns = rp_now_ns() + FULL_NS;
    rp_lock_release(&cache->lock);
}

void rp_node_cache_store(rp_node_cache *cache, const char *key, int64_t size, int64_t offset,
                         int64_t len, const uint8_t *bytes)
{
    if (!rp_node_args_ok(key, size, offset, len) || len == 0 || rp_node_off(cache) != 0) {
        rp_node_cache_release(cache, key, size, offset, len);
        return;
    }
    int root = rp_node_open_root(cache, true);
    bool room = root >= 0 && rp_node_room(cache, root, len);
    if (root >= 0) {
        (void)close(root); /* a folder: nothing to lose */
    }
    if (root < 0 || rp_node_off(cache) == RP_NODE_OFF) {
        return;
    }
    room = room && rp_node_off(cache) == 0;
    struct writing w;
    if (writing_begin(&w, cache, key, size, room ? RP_NODE_MAKE : RP_NODE_WRITE)) {
        bool claimed = has_claim(&w, offset, len); /* while the bytes are missing */
        if (room) {
            store_all(&w, offset, len, bytes);
        }
        if (claimed) { /* also where the disk is full: a record may still find its place */
            (void)append_one(&w, RP_NODE_OVER, offset, len, 0); /* a failure has been reported */
        }
        (void)rp_node_refresh(cache, w.object, w.files.map); /* the same */
    }
    writing_end(&w);
    if (!room) {
        decline(cache, len);
    }
}

void rp_node_cache_release(rp_node_cache *cache, const char *key, int64_t size, int64_t offset,
                           int64_t len)
{
    if (!rp_node_args_ok(key, size, offset, len) || len == 0 || rp_node_off(cache) == RP_NODE_OFF) {
        return;
    }
    struct writing w;
    if (writing_begin(&w, cache, key, size, RP_NODE_WRITE)) {
        end_claim(&w, offset, len);
    }
    writing_end(&w);
}

/* ---- claims */

/* A live foreign claim, recorded before record `before`, on missing bytes of the range. */
static bool is_claimed(struct writing *w, int64_t offset, int64_t len, uint32_t before)
{
    rp_node_cache *cache = w->cache;
    for (;;) {
        rp_lock_acquire(&cache->lock);
        const struct rp_node_intent *found = rp_node_view_intent(
            &w->object->view, offset, len, cache->owner, true, before, rp_node_time_ns());
        struct rp_node_intent intent = found != NULL ? *found : (struct rp_node_intent){0};
        rp_lock_release(&cache->lock);
        if (found == NULL) {
            return false;
        }
        /* another one of this process is alive; EPERM: another user's, which cannot be ours */
        if (intent.pid == cache->pid ||
            (intent.pid <= INT32_MAX && intent.pid > 0 && kill((pid_t)intent.pid, 0) == 0)) {
            return true;
        }
        rp_lock_acquire(&cache->lock);
        rp_node_view_bury(&w->object->view, intent.owner, intent.serial);
        rp_lock_release(&cache->lock);
    }
}

/* A recent claim of our own holds the range: where in the map, or false. */
static bool own_claim(struct writing *w, int64_t offset, int64_t len, uint32_t serial, uint32_t *at)
{
    struct rp_node_view *view = &w->object->view;
    int64_t now = rp_node_time_ns();
    bool found = false;
    rp_lock_acquire(&w->cache->lock);
    for (size_t i = 0; i < view->intents && !found; i++) {
        const struct rp_node_intent *intent = &view->intent[i];
        found = intent->owner == w->cache->owner && intent->offset <= offset &&
                intent->offset + intent->len >= offset + len &&
                (serial != 0 ? intent->serial == serial : now - intent->time_ns < REFRESH_NS);
        if (found) {
            *at = intent->at;
        }
    }
    rp_lock_release(&w->cache->lock);
    return found;
}

static rp_status claim(struct writing *w, int64_t offset, int64_t len)
{
    uint32_t at;
    if (is_there(w, offset, len) || is_claimed(w, offset, len, UINT32_MAX)) {
        return RP_AGAIN;
    }
    if (own_claim(w, offset, len, 0, &at)) {
        return RP_OK;
    }
    rp_lock_acquire(&w->cache->lock);
    uint32_t serial = ++w->cache->serial;
    rp_lock_release(&w->cache->lock);
    if (!append_one(w, RP_NODE_INTENT, offset, len, serial) ||
        !rp_node_refresh(w->cache, w->object, w->files.map)) {
        return RP_OK;
    }
    /* of two at the same time, the one whose record is first in the map fetches */
    if (own_claim(w, offset, len, serial, &at) && is_claimed(w, offset, len, at)) {
        end_claim(w, offset, len);
        return RP_AGAIN;
    }
    return is_there(w, offset, len) ? RP_AGAIN : RP_OK;
}

rp_status rp_node_cache_claim(rp_node_cache *cache, const char *key, int64_t size, int64_t offset,
                              int64_t len)
{
    if (!rp_node_args_ok(key, size, offset, len) || len == 0) {
        return RP_OK;
    }
    rp_lock_acquire(&cache->lock);
    bool idle = cache->stats.off != 0 || rp_now_ns() < cache->full_ns;
    rp_lock_release(&cache->lock);
    if (idle) {
        return RP_OK;
    }
    struct writing w;
    rp_status status =
        writing_begin(&w, cache, key, size, RP_NODE_MAKE) ? claim(&w, offset, len) : RP_OK;
    writing_end(&w);
    rp_lock_acquire(&cache->lock);
    cache->stats.waits += status == RP_AGAIN;
    rp_lock_release(&cache->lock);
    return status;
}
