/* Queries on an index: samples, time -> picture, picture -> packets and bytes. */
#include "demux/mp4_priv.h"

#include <assert.h>
#include <math.h>

#define MAX_GAP   (64 << 10)   /* bytes between samples that one read swallows */
#define MAX_RANGE (64LL << 20) /* bytes of one read */

int64_t rp_index_decode_time(const rp_index *index, uint32_t i, uint32_t *delta)
{
    uint32_t low = index->block[i / 64].run;
    uint32_t high = i / 64 + 1 < index->blocks ? index->block[i / 64 + 1].run : index->runs - 1;
    while (low < high) { /* the last run that starts at or before i */
        uint32_t mid = low + (high - low + 1) / 2;
        if (index->run[mid].first <= i) {
            low = mid;
        }
        else {
            high = mid - 1;
        }
    }
    const struct rp_time_run *run = &index->run[low];
    if (delta != NULL) {
        *delta = run->delta;
    }
    return run->dts + (int64_t)(i - run->first) * run->delta;
}

int64_t rp_index_pts(const rp_index *index, uint32_t i)
{
    return rp_index_decode_time(index, i, NULL) + index->shift +
           (index->ctts != NULL ? index->ctts[i] : 0);
}

static int64_t offset_of(const rp_index *index, uint32_t i)
{
    const struct rp_block *block = &index->block[i / 64];
    uint64_t offset = block->offset;
    uint32_t from = i / 64 * 64;
    uint32_t c = block->chunk;
    while (c + 1 < index->breaks && index->brk[c + 1].first <= i) {
        c++;
    }
    if (c != block->chunk) {
        from = index->brk[c].first;
        offset = (uint64_t)index->brk[c].offset_hi << 32 | index->brk[c].offset_lo;
    }
    for (uint32_t k = from; k < i; k++) {
        offset += index->sizes[k];
    }
    return (int64_t)offset;
}

static bool is_key(const rp_index *index, uint32_t i)
{
    return index->block[i / 64].keys >> (i % 64) & 1;
}

void rp_index_sample(const rp_index *index, int64_t i, struct rp_sample *out)
{
    assert(i >= 0 && i < index->samples);
    uint32_t n = (uint32_t)i;
    int64_t dts = rp_index_decode_time(index, n, NULL);
    int64_t pts = dts + index->shift + (index->ctts != NULL ? index->ctts[n] : 0);
    *out = (struct rp_sample){.offset = offset_of(index, n),
                              .size = index->sizes[n],
                              .key = is_key(index, n),
                              .addressable = pts >= index->shown_from && pts < index->shown_to,
                              .pts = pts,
                              .dts = dts + index->dts_shift};
}

int64_t rp_index_nth(const rp_index *index, int64_t n)
{
    assert(n >= 0 && n < index->addressable);
    return index->shown != NULL ? index->shown[n] : index->first_shown + n;
}

static int64_t nth_pts(const rp_index *index, uint32_t n)
{
    return rp_index_pts(index, (uint32_t)rp_index_nth(index, n));
}

static double seconds(const rp_index *index, int64_t pts)
{
    return (double)pts / index->timescale;
}

/* Rank of the addressable picture nearest to t, the earlier of two; at least one exists. */
static uint32_t nearest_rank(const rp_index *index, double t)
{
    uint32_t low = 0, high = index->addressable;
    while (low < high) { /* first picture at or after t */
        uint32_t mid = low + (high - low) / 2;
        if (seconds(index, nth_pts(index, mid)) < t) {
            low = mid + 1;
        }
        else {
            high = mid;
        }
    }
    if (low == index->addressable) {
        return low - 1;
    }
    if (low == 0) {
        return 0;
    }
    double before = t - seconds(index, nth_pts(index, low - 1));
    double after = seconds(index, nth_pts(index, low)) - t;
    return before <= after ? low - 1 : low;
}

static bool within(double t, double shown, double tolerance)
{
    return fabs(t - shown) <= tolerance ||
           fabsf((float)t - (float)shown) <= (float)tolerance; /* as LeRobot compares */
}

/* Record a failed time query with its coordinates, unless an error stands there already. */
#define TIME_FAIL(err, t, near, ...)                                        \
    do {                                                                    \
        bool fresh_ = (err) != NULL && (err)->code >= 0;                    \
        rp_status code_ = rp_error_set((err), RP_E_TIMESTAMP, __VA_ARGS__); \
        if (fresh_) {                                                       \
            (err)->time = (t);                                              \
            (err)->nearest = (near);                                        \
        }                                                                   \
        return code_;                                                       \
    } while (0)

/* Truncated files keep their index; only the samples that are gone fail. */
static rp_status check_in_file(const rp_index *index, const struct rp_sample *sample, int64_t i,
                               struct rp_error *err)
{
    int64_t end = sample->offset + sample->size;
    if (end <= index->file_size) {
        return RP_OK;
    }
    rp_status code = rp_error_set(err, RP_E_FORMAT,
                                  "truncated: sample %lld ends at byte %lld, the file has %lld",
                                  (long long)i, (long long)end, (long long)index->file_size);
    rp_error_at_file(err, NULL, sample->offset, sample->size);
    return code;
}

rp_status rp_index_find(const rp_index *index, double t, double tolerance, int64_t *sample,
                        double *nearest, struct rp_error *err)
{
    if (nearest != NULL) {
        *nearest = NAN;
    }
    if (!isfinite(t)) {
        TIME_FAIL(err, t, NAN, "time %g is not finite", t);
    }
    if (index->addressable == 0) {
        TIME_FAIL(err, t, NAN, "no picture of the video has a time");
    }
    uint32_t rank = nearest_rank(index, t);
    int64_t pts = nth_pts(index, rank);
    double shown = seconds(index, pts);
    if (nearest != NULL) {
        *nearest = shown;
    }
    if (!within(t, shown, tolerance)) {
        TIME_FAIL(err, t, shown, "no picture within %g s of %.9g s, the nearest is at %.9g s",
                  tolerance, t, shown);
    }
    if ((rank > 0 && nth_pts(index, rank - 1) == pts) ||
        (rank + 1 < index->addressable && nth_pts(index, rank + 1) == pts)) {
        TIME_FAIL(err, t, shown, "two pictures have the time %.9g s (tick %lld)", shown,
                  (long long)pts);
    }
    int64_t i = rp_index_nth(index, rank);
    struct rp_sample found;
    rp_index_sample(index, i, &found);
    RP_TRY(check_in_file(index, &found, i, err));
    *sample = i;
    return RP_OK;
}

/* The last key at or before sample i, or -1. */
static int64_t key_before(const rp_index *index, int64_t i)
{
    int64_t b = i >= 0 ? i / 64 : -1;
    uint64_t mask = i >= 0 ? ~0ull >> (63 - i % 64) : 0;
    for (; b >= 0; b--, mask = ~0ull) {
        uint64_t keys = index->block[b].keys & mask;
        if (keys != 0) {
            return b * 64 + 63 - __builtin_clzll(keys);
        }
    }
    return -1;
}

rp_status rp_index_start_key(const rp_index *index, int64_t sample, int64_t *key,
                             struct rp_error *err)
{
    assert(sample >= 0 && sample < index->samples);
    int64_t wanted = rp_index_pts(index, (uint32_t)sample);
    int64_t best = -1, best_pts = INT64_MIN;
    for (int64_t k = key_before(index, sample); k >= 0; k = key_before(index, k - 1)) {
        int64_t pts = rp_index_pts(index, (uint32_t)k);
        if (pts <= wanted && pts > best_pts) {
            best = k;
            best_pts = pts;
            if (index->keys_ascend) {
                break; /* earlier keys have lower pts */
            }
        }
    }
    if (best < 0) {
        RP_FAIL(err, RP_E_FORMAT, "no key sample comes before sample %lld (tick %lld)",
                (long long)sample, (long long)wanted);
    }
    int64_t packets = sample - best + 1;
    if (packets > RP_MAX_GOP_PACKETS) {
        RP_FAIL(err, RP_E_UNSUPPORTED, "%lld packets from key %lld to sample %lld, the limit is %d",
                (long long)packets, (long long)best, (long long)sample, RP_MAX_GOP_PACKETS);
    }
    if (packets * index->largest > RP_MAX_GOP_BYTES) {
        int64_t bytes = 0;
        for (int64_t i = best; i <= sample; i++) {
            bytes += index->sizes[i];
        }
        if (bytes > RP_MAX_GOP_BYTES) {
            RP_FAIL(err, RP_E_UNSUPPORTED,
                    "%lld bytes from key %lld to sample %lld, the limit is %lld", (long long)bytes,
                    (long long)best, (long long)sample, RP_MAX_GOP_BYTES);
        }
    }
    *key = best;
    return RP_OK;
}

rp_status rp_index_range(const rp_index *index, int64_t first, int64_t last, int64_t *covered,
                         struct rp_byte_range *range, struct rp_error *err)
{
    assert(first >= 0 && first <= last && last < index->samples);
    struct rp_sample sample;
    rp_index_sample(index, first, &sample);
    RP_TRY(check_in_file(index, &sample, first, err));
    int64_t start = sample.offset;
    int64_t end = start + sample.size;
    int64_t i = first;
    while (i < last) {
        rp_index_sample(index, i + 1, &sample);
        RP_TRY(check_in_file(index, &sample, i + 1, err));
        int64_t next_end = sample.offset + sample.size;
        if (sample.offset < end || sample.offset - end > MAX_GAP || next_end - start > MAX_RANGE) {
            break;
        }
        end = next_end;
        i++;
    }
    *covered = i;
    *range = (struct rp_byte_range){.offset = start, .len = end - start};
    return RP_OK;
}
