#include "pool/order_units.h"

#include "base/memory.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

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

/* Number of pieces a run is meant to be cut into; cuts that fall together make it fewer. */
static int64_t pieces_of(const struct rp_units *o, const struct rp_run *run)
{
    int64_t u = o->params.unit;
    int64_t n = u > 0 ? (2 * run->length + u) / (2 * u) : 1;
    return n > 1 ? n : 1;
}

/* Frames of the run before the end of the unit that begins at `from`; *i is the number of the next
 * cut to look at, 1 at the run's start. */
static int64_t next_cut(const struct rp_units *o, const struct rp_run *run, int64_t n, int64_t from,
                        int64_t *i)
{
    int64_t g = o->params.gop;
    uint64_t part = (uint64_t)(run->length / n), rest = (uint64_t)(run->length % n);
    for (; *i < n; (*i)++) {
        uint64_t at = (uint64_t)*i * part + (uint64_t)*i * rest / (uint64_t)n; /* i length div n */
        int64_t cut = (run->frame_index + (int64_t)at) / g * g - run->frame_index;
        if (cut > from) {
            return cut;
        }
    }
    return run->length;
}

static rp_status count_units(struct rp_units *o, int64_t *largest, struct rp_error *err)
{
    int64_t most = 0; /* keeps products of cut numbers inside 64 bits, and numbers inside 32 */
    for (size_t r = 0; r < o->n_runs; r++) {
        most += pieces_of(o, &o->run[r]);
    }
    if (most > UINT32_MAX || o->n_runs > UINT32_MAX) {
        RP_FAIL(err, RP_E_ARG, "the sample order has %lld units, allowed are 2^32-1",
                (long long)most);
    }
    for (size_t r = 0; r < o->n_runs; r++) {
        const struct rp_run *run = &o->run[r];
        int64_t n = pieces_of(o, run), i = 1;
        for (int64_t from = 0; from < run->length; o->n++) {
            int64_t to = next_cut(o, run, n, from, &i);
            *largest = to - from > *largest ? to - from : *largest;
            from = to;
        }
    }
    if (*largest > UINT32_MAX) {
        RP_FAIL(err, RP_E_ARG, "a unit of the sample order has %lld frames, allowed are 2^32-1",
                (long long)*largest);
    }
    return RP_OK;
}

int64_t rp_run_at(const int64_t *first, int64_t n, int64_t row)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;
        if (first[mid] <= row) {
            lo = mid;
        }
        else {
            hi = mid - 1;
        }
    }
    return lo;
}

bool rp_units_at(const struct rp_units *units, int64_t row, int64_t *first, int64_t *end)
{
    if (units->params.lanes == 1 && units->window >= units->count) {
        return false; /* a uniform permutation */
    }
    int64_t r = rp_run_at(units->run_row, (int64_t)units->n_runs, row);
    const struct rp_run *run = &units->run[r];
    int64_t n = pieces_of(units, run), i = 1, from = 0, at = row - units->run_row[r];
    int64_t to = next_cut(units, run, n, 0, &i);
    while (to <= at) {
        from = to;
        to = next_cut(units, run, n, from, &i);
    }
    *first = units->run_row[r] + from;
    *end = units->run_row[r] + to;
    return true;
}

rp_status rp_units_init(struct rp_units *units, const struct rp_run *runs, size_t n_runs,
                        const struct rp_order_params *params, struct rp_error *err)
{
    memset(units, 0, sizeof(*units));
    RP_TRY(rp_order_count(runs, n_runs, &units->count, err));
    RP_TRY(check_params(params, units->count, err));
    units->params = *params;
    if (params->visit == 1) {
        units->params.gop = 1;
        units->params.span = 0;
    }
    units->window = units->count;
    if (params->window < units->count) {
        units->window = params->window / params->lanes > 1 ? params->window / params->lanes : 1;
    }
    units->run = rp_calloc(n_runs, sizeof(*units->run));
    units->run_row = rp_calloc(n_runs, sizeof(*units->run_row));
    if (units->run == NULL || units->run_row == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu runs of the sample order", n_runs);
    }
    int64_t row = 0, largest = 0;
    for (size_t r = 0; r < n_runs; r++) {
        units->run[r] = runs[r];
        units->run_row[r] = row;
        row += runs[r].length;
    }
    units->n_runs = n_runs;
    RP_TRY(count_units(units, &largest, err));
    units->unit = rp_calloc(units->n, sizeof(*units->unit));
    int64_t gop = units->params.gop < largest ? units->params.gop : largest;
    units->rank = rp_calloc((size_t)gop, sizeof(*units->rank));
    if (units->unit == NULL || units->rank == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu units of the sample order", units->n);
    }
    return RP_OK;
}

void rp_units_free(struct rp_units *units)
{
    rp_free(units->run);
    rp_free(units->run_row);
    rp_free(units->unit);
    rp_free(units->rank);
    memset(units, 0, sizeof(*units));
}

static int by_hash(const void *a, const void *b)
{
    const struct rp_unit *x = a, *y = b;
    if (x->hash != y->hash) {
        return x->hash < y->hash ? -1 : 1;
    }
    return x->row < y->row ? -1 : x->row > y->row; /* rows ascend with ids */
}

void rp_units_shuffle(struct rp_units *units, uint32_t epoch)
{
    const struct rp_order_params *p = &units->params;
    units->params.epoch = epoch;
    struct rp_unit *unit = units->unit;
    for (size_t r = 0; r < units->n_runs; r++) {
        const struct rp_run *run = &units->run[r];
        int64_t n = pieces_of(units, run), i = 1;
        for (int64_t from = 0; from < run->length; unit++) {
            int64_t to = next_cut(units, run, n, from, &i);
            unit->hash = rp_hash64(p->seed, epoch, RP_TAG_UNIT, (uint64_t)(run->id + from));
            unit->row = units->run_row[r] + from;
            unit->run = (uint32_t)r;
            unit->size = (uint32_t)(to - from);
            from = to;
        }
    }
    qsort(units->unit, units->n, sizeof(*units->unit), by_hash);
    int64_t end = 0;
    for (size_t u = 0; u < units->n; u++) {
        end += units->unit[u].size;
        units->unit[u].end = end;
    }
}

/* Number of the first unit that ends after `position`. */
static size_t unit_after(const struct rp_units *o, int64_t position)
{
    size_t lo = 0, hi = o->n;
    while (lo < hi) {
        size_t middle = lo + (hi - lo) / 2;
        if (o->unit[middle].end > position) {
            hi = middle;
        }
        else {
            lo = middle + 1;
        }
    }
    return lo;
}

struct rp_lane rp_units_lane(const struct rp_units *units, int64_t c)
{
    int64_t rows = units->count / units->params.lanes, longer = units->count % units->params.lanes;
    struct rp_lane lane = {.from = c * rows + (c < longer ? c : longer), .n = rows + (c < longer)};
    lane.first = unit_after(units, lane.from);
    lane.last = lane.n > 0 ? unit_after(units, lane.from + lane.n - 1) + 1 : lane.first;
    return lane;
}

struct rp_clip rp_units_clip(const struct rp_units *units, const struct rp_lane *lane, size_t i)
{
    const struct rp_unit *unit = &units->unit[i];
    int64_t begin = unit->end - unit->size - lane->from, end = unit->end - lane->from;
    struct rp_clip clip = {.s = begin > 0 ? begin : 0, .e = end < lane->n ? end : lane->n};
    clip.cut = clip.s - begin;
    clip.hi = lane->n;
    if (units->window < lane->n) {
        int64_t size = clip.e - clip.s;
        int64_t h = units->window > size ? (units->window - size) / 2 : 0;
        clip.lo = clip.s > h ? clip.s - h : 0;
        clip.hi = clip.e + h < lane->n ? clip.e + h : lane->n;
    }
    return clip;
}

int rp_order_by_key(const void *a, const void *b)
{
    return rp_order_before(a, b) ? -1 : rp_order_before(b, a);
}

/* Frames [from, to) of a GOP, counted from the unit's start, hashed and sorted into rank[]. */
static void rank_gop(const struct rp_units *o, uint64_t first_id, int64_t from, int64_t to)
{
    struct rp_order_entry *rank = o->rank;
    int64_t n = to - from;
    for (int64_t i = 0; i < n; i++) {
        rank[i].key = rp_hash64(o->params.seed, o->params.epoch, RP_TAG_FRAME,
                                first_id + (uint64_t)(from + i));
        rank[i].row = from + i;
    }
    if (n > 16) {
        qsort(rank, (size_t)n, sizeof(*rank), rp_order_by_key);
        return;
    }
    for (int64_t i = 1; i < n; i++) {
        struct rp_order_entry moved = rank[i];
        int64_t at = i;
        for (; at > 0 && rp_order_before(&moved, &rank[at - 1]); at--) {
            rank[at] = rank[at - 1];
        }
        rank[at] = moved;
    }
}

void rp_units_keys(const struct rp_units *units, size_t i, const struct rp_clip *clip,
                   struct rp_order_entry *out)
{
    const struct rp_order_params *p = &units->params;
    const struct rp_unit *unit = &units->unit[i];
    const struct rp_run *run = &units->run[unit->run];
    int64_t in_run = unit->row - units->run_row[unit->run];
    uint64_t id = (uint64_t)(run->id + in_run);
    uint64_t lo = (uint64_t)clip->lo << 32;
    int64_t d = clip->hi - clip->lo, end = clip->cut + (clip->e - clip->s);
    if (p->gop == 1) { /* a GOP and a visit are one frame, and the frame's own hash has no weight */
        for (int64_t f = clip->cut; f < end; f++) {
            uint64_t y = rp_hash64(p->seed, p->epoch, RP_TAG_VISIT, id + (uint64_t)f);
            *out++ = (struct rp_order_entry){lo + rp_scaled(y, (uint32_t)d), unit->row + f};
        }
        return;
    }
    int64_t j = p->span < d / 2 ? p->span : d / 2, phase = (run->frame_index + in_run) % p->gop;
    /* Visits are formed on the whole unit: clipping it at a lane's border does not change them. */
    int64_t from = (clip->cut + phase) / p->gop * p->gop - phase;
    for (; from < end; from += p->gop) { /* `from`: first frame of a GOP, maybe before the unit */
        int64_t a = from > 0 ? from : 0, b = from + p->gop;
        b = b < unit->size ? b : unit->size;
        rank_gop(units, id, a, b);
        uint64_t y = 0;
        for (int64_t r = 0; r < b - a; r++) {
            if (r % p->visit == 0) {
                y = rp_hash64(p->seed, p->epoch, RP_TAG_VISIT,
                              id + (uint64_t)from + (uint64_t)(r / p->visit));
                y = lo + rp_scaled(y, (uint32_t)(d - j));
            }
            int64_t f = units->rank[r].row;
            if (f >= clip->cut && f < end) {
                uint64_t x = units->rank[r].key;
                *out++ = (struct rp_order_entry){y + rp_scaled(x, (uint32_t)j), unit->row + f};
            }
        }
    }
}
