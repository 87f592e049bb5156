#include "pool/plan.h"

#include "base/memory.h"
#include "base/rng.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Outline: cut runs into units; permute units by hash; the frames in that order are positions of C
 * equal lanes; each frame gets a key inside its unit's window of lane rows; a lane is its frames
 * sorted by key; lanes interleave row by row. */

struct unit {
    uint64_t hash;
    int64_t id, frame_index, size;
    int64_t row; /* row number of its first frame */
};

struct entry {
    uint64_t key;
    int64_t row;
};

struct frame_hash {
    int64_t gop; /* id of the GOP's first frame */
    uint64_t hash;
    int64_t id;
};

struct order {
    const struct rp_order_params *params;
    int64_t count;
    struct unit *unit;
    size_t n_units, cap_units;
    int64_t *end;             /* end[u] = frames in units 0..u */
    struct entry *entry;      /* of the lane at work */
    struct frame_hash *frame; /* of the unit at work */
    int64_t *visit;           /* of the unit at work, by offset */
};

rp_status rp_order_count(const struct rp_run *runs, size_t n_runs, int64_t *count,
                         struct rp_error *err)
{
    int64_t total = 0, next_id = 0;
    for (size_t i = 0; i < n_runs; i++) {
        int64_t end, last;
        if (runs[i].length <= 0 || runs[i].frame_index < 0 || runs[i].id < next_id ||
            __builtin_add_overflow(runs[i].frame_index, runs[i].length, &last) ||
            __builtin_add_overflow(runs[i].id, runs[i].length, &end)) {
            RP_FAIL(err, RP_E_ARG, "episode %zu of the selection is empty or out of order", i);
        }
        next_id = end;
        total += runs[i].length;
    }
    if (total == 0) {
        RP_FAIL(err, RP_E_ARG, "the selection holds no frame");
    }
    *count = total;
    return RP_OK;
}

static rp_status check_params(const struct rp_order_params *p, int64_t count, struct rp_error *err)
{
    if (p->lanes < 1 || p->lanes > 65536) {
        RP_FAIL(err, RP_E_ARG, "lanes = %lld, allowed are 1..65536", (long long)p->lanes);
    }
    if (p->unit < 0 || p->unit > INT32_MAX) {
        RP_FAIL(err, RP_E_ARG, "unit = %lld, allowed are 0..2^31-1", (long long)p->unit);
    }
    if (p->window < 1) {
        RP_FAIL(err, RP_E_ARG, "window = %lld, at least 1 is needed", (long long)p->window);
    }
    if (p->visit < 1 || p->gop < p->visit || p->gop > INT32_MAX || p->span < 0 ||
        p->span > INT32_MAX) {
        RP_FAIL(err, RP_E_ARG, "locality (g, k, J) = (%lld, %lld, %lld) needs 1 <= k <= g, J >= 0",
                (long long)p->gop, (long long)p->visit, (long long)p->span);
    }
    if (count / p->lanes >= INT32_MAX) {
        RP_FAIL(err, RP_E_ARG, "%lld frames in %lld lanes: 2^31 rows or more per lane",
                (long long)count, (long long)p->lanes);
    }
    return RP_OK;
}

static rp_status add_unit(struct order *o, int64_t id, int64_t frame_index, int64_t size,
                          int64_t row, struct rp_error *err)
{
    if (o->n_units == o->cap_units) {
        size_t cap = o->cap_units * 2 + 64;
        struct unit *grown = rp_realloc(o->unit, cap, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu units of the sample order", cap);
        }
        o->unit = grown;
        o->cap_units = cap;
    }
    uint64_t hash = rp_hash64(o->params->seed, o->params->epoch, RP_TAG_UNIT, (uint64_t)id);
    o->unit[o->n_units++] =
        (struct unit){.hash = hash, .id = id, .frame_index = frame_index, .size = size, .row = row};
    return RP_OK;
}

static rp_status cut_run(struct order *o, const struct rp_run *run, int64_t g, int64_t row,
                         struct rp_error *err)
{
    int64_t u = o->params->unit;
    int64_t n = u > 0 ? (2 * run->length + u) / (2 * u) : 1;
    int64_t from = 0;
    for (int64_t i = 1; i <= n || from < run->length; i++) {
        int64_t cut = run->length;
        if (i < n) {
            cut = (run->frame_index + i * run->length / n) / g * g - run->frame_index;
        }
        if (cut > from) {
            RP_TRY(
                add_unit(o, run->id + from, run->frame_index + from, cut - from, row + from, err));
            from = cut;
        }
    }
    return RP_OK;
}

static int by_hash(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    if (x->hash != y->hash) {
        return x->hash < y->hash ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_gop_and_hash(const void *a, const void *b)
{
    const struct frame_hash *x = a, *y = b;
    if (x->gop != y->gop) {
        return x->gop < y->gop ? -1 : 1;
    }
    if (x->hash != y->hash) {
        return x->hash < y->hash ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_key(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->row < y->row ? -1 : x->row > y->row; /* rows ascend with ids */
}

/* Visits are formed on the whole unit: clipping it at a lane's border does not change them. */
static void form_visits(struct order *o, const struct unit *unit, int64_t k, int64_t g)
{
    for (int64_t i = 0; i < unit->size; i++) {
        int64_t id = unit->id + i;
        o->frame[i] = (struct frame_hash){
            .gop = id - (unit->frame_index + i) % g,
            .hash = rp_hash64(o->params->seed, o->params->epoch, RP_TAG_FRAME, (uint64_t)id),
            .id = id};
    }
    if (k == 1 && g == 1) {
        for (int64_t i = 0; i < unit->size; i++) {
            o->visit[i] = 0;
        }
        return;
    }
    qsort(o->frame, (size_t)unit->size, sizeof(*o->frame), by_gop_and_hash);
    int64_t first = 0;
    for (int64_t i = 0; i < unit->size; i++) {
        if (o->frame[i].gop != o->frame[first].gop) {
            first = i;
        }
        o->visit[o->frame[i].id - unit->id] = (i - first) / k;
    }
}

/* Keys of the part [cut, cut + e - s) of a unit that fills rows [s, e) of a lane of n rows. */
static void key_unit(struct order *o, const struct unit *unit, int64_t cut, int64_t s, int64_t e,
                     int64_t n, int64_t w)
{
    const struct rp_order_params *p = o->params;
    int64_t k = p->visit > 1 ? p->visit : 1;
    int64_t g = p->visit > 1 ? p->gop : 1;
    int64_t span = p->visit > 1 ? p->span : 0;
    int64_t lo = 0, hi = n;
    if (w < n) {
        int64_t h = w > e - s ? (w - (e - s)) / 2 : 0;
        lo = s > h ? s - h : 0;
        hi = e + h < n ? e + h : n;
    }
    int64_t d = hi - lo;
    int64_t j = span < d / 2 ? span : d / 2;
    form_visits(o, unit, k, g);
    for (int64_t i = cut; i < cut + e - s; i++) {
        uint64_t id = (uint64_t)(unit->id + i);
        uint64_t gop = id - (uint64_t)((unit->frame_index + i) % g);
        uint64_t x = rp_hash64(p->seed, p->epoch, RP_TAG_FRAME, id);
        uint64_t y = rp_hash64(p->seed, p->epoch, RP_TAG_VISIT, gop + (uint64_t)o->visit[i]);
        o->entry[s + i - cut] =
            (struct entry){.key = ((uint64_t)lo << 32) + rp_scaled(y, (uint32_t)(d - j)) +
                                  rp_scaled(x, (uint32_t)j),
                           .row = unit->row + i};
    }
}

static void fill_lane(struct order *o, int64_t lane, size_t *unit_at, int64_t *rows)
{
    int64_t c_lanes = o->params->lanes;
    int64_t base = o->count / c_lanes, longer = o->count % c_lanes;
    int64_t n = base + (lane < longer);
    int64_t from = lane * base + (lane < longer ? lane : longer);
    int64_t w = o->count;
    if (o->params->window < o->count) {
        w = o->params->window / c_lanes > 1 ? o->params->window / c_lanes : 1;
    }
    size_t u = *unit_at;
    while (u < o->n_units && o->end[u] <= from) {
        u++;
    }
    *unit_at = u;
    for (; u < o->n_units && o->end[u] - o->unit[u].size < from + n; u++) {
        int64_t begin = o->end[u] - o->unit[u].size;
        int64_t s = begin > from ? begin - from : 0;
        int64_t e = (o->end[u] < from + n ? o->end[u] : from + n) - from;
        key_unit(o, &o->unit[u], s + from - begin, s, e, n, w);
    }
    qsort(o->entry, (size_t)n, sizeof(*o->entry), by_key);
    for (int64_t i = 0; i < n; i++) {
        rows[i * c_lanes + lane] = o->entry[i].row;
    }
}

static void order_free(struct order *o)
{
    rp_free(o->unit);
    rp_free(o->end);
    rp_free(o->entry);
    rp_free(o->frame);
    rp_free(o->visit);
}

static rp_status order_build(struct order *o, const struct rp_run *runs, size_t n_runs,
                             struct rp_error *err)
{
    int64_t g = o->params->visit > 1 ? o->params->gop : 1, row = 0;
    for (size_t i = 0; i < n_runs; i++) {
        RP_TRY(cut_run(o, &runs[i], g, row, err));
        row += runs[i].length;
    }
    qsort(o->unit, o->n_units, sizeof(*o->unit), by_hash);
    int64_t largest = 0, end = 0;
    o->end = rp_calloc(o->n_units, sizeof(*o->end));
    if (o->end == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for the sample order");
    }
    for (size_t u = 0; u < o->n_units; u++) {
        end += o->unit[u].size;
        o->end[u] = end;
        largest = o->unit[u].size > largest ? o->unit[u].size : largest;
    }
    o->entry = rp_calloc((size_t)(o->count / o->params->lanes + 1), sizeof(*o->entry));
    o->frame = rp_calloc((size_t)largest, sizeof(*o->frame));
    o->visit = rp_calloc((size_t)largest, sizeof(*o->visit));
    if (o->entry == NULL || o->frame == NULL || o->visit == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for the order of %lld frames", (long long)o->count);
    }
    return RP_OK;
}

rp_status rp_order_rows(const struct rp_run *runs, size_t n_runs,
                        const struct rp_order_params *params, int64_t *rows, struct rp_error *err)
{
    struct order o = {.params = params};
    RP_TRY(rp_order_count(runs, n_runs, &o.count, err));
    RP_TRY(check_params(params, o.count, err));
    rp_status status = order_build(&o, runs, n_runs, err);
    if (status == RP_OK) {
        size_t unit_at = 0;
        for (int64_t lane = 0; lane < params->lanes && lane < o.count; lane++) {
            fill_lane(&o, lane, &unit_at, rows);
        }
    }
    order_free(&o);
    return status;
}

int64_t rp_order_slice(int64_t lanes, int64_t p, int64_t q, int64_t r, int64_t world, int64_t *out)
{
    int64_t n = q - p;
    assert(lanes > 0 && n > 0 && world > 0 && r >= 0 && r < world);
    int64_t from = r * n / world, to = (r + 1) * n / world;
    if (n < world) {
        from = r % n;
        to = from + 1;
    }
    int64_t slot = 0, taken = 0;
    for (int64_t lane = 0; lane < lanes && slot < to; lane++) {
        int64_t first = p + (lane - p % lanes + lanes) % lanes;
        int64_t here = first < q ? (q - first + lanes - 1) / lanes : 0;
        for (int64_t i = 0; i < here; i++, slot++) {
            if (slot >= from && slot < to) {
                out[taken++] = first + i * lanes;
            }
        }
    }
    return taken;
}
