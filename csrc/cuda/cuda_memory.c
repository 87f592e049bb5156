#include "cuda/cuda_priv.h"

#include "base/memory.h"

#include <stdio.h>

/* Blocks of pinned memory and of memory on the device, used again behind the work that used them
 * last: making and freeing either stops the whole GPU for up to milliseconds. */

#define EVENT_FLAGS 3u /* sleep instead of spinning; take no time stamps */
#define ROUND       4096u

static int make(rp_cuda_block *block)
{
    const struct rp_cuda_api *api = &block->device->api;
    int code = api->event_create(&block->idle, EVENT_FLAGS);
    if (code != 0) {
        return code;
    }
    if (block->memory == RP_CUDA_PINNED) {
        void *host = NULL;
        code = api->host_alloc(&host, block->len, 1u); /* portable: any context of this device */
        block->host = host;
    }
    else {
        code = api->memory_alloc(&block->address, block->len);
    }
    if (code != 0) {
        (void)api->event_destroy(block->idle); /* the failure before it is reported */
    }
    return code;
}

/* Free a block for good, behind its work. Failures have nobody left to be told: a lost context took
 * its memory with it. */
static void destroy(rp_cuda_block *block)
{
    rp_cuda *device = block->device;
    rp_lock_acquire(&device->lock);
    device->stats.blocks[block->memory]--;
    device->stats.bytes[block->memory] -= (int64_t)block->len;
    rp_lock_release(&device->lock);
    bool entered = rp_cuda_enter_to_free(device);
    if (block->busy) {
        (void)device->api.event_synchronize(block->idle);
    }
    (void)device->api.event_destroy(block->idle);
    if (block->memory == RP_CUDA_PINNED) {
        (void)device->api.host_free(block->host);
    }
    else {
        (void)device->api.memory_free(block->address);
    }
    if (entered) {
        rp_cuda_leave(device);
    }
    rp_free(block);
}

/* Unlink the block that has been free longest and is of len to 2 len bytes (0: of any length). */
static rp_cuda_block *pick(rp_cuda *device, enum rp_cuda_memory memory, size_t len)
{
    rp_lock_acquire(&device->lock);
    rp_cuda_block **link = &device->free[memory];
    while (*link != NULL && len > 0 && ((*link)->len < len || (*link)->len / 2 > len)) {
        link = &(*link)->next;
    }
    rp_cuda_block *block = *link;
    if (block != NULL) {
        *link = block->next;
        block->next = NULL;
        device->stats.free_blocks[memory]--;
        device->stats.free_bytes[memory] -= (int64_t)block->len;
    }
    rp_lock_release(&device->lock);
    return block;
}

/* Put a block among the free ones, at the end, or back at the front. True: there is room to keep
 * it. */
static bool keep(rp_cuda_block *block, bool at_front)
{
    rp_cuda *device = block->device;
    enum rp_cuda_memory memory = block->memory;
    rp_lock_acquire(&device->lock);
    bool room = at_front || device->stats.free_bytes[memory] + (int64_t)block->len <=
                                (int64_t)device->keep_bytes;
    if (room) {
        rp_cuda_block **link = &device->free[memory];
        while (*link != NULL && !at_front) {
            link = &(*link)->next;
        }
        block->next = *link;
        *link = block;
        device->stats.free_blocks[memory]++;
        device->stats.free_bytes[memory] += (int64_t)block->len;
    }
    rp_lock_release(&device->lock);
    return room;
}

int rp_cuda_trim(rp_cuda *device)
{
    int n = 0;
    for (int memory = 0; memory < 2; memory++) {
        rp_cuda_block *block;
        while ((block = pick(device, (enum rp_cuda_memory)memory, 0)) != NULL) {
            destroy(block);
            n++;
        }
    }
    return n;
}

static rp_status grow(rp_cuda *device, enum rp_cuda_memory memory, size_t len, rp_cuda_block **out,
                      struct rp_error *err)
{
    rp_cuda_block *block = rp_calloc(1, sizeof(*block));
    if (block == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a block");
    }
    *block = (rp_cuda_block){.device = device, .memory = memory, .len = len};
    int code = make(block);
    if (code == RP_CU_OUT_OF_MEMORY) {
        (void)rp_cuda_trim(device); /* the next line tells whether it helped */
        code = make(block);
    }
    if (code != 0) {
        char doing[80];
        rp_free(block);
        (void)snprintf(doing, sizeof(doing), "taking %zu bytes of %s", len, /* always fits */
                       memory == RP_CUDA_PINNED ? "pinned memory" : "GPU memory");
        return rp_cuda_failed(&device->api, device, code, doing, err);
    }
    rp_lock_acquire(&device->lock);
    device->stats.blocks[memory]++;
    device->stats.made[memory]++;
    device->stats.bytes[memory] += (int64_t)len;
    rp_lock_release(&device->lock);
    *out = block;
    return RP_OK;
}

/* RP_AGAIN: work is left behind the block. */
static rp_status see_idle(rp_cuda_block *block, bool wait, struct rp_error *err)
{
    const struct rp_cuda_api *api = &block->device->api;
    int code = !block->busy ? 0
               : wait       ? api->event_synchronize(block->idle)
                            : api->event_query(block->idle);
    if (code == RP_CU_NOT_READY) {
        return RP_AGAIN;
    }
    if (code != 0) {
        return rp_cuda_failed(api, block->device, code, "waiting for a block", err);
    }
    block->busy = false;
    return RP_OK;
}

static rp_status take(rp_cuda *device, enum rp_cuda_memory memory, size_t len, bool may_grow,
                      rp_cuda_block **out, struct rp_error *err)
{
    rp_cuda_block *block = pick(device, memory, len);
    if (block == NULL) {
        return may_grow ? grow(device, memory, len, out, err) : RP_AGAIN;
    }
    rp_status status = see_idle(block, !may_grow, err);
    if (status == RP_AGAIN) {
        (void)keep(block, true); /* at the front there is always room */
        return grow(device, memory, len, out, err);
    }
    if (status != RP_OK) {
        destroy(block);
        return status;
    }
    *out = block;
    return RP_OK;
}

rp_status rp_cuda_take(rp_cuda *device, enum rp_cuda_memory memory, size_t len, bool may_grow,
                       rp_cuda_block **out, struct rp_error *err)
{
    if (len == 0 || len > SIZE_MAX / 4) {
        RP_FAIL(err, RP_E_ARG, "a block of %zu bytes", len);
    }
    len = (len + ROUND - 1) / ROUND * ROUND;
    RP_TRY(rp_cuda_enter(device, err));
    rp_status status = take(device, memory, len, may_grow, out, err);
    rp_cuda_leave(device);
    if (status == RP_OK) {
        (void)rp_cuda_ref(device); /* held through block->device */
    }
    return status;
}

/* Note the work behind which the block is free. False: the driver refuses, and the work was waited
 * for instead. */
static bool record(rp_cuda_block *block, rp_cuda_stream *last)
{
    rp_cuda *device = block->device;
    bool entered = rp_cuda_enter_to_free(device);
    block->busy = entered && device->api.event_record(block->idle, last->handle) == 0;
    if (!block->busy) {
        (void)device->api.stream_synchronize(last->handle); /* it is not used again */
    }
    if (entered) {
        rp_cuda_leave(device);
    }
    return block->busy;
}

void rp_cuda_give(rp_cuda_block **out, rp_cuda_stream *last)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_cuda_block *block = *out;
    rp_cuda *device = block->device;
    *out = NULL;
    if (rp_cuda_is_foreign(device)) {
        return;
    }
    bool sound = last == NULL || record(block, last);
    if (!sound || !keep(block, false)) {
        destroy(block);
    }
    rp_cuda_unref(&device);
}

void rp_cuda_stats(rp_cuda *device, struct rp_cuda_stats *out)
{
    rp_lock_acquire(&device->lock);
    *out = device->stats;
    rp_lock_release(&device->lock);
}
