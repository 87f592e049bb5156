/* Random selections and parameters for the tests of the sample order. */
#ifndef RP_TESTS_ORDER_CASES_H
#define RP_TESTS_ORDER_CASES_H

#include "check.h"

#include "pool/plan.h"

#include <stdint.h>

enum { CASE_RUNS = 6 };

/* A selection and its order. */
struct order_case {
    struct rp_run runs[CASE_RUNS];
    size_t n_runs;
    int64_t count;
    struct rp_order_params params;
};

static uint64_t case_state; /* set it for a sequence of one's own */

static int64_t pick(int64_t lo, int64_t hi)
{
    case_state = case_state * 6364136223846793005u + 1442695040888963407u;
    return lo + (int64_t)((case_state >> 33) % (uint64_t)(hi - lo + 1));
}

/* C 1..N + 1, U incl. 0, R 1..2N, all k, g, J. */
static struct rp_order_params random_params(int64_t count)
{
    struct rp_order_params p = {.seed = (uint64_t)pick(0, INT32_MAX) << 33 | 5,
                                .epoch = (uint32_t)pick(0, 9),
                                .lanes = pick(1, count + 1),
                                .unit = pick(0, 3) == 0 ? 0 : pick(1, 90),
                                .window = pick(1, 2 * count),
                                .visit = pick(1, 5),
                                .span = pick(0, 20)};
    if (pick(0, 1) == 0) {
        p.lanes = pick(1, 4);
    }
    p.gop = p.visit + pick(0, 12);
    return p;
}

/* Up to CASE_RUNS runs of up to `longest` frames, with gaps between them and frames cut off their
 * fronts. */
static RP_UNUSED struct order_case random_case(int64_t longest)
{
    struct order_case c = {.n_runs = (size_t)pick(1, CASE_RUNS)};
    int64_t id = pick(0, 5);
    for (size_t r = 0; r < c.n_runs; r++) {
        c.runs[r] = (struct rp_run){id, pick(0, 1) * pick(0, 40), pick(1, longest)};
        id += c.runs[r].length + pick(0, 1) * pick(0, 9);
        c.count += c.runs[r].length;
    }
    c.params = random_params(c.count);
    return c;
}

/* Sizes at which divisions and windows change. */
static RP_UNUSED const int64_t awkward_sizes[] = {
    1, 2, 3, 5, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 211, 255, 256, 257, 509, 511, 512, 513};
enum { AWKWARD_SIZES = sizeof(awkward_sizes) / sizeof(awkward_sizes[0]) };

/* One run of an awkward size, its ids beyond 32 bits half of the time. */
static RP_UNUSED struct order_case awkward_case(size_t i)
{
    struct order_case c = {.n_runs = 1, .count = awkward_sizes[i % AWKWARD_SIZES]};
    c.runs[0] = (struct rp_run){pick(0, 1) * ((int64_t)1 << 40), pick(0, 3), c.count};
    c.params = random_params(c.count);
    return c;
}

#endif
