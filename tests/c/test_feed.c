/* Batches of ranks and workers against a plain reading of the rules, far positions, failures. */
#include "harness.h"

#include "order_cases.h"
#include "pool/feed.h"
#include "pool/plan.h"

enum { MOST = 4096, SETS = 4 };

struct slot {
    int64_t epoch, lane, position, row;
};

static struct slot slots[MOST]; /* of positions base .. base + MOST - 1 */
static int64_t base;

/* Sets of a feed and how many rows each has. */
struct mixture {
    struct order_case c[SETS];
    struct rp_feed_set set[SETS];
    size_t n;
    int64_t lanes, frames;
};

static void random_mixture(struct mixture *m, size_t n, int64_t longest)
{
    memset(m, 0, sizeof(*m));
    m->n = n;
    for (size_t d = 0; d < n; d++) {
        struct order_case *c = &m->c[d];
        *c = random_case(longest);
        c->params.lanes = n > 1 ? pick(1, 6) : c->params.lanes;
        c->params.lanes *= pick(0, 7) > 0;
        m->set[d] =
            (struct rp_feed_set){c->runs, c->n_runs, c->params, pick(0, 3) * ((int64_t)1 << 40)};
        m->lanes += c->params.lanes > 0 ? c->params.lanes : 1;
        m->frames += c->count;
    }
}

static int64_t lanes_of(const struct mixture *m, size_t d)
{
    return m->c[d].params.lanes > 0 ? m->c[d].params.lanes : 1;
}

/* Row of a position of an epoch. One epoch per set is remembered. */
static int64_t row_of(const struct mixture *m, size_t d, int64_t epoch, int64_t position)
{
    static int64_t rows[SETS][MOST], of_epoch[SETS];
    static const struct mixture *of;
    static uint64_t of_state;
    if (of != m || of_state != m->c[0].params.seed) {
        of = m;
        of_state = m->c[0].params.seed;
        for (size_t i = 0; i < SETS; i++) {
            of_epoch[i] = -1;
        }
    }
    struct rp_order_params p = m->c[d].params;
    if (p.lanes == 0) {
        return m->set[d].first_row + position;
    }
    if (of_epoch[d] != epoch) {
        p.epoch = (uint32_t)epoch;
        REQUIRE_OK(rp_order_rows(m->c[d].runs, m->c[d].n_runs, &p, rows[d], NULL), NULL);
        of_epoch[d] = epoch;
    }
    return m->set[d].first_row + rows[d][position];
}

/* Fill slots[] for n positions from `from`: one set. */
static void expect_set(const struct mixture *m, int64_t epoch, int64_t from, int64_t n)
{
    int64_t count = m->c[0].count;
    base = from;
    for (int64_t i = 0; i < n; i++) {
        int64_t e = epoch + (from + i) / count, p = (from + i) % count;
        slots[i] = (struct slot){e, p % m->lanes, p, row_of(m, 0, e, p)};
    }
}

/* The same for a mixture, whose pattern is chosen by comparing all that is left. */
static void expect_mixture(const struct mixture *m, int64_t from, int64_t n)
{
    int64_t taken[SETS] = {0};
    base = from;
    for (int64_t i = -(from % m->lanes); i < n; i++) {
        int64_t lane = (from + i) % m->lanes;
        if (lane == 0) {
            for (size_t d = 0; d < m->n; d++) {
                taken[d] = 0;
            }
        }
        size_t best = SETS;
        for (size_t d = 0; d < m->n; d++) {
            if (taken[d] < lanes_of(m, d) &&
                (best == SETS ||
                 (2 * taken[d] + 1) * lanes_of(m, best) < (2 * taken[best] + 1) * lanes_of(m, d))) {
                best = d;
            }
        }
        int64_t x = ((from + i) / m->lanes) * lanes_of(m, best) + taken[best]++;
        if (i >= 0) {
            slots[i] = (struct slot){0, lane, from + i,
                                     row_of(m, best, x / m->c[best].count, x % m->c[best].count)};
        }
    }
}

static int by_slot(const void *a, const void *b)
{
    const struct slot *x = a, *y = b;
    if (x->epoch != y->epoch) {
        return x->epoch < y->epoch ? -1 : 1;
    }
    if (x->lane != y->lane) {
        return x->lane < y->lane ? -1 : 1;
    }
    return x->position < y->position ? -1 : x->position > y->position;
}

/* Rows that the rank takes from batch [p, q). */
static int64_t expect_batch(int64_t p, int64_t q, int64_t rank, int64_t world, int64_t *rows)
{
    static struct slot batch[MOST];
    int64_t n = q - p, taken = 0;
    memcpy(batch, slots + (p - base), (size_t)n * sizeof(*batch));
    qsort(batch, (size_t)n, sizeof(*batch), by_slot);
    if (n < world) {
        rows[0] = batch[rank % n].row;
        return 1;
    }
    for (int64_t i = rank * n / world; i < (rank + 1) * n / world; i++) {
        rows[taken++] = batch[i].row;
    }
    return taken;
}

static struct rp_feed_options random_options(int64_t positions)
{
    struct rp_feed_options o = {.epoch = (uint32_t)pick(0, 1000),
                                .start = pick(0, positions - 1),
                                .batch = pick(1, 12),
                                .world = pick(1, 8),
                                .workers = pick(1, 4),
                                .drop_last = pick(0, 1) == 1};
    o.stop = pick(0, 3) == 0 ? -1 : pick(o.start, positions);
    o.rank = pick(0, o.world - 1);
    o.worker = pick(0, o.workers - 1);
    return o;
}

/* Batch [p, q) comes next, in parts if there are any; `before`: where the last one ended. */
static void check_batch(rp_feed *feed, const struct rp_feed_options *o, int64_t p, int64_t q,
                        int64_t before)
{
    struct rp_error err;
    rp_error_clear(&err);
    int64_t rows[16], want[16], n, done, repeated;
    int64_t all = expect_batch(p, q, o->rank, o->world, want), given = 0;
    while (given < all) {
        REQUIRE_OK(rp_feed_next(feed, rows, &n, &done, &repeated, &err), &err);
        REQUIRE_EQ(n, o->part > 0 && o->part < all - given ? o->part : all - given);
        REQUIRE_(CHECK_MEM(rows, want + given, (size_t)n * sizeof(*rows)));
        given += n;
        REQUIRE_EQ(done, given < all ? before : q);
        REQUIRE_EQ(repeated, q - p < o->world ? o->world - (q - p) : 0);
    }
}

/* Follow a feed up to position `end`, or its own. */
static void check_feed(const struct mixture *m, const struct rp_feed_options *o, int64_t end)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_feed *feed = NULL;
    REQUIRE_OK(rp_feed_new(m->set, m->n, o, &feed, &err), &err);
    REQUIRE_EQ(rp_feed_batch(feed), o->part > 0 && o->part < o->batch ? o->part : o->batch);
    int64_t number = 0, rows[16], n, done, repeated, before = o->start;
    for (int64_t p = o->start; p < end; number++) {
        int64_t q = p + o->batch * o->world;
        if (o->stop >= 0 && q > o->stop) {
            if (p >= o->stop || o->drop_last) {
                break;
            }
            q = o->stop;
        }
        if (q > end) {
            break;
        }
        if (number % o->workers == o->worker) {
            check_batch(feed, o, p, q, before);
            before = q;
        }
        p = q;
    }
    if (o->stop >= 0 && o->stop <= end) {
        REQUIRE_STATUS(rp_feed_next(feed, rows, &n, &done, &repeated, &err), RP_END, &err);
        REQUIRE_STATUS(rp_feed_next(feed, rows, &n, &done, &repeated, &err), RP_END, &err);
    }
    rp_feed_free(&feed);
}

RP_TEST(batches_of_one_set_over_epochs)
{
    case_state = 21;
    struct mixture m;
    for (int round = 0; round < 6000; round++) {
        random_mixture(&m, 1, 12);
        int64_t positions = m.frames * pick(1, 3);
        struct rp_feed_options o = random_options(positions);
        o.part = pick(0, 1) * pick(1, 6);
        int64_t end = positions + o.batch * o.world;
        expect_set(&m, o.epoch, 0, end);
        check_feed(&m, &o, end);
    }
}

RP_TEST(batches_of_a_mixture_over_epochs)
{
    case_state = 22;
    struct mixture m;
    for (int round = 0; round < 4000; round++) {
        random_mixture(&m, (size_t)pick(2, SETS), 8);
        int64_t positions = m.frames * pick(1, 2);
        struct rp_feed_options o = random_options(positions);
        int64_t end = positions + o.batch * o.world;
        expect_mixture(&m, 0, end);
        check_feed(&m, &o, end);
    }
}

/* Positions, epochs, ids and frame numbers as large as they can be. */
RP_TEST(large_numbers)
{
    case_state = 23;
    struct mixture m;
    for (int round = 0; round < 1500; round++) {
        random_mixture(&m, (size_t)pick(1, 3), 8);
        int64_t last = INT64_MAX; /* position after which an epoch would not fit 32 bits */
        struct rp_feed_options o = random_options(m.frames);
        int64_t epochs = ((int64_t)1 << 32) - (m.n > 1 ? 0 : o.epoch);
        for (size_t d = 0; d < m.n; d++) {
            for (size_t r = 0; r < m.c[d].n_runs; r++) {
                m.c[d].runs[r].id += INT64_MAX - 1000;
                m.c[d].runs[r].frame_index += INT64_MAX - 1000;
            }
            int64_t turns = epochs * m.c[d].count / lanes_of(&m, d); /* 2^48 at most */
            last = turns * m.lanes < last ? turns * m.lanes : last;
        }
        last = m.n == 1 ? epochs * m.c[0].count : last;
        o.start = last - 100 + o.start % 50;
        o.stop = pick(0, 1) == 0 ? -1 : last - pick(0, 20);
        if (m.n == 1) {
            expect_set(&m, o.epoch, o.start, last - o.start);
        }
        else {
            expect_mixture(&m, o.start, last - o.start);
        }
        check_feed(&m, &o, last);
    }
}

RP_TEST(a_feed_without_end_stops_at_the_last_epoch)
{
    static const struct rp_run run = {0, 0, 10};
    struct rp_feed_set set = {&run, 1, {0, 0, 2, 4, 10, 1, 1, 0}, 0};
    struct rp_feed_options o = {
        .epoch = UINT32_MAX, .start = 4, .stop = -1, .batch = 4, .world = 1, .workers = 1};
    struct rp_error err;
    rp_feed *feed = NULL;
    int64_t rows[4], n, done = 0, repeated;
    rp_error_clear(&err);
    REQUIRE_OK(rp_feed_new(&set, 1, &o, &feed, &err), &err);
    REQUIRE_OK(rp_feed_next(feed, rows, &n, &done, &repeated, &err), &err);
    REQUIRE_EQ(done, 8);
    for (int i = 0; i < 2; i++) {
        rp_error_clear(&err);
        (void)CHECK_STATUS(rp_feed_next(feed, rows, &n, &done, &repeated, &err), RP_E_ARG, &err);
        (void)CHECK_CONTAINS(err.what, "epoch 2^32-1");
    }
    rp_feed_free(&feed);
    struct rp_feed_options far = o;
    far.start = 11;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new(&set, 1, &far, &feed, &err), RP_E_ARG, &err);
    far = o;
    far.stop = 11;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new(&set, 1, &far, &feed, &err), RP_E_ARG, &err);
    (void)CHECK(feed == NULL);
}

RP_TEST(the_pattern_of_5_3_1)
{
    static const struct rp_run run[3] = {{0, 0, 500}, {0, 0, 300}, {0, 0, 100}};
    struct rp_feed_set set[3];
    static const int64_t share[3] = {5, 3, 1}, pattern[9] = {0, 1, 0, 0, 1, 2, 0, 1, 0};
    for (int d = 0; d < 3; d++) {
        set[d] = (struct rp_feed_set){&run[d], 1, {1, 0, share[d], 64, 999, 1, 1, 0}, 1000 * d};
    }
    struct rp_feed_options o = {.stop = -1, .batch = 9, .world = 1, .workers = 1};
    rp_feed *feed = NULL;
    int64_t rows[9], n, done, repeated;
    REQUIRE_OK(rp_feed_new(set, 3, &o, &feed, NULL), NULL);
    REQUIRE_EQ(rp_feed_rows_end(feed), 2100);
    for (int batch = 0; batch < 300; batch++) {
        REQUIRE_OK(rp_feed_next(feed, rows, &n, &done, &repeated, NULL), NULL);
        for (int i = 0; i < 9; i++) {
            (void)CHECK_EQ(rows[i] / 1000, pattern[i]);
        }
    }
    rp_feed_free(&feed);
}

RP_TEST(given_rows_come_in_their_order)
{
    static const int64_t rows[7] = {5, 3, 3, 9, 0, 1, 2};
    for (int64_t batch = 1; batch <= 8; batch++) {
        for (int drop = 0; drop < 2; drop++) {
            rp_feed *feed = NULL;
            int64_t got[8], n, done = 0, repeated = 1, at = 0;
            REQUIRE_OK(rp_feed_new_rows(rows, 7, batch, drop == 1, &feed, NULL), NULL);
            REQUIRE_EQ(rp_feed_rows_end(feed), 10);
            REQUIRE_EQ(rp_feed_batch(feed), batch);
            rp_status status;
            while ((status = rp_feed_next(feed, got, &n, &done, &repeated, NULL)) == RP_OK) {
                REQUIRE_EQ(n, 7 - at < batch ? 7 - at : batch);
                REQUIRE_(CHECK_MEM(got, rows + at, (size_t)n * sizeof(*got)));
                at += n;
                REQUIRE_EQ(done, at);
                REQUIRE_EQ(repeated, 0);
            }
            REQUIRE_EQ(status, RP_END);
            REQUIRE_EQ(at, drop == 1 ? 7 / batch * batch : 7);
            rp_feed_free(&feed);
        }
    }
    rp_feed *none = NULL;
    int64_t got[1], n, done, repeated;
    REQUIRE_OK(rp_feed_new_rows(NULL, 0, 1, false, &none, NULL), NULL);
    REQUIRE_EQ(rp_feed_rows_end(none), 0);
    REQUIRE_STATUS(rp_feed_next(none, got, &n, &done, &repeated, NULL), RP_END, NULL);
    rp_feed_free(&none);
}

RP_TEST(what_makes_no_sense_is_refused)
{
    static const struct rp_run run = {0, 0, 10};
    static const struct rp_feed_options good = {.stop = -1, .batch = 4, .world = 2, .workers = 2};
    struct rp_feed_set set[2] = {{&run, 1, {0, 0, 65536, 4, 10, 1, 1, 0}, 0},
                                 {&run, 1, {0, 0, 1, 4, 10, 1, 1, 0}, 0}};
    struct rp_feed_options o[13];
    for (int i = 0; i < 13; i++) {
        o[i] = good;
    }
    o[0].batch = 0;
    o[1].batch = (int64_t)1 << 31;
    o[2].world = 0;
    o[3].rank = 2;
    o[4].rank = -1;
    o[5].worker = 2;
    o[6].worker = -1;
    o[7].workers = 0;
    o[8].start = -1;
    o[9].world = (int64_t)1 << 31;
    o[10].start = INT64_MAX;
    o[11].stop = INT64_MAX;
    o[12].part = -1;
    struct rp_error err;
    rp_feed *feed = NULL;
    for (int i = 0; i < 13; i++) {
        rp_error_clear(&err);
        (void)CHECK_STATUS(rp_feed_new(set, 1, &o[i], &feed, &err), RP_E_ARG, &err);
    }
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new(set, 0, &good, &feed, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new(set, 2, &good, &feed, &err), RP_E_ARG, &err); /* lanes */
    set[0].params.lanes = 4;
    struct rp_feed_options parts = good;
    parts.part = 2;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new(set, 2, &parts, &feed, &err), RP_E_ARG, &err);
    set[1].params.lanes = -1;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new(&set[1], 1, &good, &feed, &err), RP_E_ARG, &err);
    set[0].first_row = -1;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new(set, 1, &good, &feed, &err), RP_E_ARG, &err);
    set[0].first_row = INT64_MAX - 9;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new(set, 1, &good, &feed, &err), RP_E_ARG, &err);
    static const int64_t rows[2] = {0, -1}, most = INT64_MAX;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new_rows(rows, 2, 1, false, &feed, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new_rows(&most, 1, 1, false, &feed, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new_rows(rows, 1, 0, false, &feed, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_feed_new_rows(rows, -1, 1, false, &feed, &err), RP_E_ARG, &err);
    (void)CHECK(feed == NULL);
    rp_feed_free(&feed);
    rp_feed_free(NULL);
}

struct failing {
    struct mixture m;
    struct rp_feed_options o;
    int64_t end;
};

/* After a failure the same batch comes. */
static void feed_some(void *arg)
{
    const struct failing *f = arg;
    struct rp_error err;
    rp_error_clear(&err);
    rp_feed *feed = NULL;
    rp_status status = rp_feed_new(f->m.set, f->m.n, &f->o, &feed, &err);
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == RP_E_NOMEM));
    int64_t rows[16], want[16], n = 0, done = 0, repeated, size = f->o.batch * f->o.world;
    for (int64_t p = 0; status == RP_OK && p + size <= f->end; p += size) {
        rp_error_clear(&err);
        if (rp_feed_next(feed, rows, &n, &done, &repeated, &err) != RP_OK) { /* only once */
            (void)CHECK(err.code == RP_E_NOMEM);
            rp_error_clear(&err);
            (void)CHECK_OK(rp_feed_next(feed, rows, &n, &done, &repeated, &err), &err);
        }
        (void)CHECK_EQ(done, p + size);
        (void)CHECK_EQ(n, expect_batch(p, p + size, f->o.rank, f->o.world, want));
        (void)CHECK_MEM(rows, want, (size_t)n * sizeof(*rows));
    }
    rp_feed_free(&feed);
    static const int64_t given[2] = {0, 1};
    rp_error_clear(&err);
    status = rp_feed_new_rows(given, 2, 2, false, &feed, &err);
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == RP_E_NOMEM));
    rp_feed_free(&feed);
}

RP_TEST(memory_may_be_short)
{
    static struct failing f;
    case_state = 24;
    for (size_t n = 1; n < 4; n += 2) {
        do {
            random_mixture(&f.m, n, 60);
        } while (f.m.lanes < 3);
        f.o = (struct rp_feed_options){.stop = -1, .batch = 8, .world = 2, .rank = 1, .workers = 1};
        f.end = f.m.frames * 2;
        if (n == 1) {
            expect_set(&f.m, 0, 0, f.end);
        }
        else {
            expect_mixture(&f.m, 0, f.end);
        }
        struct rp_fault fault = {.calls = RP_FAULT_MEMORY};
        (void)CHECK(rp_fault_sweep(fault, feed_some, &f) > 10);
    }
}
