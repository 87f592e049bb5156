/* The counter hash of the sample order: Philox4x32-10 (docs/design.md, "Sample order"). */
#ifndef RP_BASE_RNG_H
#define RP_BASE_RNG_H

#include <stdint.h>

enum rp_hash_tag {
    RP_TAG_UNIT = 1,
    RP_TAG_VISIT = 2,
    RP_TAG_FRAME = 3,
    RP_TAG_SAMPLE = 4,
    RP_TAG_SET = 5
};

/* Philox4x32-10 with key = seed and counter = (index low, index high, epoch, tag); words 0 and 1 of
 * the result as one 64-bit number. Thread: any. Blocks: never. Errors: none. */
uint64_t rp_hash64(uint64_t seed, uint32_t epoch, uint32_t tag, uint64_t index);

/* floor(x * m / 2^32) exactly, for m < 2^31. Thread: any. Blocks: never. Errors: none. */
static inline uint64_t rp_scaled(uint64_t x, uint32_t m)
{
    return (x >> 32) * m + (((x & 0xFFFFFFFFu) * m) >> 32);
}

#endif
