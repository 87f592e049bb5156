/* Row groups in another file: every place moves with the pages, what is not known stays, and no
 * footer, however wrong, makes one that does not fit its file. */
#include "parquet/parquet.h"

#include "parquet/thrift.h"

#include "harness.h"

enum { PAGES = 5000, ROWS = 77, COLUMNS = 2 }; /* PAGES: bytes of the file before its footer */

struct column {
    int64_t data, dictionary, file_offset, len; /* dictionary < 0: no such field */
};

/* A footer to be made. */
struct facts {
    struct column column[COLUMNS];
    int64_t offset, ordinal, rows; /* -1: no such field */
    int groups;
    bool indexes;                                 /* of pages, and Bloom filters */
    int odd_group, odd_chunk, odd_meta, odd_file; /* ids of fields more; 0: none */
    const char *program, *schema;                 /* NULL: no such field */
    bool program_last;
};

static const struct facts plain = {
    .column = {{40, 4, 0, 1000}, {1004, -1, 0, 500}},
    .offset = 4,
    .ordinal = 0,
    .rows = ROWS,
    .groups = 1,
    .program = "parquet-cpp-arrow version 26.0.1 (build x)",
    .schema = "one",
};

static struct rp_error err;

static void put_i64(struct rp_thrift_out *out, int id, int64_t value, int *last)
{
    rp_thrift_put_field(out, RP_THRIFT_I64, id, last);
    rp_thrift_put_number(out, value);
}

static void put_text(struct rp_thrift_out *out, int id, const char *text, int *last)
{
    if (id == 0) {
        return;
    }
    uint8_t len = (uint8_t)strlen(text);
    rp_thrift_put_field(out, RP_THRIFT_BINARY, id, last);
    rp_thrift_put_bytes(out, &len, 1);
    rp_thrift_put_bytes(out, (const uint8_t *)text, len);
}

static void put_meta(struct rp_thrift_out *out, const struct facts *facts, int k)
{
    const struct column *column = &facts->column[k];
    int last = 0;
    rp_thrift_put_field(out, RP_THRIFT_I32, 1, &last);
    rp_thrift_put_number(out, 4);
    rp_thrift_put_field(out, RP_THRIFT_LIST, 2, &last);
    rp_thrift_put_list(out, RP_THRIFT_I32, 1);
    rp_thrift_put_number(out, 3);
    put_i64(out, 6, 2000, &last);
    put_i64(out, 7, column->len, &last);
    put_i64(out, 9, column->data, &last);
    if (column->dictionary >= 0) {
        put_i64(out, 11, column->dictionary, &last);
    }
    rp_thrift_put_field(out, RP_THRIFT_STRUCT, 12, &last); /* statistics: copied */
    int inner = 0;
    put_i64(out, 3, -k, &inner);
    rp_thrift_put_field(out, RP_THRIFT_TRUE, 7, &inner);
    rp_thrift_put_stop(out);
    if (facts->indexes) {
        put_i64(out, 14, 4000, &last);
        rp_thrift_put_field(out, RP_THRIFT_I32, 15, &last);
        rp_thrift_put_number(out, 32);
    }
    put_text(out, facts->odd_meta, "?", &last);
    rp_thrift_put_stop(out);
}

static void put_group(struct rp_thrift_out *out, const struct facts *facts)
{
    int last = 0;
    rp_thrift_put_field(out, RP_THRIFT_LIST, 1, &last);
    rp_thrift_put_list(out, RP_THRIFT_STRUCT, COLUMNS);
    for (int k = 0; k < COLUMNS; k++) {
        int inner = 0;
        put_i64(out, 2, facts->column[k].file_offset, &inner);
        rp_thrift_put_field(out, RP_THRIFT_STRUCT, 3, &inner);
        put_meta(out, facts, k);
        for (int id = 4; id <= 7 && facts->indexes; id++) {
            put_i64(out, id, 4500, &inner);
        }
        put_text(out, facts->odd_chunk, "?", &inner);
        rp_thrift_put_stop(out);
    }
    put_i64(out, 2, 3000, &last);
    if (facts->rows != -1) {
        put_i64(out, 3, facts->rows, &last);
    }
    if (facts->offset != -1) {
        put_i64(out, 5, facts->offset, &last);
    }
    put_i64(out, 6, 1500, &last);
    if (facts->ordinal != -1) {
        rp_thrift_put_field(out, RP_THRIFT_I16, 7, &last);
        rp_thrift_put_number(out, facts->ordinal);
    }
    put_text(out, facts->odd_group, "?", &last);
    rp_thrift_put_stop(out);
}

static void end_file(struct rp_thrift_out *out)
{
    rp_thrift_put_stop(out);
    size_t len = out->len;
    uint8_t trailer[] = {(uint8_t)len, (uint8_t)(len >> 8), 0, 0, 'P', 'A', 'R', '1'};
    rp_thrift_put_bytes(out, trailer, sizeof(trailer));
    REQUIRE(!out->failed && len < 65536);
}

/* The end of a file; freed with rp_free. */
static struct rp_thrift_out make(const struct facts *facts)
{
    struct rp_thrift_out out = {0};
    int last = 0;
    rp_thrift_put_field(&out, RP_THRIFT_I32, 1, &last);
    rp_thrift_put_number(&out, 2);
    if (facts->schema != NULL) {
        put_text(&out, 2, facts->schema, &last); /* nobody looks into it */
    }
    put_i64(&out, 3, facts->rows, &last);
    rp_thrift_put_field(&out, RP_THRIFT_LIST, 4, &last);
    rp_thrift_put_list(&out, RP_THRIFT_STRUCT, (size_t)facts->groups);
    for (int i = 0; i < facts->groups; i++) {
        put_group(&out, facts);
    }
    if (facts->program != NULL && !facts->program_last) {
        put_text(&out, 6, facts->program, &last);
    }
    put_text(&out, facts->odd_file, "?", &last);
    if (facts->program != NULL && facts->program_last) {
        put_text(&out, 6, facts->program, &last);
    }
    end_file(&out);
    return out;
}

static rp_status parse(const struct rp_thrift_out *tail, struct rp_parquet *out)
{
    rp_error_clear(&err);
    return rp_parquet_parse(tail->data, tail->len, PAGES + (int64_t)tail->len, out, &err);
}

/* Move the group of a file made so into one like `plain`. */
static rp_status move(const struct facts *facts, int64_t at, int64_t ordinal,
                      struct rp_row_group *out)
{
    struct rp_thrift_out tail = make(facts), like = make(&plain);
    struct rp_parquet file, model;
    REQUIRE_OK(parse(&like, &model), &err);
    rp_status status = parse(&tail, &file);
    if (status == RP_OK) {
        status = rp_parquet_move(&file, &model, at, ordinal, out, &err);
    }
    rp_free(tail.data);
    rp_free(like.data);
    return status;
}

static void refused(const struct facts *facts, rp_status wanted, const char *part)
{
    struct rp_row_group group = {.rows = 555};
    (void)CHECK_STATUS(move(facts, 4, 0, &group), wanted, &err);
    (void)CHECK_CONTAINS(err.what, part);
    (void)CHECK(group.rows == 555 && group.entry == NULL);
}

/* Stand at the value of a field; its type, RP_THRIFT_STOP without it. */
static enum rp_thrift_type seek(struct rp_thrift_in *in, int id)
{
    struct rp_thrift_field field = {0};
    while (rp_thrift_next(in, &field)) {
        if (field.id == id) {
            return field.type;
        }
        rp_thrift_skip(in, field.type, false);
    }
    REQUIRE(!in->bad);
    return RP_THRIFT_STOP;
}

/* A number in a RowGroup: of the group (column < 0), of a chunk, or (`meta`) of its metadata; -1
 * where there is none. */
static int64_t number(const rp_buf *entry, int column, bool meta, int id)
{
    struct rp_thrift_in in = {entry->data, entry->data + entry->len, false};
    if (column >= 0) {
        enum rp_thrift_type element;
        REQUIRE_EQ(seek(&in, 1), RP_THRIFT_LIST);
        REQUIRE(rp_thrift_list(&in, &element) == COLUMNS && element == RP_THRIFT_STRUCT);
        for (int k = 0; k < column; k++) {
            rp_thrift_skip(&in, RP_THRIFT_STRUCT, true);
        }
        if (meta) {
            REQUIRE_EQ(seek(&in, 3), RP_THRIFT_STRUCT);
        }
    }
    return seek(&in, id) == RP_THRIFT_STOP ? -1 : rp_thrift_number(&in);
}

RP_TEST(a_footer_is_read)
{
    struct rp_thrift_out tail = make(&plain);
    struct rp_parquet file;
    REQUIRE_OK(parse(&tail, &file), &err);
    (void)CHECK(file.pages_end == PAGES && file.groups == 1);
    (void)CHECK(file.footer.data == tail.data && file.footer.len == tail.len - 8);
    (void)CHECK_EQ(file.program.len, strlen("parquet-cpp-arrow"));
    (void)CHECK_MEM(file.program.data, "parquet-cpp-arrow", file.program.len);
    (void)CHECK_MEM(file.schema.data, "\3one", 4);
    rp_free(tail.data);
}

RP_TEST(every_place_moves)
{
    struct facts facts = plain;
    facts.column[0] = (struct column){140, 104, 1104, 1000};
    facts.column[1] = (struct column){1104, 0, 1604, 500}; /* no dictionary, said by a 0 */
    facts.offset = 104;
    facts.indexes = true;
    struct rp_row_group group;
    REQUIRE_OK(move(&facts, 9104, 3, &group), &err);
    (void)CHECK(group.first == 104 && group.end == 1604 && group.rows == ROWS);
    (void)CHECK_EQ(number(group.entry, 0, true, 9), 9140);
    (void)CHECK_EQ(number(group.entry, 0, true, 11), 9104);
    (void)CHECK_EQ(number(group.entry, 0, false, 2), 10104);
    (void)CHECK_EQ(number(group.entry, 1, true, 9), 10104);
    (void)CHECK_EQ(number(group.entry, 1, true, 11), 0);
    (void)CHECK_EQ(number(group.entry, 1, false, 2), 10604);
    (void)CHECK_EQ(number(group.entry, -1, false, 5), 9104);
    (void)CHECK_EQ(number(group.entry, -1, false, 7), 3);
    (void)CHECK_EQ(number(group.entry, -1, false, 2), 3000); /* no place: as it was */
    for (int k = 0; k < COLUMNS; k++) {
        (void)CHECK_EQ(number(group.entry, k, true, 7), facts.column[k].len);
        (void)CHECK_EQ(number(group.entry, k, true, 14), -1); /* they lie elsewhere */
        (void)CHECK_EQ(number(group.entry, k, true, 15), -1);
        for (int id = 4; id <= 7; id++) {
            (void)CHECK_EQ(number(group.entry, k, false, id), -1);
        }
    }
    rp_buf_unref(&group.entry);
}

/* Where it stands already it is not changed; to a lower place, and far away. */
RP_TEST(there_and_back)
{
    struct facts facts = plain;
    facts.column[0] = (struct column){140, 104, 0, 1000};
    facts.column[1] = (struct column){1104, -1, 0, 500};
    facts.offset = 104;
    struct rp_thrift_out tail = make(&facts);
    struct rp_parquet file;
    REQUIRE_OK(parse(&tail, &file), &err);
    static const int64_t places[] = {104, 4, INT64_MAX - 1604};
    for (int i = 0; i < 3; i++) {
        struct rp_row_group group;
        REQUIRE_OK(rp_parquet_move(&file, &file, places[i], 0, &group, &err), &err);
        (void)CHECK_EQ(number(group.entry, 0, true, 11), places[i]);
        (void)CHECK_EQ(number(group.entry, 0, true, 9), places[i] + 36);
        (void)CHECK_EQ(number(group.entry, 0, false, 2), 0);
        if (i == 0 && CHECK_EQ(group.entry->len, file.group.len)) {
            (void)CHECK_MEM(group.entry->data, file.group.data, file.group.len);
        }
        rp_buf_unref(&group.entry);
    }
    struct rp_row_group group = {.rows = 555};
    (void)CHECK_STATUS(rp_parquet_move(&file, &file, INT64_MAX - 1603, 0, &group, &err),
                       RP_E_FORMAT, &err);
    (void)CHECK_STATUS(rp_parquet_move(&file, &file, 3, 0, &group, &err), RP_E_ARG, &err);
    (void)CHECK_STATUS(rp_parquet_move(&file, &file, 4, -1, &group, &err), RP_E_ARG, &err);
    (void)CHECK_EQ(group.rows, 555);
    rp_free(tail.data);
}

RP_TEST(its_number_is_said_while_it_has_room)
{
    static const int64_t before[] = {0, 5, 0, -1}, now[] = {0, 32767, 32768, 6},
                         said[] = {0, 32767, -1, -1};
    for (int i = 0; i < 4; i++) {
        struct facts facts = plain;
        facts.ordinal = before[i];
        struct rp_row_group group;
        REQUIRE_OK(move(&facts, 4, now[i], &group), &err);
        (void)CHECK_EQ(number(group.entry, -1, false, 7), said[i]);
        rp_buf_unref(&group.entry);
    }
}

RP_TEST(what_is_not_known_is_not_moved)
{
    for (int i = 0; i < 12; i++) {
        struct facts facts = plain;
        const char *part = "another program";
        switch (i) {
        case 0: facts.odd_group = 8, part = "not known"; break;
        case 1: facts.odd_chunk = 1, part = "not known"; break; /* pages in another file */
        case 2: facts.odd_chunk = 8, part = "not known"; break; /* encrypted */
        case 3: facts.odd_meta = 10, part = "not known"; break; /* a page of an index */
        case 4: facts.odd_meta = 18, part = "not known"; break;
        case 5: facts.odd_file = 8; break; /* encryption */
        case 6: facts.odd_file = 9, facts.program_last = true; break;
        case 7: facts.schema = "eno"; break;
        case 8: facts.schema = "one more"; break;
        case 9: facts.program = "parquet-mr version 26.0.1 (build x)"; break;
        case 10: facts.groups = 2, part = "2 row groups"; break;
        default: facts.groups = 0, part = "0 row groups"; break;
        }
        refused(&facts, RP_E_UNSUPPORTED, part);
    }
    struct facts facts = plain;
    facts.program = NULL; /* nobody says who wrote either */
    struct rp_thrift_out tail = make(&facts);
    struct rp_parquet file;
    struct rp_row_group group;
    REQUIRE_OK(parse(&tail, &file), &err);
    (void)CHECK_STATUS(rp_parquet_move(&file, &file, 4, 0, &group, &err), RP_E_UNSUPPORTED, &err);
    rp_free(tail.data);
    facts.program = "parquet-cpp-arrow version 1.0"; /* of another age */
    REQUIRE_OK(move(&facts, 4, 0, &group), &err);
    rp_buf_unref(&group.entry);
}

RP_TEST(places_outside_the_pages_are_refused)
{
    for (int i = 0; i < 17; i++) {
        struct facts facts = plain;
        struct column *column = facts.column;
        switch (i) {
        case 0: column[0].dictionary = 3; break; /* in the first four bytes */
        case 1: column[1].data = 0; break;
        case 2: column[1].data = -1004; break;
        case 3: column[1].len = 0; break;
        case 4: column[1].len = -1; break;
        case 5: column[1].len = PAGES - 1003; break; /* a byte of the footer */
        case 6: column[1].len = INT64_MAX; break;
        case 7: column[1].data = INT64_MAX; break;
        case 8: column[1].dictionary = 1505; break; /* behind the pages */
        case 9: column[1].dictionary = INT64_MAX; break;
        case 10: column[0].file_offset = 1505; break;
        case 11: column[0].file_offset = INT64_MAX; break;
        case 12: facts.offset = INT64_MAX; break;
        case 15: facts.offset = -2; break;
        case 13: column[0].dictionary = -1; break; /* the group begins before its pages */
        case 14: facts.rows = -1; break;           /* nobody knows how many */
        default: column[0].file_offset = -2; break;
        }
        refused(&facts, RP_E_FORMAT, "lie outside the file");
    }
    struct facts facts = plain;
    facts.column[1].len = PAGES - 1004;  /* up to the footer */
    facts.column[1].file_offset = PAGES; /* where old writers put what is said of the chunk */
    struct rp_row_group group;
    REQUIRE_OK(move(&facts, 4, 0, &group), &err);
    rp_buf_unref(&group.entry);
}

RP_TEST(other_bytes_are_no_footer)
{
    struct rp_thrift_out tail = make(&plain);
    struct rp_parquet file = {.groups = 555};
    int64_t size = PAGES + (int64_t)tail.len;
    for (size_t len = 0; len < tail.len; len++) { /* its end only */
        uint8_t *end = malloc(len + 1);
        REQUIRE(end != NULL);
        memcpy(end + 1, tail.data + tail.len - len, len);
        (void)CHECK_STATUS(rp_parquet_parse(end + 1, len, size, &file, &err), RP_E_FORMAT, &err);
        free(end);
    }
    (void)CHECK_STATUS(rp_parquet_parse(tail.data, tail.len, (int64_t)tail.len + 3, &file, &err),
                       RP_E_FORMAT, &err); /* no room for the first four bytes */
    uint8_t more[1000] = {0};
    size_t len = tail.len;
    REQUIRE(len + 30 < sizeof(more));
    memcpy(more + 20, tail.data, len);
    REQUIRE_OK(rp_parquet_parse(more, len + 20, PAGES, &file, &err), &err);
    file.groups = 555;
    (void)CHECK_STATUS(rp_parquet_parse(more, len + 20, (int64_t)len + 19, &file, &err),
                       RP_E_FORMAT, &err); /* of a file that is shorter */
    memmove(more + 21 + len - 8, more + 20 + len - 8, 8);
    more[21 + len - 8]++; /* a byte more, behind the last field */
    (void)CHECK_STATUS(rp_parquet_parse(more + 20, len + 1, PAGES, &file, &err), RP_E_FORMAT, &err);
    tail.data[len - 8]--; /* begins inside */
    (void)CHECK_STATUS(parse(&tail, &file), RP_E_FORMAT, &err);
    (void)CHECK_CONTAINS(err.what, "damaged");
    (void)CHECK_EQ(file.groups, 555);
    rp_free(tail.data);
    for (int i = 0; i < 2; i++) {
        struct facts facts = plain;
        facts.schema = i == 0 ? NULL : facts.schema;
        facts.odd_file = i == 1 ? 3 : 0; /* its rows, twice */
        struct rp_thrift_out bad = make(&facts);
        (void)CHECK_STATUS(parse(&bad, &file), RP_E_FORMAT, &err);
        rp_free(bad.data);
    }
}

/* What was moved goes into a footer, and that can be read. */
static void check_moved(const struct rp_parquet *file, const struct rp_parquet *model)
{
    struct rp_row_group group = {0};
    rp_status status = rp_parquet_move(file, model, 1LL << 40, 7, &group, &err);
    if (status != RP_OK) {
        (void)CHECK(status == RP_E_FORMAT || status == RP_E_UNSUPPORTED);
        (void)CHECK(group.entry == NULL);
        return;
    }
    (void)CHECK(group.first >= 4 && group.end <= file->pages_end && group.rows >= 0);
    struct rp_bytes entry = {group.entry->data, group.entry->len};
    rp_buf *end = NULL;
    struct rp_parquet again;
    if (CHECK_OK(rp_parquet_footer(model, &entry, 1, &end, &err), &err) &&
        CHECK_OK(rp_parquet_parse(end->data, end->len, INT64_MAX, &again, &err), &err)) {
        (void)CHECK_EQ(again.groups, 1);
        (void)CHECK_EQ(again.schema.len, model->schema.len);
    }
    rp_buf_unref(&end);
    rp_buf_unref(&group.entry);
}

RP_TEST(every_other_byte_is_refused_or_fits)
{
    struct facts facts = plain;
    facts.indexes = true;
    struct rp_thrift_out tail = make(&facts), like = make(&plain);
    struct rp_parquet model, file;
    REQUIRE_OK(parse(&like, &model), &err);
    int moved = 0;
    for (size_t i = 0; i < tail.len; i++) {
        uint8_t before = tail.data[i];
        for (int value = 0; value < 256; value++) {
            tail.data[i] = (uint8_t)value;
            rp_status status = parse(&tail, &file);
            (void)CHECK(status == RP_OK || (status == RP_E_FORMAT && err.what[0] != '\0'));
            if (status == RP_OK) {
                moved++;
                check_moved(&file, &model);
                check_moved(&file, &file);
            }
        }
        tail.data[i] = before;
    }
    (void)CHECK(moved > 1000);
    rp_free(tail.data);
    rp_free(like.data);
}

/* As deep as anything may be: what is read can be written again. */
RP_TEST(values_of_any_depth)
{
    int sound = 0;
    for (int depth = 1; depth < 20; depth++) {
        struct rp_thrift_out out = {0};
        int last = 0;
        put_text(&out, 2, plain.schema, &last);
        put_i64(&out, 3, ROWS, &last);
        put_text(&out, 6, plain.program, &last);
        rp_thrift_put_field(&out, RP_THRIFT_LIST, 4, &last);
        rp_thrift_put_list(&out, RP_THRIFT_STRUCT, 1);
        int inner = 0; /* of the group, which has no columns */
        put_i64(&out, 3, ROWS, &inner);
        rp_thrift_put_field(&out, RP_THRIFT_LIST, 4, &inner);
        for (int i = 1; i < depth; i++) {
            rp_thrift_put_list(&out, RP_THRIFT_LIST, 1);
        }
        rp_thrift_put_list(&out, RP_THRIFT_BYTE, 0);
        rp_thrift_put_stop(&out);
        end_file(&out);
        struct rp_parquet file, again;
        if (parse(&out, &file) == RP_OK) {
            sound++;
            struct rp_row_group group;
            (void)CHECK_STATUS(rp_parquet_move(&file, &file, 4, 0, &group, &err), RP_E_FORMAT,
                               &err);
            rp_buf *end = NULL;
            REQUIRE_OK(rp_parquet_footer(&file, NULL, 0, &end, &err), &err);
            REQUIRE_OK(rp_parquet_parse(end->data, end->len, INT64_MAX, &again, &err), &err);
            (void)CHECK_EQ(again.groups, 0);
            rp_buf_unref(&end);
        }
        rp_free(out.data);
    }
    (void)CHECK(sound > 10 && sound < 19);
}

RP_TEST(a_footer_of_several)
{
    struct rp_thrift_out like = make(&plain);
    struct rp_parquet model, got;
    REQUIRE_OK(parse(&like, &model), &err);
    enum { GROUPS = 20 };
    struct rp_bytes entries[GROUPS];
    rp_buf *held[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        struct facts facts = plain;
        facts.rows = i;
        struct rp_row_group group;
        REQUIRE_OK(move(&facts, 4 + 2000 * i, i, &group), &err);
        held[i] = group.entry;
        entries[i] = (struct rp_bytes){held[i]->data, held[i]->len};
    }
    static const int counts[] = {0, 1, 14, 15, GROUPS};
    for (int i = 0; i < 5; i++) {
        int n = counts[i];
        rp_buf *end = NULL;
        REQUIRE_OK(rp_parquet_footer(&model, n > 0 ? entries : NULL, (size_t)n, &end, &err), &err);
        int64_t size = 4 + 2000 * n + (int64_t)end->len;
        REQUIRE_OK(rp_parquet_parse(end->data, end->len, size, &got, &err), &err);
        (void)CHECK_EQ(got.groups, n);
        (void)CHECK_EQ(got.pages_end, 4 + 2000 * n);
        (void)CHECK_EQ(got.schema.len, model.schema.len);
        struct rp_thrift_in in = {got.footer.data, got.footer.data + got.footer.len, false};
        REQUIRE_EQ(seek(&in, 3), RP_THRIFT_I64);
        (void)CHECK_EQ(rp_thrift_number(&in), n * (n - 1) / 2);
        if (n > 0 && CHECK_EQ(got.group.len, entries[0].len)) {
            (void)CHECK_MEM(got.group.data, entries[0].data, entries[0].len);
        }
        rp_buf_unref(&end);
    }
    for (int i = 0; i < GROUPS; i++) {
        rp_buf_unref(&held[i]);
    }
    rp_free(like.data);
}

RP_TEST(entries_that_are_none_are_refused)
{
    struct rp_thrift_out like = make(&plain);
    struct rp_parquet model;
    REQUIRE_OK(parse(&like, &model), &err);
    struct rp_row_group group;
    struct facts facts = plain;
    facts.rows = INT64_MAX;
    REQUIRE_OK(move(&facts, 4, 0, &group), &err);
    uint8_t more[1000];
    size_t len = group.entry->len;
    REQUIRE(len + 1 < sizeof(more));
    memcpy(more, group.entry->data, len);
    more[len] = 0;
    const struct rp_bytes whole = {more, len};
    const struct rp_bytes bad[] = {
        {more, 0}, {more, len - 1}, {more + 1, len - 1}, {more, len + 1}};
    const struct rp_bytes both[] = {whole, whole}; /* too many rows */
    rp_buf *end = NULL;
    for (int i = 0; i < 5; i++) {
        (void)CHECK_STATUS(
            rp_parquet_footer(&model, i < 4 ? &bad[i] : both, i < 4 ? 1 : 2, &end, &err),
            RP_E_FORMAT, &err);
        (void)CHECK_CONTAINS(err.what, "no row group");
        (void)CHECK(end == NULL);
    }
    REQUIRE_OK(rp_parquet_footer(&model, &whole, 1, &end, &err), &err);
    rp_buf_unref(&end);
    rp_buf_unref(&group.entry);
    rp_free(like.data);
}

static void move_and_write(void *arg)
{
    const struct rp_parquet *file = arg;
    struct rp_row_group group = {0};
    rp_buf *end = NULL;
    rp_error_clear(&err);
    rp_status status = rp_parquet_move(file, file, 999, 1, &group, &err);
    if (status == RP_OK) {
        struct rp_bytes entries[20];
        for (int i = 0; i < 20; i++) {
            entries[i] = (struct rp_bytes){group.entry->data, group.entry->len};
        }
        status = rp_parquet_footer(file, entries, 20, &end, &err);
    }
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == RP_E_NOMEM));
    (void)CHECK((end != NULL) == (status == RP_OK));
    rp_buf_unref(&end);
    rp_buf_unref(&group.entry);
}

RP_TEST(without_memory_nothing_is_left)
{
    struct rp_thrift_out tail = make(&plain);
    struct rp_parquet file;
    REQUIRE_OK(parse(&tail, &file), &err);
    struct rp_fault memory = {.calls = RP_FAULT_MEMORY};
    (void)CHECK(rp_fault_sweep(memory, move_and_write, &file) > 5);
    rp_free(tail.data);
}
