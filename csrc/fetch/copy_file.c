#include "fetch/fetch_priv.h"

#include "base/crc32c.h"
#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLICE    (256LL << 20) /* bytes of one copy_file_range */
#define BUFFER   (256 << 10)   /* bytes of one read and write, which stay in the core's cache */
#define EARLY    (16LL << 20)  /* bytes after which the disk is set to work */
#define ATTEMPTS 1000          /* names tried for the unfinished file */

struct rp_output {
    char *path, *temp; /* final name; name until then */
    int fd;
    int64_t size, at; /* bytes promised, written */
    int64_t begun;    /* bytes that the disk was told of */
    uint8_t *buffer;  /* [BUFFER], from its first use */
    /* pieces to sum up, the caller's: */
    const uint32_t *piece; /* [pieces] bytes of each */
    uint32_t *sum;         /* [pieces] */
    int64_t pieces;        /* left */
    uint32_t piece_at;     /* bytes of the first one that were seen */
};

static void dispose(rp_output *output)
{
    if (output->fd >= 0) {
        (void)close(output->fd); /* the file is being thrown away or was closed already */
    }
    rp_free(output->path);
    rp_free(output->temp);
    rp_free(output->buffer);
    rp_free(output);
}

void rp_output_abandon(rp_output **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
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
    if (output->at - output->begun >= least) {
        (void)sync_file_range(output->fd, output->begun, output->at - output->begun,
                              SYNC_FILE_RANGE_WRITE);
        output->begun = output->at;
    }
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
        ssize_t put = pwrite(output->fd, from, len, (off_t)output->at);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) { /* 0: no progress and no reason given */
            return rp_fail_io(err, "write", output->path, put < 0 ? errno : EIO);
        }
        from += put;
        len -= (size_t)put;
        output->at += put;
    }
    write_early(output, EARLY);
    return RP_OK;
}

/* Copy what the kernel would not, or what is summed up on its way. */
static rp_status copy_by_hand(rp_output *output, int fd, const char *path, int64_t offset,
                              int64_t len, struct rp_error *err)
{
    if (output->buffer == NULL) {
        output->buffer = rp_calloc(BUFFER, 1);
        if (output->buffer == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a buffer of %d bytes", BUFFER);
        }
    }
    while (len > 0) {
        ssize_t got = pread(fd, output->buffer, len < BUFFER ? (size_t)len : BUFFER, (off_t)offset);
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
        RP_TRY(rp_output_write(output, output->buffer, (size_t)got, err));
        offset += got;
        len -= got;
    }
    return RP_OK;
}

static bool means_full(int code)
{
    return code == ENOSPC || code == EDQUOT || code == EFBIG;
}

static rp_status copy_range(rp_output *output, int fd, const char *path, int64_t offset,
                            int64_t len, struct rp_error *err)
{
    while (len > 0) {
        off_t from = offset, to = output->at;
        ssize_t put =
            copy_file_range(fd, &from, output->fd, &to, (size_t)(len < SLICE ? len : SLICE), 0);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0 && means_full(errno)) {
            return rp_fail_io(err, "write", output->path, errno);
        }
        if (put <= 0) { /* other file systems, or an error that reading or writing will name */
            return copy_by_hand(output, fd, path, offset, len, err);
        }
        offset += put;
        len -= put;
        output->at += put;
    }
    return RP_OK;
}

rp_status rp_output_copy(rp_output *output, rp_files *files, int i, int64_t offset, int64_t len,
                         struct rp_error *err)
{
    int fd;
    RP_TRY(rp_files_acquire(files, i, &fd, err));
    const char *path = rp_files_path(files, i);
    rp_status status = output->pieces > 0 ? copy_by_hand(output, fd, path, offset, len, err)
                                          : copy_range(output, fd, path, offset, len, err);
    rp_files_release(files, i);
    write_early(output, EARLY);
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
