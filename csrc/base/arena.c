#include "base/arena.h"

#include "base/memory.h"
#include "base/thread.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE       4096
#define LENT_MAGIC 0x52504C454E543031u

#ifndef MADV_POPULATE_WRITE
#    define MADV_POPULATE_WRITE 23
#endif

/* First page of a shared block; the rest of the file is data. */
struct lent_header {
    uint64_t magic;
    uint64_t len;
    uint32_t busy; /* atomic: 1 while the receiver uses the block */
};

struct rp_arena {
    rp_lock lock;
    uint64_t fork_generation;
    size_t keep_bytes;
    bool shared;
    bool exact;                    /* blocks are reused for their own length only */
    struct rp_arena_source source; /* map NULL: mappings of our own */
    int refs;                      /* atomic: owner + blocks out */
    /* guarded by lock: */
    rp_block *free_blocks;
    rp_block *lent_blocks;
    size_t free_bytes;
    struct rp_arena_stats stats;
    bool closed;
    rp_arena_notify notify;
    void *cookie;
    int notifying; /* notifications under way */
    uint64_t next_id;
    rp_cond quiet; /* waited on by rp_arena_on_release, signalled when notifying reaches 0 */
};

rp_status rp_arena_new(size_t keep_bytes, bool shared, rp_arena **out, struct rp_error *err)
{
    rp_arena *arena = rp_calloc(1, sizeof(*arena));
    if (arena == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for an arena");
    }
    rp_status status = rp_lock_init(&arena->lock, err);
    if (status == RP_OK) {
        status = rp_cond_init(&arena->quiet, err);
        if (status != RP_OK) {
            rp_lock_free(&arena->lock);
        }
    }
    if (status != RP_OK) {
        rp_free(arena);
        return status;
    }
    arena->fork_generation = rp_fork_generation();
    arena->keep_bytes = keep_bytes;
    arena->shared = shared;
    arena->refs = 1;
    *out = arena;
    return RP_OK;
}

rp_status rp_arena_new_from(size_t keep_bytes, const struct rp_arena_source *source, rp_arena **out,
                            struct rp_error *err)
{
    RP_TRY(rp_arena_new(keep_bytes, false, out, err));
    (*out)->source = *source;
    return RP_OK;
}

void rp_arena_reuse_exactly(rp_arena *arena)
{
    arena->exact = true;
}

static size_t mapping_bytes(const rp_block *block)
{
    return block->len + (block->fd >= 0 ? PAGE : 0);
}

static void block_unmap(rp_block *block)
{
    if (block->memory != NULL) {
        block->arena->source.unmap(block->arena->source.cookie, block->memory);
        rp_free(block);
        return;
    }
    uint8_t *base = block->data - (block->fd >= 0 ? PAGE : 0);
    (void)munmap(base, mapping_bytes(block)); /* fails only on a bad address */
    if (block->fd >= 0) {
        (void)close(block->fd); /* memory file: nothing to flush */
    }
    rp_free(block);
}

static void arena_unref(rp_arena *arena)
{
    if (__atomic_sub_fetch(&arena->refs, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    rp_block *lists[2] = {arena->free_blocks, arena->lent_blocks};
    for (int i = 0; i < 2; i++) {
        while (lists[i] != NULL) {
            rp_block *block = lists[i];
            lists[i] = block->next;
            block_unmap(block);
        }
    }
    if (arena->source.end != NULL) {
        arena->source.end(arena->source.cookie);
    }
    rp_cond_free(&arena->quiet);
    rp_lock_free(&arena->lock);
    rp_free(arena);
}

void rp_arena_on_release(rp_arena *arena, rp_arena_notify notify, void *cookie)
{
    rp_lock_acquire(&arena->lock);
    arena->notify = notify;
    arena->cookie = cookie;
    while (arena->notifying > 0) {
        (void)rp_cond_wait(&arena->quiet, &arena->lock, rp_now_ns() + 1000000000); /* loops */
    }
    rp_lock_release(&arena->lock);
}

static struct lent_header *header_of(const rp_block *block)
{
    return (struct lent_header *)(void *)(block->data - PAGE);
}

/* Blocks whose receiver is done go back to the free list. */
static void collect_lent_locked(rp_arena *arena)
{
    rp_block **link = &arena->lent_blocks;
    while (*link != NULL) {
        rp_block *block = *link;
        if (__atomic_load_n(&header_of(block)->busy, __ATOMIC_ACQUIRE) != 0) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        block->lent = false;
        block->next = arena->free_blocks;
        arena->free_blocks = block;
        arena->free_bytes += block->len;
    }
}

/* Free blocks above keep_bytes, to be unmapped without the lock. */
static rp_block *trim_locked(rp_arena *arena)
{
    rp_block *dead = NULL;
    while (arena->free_bytes > arena->keep_bytes) {
        rp_block *block = arena->free_blocks;
        arena->free_blocks = block->next;
        arena->free_bytes -= block->len;
        arena->stats.blocks--;
        arena->stats.bytes -= (int64_t)block->len;
        block->next = dead;
        dead = block;
    }
    return dead;
}

/* Usable bytes of a block for len bytes. */
static size_t block_bytes(size_t len)
{
    return len > 0 ? (len + PAGE - 1) / PAGE * PAGE : PAGE;
}

static rp_block *best_free_locked(rp_arena *arena, size_t len)
{
    rp_block **best = NULL;
    size_t most = arena->exact ? block_bytes(len) : SIZE_MAX;
    for (rp_block **link = &arena->free_blocks; *link != NULL; link = &(*link)->next) {
        size_t have = (*link)->len;
        bool fits = have >= len && (have / 2 <= len || have == PAGE); /* PAGE: the smallest */
        if (fits && have <= most && (best == NULL || have < (*best)->len)) {
            best = link;
            if (have == most) {
                break;
            }
        }
    }
    if (best == NULL) {
        return NULL;
    }
    rp_block *block = *best;
    *best = block->next;
    block->next = NULL;
    arena->free_bytes -= block->len;
    return block;
}

static void touch_pages(uint8_t *data, size_t len)
{
    if (madvise(data, len, MADV_POPULATE_WRITE) == 0) {
        return;
    }
    for (size_t at = 0; at < len; at += PAGE) { /* kernels before 5.14 */
        ((volatile uint8_t *)data)[at] = 0;
    }
}

static rp_status map_shared(rp_block *block, struct rp_error *err)
{
    size_t total = block->len + PAGE;
    block->fd = memfd_create("reelpool", MFD_CLOEXEC);
    if (block->fd < 0) {
        RP_FAIL(err, RP_E_IO, "memfd_create failed: %s", strerror(errno));
    }
    int rc = posix_fallocate(block->fd, 0, (off_t)total);
    void *base = MAP_FAILED;
    if (rc == 0) {
        base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, block->fd, 0);
        rc = base == MAP_FAILED ? errno : 0;
    }
    if (rc != 0) {
        (void)close(block->fd); /* memory file: nothing to flush */
        RP_FAIL(err, RP_E_NOMEM, "no shared memory for a block of %zu bytes: %s", total,
                strerror(rc));
    }
    block->data = (uint8_t *)base + PAGE;
    *header_of(block) = (struct lent_header){.magic = LENT_MAGIC, .len = block->len};
    return RP_OK;
}

static rp_status block_map(rp_arena *arena, size_t len, rp_block **out, struct rp_error *err)
{
    if (len > (size_t)PTRDIFF_MAX - 2 * PAGE) {
        RP_FAIL(err, RP_E_NOMEM, "a block of %zu bytes is too large", len);
    }
    rp_block *block = rp_calloc(1, sizeof(*block));
    if (block == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a block header");
    }
    block->fd = -1;
    block->len = block_bytes(len);
    rp_status status = RP_OK;
    if (arena->source.map != NULL) {
        status = arena->source.map(arena->source.cookie, block->len, &block->memory, err);
    }
    else if (arena->shared) {
        status = map_shared(block, err);
    }
    else {
        void *base =
            mmap(NULL, block->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) {
            status = rp_error_set(err, RP_E_NOMEM, "no memory for a block of %zu bytes: %s",
                                  block->len, strerror(errno));
        }
        block->data = base;
    }
    if (status != RP_OK) {
        rp_free(block);
        return status;
    }
    if (block->memory == NULL) {
        touch_pages(block->data, block->len);
    }
    *out = block;
    return RP_OK;
}

rp_status rp_arena_take(rp_arena *arena, size_t len, bool may_grow, rp_block **out,
                        struct rp_error *err)
{
    rp_lock_acquire(&arena->lock);
    collect_lent_locked(arena);
    rp_block *block = best_free_locked(arena, len);
    rp_block *dead = trim_locked(arena);
    uint64_t id = arena->next_id;
    if (block == NULL && may_grow) {
        arena->next_id++;
    }
    rp_lock_release(&arena->lock);
    while (dead != NULL) {
        rp_block *next = dead->next;
        block_unmap(dead);
        dead = next;
    }
    if (block == NULL) {
        if (!may_grow) {
            return RP_AGAIN;
        }
        RP_TRY(block_map(arena, len, &block, err));
        block->arena = arena;
        block->id = id;
        rp_lock_acquire(&arena->lock);
        arena->stats.blocks++;
        arena->stats.bytes += (int64_t)block->len;
        arena->stats.grown++;
        rp_lock_release(&arena->lock);
    }
    __atomic_add_fetch(&arena->refs, 1, __ATOMIC_RELAXED);
    *out = block;
    return RP_OK;
}

void rp_block_release(rp_block **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_block *block = *out;
    rp_arena *arena = block->arena;
    *out = NULL;
    if (arena->fork_generation != rp_fork_generation()) {
        return; /* the parent's arena: its lock may be held by a thread that is not here */
    }
    rp_lock_acquire(&arena->lock);
    bool keep = !arena->closed && arena->free_bytes + block->len <= arena->keep_bytes;
    if (keep) {
        block->next = arena->free_blocks;
        arena->free_blocks = block;
        arena->free_bytes += block->len;
    }
    else {
        arena->stats.blocks--;
        arena->stats.bytes -= (int64_t)block->len;
    }
    rp_arena_notify notify = arena->notify;
    void *cookie = arena->cookie;
    arena->notifying += notify != NULL;
    rp_lock_release(&arena->lock);
    if (!keep) {
        block_unmap(block);
    }
    if (notify != NULL) {
        notify(cookie);
        rp_lock_acquire(&arena->lock);
        arena->notifying--;
        rp_cond_broadcast(&arena->quiet);
        rp_lock_release(&arena->lock);
    }
    arena_unref(arena);
}

void rp_block_lend(rp_block **out)
{
    rp_block *block = *out;
    rp_arena *arena = block->arena;
    *out = NULL;
    assert(block->fd >= 0);
    __atomic_store_n(&header_of(block)->busy, 1, __ATOMIC_RELEASE);
    rp_lock_acquire(&arena->lock);
    block->lent = true;
    block->next = arena->lent_blocks;
    arena->lent_blocks = block;
    rp_lock_release(&arena->lock);
    arena_unref(arena);
}

void rp_arena_close(rp_arena **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_arena *arena = *out;
    *out = NULL;
    rp_lock_acquire(&arena->lock);
    arena->closed = true;
    arena->notify = NULL;
    rp_lock_release(&arena->lock);
    arena_unref(arena);
}

void rp_arena_stats(rp_arena *arena, struct rp_arena_stats *out)
{
    rp_lock_acquire(&arena->lock);
    *out = arena->stats;
    for (const rp_block *block = arena->free_blocks; block != NULL; block = block->next) {
        out->free++;
    }
    rp_lock_release(&arena->lock);
}

rp_status rp_lent_map(int fd, size_t len, rp_lent *out, struct rp_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        RP_FAIL(err, RP_E_IO, "cannot stat a lent block: %s", strerror(errno));
    }
    if (len > (size_t)PTRDIFF_MAX - PAGE || st.st_size < (off_t)(len + PAGE)) {
        RP_FAIL(err, RP_E_FORMAT, "a lent block has %lld bytes, %zu are needed",
                (long long)st.st_size, len + PAGE);
    }
    size_t total = (size_t)st.st_size;
    void *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        RP_FAIL(err, RP_E_IO, "cannot map a lent block: %s", strerror(errno));
    }
    const struct lent_header *header = base;
    if (header->magic != LENT_MAGIC) {
        (void)munmap(base, total); /* fails only on a bad address */
        RP_FAIL(err, RP_E_FORMAT, "the file handed over is not a lent block");
    }
    *out = (rp_lent){.base = base, .data = (uint8_t *)base + PAGE, .len = total - PAGE};
    return RP_OK;
}

void rp_lent_release(const rp_lent *lent)
{
    struct lent_header *header = (struct lent_header *)(void *)lent->base;
    __atomic_store_n(&header->busy, 0, __ATOMIC_RELEASE);
}

void rp_lent_unmap(rp_lent *lent)
{
    if (lent->base != NULL) {
        (void)munmap(lent->base, lent->len + PAGE); /* fails only on a bad address */
    }
    *lent = (rp_lent){0};
}
