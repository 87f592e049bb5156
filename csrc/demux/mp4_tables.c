/* Sample tables -> the arrays of the index. Every count was checked against its box's bytes before
 * anything is allocated by it; the one count without bytes (stsz with one common size) is bounded
 * by the file's size. */
#include "demux/mp4_priv.h"

#include "base/bytes.h"
#include "base/memory.h"

#include <string.h>

static rp_status check_sample_size(uint32_t i, uint32_t size, struct rp_error *err)
{
    if (size == 0) {
        RP_FAIL(err, RP_E_FORMAT, "sample %u is empty", i);
    }
    if (size > RP_MAX_SAMPLE_BYTES) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "sample %u has %u bytes, the limit is %u", i, size,
                RP_MAX_SAMPLE_BYTES);
    }
    return RP_OK;
}

static rp_status build_sizes(const struct rp_box *stsz, rp_index *index, struct rp_error *err)
{
    RP_TRY(rp_box_need(stsz, 12, err));
    uint32_t common = rp_be32(stsz->data + 4);
    uint32_t n = rp_be32(stsz->data + 8);
    const uint8_t *entries = NULL;
    if (common == 0) {
        RP_TRY(rp_box_table(stsz, 12, 4, &n, &entries, err));
    }
    if (n == 0) {
        RP_FAIL(err, RP_E_FORMAT, "the video track has no samples");
    }
    if (n > RP_MAX_SAMPLES) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "%u samples, the limit is %d", n, RP_MAX_SAMPLES);
    }
    if (common != 0 && (uint64_t)n * common > (uint64_t)index->file_size) {
        RP_FAIL(err, RP_E_FORMAT, "%u samples of %u bytes each in a file of %lld bytes", n, common,
                (long long)index->file_size);
    }
    void *sizes;
    RP_TRY(rp_index_alloc(index, n, sizeof(uint32_t), &sizes, err));
    index->sizes = sizes;
    index->samples = n;
    index->blocks = (n + 63) / 64;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t size = common != 0 ? common : rp_be32(entries + 4 * (size_t)i);
        RP_TRY(check_sample_size(i, size, err));
        index->sizes[i] = size;
        index->largest = size > index->largest ? size : index->largest;
    }
    void *blocks;
    RP_TRY(rp_index_alloc(index, index->blocks, sizeof(struct rp_block), &blocks, err));
    index->block = blocks;
    return RP_OK;
}

/* Chunk offsets in either width. */
struct chunks {
    const uint8_t *entries;
    uint32_t count;
    bool wide;
};

static rp_status open_chunks(const struct rp_track *track, struct chunks *out, struct rp_error *err)
{
    const struct rp_box *stco = &track->box[RP_TB_STCO];
    const struct rp_box *co64 = &track->box[RP_TB_CO64];
    if ((stco->data == NULL) == (co64->data == NULL)) {
        RP_FAIL(err, RP_E_FORMAT, "a track needs one of stco and co64, has %s",
                stco->data == NULL ? "none" : "both");
    }
    out->wide = co64->data != NULL;
    return rp_box_table(out->wide ? co64 : stco, 8, out->wide ? 8 : 4, &out->count, &out->entries,
                        err);
}

/* Append the samples of one chunk that starts at `offset`; *sample and *end (the end of the chunk
 * before) move on. */
static rp_status add_chunk(rp_index *index, uint64_t offset, uint32_t count, uint32_t *sample,
                           uint64_t *end, struct rp_error *err)
{
    uint32_t first = *sample;
    if (offset > RP_MAX_OFFSET) {
        RP_FAIL(err, RP_E_FORMAT, "chunk offset %llu", (unsigned long long)offset);
    }
    if (count > index->samples - first) {
        RP_FAIL(err, RP_E_FORMAT, "stsc places more samples than the %u of stsz", index->samples);
    }
    if (index->breaks == 0 || offset != *end) {
        index->brk[index->breaks++] = (struct rp_break){
            .first = first, .offset_lo = (uint32_t)offset, .offset_hi = (uint32_t)(offset >> 32)};
    }
    for (uint32_t i = first; i < first + count; i++) {
        if (i % 64 == 0) {
            index->block[i / 64].offset = offset;
            index->block[i / 64].chunk = index->breaks - 1;
        }
        offset += index->sizes[i];
    }
    *sample = first + count;
    *end = offset;
    return RP_OK;
}

/* Row `e` of stsc: chunks [*first, *last) hold *per_chunk samples each. */
static rp_status read_stsc_row(const uint8_t *rows, uint32_t count, uint32_t e, uint32_t chunks,
                               uint32_t *first, uint32_t *last, uint32_t *per_chunk,
                               struct rp_error *err)
{
    const uint8_t *row = rows + 12 * (size_t)e;
    *first = rp_be32(row) - 1; /* 0 wraps to a number beyond every table */
    *last = e + 1 < count ? rp_be32(row + 12) - 1 : chunks;
    *per_chunk = rp_be32(row + 4);
    uint32_t description = rp_be32(row + 8);
    if ((e == 0 && *first != 0) || *first >= *last || *last > chunks || *per_chunk == 0 ||
        description != 1) {
        RP_FAIL(err, RP_E_FORMAT,
                "stsc row %u: chunks %u to %u of %u, %u samples each, sample description %u", e,
                *first + 1, *last, chunks, *per_chunk, description);
    }
    return RP_OK;
}

static rp_status build_chunks(const struct rp_track *track, rp_index *index, struct rp_error *err)
{
    struct chunks chunks;
    uint32_t rows;
    const uint8_t *stsc;
    RP_TRY(open_chunks(track, &chunks, err));
    RP_TRY(rp_box_table(&track->box[RP_TB_STSC], 8, 12, &rows, &stsc, err));
    void *breaks;
    RP_TRY(rp_index_alloc(index, chunks.count, sizeof(struct rp_break), &breaks, err));
    index->brk = breaks;
    uint32_t sample = 0;
    uint64_t end = 0;
    for (uint32_t e = 0; e < rows; e++) {
        uint32_t first, last, per_chunk;
        RP_TRY(read_stsc_row(stsc, rows, e, chunks.count, &first, &last, &per_chunk, err));
        for (uint32_t c = first; c < last; c++) {
            uint64_t offset = chunks.wide ? rp_be64(chunks.entries + 8 * (size_t)c)
                                          : rp_be32(chunks.entries + 4 * (size_t)c);
            RP_TRY(add_chunk(index, offset, per_chunk, &sample, &end, err));
        }
    }
    if (sample != index->samples) {
        RP_FAIL(err, RP_E_FORMAT, "stsc places %u samples, stsz has %u", sample, index->samples);
    }
    return RP_OK;
}

static rp_status build_keys(const struct rp_box *stss, rp_index *index, struct rp_error *err)
{
    if (stss->data == NULL) { /* ISO/IEC 14496-12: without the box every sample is a sync sample */
        for (uint32_t i = 0; i < index->samples; i++) {
            index->block[i / 64].keys |= 1ull << (i % 64);
        }
        return RP_OK;
    }
    uint32_t count;
    const uint8_t *entries;
    RP_TRY(rp_box_table(stss, 8, 4, &count, &entries, err));
    uint32_t before = 0;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t number = rp_be32(entries + 4 * (size_t)k);
        if (number <= before || number > index->samples) {
            RP_FAIL(err, RP_E_FORMAT, "stss names sample %u after %u, of %u", number, before,
                    index->samples);
        }
        before = number;
        index->block[(number - 1) / 64].keys |= 1ull << ((number - 1) % 64);
    }
    return RP_OK;
}

static rp_status build_runs(const struct rp_box *stts, rp_index *index, struct rp_error *err)
{
    uint32_t count;
    const uint8_t *entries;
    RP_TRY(rp_box_table(stts, 8, 8, &count, &entries, err));
    void *runs;
    RP_TRY(rp_index_alloc(index, count, sizeof(struct rp_time_run), &runs, err));
    index->run = runs;
    uint32_t sample = 0;
    int64_t dts = 0; /* < 16 M samples * 2^31: no overflow */
    for (uint32_t e = 0; e < count; e++) {
        uint32_t length = rp_be32(entries + 8 * (size_t)e);
        uint32_t delta = rp_be32(entries + 8 * (size_t)e + 4);
        if (length > index->samples - sample) {
            RP_FAIL(err, RP_E_FORMAT, "stts times more samples than the %u of stsz",
                    index->samples);
        }
        if (delta > INT32_MAX) {
            RP_FAIL(err, RP_E_FORMAT, "stts row %u: duration of %u ticks", e, delta);
        }
        if (length > 0 && (index->runs == 0 || index->run[index->runs - 1].delta != delta)) {
            index->run[index->runs++] =
                (struct rp_time_run){.dts = dts, .first = sample, .delta = delta};
        }
        sample += length;
        dts += (int64_t)length * delta;
    }
    if (sample != index->samples) {
        RP_FAIL(err, RP_E_FORMAT, "stts times %u samples, stsz has %u", sample, index->samples);
    }
    uint32_t run = 0;
    for (uint32_t b = 0; b < index->blocks; b++) {
        while (run + 1 < index->runs && index->run[run + 1].first <= b * 64) {
            run++;
        }
        index->block[b].run = run;
    }
    return RP_OK;
}

/* Composition offsets, signed in both versions: writers put negative ones into version 0 too. */
static rp_status build_ctts(const struct rp_box *ctts, rp_index *index, struct rp_error *err)
{
    index->dts_shift = index->shift;
    if (ctts->data == NULL) {
        return RP_OK;
    }
    uint32_t count;
    const uint8_t *entries;
    RP_TRY(rp_box_table(ctts, 8, 8, &count, &entries, err));
    void *offsets;
    RP_TRY(rp_index_alloc(index, index->samples, sizeof(int32_t), &offsets, err));
    index->ctts = offsets;
    uint32_t sample = 0;
    int32_t least = 0;
    for (uint32_t e = 0; e < count; e++) {
        uint32_t length = rp_be32(entries + 8 * (size_t)e);
        int32_t offset = (int32_t)rp_be32(entries + 8 * (size_t)e + 4);
        if (length > index->samples - sample) {
            RP_FAIL(err, RP_E_FORMAT, "ctts covers more samples than the %u of stsz",
                    index->samples);
        }
        for (uint32_t i = sample; i < sample + length; i++) {
            index->ctts[i] = offset;
        }
        sample += length;
        least = length > 0 && offset < least ? offset : least;
    }
    if (sample != index->samples) {
        RP_FAIL(err, RP_E_FORMAT, "ctts covers %u samples, stsz has %u", sample, index->samples);
    }
    index->dts_shift += least; /* as libavformat: dts <= pts for every sample */
    return RP_OK;
}

/* Bottom-up merge sort of sample numbers by pts; equal ones keep their decode order. Coded order is
 * nearly sorted, so that most merges find nothing to do. `order` and `spare` swap roles. */
static uint32_t *sort_by_pts(uint32_t *order, uint32_t *spare, uint32_t n, const int64_t *pts)
{
    for (uint64_t width = 1; width < n; width *= 2) {
        for (uint64_t low = 0; low < n; low += 2 * width) {
            uint64_t mid = low + width < n ? low + width : n;
            uint64_t high = low + 2 * width < n ? low + 2 * width : n;
            if (mid == high || pts[order[mid - 1]] <= pts[order[mid]]) {
                memcpy(spare + low, order + low, (high - low) * sizeof(*order));
                continue;
            }
            uint64_t a = low, b = mid;
            for (uint64_t k = low; k < high; k++) {
                bool from_a = b == high || (a < mid && pts[order[a]] <= pts[order[b]]);
                spare[k] = from_a ? order[a++] : order[b++];
            }
        }
        uint32_t *swap = order;
        order = spare;
        spare = swap;
    }
    return order;
}

static bool is_shown(const rp_index *index, int64_t pts)
{
    return pts >= index->shown_from && pts < index->shown_to;
}

/* Sort the addressable samples when decode order is not presentation order. */
static rp_status build_shown(rp_index *index, struct rp_error *err)
{
    void *shown, *spare;
    uint32_t n = index->addressable;
    int64_t *pts = rp_calloc(index->samples, sizeof(*pts));
    rp_status status =
        pts == NULL ? rp_error_set(err, RP_E_NOMEM, "out of memory for an index") : RP_OK;
    if (status == RP_OK) {
        status = rp_index_alloc(index, n, sizeof(uint32_t), &spare, err);
    }
    if (status == RP_OK) {
        index->shown = spare; /* freed with the index if the next one fails */
        status = rp_index_alloc(index, n, sizeof(uint32_t), &shown, err);
    }
    if (status == RP_OK) {
        uint32_t k = 0;
        for (uint32_t i = 0; i < index->samples; i++) {
            pts[i] = rp_index_pts(index, i);
            if (is_shown(index, pts[i])) {
                ((uint32_t *)shown)[k++] = i;
            }
        }
        index->shown = sort_by_pts(shown, spare, n, pts);
        rp_free(index->shown == shown ? spare : shown);
        index->bytes -= n * sizeof(uint32_t);
    }
    rp_free(pts);
    return status;
}

/* An edit that starts between two pictures: the first one shown appears at the edit's start, as in
 * libavformat, by whose times LeRobot goes. */
static void align_to_edit(rp_index *index, int64_t first_pts)
{
    bool edited = index->shown_to != INT64_MAX;
    if (edited && index->addressable > 0) {
        int64_t early = first_pts - index->shown_from;
        index->shift -= early;
        index->dts_shift -= early;
        index->shown_to -= early;
        index->duration -= early;
    }
}

/* What the queries need to know of the whole track: addressable samples, duration, keys' order. */
static void survey(rp_index *index)
{
    int64_t last_key = INT64_MIN, first_pts = INT64_MAX;
    index->keys_ascend = true;
    for (uint32_t i = 0; i < index->samples; i++) {
        uint32_t delta;
        int64_t pts = rp_index_decode_time(index, i, &delta) + index->shift +
                      (index->ctts != NULL ? index->ctts[i] : 0);
        if (is_shown(index, pts)) {
            index->first_shown = index->addressable == 0 ? i : index->first_shown;
            index->addressable++;
            first_pts = pts < first_pts ? pts : first_pts;
            index->duration = pts + delta > index->duration ? pts + delta : index->duration;
        }
        if (index->block[i / 64].keys >> (i % 64) & 1) {
            index->keys_ascend = index->keys_ascend && pts > last_key;
            last_key = pts;
        }
    }
    align_to_edit(index, first_pts);
}

/* Give back what a table allocated for the most that its box could hold. */
static void *shrink(rp_index *index, void *array, size_t had, size_t has, size_t size)
{
    void *small = rp_realloc(array, has, size);
    if (small == NULL) {
        return array;
    }
    index->bytes -= (had - has) * size;
    return small;
}

static void shrink_tables(const struct rp_track *track, rp_index *index)
{
    const struct rp_box *chunks =
        &track->box[track->box[RP_TB_STCO].data != NULL ? RP_TB_STCO : RP_TB_CO64];
    index->brk = shrink(index, index->brk, rp_be32(chunks->data + 4), index->breaks,
                        sizeof(struct rp_break));
    index->run = shrink(index, index->run, rp_be32(track->box[RP_TB_STTS].data + 4), index->runs,
                        sizeof(struct rp_time_run));
}

rp_status rp_tables_build(const struct rp_track *track, rp_index *index, struct rp_error *err)
{
    RP_TRY(build_sizes(&track->box[RP_TB_STSZ], index, err));
    RP_TRY(build_chunks(track, index, err));
    RP_TRY(build_keys(&track->box[RP_TB_STSS], index, err));
    RP_TRY(build_runs(&track->box[RP_TB_STTS], index, err));
    RP_TRY(build_ctts(&track->box[RP_TB_CTTS], index, err));
    shrink_tables(track, index);
    survey(index);
    return index->ctts != NULL ? build_shown(index, err) : RP_OK;
}
