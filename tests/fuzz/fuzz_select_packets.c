/* 16 bytes of questions, then a moov box: every answer is compared with a plain search. */
#include "base/memory.h"
#include "demux/demux.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_SIZE (1 << 22)
#define MAX_PLAIN 5000 /* samples that a plain search may take */

#define PROMISE(condition)  \
    do {                    \
        if (!(condition)) { \
            abort();        \
        }                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct rp_sample sample_at(const rp_index *index, int64_t i)
{
    struct rp_sample sample;
    rp_index_sample(index, i, &sample);
    return sample;
}

static void check_find(const rp_index *index, double t, double tolerance)
{
    struct rp_error err;
    rp_error_clear(&err);
    int64_t got = -1;
    double nearest = 0;
    rp_status status = rp_index_find(index, t, tolerance, &got, &nearest, &err);
    double best = INFINITY;
    int same = 0; /* pictures with the nearest one's time */
    for (int64_t i = 0; i < rp_index_samples(index) && isfinite(t); i++) {
        struct rp_sample s = sample_at(index, i);
        double shown = (double)s.pts / rp_index_timescale(index);
        if (s.addressable) {
            best = fabs(t - shown) < best ? fabs(t - shown) : best;
            same += shown == nearest;
        }
    }
    PROMISE(isinf(best) ? isnan(nearest) : fabs(t - nearest) == best);
    bool within = best <= tolerance || fabsf((float)t - (float)nearest) <= (float)tolerance;
    if (status == RP_OK) {
        struct rp_sample s = sample_at(index, got);
        PROMISE(within && s.addressable && same >= 1);
        PROMISE((double)s.pts / rp_index_timescale(index) == nearest);
        PROMISE(s.offset + s.size <= FILE_SIZE);
        return;
    }
    PROMISE(got == -1 && err.code == status);
    PROMISE(status == RP_E_TIMESTAMP || status == RP_E_FORMAT);
    PROMISE(status == RP_E_FORMAT ? within : !within || same > 1);
}

static void check_start_key(const rp_index *index, int64_t wanted)
{
    struct rp_error err;
    rp_error_clear(&err);
    int64_t got = -1, best = -1;
    rp_status status = rp_index_start_key(index, wanted, &got, &err);
    struct rp_sample target = sample_at(index, wanted);
    int64_t best_pts = INT64_MIN;
    for (int64_t i = 0; i <= wanted; i++) {
        struct rp_sample s = sample_at(index, i);
        if (s.key && s.pts <= target.pts && s.pts >= best_pts) {
            best_pts = s.pts > best_pts ? s.pts : best_pts;
            best = i;
        }
    }
    if (status == RP_OK) {
        struct rp_sample key = sample_at(index, got);
        PROMISE(key.key && key.pts == best_pts && got <= best && wanted - got < 4096);
        return;
    }
    PROMISE(got == -1 && err.code == status);
    PROMISE(status == RP_E_FORMAT ? best == -1 : status == RP_E_UNSUPPORTED && best >= 0);
}

static void check_range(const rp_index *index, int64_t first, int64_t last)
{
    while (first <= last) {
        struct rp_error err;
        rp_error_clear(&err);
        int64_t covered = -1;
        struct rp_byte_range range = {-1, -1};
        rp_status status = rp_index_range(index, first, last, &covered, &range, &err);
        if (status != RP_OK) {
            PROMISE(status == RP_E_FORMAT && covered == -1);
            return;
        }
        PROMISE(covered >= first && covered <= last && range.offset >= 0 && range.len > 0);
        PROMISE(range.offset + range.len <= FILE_SIZE);
        int64_t at = range.offset;
        for (int64_t i = first; i <= covered; i++) {
            struct rp_sample s = sample_at(index, i);
            PROMISE(s.offset >= at && s.offset - at <= 64 << 10);
            at = s.offset + s.size;
        }
        PROMISE(at == range.offset + range.len);
        first = covered + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 16) {
        return 0;
    }
    rp_index *index = NULL;
    if (rp_index_parse(data + 16, size - 16, FILE_SIZE, &index, NULL) != RP_OK) {
        return 0;
    }
    int64_t n = rp_index_samples(index);
    if (n <= MAX_PLAIN) {
        double t;
        uint32_t a, b;
        memcpy(&t, data, sizeof(t));
        memcpy(&a, data + 8, sizeof(a));
        memcpy(&b, data + 12, sizeof(b));
        double tolerance = a % 4 == 0 ? 1e-4 : (double)(a % 1000) / 100;
        check_find(index, t, tolerance);
        for (int k = 0; k < 4; k++) { /* times that pictures have, almost, and between them */
            struct rp_sample s = sample_at(index, (a + (uint32_t)k * b) % n);
            struct rp_sample next = sample_at(index, ((a + (uint32_t)k * b) % n + 1) % n);
            double shown = (double)s.pts / rp_index_timescale(index);
            check_find(index, shown, 0);
            check_find(index, shown + ((double)b / 1e14 - 2e-5), 1e-5);
            check_find(index, (double)(s.pts + next.pts) / 2 / rp_index_timescale(index), 1);
            check_start_key(index, (a + (uint32_t)k * b) % n);
        }
        int64_t first = a % n, last = b % n;
        check_range(index, first < last ? first : last, first < last ? last : first);
    }
    rp_index_free(&index);
    return 0;
}
