#include "fetch/write_behind_priv.h"

#include "base/memory.h"

#include <errno.h>
#include <unistd.h>

#define SLICE_NS 1000000000LL /* a wait looks again after that: a disk may take any time */

struct rp_write_behind {
    rp_thread thread;
    rp_lock lock;
    rp_cond changed; /* something under the lock */
    /* guarded by lock: */
    const uint8_t *data; /* NULL: nothing under way */
    size_t len;
    int64_t offset;
    int fd;
    size_t done; /* bytes of the last write that are in the file */
    int sys;     /* errno that ended it; 0: none */
    bool over;
};

/* Write all; the errno that ended it. */
static int put(int fd, const uint8_t *data, size_t len, int64_t offset, size_t *done)
{
    while (*done < len) {
        ssize_t n = pwrite(fd, data + *done, len - *done, (off_t)(offset + (int64_t)*done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? errno : EIO;
        }
        *done += (size_t)n;
    }
    return 0;
}

static void wait_locked(rp_write_behind *behind)
{
    (void)rp_cond_wait(&behind->changed, &behind->lock, rp_now_ns() + SLICE_NS); /* callers loop */
}

static void *run(void *arg)
{
    rp_write_behind *behind = arg;
    rp_lock_acquire(&behind->lock);
    while (behind->data != NULL || !behind->over) {
        if (behind->data == NULL) {
            wait_locked(behind);
            continue;
        }
        const uint8_t *data = behind->data;
        size_t len = behind->len, done = 0;
        int64_t offset = behind->offset;
        int fd = behind->fd;
        rp_lock_release(&behind->lock);
        int sys = put(fd, data, len, offset, &done);
        rp_lock_acquire(&behind->lock);
        behind->data = NULL;
        behind->done = done;
        behind->sys = sys;
        rp_cond_signal(&behind->changed);
    }
    rp_lock_release(&behind->lock);
    return NULL;
}

rp_status rp_write_behind_new(rp_write_behind **out, struct rp_error *err)
{
    rp_write_behind *behind = rp_calloc(1, sizeof(*behind));
    if (behind == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a thread");
    }
    rp_status status = rp_lock_init(&behind->lock, err);
    if (status != RP_OK) {
        rp_free(behind);
        return status;
    }
    status = rp_cond_init(&behind->changed, err);
    if (status == RP_OK) {
        status = rp_thread_start(&behind->thread, "rp-write", run, behind, err);
        if (status == RP_OK) {
            *out = behind;
            return RP_OK;
        }
        rp_cond_free(&behind->changed);
    }
    rp_lock_free(&behind->lock);
    rp_free(behind);
    return status;
}

void rp_write_behind_begin(rp_write_behind *behind, int fd, const uint8_t *data, size_t len,
                           int64_t offset)
{
    rp_lock_acquire(&behind->lock);
    behind->fd = fd;
    behind->data = data;
    behind->len = len;
    behind->offset = offset;
    rp_cond_signal(&behind->changed);
    rp_lock_release(&behind->lock);
}

int rp_write_behind_wait(rp_write_behind *behind, size_t *done)
{
    rp_lock_acquire(&behind->lock);
    while (behind->data != NULL) {
        wait_locked(behind);
    }
    int sys = behind->sys;
    *done = behind->done;
    behind->done = 0;
    behind->sys = 0;
    rp_lock_release(&behind->lock);
    return sys;
}

void rp_write_behind_free(rp_write_behind **behind)
{
    if (behind == NULL || *behind == NULL) {
        return;
    }
    rp_lock_acquire(&(*behind)->lock);
    (*behind)->over = true;
    rp_cond_signal(&(*behind)->changed);
    rp_lock_release(&(*behind)->lock);
    rp_thread_join(&(*behind)->thread);
    rp_cond_free(&(*behind)->changed);
    rp_lock_free(&(*behind)->lock);
    rp_free(*behind);
    *behind = NULL;
}
