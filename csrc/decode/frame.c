#include "decode/decode_priv.h"

#include "base/memory.h"
#include "base/thread.h"

#include <assert.h>
#include <string.h>

#define ROW_ALIGN 64 /* bytes; as many follow the last plane: converters read past a row */

/* Frames come back on any thread but are taken by one: whoever drops the last reference pushes onto
 * `returned`; the taker empties that list in one exchange, so no node is popped while another
 * thread looks at it (no ABA), and no lock is needed. */
struct rp_frame_pool {
    struct rp_picture_ops ops;
    int refs;                  /* atomic: the owner + every frame handed out */
    struct rp_frame *returned; /* atomic stack */
    struct rp_frame *ready;    /* the taker's own */
};

rp_status rp_frame_pool_new(const struct rp_picture_ops *ops, struct rp_frame_pool **out,
                            struct rp_error *err)
{
    struct rp_frame_pool *pool = rp_calloc(1, sizeof(*pool));
    if (pool == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "no memory for a frame pool");
    }
    pool->ops = *ops;
    pool->refs = 1;
    *out = pool;
    return RP_OK;
}

static void free_list(const struct rp_picture_ops *ops, struct rp_frame *frame)
{
    while (frame != NULL) {
        struct rp_frame *next = frame->next;
        ops->destroy(frame->picture);
        rp_free(frame);
        frame = next;
    }
}

void rp_frame_pool_unref(struct rp_frame_pool **pool)
{
    if (pool == NULL || *pool == NULL) {
        return;
    }
    struct rp_frame_pool *dead = *pool;
    *pool = NULL;
    if (__atomic_sub_fetch(&dead->refs, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    free_list(&dead->ops, dead->returned);
    free_list(&dead->ops, dead->ready);
    rp_free(dead);
}

rp_status rp_frame_pool_get(struct rp_frame_pool *pool, rp_frame **out, struct rp_error *err)
{
    if (pool->ready == NULL) {
        pool->ready = __atomic_exchange_n(&pool->returned, NULL, __ATOMIC_ACQUIRE);
    }
    struct rp_frame *frame = pool->ready;
    if (frame != NULL) {
        pool->ready = frame->next;
    }
    else {
        frame = rp_calloc(1, sizeof(*frame));
        if (frame == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "no memory for a frame");
        }
        frame->picture = pool->ops.create();
        if (frame->picture == NULL) {
            rp_free(frame);
            RP_FAIL(err, RP_E_NOMEM, "no memory for a frame");
        }
        frame->pool = pool;
    }
    frame->next = NULL;
    frame->refs = 1;
    __atomic_add_fetch(&pool->refs, 1, __ATOMIC_RELAXED);
    *out = frame;
    return RP_OK;
}

const struct rp_image *rp_frame_image(const rp_frame *frame)
{
    return &frame->image;
}

int64_t rp_frame_pts(const rp_frame *frame)
{
    return frame->pts;
}

size_t rp_frame_bytes(const rp_frame *frame)
{
    return frame->bytes;
}

struct rp_cuda_block *rp_frame_on_device(const rp_frame *frame)
{
    return frame->on_device;
}

rp_frame *rp_frame_ref(rp_frame *frame)
{
    int before = __atomic_fetch_add(&frame->refs, 1, __ATOMIC_RELAXED);
    assert(before > 0);
    (void)before; /* only read by the assertion */
    return frame;
}

/* Rows of the copy begin aligned. 0: not all planes can be copied row by row. */
static size_t copy_bytes(const rp_frame *frame, ptrdiff_t stride[4])
{
    size_t total = ROW_ALIGN;
    for (int i = 0; i < 4; i++) {
        stride[i] = 0;
        if (frame->image.plane[i] == NULL) {
            continue;
        }
        size_t row = (frame->row_bytes[i] + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
        if (row == 0 || frame->rows[i] == 0 || frame->image.stride[i] < 0) {
            return 0;
        }
        stride[i] = (ptrdiff_t)row;
        total += row * frame->rows[i];
    }
    return total;
}

static void copy_planes(const rp_frame *from, rp_frame *to)
{
    uint8_t *at = to->block->data;
    for (int i = 0; i < 4; i++) {
        const uint8_t *row = from->image.plane[i];
        if (row == NULL) {
            continue;
        }
        to->image.plane[i] = at;
        if (from->image.stride[i] == to->image.stride[i]) {
            size_t whole = (size_t)to->image.stride[i] * (from->rows[i] - 1);
            memcpy(at, row, whole + from->row_bytes[i]);
            at += whole + (size_t)to->image.stride[i];
            continue;
        }
        for (size_t y = 0; y < from->rows[i]; y++) {
            memcpy(at, row, from->row_bytes[i]);
            at += to->image.stride[i];
            row += from->image.stride[i];
        }
    }
}

rp_frame *rp_frame_keep(rp_frame *frame, rp_arena *store)
{
    ptrdiff_t stride[4];
    bool here = frame->block == NULL && frame->on_device == NULL;
    size_t bytes = here ? copy_bytes(frame, stride) : 0;
    rp_frame *copy = NULL;
    if (bytes == 0 || rp_frame_pool_get(frame->pool, &copy, NULL) != RP_OK) {
        return rp_frame_ref(frame);
    }
    if (rp_arena_take(store, bytes, true, &copy->block, NULL) != RP_OK) {
        rp_frame_unref(&copy);
        return rp_frame_ref(frame);
    }
    copy->pts = frame->pts;
    copy->bytes = copy->block->len;
    copy->image = frame->image;
    memcpy(copy->image.stride, stride, sizeof(stride));
    copy_planes(frame, copy);
    return copy;
}

void rp_frame_unref(rp_frame **frame)
{
    if (frame == NULL || *frame == NULL) {
        return;
    }
    struct rp_frame *dead = *frame;
    *frame = NULL;
    int left = __atomic_sub_fetch(&dead->refs, 1, __ATOMIC_ACQ_REL);
    assert(left >= 0);
    if (left > 0) {
        return;
    }
    struct rp_frame_pool *pool = dead->pool;
    if (dead->block != NULL) {
        rp_block_release(&dead->block);
    }
    else {
        rp_gate_enter();
        pool->ops.reset(dead->picture);
        rp_gate_leave();
    }
    dead->image = (struct rp_image){0};
    dead->on_device = NULL;
    struct rp_frame *head = __atomic_load_n(&pool->returned, __ATOMIC_RELAXED);
    do {
        dead->next = head;
    } while (!__atomic_compare_exchange_n(&pool->returned, &head, dead, true, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
    rp_frame_pool_unref(&pool);
}
