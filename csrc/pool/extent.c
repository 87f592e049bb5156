#include "pool/work_priv.h"

#define MOST_BYTES (INT64_C(16) << 20) /* of a unit; one GOP may have more */

/* First sample of the GOP after the one that `at` lies in. Pictures that precede a key in time
 * follow it in the file (leading pictures): they belong to the GOP before, too. */
static int64_t gop_end(const rp_index *index, int64_t at, bool *leading)
{
    struct rp_sample sample, key;
    int64_t n = rp_index_samples(index);
    for (at++; at < n; at++) {
        rp_index_sample(index, at, &key);
        if (key.key) {
            break;
        }
    }
    *leading = false;
    if (at + 1 < n) {
        rp_index_sample(index, at + 1, &sample);
        *leading = sample.pts < key.pts;
    }
    return at;
}

/* With the leading pictures of the key at `end`. */
static int64_t with_leading(const rp_index *index, int64_t end)
{
    struct rp_sample sample, key;
    int64_t at = end + 1;
    rp_index_sample(index, end, &key);
    while (at < rp_index_samples(index)) {
        rp_index_sample(index, at, &sample);
        if (sample.pts >= key.pts) {
            break;
        }
        at++;
    }
    return at;
}

/* The bytes of samples [first, end), if they lie together. */
static bool measure(rp_loader *loader, int32_t file, struct extent *e)
{
    const rp_index *index = loader->indexes.entry[file].index;
    struct rp_byte_range range;
    int64_t covered;
    if (e->end <= e->first ||
        rp_index_range(index, e->first, e->end - 1, &covered, &range, NULL) != RP_OK ||
        covered < e->end - 1) {
        return false;
    }
    e->offset = range.offset;
    e->len = range.len;
    return true;
}

/* Start key of the picture of a row. */
static bool key_of_row(const rp_loader *loader, const struct want *want, int64_t run, int64_t row,
                       int64_t *key, int64_t *sample)
{
    const struct rp_dataset_desc *desc = loader->desc;
    const struct rp_camera *camera = &desc->camera[want->camera];
    const rp_index *index = loader->indexes.entry[want->file].index;
    double time = camera->run_start[run] + (double)desc->timestamp[row];
    double tolerance = desc->tolerance[rp_desc_set_of(desc, run)];
    return rp_index_find(index, time, tolerance, sample, NULL, NULL) == RP_OK &&
           rp_index_start_key(index, *sample, key, NULL) == RP_OK;
}

/* Rows of the sample's unit, widened by what its window reaches, inside its episode. */
static bool unit_rows(const rp_loader *loader, const struct want *want, int64_t *run,
                      int64_t *first, int64_t *end)
{
    const struct rp_dataset_desc *desc = loader->desc;
    const struct rp_window *window = &desc->camera[want->camera].window;
    int64_t row = want->batch->rows[want->order / loader->wants_per_sample];
    if (loader->feed == NULL || !rp_feed_unit(loader->feed, row, first, end)) {
        return false;
    }
    *run = rp_desc_run_of(desc, row);
    const int64_t *delta = window->delta + (ptrdiff_t)rp_desc_set_of(desc, *run) * window->n;
    int64_t back = 0, on = 0;
    for (int d = 0; d < window->n; d++) {
        back = delta[d] < back ? delta[d] : back;
        on = delta[d] > on ? delta[d] : on;
    }
    bool outside;
    *first = rp_desc_window_row(desc, *run, *first, back, &outside);
    *end = rp_desc_window_row(desc, *run, *end - 1, on, &outside) + 1;
    return true;
}

/* The GOPs from that of the unit's first frame up to, not with, that of the first frame after it:
 * so the units of an episode share no bytes. */
static bool unit_extent(rp_loader *loader, const struct want *want, struct extent *e)
{
    const struct rp_dataset_desc *desc = loader->desc;
    const rp_index *index = loader->indexes.entry[want->file].index;
    int64_t run = 0, first = 0, end = 0, sample;
    bool leading;
    if (!unit_rows(loader, want, &run, &first, &end) ||
        !key_of_row(loader, want, run, first, &e->first, &sample)) {
        return false;
    }
    if (end < desc->run_first[run + 1]) {
        if (!key_of_row(loader, want, run, end, &e->end, &sample)) {
            return false;
        }
    }
    else {
        if (!key_of_row(loader, want, run, end - 1, &e->end, &sample)) {
            return false;
        }
        e->end = gop_end(index, sample > e->end ? sample : e->end, &leading);
    }
    if (want->key < e->first || want->key >= e->end) {
        return false;
    }
    return measure(loader, want->file, e) && e->len <= MOST_BYTES;
}

void rp_extent_of_locked(rp_loader *loader, const struct want *want, bool by_unit,
                         struct extent *out)
{
    const struct index_entry *entry = &loader->indexes.entry[want->file];
    *out = (struct extent){0};
    int64_t whole = rp_files_whole(loader->files, want->file);
    if (whole > 0) {
        *out = (struct extent){.end = rp_index_samples(entry->index), .len = whole};
        return;
    }
    if (by_unit && unit_extent(loader, want, out)) {
        return;
    }
    bool leading;
    out->first = want->key;
    out->end = gop_end(entry->index, want->key, &leading);
    if (leading) {
        out->end = with_leading(entry->index, out->end);
    }
    if (!measure(loader, want->file, out)) {
        out->len = 0;
    }
}
