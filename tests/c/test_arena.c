/* The arena: reuse by size, the budget of free blocks, notifications, lifetimes, blocks lent to
 * other processes. */
#include "harness.h"

#include "base/arena.h"
#include "base/thread.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static rp_arena *new_arena(size_t keep, bool shared)
{
    rp_arena *arena = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_arena_new(keep, shared, &arena, &err), &err);
    return arena;
}

static rp_block *take(rp_arena *arena, size_t len)
{
    rp_block *block = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_arena_take(arena, len, true, &block, &err), &err);
    (void)CHECK(block->len >= len);
    (void)CHECK_EQ((uintptr_t)block->data % 4096, 0);
    return block;
}

static struct rp_arena_stats stats_of(rp_arena *arena)
{
    struct rp_arena_stats stats;
    rp_arena_stats(arena, &stats);
    return stats;
}

RP_TEST(blocks_are_reused_by_size)
{
    for (int shared = 0; shared < 2; shared++) {
        rp_arena *arena = new_arena(64 * MIB, shared != 0);
        rp_block *small = take(arena, 8000), *large = take(arena, 4 * MIB);
        uint64_t small_id = small->id, large_id = large->id;
        (void)CHECK(small_id != large_id);
        (void)CHECK((small->fd >= 0) == (shared != 0));
        memset(large->data, 7, large->len);
        rp_block_release(&small);
        rp_block_release(&large);
        (void)CHECK(small == NULL);
        rp_block *again = take(arena, 3 * MIB);
        (void)CHECK(again->id == large_id);
        rp_block *tiny = take(arena, 100); /* 8192 is more than twice as large */
        (void)CHECK(tiny->id != small_id && tiny->id != large_id);
        rp_block *fits = take(arena, 5000);
        (void)CHECK(fits->id == small_id);
        (void)CHECK_EQ(stats_of(arena).grown, 3);
        rp_block_release(&again);
        rp_block_release(&tiny);
        rp_block_release(&fits);
        rp_block_release(NULL);
        rp_arena_close(&arena);
        rp_arena_close(&arena);
    }
}

RP_TEST(the_smallest_blocks_are_reused_for_a_few_bytes)
{
    rp_arena *arena = new_arena(8 * MIB, false);
    for (int i = 0; i < 3; i++) {
        rp_block *block = take(arena, 100);
        rp_block_release(&block);
    }
    (void)CHECK_EQ(stats_of(arena).grown, 1);
    rp_arena_close(&arena);
}

RP_TEST(nothing_grows_unless_it_may)
{
    rp_arena *arena = new_arena(MIB, false);
    rp_block *block = NULL;
    (void)CHECK_EQ(rp_arena_take(arena, 1000, false, &block, NULL), RP_AGAIN);
    (void)CHECK(block == NULL);
    (void)CHECK_EQ(stats_of(arena).grown, 0);
    block = take(arena, 0);
    (void)CHECK(block->len > 0);
    rp_block_release(&block);
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_arena_take(arena, SIZE_MAX, true, &block, &err), RP_E_NOMEM, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_arena_take(arena, (size_t)1 << 62, true, &block, &err), RP_E_NOMEM, &err);
    rp_arena_close(&arena);
}

RP_TEST(free_blocks_stay_within_the_budget)
{
    rp_arena *arena = new_arena(2 * MIB, false);
    rp_block *blocks[5];
    for (int i = 0; i < 5; i++) {
        blocks[i] = take(arena, MIB);
    }
    (void)CHECK_EQ(stats_of(arena).bytes, 5 * MIB);
    (void)CHECK_EQ(stats_of(arena).free, 0);
    for (int i = 0; i < 5; i++) {
        rp_block_release(&blocks[i]);
    }
    (void)CHECK_EQ(stats_of(arena).blocks, 2);
    (void)CHECK_EQ(stats_of(arena).bytes, 2 * MIB);
    (void)CHECK_EQ(stats_of(arena).free, 2);
    rp_arena_close(&arena);
}

RP_TEST(an_exact_arena_reuses_one_length_only)
{
    rp_arena *arena = new_arena(8 * MIB, false);
    rp_arena_reuse_exactly(arena);
    rp_block *large = take(arena, 12000);
    uint64_t large_id = large->id;
    rp_block_release(&large);
    rp_block *small = take(arena, 8000);
    (void)CHECK(small->id != large_id);
    uint64_t small_id = small->id;
    rp_block_release(&small);
    large = take(arena, 8193); /* 12288 bytes as well */
    (void)CHECK(large->id == large_id);
    rp_block *other = take(arena, 12000); /* 8192 are too few */
    (void)CHECK(other->id != small_id);
    small = take(arena, 4097);
    (void)CHECK(small->id == small_id);
    (void)CHECK_EQ(stats_of(arena).grown, 3);
    rp_block_release(&large);
    rp_block_release(&small);
    rp_block_release(&other);
    rp_arena_close(&arena);
}

RP_TEST(a_block_outlives_its_arena)
{
    rp_arena *arena = new_arena(8 * MIB, false);
    rp_block *kept = take(arena, MIB), *other = take(arena, MIB);
    rp_block_release(&other);
    rp_arena_close(&arena);
    memset(kept->data, 1, kept->len);
    rp_block_release(&kept);
}

static atomic_int notified;

static void count_notice(void *cookie)
{
    (void)CHECK(cookie == &notified);
    atomic_fetch_add(&notified, 1);
}

RP_TEST(release_is_told_without_a_lock)
{
    rp_arena *arena = new_arena(8 * MIB, false);
    atomic_store(&notified, 0);
    rp_arena_on_release(arena, count_notice, &notified);
    rp_block *a = take(arena, MIB), *b = take(arena, MIB);
    rp_block_release(&a);
    (void)CHECK_EQ(atomic_load(&notified), 1);
    rp_arena_on_release(arena, NULL, NULL);
    rp_block_release(&b);
    (void)CHECK_EQ(atomic_load(&notified), 1);
    rp_arena_close(&arena);
}

/* A notification that takes its time: removing it waits for its end. */
static atomic_bool in_notice, notice_may_end, notice_ended;

static void slow_notice(void *cookie)
{
    (void)cookie;
    atomic_store(&in_notice, true);
    while (!atomic_load(&notice_may_end)) {
        (void)usleep(1000);
    }
    (void)usleep(20000);
    atomic_store(&notice_ended, true);
}

static void *release_block(void *arg)
{
    rp_block *block = arg;
    rp_block_release(&block);
    return NULL;
}

RP_TEST(removing_the_notification_waits_for_it)
{
    rp_arena *arena = new_arena(8 * MIB, false);
    rp_arena_on_release(arena, slow_notice, NULL);
    rp_thread thread = {0};
    REQUIRE_OK(rp_thread_start(&thread, "rp-rel", release_block, take(arena, MIB), NULL), NULL);
    while (!atomic_load(&in_notice)) {
        (void)usleep(1000);
    }
    atomic_store(&notice_may_end, true);
    rp_arena_on_release(arena, NULL, NULL);
    (void)CHECK(atomic_load(&notice_ended));
    rp_thread_join(&thread);
    rp_arena_close(&arena);
}

static void *take_and_release(void *arg)
{
    rp_arena *arena = arg;
    for (int i = 0; i < 300; i++) {
        rp_block *block = NULL;
        if (!CHECK_OK(rp_arena_take(arena, 4096 * (size_t)(1 + i % 5), true, &block, NULL), NULL)) {
            break;
        }
        memset(block->data, i, 64); /* TSan: nobody else holds it */
        rp_block_release(&block);
    }
    return NULL;
}

RP_TEST(threads_share_an_arena)
{
    rp_arena *arena = new_arena(40000, false);
    rp_thread threads[4] = {0};
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(rp_thread_start(&threads[i], "rp-arena", take_and_release, arena, NULL), NULL);
    }
    for (int i = 0; i < 4; i++) {
        rp_thread_join(&threads[i]);
    }
    (void)CHECK(stats_of(arena).bytes <= 40000);
    rp_arena_close(&arena);
}

/* --- lent blocks: the child is the receiver --- */

static int step_pipe[2], reply_pipe[2];

/* The child maps the block of the inherited descriptor, reads it, waits for a word, releases it. */
static int receive(int fd, size_t len)
{
    rp_lent lent;
    char word;
    if (rp_lent_map(fd, len, &lent, NULL) != RP_OK) {
        return 1;
    }
    for (size_t i = 0; i < len; i++) {
        if (lent.data[i] != (uint8_t)(i * 31)) {
            return 2;
        }
    }
    if (write(reply_pipe[1], "r", 1) != 1 || read(step_pipe[0], &word, 1) != 1) {
        return 3;
    }
    rp_lent_release(&lent);
    if (write(reply_pipe[1], "d", 1) != 1) {
        return 4;
    }
    rp_lent_unmap(&lent);
    rp_lent_unmap(&lent);
    return lent.data == NULL ? 0 : 5;
}

RP_TEST(a_lent_block_comes_back_from_another_process)
{
    REQUIRE(pipe(step_pipe) == 0 && pipe(reply_pipe) == 0);
    rp_arena *arena = new_arena(16 * MIB, true);
    rp_block *block = take(arena, MIB);
    uint64_t id = block->id;
    size_t len = block->len;
    int fd = dup(block->fd); /* what a socket would carry */
    for (size_t i = 0; i < len; i++) {
        block->data[i] = (uint8_t)(i * 31);
    }
    rp_block_lend(&block);
    (void)CHECK(block == NULL);
    pid_t child = fork();
    if (child == 0) {
        _exit(receive(fd, len));
    }
    char word = 0;
    (void)CHECK(read(reply_pipe[0], &word, 1) == 1 && word == 'r');
    (void)CHECK_EQ(rp_arena_take(arena, MIB, false, &block, NULL), RP_AGAIN); /* still lent */
    rp_block *other = take(arena, MIB);
    (void)CHECK(other->id != id);
    (void)CHECK(write(step_pipe[1], "g", 1) == 1);
    (void)CHECK(read(reply_pipe[0], &word, 1) == 1 && word == 'd');
    REQUIRE_OK(rp_arena_take(arena, MIB, false, &block, NULL), NULL);
    (void)CHECK(block->id == id);
    int status = -1;
    (void)CHECK(waitpid(child, &status, 0) == child);
    (void)CHECK_EQ(status, 0);
    rp_block_release(&block);
    rp_block_release(&other);
    rp_arena_close(&arena);
    (void)close(fd);
    for (int i = 0; i < 2; i++) {
        (void)close(step_pipe[i]);
        (void)close(reply_pipe[i]);
    }
}

RP_TEST(lent_blocks_that_come_back_stay_within_the_budget)
{
    rp_arena *arena = new_arena(2 * MIB, true);
    rp_block *blocks[6];
    rp_lent lent[6];
    for (int i = 0; i < 6; i++) {
        blocks[i] = take(arena, MIB);
        REQUIRE_OK(rp_lent_map(blocks[i]->fd, MIB, &lent[i], NULL), NULL);
        rp_block_lend(&blocks[i]);
    }
    (void)CHECK_EQ(stats_of(arena).blocks, 6);
    for (int i = 0; i < 6; i++) {
        rp_lent_release(&lent[i]);
        rp_lent_unmap(&lent[i]);
    }
    rp_block *block = take(arena, MIB);
    (void)CHECK_EQ(stats_of(arena).grown, 6);
    (void)CHECK_EQ(stats_of(arena).blocks, 3); /* two free, one taken */
    rp_block_release(&block);
    (void)CHECK_EQ(stats_of(arena).blocks, 2);
    rp_arena_close(&arena);
}

RP_TEST(a_lent_block_outlives_its_owner)
{
    rp_arena *arena = new_arena(2 * MIB, true);
    rp_block *block = take(arena, MIB);
    rp_lent lent;
    block->data[5] = 77;
    REQUIRE_OK(rp_lent_map(block->fd, MIB, &lent, NULL), NULL);
    rp_block_lend(&block);
    rp_arena_close(&arena);
    (void)CHECK_EQ(lent.data[5], 77);
    rp_lent_release(&lent);
    rp_lent_unmap(&lent);
}

RP_TEST(what_is_no_lent_block_is_refused)
{
    rp_lent lent;
    struct rp_error err;
    int fd = memfd_create("test", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_lent_map(fd, 0, &lent, &err), RP_E_FORMAT, &err); /* empty */
    REQUIRE(ftruncate(fd, 3 * 4096) == 0);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_lent_map(fd, 100, &lent, &err), RP_E_FORMAT, &err); /* no header */
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_lent_map(fd, 3 * 4096, &lent, &err), RP_E_FORMAT, &err); /* short */
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_lent_map(fd, SIZE_MAX, &lent, &err), RP_E_FORMAT, &err);
    (void)close(fd);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_lent_map(-1, 1, &lent, &err), RP_E_IO, &err);
}

static rp_arena *child_arena;
static rp_block *child_block;

RP_TEST(a_child_leaves_its_parents_blocks_alone)
{
    REQUIRE_OK(rp_fork_watch(NULL), NULL);
    child_arena = new_arena(2 * MIB, true);
    child_block = take(child_arena, MIB);
    child_block->data[0] = 9;
    pid_t child = fork();
    if (child == 0) {
        rp_block_release(&child_block);
        _exit(child_block == NULL ? 0 : 1);
    }
    int status = -1;
    (void)CHECK(waitpid(child, &status, 0) == child);
    (void)CHECK_EQ(status, 0);
    rp_block *other = NULL;
    (void)CHECK_EQ(rp_arena_take(child_arena, MIB, false, &other, NULL), RP_AGAIN);
    (void)CHECK_EQ(child_block->data[0], 9);
    rp_block_release(&child_block);
    rp_arena_close(&child_arena);
}

static void use_arena(void *arg)
{
    rp_arena *arena = NULL;
    rp_block *block = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_arena_new(MIB, arg != NULL, &arena, &err);
    if (status == RP_OK) {
        status = rp_arena_take(arena, 10000, true, &block, &err);
    }
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.what[0] != '\0'));
    rp_block_release(&block);
    rp_arena_close(&arena);
}

RP_TEST(memory_may_be_short)
{
    (void)CHECK(rp_fault_sweep((struct rp_fault){0}, use_arena, NULL) > 0);
    (void)CHECK(rp_fault_sweep((struct rp_fault){0}, use_arena, &notified) > 0);
}
