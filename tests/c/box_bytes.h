/* Writes MP4 boxes into a fixed block of bytes. */
#ifndef RP_TESTS_BOX_BYTES_H
#define RP_TESTS_BOX_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes under construction; boxes nest by begin and end. */
struct bytes {
    uint8_t data[1 << 16];
    size_t len;
};

static inline void put(struct bytes *b, const void *data, size_t len)
{
    memcpy(b->data + b->len, data, len);
    b->len += len;
}

static inline void put_zeros(struct bytes *b, size_t len)
{
    memset(b->data + b->len, 0, len);
    b->len += len;
}

static inline void put32(struct bytes *b, uint32_t v)
{
    uint8_t be[4] = {(uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v};
    put(b, be, 4);
}

static inline void put64(struct bytes *b, uint64_t v)
{
    put32(b, (uint32_t)(v >> 32));
    put32(b, (uint32_t)v);
}

static inline void set32(struct bytes *b, size_t at, uint32_t v)
{
    size_t len = b->len;
    b->len = at;
    put32(b, v);
    b->len = len;
}

static inline size_t begin(struct bytes *b, const char *type)
{
    put32(b, 0);
    put(b, type, 4);
    return b->len - 8;
}

static inline void end(struct bytes *b, size_t at)
{
    set32(b, at, (uint32_t)(b->len - at));
}

/* Position of the payload of the n-th box of a type, searched by its name. */
static inline size_t payload_of(const struct bytes *b, const char *type)
{
    for (size_t i = 4; i + 4 <= b->len; i++) {
        if (memcmp(b->data + i, type, 4) == 0) {
            return i + 4;
        }
    }
    return 0;
}

static inline size_t begin_table(struct bytes *b, const char *type, uint32_t count)
{
    size_t at = begin(b, type);
    put32(b, 0);
    put32(b, count);
    return at;
}

#endif
