#include "fetch/fetch_priv.h"

#include "base/crc32c.h"
#include "base/memory.h"
#include "fetch/write_behind_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER   (2 << 20)    /* bytes of one write that goes past the page cache */
#define BUFFERS  2            /* one is filled while the other is written */
#define CACHED   (256 << 10)  /* bytes of other reads and writes, which stay in the core's cache */
#define EARLY    (16LL << 20) /* bytes in the page cache after which the disk is set to work */
#define ALIGN    4096         /* of memory, offset and length of a write past the page cache */
#define ATTEMPTS 1000         /* names tried for the unfinished file */

struct rp_output {
    char *path, *temp; /* final name; name until then */
    int fd;
    bool direct;             /* writes go past the page cache */
    int64_t size, at;        /* bytes promised, appended */
    int64_t written, begun;  /* bytes that the file has; that the disk was told of */
    rp_write_behind *behind; /* NULL: not begun, or there is no thread for it */
    size_t under_way;        /* bytes that it was given: of the buffer that is not filled now */
    uint8_t *memory;         /* [BUFFERS * BUFFER + ALIGN], where the buffers lie */
    uint8_t *buffer;         /* [BUFFER] in it: the one that is filled */
    uint8_t *other;          /* [BUFFER] in it */
    size_t held;             /* bytes in the buffer that the file lacks */
    /* pieces to sum up, the caller's: */
    const uint32_t *piece; /* [pieces] bytes of each */
    uint32_t *sum;         /* [pieces] */
    int64_t pieces;        /* left */
    uint32_t piece_at;     /* bytes of the first one that were seen */
};

static void dispose(rp_output *output)
{
    rp_write_behind_free(&output->behind);
    if (output->fd >= 0) {
        (void)close(output->fd); /* the file is being thrown away or was closed already */
    }
    rp_free(output->path);
    rp_free(output->temp);
    rp_free(output->memory);
    rp_free(output);
}

void rp_output_abandon(rp_output **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_write_behind_free(&(*out)->behind);
    (void)unlink((*out)->temp); /* nothing can be done about a failure, and the name says it */
    dispose(*out);
    *out = NULL;
}

/* Create a file that nobody has: `.NAME.PID.K.part` beside the final one. */
static rp_status create_unfinished(rp_output *output, struct rp_error *err)
{
    const char *path = output->path;
    size_t room = strlen(path) + 48;
    output->temp = rp_calloc(room, 1);
    if (output->temp == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a file name");
    }
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    for (int k = 0; k < ATTEMPTS && output->fd < 0; k++) {
        (void)snprintf(output->temp, room, "%.*s.%s.%ld.%d.part", folder, path, path + folder,
                       (long)getpid(), k); /* fits by construction */
        do {
            output->fd = open(output->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        } while (output->fd < 0 && errno == EINTR);
        if (output->fd < 0 && errno != EEXIST) {
            break;
        }
    }
    return output->fd >= 0 ? RP_OK : rp_fail_io(err, "create", path, errno);
}

/* A full disk shows at once, and the file lies in few pieces; its size tells how far it is. Best
 * effort where the file system knows no such thing. */
static rp_status reserve(rp_output *output, struct rp_error *err)
{
    int rc;
    do {
        rc = fallocate(output->fd, FALLOC_FL_KEEP_SIZE, 0, output->size);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
        return rp_fail_io(err, "reserve the bytes of", output->path, errno);
    }
    return RP_OK;
}

/* A file of some size goes past the page cache where the file system can do that: its bytes are
 * copied once less, the disk works from the first one on, and what others keep in memory stays
 * there. */
static rp_status make_buffer(rp_output *output, struct rp_error *err)
{
    output->memory = rp_calloc(BUFFERS * BUFFER + ALIGN, 1);
    if (output->memory == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for buffers of %d bytes", BUFFERS * BUFFER);
    }
    output->buffer = output->memory + (ALIGN - (uintptr_t)output->memory % ALIGN);
    output->other = output->buffer + BUFFER;
    int flags = output->size >= BUFFERS * BUFFER ? fcntl(output->fd, F_GETFL) : -1;
    output->direct = flags >= 0 && fcntl(output->fd, F_SETFL, flags | O_DIRECT) == 0;
    return RP_OK;
}

static void leave_direct(rp_output *output)
{
    int flags = fcntl(output->fd, F_GETFL);
    (void)fcntl(output->fd, F_SETFL, flags & ~O_DIRECT); /* the next write tells */
    output->direct = false;
    output->begun = output->written;
}

rp_status rp_output_open(const char *path, int64_t size, rp_output **out, struct rp_error *err)
{
    rp_output *output = rp_calloc(1, sizeof(*output));
    if (output == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a file");
    }
    output->fd = -1;
    output->size = size;
    output->path = rp_strdup(path);
    rp_status status = output->path != NULL
                           ? create_unfinished(output, err)
                           : rp_error_set(err, RP_E_NOMEM, "out of memory for a file name");
    if (status != RP_OK) {
        dispose(output); /* no file was made */
        return status;
    }
    status = size > 0 ? reserve(output, err) : RP_OK;
    if (status == RP_OK) {
        status = make_buffer(output, err);
    }
    if (status != RP_OK) {
        rp_output_abandon(&output);
        return status;
    }
    *out = output;
    return RP_OK;
}

/* The final fsync then waits for the last bytes only. A hint: where it fails, fsync does it all. */
static void write_early(rp_output *output, int64_t least)
{
    if (!output->direct && output->written - output->begun >= least) {
        (void)sync_file_range(output->fd, output->begun, output->written - output->begun,
                              SYNC_FILE_RANGE_WRITE);
        output->begun = output->written;
    }
}

/* Write bytes of a buffer. */
static rp_status put(rp_output *output, const uint8_t *data, size_t len, struct rp_error *err)
{
    for (size_t at = 0; at < len;) {
        size_t most = output->direct || len - at < CACHED ? len - at : CACHED;
        ssize_t done = pwrite(output->fd, data + at, most, (off_t)output->written);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done < 0 && errno == EINVAL && output->direct) {
            leave_direct(output); /* the file system wants more, or a write was cut short */
            continue;
        }
        if (done <= 0) { /* 0: no progress and no reason given */
            return rp_fail_io(err, "write", output->path, done < 0 ? errno : EIO);
        }
        at += (size_t)done;
        output->written += done;
        write_early(output, EARLY);
    }
    return RP_OK;
}

/* Wait for what is under way; what of it failed is tried here, which also says why. */
static rp_status collect(rp_output *output, struct rp_error *err)
{
    if (output->under_way == 0) {
        return RP_OK;
    }
    size_t done, len = output->under_way;
    (void)rp_write_behind_wait(output->behind, &done); /* a failure shows again */
    output->under_way = 0;
    output->written += (int64_t)done;
    return put(output, output->other + done, len - done, err);
}

/* Write the buffer, in the background where that helps; it is empty then. */
static rp_status put_buffer(rp_output *output, struct rp_error *err)
{
    RP_TRY(collect(output, err));
    size_t len = output->held;
    output->held = 0;
    bool begun = output->direct &&
                 (output->behind != NULL || rp_write_behind_new(&output->behind, NULL) == RP_OK);
    if (!begun) { /* there is nothing to win, or no thread */
        return put(output, output->buffer, len, err);
    }
    uint8_t *full = output->buffer;
    output->buffer = output->other;
    output->other = full;
    output->under_way = len;
    rp_write_behind_begin(output->behind, output->fd, full, len, output->written);
    return RP_OK;
}

static size_t room(const rp_output *output)
{
    return (output->direct ? BUFFER : CACHED) - output->held;
}

/* `len` bytes were put behind those held; `room` of them at most. */
static rp_status take(rp_output *output, size_t len, struct rp_error *err)
{
    output->held += len;
    output->at += (int64_t)len;
    return room(output) > 0 ? RP_OK : put_buffer(output, err);
}

/* What is held at the end: whole blocks, and the rest through the page cache. */
static rp_status put_rest(rp_output *output, struct rp_error *err)
{
    RP_TRY(collect(output, err));
    size_t blocks = output->direct ? output->held / ALIGN * ALIGN : 0;
    RP_TRY(put(output, output->buffer, blocks, err));
    if (output->direct) {
        leave_direct(output);
    }
    memmove(output->buffer, output->buffer + blocks, output->held - blocks);
    output->held -= blocks;
    RP_TRY(put(output, output->buffer, output->held, err));
    output->held = 0;
    return RP_OK;
}

void rp_output_sum(rp_output *output, const uint32_t *sizes, int64_t n, uint32_t *sums)
{
    output->piece = sizes;
    output->sum = sums;
    output->pieces = n;
    output->piece_at = 0;
}

static void sum_up(rp_output *output, const uint8_t *data, size_t len)
{
    while (output->pieces > 0 && (len > 0 || *output->piece == 0)) {
        size_t left = *output->piece - output->piece_at, take = len < left ? len : left;
        *output->sum = rp_crc32c(output->piece_at > 0 ? *output->sum : 0, data, take);
        data += take;
        len -= take;
        output->piece_at += (uint32_t)take;
        if (take == left) {
            output->piece++;
            output->sum++;
            output->pieces--;
            output->piece_at = 0;
        }
    }
}

rp_status rp_output_write(rp_output *output, const void *data, size_t len, struct rp_error *err)
{
    const uint8_t *from = data;
    sum_up(output, from, len);
    while (len > 0) {
        size_t piece = len < room(output) ? len : room(output);
        memcpy(output->buffer + output->held, from, piece);
        RP_TRY(take(output, piece, err));
        from += piece;
        len -= piece;
    }
    return RP_OK;
}

static rp_status copy(rp_output *output, int fd, const char *path, int64_t offset, int64_t len,
                      struct rp_error *err)
{
    while (len > 0) {
        size_t most = room(output) < CACHED ? room(output) : CACHED;
        uint8_t *to = output->buffer + output->held;
        ssize_t got = pread(fd, to, len < (int64_t)most ? (size_t)len : most, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return rp_fail_io(err, "read", path, errno);
        }
        if (got == 0) {
            rp_status code = rp_error_set(err, RP_E_FORMAT, "truncated: the file ends at byte %lld",
                                          (long long)offset);
            rp_error_at_file(err, path, offset, len);
            return code;
        }
        sum_up(output, to, (size_t)got);
        RP_TRY(take(output, (size_t)got, err));
        offset += got;
        len -= got;
    }
    return RP_OK;
}

rp_status rp_output_copy(rp_output *output, rp_files *files, int i, int64_t offset, int64_t len,
                         struct rp_error *err)
{
    int fd;
    RP_TRY(rp_files_acquire(files, i, &fd, err));
    rp_status status = copy(output, fd, rp_files_path(files, i), offset, len, err);
    rp_files_release(files, i);
    int64_t size;
    return status == RP_OK ? rp_files_size(files, i, &size, err)
                           : status; /* not changed under us */
}

/* The folder's entry must reach the disk too: a rename alone may be lost with the power. */
static rp_status sync_folder(const char *path, struct rp_error *err)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash == NULL ? 1 : slash == path ? 1 : (size_t)(slash - path);
    char *folder = rp_calloc(len + 1, 1);
    if (folder == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a file name");
    }
    memcpy(folder, slash == NULL ? "." : path, len);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    rp_status status = RP_OK;
    if (fd < 0 || (fsync(fd) != 0 && errno != EINVAL)) { /* EINVAL: it keeps folders otherwise */
        status = rp_fail_io(err, "sync the folder of", path, errno);
    }
    if (fd >= 0) {
        (void)close(fd); /* nothing was written through it */
    }
    rp_free(folder);
    return status;
}

static rp_status finish(rp_output *output, bool later, struct rp_error *err)
{
    if (output->at != output->size) {
        rp_status code = rp_error_set(err, RP_E_FORMAT, "%lld bytes written, %lld announced",
                                      (long long)output->at, (long long)output->size);
        rp_error_at_file(err, output->path, -1, -1);
        return code;
    }
    RP_TRY(put_rest(output, err));
    if (later) {
        write_early(output, 1);
    }
    else if (fsync(output->fd) != 0) {
        return rp_fail_io(err, "sync", output->path, errno);
    }
    int fd = output->fd;
    output->fd = -1; /* gone after close, whatever it says */
    if (close(fd) != 0) {
        return rp_fail_io(err, "close", output->path, errno);
    }
    if (rename(output->temp, output->path) != 0) {
        return rp_fail_io(err, "name", output->path, errno);
    }
    return RP_OK;
}

rp_status rp_output_commit(rp_output **out, bool later, struct rp_error *err)
{
    rp_output *output = *out;
    rp_status status = finish(output, later, err);
    if (status != RP_OK) {
        rp_output_abandon(out);
        return status;
    }
    *out = NULL;
    status = later ? RP_OK : sync_folder(output->path, err);
    if (status != RP_OK) {
        (void)unlink(output->path); /* not kept by the disk for certain: the caller starts again */
    }
    dispose(output);
    return status;
}
