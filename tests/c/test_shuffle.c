/* The streamed order: equal to the order of the whole epoch from every position, and what its
 * windows promise. */
#include "harness.h"

#include "order_cases.h"
#include "pool/order_units.h"
#include "pool/plan.h"

enum { MOST = 1024 };

static int64_t whole[MOST];

static void order_all(const struct order_case *c, uint32_t epoch)
{
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_order_params p = c->params;
    p.epoch = epoch;
    REQUIRE(c->count <= MOST);
    REQUIRE_OK(rp_order_rows(c->runs, c->n_runs, &p, whole, &err), &err);
}

static rp_order *order_of(const struct order_case *c)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_order *order = NULL;
    REQUIRE_OK(rp_order_new(c->runs, c->n_runs, &c->params, &order, &err), &err);
    REQUIRE_EQ(rp_order_frames(order), c->count);
    return order;
}

static void check_row(rp_order *order, uint32_t epoch, int64_t position)
{
    struct rp_error err;
    rp_error_clear(&err);
    int64_t row = -1;
    REQUIRE_OK(rp_order_row(order, epoch, position, &row, &err), &err);
    REQUIRE_EQ(row, whole[position]);
}

/* stream(p) = sequence[p:] for every p. */
static void check_from_everywhere(const struct order_case *c)
{
    order_all(c, c->params.epoch);
    for (int64_t p = 0; p < c->count; p++) {
        rp_order *order = order_of(c);
        for (int64_t at = p; at < c->count; at++) {
            check_row(order, c->params.epoch, at);
        }
        rp_order_free(&order);
    }
}

RP_TEST(a_stream_goes_on_from_every_position)
{
    case_state = 11;
    for (int round = 0; round < 250; round++) {
        struct order_case c = random_case(20);
        check_from_everywhere(&c);
    }
    for (size_t i = 0; i < AWKWARD_SIZES; i++) {
        struct order_case c = awkward_case(i);
        check_from_everywhere(&c);
    }
}

/* Steps of every length and direction, lanes left out, epochs that come back. */
RP_TEST(any_position_can_be_asked_for)
{
    case_state = 12;
    for (int round = 0; round < 600; round++) {
        struct order_case c = random_case(60);
        rp_order *order = order_of(&c);
        for (int visit = 0; visit < 3; visit++) {
            uint32_t epoch = visit == 2 ? UINT32_MAX : (uint32_t)pick(0, 3);
            order_all(&c, epoch);
            int64_t step = pick(1, 12);
            for (int64_t at = pick(0, 5); at < c.count; at += step) {
                check_row(order, epoch, at);
            }
            for (int i = 0; i < 12; i++) {
                check_row(order, epoch, pick(0, c.count - 1));
            }
        }
        rp_order_free(&order);
    }
}

RP_TEST(no_lanes_means_ascending_ids)
{
    static const struct order_case c = {
        .runs = {{5, 0, 7}, {20, 0, 3}}, .n_runs = 2, .count = 10, .params = {.lanes = 0}};
    rp_order *order = order_of(&c);
    for (int64_t at = 0; at < c.count; at++) {
        whole[at] = at;
        check_row(order, 3, at);
    }
    rp_order_free(&order);
}

/* Windows never step back (I4), hold no more than they should (I5), and a frame lies near its unit
 * (I6). */
static void check_lane(struct rp_units *units, int64_t c, int64_t longest)
{
    struct rp_lane lane = rp_units_lane(units, c);
    struct rp_order_entry entry[MOST];
    struct rp_clip before = {0, 0, 0, 0, 0};
    int64_t far = units->window + longest;
    for (size_t i = lane.first; i < lane.last; i++) {
        struct rp_clip clip = rp_units_clip(units, &lane, i);
        REQUIRE(clip.s == before.e && clip.e > clip.s && clip.lo >= before.lo);
        REQUIRE(clip.hi >= before.hi && clip.lo <= clip.s && clip.hi >= clip.e);
        rp_units_keys(units, i, &clip, entry);
        for (int64_t f = 0; f < clip.e - clip.s; f++) {
            REQUIRE(entry[f].key >> 32 >= (uint64_t)clip.lo);
            REQUIRE(entry[f].key >> 32 < (uint64_t)clip.hi);
            int64_t at = 0;
            while (whole[at] != entry[f].row) {
                at++;
            }
            REQUIRE_EQ(at % units->params.lanes, c);
            at /= units->params.lanes;
            REQUIRE(at >= clip.s - far && at < clip.e + far);
        }
        before = clip;
    }
    REQUIRE_EQ(before.e, lane.n);
    for (int64_t row = 0; row < lane.n; row++) {
        int64_t live = 0;
        for (size_t i = lane.first; i < lane.last; i++) {
            struct rp_clip clip = rp_units_clip(units, &lane, i);
            live += clip.lo <= row && row < clip.hi ? clip.e - clip.s : 0;
        }
        REQUIRE(live <= far);
    }
}

RP_TEST(windows_hold_what_they_promise)
{
    case_state = 13;
    for (int round = 0; round < 300; round++) {
        struct order_case c = random_case(50);
        struct rp_units units;
        REQUIRE_OK(rp_units_init(&units, c.runs, c.n_runs, &c.params, NULL), NULL);
        rp_units_shuffle(&units, c.params.epoch);
        order_all(&c, c.params.epoch);
        int64_t longest = 0;
        for (size_t u = 0; u < units.n; u++) {
            longest = units.unit[u].size > longest ? units.unit[u].size : longest;
        }
        for (int64_t lane = 0; lane < c.params.lanes && lane < c.count; lane++) {
            check_lane(&units, lane, longest);
        }
        rp_units_free(&units);
    }
}

RP_TEST(what_makes_no_sense_is_refused)
{
    static const struct rp_run good = {0, 0, 8}, bad = {0, 0, 0};
    static const struct rp_order_params wrong = {0, 0, 65537, 4, 8, 1, 1, 0};
    static const struct rp_order_params right = {0, 0, 2, 4, 8, 1, 1, 0}, ascending = {0};
    struct rp_error err;
    rp_order *order = NULL;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_order_new(&good, 1, &wrong, &order, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_order_new(&bad, 1, &right, &order, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_order_new(&bad, 1, &ascending, &order, &err), RP_E_ARG, &err);
    (void)CHECK(order == NULL);
    rp_order_free(&order);
    rp_order_free(NULL);
}

/* After a failure the same position gives the same row. */
static void stream_some(void *arg)
{
    const struct order_case *c = arg;
    struct rp_error err;
    rp_error_clear(&err);
    rp_order *order = NULL;
    rp_status status = rp_order_new(c->runs, c->n_runs, &c->params, &order, &err);
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == RP_E_NOMEM));
    for (int64_t at = 0; status == RP_OK && at < c->count; at++) {
        int64_t row = -1;
        rp_error_clear(&err);
        if (rp_order_row(order, 3, at, &row, &err) != RP_OK) { /* the fault comes once */
            (void)CHECK(err.code == RP_E_NOMEM);
            rp_error_clear(&err);
            (void)CHECK_OK(rp_order_row(order, 3, at, &row, &err), &err);
        }
        (void)CHECK_EQ(row, whole[at]);
    }
    rp_order_free(&order);
}

RP_TEST(memory_may_be_short)
{
    static struct order_case c = {.runs = {{0, 0, 300}, {300, 0, 200}},
                                  .n_runs = 2,
                                  .count = 500,
                                  .params = {1, 3, 8, 2, 100, 2, 4, 3}};
    order_all(&c, 3);
    struct rp_fault fault = {.calls = RP_FAULT_MEMORY};
    (void)CHECK(rp_fault_sweep(fault, stream_some, &c) > 10);
}
