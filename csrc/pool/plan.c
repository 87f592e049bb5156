#include "pool/plan.h"

#include "base/memory.h"
#include "pool/order_units.h"

#include <assert.h>
#include <stdlib.h>

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

static void fill_lane(const struct rp_units *units, int64_t c, struct rp_order_entry *entry,
                      int64_t *rows)
{
    struct rp_lane lane = rp_units_lane(units, c);
    for (size_t i = lane.first; i < lane.last; i++) {
        struct rp_clip clip = rp_units_clip(units, &lane, i);
        rp_units_keys(units, i, &clip, entry + clip.s);
    }
    qsort(entry, (size_t)lane.n, sizeof(*entry), rp_order_by_key);
    for (int64_t t = 0; t < lane.n; t++) {
        rows[t * units->params.lanes + c] = entry[t].row;
    }
}

rp_status rp_order_rows(const struct rp_run *runs, size_t n_runs,
                        const struct rp_order_params *params, int64_t *rows, struct rp_error *err)
{
    struct rp_units units;
    struct rp_order_entry *entry = NULL;
    rp_status status = rp_units_init(&units, runs, n_runs, params, err);
    if (status == RP_OK) {
        entry = rp_calloc((size_t)(units.count / params->lanes + 1), sizeof(*entry));
        if (entry == NULL) {
            status = rp_error_set(err, RP_E_NOMEM, "out of memory for the order of %lld frames",
                                  (long long)units.count);
        }
    }
    if (status == RP_OK) {
        rp_units_shuffle(&units, params->epoch);
        for (int64_t c = 0; c < params->lanes && c < units.count; c++) {
            fill_lane(&units, c, entry, rows);
        }
    }
    rp_free(entry);
    rp_units_free(&units);
    return status;
}

void rp_order_share(int64_t n, int64_t r, int64_t world, int64_t *from, int64_t *to)
{
    assert(n > 0 && world > 0 && world <= INT32_MAX && r >= 0 && r < world);
    if (n < world) {
        *from = r % n;
        *to = *from + 1;
        return;
    }
    int64_t each = n / world, rest = n % world; /* r n div world without the product r n */
    *from = r * each + r * rest / world;
    *to = (r + 1) * each + (r + 1) * rest / world;
}

void rp_order_slots(int64_t lanes, int64_t p, int64_t q, int64_t from, int64_t to, int64_t *out)
{
    int64_t n = q - p, lane_of_p = p % lanes;
    assert(lanes > 0 && n > 0 && from >= 0 && to <= n);
    if (n <= lanes) { /* one position per lane: those that wrapped come first */
        int64_t wrapped = lane_of_p + n > lanes ? lane_of_p + n - lanes : 0;
        for (int64_t slot = from; slot < to; slot++) {
            *out++ = slot < wrapped ? q - wrapped + slot : p + slot - wrapped;
        }
        return;
    }
    int64_t slot = 0;
    for (int64_t lane = 0; lane < lanes && slot < to; lane++) {
        int64_t first = p + (lane - lane_of_p + lanes) % lanes;
        int64_t here = (q - first + lanes - 1) / lanes;
        int64_t end = to - slot < here ? to - slot : here;
        for (int64_t i = from > slot ? from - slot : 0; i < end; i++) {
            *out++ = first + i * lanes;
        }
        slot += here;
    }
}

int64_t rp_order_slice(int64_t lanes, int64_t p, int64_t q, int64_t r, int64_t world, int64_t *out)
{
    int64_t from, to;
    rp_order_share(q - p, r, world, &from, &to);
    rp_order_slots(lanes, p, q, from, to, out);
    return to - from;
}
