/* moov -> index. One pass walks the boxes that matter (a table says which, all others are skipped)
 * and gathers each track's; then the one video track is checked and its tables are built. */
#include "demux/mp4_priv.h"

#include "base/bytes.h"
#include "base/memory.h"

#include <assert.h>
#include <string.h>

enum { OPEN = -1, TRACK = -2, REFUSE = -3, MOVIE = -4 };

/* What a box means by its place: a slot of the track, or one of the above. */
struct place {
    uint32_t parent, type;
    int what;
};

#define TRAK RP_FOURCC('t', 'r', 'a', 'k')
#define MDIA RP_FOURCC('m', 'd', 'i', 'a')
#define MINF RP_FOURCC('m', 'i', 'n', 'f')
#define STBL RP_FOURCC('s', 't', 'b', 'l')
#define DINF RP_FOURCC('d', 'i', 'n', 'f')
#define EDTS RP_FOURCC('e', 'd', 't', 's')
#define MOOV RP_FOURCC('m', 'o', 'o', 'v')

static const struct place places[] = {
    {MOOV, RP_FOURCC('m', 'v', 'h', 'd'), MOVIE},
    {MOOV, TRAK, TRACK},
    {MOOV, RP_FOURCC('m', 'v', 'e', 'x'), REFUSE},
    {MOOV, RP_FOURCC('c', 'm', 'o', 'v'), REFUSE},
    {TRAK, RP_FOURCC('t', 'k', 'h', 'd'), RP_TB_TKHD},
    {TRAK, EDTS, OPEN},
    {TRAK, MDIA, OPEN},
    {EDTS, RP_FOURCC('e', 'l', 's', 't'), RP_TB_ELST},
    {MDIA, RP_FOURCC('m', 'd', 'h', 'd'), RP_TB_MDHD},
    {MDIA, RP_FOURCC('h', 'd', 'l', 'r'), RP_TB_HDLR},
    {MDIA, MINF, OPEN},
    {MINF, DINF, OPEN},
    {MINF, STBL, OPEN},
    {DINF, RP_FOURCC('d', 'r', 'e', 'f'), RP_TB_DREF},
    {STBL, RP_FOURCC('s', 't', 's', 'd'), RP_TB_STSD},
    {STBL, RP_FOURCC('s', 't', 't', 's'), RP_TB_STTS},
    {STBL, RP_FOURCC('c', 't', 't', 's'), RP_TB_CTTS},
    {STBL, RP_FOURCC('s', 't', 's', 's'), RP_TB_STSS},
    {STBL, RP_FOURCC('s', 't', 's', 'z'), RP_TB_STSZ},
    {STBL, RP_FOURCC('s', 't', 'z', '2'), RP_TB_STZ2},
    {STBL, RP_FOURCC('s', 't', 's', 'c'), RP_TB_STSC},
    {STBL, RP_FOURCC('s', 't', 'c', 'o'), RP_TB_STCO},
    {STBL, RP_FOURCC('c', 'o', '6', '4'), RP_TB_CO64},
};

/* What the walk gathers. */
struct movie {
    struct rp_box mvhd;
    struct rp_track video;
    bool has_video;
};

static const struct place *find_place(uint32_t parent, uint32_t type)
{
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        if (places[i].type == type && places[i].parent == parent) {
            return &places[i];
        }
    }
    return NULL;
}

/* End of a track: keep it if it is the video. */
static rp_status close_track(struct movie *movie, const struct rp_track *track,
                             struct rp_error *err)
{
    const struct rp_box *hdlr = &track->box[RP_TB_HDLR];
    if (hdlr->data == NULL) {
        return RP_OK;
    }
    RP_TRY(rp_box_need(hdlr, 12, err));
    if (rp_be32(hdlr->data + 8) != RP_FOURCC('v', 'i', 'd', 'e')) {
        return RP_OK;
    }
    if (movie->has_video) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "more than one video track");
    }
    if (track->doubled != 0) {
        RP_FAIL(err, RP_E_FORMAT, "two boxes '%s' in one track", rp_box_name(track->doubled).s);
    }
    movie->has_video = true;
    movie->video = *track;
    return RP_OK;
}

static rp_status refuse(const struct rp_box *box, struct rp_error *err)
{
    RP_FAIL(err, RP_E_UNSUPPORTED, "%s MP4: moov has a box '%s'",
            box->type == RP_FOURCC('m', 'v', 'e', 'x') ? "fragmented" : "compressed",
            rp_box_name(box->type).s);
}

static void keep(struct rp_track *track, int slot, const struct rp_box *box)
{
    if (track->box[slot].data != NULL) {
        track->doubled = box->type;
    }
    track->box[slot] = *box;
}

struct walk {
    struct rp_box_cursor cursor[RP_MAX_DEPTH];
    uint32_t type[RP_MAX_DEPTH];
    int depth; /* boxes open */
};

static rp_status enter(struct walk *walk, const struct rp_box *box, struct rp_error *err)
{
    if (walk->depth == RP_MAX_DEPTH) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "boxes nest deeper than %d", RP_MAX_DEPTH);
    }
    walk->cursor[walk->depth] = rp_box_open(box, 0);
    walk->type[walk->depth] = box->type;
    walk->depth++;
    return RP_OK;
}

static rp_status walk_box(struct walk *walk, struct movie *movie, struct rp_track *track,
                          const struct rp_box *box, struct rp_error *err)
{
    const struct place *place = find_place(walk->type[walk->depth - 1], box->type);
    if (place == NULL) {
        return RP_OK;
    }
    switch (place->what) {
    case OPEN: return enter(walk, box, err);
    case TRACK: memset(track, 0, sizeof(*track)); return enter(walk, box, err);
    case REFUSE: return refuse(box, err);
    case MOVIE: movie->mvhd = *box; return RP_OK;
    default: keep(track, place->what, box); return RP_OK;
    }
}

static rp_status walk_moov(const struct rp_box *moov, struct movie *movie, struct rp_error *err)
{
    struct walk walk = {.depth = 0};
    struct rp_track track = {.doubled = 0};
    RP_TRY(enter(&walk, moov, err));
    while (walk.depth > 0) {
        struct rp_box box;
        rp_status status = rp_box_next(&walk.cursor[walk.depth - 1], &box, err);
        if (status == RP_END) {
            walk.depth--;
            if (walk.type[walk.depth] == TRAK) {
                RP_TRY(close_track(movie, &track, err));
            }
            continue;
        }
        RP_TRY(status);
        RP_TRY(walk_box(&walk, movie, &track, &box, err));
    }
    return RP_OK;
}

/* Every box that a video track must have. */
static rp_status check_present(const struct movie *movie, struct rp_error *err)
{
    static const struct {
        int slot;
        char name[5];
    } needed[] = {{RP_TB_MDHD, "mdhd"},
                  {RP_TB_STSD, "stsd"},
                  {RP_TB_STTS, "stts"},
                  {RP_TB_STSC, "stsc"},
                  {RP_TB_STSZ, "stsz"}};
    if (!movie->has_video) {
        RP_FAIL(err, RP_E_FORMAT, "no video track");
    }
    if (movie->video.box[RP_TB_STZ2].data != NULL) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "compact sample sizes (box 'stz2')");
    }
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        if (movie->video.box[needed[i].slot].data == NULL) {
            RP_FAIL(err, RP_E_FORMAT, "the video track has no box '%s'", needed[i].name);
        }
    }
    return RP_OK;
}

/* A display matrix may scale and move, not turn or mirror. */
static rp_status check_matrix(const struct rp_box *box, size_t at, struct rp_error *err)
{
    int32_t a = (int32_t)rp_be32(box->data + at);
    int32_t b = (int32_t)rp_be32(box->data + at + 4);
    int32_t c = (int32_t)rp_be32(box->data + at + 12);
    int32_t d = (int32_t)rp_be32(box->data + at + 16);
    if (b != 0 || c != 0 || a < 0 || d < 0) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "rotated or mirrored video: %s matrix %g %g %g %g",
                rp_box_name(box->type).s, a / 65536.0, b / 65536.0, c / 65536.0, d / 65536.0);
    }
    return RP_OK;
}

static rp_status read_movie_header(const struct rp_box *mvhd, uint32_t *timescale,
                                   struct rp_error *err)
{
    int version;
    if (mvhd->data == NULL) {
        RP_FAIL(err, RP_E_FORMAT, "moov has no box 'mvhd'");
    }
    RP_TRY(rp_box_version(mvhd, 100, 112, &version, err));
    *timescale = rp_be32(mvhd->data + (version == 0 ? 12 : 20));
    return check_matrix(mvhd, version == 0 ? 36 : 48, err);
}

static rp_status read_track_headers(const struct rp_track *track, rp_index *index,
                                    struct rp_error *err)
{
    const struct rp_box *tkhd = &track->box[RP_TB_TKHD];
    const struct rp_box *mdhd = &track->box[RP_TB_MDHD];
    int version;
    if (tkhd->data != NULL) {
        RP_TRY(rp_box_version(tkhd, 84, 96, &version, err));
        RP_TRY(check_matrix(tkhd, version == 0 ? 40 : 52, err));
    }
    RP_TRY(rp_box_version(mdhd, 24, 36, &version, err));
    index->timescale = rp_be32(mdhd->data + (version == 0 ? 12 : 20));
    if (index->timescale == 0) {
        RP_FAIL(err, RP_E_FORMAT, "timescale 0 in mdhd");
    }
    return RP_OK;
}

static rp_status check_data_references(const struct rp_box *dref, struct rp_error *err)
{
    if (dref->data == NULL) {
        return RP_OK;
    }
    uint32_t count;
    const uint8_t *entries;
    RP_TRY(rp_box_table(dref, 8, 12, &count, &entries, err));
    struct rp_box_cursor cursor = rp_box_open(dref, 8);
    for (uint32_t i = 0; i < count; i++) {
        struct rp_box entry;
        rp_status status = rp_box_next(&cursor, &entry, err);
        if (status == RP_END) {
            RP_FAIL(err, RP_E_FORMAT, "dref declares %u entries, has %u", count, i);
        }
        RP_TRY(status);
        RP_TRY(rp_box_need(&entry, 4, err));
        if ((entry.data[3] & 1) == 0) {
            RP_FAIL(err, RP_E_UNSUPPORTED, "samples lie in another file (dref entry %u)", i + 1);
        }
    }
    return RP_OK;
}

struct edit {
    uint64_t duration;  /* in movie ticks */
    int64_t media_time; /* in media ticks; -1 = empty */
};

static rp_status read_edit(const struct rp_box *elst, const uint8_t *row, int version,
                           struct edit *out, struct rp_error *err)
{
    if (version == 0) {
        out->duration = rp_be32(row);
        out->media_time = (int32_t)rp_be32(row + 4);
        row += 8;
    }
    else {
        out->duration = rp_be64(row);
        out->media_time = (int64_t)rp_be64(row + 8);
        row += 16;
    }
    if (rp_be32(row) != 0x10000) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "edit at byte %zu of moov plays at rate %g, 1 is supported",
                elst->at, (int32_t)rp_be32(row) / 65536.0);
    }
    return RP_OK;
}

/* ticks = movie ticks * timescale / movie_timescale, to the nearest as libavformat does. */
static rp_status to_track_ticks(uint64_t movie_ticks, uint32_t movie_timescale, uint32_t timescale,
                                int64_t *ticks, struct rp_error *err)
{
    if (movie_timescale == 0) {
        RP_FAIL(err, RP_E_FORMAT, "timescale 0 in mvhd");
    }
    unsigned __int128 product = (unsigned __int128)movie_ticks * timescale + movie_timescale / 2;
    product /= movie_timescale;
    if (product > RP_MAX_TICKS / 4) {
        RP_FAIL(err, RP_E_FORMAT, "edit of %llu movie ticks", (unsigned long long)movie_ticks);
    }
    *ticks = (int64_t)product;
    return RP_OK;
}

static rp_status read_edits(const struct rp_box *elst, uint32_t movie_timescale, rp_index *index,
                            struct rp_error *err)
{
    index->shown_from = 0;
    index->shown_to = INT64_MAX;
    if (elst->data == NULL) {
        return RP_OK;
    }
    int version;
    uint32_t count;
    const uint8_t *rows;
    RP_TRY(rp_box_version(elst, 8, 8, &version, err));
    RP_TRY(rp_box_table(elst, 8, version == 0 ? 12 : 20, &count, &rows, err));
    if (count == 0) {
        return RP_OK;
    }
    struct edit first = {0}, shown = {0};
    if (count <= 2) {
        RP_TRY(read_edit(elst, rows, version, &first, err));
        shown = first;
    }
    if (count == 2) {
        RP_TRY(read_edit(elst, rows + (version == 0 ? 12 : 20), version, &shown, err));
    }
    if (count > 2 || (count == 2 && first.media_time != -1) || shown.media_time < 0) {
        RP_FAIL(err, RP_E_UNSUPPORTED,
                "edit list of %u entries: one, or an empty one and one, is supported", count);
    }
    if (shown.media_time > RP_MAX_TICKS / 4) {
        RP_FAIL(err, RP_E_FORMAT, "edit starts at tick %lld", (long long)shown.media_time);
    }
    if (count == 2) {
        RP_TRY(to_track_ticks(first.duration, movie_timescale, index->timescale, &index->shown_from,
                              err));
    }
    index->shift = index->shown_from - shown.media_time;
    if (shown.duration == 0) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "edit list that shows nothing (duration 0)");
    }
    int64_t length = 0;
    RP_TRY(to_track_ticks(shown.duration, movie_timescale, index->timescale, &length, err));
    index->shown_to = index->shown_from + length;
    return RP_OK;
}

rp_status rp_index_alloc(rp_index *index, size_t n, size_t size, void **out, struct rp_error *err)
{
    void *array = rp_calloc(n, size);
    if (array == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for an index: %zu entries of %zu bytes", n, size);
    }
    index->bytes += n * size;
    *out = array;
    return RP_OK;
}

static rp_status fill(rp_index *index, const struct movie *movie, struct rp_error *err)
{
    const struct rp_track *video = &movie->video;
    uint32_t movie_timescale = 0;
    RP_TRY(check_present(movie, err));
    RP_TRY(read_movie_header(&movie->mvhd, &movie_timescale, err));
    RP_TRY(read_track_headers(video, index, err));
    RP_TRY(check_data_references(&video->box[RP_TB_DREF], err));
    RP_TRY(read_edits(&video->box[RP_TB_ELST], movie_timescale, index, err));
    RP_TRY(rp_codec_parse(&video->box[RP_TB_STSD], index, err));
    return rp_tables_build(video, index, err);
}

rp_status rp_index_parse(const uint8_t *moov, size_t len, int64_t file_size, rp_index **out,
                         struct rp_error *err)
{
    if (len > RP_MAX_MOOV) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "moov of %zu bytes, the limit is %d", len, RP_MAX_MOOV);
    }
    struct rp_box_cursor cursor = {.data = moov, .len = len, .at = 0};
    struct rp_box box = {.type = 0};
    struct movie movie = {.has_video = false};
    if (len >= 8 && rp_be32(moov) == 0) { /* the last box of a file: to its end */
        box = (struct rp_box){.type = rp_be32(moov + 4), .data = moov + 8, .len = len - 8};
    }
    else {
        rp_status status = rp_box_next(&cursor, &box, err);
        if (status < 0) {
            return status;
        }
    }
    if (box.type != MOOV) {
        RP_FAIL(err, RP_E_FORMAT, "not a moov box");
    }
    RP_TRY(walk_moov(&box, &movie, err));
    rp_index *index = rp_calloc(1, sizeof(*index));
    if (index == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for an index");
    }
    index->bytes = sizeof(*index);
    index->file_size = file_size > 0 ? file_size : 0;
    rp_status status = fill(index, &movie, err);
    if (status != RP_OK) {
        rp_index_free(&index);
        return status;
    }
    *out = index;
    return RP_OK;
}

void rp_index_free(rp_index **index)
{
    if (index == NULL || *index == NULL) {
        return;
    }
    rp_index *dead = *index;
    *index = NULL;
    rp_free(dead->entry);
    rp_free(dead->sizes);
    rp_free(dead->block);
    rp_free(dead->run);
    rp_free(dead->brk);
    rp_free(dead->ctts);
    rp_free(dead->shown);
    rp_free(dead);
}

const struct rp_codec_params *rp_index_codec(const rp_index *index)
{
    return &index->codec;
}

int64_t rp_index_samples(const rp_index *index)
{
    return index->samples;
}

int64_t rp_index_addressable(const rp_index *index)
{
    return index->addressable;
}

uint32_t rp_index_timescale(const rp_index *index)
{
    return index->timescale;
}

int64_t rp_index_duration(const rp_index *index)
{
    return index->duration;
}

size_t rp_index_bytes(const rp_index *index)
{
    return index->bytes;
}
