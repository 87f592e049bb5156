/* Any bytes as the map of an object: no wild access, and what the view then says of ranges is
 * consistent with itself. An input whose first byte is odd gets the sums of its records put right
 * first, so that the fields behind them are met. Maps grow: the rest of the input is added in
 * parts. */
#include "base/crc32c.h"
#include "fetch/node_cache_map.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)  \
    do {                    \
        if (!(condition)) { \
            abort();        \
        }                   \
    } while (0)

enum { NOW = 1000000000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void repair(uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at + RP_NODE_RECORD <= size; at += RP_NODE_RECORD) {
        memset(bytes + at + 1, 0, 3); /* the kind */
        memset(bytes + at + 56, 0, 4);
        uint32_t sum = rp_crc32c(0, bytes + at, RP_NODE_RECORD - 4);
        for (int i = 0; i < 4; i++) {
            bytes[at + RP_NODE_RECORD - 4 + i] = (uint8_t)(sum >> 8 * i);
        }
    }
}

static void check_record(const uint8_t *bytes)
{
    struct rp_node_record record;
    if (rp_node_record_read(bytes, &record)) {
        uint8_t again[RP_NODE_RECORD];
        rp_node_record_write(&record, again);
        PROMISE(memcmp(again, bytes, RP_NODE_RECORD) == 0);
    }
}

static void check_range(struct rp_node_view *view, int64_t offset, int64_t len)
{
    struct rp_node_extent extent[8];
    int64_t end, at = offset, gap = offset, gap_len = len;
    size_t n = rp_node_view_cover(view, offset, len, extent, 8, &end);
    for (size_t i = 0; i < n; i++) {
        PROMISE(extent[i].offset <= at && extent[i].offset + extent[i].len > at);
        PROMISE(extent[i].offset + extent[i].len <= view->size);
        at = extent[i].offset + extent[i].len;
    }
    PROMISE(at == end);
    bool missing = rp_node_view_gap(view, &gap, &gap_len);
    PROMISE(!missing || (gap >= offset && gap_len > 0 && gap + gap_len <= offset + len));
    PROMISE(n == 8 || missing == (end < offset + len));
    PROMISE(n == 8 || !missing || gap == end);
    const struct rp_node_intent *foreign =
        rp_node_view_intent(view, offset, len, 7, true, UINT32_MAX, NOW);
    PROMISE(foreign == NULL || (missing && foreign->owner != 7));
    if (foreign != NULL) {
        rp_node_view_bury(view, foreign->owner, foreign->serial);
    }
    if (n > 0) {
        size_t before = view->extents;
        rp_node_view_forget(view, &extent[0]);
        PROMISE(view->extents == before - 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = malloc(size + 1);
    PROMISE(bytes != NULL);
    if (size > 0) {
        memcpy(bytes, data, size);
    }
    if (size > 0 && (data[0] & 1) != 0) {
        repair(bytes, size);
    }
    struct rp_node_view view = {.size = 1000};
    struct rp_node_record first;
    if (size >= RP_NODE_RECORD && rp_node_record_read(bytes, &first)) {
        view.size = first.size;
    }
    for (int64_t part = 1; view.parsed + RP_NODE_RECORD <= (int64_t)size && !view.bad; part++) {
        int64_t len = part * RP_NODE_RECORD;
        len = len < (int64_t)size - view.parsed ? len : (int64_t)size - view.parsed;
        check_record(bytes + view.parsed);
        PROMISE(rp_node_view_add(&view, bytes + view.parsed, (size_t)len, NOW) == RP_OK);
        PROMISE(view.intents <= RP_NODE_INTENTS);
    }
    PROMISE(view.parsed <= (int64_t)size && view.parsed % RP_NODE_RECORD == 0);
    if (view.size > 0) {
        check_range(&view, 0, view.size);
        for (size_t i = 0; i < view.extents && i < 16; i++) {
            int64_t offset = view.extent[i].offset;
            check_range(&view, offset, view.size - offset < 5000 ? view.size - offset : 5000);
            check_range(&view, offset / 2, offset - offset / 2 + 1);
        }
    }
    rp_node_view_free(&view);
    free(bytes);
    return 0;
}
