/* Parquet files whose row groups go into another file as they are: pages are copied, nothing is
 * decoded, only their places in the footer change. Pure: no I/O; input may be hostile.
 *
 * A file is "PAR1", pages, FileMetaData in Thrift's compact protocol, its length u32
 * (little-endian) and "PAR1". Known fields: parquet.thrift of format 2.11. What is not known here
 * is not moved: it might hold a place in the file. */
#ifndef RP_PARQUET_PARQUET_H
#define RP_PARQUET_PARQUET_H

#include "base/error.h"
#include "base/memory.h"

#include <stddef.h>
#include <stdint.h>

#define RP_PARQUET_START 4 /* bytes before the first page */

/* Bytes of somebody else's. */
struct rp_bytes {
    const uint8_t *data;
    size_t len;
};

/* What a footer says. Borrowed from it. */
struct rp_parquet {
    struct rp_bytes footer;  /* FileMetaData */
    struct rp_bytes schema;  /* its list of SchemaElement */
    struct rp_bytes group;   /* the first row group; of no length without one */
    struct rp_bytes program; /* that wrote the file, without its version */
    int64_t pages_end;       /* where the footer begins in the file */
    int64_t groups;
};

/* A row group as it stands in another file. */
struct rp_row_group {
    int64_t first, end; /* bytes of its own file that are copied */
    int64_t rows;
    rp_buf *entry; /* RowGroup for the other footer */
};

/* Read a footer. `tail`: the last bytes of a file of `size` bytes, all of its footer among them.
 * Owner: tail is borrowed and outlives *out, which is untouched on failure. Thread: any. Blocks:
 * never. Cost: O(length of the footer). NULL: only err.
 * Errors: RP_E_FORMAT no Parquet file, tail too short, or a damaged footer. */
RP_CHECKED rp_status rp_parquet_parse(const uint8_t *tail, size_t len, int64_t size,
                                      struct rp_parquet *out, struct rp_error *err);

/* Describe the one row group of `file` for a file like `model`, where its bytes begin at `at` and
 * it is the row group number `ordinal` from 0. Owner: out->entry is the caller's (rp_buf_unref),
 * *out untouched on failure; the rest is borrowed. Thread: any. Blocks: never. NULL: only err.
 * Errors: RP_E_UNSUPPORTED it must be encoded anew: another schema or program, another number of
 * row groups, encryption, fields not known here; RP_E_FORMAT places outside the pages; RP_E_ARG at
 * is before RP_PARQUET_START or ordinal is negative; RP_E_NOMEM. */
RP_CHECKED rp_status rp_parquet_move(const struct rp_parquet *file, const struct rp_parquet *model,
                                     int64_t at, int64_t ordinal, struct rp_row_group *out,
                                     struct rp_error *err);

/* Write the end of a file: the footer of `model` with other row groups, in this order, its
 * length, "PAR1". Owner: *out is the caller's (rp_buf_unref), untouched on failure; entries (n, >=
 * 0) and model are borrowed. Thread: any. Blocks: never. NULL: err, and entries if n is 0.
 * Errors: RP_E_FORMAT an entry that is no RowGroup, rows beyond int64, or a footer of 2^31 bytes
 * and more; RP_E_NOMEM. */
RP_CHECKED rp_status rp_parquet_footer(const struct rp_parquet *model,
                                       const struct rp_bytes *entries, size_t n, rp_buf **out,
                                       struct rp_error *err);

#endif
