/* For the loader's tests: whether a loader that nobody uses has come to rest. Included once per
 * program. */
#ifndef RP_TESTS_LOADER_REST_H
#define RP_TESTS_LOADER_REST_H

#include "harness.h"
#include "pool/work_priv.h"

#include <time.h>

static RP_UNUSED void pause_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

/* The stream, too: what nobody pulled from its feed yet, a worker may begin any time. */
static bool at_rest(const rp_loader *loader)
{
    const struct batch *b = loader->batches;
    while (b != NULL && b->state == BATCH_FREE) {
        b = b->next;
    }
    return b == NULL && loader->busy == 0 && loader->indexes.queue_len == 0 &&
           (!loader->stream_on || loader->feed_ended);
}

/* Once nothing is asked for, everything comes to rest, and the books are even. */
static RP_UNUSED void check_rest(rp_loader *loader)
{
    rp_lock_acquire(&loader->lock);
    bool rests = at_rest(loader);
    for (int i = 0; i < 100000 && !rests; i++) { /* a disk may keep a thread's code for so long */
        if (!rp_loader_help_locked(loader)) {
            rp_lock_release(&loader->lock);
            pause_ms(1);
            rp_lock_acquire(&loader->lock);
        }
        rests = at_rest(loader);
    }
    for (const struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state != BATCH_FREE) {
            rp_fail_at(__FILE__, __LINE__, "a batch stays in state %d, %d pending", (int)b->state,
                       (int)b->pending);
        }
    }
    (void)CHECK(rests);
    (void)CHECK_EQ(loader->heap_len, 0);
    (void)CHECK_EQ(loader->runs_due, 0);
    (void)CHECK_EQ(loader->park.n, 0);
    (void)CHECK_EQ(loader->park.bytes, 0);
    (void)CHECK_EQ(loader->stream_in_flight, 0);
    (void)CHECK_EQ(loader->stream_due, 0);
    (void)CHECK(!loader->pulling);
    for (int i = 0; i < loader->desc->n_files; i++) {
        (void)CHECK_EQ(loader->indexes.entry[i].pins, 0);
        (void)CHECK(loader->indexes.entry[i].state != INDEX_FAILED);
    }
    rp_lock_release(&loader->lock);
}

#endif
