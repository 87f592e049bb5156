/* The map of an object of the node cache: its records, and what they say together. Pure: no I/O,
 * no lock; input may be hostile. */
#ifndef RP_FETCH_NODE_CACHE_MAP_H
#define RP_FETCH_NODE_CACHE_MAP_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_NODE_RECORD     64          /* bytes */
#define RP_NODE_PIECE      (256 << 10) /* stored ranges are cut at its multiples */
#define RP_NODE_EXTENT_MAX (16 << 20)  /* longest piece that a map may name */
#define RP_NODE_MAP_MAX    (16 << 20)  /* bytes; a longer map is a damaged one */
#define RP_NODE_INTENT_NS  30000000000LL
#define RP_NODE_INTENTS    256 /* of one object that are remembered */

enum rp_node_kind {
    RP_NODE_EXTENT = 1, /* these bytes are in `data` */
    RP_NODE_INTENT = 2, /* `owner` fetches these bytes */
    RP_NODE_OVER = 3,   /* it no longer does */
    RP_NODE_MEASURE = 4 /* of the file `measured`: offset bytes used when `grown` had len bytes */
};

/* Little-endian: kind u32, crc u32, offset u64, len u64, size u64, time i64, pid u32, serial u32,
 * owner u64, 0 u32, CRC-32C of the 60 bytes before u32. */
struct rp_node_record {
    enum rp_node_kind kind;
    uint32_t crc; /* of the bytes of an extent */
    int64_t offset, len, size;
    int64_t time_ns; /* since 1970 */
    uint32_t pid, serial;
    uint64_t owner; /* a number drawn by each rp_node_cache */
};

struct rp_node_extent {
    int64_t offset;
    uint32_t len, crc;
    uint32_t at; /* number of its record in the map */
};

struct rp_node_intent {
    int64_t offset, len, time_ns;
    uint64_t owner;
    uint32_t pid, serial, at;
};

/* What is known of one object. Zeroed but for `size`: nothing yet. */
struct rp_node_view {
    int64_t size;                  /* of the file; records that say another are skipped */
    int64_t parsed;                /* bytes of the map that have been added */
    uint8_t last[RP_NODE_RECORD];  /* the record that ends there */
    bool bad;                      /* the record at `parsed` is damaged */
    struct rp_node_extent *extent; /* by (offset, len) */
    size_t extents, extent_cap;
    int64_t longest; /* extent */
    struct rp_node_intent *intent;
    size_t intents, intent_cap;
};

void rp_node_record_write(const struct rp_node_record *record, uint8_t to[RP_NODE_RECORD]);
bool rp_node_record_read(const uint8_t from[RP_NODE_RECORD], struct rp_node_record *out);

/* Add the whole records of `bytes`, which follow what was added before, up to the first bad one.
 * RP_E_NOMEM: some may be missing for good (a loss, no lie). */
RP_CHECKED rp_status rp_node_view_add(struct rp_node_view *view, const uint8_t *bytes, size_t len,
                                      int64_t now_ns);
void rp_node_view_free(struct rp_node_view *view);

/* The extents that hold [offset, offset + len), each reaching on from where the one before ends; at
 * most max of them. Returns their number and where the last one ends in *end; 0: the byte at
 * `offset` is not there, *end = offset. A gap later ends the list. */
size_t rp_node_view_cover(const struct rp_node_view *view, int64_t offset, int64_t len,
                          struct rp_node_extent *out, size_t max, int64_t *end);

/* The first stretch of [*offset, *offset + *len) that is not there; false: all of it is there. */
bool rp_node_view_gap(const struct rp_node_view *view, int64_t *offset, int64_t *len);

/* The extent turned out to be damaged. */
void rp_node_view_forget(struct rp_node_view *view, const struct rp_node_extent *extent);

/* A live intent on missing bytes of the range: foreign (of another owner, recorded before record
 * `before`), or own. NULL: none. Borrowed until the view changes. */
const struct rp_node_intent *rp_node_view_intent(const struct rp_node_view *view, int64_t offset,
                                                 int64_t len, uint64_t owner, bool foreign,
                                                 uint32_t before, int64_t now_ns);

/* The process of that intent is gone. */
void rp_node_view_bury(struct rp_node_view *view, uint64_t owner, uint32_t serial);

#endif
