#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Process-wide by rule: the one live-object count that tests read. */
static int64_t live_objects;

static bool product_overflows(size_t n, size_t size, size_t *total)
{
    return __builtin_mul_overflow(n, size, total) || *total > (size_t)PTRDIFF_MAX;
}

void *rp_calloc(size_t n, size_t size)
{
    size_t total;
    if (product_overflows(n, size, &total)) {
        return NULL;
    }
    void *ptr = calloc(1, total > 0 ? total : 1);
    if (ptr != NULL) {
        __atomic_add_fetch(&live_objects, 1, __ATOMIC_RELAXED);
    }
    return ptr;
}

void *rp_realloc(void *ptr, size_t n, size_t size)
{
    size_t total;
    if (product_overflows(n, size, &total)) {
        return NULL;
    }
    void *grown = realloc(ptr, total > 0 ? total : 1);
    if (grown != NULL && ptr == NULL) {
        __atomic_add_fetch(&live_objects, 1, __ATOMIC_RELAXED);
    }
    return grown;
}

void rp_free(void *ptr)
{
    if (ptr != NULL) {
        __atomic_sub_fetch(&live_objects, 1, __ATOMIC_RELAXED);
        free(ptr);
    }
}

char *rp_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = rp_calloc(n, 1);
    if (copy != NULL) {
        memcpy(copy, text, n);
    }
    return copy;
}

int64_t rp_live_objects(void)
{
    return __atomic_load_n(&live_objects, __ATOMIC_RELAXED);
}

rp_status rp_buf_new(size_t len, rp_buf **out, struct rp_error *err)
{
    size_t total;
    rp_buf *buf = NULL;
    if (!__builtin_add_overflow(len, sizeof(rp_buf) + RP_BUF_PADDING, &total)) {
        buf = rp_realloc(NULL, total, 1);
    }
    if (buf == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a buffer of %zu bytes", len);
    }
    memset(buf, 0, sizeof(*buf));
    buf->data = (uint8_t *)(buf + 1);
    buf->len = len;
    buf->refs = 1;
    memset(buf->data + len, 0, RP_BUF_PADDING);
    *out = buf;
    return RP_OK;
}

rp_status rp_buf_wrap(uint8_t *data, size_t len, void (*release)(void *, uint8_t *), void *cookie,
                      rp_buf **out, struct rp_error *err)
{
    rp_buf *buf = rp_calloc(1, sizeof(*buf));
    if (buf == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a buffer header");
    }
    *buf = (rp_buf){.data = data, .len = len, .refs = 1, .release = release, .cookie = cookie};
    *out = buf;
    return RP_OK;
}

rp_buf *rp_buf_ref(rp_buf *buf)
{
    __atomic_add_fetch(&buf->refs, 1, __ATOMIC_RELAXED);
    return buf;
}

void rp_buf_unref(rp_buf **buf)
{
    if (buf == NULL || *buf == NULL) {
        return;
    }
    rp_buf *dead = *buf;
    *buf = NULL;
    if (__atomic_sub_fetch(&dead->refs, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    if (dead->release != NULL) {
        dead->release(dead->cookie, dead->data);
    }
    rp_free(dead);
}
