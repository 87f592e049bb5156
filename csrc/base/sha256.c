#include "base/sha256.h"

#include "base/bytes.h"

#include <string.h>

static const uint32_t rounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void mix(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        w[i] = rp_be32(block + 4 * i);
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof(s));
    for (int i = 0; i < 64; i++) {
        uint32_t e = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25);
        uint32_t a = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22);
        uint32_t t = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + rounds[i] + w[i];
        uint32_t u = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof(s[0]));
        s[4] += t;
        s[0] = t + u;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += s[i];
    }
    explicit_bzero(w, sizeof(w)); /* a key may be in it */
    explicit_bzero(s, sizeof(s));
}

void rp_sha256_begin(struct rp_sha256 *sum)
{
    *sum = (struct rp_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                        0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void rp_sha256_add(struct rp_sha256 *sum, const void *data, size_t len)
{
    const uint8_t *at = data;
    while (len > 0) {
        size_t used = sum->len % 64, n = 64 - used < len ? 64 - used : len;
        memcpy(sum->block + used, at, n);
        sum->len += n;
        at += n;
        len -= n;
        if (sum->len % 64 == 0) {
            mix(sum->state, sum->block);
        }
    }
}

void rp_sha256_end(struct rp_sha256 *sum, uint8_t *out)
{
    static const uint8_t pad[64] = {0x80};
    uint8_t length[8];
    rp_put_be64(length, sum->len * 8);
    rp_sha256_add(sum, pad, 1 + (119 - sum->len % 64) % 64);
    rp_sha256_add(sum, length, sizeof(length));
    for (int i = 0; i < 8; i++) {
        rp_put_be32(out + 4 * i, sum->state[i]);
    }
    explicit_bzero(sum, sizeof(*sum));
}

void rp_hmac_sha256(const void *key, size_t key_len, const void *data, size_t len, uint8_t *out)
{
    uint8_t inner[64] = {0}, outer[64], middle[RP_SHA256_BYTES];
    struct rp_sha256 sum;
    if (key_len > sizeof(inner)) {
        rp_sha256_begin(&sum);
        rp_sha256_add(&sum, key, key_len);
        rp_sha256_end(&sum, inner);
    }
    else if (key_len > 0) {
        memcpy(inner, key, key_len);
    }
    for (size_t i = 0; i < sizeof(inner); i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    rp_sha256_begin(&sum);
    rp_sha256_add(&sum, inner, sizeof(inner));
    rp_sha256_add(&sum, data, len);
    rp_sha256_end(&sum, middle);
    rp_sha256_begin(&sum);
    rp_sha256_add(&sum, outer, sizeof(outer));
    rp_sha256_add(&sum, middle, sizeof(middle));
    rp_sha256_end(&sum, out);
    explicit_bzero(inner, sizeof(inner));
    explicit_bzero(outer, sizeof(outer));
    explicit_bzero(middle, sizeof(middle));
}

void rp_sha256_hex(const uint8_t *sum, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < RP_SHA256_BYTES; i++) {
        out[2 * i] = digits[sum[i] >> 4];
        out[2 * i + 1] = digits[sum[i] & 15];
    }
    out[2 * RP_SHA256_BYTES] = '\0';
}
