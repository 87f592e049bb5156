/* Order parameters and runs from bytes: what is accepted must be a bijection, and ranks must cut
 * every batch into itself; the rest must be refused. */
#include "base/memory.h"
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
        check_slices(p.lanes, p.epoch % 1000, 1 + count % 200, 1 + p.window % 16);
    }
    PROMISE(rp_live_objects() == live);
    return 0;
}
