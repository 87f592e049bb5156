/* mp4_box.c and moov_search.c: sizes, nesting, and finding moov in any order of boxes. */
#include "demux/mp4_priv.h"

#include "harness.h"
#include "mp4_build.h"

static struct rp_error err;

RP_TEST(boxes_in_order_with_both_size_forms)
{
    struct bytes b = {.len = 0};
    end(&b, begin(&b, "aaaa"));
    put32(&b, 1);
    put(&b, "bbbb", 4);
    put64(&b, 19);
    put(&b, "xyz", 3);
    put_zeros(&b, 4);
    struct rp_box_cursor cursor = {.data = b.data, .len = b.len, .at = 100};
    struct rp_box box;
    rp_error_clear(&err);
    REQUIRE_OK(rp_box_next(&cursor, &box, &err), &err);
    CHECK_STR(rp_box_name(box.type).s, "aaaa");
    CHECK_EQ(box.len, 0);
    CHECK_EQ(box.at, 100);
    REQUIRE_OK(rp_box_next(&cursor, &box, &err), &err);
    CHECK_STR(rp_box_name(box.type).s, "bbbb");
    CHECK_EQ(box.len, 3);
    CHECK_MEM(box.data, "xyz", 3);
    CHECK_EQ(rp_box_next(&cursor, &box, &err), RP_END);
}

static rp_status next_of(const void *data, size_t len)
{
    struct rp_box_cursor cursor = {.data = data, .len = len, .at = 0};
    struct rp_box box;
    rp_error_clear(&err);
    return rp_box_next(&cursor, &box, &err);
}

RP_TEST(sizes_that_do_not_fit_are_refused)
{
    CHECK_STATUS(next_of("\0\0\0\x09"
                         "aaaa",
                         8),
                 RP_E_FORMAT, &err);
    CHECK_CONTAINS(err.what, "declares 9 bytes, its parent has 8 left");
    CHECK_STATUS(next_of("\0\0\0\x07"
                         "aaaa",
                         8),
                 RP_E_FORMAT, &err);
    CHECK_STATUS(next_of("\0\0\0\0aaaa", 8), RP_E_FORMAT, &err); /* to EOF: top level only */
    CHECK_STATUS(next_of("\0\0\0\1aaaa\0\0\0\0\0\0\0\x0f", 16), RP_E_FORMAT, &err);
    CHECK_STATUS(next_of("\0\0\0\1aaaa\xff\xff\xff\xff\xff\xff\xff\xff", 16), RP_E_FORMAT, &err);
    CHECK_STATUS(next_of("\0\0\0\1aaaa", 8), RP_E_FORMAT, &err);
    CHECK_STATUS(next_of("\0\0\1", 3), RP_E_FORMAT, &err);
    CHECK_CONTAINS(err.what, "3 stray bytes");
    CHECK_EQ(next_of("", 0), RP_END);
}

/* Search a file held in memory, counting the reads. */
static rp_status search(const struct bytes *file, int64_t file_size, struct rp_byte_range *moov,
                        int *reads)
{
    struct rp_moov_search state = {0};
    struct rp_byte_range need = {0};
    rp_status status;
    rp_error_clear(&err);
    *reads = 0;
    while ((status = rp_moov_find(&state, file->data + need.offset, need.offset, (size_t)need.len,
                                  file_size, &need, moov, &err)) == RP_AGAIN) {
        ++*reads;
        if (!CHECK(need.len > 0 && need.offset >= 0 && need.len <= 1 << 20) ||
            !CHECK(need.offset + need.len <= (int64_t)file->len)) {
            return RP_E_ARG;
        }
    }
    return status;
}

static void put_box(struct bytes *b, const char *type, size_t payload)
{
    size_t at = begin(b, type);
    put_zeros(b, payload);
    end(b, at);
}

RP_TEST(moov_is_found_first_and_last)
{
    static struct bytes b;
    struct rp_byte_range moov;
    int reads;
    b.len = 0;
    put_box(&b, "ftyp", 16);
    put_box(&b, "moov", 100);
    put_box(&b, "mdat", 9000);
    REQUIRE_OK(search(&b, (int64_t)b.len, &moov, &reads), &err);
    CHECK_EQ(moov.offset, 24);
    CHECK_EQ(moov.len, 108);
    CHECK_EQ(reads, 1);
    b.len = 0;
    put_box(&b, "ftyp", 16);
    put_box(&b, "free", 0);
    put_box(&b, "mdat", 9000);
    put_box(&b, "moov", 100);
    REQUIRE_OK(search(&b, (int64_t)b.len, &moov, &reads), &err);
    CHECK_EQ(moov.offset, 24 + 8 + 9008);
    CHECK_EQ(moov.len, 108);
    CHECK_EQ(reads, 2); /* head, then all behind mdat */
}

RP_TEST(size_zero_and_64_bits_at_top_level)
{
    static struct bytes b;
    struct rp_byte_range moov;
    int reads;
    b.len = 0;
    put32(&b, 1);
    put(&b, "mdat", 4);
    put64(&b, 20);
    put_zeros(&b, 4);
    put32(&b, 0);
    put(&b, "moov", 4);
    put_zeros(&b, 30);
    REQUIRE_OK(search(&b, (int64_t)b.len, &moov, &reads), &err);
    CHECK_EQ(moov.offset, 20);
    CHECK_EQ(moov.len, 38);
}

RP_TEST(files_without_moov_are_refused)
{
    static struct bytes b;
    struct rp_byte_range moov;
    int reads;
    b.len = 0;
    CHECK_STATUS(search(&b, 0, &moov, &reads), RP_E_FORMAT, &err);
    put_box(&b, "ftyp", 16);
    put_box(&b, "mdat", 50);
    CHECK_STATUS(search(&b, (int64_t)b.len, &moov, &reads), RP_E_FORMAT, &err);
    CHECK_CONTAINS(err.what, "no moov");
    CHECK_STATUS(search(&b, (int64_t)b.len - 1, &moov, &reads), RP_E_FORMAT, &err);
    CHECK_CONTAINS(err.what, "truncated");
    CHECK_EQ(err.offset, 24);
    b.len = 0;
    put(&b, "\x89PNG\r\n\x1a\nIHDR....", 16);
    CHECK_STATUS(search(&b, (int64_t)b.len, &moov, &reads), RP_E_FORMAT, &err);
    b.len = 0;
    for (int i = 0; i < 1100; i++) {
        put_box(&b, "free", 0);
    }
    put_box(&b, "moov", 0);
    CHECK_STATUS(search(&b, (int64_t)b.len, &moov, &reads), RP_E_FORMAT, &err);
    CHECK_CONTAINS(err.what, "1024");
}

RP_TEST(fragments_and_giant_moovs_are_refused)
{
    static struct bytes b;
    struct rp_byte_range moov;
    int reads;
    b.len = 0;
    put_box(&b, "ftyp", 16);
    put_box(&b, "moof", 8);
    put_box(&b, "moov", 8);
    CHECK_STATUS(search(&b, (int64_t)b.len, &moov, &reads), RP_E_UNSUPPORTED, &err);
    CHECK_CONTAINS(err.what, "moof");
    b.len = 0;
    put32(&b, (64 << 20) + 1);
    put(&b, "moov", 4);
    put_zeros(&b, 5000);
    CHECK_STATUS(search(&b, 1 << 30, &moov, &reads), RP_E_UNSUPPORTED, &err);
    CHECK_CONTAINS(err.what, "67108865 bytes, the limit is 67108864");
}
