/* One write under way in a thread of its own, while its caller makes the bytes of the next one. */
#ifndef RP_FETCH_WRITE_BEHIND_PRIV_H
#define RP_FETCH_WRITE_BEHIND_PRIV_H

#include "base/error.h"
#include "base/thread.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rp_write_behind rp_write_behind;

/* Start the thread (`rp-write`). Owner: *out is the caller's. Thread: any. Blocks: never. Errors:
 * RP_E_NOMEM, also when the system gives no thread. */
RP_CHECKED rp_status rp_write_behind_new(rp_write_behind **out, struct rp_error *err);

/* Write len > 0 bytes at `offset` of a descriptor; none is under way. Owner: data and fd are
 * borrowed until rp_write_behind_wait has returned. Thread: one at a time. Blocks: never. */
void rp_write_behind_begin(rp_write_behind *behind, int fd, const uint8_t *data, size_t len,
                           int64_t offset);

/* Wait for the write under way: *done of its bytes are in the file, and the result is 0, or the
 * errno that ended it (EIO: no progress and no reason given). Without one *done is 0. Thread: as
 * begin. Blocks: on the disk. */
int rp_write_behind_wait(rp_write_behind *behind, size_t *done);

/* End the thread, free, null; what is under way is waited for. NULL or pointer to NULL: nothing.
 * Thread: as begin. Blocks: on the disk. */
void rp_write_behind_free(rp_write_behind **behind);

#endif
