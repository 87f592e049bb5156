/* Checked allocation, live-object counting and counted byte buffers. */
#ifndef RP_BASE_MEMORY_H
#define RP_BASE_MEMORY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Allocate n * size zeroed bytes (overflow-checked; 0 bytes yields a unique pointer).
 * Owner: the caller's, freed with rp_free. Thread: any. Blocks: never.
 * Errors: NULL on overflow or when memory is short. */
RP_CHECKED void *rp_calloc(size_t n, size_t size);

/* Grow or shrink to n * size bytes; new bytes are not initialised. ptr may be NULL.
 * Owner: on success the old pointer is gone; on failure (NULL) it stays the caller's.
 * Thread: any. Blocks: never. Errors: NULL on overflow or when memory is short. */
RP_CHECKED void *rp_realloc(void *ptr, size_t n, size_t size);

/* Free what rp_calloc, rp_realloc or rp_strdup gave. NULL: nothing. Thread: any. Blocks: never. */
void rp_free(void *ptr);

/* Copy a string. Owner: the caller's. Thread: any. Blocks: never. Errors: NULL when memory is
 * short. */
RP_CHECKED char *rp_strdup(const char *text);

/* Blocks of this module alive in the process (tests assert that it returns to its start value).
 * Thread: any. Blocks: never. */
int64_t rp_live_objects(void);

/* Counted, immutable-after-fill bytes: own memory, pinned, or somebody else's look alike. */
typedef struct rp_buf {
    uint8_t *data;
    size_t len; /* bytes; own memory is followed by RP_BUF_PADDING zero bytes */
    int refs;   /* atomic */
    void (*release)(void *cookie, uint8_t *data);
    void *cookie;
} rp_buf;

#define RP_BUF_PADDING 64

/* New buffer of len bytes of own memory plus zeroed padding. Owner: *out is the caller's (one
 * reference), untouched on failure. Thread: any. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_buf_new(size_t len, rp_buf **out, struct rp_error *err);

/* Wrap foreign memory; release(cookie, data) runs once, on any thread, when the last reference goes
 * (NULL: nothing is called). Owner: on failure the memory stays the caller's. Thread: any.
 * Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_buf_wrap(uint8_t *data, size_t len, void (*release)(void *, uint8_t *),
                                 void *cookie, rp_buf **out, struct rp_error *err);

/* Take one more reference. Thread: any. Blocks: never. Returns buf. */
rp_buf *rp_buf_ref(rp_buf *buf);

/* Drop one reference and null the pointer. NULL or pointer to NULL: nothing. Thread: any.
 * Blocks: never, but for what `release` does. */
void rp_buf_unref(rp_buf **buf);

#endif
