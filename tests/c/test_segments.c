/* Which waiting segments are fetched with one request. */
#include "harness.h"

#include "pool/work_priv.h"

enum { N = 200, LENGTH = 10000 };

static struct segment segment[N];

/* Segment i waits, needed by batch `need`. */
static void wait_for(struct segment_table *table, int i, int64_t offset, uint64_t need)
{
    struct segment *s = &segment[i];
    *s = (struct segment){.extent = {.offset = offset, .len = LENGTH}, .need = need};
    s->before = table->waiting.last;
    *(s->before != NULL ? &s->before->after : &table->waiting.first) = s;
    table->waiting.last = s;
    table->n_waiting++;
}

static rp_loader *new_loader(void)
{
    rp_loader *loader = rp_calloc(1, sizeof(*loader));
    REQUIRE(loader != NULL);
    loader->segments.cap = 1 << 30;
    loader->counters.batches = 1;
    return loader;
}

static int length_of(const struct segment *group)
{
    int n = 0;
    for (; group != NULL; group = group->group) {
        n++;
    }
    return n;
}

RP_TEST(neighbours_are_one_request_whatever_their_order)
{
    static const int steps[] = {1, 3, 77, 199}; /* no divisors of N */
    for (int k = 0; k < 4; k++) {
        rp_loader *loader = new_loader();
        for (int i = 0; i < N; i++) {
            int place = i * steps[k] % N;
            wait_for(&loader->segments, i, (int64_t)place * LENGTH, 1 + (uint64_t)(i % 7));
        }
        (void)CHECK_EQ(length_of(rp_segments_pick_locked(loader)), N);
        (void)CHECK_EQ(loader->segments.n_waiting, 0);
        (void)CHECK_EQ(loader->segments.bytes, N * LENGTH);
        rp_free(loader);
    }
}

RP_TEST(what_lies_in_a_gap_comes_with_it)
{
    rp_loader *loader = new_loader();
    for (int i = 0; i < 50; i++) {
        wait_for(&loader->segments, i, (int64_t)i * LENGTH, 1);
    }
    wait_for(&loader->segments, 50, 52 * LENGTH, 1); /* a gap of 4 %, joined before ... */
    wait_for(&loader->segments, 51, 50 * LENGTH + 5000, 2);
    wait_for(&loader->segments, 52, 60 * LENGTH, 1); /* too far */
    (void)CHECK_EQ(length_of(rp_segments_pick_locked(loader)), 52);
    (void)CHECK(segment[52].state == SEGMENT_WAITING);
    rp_free(loader);
}
