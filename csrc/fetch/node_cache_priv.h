/* Inside the node cache: calls (node_cache.c: reading; node_cache_store.c: storing, claims), open
 * objects (node_cache_table.c), safe opening and removing (node_cache_disk.c), room and eviction
 * (node_cache_room.c). */
#ifndef RP_FETCH_NODE_CACHE_PRIV_H
#define RP_FETCH_NODE_CACHE_PRIV_H

#include "base/thread.h"
#include "fetch/node_cache.h"
#include "fetch/node_cache_map.h"

#include <stddef.h>
#include <sys/stat.h>

/* ---- node_cache.c: the shared state. */

#define RP_NODE_OBJECTS 192 /* open at once, one descriptor each */

struct rp_node_object {
    char key[RP_NODE_KEY_MAX + 1];
    int fd; /* of `data`, for reading */
    dev_t dev;
    ino_t ino;          /* of `data`: pinned by fd, tells this object from its successor */
    int users;          /* calls that use it */
    bool listed;        /* in the table; else the last user frees it */
    int64_t last_ns;    /* used, monotonic clock */
    int64_t touched_ns; /* when the map's time was set last, 0 never */
    struct rp_node_view view;
};

struct rp_node_cache {
    rp_lock lock; /* held without I/O */
    uint64_t generation, owner;
    uint32_t pid;
    char *dir;
    int64_t max_bytes;
    double keep_free;
    /* guarded by lock: */
    struct rp_node_object *object[RP_NODE_OBJECTS];
    int objects;
    struct rp_node_cache_stats stats;
    struct rp_error why;
    bool told;
    uint32_t serial;
    int64_t carry;   /* bytes stored that `grown` does not show yet */
    int64_t full_ns; /* until then (monotonic) nothing is claimed: there is no room */
};

/* Switch off: errno `code` of `verb` at `name` (below the folder). 0: `verb` is the whole reason,
 * and the cache is not used at all from now on. That something is not there, or that memory or
 * descriptors are short, is passed over. */
void rp_node_trouble(rp_node_cache *cache, const char *verb, const char *name, int code);

/* Nanoseconds since 1970. */
int64_t rp_node_time_ns(void);

/* Key and range as they should be. */
bool rp_node_args_ok(const char *key, int64_t size, int64_t offset, int64_t len);

#define RP_NODE_READ_ONLY 1 /* values of stats.off */
#define RP_NODE_OFF       2

int rp_node_off(rp_node_cache *cache);

struct rp_node_files {
    int dir, map, data; /* -1: closed */
    dev_t dev;
    ino_t ino; /* of data */
};

/* ---- node_cache_table.c: the objects that are open. */

/* The object with one more user; NULL: it is not open. */
struct rp_node_object *rp_node_object_find(rp_node_cache *cache, const char *key, int64_t size);

/* The object of these files, with one more user: the one in the table, or a new one in its place.
 * NULL: no memory or descriptor. */
struct rp_node_object *rp_node_object_of(rp_node_cache *cache, const char *key, int64_t size,
                                         const struct rp_node_files *files);

/* One user less; the last one of an object that is no longer in the table frees it. */
void rp_node_object_drop(rp_node_cache *cache, struct rp_node_object *object);
void rp_node_object_free(struct rp_node_object *object);

/* Add what the map has beyond what is known. False: it could not be read. */
bool rp_node_refresh(rp_node_cache *cache, struct rp_node_object *object, int map);

/* ---- node_cache_disk.c. Descriptors: -1 and errno; trouble has been reported. */

/* The folder `v1`, checked: ours, writable by nobody else. */
int rp_node_open_root(rp_node_cache *cache, bool make);

enum rp_node_mode { RP_NODE_READ, RP_NODE_WRITE, RP_NODE_MAKE };

/* Folder and files of an object below root; MAKE makes what is not there. False: nothing is
 * open. */
bool rp_node_open_object(rp_node_cache *cache, int root, const char *key, enum rp_node_mode mode,
                         struct rp_node_files *out);
void rp_node_close_object(struct rp_node_files *files);

/* A file of the cache's own in folder `at`, checked. */
int rp_node_open_file(rp_node_cache *cache, int at, const char *name, int flags, struct stat *st);

/* Exactly len bytes at offset: 1, or 0 where the file ends before, or -1 with errno. */
int rp_node_pread(int fd, uint8_t *to, size_t len, int64_t offset);
bool rp_node_pwrite(int fd, const uint8_t *from, size_t len, int64_t offset);

/* One write(2) at the end; false with errno when it was not all written. */
bool rp_node_append(int fd, const uint8_t *from, size_t len);

/* "<aa>/<key>" of a key. */
void rp_node_object_name(const char *key, char out[RP_NODE_KEY_MAX + 4]);

/* Take an object out of the tree, then remove it; readers that have it open go on. `name` is
 * "<aa>/<key>". False: it was not there, or stays. */
bool rp_node_remove(rp_node_cache *cache, int root, const char *name);

/* Say that an object is in use: the map's time is now. */
void rp_node_touch(rp_node_cache *cache, const char *key);

/* ---- node_cache_room.c */

/* Whether len more bytes may be kept; makes room first where there is none, unless another process
 * is at it. Blocks: on the disk. */
bool rp_node_room(rp_node_cache *cache, int root, int64_t len);

/* Tell all processes that len bytes were kept. */
void rp_node_account(rp_node_cache *cache, int root, int64_t len);

#endif
