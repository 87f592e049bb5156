#include "parquet/parquet.h"

#include "base/bytes.h"
#include "parquet/thrift.h"

#include <stdbool.h>
#include <string.h>

#define TRAILER 8 /* bytes after the footer */

static const uint8_t magic[4] = {'P', 'A', 'R', '1'};

enum { FILE_SCHEMA = 2, FILE_ROWS = 3, FILE_GROUPS = 4, FILE_AUTHOR = 6, FILE_ENCRYPTION = 8 };

enum {
    GROUP_COLUMNS = 1,
    GROUP_BYTES = 2,
    GROUP_ROWS = 3,
    GROUP_SORTING = 4,
    GROUP_OFFSET = 5,
    GROUP_COMPRESSED = 6,
    GROUP_ORDINAL = 7
};

enum { CHUNK_OFFSET = 2, CHUNK_META = 3, CHUNK_INDEX_FIRST = 4, CHUNK_INDEX_LAST = 7 };

enum {
    META_COMPRESSED = 7,
    META_KEYS = 8,
    META_DATA_PAGE = 9,
    META_DICTIONARY = 11,
    META_STATISTICS = 12,
    META_ENCODINGS = 13,
    META_BLOOM = 14,
    META_BLOOM_LEN = 15,
    META_SIZES = 16,
    META_GEO = 17
};

/* One walk over a row group: to find its bytes, or (`out`) to write it for another place. */
struct walk {
    struct rp_thrift_in in;
    struct rp_thrift_out *out; /* NULL: only look */
    int64_t shift;             /* from a place in the old file to that in the new one */
    int64_t first, end;        /* bytes of the column chunks seen */
    int64_t low, high;         /* places seen */
    int64_t rows;
    bool unknown; /* something that is not known here */
};

static struct rp_thrift_in reader(struct rp_bytes bytes)
{
    return (struct rp_thrift_in){bytes.data, bytes.data + bytes.len, false};
}

static struct rp_bytes value_of(const struct rp_thrift_in *in, const struct rp_thrift_field *field)
{
    return (struct rp_bytes){field->value, (size_t)(in->at - field->value)};
}

/* ---- the footer of a file ---- */

/* The value of field FILE_GROUPS, which can be passed over. */
static void parse_groups(struct rp_thrift_in *in, struct rp_thrift_in value, struct rp_parquet *out)
{
    enum rp_thrift_type element;
    out->groups = (int64_t)rp_thrift_list(&value, &element);
    if (out->groups > 0 && element != RP_THRIFT_STRUCT) {
        rp_thrift_refuse(in);
    }
    else if (out->groups > 0) {
        const uint8_t *first = value.at;
        rp_thrift_skip(&value, RP_THRIFT_STRUCT, true);
        out->group = (struct rp_bytes){first, (size_t)(value.at - first)};
    }
}

/* The value of field FILE_AUTHOR: "name version 1.2.3 (build x)" up to the version. */
static void parse_author(struct rp_thrift_in value, struct rp_parquet *out)
{
    static const char version[] = " version ";
    size_t len, end = 0;
    const uint8_t *text = rp_thrift_binary(&value, &len);
    while (end < len && (len - end < sizeof(version) - 1 ||
                         memcmp(text + end, version, sizeof(version) - 1) != 0)) {
        end++;
    }
    out->program = (struct rp_bytes){text, end};
}

/* Where in the tail of a file its footer lies. */
static rp_status find_footer(const uint8_t *tail, size_t len, int64_t size, struct rp_parquet *out,
                             struct rp_error *err)
{
    if (len < TRAILER || size < (int64_t)len || size < RP_PARQUET_START + TRAILER ||
        memcmp(tail + len - 4, magic, sizeof(magic)) != 0) {
        RP_FAIL(err, RP_E_FORMAT, "not a Parquet file");
    }
    size_t footer_len = rp_le32(tail + len - TRAILER);
    if (footer_len > len - TRAILER || (int64_t)footer_len > size - TRAILER - RP_PARQUET_START) {
        RP_FAIL(err, RP_E_FORMAT, "a footer of %zu bytes, there are %zu", footer_len, len);
    }
    *out = (struct rp_parquet){.footer = {tail + len - TRAILER - footer_len, footer_len},
                               .pages_end = size - TRAILER - (int64_t)footer_len};
    return RP_OK;
}

rp_status rp_parquet_parse(const uint8_t *tail, size_t len, int64_t size, struct rp_parquet *out,
                           struct rp_error *err)
{
    struct rp_parquet got;
    RP_TRY(find_footer(tail, len, size, &got, err));
    struct rp_thrift_in in = reader(got.footer);
    struct rp_thrift_field field = {0};
    int needed = 3; /* fields that every footer has */
    bool sealed = false;
    while (rp_thrift_next(&in, &field)) {
        struct rp_thrift_in value = in;
        rp_thrift_skip(&in, field.type, false);
        needed -= field.id == FILE_SCHEMA || field.id == FILE_ROWS || field.id == FILE_GROUPS;
        sealed = sealed || field.id >= FILE_ENCRYPTION;
        if (in.bad) {
            break;
        }
        if (field.id == FILE_SCHEMA) {
            got.schema = value_of(&in, &field);
        }
        else if (field.id == FILE_GROUPS && field.type == RP_THRIFT_LIST) {
            parse_groups(&in, value, &got);
        }
        else if (field.id == FILE_AUTHOR && field.type == RP_THRIFT_BINARY) {
            parse_author(value, &got);
        }
    }
    if (sealed) {
        got.program.len = 0; /* its pages may be encrypted */
    }
    if (in.bad || in.at != in.end || needed != 0) {
        RP_FAIL(err, RP_E_FORMAT, "the footer of a Parquet file is damaged");
    }
    *out = got;
    return RP_OK;
}

/* ---- a row group ---- */

static void copy_field(struct walk *walk, const struct rp_thrift_field *field, int *last)
{
    rp_thrift_skip(&walk->in, field->type, false);
    if (walk->out != NULL) {
        struct rp_bytes value = value_of(&walk->in, field);
        rp_thrift_put_field(walk->out, field->type, field->id, last);
        rp_thrift_put_bytes(walk->out, value.data, value.len);
    }
}

/* A number that is a place in the file; the number. 0 stands for none, and stays. */
static int64_t move_place(struct walk *walk, const struct rp_thrift_field *field, int *last)
{
    int64_t place = rp_thrift_number(&walk->in);
    if (field->type != RP_THRIFT_I64 || place < 0) {
        rp_thrift_refuse(&walk->in);
        return 0;
    }
    if (place > 0) {
        walk->low = place < walk->low ? place : walk->low;
        walk->high = place > walk->high ? place : walk->high;
    }
    if (walk->out != NULL) { /* what was looked at fits at the new place */
        rp_thrift_put_field(walk->out, field->type, field->id, last);
        rp_thrift_put_number(walk->out, place == 0 ? 0 : place + walk->shift);
    }
    return place;
}

static void end_struct(struct walk *walk)
{
    if (walk->out != NULL) {
        rp_thrift_put_stop(walk->out);
    }
}

static bool is_copied(int id)
{
    return id < META_COMPRESSED || id == META_KEYS || id == META_STATISTICS ||
           id == META_ENCODINGS || id == META_SIZES || id == META_GEO;
}

/* The chunk's bytes, which begin with its dictionary if it has one. */
static void add_bytes(struct walk *walk, int64_t data, int64_t dictionary, int64_t len)
{
    int64_t first = dictionary > 0 && dictionary < data ? dictionary : data;
    if (first < RP_PARQUET_START || len <= 0 || len > INT64_MAX - first) {
        rp_thrift_refuse(&walk->in);
        return;
    }
    walk->first = first < walk->first ? first : walk->first;
    walk->end = first + len > walk->end ? first + len : walk->end;
}

static void walk_meta(struct walk *walk)
{
    struct rp_thrift_field field = {0};
    int64_t data = 0, dictionary = 0, len = 0;
    int last = 0;
    while (rp_thrift_next(&walk->in, &field)) {
        struct rp_thrift_in look = walk->in;
        switch (field.id) {
        case META_DATA_PAGE: data = move_place(walk, &field, &last); continue;
        case META_DICTIONARY: dictionary = move_place(walk, &field, &last); continue;
        case META_COMPRESSED:
            len = field.type == RP_THRIFT_I64 ? rp_thrift_number(&look) : 0;
            copy_field(walk, &field, &last);
            continue;
        case META_BLOOM: /* the filter lies elsewhere and is left out */
        case META_BLOOM_LEN: rp_thrift_skip(&walk->in, field.type, false); continue;
        default: break;
        }
        walk->unknown = walk->unknown || !is_copied(field.id);
        copy_field(walk, &field, &last);
    }
    end_struct(walk);
    add_bytes(walk, data, dictionary, len);
}

static void walk_chunk(struct walk *walk)
{
    struct rp_thrift_field field = {0};
    int last = 0;
    bool described = false;
    while (rp_thrift_next(&walk->in, &field)) {
        if (field.id == CHUNK_META && field.type == RP_THRIFT_STRUCT) {
            if (walk->out != NULL) {
                rp_thrift_put_field(walk->out, field.type, field.id, &last);
            }
            walk_meta(walk);
            described = true;
        }
        else if (field.id == CHUNK_OFFSET) {
            (void)move_place(walk, &field, &last); /* of the metadata: deprecated, often 0 */
        }
        else { /* an index of pages lies elsewhere and is left out */
            bool index = field.id >= CHUNK_INDEX_FIRST && field.id <= CHUNK_INDEX_LAST;
            walk->unknown = walk->unknown || !index;
            rp_thrift_skip(&walk->in, field.type, false);
        }
    }
    end_struct(walk);
    walk->unknown = walk->unknown || !described;
}

static void walk_columns(struct walk *walk, const struct rp_thrift_field *field, int *last)
{
    enum rp_thrift_type element;
    size_t n = rp_thrift_list(&walk->in, &element);
    if (field->type != RP_THRIFT_LIST || element != RP_THRIFT_STRUCT) {
        rp_thrift_refuse(&walk->in);
        return;
    }
    if (walk->out != NULL) {
        rp_thrift_put_field(walk->out, field->type, field->id, last);
        rp_thrift_put_list(walk->out, element, n);
    }
    for (size_t i = 0; i < n && !walk->in.bad; i++) {
        walk_chunk(walk);
    }
}

static void walk_group(struct walk *walk, int64_t ordinal)
{
    struct rp_thrift_field field = {0};
    int last = 0;
    walk->first = walk->low = INT64_MAX;
    walk->end = walk->high = 0;
    while (rp_thrift_next(&walk->in, &field)) {
        struct rp_thrift_in look = walk->in;
        switch (field.id) {
        case GROUP_COLUMNS: walk_columns(walk, &field, &last); break;
        case GROUP_OFFSET: (void)move_place(walk, &field, &last); break; /* of its first page */
        case GROUP_ORDINAL:
            rp_thrift_skip(&walk->in, field.type, false);
            if (walk->out != NULL && ordinal <= INT16_MAX) {
                rp_thrift_put_field(walk->out, RP_THRIFT_I16, field.id, &last);
                rp_thrift_put_number(walk->out, ordinal);
            }
            break;
        case GROUP_ROWS:
            walk->rows = field.type == RP_THRIFT_I64 ? rp_thrift_number(&look) : -1;
            copy_field(walk, &field, &last);
            break;
        case GROUP_BYTES:
        case GROUP_SORTING:
        case GROUP_COMPRESSED: copy_field(walk, &field, &last); break;
        default: walk->unknown = true; rp_thrift_skip(&walk->in, field.type, false);
        }
    }
    end_struct(walk);
}

static bool equal(struct rp_bytes a, struct rp_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* What a writer holds as a buffer. */
static rp_status hand_over(struct rp_thrift_out *from, rp_buf **out, struct rp_error *err)
{
    rp_status status = RP_E_NOMEM;
    if (from->failed) {
        (void)rp_error_set(err, RP_E_NOMEM, "no memory for the footer of a Parquet file");
    }
    else {
        status = rp_buf_new(from->len, out, err);
    }
    if (status == RP_OK && from->len > 0) {
        memcpy((*out)->data, from->data, from->len);
    }
    rp_free(from->data);
    return status;
}

/* Whether all places of a row group that was looked at lie within its own bytes, these within the
 * file, and there is room for them at `at`. */
static bool fits(const struct walk *look, const struct rp_parquet *file, int64_t at)
{
    return !look->in.bad && look->first < look->end && look->low >= look->first &&
           look->high <= look->end && look->end <= file->pages_end && look->rows >= 0 &&
           at <= INT64_MAX - look->end;
}

rp_status rp_parquet_move(const struct rp_parquet *file, const struct rp_parquet *model, int64_t at,
                          int64_t ordinal, struct rp_row_group *out, struct rp_error *err)
{
    if (at < RP_PARQUET_START || ordinal < 0) {
        RP_FAIL(err, RP_E_ARG, "row group %lld at byte %lld", (long long)ordinal, (long long)at);
    }
    if (file->groups != 1) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "%lld row groups", (long long)file->groups);
    }
    if (file->program.len == 0 || !equal(file->program, model->program) ||
        !equal(file->schema, model->schema)) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "another schema, or written by another program");
    }
    struct walk look = {.in = reader(file->group), .rows = -1};
    walk_group(&look, ordinal);
    if (look.unknown && !look.in.bad) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "a row group with fields that are not known");
    }
    if (!fits(&look, file, at)) {
        RP_FAIL(err, RP_E_FORMAT, "a row group whose pages lie outside the file");
    }
    struct rp_thrift_out entry = {0};
    struct walk write = {.in = reader(file->group), .out = &entry, .shift = at - look.first};
    walk_group(&write, ordinal);
    struct rp_row_group got = {.first = look.first, .end = look.end, .rows = look.rows};
    RP_TRY(hand_over(&entry, &got.entry, err));
    *out = got;
    return RP_OK;
}

/* ---- the footer of the new file ---- */

/* Rows of all entries; -1 where one is no RowGroup. */
static int64_t sum_rows(const struct rp_bytes *entries, size_t n)
{
    int64_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        struct walk look = {.in = reader(entries[i]), .rows = -1};
        walk_group(&look, 0);
        if (look.in.bad || look.in.at != look.in.end || look.rows < 0 ||
            look.rows > INT64_MAX - rows) {
            return -1;
        }
        rows += look.rows;
    }
    return rows;
}

rp_status rp_parquet_footer(const struct rp_parquet *model, const struct rp_bytes *entries,
                            size_t n, rp_buf **out, struct rp_error *err)
{
    int64_t rows = sum_rows(entries, n);
    if (rows < 0) {
        RP_FAIL(err, RP_E_FORMAT, "what is to be written is no row group");
    }
    struct rp_thrift_out footer = {0};
    struct walk copy = {.in = reader(model->footer), .out = &footer};
    struct rp_thrift_field field = {0};
    int last = 0;
    while (rp_thrift_next(&copy.in, &field)) {
        if (field.id == FILE_ROWS) {
            rp_thrift_skip(&copy.in, field.type, false);
            rp_thrift_put_field(&footer, RP_THRIFT_I64, field.id, &last);
            rp_thrift_put_number(&footer, rows);
        }
        else if (field.id == FILE_GROUPS) {
            rp_thrift_skip(&copy.in, field.type, false);
            rp_thrift_put_field(&footer, RP_THRIFT_LIST, field.id, &last);
            rp_thrift_put_list(&footer, RP_THRIFT_STRUCT, n);
            for (size_t i = 0; i < n; i++) {
                rp_thrift_put_bytes(&footer, entries[i].data, entries[i].len);
            }
        }
        else {
            copy_field(&copy, &field, &last);
        }
    }
    rp_thrift_put_stop(&footer);
    size_t len = footer.len;
    uint8_t trailer[TRAILER];
    rp_put_le32(trailer, (uint32_t)len);
    memcpy(trailer + 4, magic, sizeof(magic));
    rp_thrift_put_bytes(&footer, trailer, sizeof(trailer));
    if (len > INT32_MAX) {
        rp_free(footer.data);
        RP_FAIL(err, RP_E_FORMAT, "a footer of %zu bytes is too long", len);
    }
    return hand_over(&footer, out, err);
}
