/* A video track described by its tables, and how those are written. */
#ifndef RP_TESTS_MP4_CLIP_H
#define RP_TESTS_MP4_CLIP_H

#include "box_bytes.h"

#include <stdbool.h>

#define MAX_ROWS 16

/* A video track; rows end at their count. Start from simple_clip(). */
struct clip {
    const char *handler, *entry, *config;
    uint32_t movie_timescale, timescale;
    int version;        /* of mvhd, tkhd, mdhd, elst */
    uint32_t matrix[4]; /* a b c d of tkhd */
    uint32_t common_size, samples;
    const uint32_t *sizes; /* [samples] when common_size == 0 */
    uint32_t stts[MAX_ROWS][2], stts_rows;
    int32_t ctts[MAX_ROWS][2];
    uint32_t ctts_rows; /* 0: no box */
    uint32_t stss[MAX_ROWS], stss_rows;
    bool has_stss;
    uint32_t stsc[MAX_ROWS][3], stsc_rows;
    uint64_t chunks[MAX_ROWS];
    uint32_t chunk_rows;
    bool wide;                  /* co64 */
    int64_t edits[MAX_ROWS][3]; /* duration, media time, rate in 16.16 */
    uint32_t edit_rows;         /* 0: no box */
    uint32_t dref_flags;
    bool has_dref;
    const char *extra_in_entry; /* type of an empty box put into the sample entry */
    const char *extra_in_stbl, *extra_in_moov;
    uint32_t entries; /* sample entries */
    int tracks;       /* copies of this track */
};

/* Six samples of 10 bytes in chunks at 1000 and 2000, keys 1 and 4, 100 ticks each of 1/1000 s. */
static inline struct clip simple_clip(void)
{
    static const uint32_t sizes[] = {10, 10, 10, 10, 10, 10};
    return (struct clip){
        .handler = "vide",
        .entry = "avc1",
        .config = "avcC",
        .movie_timescale = 1000,
        .timescale = 1000,
        .matrix = {0x10000, 0, 0, 0x10000},
        .samples = 6,
        .sizes = sizes,
        .stts = {{6, 100}},
        .stts_rows = 1,
        .stss = {1, 4},
        .stss_rows = 2,
        .has_stss = true,
        .stsc = {{1, 3, 1}},
        .stsc_rows = 1,
        .chunks = {1000, 2000},
        .chunk_rows = 2,
        .dref_flags = 1,
        .has_dref = true,
        .entries = 1,
        .tracks = 1,
    };
}

static inline void put_tables(struct bytes *b, const struct clip *c)
{
    size_t at = begin_table(b, "stts", c->stts_rows);
    for (uint32_t i = 0; i < c->stts_rows; i++) {
        put32(b, c->stts[i][0]);
        put32(b, c->stts[i][1]);
    }
    end(b, at);
    if (c->ctts_rows > 0) {
        at = begin_table(b, "ctts", c->ctts_rows);
        for (uint32_t i = 0; i < c->ctts_rows; i++) {
            put32(b, (uint32_t)c->ctts[i][0]);
            put32(b, (uint32_t)c->ctts[i][1]);
        }
        end(b, at);
    }
    if (c->has_stss) {
        at = begin_table(b, "stss", c->stss_rows);
        for (uint32_t i = 0; i < c->stss_rows; i++) {
            put32(b, c->stss[i]);
        }
        end(b, at);
    }
    at = begin_table(b, "stsz", c->common_size);
    put32(b, c->samples);
    for (uint32_t i = 0; c->common_size == 0 && i < c->samples; i++) {
        put32(b, c->sizes[i]);
    }
    end(b, at);
    at = begin_table(b, "stsc", c->stsc_rows);
    for (uint32_t i = 0; i < c->stsc_rows; i++) {
        put32(b, c->stsc[i][0]);
        put32(b, c->stsc[i][1]);
        put32(b, c->stsc[i][2]);
    }
    end(b, at);
    at = begin_table(b, c->wide ? "co64" : "stco", c->chunk_rows);
    for (uint32_t i = 0; i < c->chunk_rows; i++) {
        if (c->wide) {
            put64(b, c->chunks[i]);
        }
        else {
            put32(b, (uint32_t)c->chunks[i]);
        }
    }
    end(b, at);
}

#endif
