/* The sample order: golden values, a plain implementation of the definition for many parameters,
 * and the slices of ranks. */
#include "harness.h"

#include "base/rng.h"
#include "order_cases.h"
#include "pool/plan.h"

enum { MOST = 8192 };

static int64_t got[MOST], want[MOST];

/* --- the definition, written for clarity --- */

struct piece { /* a unit: frames [id, id + size) of one run */
    uint64_t hash;
    int64_t id, frame_index, size, begin; /* begin: position of its first frame */
};

static struct piece pieces[MOST];
static int64_t key_id[MOST];
static uint64_t key_of[MOST];

static void add_piece(int *n, const struct rp_order_params *p, const struct rp_run *run,
                      int64_t from, int64_t to)
{
    int64_t id = run->id + from;
    struct piece piece = {rp_hash64(p->seed, p->epoch, RP_TAG_UNIT, (uint64_t)id), id,
                          run->frame_index + from, to - from, 0};
    int at = (*n)++;
    while (at > 0 && (pieces[at - 1].hash > piece.hash ||
                      (pieces[at - 1].hash == piece.hash && pieces[at - 1].id > id))) {
        pieces[at] = pieces[at - 1];
        at--;
    }
    pieces[at] = piece;
}

/* Whether a unit ends after the first x frames of the run. */
static bool is_cut(const struct rp_run *run, int64_t unit, int64_t g, int64_t x)
{
    int64_t n = unit > 0 ? (2 * run->length + unit) / (2 * unit) : 1, f0 = run->frame_index;
    bool cut = x == run->length;
    for (int64_t i = 1; i < n && !cut; i++) {
        cut = (f0 + i * run->length / n) / g * g - f0 == x;
    }
    return cut;
}

static int cut_runs(const struct rp_run *runs, size_t n_runs, const struct rp_order_params *p,
                    int64_t g)
{
    int n_pieces = 0;
    for (size_t r = 0; r < n_runs; r++) {
        int64_t from = 0;
        for (int64_t x = 1; x <= runs[r].length; x++) {
            if (is_cut(&runs[r], p->unit, g, x)) {
                add_piece(&n_pieces, p, &runs[r], from, x);
                from = x;
            }
        }
    }
    for (int u = 1; u < n_pieces; u++) {
        pieces[u].begin = pieces[u - 1].begin + pieces[u - 1].size;
    }
    return n_pieces;
}

/* floor(x m / 2^32), exactly. */
static uint64_t scale(uint64_t x, int64_t m)
{
    return (uint64_t)((unsigned __int128)x * (uint64_t)m >> 32);
}

static int64_t greater(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Which visit of its GOP the unit's frame `at` belongs to. */
static int64_t visit_of(const struct rp_order_params *p, const struct piece *u, int64_t at,
                        int64_t g)
{
    int64_t id = u->id + at, gop = id - (u->frame_index + at) % g, rank = 0;
    uint64_t x = rp_hash64(p->seed, p->epoch, RP_TAG_FRAME, (uint64_t)id);
    for (int64_t i = 0; i < u->size; i++) {
        int64_t other = u->id + i;
        uint64_t y = rp_hash64(p->seed, p->epoch, RP_TAG_FRAME, (uint64_t)other);
        if (other - (u->frame_index + i) % g == gop && (y < x || (y == x && other < id))) {
            rank++;
        }
    }
    return rank / p->visit;
}

static uint64_t key_by_definition(const struct rp_order_params *p, const struct piece *u,
                                  int64_t at, int64_t a, int64_t n, int64_t count)
{
    int64_t g = p->visit > 1 ? p->gop : 1, span = p->visit > 1 ? p->span : 0;
    int64_t s = greater(u->begin - a, 0), e = smaller(u->begin + u->size - a, n);
    int64_t w = p->window >= count ? count : greater(p->window / p->lanes, 1);
    int64_t h = greater(w - (e - s), 0) / 2;
    int64_t lo = w >= n ? 0 : greater(s - h, 0), hi = w >= n ? n : smaller(e + h, n);
    int64_t d = hi - lo, j = smaller(span, d / 2);
    int64_t id = u->id + at, gop = id - (u->frame_index + at) % g;
    uint64_t x = rp_hash64(p->seed, p->epoch, RP_TAG_FRAME, (uint64_t)id);
    uint64_t visit =
        rp_hash64(p->seed, p->epoch, RP_TAG_VISIT, (uint64_t)(gop + visit_of(p, u, at, g)));
    return ((uint64_t)lo << 32) + scale(visit, d - j) + scale(x, j);
}

/* Ids of the sequence into want[]; returns how many. */
static int64_t sequence_by_definition(const struct rp_run *runs, size_t n_runs,
                                      const struct rp_order_params *p)
{
    int64_t count = 0, a = 0;
    for (size_t r = 0; r < n_runs; r++) {
        count += runs[r].length;
    }
    int n_pieces = cut_runs(runs, n_runs, p, p->visit > 1 ? p->gop : 1);
    for (int64_t c = 0; c < p->lanes; c++) {
        int64_t n = count / p->lanes + (c < count % p->lanes), have = 0;
        for (int u = 0; u < n_pieces; u++) {
            for (int64_t i = 0; i < pieces[u].size; i++) {
                int64_t position = pieces[u].begin + i;
                if (position < a || position >= a + n) {
                    continue;
                }
                uint64_t key = key_by_definition(p, &pieces[u], i, a, n, count);
                int64_t id = pieces[u].id + i, at = have++;
                while (at > 0 &&
                       (key_of[at - 1] > key || (key_of[at - 1] == key && key_id[at - 1] > id))) {
                    key_of[at] = key_of[at - 1];
                    key_id[at] = key_id[at - 1];
                    at--;
                }
                key_of[at] = key;
                key_id[at] = id;
            }
        }
        for (int64_t row = 0; row < n; row++) {
            want[row * p->lanes + c] = key_id[row];
        }
        a += n;
    }
    return count;
}

/* Row numbers of got[] -> ids. */
static void rows_to_ids(const struct rp_run *runs, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t row = got[i];
        size_t r = 0;
        while (row >= runs[r].length) {
            row -= runs[r++].length;
        }
        got[i] = runs[r].id + row;
    }
}

static void check_order(const struct rp_run *runs, size_t n_runs, const struct rp_order_params *p)
{
    static bool seen[MOST];
    struct rp_error err;
    rp_error_clear(&err);
    int64_t count = 0;
    REQUIRE_OK(rp_order_count(runs, n_runs, &count, &err), &err);
    REQUIRE(count <= MOST);
    REQUIRE_OK(rp_order_rows(runs, n_runs, p, got, &err), &err);
    memset(seen, 0, sizeof(seen));
    for (int64_t i = 0; i < count; i++) { /* every row exactly once */
        REQUIRE(got[i] >= 0 && got[i] < count && !seen[got[i]]);
        seen[got[i]] = true;
    }
    rows_to_ids(runs, count);
    REQUIRE_EQ(sequence_by_definition(runs, n_runs, p), count);
    REQUIRE_(CHECK_MEM(got, want, (size_t)count * sizeof(*got)));
}

RP_TEST(random_parameters_follow_the_definition)
{
    case_state = 1;
    for (int round = 0; round < 600; round++) {
        struct order_case c = random_case(60);
        check_order(c.runs, c.n_runs, &c.params);
    }
}

RP_TEST(awkward_sizes_follow_the_definition)
{
    case_state = 2;
    for (size_t i = 0; i < 4 * AWKWARD_SIZES; i++) {
        struct order_case c = awkward_case(i);
        check_order(c.runs, c.n_runs, &c.params);
    }
}

/* FNV-1a over the ids as 64-bit words. */
static void check_golden(const struct rp_run *runs, size_t n_runs, struct rp_order_params p,
                         const int64_t *first, uint64_t hash)
{
    check_order(runs, n_runs, &p);
    int64_t count = 0;
    REQUIRE_OK(rp_order_count(runs, n_runs, &count, NULL), NULL);
    uint64_t h = 14695981039346656037u;
    for (int64_t i = 0; i < count; i++) {
        h = (h ^ (uint64_t)got[i]) * 1099511628211u;
    }
    (void)CHECK_MEM(got, first, 4 * sizeof(*first));
    (void)CHECK(h == hash);
}

RP_TEST(golden_values)
{
    static const struct rp_run a[3] = {{0, 0, 7}, {7, 0, 5}, {12, 0, 9}};
    static const struct rp_run e[2] = {{9, 3, 40}, {60, 0, 33}};
    struct rp_run b[50];
    for (int64_t i = 0, id = 0; i < 50; i++) {
        b[i] = (struct rp_run){id, 0, 60 + 37 * i % 101};
        id += b[i].length;
    }
    check_golden(a, 3, (struct rp_order_params){0, 0, 4, 4, 12, 1, 1, 0},
                 (const int64_t[]){2, 15, 19, 7}, 0x601bb0adfc4547u);
    check_golden(b, 50, (struct rp_order_params){42, 3, 64, 64, 4096, 1, 1, 0},
                 (const int64_t[]){3185, 3498, 4952, 1340}, 0xdee3ba8ebd98ae6fu);
    check_golden(b, 50, (struct rp_order_params){42, 3, 1, 64, 5501, 1, 1, 0},
                 (const int64_t[]){897, 2155, 1241, 919}, 0xb31a33fcc7b56e91u);
    check_golden(b, 50, (struct rp_order_params){42, 3, 16, 60, 3200, 4, 10, 16},
                 (const int64_t[]){4111, 921, 65, 4495}, 0xcf83578123875b65u);
    check_golden(e, 2, (struct rp_order_params){7, 1, 3, 8, 30, 2, 4, 6},
                 (const int64_t[]){34, 20, 75, 36}, 0x50d2e54814f8b54fu);
}

static int by_lane(const void *a, const void *b, void *lanes)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b, c = *(const int64_t *)lanes;
    return x % c != y % c ? (x % c < y % c ? -1 : 1) : x < y ? -1 : x > y;
}

RP_TEST(slices_of_all_ranks_are_the_batch)
{
    case_state = 3;
    for (int round = 0; round < 2000; round++) {
        int64_t lanes = pick(1, 70), p = pick(0, 300), n = pick(1, 100), world = pick(1, 12);
        int64_t at = 0, out[128];
        for (int64_t i = 0; i < n; i++) {
            want[i] = p + i;
        }
        qsort_r(want, (size_t)n, sizeof(*want), by_lane, &lanes);
        for (int64_t r = 0; r < world; r++) {
            int64_t taken = rp_order_slice(lanes, p, p + n, r, world, out);
            if (n < world) {
                REQUIRE_EQ(taken, 1);
                REQUIRE_EQ(out[0], want[r % n]);
                continue;
            }
            REQUIRE(taken >= n / world && taken <= n / world + 1 && at + taken <= n);
            REQUIRE_(CHECK_MEM(out, want + at, (size_t)taken * sizeof(*out)));
            at += taken;
        }
        REQUIRE(n < world || at == n);
    }
}

RP_TEST(what_makes_no_sense_is_refused)
{
    static const struct rp_run good[2] = {{0, 0, 4}, {4, 0, 4}};
    static const struct rp_run bad[][2] = {
        {{0, 0, 4}, {3, 0, 4}},                         /* overlap */
        {{4, 0, 4}, {0, 0, 4}},                         /* descending */
        {{0, 0, 4}, {4, 0, 0}},                         /* empty */
        {{0, 0, 4}, {4, 0, -1}},                        /* negative */
        {{-1, 0, 4}, {4, 0, 4}},                        /* negative id */
        {{0, -1, 4}, {4, 0, 4}},                        /* negative frame_index */
        {{0, 0, 4}, {INT64_MAX - 2, 0, 4}},             /* id overflows */
        {{0, 0, 4}, {4, INT64_MAX - 2, 4}},             /* frame_index overflows */
        {{0, 0, INT64_MAX}, {INT64_MAX, 0, INT64_MAX}}, /* length overflows */
    };
    struct rp_error err;
    int64_t count;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        rp_error_clear(&err);
        (void)CHECK_STATUS(rp_order_count(bad[i], 2, &count, &err), RP_E_ARG, &err);
    }
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_order_count(good, 0, &count, &err), RP_E_ARG, &err);
    static const struct rp_order_params wrong[] = {
        {0, 0, 0, 4, 8, 1, 1, 0},  {0, 0, 65537, 4, 8, 1, 1, 0},    {0, 0, 4, -1, 8, 1, 1, 0},
        {0, 0, 4, 4, 0, 1, 1, 0},  {0, 0, 4, 4, 8, 0, 1, 0},        {0, 0, 4, 4, 8, 2, 1, 0},
        {0, 0, 4, 4, 8, 1, 1, -1}, {0, 0, 4, 1LL << 31, 8, 1, 1, 0}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        rp_error_clear(&err);
        (void)CHECK_STATUS(rp_order_rows(good, 2, &wrong[i], got, &err), RP_E_ARG, &err);
    }
    /* too many rows in a lane: refused before anything is allocated or written */
    static const struct rp_run huge = {0, 0, (int64_t)1 << 40};
    static const struct rp_order_params p = {0, 0, 1, 64, 100, 1, 1, 0};
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_order_rows(&huge, 1, &p, got, &err), RP_E_ARG, &err);
    /* units that 32 bits do not count, and a unit that they do not measure */
    static const struct rp_order_params small = {0, 0, 65536, 1, 100, 1, 1, 0};
    static const struct rp_order_params whole = {0, 0, 65536, 0, 100, 1, 1, 0};
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_order_rows(&huge, 1, &small, got, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_order_rows(&huge, 1, &whole, got, &err), RP_E_ARG, &err);
}

static void order_some(void *arg)
{
    (void)arg;
    static const struct rp_run runs[2] = {{0, 0, 300}, {300, 0, 200}};
    static const struct rp_order_params p = {1, 0, 8, 2, 100, 2, 4, 3};
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_order_rows(runs, 2, &p, got, &err);
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == RP_E_NOMEM));
}

RP_TEST(memory_may_be_short)
{
    struct rp_fault fault = {.calls = RP_FAULT_MEMORY};
    (void)CHECK(rp_fault_sweep(fault, order_some, NULL) > 0);
}
