/* For the loader's tests: taking batches and checking all that they hold. Included once per
 * program; brings the demo data set and its right pictures. */
#ifndef RP_TESTS_LOADER_FIXTURE_H
#define RP_TESTS_LOADER_FIXTURE_H

#include "loader_demo.h"
#include "loader_reference.h"

#define SLICE_NS 50000000LL
#define STALL_NS 120000000000LL

/* Next batch of the stream, however many slices it takes. */
static RP_UNUSED rp_status next_batch(rp_loader *loader, rp_batch **out, struct rp_error *err)
{
    rp_status status;
    rp_error_clear(err);
    do {
        status = rp_loader_next(loader, SLICE_NS, STALL_NS, out, err);
    } while (status == RP_AGAIN);
    return status;
}

static RP_UNUSED rp_status take_ticket(rp_loader *loader, uint64_t ticket, rp_batch **out,
                                       struct rp_error *err)
{
    rp_status status;
    rp_error_clear(err);
    do {
        status = rp_loader_take(loader, ticket, SLICE_NS, STALL_NS, out, err);
    } while (status == RP_AGAIN);
    return status;
}

/* The row of a window step by the rule in words: shifted, kept inside its episode. */
static int64_t step_row(const struct demo *d, int64_t row, int64_t delta, bool *outside)
{
    int k = 0;
    while (d->run_first[k + 1] <= row) {
        k++;
    }
    int64_t first = d->run_first[k], last = d->run_first[k + 1] - 1;
    if (delta < first - row) {
        *outside = true;
        return first;
    }
    *outside = delta > last - row;
    return *outside ? last : row + delta;
}

/* Everything a batch of these rows must hold. */
static RP_UNUSED bool check_batch(const struct demo *d, const rp_batch *batch, const int64_t *rows,
                                  int64_t n)
{
    bool outside, good = CHECK_EQ(batch->n, n);
    const size_t *offset = batch->field_offset;
    for (int64_t i = 0; i < n && good; i++) {
        good = CHECK_EQ(batch->rows[i], rows[i]);
        int field = 0;
        for (int c = 0; c < d->desc.n_cameras && good; c++, field++) {
            const struct rp_window *w = &d->camera[c].window;
            for (int s = 0; s < w->n && good; s++) {
                const uint8_t *at =
                    batch->block->data + offset[field] + (size_t)(i * w->n + s) * picture_bytes(c);
                int64_t row = step_row(d, rows[i], w->delta[s], &outside);
                good = CHECK(hash_bytes(at, picture_bytes(c)) == reference[c][row]);
            }
        }
        const struct rp_window *w = &d->column[0].window;
        for (int s = 0; s < w->n && good; s++) {
            int64_t got;
            memcpy(&got, batch->block->data + offset[field] + (size_t)(i * w->n + s) * 8, 8);
            good = CHECK_EQ(got, d->value[step_row(d, rows[i], w->delta[s], &outside)]);
        }
        field++;
        for (int p = 0; p < d->desc.n_pads && good; p++, field++) {
            w = &d->pad[p].window;
            for (int s = 0; s < w->n && good; s++) {
                (void)step_row(d, rows[i], w->delta[s], &outside);
                good =
                    CHECK_EQ(batch->block->data[offset[field] + (size_t)(i * w->n + s)], outside);
            }
        }
    }
    return good;
}

/* A whole stream checked batch by batch; every batch is given back at once. */
static RP_UNUSED void check_stream(const struct demo *d, rp_loader *loader, const int64_t *rows,
                                   int64_t count, int64_t size, bool drop_last)
{
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(begin_rows(loader, rows, count, size, drop_last, &err), &err);
    int64_t at = 0;
    rp_batch *batch = NULL;
    rp_status status;
    while ((status = next_batch(loader, &batch, &err)) == RP_OK) {
        int64_t n = count - at < size ? count - at : size;
        (void)CHECK_EQ(batch->done, at + n);
        bool good = check_batch(d, batch, rows + at, n);
        rp_batch_free(&batch);
        REQUIRE(good);
        at += n;
    }
    (void)CHECK_STATUS(status, RP_END, &err);
    (void)CHECK_EQ(at, drop_last ? count / size * size : count);
}

/* Rows in a fixed disorder with repeats. */
static RP_UNUSED void mixed_rows(int64_t *rows, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        rows[i] = (int64_t)(seed >> 33) % ROWS;
    }
}

#endif
