/* CRC-32C: published values (RFC 3720), both ways alike, sums continued anywhere. */
#include "harness.h"

#include "base/crc32c.h"

RP_TEST(published_sums)
{
    uint8_t bytes[32];
    (void)CHECK_EQ(rp_crc32c(0, "123456789", 9), 0xe3069283u);
    memset(bytes, 0, sizeof(bytes));
    (void)CHECK_EQ(rp_crc32c(0, bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof(bytes));
    (void)CHECK_EQ(rp_crc32c(0, bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (uint8_t)i;
    }
    (void)CHECK_EQ(rp_crc32c(0, bytes, 32), 0x46dd794eu);
    (void)CHECK_EQ(rp_crc32c_c(0, bytes, 32), 0x46dd794eu);
    (void)CHECK_EQ(rp_crc32c(7, bytes, 0), 7);
}

RP_TEST(both_ways_agree_at_every_length_and_place)
{
    uint8_t bytes[3300]; /* two rounds of three lanes of 512, and more */
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(x >> 24);
    }
    for (size_t at = 0; at < 9; at++) {
        for (size_t len = 0; at + len <= sizeof(bytes); len += len < 300 ? 1 : 53) {
            uint32_t sum = rp_crc32c_c(0, bytes + at, len);
            (void)CHECK_EQ(rp_crc32c(0, bytes + at, len), sum);
            uint32_t part = rp_crc32c(0, bytes + at, len / 3);
            (void)CHECK_EQ(rp_crc32c(part, bytes + at + len / 3, len - len / 3), sum);
        }
    }
}

RP_TEST(every_bit_matters)
{
    uint8_t bytes[64] = {0};
    uint32_t plain = rp_crc32c(0, bytes, sizeof(bytes));
    for (size_t bit = 0; bit < 8 * sizeof(bytes); bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        (void)CHECK(rp_crc32c(0, bytes, sizeof(bytes)) != plain);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}
