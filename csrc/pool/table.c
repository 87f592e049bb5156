#include "pool/order_units.h"
#include "pool/work_priv.h"

#include <string.h>

int64_t rp_desc_run_of(const struct rp_dataset_desc *desc, int64_t row)
{
    return rp_run_at(desc->run_first, desc->n_runs, row);
}

int32_t rp_desc_set_of(const struct rp_dataset_desc *desc, int64_t run)
{
    return desc->run_set != NULL ? desc->run_set[run] : 0;
}

int64_t rp_desc_window_row(const struct rp_dataset_desc *desc, int64_t run, int64_t row,
                           int64_t delta, bool *outside)
{
    int64_t first = desc->run_first[run], last = desc->run_first[run + 1] - 1, at;
    if (__builtin_add_overflow(row, delta, &at)) {
        at = delta < 0 ? first - 1 : last + 1;
    }
    *outside = at < first || at > last;
    return at < first ? first : at > last ? last : at;
}

static const int64_t *deltas_of(const struct rp_dataset_desc *desc, const struct rp_window *window,
                                int64_t run)
{
    return window->delta + (ptrdiff_t)rp_desc_set_of(desc, run) * window->n;
}

static void write_column(const struct rp_dataset_desc *desc, const struct rp_column *column,
                         const struct batch *batch, uint8_t *to)
{
    size_t size = column->row_bytes;
    for (int64_t i = 0; i < batch->n; i++) {
        int64_t row = batch->rows[i];
        int64_t run = rp_desc_run_of(desc, row);
        const int64_t *delta = deltas_of(desc, &column->window, run);
        for (int d = 0; d < column->window.n; d++, to += size) {
            bool outside;
            int64_t at = rp_desc_window_row(desc, run, row, delta[d], &outside);
            memcpy(to, column->data + (size_t)at * size, size);
        }
    }
}

static void write_pad(const struct rp_dataset_desc *desc, const struct rp_window *window,
                      const struct batch *batch, uint8_t *to)
{
    for (int64_t i = 0; i < batch->n; i++) {
        int64_t row = batch->rows[i];
        int64_t run = rp_desc_run_of(desc, row);
        const int64_t *delta = deltas_of(desc, window, run);
        for (int d = 0; d < window->n; d++) {
            bool outside;
            (void)rp_desc_window_row(desc, run, row, delta[d], &outside); /* flag only */
            *to++ = outside;
        }
    }
}

void rp_batch_write_columns(const rp_loader *loader, struct batch *batch)
{
    const struct rp_dataset_desc *desc = loader->desc;
    if (desc->n_columns + desc->n_pads == 0) {
        return;
    }
    const size_t *offset = batch->offsets + desc->n_cameras;
    size_t first = *offset;
    uint8_t *to = loader->gpu != NULL ? batch->stage.memory->host : batch->block->data + first;
    for (int i = 0; i < desc->n_columns; i++) {
        write_column(desc, &desc->column[i], batch, to + (*offset++ - first));
    }
    for (int i = 0; i < desc->n_pads; i++) {
        write_pad(desc, &desc->pad[i].window, batch, to + (*offset++ - first));
    }
}
