/* SHA-256 (FIPS 180-4) and HMAC over it (FIPS 198-1): signatures and names of cache files. */
#ifndef RP_BASE_SHA256_H
#define RP_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define RP_SHA256_BYTES 32
#define RP_SHA256_HEX   65 /* with its terminator */

struct rp_sha256 {
    uint32_t state[8];
    uint64_t len; /* bytes taken */
    uint8_t block[64];
};

/* Begin, take bytes, end: the sum is in out[RP_SHA256_BYTES], and *sum is wiped. Owner: all is the
 * caller's. Thread: one per object. Blocks: never. Cost: about 5 ns per byte. Errors: none. */
void rp_sha256_begin(struct rp_sha256 *sum);
void rp_sha256_add(struct rp_sha256 *sum, const void *data, size_t len);
void rp_sha256_end(struct rp_sha256 *sum, uint8_t *out);

/* out = HMAC-SHA-256 of data under key; out may be key. Thread: any. Blocks: never. */
void rp_hmac_sha256(const void *key, size_t key_len, const void *data, size_t len, uint8_t *out);

/* Lower-case hexadecimal digits of a sum, with terminator, in out[RP_SHA256_HEX]. Thread: any.
 * Blocks: never. */
void rp_sha256_hex(const uint8_t *sum, char *out);

#endif
