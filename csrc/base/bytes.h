/* Numbers as bytes, of either byte order, at any address. Each function: thread any, never blocks,
 * no errors; the caller has seen to it that the bytes are there. */
#ifndef RP_BASE_BYTES_H
#define RP_BASE_BYTES_H

#include <stdint.h>

static inline uint32_t rp_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t rp_le64(const uint8_t *p)
{
    return (uint64_t)rp_le32(p) | (uint64_t)rp_le32(p + 4) << 32;
}

static inline uint32_t rp_be16(const uint8_t *p)
{
    return (uint32_t)p[0] << 8 | p[1];
}

static inline uint32_t rp_be32(const uint8_t *p)
{
    return rp_be16(p) << 16 | rp_be16(p + 2);
}

static inline uint64_t rp_be64(const uint8_t *p)
{
    return (uint64_t)rp_be32(p) << 32 | rp_be32(p + 4);
}

static inline void rp_put_le32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(value >> 8 * i);
    }
}

static inline void rp_put_le64(uint8_t *p, uint64_t value)
{
    rp_put_le32(p, (uint32_t)value);
    rp_put_le32(p + 4, (uint32_t)(value >> 32));
}

static inline void rp_put_be32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

static inline void rp_put_be64(uint8_t *p, uint64_t value)
{
    rp_put_be32(p, (uint32_t)(value >> 32));
    rp_put_be32(p + 4, (uint32_t)value);
}

#endif
