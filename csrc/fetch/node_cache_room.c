#include "fetch/node_cache_priv.h"

#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* What the cache holds is measured by the process that evicts, into the file `measured`. Since then
 * each process has made the file `grown` longer by one byte per UNIT that it kept: its length is a
 * sum that needs no lock and survives any kill. */
#define UNIT         (256 << 10)
#define GROWN_MAX    (64 << 20)      /* then the sum begins anew */
#define RECENT_NS    600000000000LL  /* an object used since then stays */
#define STALE_NS     3600000000000LL /* measured anew after that, whatever was kept */
#define FRUITLESS_NS 30000000000LL   /* between two attempts when nothing may go */

struct used {
    bool known;
    int64_t bytes;    /* now */
    int64_t measured; /* by the last sweep */
    int64_t age_ns;   /* of that */
    int64_t grown;    /* length of the file now */
};

struct held { /* one object */
    char name[RP_NODE_KEY_MAX + 4];
    int64_t bytes, last_ns;
};

struct sweep {
    rp_node_cache *cache;
    int root;
    int64_t now_ns, total;
    struct held *held;
    size_t n, cap;
    bool failed; /* not everything was seen */
};

static struct used how_much(rp_node_cache *cache, int root)
{
    struct used used = {.age_ns = INT64_MAX};
    struct stat st;
    int fd = rp_node_open_file(cache, root, "grown", O_WRONLY | O_CREAT | O_APPEND, &st);
    if (fd < 0) {
        return used;
    }
    (void)close(fd); /* nothing was written */
    used.grown = st.st_size;
    fd = rp_node_open_file(cache, root, "measured", O_RDONLY, &st);
    uint8_t bytes[RP_NODE_RECORD];
    struct rp_node_record record;
    if (fd >= 0 && rp_node_pread(fd, bytes, sizeof(bytes), 0) == 1 &&
        rp_node_record_read(bytes, &record) && record.kind == RP_NODE_MEASURE &&
        record.len <= used.grown && record.offset < INT64_MAX / 2) {
        used.known = true;
        used.measured = record.offset;
        used.bytes = record.offset + (used.grown - record.len) * UNIT;
        used.age_ns = rp_node_time_ns() - record.time_ns;
        used.age_ns = used.age_ns < 0 ? INT64_MAX : used.age_ns; /* the clock was set back */
    }
    if (fd >= 0) {
        (void)close(fd); /* nothing was written */
    }
    return used;
}

/* Bytes that the cache may hold: the bound, or less where the file system is full. */
static int64_t bound(rp_node_cache *cache, int root, int64_t used)
{
    struct statvfs fs;
    if (cache->keep_free <= 0 || fstatvfs(root, &fs) != 0) {
        return cache->max_bytes;
    }
    double block = (double)fs.f_frsize;
    double spare = (double)fs.f_bavail * block - cache->keep_free * (double)fs.f_blocks * block;
    double most = (double)used + spare;
    return most < (double)cache->max_bytes ? (int64_t)most : cache->max_bytes;
}

/* Blocks on the disk and last use of one object. */
static void look_at(struct sweep *sweep, int at, const char *prefix, const char *key)
{
    char path[RP_NODE_KEY_MAX + 12];
    struct stat data, map;
    int64_t bytes = 0, last = 0;
    (void)snprintf(path, sizeof(path), "%.80s/data", key);
    if (fstatat(at, path, &data, AT_SYMLINK_NOFOLLOW) == 0) {
        bytes += (int64_t)data.st_blocks * 512;
        last = (int64_t)data.st_mtim.tv_sec * 1000000000 + data.st_mtim.tv_nsec;
    }
    (void)snprintf(path, sizeof(path), "%.80s/map", key);
    if (fstatat(at, path, &map, AT_SYMLINK_NOFOLLOW) == 0) {
        int64_t used = (int64_t)map.st_mtim.tv_sec * 1000000000 + map.st_mtim.tv_nsec;
        bytes += (int64_t)map.st_blocks * 512;
        last = used > last ? used : last;
    }
    if (sweep->n == sweep->cap) {
        size_t cap = sweep->cap == 0 ? 256 : 2 * sweep->cap;
        struct held *grown = rp_realloc(sweep->held, cap, sizeof(*grown));
        if (grown == NULL) {
            sweep->failed = true;
            return;
        }
        sweep->held = grown;
        sweep->cap = cap;
    }
    struct held *held = &sweep->held[sweep->n++];
    (void)snprintf(held->name, sizeof(held->name), "%.2s/%.80s", prefix, key);
    held->bytes = bytes;
    held->last_ns = last;
    sweep->total += bytes;
}

static DIR *open_list(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && list == NULL) {
        (void)close(fd); /* a folder: nothing to lose */
    }
    return list;
}

static void walk_prefix(struct sweep *sweep, const char *prefix)
{
    DIR *list = open_list(sweep->root, prefix);
    if (list == NULL) {
        sweep->failed |= errno != ENOENT && errno != ENOTDIR;
        return;
    }
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        if (rp_node_cache_key_ok(entry->d_name)) {
            look_at(sweep, dirfd(list), prefix, entry->d_name);
        }
        else if (strncmp(entry->d_name, ".gone-", 6) == 0) {
            char name[300];
            (void)snprintf(name, sizeof(name), "%.2s/%s", prefix, entry->d_name);
            (void)rp_node_remove(sweep->cache, sweep->root, name); /* next time, then */
        }
    }
    (void)closedir(list); /* a folder: nothing to lose */
}

static void walk(struct sweep *sweep)
{
    DIR *list = open_list(sweep->root, ".");
    if (list == NULL) {
        sweep->failed = true;
        return;
    }
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        if (strlen(entry->d_name) == 2 && entry->d_name[0] != '.') {
            walk_prefix(sweep, entry->d_name);
        }
    }
    (void)closedir(list); /* a folder: nothing to lose */
}

static int by_last_use(const void *a, const void *b)
{
    const struct held *x = a, *y = b;
    return x->last_ns < y->last_ns ? -1 : x->last_ns > y->last_ns;
}

/* Not used since it was seen. */
static bool is_as_seen(const struct sweep *sweep, const struct held *held)
{
    char path[RP_NODE_KEY_MAX + 12];
    struct stat map;
    (void)snprintf(path, sizeof(path), "%s/map", held->name);
    return fstatat(sweep->root, path, &map, AT_SYMLINK_NOFOLLOW) != 0 ||
           (int64_t)map.st_mtim.tv_sec * 1000000000 + map.st_mtim.tv_nsec <= held->last_ns;
}

static void evict(struct sweep *sweep, int64_t down_to)
{
    if (sweep->n > 0) {
        qsort(sweep->held, sweep->n, sizeof(*sweep->held), by_last_use);
    }
    int64_t removed = 0;
    for (size_t i = 0; i < sweep->n && sweep->total > down_to; i++) {
        const struct held *held = &sweep->held[i];
        if (held->last_ns > sweep->now_ns - RECENT_NS) {
            break; /* this one and all that follow */
        }
        if (is_as_seen(sweep, held) && rp_node_remove(sweep->cache, sweep->root, held->name)) {
            sweep->total -= held->bytes;
            removed++;
        }
    }
    rp_lock_acquire(&sweep->cache->lock);
    sweep->cache->stats.evicted += removed;
    rp_lock_release(&sweep->cache->lock);
}

static void publish(struct sweep *sweep, int64_t grown)
{
    struct stat st;
    uint8_t bytes[RP_NODE_RECORD];
    struct rp_node_record record = {.kind = RP_NODE_MEASURE,
                                    .offset = sweep->total,
                                    .len = grown,
                                    .time_ns = rp_node_time_ns(),
                                    .pid = sweep->cache->pid,
                                    .owner = sweep->cache->owner};
    rp_node_record_write(&record, bytes);
    int fd = rp_node_open_file(sweep->cache, sweep->root, "measured", O_WRONLY | O_CREAT, &st);
    if (fd >= 0) {
        if (!rp_node_pwrite(fd, bytes, sizeof(bytes), 0)) {
            rp_node_trouble(sweep->cache, "write", "measured", errno);
        }
        (void)close(fd); /* a lost record is measured again */
    }
}

/* Measure; where len more bytes would pass 95 % of the bound, evict until they stay below 90 %. */
static void sweep_held(rp_node_cache *cache, int root, struct used used, int64_t len)
{
    struct sweep sweep = {.cache = cache, .root = root, .now_ns = rp_node_time_ns()};
    walk(&sweep);
    if (!sweep.failed) {
        int64_t most = bound(cache, root, sweep.total);
        if (sweep.total > most - most / 20 - len) {
            evict(&sweep, most - most / 10 - len);
        }
        if (used.grown > GROWN_MAX && unlinkat(root, "grown", 0) == 0) {
            used.grown = 0;
        }
        publish(&sweep, used.grown);
    }
    rp_free(sweep.held);
}

/* Sweep if nobody else does. */
static bool try_sweep(rp_node_cache *cache, int root, int64_t len)
{
    struct stat st;
    int fd = rp_node_open_file(cache, root, "lock", O_RDWR | O_CREAT, &st);
    if (fd < 0) {
        return false;
    }
    bool mine = flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (mine) {
        sweep_held(cache, root, how_much(cache, root), len); /* grown as of before the walk */
        (void)flock(fd, LOCK_UN); /* a forked child may have inherited fd */
    }
    (void)close(fd); /* holds nothing */
    return mine;
}

/* More than 95 % would be used, and the last sweep does not say that nothing may go. */
static bool is_due(const struct used *used, int64_t most, int64_t len)
{
    int64_t soft = most - most / 20;
    if (!used->known || used->age_ns > STALE_NS) {
        return true;
    }
    return used->bytes > soft - len &&
           (used->measured <= soft - len || used->age_ns > FRUITLESS_NS);
}

bool rp_node_room(rp_node_cache *cache, int root, int64_t len)
{
    struct used used = how_much(cache, root);
    if (len > cache->max_bytes) {
        return false;
    }
    if (is_due(&used, bound(cache, root, used.bytes), len) && try_sweep(cache, root, len)) {
        used = how_much(cache, root);
    }
    return !used.known || used.bytes <= bound(cache, root, used.bytes) - len;
}

void rp_node_account(rp_node_cache *cache, int root, int64_t len)
{
    static const uint8_t zeros[256];
    rp_lock_acquire(&cache->lock);
    cache->carry += len;
    int64_t units = cache->carry / UNIT;
    cache->carry %= UNIT;
    cache->stats.stored_bytes += len;
    rp_lock_release(&cache->lock);
    struct stat st;
    int fd = units > 0 ? rp_node_open_file(cache, root, "grown", O_WRONLY | O_CREAT | O_APPEND, &st)
                       : -1;
    while (fd >= 0 && units > 0) {
        size_t n = units < (int64_t)sizeof(zeros) ? (size_t)units : sizeof(zeros);
        if (!rp_node_append(fd, zeros, n)) {
            rp_node_trouble(cache, "write", "grown", errno);
            break;
        }
        units -= (int64_t)n;
    }
    if (fd >= 0) {
        (void)close(fd); /* what is lost here is measured later */
    }
}
