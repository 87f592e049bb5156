/* What a loader has done so far: counts, bytes and nanoseconds per stage. Every field is written
 * and read with relaxed atomics; a reader may see one stage a moment ahead of another. */
#ifndef RP_BASE_COUNTERS_H
#define RP_BASE_COUNTERS_H

#include <stdint.h>

struct rp_counters {
    int64_t samples;     /* handed over */
    int64_t batches;     /* handed over */
    int64_t delivered;   /* pictures written into batches */
    int64_t decoded;     /* pictures that left a decoder */
    int64_t preroll;     /* of those: wanted by nobody */
    int64_t cache_hits;  /* pictures served from the frame cache */
    int64_t parked;      /* pictures that waited for a later batch */
    int64_t redecoded;   /* decoded again, since the memory for them was not there */
    int64_t substituted; /* samples replaced since they could not be read */
    int64_t runs;        /* decode runs (one start key each) */
    int64_t indexed;     /* files whose MP4 index was built */
    int64_t checked;     /* packets that agreed with their check sums */
    int64_t sums_stale;  /* files whose check sums are damaged or of another version */
    int64_t bytes_read;
    int64_t read_ns;    /* summed over threads */
    int64_t decode_ns;  /* likewise */
    int64_t convert_ns; /* likewise */
    int64_t plan_ns;    /* likewise */
    int64_t wait_ns;    /* callers waiting for a batch */
    int64_t fetches;    /* reads of the fetchers, which are ranges or come from the node cache */
    int64_t foreseen;   /* looks at what the stream to come begins with */
    int64_t fetch_ns;   /* their time, summed over threads */
    int64_t starve_ns;  /* callers waiting while nothing could be decoded for want of bytes */
};

static inline void rp_count(int64_t *field, int64_t n)
{
    __atomic_add_fetch(field, n, __ATOMIC_RELAXED);
}

static inline int64_t rp_counted(const int64_t *field)
{
    return __atomic_load_n(field, __ATOMIC_RELAXED);
}

#endif
