/* The counter hash: published and golden words, and exact scaling. */
#include "harness.h"

#include "base/rng.h"

RP_TEST(golden_words)
{
    (void)CHECK(rp_hash64(0, 0, 0, 0) == 0xe169c58d6627e8d5u);
    (void)CHECK(rp_hash64(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX) == 0x41c83b0e408f276du);
    (void)CHECK(rp_hash64(42, 3, RP_TAG_FRAME, 1000) == 0x44f3868f47d958e1u);
}

RP_TEST(every_input_bit_matters)
{
    uint64_t plain = rp_hash64(1, 2, 3, 4);
    for (int bit = 0; bit < 64; bit++) {
        uint64_t one = (uint64_t)1 << bit;
        (void)CHECK(rp_hash64(1 ^ one, 2, 3, 4) != plain);
        (void)CHECK(rp_hash64(1, 2, 3, 4 ^ one) != plain);
        if (bit < 32) {
            (void)CHECK(rp_hash64(1, 2 ^ (uint32_t)one, 3, 4) != plain);
            (void)CHECK(rp_hash64(1, 2, 3 ^ (uint32_t)one, 4) != plain);
        }
    }
}

RP_TEST(scaling_is_exact)
{
    static const uint32_t factors[] = {0, 1, 2, 3, 1000, 0x7ffffffe, 0x7fffffff};
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t x = i < 4 ? UINT64_MAX - i : rp_hash64(9, 0, 0, i) >> (i % 40);
        for (size_t f = 0; f < sizeof(factors) / sizeof(factors[0]); f++) {
            unsigned __int128 exact = (unsigned __int128)x * factors[f] >> 32;
            (void)CHECK(rp_scaled(x, factors[f]) == (uint64_t)exact);
        }
    }
}
