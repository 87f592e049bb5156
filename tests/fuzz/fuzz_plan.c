/* Order parameters and runs from bytes: what is accepted must be a bijection, the stream the same
 * from any position, windows as small and as ordered as promised, ranks must cut every batch into
 * itself, and a feed's batches be these cuts; the rest must be refused. */
#include "base/memory.h"
#include "pool/feed.h"
#include "pool/order_units.h"
#include "pool/plan.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 4096
#define MAX_RUNS 64

#define PROMISE(condition)  \
    do {                    \
        if (!(condition)) { \
            abort();        \
        }                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    const uint8_t *data;
    size_t left;
};

/* A number of 1 or 8 bytes: mostly small ones, now and then any. */
static int64_t number(struct input *in)
{
    uint8_t kind = 0;
    int64_t value = 0;
    if (in->left > 0) {
        kind = *in->data++;
        in->left--;
    }
    if (kind < 0xf0 || in->left < 8) {
        return kind;
    }
    memcpy(&value, in->data, 8);
    in->data += 8;
    in->left -= 8;
    return value;
}

static void check_bijection(const int64_t *rows, int64_t count)
{
    static uint8_t seen[MAX_ROWS];
    memset(seen, 0, sizeof(seen));
    for (int64_t i = 0; i < count; i++) {
        PROMISE(rows[i] >= 0 && rows[i] < count && seen[rows[i]] == 0);
        seen[rows[i]] = 1;
    }
}

/* The stream from position p on, its lanes one by one and all of them (I2). */
static void check_stream(const struct rp_run *runs, size_t n_runs,
                         const struct rp_order_params *params, const int64_t *rows, int64_t count)
{
    rp_order *order = NULL;
    PROMISE(rp_order_new(runs, n_runs, params, &order, NULL) == RP_OK);
    PROMISE(rp_order_frames(order) == count);
    int64_t row, p = (int64_t)(params->seed % (uint64_t)count);
    for (int64_t at = p; at < count; at++) {
        PROMISE(rp_order_row(order, params->epoch, at, &row, NULL) == RP_OK && row == rows[at]);
    }
    for (int64_t at = count - 1; at >= 0; at -= 1 + count / 8) {
        PROMISE(rp_order_row(order, params->epoch, at, &row, NULL) == RP_OK && row == rows[at]);
    }
    rp_order_free(&order);
}

/* Windows never step back (I4), and a lane holds at most a window and a unit (I5). */
static void check_windows(const struct rp_run *runs, size_t n_runs,
                          const struct rp_order_params *params)
{
    static int64_t live[MAX_ROWS + 1];
    struct rp_units units;
    PROMISE(rp_units_init(&units, runs, n_runs, params, NULL) == RP_OK);
    rp_units_shuffle(&units, params->epoch);
    int64_t longest = 0;
    for (size_t u = 0; u < units.n; u++) {
        longest = units.unit[u].size > longest ? units.unit[u].size : longest;
    }
    for (int64_t c = 0; c < params->lanes && c < units.count; c++) {
        struct rp_lane lane = rp_units_lane(&units, c);
        struct rp_clip before = {0, 0, 0, 0, 0};
        memset(live, 0, (size_t)(lane.n + 1) * sizeof(*live));
        for (size_t i = lane.first; i < lane.last; i++) {
            struct rp_clip clip = rp_units_clip(&units, &lane, i);
            PROMISE(clip.s == before.e && clip.lo >= before.lo && clip.hi >= before.hi);
            PROMISE(clip.lo >= 0 && clip.lo <= clip.s && clip.e <= clip.hi && clip.hi <= lane.n);
            live[clip.lo] += clip.e - clip.s;
            live[clip.hi] -= clip.e - clip.s;
            before = clip;
        }
        PROMISE(before.e == lane.n);
        for (int64_t row = 0, sum = 0; row < lane.n; row++) {
            sum += live[row];
            PROMISE(sum <= units.window + longest);
        }
    }
    rp_units_free(&units);
}

/* A feed's batches are the slices of its rank (I3), some of them left to other workers. */
static void check_feed(const struct rp_run *runs, size_t n_runs,
                       const struct rp_order_params *params, const int64_t *rows, int64_t count)
{
    const struct rp_feed_set set = {runs, n_runs, *params, 7};
    struct rp_feed_options o = {.epoch = params->epoch, .stop = count};
    o.batch = 1 + params->window % 16;
    o.world = 1 + params->unit % 5;
    o.rank = params->gop % o.world;
    o.workers = 1 + params->span % 3;
    o.worker = params->visit % o.workers;
    o.start = (int64_t)(params->seed % (uint64_t)count);
    rp_feed *feed = NULL;
    PROMISE(rp_feed_new(&set, 1, &o, &feed, NULL) == RP_OK);
    PROMISE(rp_feed_batch(feed) == o.batch && rp_feed_rows_end(feed) == count + 7);
    int64_t p = o.start, got[17], want[17], n, done, repeated;
    for (int64_t number = 0; p < count; number++) {
        int64_t q = p + o.batch * o.world < count ? p + o.batch * o.world : count;
        if (number % o.workers == o.worker) {
            PROMISE(rp_feed_next(feed, got, &n, &done, &repeated, NULL) == RP_OK);
            PROMISE(n == rp_order_slice(params->lanes, p, q, o.rank, o.world, want) && done == q);
            for (int64_t i = 0; i < n; i++) {
                PROMISE(got[i] == rows[want[i]] + 7);
            }
        }
        p = q;
    }
    PROMISE(rp_feed_next(feed, got, &n, &done, &repeated, NULL) == RP_END);
    rp_feed_free(&feed);
}

static void check_slices(int64_t lanes, int64_t p, int64_t n, int64_t world)
{
    int64_t whole[256], part[256], at = 0;
    PROMISE(rp_order_slice(lanes, p, p + n, 0, 1, whole) == n);
    for (int64_t r = 0; r < world && n >= world; r++) {
        int64_t taken = rp_order_slice(lanes, p, p + n, r, world, part);
        PROMISE(taken >= 1 && taken <= n / world + 1 && at + taken <= n);
        PROMISE(memcmp(part, whole + at, (size_t)taken * sizeof(*part)) == 0);
        at += taken;
    }
    PROMISE(n < world || at == n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct rp_run runs[MAX_RUNS];
    static int64_t rows[MAX_ROWS];
    struct rp_order_params p = {.seed = (uint64_t)number(&in), .epoch = (uint32_t)number(&in)};
    p.lanes = number(&in);
    p.unit = number(&in);
    p.window = number(&in);
    p.visit = number(&in);
    p.gop = number(&in);
    p.span = number(&in);
    size_t n_runs = 0;
    int64_t id = 0;
    while (in.left > 0 && n_runs < MAX_RUNS) {
        int64_t gap = number(&in), frame_index = number(&in), length = number(&in);
        if (__builtin_add_overflow(id, gap, &runs[n_runs].id)) {
            runs[n_runs].id = gap;
        }
        runs[n_runs].frame_index = frame_index;
        runs[n_runs].length = length;
        if (__builtin_add_overflow(runs[n_runs].id, length, &id)) {
            id = 0;
        }
        n_runs++;
    }
    int64_t live = rp_live_objects(), count = 0;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_order_count(runs, n_runs, &count, &err);
    if (status == RP_OK) {
        PROMISE(count > 0);
        if (count <= MAX_ROWS) {
            status = rp_order_rows(runs, n_runs, &p, rows, &err);
        }
    }
    PROMISE(status == RP_OK || (status == RP_E_ARG && err.what[0] != '\0'));
    if (status == RP_OK && count <= MAX_ROWS) {
        check_bijection(rows, count);
        check_stream(runs, n_runs, &p, rows, count);
        check_windows(runs, n_runs, &p);
        check_feed(runs, n_runs, &p, rows, count);
        check_slices(p.lanes, p.epoch % 1000, 1 + count % 200, 1 + p.window % 16);
    }
    PROMISE(rp_live_objects() == live);
    return 0;
}
