/* Thrift's compact protocol: what is written is read, any other bytes end with the mark. */
#include "parquet/thrift.h"

#include "harness.h"

#define BYTES(...) (const uint8_t[]){__VA_ARGS__}, sizeof((const uint8_t[]){__VA_ARGS__})

enum { DEPTH = 16 }; /* values in values that are passed over */

static struct rp_thrift_in reader(const uint8_t *data, size_t len)
{
    return (struct rp_thrift_in){data, data + len, false};
}

static void bytes_of(struct rp_thrift_out *out, const uint8_t *data, size_t len)
{
    rp_thrift_put_bytes(out, data, len);
}

/* A struct with a field of every type, 40 bytes and more in each kind that holds others. */
static struct rp_thrift_out some_struct(void)
{
    struct rp_thrift_out out = {0};
    int last = 0;
    rp_thrift_put_field(&out, RP_THRIFT_TRUE, 1, &last);
    rp_thrift_put_field(&out, RP_THRIFT_FALSE, 2, &last);
    rp_thrift_put_field(&out, RP_THRIFT_BYTE, 3, &last);
    bytes_of(&out, BYTES(0xfe));
    rp_thrift_put_field(&out, RP_THRIFT_I16, 4, &last);
    rp_thrift_put_number(&out, INT16_MIN);
    rp_thrift_put_field(&out, RP_THRIFT_I32, 5, &last);
    rp_thrift_put_number(&out, INT32_MAX);
    rp_thrift_put_field(&out, RP_THRIFT_I64, 6, &last);
    rp_thrift_put_number(&out, INT64_MIN);
    rp_thrift_put_field(&out, RP_THRIFT_DOUBLE, 7, &last);
    bytes_of(&out, BYTES(1, 2, 3, 4, 5, 6, 7, 8));
    rp_thrift_put_field(&out, RP_THRIFT_BINARY, 8, &last);
    bytes_of(&out, BYTES(3, 'a', 'b', 'c'));
    rp_thrift_put_field(&out, RP_THRIFT_UUID, 9, &last);
    bytes_of(&out, BYTES(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    rp_thrift_put_field(&out, RP_THRIFT_LIST, 30, &last); /* of 20 numbers, in the long form */
    rp_thrift_put_list(&out, RP_THRIFT_I64, 20);
    for (int i = 0; i < 20; i++) {
        rp_thrift_put_number(&out, -i * 1000LL);
    }
    rp_thrift_put_field(&out, RP_THRIFT_SET, 31, &last); /* of 3 truths, a byte each */
    bytes_of(&out, BYTES(0x31, 1, 2, 1));
    rp_thrift_put_field(&out, RP_THRIFT_LIST, 32, &last); /* of 2 structs with truths */
    bytes_of(&out, BYTES(0x2c, 0x11, 0x15, 8, 0, 0));
    rp_thrift_put_field(&out, RP_THRIFT_MAP, 33, &last); /* text -> number, twice */
    bytes_of(&out, BYTES(2, 0x86, 1, 'k', 9, 2, 'k', 'l', 0x80, 1));
    rp_thrift_put_field(&out, RP_THRIFT_MAP, 34, &last); /* empty: it says no types */
    bytes_of(&out, BYTES(0));
    rp_thrift_put_field(&out, RP_THRIFT_MAP, 35, &last); /* truth -> list of bytes */
    bytes_of(&out, BYTES(1, 0x19, 2, 0x23, 7, 7));
    rp_thrift_put_field(&out, RP_THRIFT_STRUCT, 29, &last); /* ids may fall */
    rp_thrift_put_stop(&out);
    rp_thrift_put_field(&out, RP_THRIFT_I32, INT16_MAX, &last);
    rp_thrift_put_number(&out, 0);
    rp_thrift_put_stop(&out);
    return out;
}

RP_TEST(every_type_is_passed_over)
{
    static const int ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 30, 31, 32, 33, 34, 35, 29, INT16_MAX};
    enum { FIELDS = sizeof(ids) / sizeof(ids[0]) };
    struct rp_thrift_out out = some_struct();
    REQUIRE(!out.failed);
    struct rp_thrift_in in = reader(out.data, out.len);
    struct rp_thrift_field field = {0};
    for (int i = 0; i < FIELDS; i++) {
        REQUIRE(rp_thrift_next(&in, &field));
        (void)CHECK_EQ(field.id, ids[i]);
        (void)CHECK(field.value == in.at);
        rp_thrift_skip(&in, field.type, false);
        REQUIRE(!in.bad);
    }
    (void)CHECK(!rp_thrift_next(&in, &field));
    (void)CHECK(!in.bad && in.at == in.end);
    in = reader(out.data, out.len);
    rp_thrift_skip(&in, RP_THRIFT_STRUCT, true); /* the whole of it */
    (void)CHECK(!in.bad && in.at == in.end);
    rp_free(out.data);
}

/* In memory of exactly that length, for ASan. */
RP_TEST(cut_at_any_length_is_refused)
{
    struct rp_thrift_out out = some_struct();
    for (size_t len = 0; len < out.len; len++) {
        uint8_t *cut = malloc(len + 1);
        REQUIRE(cut != NULL);
        memcpy(cut + 1, out.data, len);
        struct rp_thrift_in in = reader(cut + 1, len);
        rp_thrift_skip(&in, RP_THRIFT_STRUCT, false);
        (void)CHECK(in.bad && in.at == in.end);
        free(cut);
    }
    rp_free(out.data);
}

RP_TEST(numbers_are_read_as_written)
{
    static const int64_t some[] = {0,         1,         -1,           63,           64,
                                   -64,       -65,       8191,         8192,         INT16_MIN,
                                   INT16_MAX, INT32_MIN, INT32_MAX,    -(1LL << 62), 1LL << 62,
                                   INT64_MAX, INT64_MIN, INT64_MIN + 1};
    struct rp_thrift_out out = {0};
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        rp_thrift_put_number(&out, some[i]);
    }
    REQUIRE(!out.failed);
    struct rp_thrift_in in = reader(out.data, out.len);
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        (void)CHECK_EQ(rp_thrift_number(&in), some[i]);
    }
    (void)CHECK(!in.bad && in.at == in.end);
    rp_free(out.data);
    struct rp_thrift_out minus = {0};
    rp_thrift_put_number(&minus, -2);
    REQUIRE_EQ(minus.len, 1);
    (void)CHECK_EQ(minus.data[0], 3); /* as the protocol says, not as read here */
    rp_free(minus.data);
}

RP_TEST(numbers_beyond_64_bits_are_refused)
{
    struct rp_thrift_in in = reader(BYTES(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1));
    (void)CHECK_EQ(rp_thrift_number(&in), INT64_MIN); /* the largest of 64 bits */
    (void)CHECK(!in.bad && in.at == in.end);
    in = reader(BYTES(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2));
    (void)CHECK_EQ(rp_thrift_number(&in), 0);
    (void)CHECK(in.bad);
    in = reader(BYTES(0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0));
    (void)CHECK_EQ(rp_thrift_number(&in), 0); /* eleven bytes */
    (void)CHECK(in.bad);
    in = reader(BYTES(0x80));
    (void)CHECK_EQ(rp_thrift_number(&in), 0); /* no end */
    (void)CHECK(in.bad);
}

RP_TEST(fields_have_ids_from_1_to_32767)
{
    static const struct {
        uint8_t bytes[4];
        int before, id; /* 0: refused */
    } some[] = {
        {{0x15}, 0, 1},
        {{0xf5}, 0, 15},
        {{0x05, 0x20}, 0, 16},                    /* the long form */
        {{0x05, 0x06}, 9, 3},                     /* back */
        {{0x05, 0xfe, 0xff, 0x03}, 1, INT16_MAX}, /* the last one */
        {{0x05, 0x80, 0x80, 0x04}, 1, 0},         /* 32768 */
        {{0x15}, INT16_MAX, 0},                   /* the same by a step */
        {{0x05, 0x00}, 1, 0},                     /* none */
        {{0x05, 0x01}, 5, 0},                     /* -1 */
        {{0x10}, 0, 0},                           /* a STOP with an id */
        {{0x05, 0xff, 0xff, 0xff}, 0, 0},         /* cut */
    };
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        struct rp_thrift_in in = reader(some[i].bytes, sizeof(some[i].bytes));
        struct rp_thrift_field field = {.id = some[i].before};
        bool there = rp_thrift_next(&in, &field);
        if (!CHECK_EQ(there, some[i].id != 0) || !CHECK_EQ(in.bad, some[i].id == 0)) {
            fprintf(stderr, "of case %zu\n", i);
        }
        (void)CHECK(!there || field.id == some[i].id);
        (void)CHECK(!there || field.type == RP_THRIFT_I32);
    }
    struct rp_thrift_out out = {0};
    static const int ids[] = {15, 31, 30, 30, 300, 301, INT16_MAX, 1};
    int last = 0;
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        rp_thrift_put_field(&out, RP_THRIFT_TRUE, ids[i], &last);
        (void)CHECK_EQ(last, ids[i]);
    }
    rp_thrift_put_stop(&out);
    struct rp_thrift_in in = reader(out.data, out.len);
    struct rp_thrift_field field = {0};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        REQUIRE(rp_thrift_next(&in, &field));
        (void)CHECK_EQ(field.id, ids[i]);
    }
    (void)CHECK(!rp_thrift_next(&in, &field) && !in.bad && in.at == in.end);
    rp_free(out.data);
}

/* `depth` values in each other: structs, or lists of lists. */
static size_t nested(uint8_t *to, int depth, bool lists)
{
    size_t n = 0;
    for (int i = 1; i < depth; i++) {
        to[n++] = lists ? 0x19 : 0x1c;
    }
    to[n++] = lists ? 0x03 : 0; /* the innermost is empty */
    for (int i = 1; i < depth && !lists; i++) {
        to[n++] = 0;
    }
    return n;
}

RP_TEST(nesting_ends_somewhere)
{
    uint8_t bytes[4 * DEPTH];
    for (int depth = 1; depth <= DEPTH + 3; depth++) {
        for (int lists = 0; lists < 2; lists++) {
            size_t len = nested(bytes, depth, lists != 0);
            struct rp_thrift_in in = reader(bytes, len);
            rp_thrift_skip(&in, lists != 0 ? RP_THRIFT_LIST : RP_THRIFT_STRUCT, true);
            (void)CHECK_EQ(in.bad, depth > DEPTH);
            (void)CHECK(in.at == in.end);
        }
    }
    static uint8_t many[1 << 20];
    memset(many, 0x1c, sizeof(many));
    struct rp_thrift_in in = reader(many, sizeof(many));
    rp_thrift_skip(&in, RP_THRIFT_STRUCT, false);
    (void)CHECK(in.bad);
}

RP_TEST(lists_hold_no_more_than_there_are_bytes)
{
    for (size_t n = 13; n < 18; n++) {
        struct rp_thrift_out out = {0};
        rp_thrift_put_list(&out, RP_THRIFT_BYTE, n);
        size_t head = out.len;
        (void)CHECK_EQ(head, n < 15 ? 1 : 2);
        for (size_t i = 0; i < n; i++) {
            rp_thrift_put_bytes(&out, BYTES(9));
        }
        enum rp_thrift_type element = RP_THRIFT_STOP;
        struct rp_thrift_in in = reader(out.data, out.len);
        (void)CHECK_EQ(rp_thrift_list(&in, &element), n);
        (void)CHECK_EQ(element, RP_THRIFT_BYTE);
        (void)CHECK(!in.bad && in.at == out.data + head);
        in = reader(out.data, out.len - 1); /* one is missing */
        (void)CHECK_EQ(rp_thrift_list(&in, &element), 0);
        (void)CHECK(in.bad);
        rp_free(out.data);
    }
    enum rp_thrift_type element;
    struct rp_thrift_in in =
        reader(BYTES(0xf3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 7, 7));
    (void)CHECK_EQ(rp_thrift_list(&in, &element), 0); /* 2^64 - 1 of them */
    (void)CHECK(in.bad);
    /* maps: 2^63 pairs, twice which is 0; and more than there are */
    in = reader(BYTES(0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1, 0x33, 7, 7));
    rp_thrift_skip(&in, RP_THRIFT_MAP, false);
    (void)CHECK(in.bad);
    in = reader(BYTES(3, 0x33, 7, 7, 7, 7));
    rp_thrift_skip(&in, RP_THRIFT_MAP, false);
    (void)CHECK(in.bad);
}

RP_TEST(types_that_there_are_not_are_refused)
{
    for (int type = 0; type < 16; type++) {
        static const uint8_t zeros[32];
        struct rp_thrift_in in = reader(zeros, sizeof(zeros));
        rp_thrift_skip(&in, (enum rp_thrift_type)type, true);
        (void)CHECK_EQ(in.bad, type == RP_THRIFT_STOP || type > RP_THRIFT_UUID);
        uint8_t list[] = {
            (uint8_t)(0x10 | type), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        in = reader(list, sizeof(list));
        rp_thrift_skip(&in, RP_THRIFT_LIST, false);
        (void)CHECK_EQ(in.bad, type == RP_THRIFT_STOP || type > RP_THRIFT_UUID);
    }
}

RP_TEST(binary_values_are_lent)
{
    struct rp_thrift_in in = reader(BYTES(2, 'h', 'i', 0, 1));
    size_t len = 99;
    const uint8_t *text = rp_thrift_binary(&in, &len);
    (void)CHECK_EQ(len, 2);
    (void)CHECK_MEM(text, "hi", 2);
    (void)rp_thrift_binary(&in, &len);
    (void)CHECK(len == 0 && !in.bad);
    (void)rp_thrift_binary(&in, &len); /* of one byte, which is not there */
    (void)CHECK(len == 0 && in.bad && in.at == in.end);
    (void)CHECK_EQ(rp_thrift_number(&in), 0); /* nothing can be read any more */
    struct rp_thrift_field field = {0};
    (void)CHECK(!rp_thrift_next(&in, &field));
}

static void write_much(void *unused)
{
    (void)unused;
    struct rp_thrift_out out = {0};
    static const uint8_t block[1000];
    for (int i = 0; i < 100; i++) {
        rp_thrift_put_bytes(&out, block, sizeof(block));
        rp_thrift_put_number(&out, i);
        (void)CHECK(out.len <= out.cap);
    }
    size_t len = out.len; /* numbers up to 63 take one byte, the others two */
    (void)CHECK(out.failed ? len < 100136 : len == 100136);
    rp_thrift_put_stop(&out);
    (void)CHECK_EQ(out.len - len, out.failed ? 0 : 1); /* nothing more after a failure */
    rp_free(out.data);
}

RP_TEST(without_memory_nothing_more_is_written)
{
    int runs = rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, write_much, NULL);
    (void)CHECK(runs > 3);
}
