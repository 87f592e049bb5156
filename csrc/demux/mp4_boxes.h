/* Inside demux: writing MP4 boxes. Nothing here fails but for memory: `failed` is then set, what
 * follows is dropped, and whoever began the file looks at it once, at the end. */
#ifndef RP_DEMUX_MP4_BOXES_H
#define RP_DEMUX_MP4_BOXES_H

#include "demux/demux.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes under construction. Start from zeros. */
struct rp_box_writer {
    uint8_t *data;
    size_t len, room; /* len <= room */
    bool failed;      /* memory was short */
};

/* Free the bytes. Thread: any. Blocks: never. */
void rp_box_writer_free(struct rp_box_writer *w);

/* Append bytes, zeros, big-endian numbers; set32 overwrites 4 bytes at `at` < len - 3. Thread: any.
 * Blocks: never. Errors: w->failed. */
void rp_box_put(struct rp_box_writer *w, const void *data, size_t len);
void rp_box_zeros(struct rp_box_writer *w, size_t len);
void rp_box_put16(struct rp_box_writer *w, uint32_t value);
void rp_box_put32(struct rp_box_writer *w, uint32_t value);
void rp_box_put64(struct rp_box_writer *w, uint64_t value);
void rp_box_set32(struct rp_box_writer *w, size_t at, uint32_t value);

/* Begin a box, plain or with version and flags; boxes nest. Returns what rp_box_end needs: the
 * place of its header. Thread: any. Blocks: never. Errors: w->failed. */
size_t rp_box_begin(struct rp_box_writer *w, const char *type);
size_t rp_box_begin_full(struct rp_box_writer *w, const char *type, uint32_t version,
                         uint32_t flags);
void rp_box_end(struct rp_box_writer *w, size_t box);

/* The header of an mdat with `bytes` of media. Thread: any. Blocks: never. Errors: w->failed. */
void rp_box_mdat(struct rp_box_writer *w, uint64_t bytes);

/* A box with a run-coded table: rows of (count, value). */
struct rp_box_runs {
    struct rp_box_writer *to;
    size_t box; /* place of the header */
    uint32_t rows, run, value;
};

/* Begin the box, add one value per sample, end it. Thread: any. Blocks: never. Errors: failed. */
struct rp_box_runs rp_box_runs_begin(struct rp_box_writer *w, const char *type);
void rp_box_runs_add(struct rp_box_runs *runs, uint32_t value);
void rp_box_runs_end(struct rp_box_runs *runs);

/* A movie of one video track. */
struct rp_movie_facts {
    uint32_t timescale;  /* ticks per second, of movie and track */
    uint64_t duration;   /* ticks */
    uint64_t media_time; /* ticks: where the one edit begins; 0: no edit list */
    uint32_t width, height;
    enum rp_codec codec;
};

/* Places of the boxes that stay open around `stbl`. */
struct rp_movie_boxes {
    size_t moov, trak, mdia, minf;
};

/* Write ftyp and all of moov up to `stbl`; the caller writes `stbl`, then ends them. No time
 * stamps: equal facts give equal bytes. Thread: any. Blocks: never. Errors: w->failed. */
void rp_movie_begin(struct rp_box_writer *w, const struct rp_movie_facts *facts,
                    struct rp_movie_boxes *open);
void rp_movie_end(struct rp_box_writer *w, const struct rp_movie_boxes *open);

#endif
