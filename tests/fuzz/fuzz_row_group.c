/* Any bytes as the end of a Parquet file: refused, or what is moved is an entry of a footer that is
 * read again, with the same schema. The first two bytes say where the row group goes; an input
 * whose first byte is odd gets its trailer put right, so that the footer before it is met. */
#include "base/bytes.h"
#include "parquet/parquet.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)  \
    do {                    \
        if (!(condition)) { \
            abort();        \
        }                   \
    } while (0)

#define PAGES (1LL << 40) /* bytes before the footer */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same(struct rp_bytes a, struct rp_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* The footer of `n` times this entry, read again. */
static void check_footer(const struct rp_parquet *file, const rp_buf *entry, size_t n)
{
    const struct rp_bytes entries[] = {{entry->data, entry->len}, {entry->data, entry->len}};
    rp_buf *end = NULL, *last = NULL;
    struct rp_parquet again, once_more;
    if (rp_parquet_footer(file, entries, n, &end, NULL) != RP_OK) {
        PROMISE(n == 2); /* too many rows */
        return;
    }
    PROMISE(rp_parquet_parse(end->data, end->len, INT64_MAX, &again, NULL) == RP_OK);
    PROMISE(same(again.schema, file->schema) && same(again.program, file->program));
    PROMISE(again.groups == (int64_t)n && same(again.group, entries[0]));
    PROMISE(rp_parquet_footer(&again, entries, n, &last, NULL) == RP_OK);
    PROMISE(rp_parquet_parse(last->data, last->len, INT64_MAX, &once_more, NULL) == RP_OK);
    PROMISE(same(once_more.footer, again.footer));
    rp_buf_unref(&end);
    rp_buf_unref(&last);
}

static void check_file(const struct rp_parquet *file, int64_t at, int64_t ordinal)
{
    PROMISE(file->groups >= 0 && (file->groups > 0) == (file->group.len > 0));
    struct rp_row_group group;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_parquet_move(file, file, at, ordinal, &group, &err);
    if (status != RP_OK) {
        PROMISE(status == RP_E_UNSUPPORTED || status == RP_E_FORMAT);
        PROMISE(err.code == status && err.what[0] != '\0');
        return;
    }
    PROMISE(group.first >= RP_PARQUET_START && group.first < group.end && group.rows >= 0);
    PROMISE(group.end <= file->pages_end);
    check_footer(file, group.entry, 1);
    check_footer(file, group.entry, 2);
    /* and back: the same but for what was left out */
    struct rp_parquet moved = *file;
    struct rp_row_group back;
    moved.group = (struct rp_bytes){group.entry->data, group.entry->len};
    moved.pages_end = INT64_MAX;
    PROMISE(rp_parquet_move(&moved, file, group.first, ordinal, &back, NULL) == RP_OK);
    PROMISE(back.first == at && back.end - at == group.end - group.first);
    PROMISE(back.entry->len <= file->group.len + 16); /* numbers may have more bytes */
    rp_buf_unref(&back.entry);
    rp_buf_unref(&group.entry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 10) {
        return 0;
    }
    size_t len = size - 2;
    uint8_t *tail = malloc(len);
    PROMISE(tail != NULL);
    memcpy(tail, data + 2, len);
    if ((data[0] & 1) != 0) {
        rp_put_le32(tail + len - 8, (uint32_t)len - 8);
        memcpy(tail + len - 4, "PAR1", 4);
    }
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_parquet file;
    rp_status status = rp_parquet_parse(tail, len, PAGES + (int64_t)len, &file, &err);
    if (status == RP_OK) {
        check_file(&file, RP_PARQUET_START + ((int64_t)data[0] << (data[1] & 31)), data[1]);
    }
    else {
        PROMISE(status == RP_E_FORMAT && err.code == status && err.what[0] != '\0');
    }
    free(tail);
    return 0;
}
