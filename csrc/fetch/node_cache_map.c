#include "fetch/node_cache_map.h"

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#define SUMMED (RP_NODE_RECORD - 4) /* bytes before the sum */

void rp_node_record_write(const struct rp_node_record *record, uint8_t to[RP_NODE_RECORD])
{
    rp_put_le32(to, (uint32_t)record->kind);
    rp_put_le32(to + 4, record->crc);
    rp_put_le64(to + 8, (uint64_t)record->offset);
    rp_put_le64(to + 16, (uint64_t)record->len);
    rp_put_le64(to + 24, (uint64_t)record->size);
    rp_put_le64(to + 32, (uint64_t)record->time_ns);
    rp_put_le32(to + 40, record->pid);
    rp_put_le32(to + 44, record->serial);
    rp_put_le64(to + 48, record->owner);
    rp_put_le32(to + 56, 0);
    rp_put_le32(to + SUMMED, rp_crc32c(0, to, SUMMED));
}

static bool in_range(const struct rp_node_record *record)
{
    if (record->offset < 0 || record->len < 0 || record->size < 0) {
        return false;
    }
    if (record->kind == RP_NODE_MEASURE) {
        return true;
    }
    if (record->kind == RP_NODE_EXTENT && record->len > RP_NODE_EXTENT_MAX) {
        return false;
    }
    return record->kind >= RP_NODE_EXTENT && record->kind <= RP_NODE_OVER && record->len > 0 &&
           record->offset <= record->size && record->len <= record->size - record->offset;
}

bool rp_node_record_read(const uint8_t from[RP_NODE_RECORD], struct rp_node_record *out)
{
    if (rp_crc32c(0, from, SUMMED) != rp_le32(from + SUMMED)) {
        return false;
    }
    uint32_t kind = rp_le32(from);
    if (kind < RP_NODE_EXTENT || kind > RP_NODE_MEASURE || rp_le32(from + 56) != 0) {
        return false;
    }
    struct rp_node_record record = {.kind = (enum rp_node_kind)kind,
                                    .crc = rp_le32(from + 4),
                                    .offset = (int64_t)rp_le64(from + 8),
                                    .len = (int64_t)rp_le64(from + 16),
                                    .size = (int64_t)rp_le64(from + 24),
                                    .time_ns = (int64_t)rp_le64(from + 32),
                                    .pid = rp_le32(from + 40),
                                    .serial = rp_le32(from + 44),
                                    .owner = rp_le64(from + 48)};
    if (!in_range(&record)) {
        return false;
    }
    *out = record;
    return true;
}

static bool is_live(int64_t time_ns, int64_t now_ns)
{
    int64_t age; /* clocks are set back, too: an intent of the future is none */
    return !__builtin_sub_overflow(now_ns, time_ns, &age) && age > -1000000000 &&
           age < RP_NODE_INTENT_NS;
}

static rp_status add_extent(struct rp_node_view *view, const struct rp_node_record *record,
                            uint32_t at)
{
    if (view->extents == view->extent_cap) {
        size_t cap = view->extent_cap == 0 ? 32 : 2 * view->extent_cap;
        struct rp_node_extent *grown = rp_realloc(view->extent, cap, sizeof(*grown));
        if (grown == NULL) {
            return RP_E_NOMEM;
        }
        view->extent = grown;
        view->extent_cap = cap;
    }
    view->extent[view->extents++] = (struct rp_node_extent){
        .offset = record->offset, .len = (uint32_t)record->len, .crc = record->crc, .at = at};
    view->longest = record->len > view->longest ? record->len : view->longest;
    return RP_OK;
}

static void drop_intent(struct rp_node_view *view, size_t i)
{
    view->intent[i] = view->intent[--view->intents];
}

static rp_status add_intent(struct rp_node_view *view, const struct rp_node_record *record,
                            uint32_t at, int64_t now_ns)
{
    for (size_t i = view->intents; i-- > 0;) {
        if (!is_live(view->intent[i].time_ns, now_ns)) {
            drop_intent(view, i);
        }
    }
    if (!is_live(record->time_ns, now_ns) || view->intents == RP_NODE_INTENTS) {
        return RP_OK;
    }
    if (view->intents == view->intent_cap) {
        size_t cap = view->intent_cap == 0 ? 4 : 2 * view->intent_cap;
        struct rp_node_intent *grown = rp_realloc(view->intent, cap, sizeof(*grown));
        if (grown == NULL) {
            return RP_E_NOMEM;
        }
        view->intent = grown;
        view->intent_cap = cap;
    }
    view->intent[view->intents++] = (struct rp_node_intent){.offset = record->offset,
                                                            .len = record->len,
                                                            .time_ns = record->time_ns,
                                                            .owner = record->owner,
                                                            .pid = record->pid,
                                                            .serial = record->serial,
                                                            .at = at};
    return RP_OK;
}

/* Cut the range out of its owner's intents; from the middle of one, nothing is cut. */
static void end_intents(struct rp_node_view *view, const struct rp_node_record *over)
{
    int64_t from = over->offset, to = over->offset + over->len;
    for (size_t i = view->intents; i-- > 0;) {
        struct rp_node_intent *intent = &view->intent[i];
        int64_t end = intent->offset + intent->len;
        if (intent->owner != over->owner || from >= end || to <= intent->offset) {
            continue;
        }
        if (from <= intent->offset && to >= end) {
            drop_intent(view, i);
        }
        else if (from <= intent->offset) {
            intent->offset = to;
            intent->len = end - to;
        }
        else if (to >= end) {
            intent->len = from - intent->offset;
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const struct rp_node_extent *x = a, *y = b;
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    if (x->len != y->len) {
        return x->len < y->len ? -1 : 1;
    }
    return x->at < y->at ? -1 : x->at > y->at;
}

/* By place; of several records of one range the last counts. */
static void put_in_order(struct rp_node_view *view)
{
    if (view->extents == 0) {
        return;
    }
    qsort(view->extent, view->extents, sizeof(*view->extent), by_place);
    size_t n = 1;
    for (size_t i = 1; i < view->extents; i++) {
        struct rp_node_extent *last = &view->extent[n - 1], *next = &view->extent[i];
        bool same = last->offset == next->offset && last->len == next->len;
        view->extent[same ? n - 1 : n] = *next;
        n += !same;
    }
    view->extents = n;
}

rp_status rp_node_view_add(struct rp_node_view *view, const uint8_t *bytes, size_t len,
                           int64_t now_ns)
{
    rp_status status = RP_OK;
    bool more = false;
    view->bad = false;
    for (; len >= RP_NODE_RECORD; bytes += RP_NODE_RECORD, len -= RP_NODE_RECORD) {
        struct rp_node_record record;
        if (!rp_node_record_read(bytes, &record) || record.kind == RP_NODE_MEASURE ||
            view->parsed >= RP_NODE_MAP_MAX) {
            view->bad = true;
            break;
        }
        uint32_t at = (uint32_t)(view->parsed / RP_NODE_RECORD);
        view->parsed += RP_NODE_RECORD;
        memcpy(view->last, bytes, RP_NODE_RECORD);
        if (record.size != view->size) {
            continue;
        }
        rp_status added = RP_OK;
        if (record.kind == RP_NODE_EXTENT) {
            added = add_extent(view, &record, at);
            more = true;
        }
        else if (record.kind == RP_NODE_INTENT) {
            added = add_intent(view, &record, at, now_ns);
        }
        else {
            end_intents(view, &record);
        }
        status = status == RP_OK ? added : status;
    }
    if (more) {
        put_in_order(view);
    }
    return status;
}

void rp_node_view_free(struct rp_node_view *view)
{
    rp_free(view->extent);
    rp_free(view->intent);
    view->extent = NULL;
    view->intent = NULL;
    view->extents = view->intents = view->extent_cap = view->intent_cap = 0;
}

/* Number of extents that begin at or before `offset`. */
static size_t begun(const struct rp_node_view *view, int64_t offset)
{
    size_t low = 0, high = view->extents;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (view->extent[mid].offset <= offset) {
            low = mid + 1;
        }
        else {
            high = mid;
        }
    }
    return low;
}

/* The extent that holds byte `offset` and reaches furthest; NULL: it is not there. */
static const struct rp_node_extent *holder(const struct rp_node_view *view, int64_t offset)
{
    const struct rp_node_extent *best = NULL;
    for (size_t i = begun(view, offset); i-- > 0;) {
        const struct rp_node_extent *extent = &view->extent[i];
        if (extent->offset <= offset - view->longest) {
            break;
        }
        int64_t end = extent->offset + extent->len;
        if (end > offset && (best == NULL || end > best->offset + best->len)) {
            best = extent;
        }
    }
    return best;
}

size_t rp_node_view_cover(const struct rp_node_view *view, int64_t offset, int64_t len,
                          struct rp_node_extent *out, size_t max, int64_t *end)
{
    size_t n = 0;
    int64_t at = offset, stop = offset + len;
    while (n < max && at < stop) {
        const struct rp_node_extent *extent = holder(view, at);
        if (extent == NULL) {
            break;
        }
        out[n++] = *extent;
        at = extent->offset + extent->len;
    }
    *end = at;
    return n;
}

bool rp_node_view_gap(const struct rp_node_view *view, int64_t *offset, int64_t *len)
{
    int64_t at = *offset, stop = *offset + *len;
    for (const struct rp_node_extent *extent; at < stop;) {
        extent = holder(view, at);
        if (extent == NULL) {
            size_t next = begun(view, at);
            bool ends = next < view->extents && view->extent[next].offset < stop;
            *offset = at;
            *len = (ends ? view->extent[next].offset : stop) - at;
            return true;
        }
        at = extent->offset + extent->len;
    }
    return false;
}

void rp_node_view_forget(struct rp_node_view *view, const struct rp_node_extent *extent)
{
    for (size_t i = begun(view, extent->offset); i-- > 0;) {
        if (view->extent[i].offset < extent->offset) {
            return;
        }
        if (view->extent[i].len == extent->len && view->extent[i].at == extent->at) {
            view->extents--;
            memmove(&view->extent[i], &view->extent[i + 1],
                    (view->extents - i) * sizeof(*view->extent));
            return;
        }
    }
}

static const struct rp_node_intent *intent_in(const struct rp_node_view *view, int64_t offset,
                                              int64_t len, uint64_t owner, bool foreign,
                                              uint32_t before, int64_t now_ns)
{
    for (size_t i = 0; i < view->intents; i++) {
        const struct rp_node_intent *intent = &view->intent[i];
        if ((intent->owner != owner) == foreign && (!foreign || intent->at < before) &&
            is_live(intent->time_ns, now_ns) && intent->offset < offset + len &&
            intent->offset + intent->len > offset) {
            return intent;
        }
    }
    return NULL;
}

const struct rp_node_intent *rp_node_view_intent(const struct rp_node_view *view, int64_t offset,
                                                 int64_t len, uint64_t owner, bool foreign,
                                                 uint32_t before, int64_t now_ns)
{
    int64_t stop = offset + len, gap = offset, gap_len = len;
    while (gap < stop && rp_node_view_gap(view, &gap, &gap_len)) {
        const struct rp_node_intent *found =
            intent_in(view, gap, gap_len, owner, foreign, before, now_ns);
        if (found != NULL) {
            return found;
        }
        gap += gap_len;
        gap_len = stop - gap;
    }
    return NULL;
}

void rp_node_view_bury(struct rp_node_view *view, uint64_t owner, uint32_t serial)
{
    for (size_t i = view->intents; i-- > 0;) {
        if (view->intent[i].owner == owner && view->intent[i].serial == serial) {
            drop_intent(view, i);
        }
    }
}
