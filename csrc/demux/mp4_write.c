/* Each source becomes one chunk of the output, its samples in decode order. All times are scaled to
 * one timescale T, the least common multiple of the sources'. A source whose pictures span `extent`
 * ticks from its earliest picture to the end of its latest owns output times [base, base + extent);
 * its first decode time is base - lead, with one lead for all: the longest by which any source
 * decodes its first sample before it shows a picture. So decode times rise across sources of
 * different reordering, and no presentation time is touched. An edit list takes the lead away. */
#include "demux/mp4_write.h"

#include "base/memory.h"
#include "demux/mp4_boxes.h"
#include "demux/mp4_priv.h"

#include <assert.h>
#include <string.h>

#define MAX_TIMESCALE 0x7FFFFFFF /* readers keep it in a signed 32-bit number */

/* Presentation times of some pictures of a source, in its ticks. */
struct span {
    int64_t first, last; /* pts of the earliest and of the latest */
    int64_t before;      /* the latest pts below `last`; INT64_MIN: none */
    int64_t last_delta;  /* stts duration of the latest */
};

struct source {
    rp_index *index;
    int64_t scale;  /* T / timescale */
    int64_t begin;  /* earliest pts, source ticks */
    int64_t dts0;   /* first dts, source ticks */
    int64_t extent; /* source ticks; the next source begins there */
    int64_t lead;   /* begin - dts0 >= 0, source ticks */
    struct span shown;
    int64_t base; /* output ticks */
};

struct rp_concat {
    struct source *source;
    int sources, room;
    uint8_t *entry; /* of the first source */
    size_t entry_len;
    int64_t timescale, samples, media_bytes;
    /* after rp_concat_finish: */
    int64_t lead, total; /* output ticks */
    struct rp_concat_part *part;
    struct rp_concat_range *range;
    size_t ranges, range_room;
    struct rp_box_writer head;
};

static void span_add(struct span *span, int64_t pts, uint32_t delta)
{
    span->first = pts < span->first ? pts : span->first;
    if (pts > span->last) {
        span->before = span->last;
        span->last = pts;
        span->last_delta = delta;
    }
    else if (pts < span->last && pts > span->before) {
        span->before = pts;
    }
}

/* End of the latest picture; one that declares no duration lasts as long as the one before. */
static rp_status span_end(const struct span *span, int64_t *end, struct rp_error *err)
{
    int64_t delta = span->last_delta;
    if (delta == 0) {
        if (span->before == INT64_MIN) {
            RP_FAIL(err, RP_E_UNSUPPORTED, "the only picture has no duration");
        }
        delta = span->last - span->before;
    }
    *end = span->last + delta;
    return RP_OK;
}

/* Every sample lies in the file, none twice. */
static rp_status check_bytes(const rp_index *index, struct rp_error *err)
{
    int64_t total = 0;
    for (int64_t i = 0; i < index->samples; i++) {
        struct rp_byte_range range;
        int64_t covered;
        RP_TRY(rp_index_range(index, i, i, &covered, &range, err));
        total += range.len;
    }
    if (total > index->file_size) {
        RP_FAIL(err, RP_E_FORMAT, "samples overlap: %lld bytes in a file of %lld", (long long)total,
                (long long)index->file_size);
    }
    return RP_OK;
}

/* Each picture shown starts from a key of its own source (rp_index_start_key): from one of the
 * source before, it would be decoded into something else without any error. */
static rp_status check_keys(const rp_index *index, struct rp_error *err)
{
    int64_t earliest = INT64_MAX; /* pts of the keys so far */
    for (int64_t i = 0; i < index->samples; i++) {
        struct rp_sample sample;
        rp_index_sample(index, i, &sample);
        if (sample.key && sample.pts < earliest) {
            earliest = sample.pts;
        }
        if (i == 0 && !sample.key) {
            RP_FAIL(err, RP_E_FORMAT, "the first sample is no key");
        }
        if (sample.addressable && sample.pts < earliest) {
            RP_FAIL(err, RP_E_FORMAT, "no key sample comes before sample %lld (tick %lld)",
                    (long long)i, (long long)sample.pts);
        }
    }
    return RP_OK;
}

static rp_status survey(struct source *source, struct rp_error *err)
{
    const rp_index *index = source->index;
    const struct span none = {.first = INT64_MAX, .last = INT64_MIN, .before = INT64_MIN};
    struct span all = none;
    source->shown = none;
    for (int64_t i = 0; i < index->samples; i++) {
        struct rp_sample sample;
        uint32_t delta;
        rp_index_sample(index, i, &sample);
        (void)rp_index_decode_time(index, (uint32_t)i, &delta); /* only the duration is needed */
        span_add(&all, sample.pts, delta);
        if (sample.addressable) {
            span_add(&source->shown, sample.pts, delta);
        }
        source->dts0 = i == 0 ? sample.dts : source->dts0;
    }
    if (index->addressable == 0) {
        RP_FAIL(err, RP_E_FORMAT, "the edit list shows no picture");
    }
    int64_t end = 0, shown_end = 0;
    RP_TRY(span_end(&all, &end, err));
    RP_TRY(span_end(&source->shown, &shown_end, err));
    source->begin = all.first;
    source->extent = (end > shown_end ? end : shown_end) - all.first;
    source->lead = all.first - source->dts0;
    if (source->extent < index->samples) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "several pictures at one time: %u samples in %lld ticks",
                index->samples, (long long)source->extent);
    }
    return RP_OK;
}

static int64_t divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static rp_status join_timescale(const rp_concat *concat, uint32_t timescale, int64_t *common,
                                struct rp_error *err)
{
    *common = timescale;
    if (concat->sources > 0) { /* both factors are below 2^32 and 2^31 */
        *common = concat->timescale / divisor(concat->timescale, timescale) * timescale;
    }
    if (*common > MAX_TIMESCALE) {
        RP_FAIL(err, RP_E_UNSUPPORTED,
                "a common timescale of %lld for %lld and %u, below 2^31 is supported",
                (long long)*common, (long long)concat->timescale, timescale);
    }
    return RP_OK;
}

static rp_status join_entry(rp_concat *concat, const rp_index *index, struct rp_error *err)
{
    uint8_t *entry;
    size_t len;
    RP_TRY(rp_sample_entry(index, &entry, &len, err));
    if (concat->sources == 0) {
        rp_free(concat->entry); /* of a first source that was refused */
        concat->entry = entry;
        concat->entry_len = len;
        return RP_OK;
    }
    bool equal = len == concat->entry_len && memcmp(entry, concat->entry, len) == 0;
    rp_free(entry);
    if (!equal) {
        RP_FAIL(err, RP_E_UNSUPPORTED,
                "codec parameters (%s, %d x %d) other than those of the first file",
                rp_codec_name(index->codec.codec), index->codec.width, index->codec.height);
    }
    return RP_OK;
}

rp_status rp_concat_new(rp_concat **out, struct rp_error *err)
{
    rp_concat *concat = rp_calloc(1, sizeof(*concat));
    if (concat == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a concatenation");
    }
    *out = concat;
    return RP_OK;
}

static rp_status make_room(rp_concat *concat, struct rp_error *err)
{
    if (concat->sources < concat->room) {
        return RP_OK;
    }
    int room = concat->room > 0 ? 2 * concat->room : 16;
    struct source *source = rp_realloc(concat->source, (size_t)room, sizeof(*source));
    if (source == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %d sources", room);
    }
    concat->source = source;
    concat->room = room;
    return RP_OK;
}

rp_status rp_concat_add(rp_concat *concat, rp_index **index, struct rp_error *err)
{
    struct source source = {.index = *index};
    int64_t timescale;
    RP_TRY(join_entry(concat, *index, err));
    RP_TRY(join_timescale(concat, (*index)->timescale, &timescale, err));
    RP_TRY(check_bytes(*index, err));
    RP_TRY(check_keys(*index, err));
    RP_TRY(survey(&source, err));
    if (concat->samples + (*index)->samples > RP_MAX_SAMPLES) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "%lld samples in all, the limit is %d",
                (long long)concat->samples + (*index)->samples, RP_MAX_SAMPLES);
    }
    RP_TRY(make_room(concat, err));
    *index = NULL;
    concat->source[concat->sources++] = source;
    concat->timescale = timescale;
    concat->samples += source.index->samples;
    return RP_OK;
}

/* ticks * scale within what sums of two may hold. */
static rp_status scaled(int64_t ticks, int64_t scale, int64_t most, int64_t *out,
                        struct rp_error *err)
{
    if (__builtin_mul_overflow(ticks, scale, out) || *out > most) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "times of %lld x %lld ticks, the limit is %lld",
                (long long)ticks, (long long)scale, (long long)most);
    }
    return RP_OK;
}

/* Give each source its times in the output. */
static rp_status place(rp_concat *concat, struct rp_error *err)
{
    for (int s = 0; s < concat->sources; s++) {
        struct source *source = &concat->source[s];
        int64_t extent, lead;
        source->scale = concat->timescale / source->index->timescale;
        source->base = concat->total;
        RP_TRY(scaled(source->extent, source->scale, RP_MAX_TICKS, &extent, err));
        RP_TRY(scaled(source->lead, source->scale, INT32_MAX, &lead, err));
        concat->lead = lead > concat->lead ? lead : concat->lead;
        concat->total += extent;
        if (concat->total > RP_MAX_TICKS) {
            RP_FAIL(err, RP_E_UNSUPPORTED, "%lld ticks in all, the limit is %lld",
                    (long long)concat->total, RP_MAX_TICKS);
        }
        struct rp_concat_part *part = &concat->part[s];
        int64_t end = 0;
        RP_TRY(span_end(&source->shown, &end, err));
        part->frames = source->index->addressable;
        RP_TRY(scaled(source->shown.first, source->scale, RP_MAX_TICKS, &part->start, err));
        part->offset = source->base + (source->shown.first - source->begin) * source->scale;
        part->duration = (end - source->shown.first) * source->scale;
    }
    return RP_OK;
}

/* First decode time of source s; s == sources: the end of the last one. */
static int64_t first_dts(const rp_concat *concat, int s)
{
    return (s < concat->sources ? concat->source[s].base : concat->total) - concat->lead;
}

/* Output times of sample i of source s. The decode times of a source that decodes its last samples
 * late (uneven distances) end before those of the next one: the sample before the end gets at most
 * end - 1, and so on. `extent` >= samples leaves room for that. */
static void output_times(const rp_concat *concat, int s, int64_t i, int64_t *dts, int64_t *offset)
{
    const struct source *source = &concat->source[s];
    struct rp_sample sample;
    rp_index_sample(source->index, i, &sample);
    int64_t latest = first_dts(concat, s + 1) - (source->index->samples - i);
    int64_t pts = source->base + (sample.pts - source->begin) * source->scale;
    *dts = first_dts(concat, s) + (sample.dts - source->dts0) * source->scale;
    *dts = *dts < latest ? *dts : latest;
    *offset = pts - *dts;
}

static rp_status add_range(rp_concat *concat, int s, const struct rp_sample *sample,
                           struct rp_error *err)
{
    if (concat->ranges > 0) {
        struct rp_concat_range *last = &concat->range[concat->ranges - 1];
        if (last->source == s && last->bytes.offset + last->bytes.len == sample->offset) {
            last->bytes.len += sample->size;
            return RP_OK;
        }
    }
    if (concat->ranges == concat->range_room) {
        size_t room = concat->range_room > 0 ? 2 * concat->range_room : 64;
        struct rp_concat_range *range = rp_realloc(concat->range, room, sizeof(*range));
        if (range == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu byte ranges", room);
        }
        concat->range = range;
        concat->range_room = room;
    }
    concat->range[concat->ranges++] = (struct rp_concat_range){
        .source = s, .bytes = {.offset = sample->offset, .len = sample->size}};
    return RP_OK;
}

static rp_status collect_ranges(rp_concat *concat, struct rp_error *err)
{
    for (int s = 0; s < concat->sources; s++) {
        const rp_index *index = concat->source[s].index;
        for (int64_t i = 0; i < index->samples; i++) {
            struct rp_sample sample;
            rp_index_sample(index, i, &sample);
            RP_TRY(add_range(concat, s, &sample, err));
            concat->media_bytes += sample.size;
        }
    }
    return RP_OK;
}

static rp_status fits(int64_t ticks, const char *what, struct rp_error *err)
{
    if (ticks > INT32_MAX) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "%s of %lld ticks, below 2^31 is supported", what,
                (long long)ticks);
    }
    return RP_OK;
}

static rp_status put_stts(rp_concat *concat, struct rp_error *err)
{
    struct rp_box_runs runs = rp_box_runs_begin(&concat->head, "stts");
    int64_t offset, dts = -concat->lead;
    for (int s = 0; s < concat->sources; s++) {
        for (int64_t i = 0, n = concat->source[s].index->samples; i < n; i++) {
            int64_t next = first_dts(concat, s + 1);
            if (i + 1 < n) {
                output_times(concat, s, i + 1, &next, &offset);
            }
            RP_TRY(fits(next - dts, "a distance of samples", err));
            assert(next >= dts);
            rp_box_runs_add(&runs, (uint32_t)(next - dts));
            dts = next;
        }
    }
    rp_box_runs_end(&runs);
    return RP_OK;
}

static rp_status put_ctts(rp_concat *concat, struct rp_error *err)
{
    struct rp_box_runs runs = rp_box_runs_begin(&concat->head, "ctts");
    for (int s = 0; s < concat->sources; s++) {
        for (int64_t i = 0; i < concat->source[s].index->samples; i++) {
            int64_t dts, offset;
            output_times(concat, s, i, &dts, &offset);
            RP_TRY(fits(offset, "a composition offset", err));
            assert(offset >= 0);
            rp_box_runs_add(&runs, (uint32_t)offset);
        }
    }
    rp_box_runs_end(&runs);
    if (runs.rows == 1 && runs.value == 0) {
        concat->head.len = runs.box; /* every picture is shown when it is decoded: no box */
    }
    return RP_OK;
}

static void put_stss(rp_concat *concat)
{
    struct rp_box_writer *w = &concat->head;
    size_t box = rp_box_begin_full(w, "stss", 0, 0);
    size_t count_at = w->len;
    uint32_t number = 0, keys = 0;
    rp_box_put32(w, 0);
    for (int s = 0; s < concat->sources; s++) {
        for (int64_t i = 0; i < concat->source[s].index->samples; i++) {
            struct rp_sample sample;
            rp_index_sample(concat->source[s].index, i, &sample);
            number++;
            if (sample.key) {
                rp_box_put32(w, number);
                keys++;
            }
        }
    }
    rp_box_set32(w, count_at, keys);
    rp_box_end(w, box);
    if (keys == number) {
        w->len = box; /* ISO/IEC 14496-12: without the box every sample is a sync sample */
    }
}

static void put_stsz(rp_concat *concat)
{
    struct rp_box_writer *w = &concat->head;
    size_t box = rp_box_begin_full(w, "stsz", 0, 0);
    rp_box_put32(w, 0);
    rp_box_put32(w, (uint32_t)concat->samples);
    for (int s = 0; s < concat->sources; s++) {
        const rp_index *index = concat->source[s].index;
        for (uint32_t i = 0; i < index->samples; i++) {
            rp_box_put32(w, index->sizes[i]);
        }
    }
    rp_box_end(w, box);
}

/* One chunk per source. Offsets are filled in by set_offsets. */
static size_t put_chunks(rp_concat *concat, bool wide)
{
    struct rp_box_writer *w = &concat->head;
    size_t box = rp_box_begin_full(w, "stsc", 0, 0);
    size_t count_at = w->len;
    uint32_t rows = 0;
    rp_box_put32(w, 0);
    for (int s = 0; s < concat->sources; s++) {
        uint32_t samples = concat->source[s].index->samples;
        if (s == 0 || samples != concat->source[s - 1].index->samples) {
            rp_box_put32(w, (uint32_t)s + 1);
            rp_box_put32(w, samples);
            rp_box_put32(w, 1);
            rows++;
        }
    }
    rp_box_set32(w, count_at, rows);
    rp_box_end(w, box);
    box = rp_box_begin_full(w, wide ? "co64" : "stco", 0, 0);
    rp_box_put32(w, (uint32_t)concat->sources);
    size_t offsets_at = w->len;
    rp_box_zeros(w, (size_t)concat->sources * (wide ? 8 : 4));
    rp_box_end(w, box);
    return offsets_at;
}

static rp_status put_stbl(rp_concat *concat, bool wide, size_t *offsets_at, struct rp_error *err)
{
    struct rp_box_writer *w = &concat->head;
    size_t stbl = rp_box_begin(w, "stbl");
    size_t stsd = rp_box_begin_full(w, "stsd", 0, 0);
    rp_box_put32(w, 1);
    rp_box_put(w, concat->entry, concat->entry_len);
    rp_box_end(w, stsd);
    RP_TRY(put_stts(concat, err));
    RP_TRY(put_ctts(concat, err));
    put_stss(concat);
    put_stsz(concat);
    *offsets_at = put_chunks(concat, wide);
    rp_box_end(w, stbl);
    return RP_OK;
}

/* Chunk offsets, now that the length of all that comes before the media is known. */
static void set_offsets(rp_concat *concat, bool wide, size_t offsets_at, uint64_t *last)
{
    struct rp_box_writer *w = &concat->head;
    uint64_t offset = w->len;
    *last = offset;
    for (int s = 0; s < concat->sources && !w->failed; s++) {
        *last = offset;
        if (wide) {
            rp_box_set32(w, offsets_at, (uint32_t)(offset >> 32));
        }
        rp_box_set32(w, offsets_at + (wide ? 4 : 0), (uint32_t)offset);
        offsets_at += wide ? 8 : 4;
        const rp_index *index = concat->source[s].index;
        for (uint32_t i = 0; i < index->samples; i++) {
            offset += index->sizes[i];
        }
    }
}

static rp_status put_head(rp_concat *concat, bool wide, uint64_t *last_offset, struct rp_error *err)
{
    struct rp_box_writer *w = &concat->head;
    const struct rp_movie_facts facts = {.timescale = (uint32_t)concat->timescale,
                                         .duration = (uint64_t)concat->total,
                                         .media_time = (uint64_t)concat->lead,
                                         .width = (uint32_t)concat->source[0].index->codec.width,
                                         .height = (uint32_t)concat->source[0].index->codec.height,
                                         .codec = concat->source[0].index->codec.codec};
    struct rp_movie_boxes open;
    size_t offsets_at;
    w->len = 0;
    rp_movie_begin(w, &facts, &open);
    RP_TRY(put_stbl(concat, wide, &offsets_at, err));
    rp_movie_end(w, &open);
    size_t moov = w->len - open.moov;
    rp_box_mdat(w, (uint64_t)concat->media_bytes);
    if (w->failed) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a moov of %lld samples",
                (long long)concat->samples);
    }
    if (moov > RP_MAX_MOOV) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "moov of %zu bytes, the limit is %d", moov, RP_MAX_MOOV);
    }
    set_offsets(concat, wide, offsets_at, last_offset);
    return RP_OK;
}

rp_status rp_concat_finish(rp_concat *concat, struct rp_error *err)
{
    assert(concat->sources > 0 && concat->part == NULL);
    concat->part = rp_calloc((size_t)concat->sources, sizeof(*concat->part));
    if (concat->part == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %d sources", concat->sources);
    }
    RP_TRY(place(concat, err));
    RP_TRY(collect_ranges(concat, err));
    uint64_t last_offset;
    RP_TRY(put_head(concat, false, &last_offset, err));
    return last_offset > UINT32_MAX ? put_head(concat, true, &last_offset, err) : RP_OK;
}

const uint8_t *rp_concat_head(const rp_concat *concat, size_t *len)
{
    *len = concat->head.len;
    return concat->head.data;
}

const struct rp_concat_range *rp_concat_ranges(const rp_concat *concat, size_t *count)
{
    *count = concat->ranges;
    return concat->range;
}

const struct rp_concat_part *rp_concat_parts(const rp_concat *concat, int *count)
{
    *count = concat->sources;
    return concat->part;
}

const uint32_t *rp_concat_sizes(const rp_concat *concat, int source, int64_t *count)
{
    *count = concat->source[source].index->samples;
    return concat->source[source].index->sizes;
}

int64_t rp_concat_samples(const rp_concat *concat)
{
    return concat->samples;
}

uint32_t rp_concat_timescale(const rp_concat *concat)
{
    return (uint32_t)concat->timescale;
}

int64_t rp_concat_bytes(const rp_concat *concat)
{
    return (int64_t)concat->head.len + concat->media_bytes;
}

void rp_concat_free(rp_concat **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_concat *concat = *out;
    *out = NULL;
    for (int s = 0; s < concat->sources; s++) {
        rp_index_free(&concat->source[s].index);
    }
    rp_free(concat->source);
    rp_free(concat->entry);
    rp_free(concat->part);
    rp_free(concat->range);
    rp_box_writer_free(&concat->head);
    rp_free(concat);
}
