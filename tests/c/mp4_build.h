/* Builds moov boxes for tests: describe a track in struct clip, then clip_moov. */
#ifndef RP_TESTS_MP4_BUILD_H
#define RP_TESTS_MP4_BUILD_H

#include "mp4_clip.h"

static inline void put_header(struct bytes *b, const char *type, const struct clip *c, size_t tail0,
                              bool track)
{
    size_t at = begin(b, type);
    put32(b, (uint32_t)c->version << 24);
    put_zeros(b, c->version == 1 ? 16 : 8); /* creation, modification */
    put32(b, strcmp(type, "mvhd") == 0 ? c->movie_timescale : track ? 1 : c->timescale);
    if (track) {
        put32(b, 0);
    }
    put_zeros(b, c->version == 1 ? 8 : 4); /* duration */
    put_zeros(b, tail0);
    end(b, at);
}

static inline void put_matrix(struct bytes *b, size_t payload, const struct clip *c, size_t at0,
                              const uint32_t *matrix)
{
    size_t at = payload + at0 + (c->version == 1 ? 12 : 0);
    set32(b, at, matrix[0]);
    set32(b, at + 4, matrix[1]);
    set32(b, at + 12, matrix[2]);
    set32(b, at + 16, matrix[3]);
    set32(b, at + 32, 0x40000000);
}

static inline void put_stsd(struct bytes *b, const struct clip *c)
{
    size_t stsd = begin_table(b, "stsd", c->entries);
    for (uint32_t i = 0; i < c->entries; i++) {
        size_t entry = begin(b, c->entry);
        put_zeros(b, 24);
        put32(b, 320u << 16 | 240);
        put_zeros(b, 50);
        if (c->config != NULL) {
            size_t config = begin(b, c->config);
            if (strcmp(c->config, "esds") == 0) {
                put(b,
                    "\0\0\0\0\x03\x16\0\1\0"
                    "\x04\x11\x20\x11\0\0\0\0\0\0\0\0\0\0\0\x05\x02\xAB\xCD",
                    28);
            }
            else {
                put(b, "\1\2\3\4", 4);
            }
            end(b, config);
        }
        if (c->extra_in_entry != NULL) {
            end(b, begin(b, c->extra_in_entry));
        }
        end(b, entry);
    }
    end(b, stsd);
}

static inline void put_edits(struct bytes *b, const struct clip *c)
{
    size_t edts = begin(b, "edts");
    size_t elst = begin(b, "elst");
    put32(b, (uint32_t)c->version << 24);
    put32(b, c->edit_rows);
    for (uint32_t i = 0; i < c->edit_rows; i++) {
        for (int k = 0; k < 2; k++) {
            if (c->version == 1) {
                put64(b, (uint64_t)c->edits[i][k]);
            }
            else {
                put32(b, (uint32_t)c->edits[i][k]);
            }
        }
        put32(b, (uint32_t)c->edits[i][2]);
    }
    end(b, elst);
    end(b, edts);
}

static inline void put_minf(struct bytes *b, const struct clip *c)
{
    size_t minf = begin(b, "minf");
    if (c->has_dref) {
        size_t dinf = begin(b, "dinf");
        size_t dref = begin_table(b, "dref", 1);
        size_t url = begin(b, "url ");
        put32(b, c->dref_flags);
        end(b, url);
        end(b, dref);
        end(b, dinf);
    }
    size_t stbl = begin(b, "stbl");
    put_stsd(b, c);
    put_tables(b, c);
    if (c->extra_in_stbl != NULL) {
        end(b, begin(b, c->extra_in_stbl));
    }
    end(b, stbl);
    end(b, minf);
}

static inline void put_track(struct bytes *b, const struct clip *c)
{
    size_t trak = begin(b, "trak");
    size_t tkhd = b->len;
    put_header(b, "tkhd", c, 60, true);
    put_matrix(b, tkhd + 8, c, 40, c->matrix);
    if (c->edit_rows > 0) {
        put_edits(b, c);
    }
    size_t mdia = begin(b, "mdia");
    put_header(b, "mdhd", c, 4, false);
    size_t hdlr = begin(b, "hdlr");
    put_zeros(b, 8);
    put(b, c->handler, 4);
    put_zeros(b, 13);
    end(b, hdlr);
    put_minf(b, c);
    end(b, mdia);
    end(b, trak);
}

/* The whole moov box. */
static inline void clip_moov(struct bytes *b, const struct clip *c)
{
    static const uint32_t straight[] = {0x10000, 0, 0, 0x10000};
    b->len = 0;
    size_t moov = begin(b, "moov");
    put_header(b, "mvhd", c, 80, false);
    put_matrix(b, moov + 16, c, 36, straight);
    for (int i = 0; i < c->tracks; i++) {
        put_track(b, c);
    }
    if (c->extra_in_moov != NULL) {
        end(b, begin(b, c->extra_in_moov));
    }
    end(b, moov);
}

#endif
