#include "decode/decode_priv.h"

#include "base/memory.h"
#include "base/thread.h"

#include <assert.h>

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

rp_frame *rp_frame_ref(rp_frame *frame)
{
    int before = __atomic_fetch_add(&frame->refs, 1, __ATOMIC_RELAXED);
    assert(before > 0);
    (void)before; /* only read by the assertion */
    return frame;
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
    rp_gate_enter();
    pool->ops.reset(dead->picture);
    rp_gate_leave();
    dead->image = (struct rp_image){0};
    struct rp_frame *head = __atomic_load_n(&pool->returned, __ATOMIC_RELAXED);
    do {
        dead->next = head;
    } while (!__atomic_compare_exchange_n(&pool->returned, &head, dead, true, __ATOMIC_RELEASE,
                                          __ATOMIC_RELAXED));
    rp_frame_pool_unref(&pool);
}
