#include "pool/plan.h"

#include "base/memory.h"
#include "pool/order_units.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A lane's windows never step back along it: every frame of the units still hidden comes at or
 * after lo of the first of them. So a heap of the frames that are out, and units revealed when the
 * smallest key reaches their window, give the lane in order. */

struct stream {
    bool open;  /* the rest is of the epoch at work */
    bool whole; /* one window: entry[t] is row t, all sorted */
    struct rp_lane lane;
    size_t next;                  /* first hidden unit */
    int64_t row;                  /* row of the lane that the smallest entry is */
    uint64_t edge;                /* least key of the hidden units, UINT64_MAX: none is hidden */
    struct rp_order_entry *entry; /* heap, the smallest first */
    size_t len, cap;
};

struct rp_order {
    struct rp_units units;
    int64_t count;
    bool ascending;
    bool shuffled; /* the units are those of units.params.epoch */
    struct stream *stream;
};

rp_status rp_order_new(const struct rp_run *runs, size_t n_runs,
                       const struct rp_order_params *params, rp_order **out, struct rp_error *err)
{
    struct rp_order *order = rp_calloc(1, sizeof(*order));
    if (order == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for the sample order");
    }
    order->ascending = params->lanes == 0;
    rp_status status;
    if (order->ascending) {
        status = rp_order_count(runs, n_runs, &order->count, err);
    }
    else {
        status = rp_units_init(&order->units, runs, n_runs, params, err);
        order->count = order->units.count;
    }
    if (status == RP_OK && !order->ascending) {
        order->stream = rp_calloc((size_t)params->lanes, sizeof(*order->stream));
        if (order->stream == NULL) {
            status = rp_error_set(err, RP_E_NOMEM, "out of memory for %lld lanes of the order",
                                  (long long)params->lanes);
        }
    }
    if (status != RP_OK) {
        rp_order_free(&order);
        return status;
    }
    *out = order;
    return RP_OK;
}

bool rp_order_unit(const rp_order *order, int64_t row, int64_t *first, int64_t *end)
{
    return !order->ascending && rp_units_at(&order->units, row, first, end);
}

int64_t rp_order_frames(const rp_order *order)
{
    return order->count;
}

void rp_order_free(rp_order **order)
{
    if (order == NULL || *order == NULL) {
        return;
    }
    for (int64_t c = 0; (*order)->stream != NULL && c < (*order)->units.params.lanes; c++) {
        rp_free((*order)->stream[c].entry);
    }
    rp_free((*order)->stream);
    rp_units_free(&(*order)->units);
    rp_free(*order);
    *order = NULL;
}

static rp_status reserve(struct stream *s, size_t more, struct rp_error *err)
{
    size_t need = s->len + more;
    if (need <= s->cap) {
        return RP_OK;
    }
    size_t cap = s->len > 0 && need < s->cap + s->cap / 2 ? s->cap + s->cap / 2 : need;
    struct rp_order_entry *grown = rp_realloc(s->entry, cap, sizeof(*grown));
    if (grown == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu frames of an open window", cap);
    }
    s->entry = grown;
    s->cap = cap;
    return RP_OK;
}

/* Append the entries of hidden unit i, unsorted. */
static rp_status append(const struct rp_units *units, struct stream *s, size_t i,
                        struct rp_error *err)
{
    struct rp_clip clip = rp_units_clip(units, &s->lane, i);
    RP_TRY(reserve(s, (size_t)(clip.e - clip.s), err));
    rp_units_keys(units, i, &clip, s->entry + s->len);
    s->len += (size_t)(clip.e - clip.s);
    return RP_OK;
}

static void note_edge(const struct rp_units *units, struct stream *s)
{
    s->edge = UINT64_MAX;
    if (s->next < s->lane.last) {
        s->edge = (uint64_t)rp_units_clip(units, &s->lane, s->next).lo << 32;
    }
}

static void sift_up(struct rp_order_entry *heap, size_t at)
{
    struct rp_order_entry moved = heap[at];
    while (at > 0 && rp_order_before(&moved, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = moved;
}

/* The hole sinks to a leaf, then the last entry rises from there: it is seldom a small one. */
static void drop_smallest(struct stream *s)
{
    struct rp_order_entry *heap = s->entry;
    size_t at = 0, n = --s->len;
    for (size_t child = 1; child < n; child = 2 * at + 1) {
        child += child + 1 < n && rp_order_before(&heap[child + 1], &heap[child]);
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = heap[n];
    sift_up(heap, at);
    s->row++;
}

/* Make entry[0] the lane's next frame. */
static rp_status reveal(const struct rp_units *units, struct stream *s, struct rp_error *err)
{
    while (s->edge != UINT64_MAX && (s->len == 0 || s->entry[0].key >= s->edge)) {
        size_t from = s->len;
        RP_TRY(append(units, s, s->next, err));
        for (; from < s->len; from++) {
            sift_up(s->entry, from);
        }
        s->next++;
        note_edge(units, s);
    }
    return RP_OK;
}

/* Number of the first unit of the lane with lo >= row (`hi` false) or hi > row (`hi` true). */
static size_t first_unit(const struct rp_units *units, const struct rp_lane *lane, int64_t row,
                         bool hi)
{
    size_t a = lane->first, b = lane->last;
    while (a < b) {
        size_t middle = a + (b - a) / 2;
        struct rp_clip clip = rp_units_clip(units, lane, middle);
        if (hi ? clip.hi > row : clip.lo >= row) {
            b = middle;
        }
        else {
            a = middle + 1;
        }
    }
    return a;
}

/* Frames of the lane in units before i. */
static int64_t frames_before(const struct rp_units *units, const struct rp_lane *lane, size_t i)
{
    return i < lane->last ? rp_units_clip(units, lane, i).s : lane->n;
}

/* Number of the first unit not wholly before row t (`out`), or of the first wholly at or after. */
static size_t bound(const struct rp_units *units, const struct rp_lane *lane, int64_t t, bool out)
{
    size_t a = lane->first, b = lane->last;
    while (a < b) {
        size_t middle = a + (b - a) / 2;
        struct rp_clip clip = rp_units_clip(units, lane, middle);
        size_t other = first_unit(units, lane, out ? clip.hi : clip.lo, !out);
        int64_t frames = frames_before(units, lane, other);
        if (out ? frames > t : frames >= t) {
            b = middle;
        }
        else {
            a = middle + 1;
        }
    }
    return a;
}

/* Open a lane so that its next frame is row t. */
static rp_status seek(const struct rp_units *units, struct stream *s, int64_t c, int64_t t,
                      struct rp_error *err)
{
    s->open = false;
    s->lane = rp_units_lane(units, c);
    s->whole = units->window >= s->lane.n;
    s->len = 0;
    size_t from = s->lane.first, to = s->lane.last;
    if (!s->whole) {
        from = bound(units, &s->lane, t, true);
        to = bound(units, &s->lane, t, false);
    }
    int64_t before = frames_before(units, &s->lane, from);
    if (to > from) { /* at once, exactly: growth would keep half as much again */
        RP_TRY(reserve(s, (size_t)(frames_before(units, &s->lane, to) - before), err));
    }
    for (size_t i = from; i < to; i++) {
        RP_TRY(append(units, s, i, err));
    }
    if (s->len > 0) {
        qsort(s->entry, s->len, sizeof(*s->entry), rp_order_by_key); /* sorted is a heap, too */
    }
    if (!s->whole && t > before) {
        s->len -= (size_t)(t - before);
        memmove(s->entry, s->entry + (t - before), s->len * sizeof(*s->entry));
    }
    s->row = t;
    s->next = to;
    note_edge(units, s);
    s->open = true;
    return RP_OK;
}

rp_status rp_order_row(rp_order *order, uint32_t epoch, int64_t position, int64_t *row,
                       struct rp_error *err)
{
    assert(position >= 0 && position < order->count);
    if (order->ascending) {
        *row = position;
        return RP_OK;
    }
    struct rp_units *units = &order->units;
    if (!order->shuffled || epoch != units->params.epoch) {
        rp_units_shuffle(units, epoch);
        order->shuffled = true;
        for (int64_t c = 0; c < units->params.lanes; c++) {
            if (order->stream[c].open) { /* reading leaves untouched pages without memory */
                order->stream[c].open = false;
            }
        }
    }
    int64_t c = position % units->params.lanes, t = position / units->params.lanes;
    struct stream *s = &order->stream[c];
    /* Beyond two windows a seek, which orders about so many frames, is cheaper than going there. */
    bool near = s->open && (s->whole || (t >= s->row && t - s->row <= 2 * units->window));
    if (!near) {
        RP_TRY(seek(units, s, c, t, err));
    }
    if (s->whole) {
        *row = s->entry[t].row;
        return RP_OK;
    }
    RP_TRY(reveal(units, s, err));
    while (s->row < t) {
        drop_smallest(s);
        RP_TRY(reveal(units, s, err));
    }
    *row = s->entry[0].row;
    return RP_OK;
}
