#include "fetch/fetch.h"

#include "base/counters.h"
#include "base/memory.h"
#include "base/thread.h"
#include "fetch/fetch_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file {
    char *path;
    int fd;    /* -1: closed */
    int users; /* reads under way; a used descriptor is not closed */
    uint64_t last_use;
    int64_t size; /* -1: never looked at */
    int64_t mtime_ns;
    const struct rp_remote_file *remote; /* NULL: it is local */
    int64_t whole; /* size of a remote one whose server knows no ranges, else 0; atomic */
};

struct rp_files {
    rp_lock lock;
    int n, max_open;
    struct rp_remote_stats stats; /* atomics */
    bool ended;                   /* atomic: no more network */
    /* guarded by lock: */
    int open_count;
    uint64_t clock;
    struct file *file;
    int *open_list; /* numbers of the open files, open_count of them */
    int open_cap;
};

rp_status rp_files_new_remote(const char *const *paths, int n, int max_open,
                              const struct rp_remote_file *remote, rp_files **out,
                              struct rp_error *err)
{
    RP_TRY(rp_files_new(paths, n, max_open, out, err));
    for (int i = 0; i < n && remote != NULL; i++) {
        const struct rp_remote_file *file = &remote[i];
        if (file->http.url != NULL) {
            (*out)->file[i].remote = file;
            (*out)->file[i].size = file->http.size;
            (*out)->file[i].whole = file->http.whole ? file->http.size : 0;
        }
    }
    return RP_OK;
}

rp_status rp_files_new(const char *const *paths, int n, int max_open, rp_files **out,
                       struct rp_error *err)
{
    rp_files *files = rp_calloc(1, sizeof(*files));
    if (files == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %d files", n);
    }
    rp_status status = rp_lock_init(&files->lock, err);
    if (status != RP_OK) {
        rp_free(files);
        return status;
    }
    files->max_open = max_open;
    files->file = rp_calloc((size_t)n, sizeof(*files->file));
    if (files->file != NULL) {
        for (int i = 0; i < n; i++) {
            files->n = i + 1; /* what rp_files_free may look at */
            files->file[i].fd = -1;
            files->file[i].size = -1;
            files->file[i].path = rp_strdup(paths[i]);
            if (files->file[i].path == NULL) {
                goto fail;
            }
        }
        *out = files;
        return RP_OK;
    }
fail:
    rp_files_free(&files);
    RP_FAIL(err, RP_E_NOMEM, "out of memory for %d files", n);
}

bool rp_files_is_remote(const rp_files *files, int i)
{
    return files->file[i].remote != NULL;
}

int64_t rp_files_whole(const rp_files *files, int i)
{
    return __atomic_load_n(&files->file[i].whole, __ATOMIC_RELAXED);
}

void rp_files_interrupt(rp_files *files)
{
    __atomic_store_n(&files->ended, true, __ATOMIC_RELEASE);
}

void rp_files_remote_stats(const rp_files *files, struct rp_remote_stats *out)
{
    const struct rp_remote_stats *s = &files->stats;
    *out = (struct rp_remote_stats){.wanted = rp_counted(&s->wanted),
                                    .fetched = rp_counted(&s->fetched),
                                    .cached = rp_counted(&s->cached),
                                    .waits_ns = rp_counted(&s->waits_ns)};
}

const char *rp_files_path(const rp_files *files, int i)
{
    return files->file[i].path;
}

void rp_files_abandon(rp_files *files)
{
    for (int i = 0; i < files->n; i++) {
        if (files->file[i].fd >= 0) {
            (void)close(files->file[i].fd); /* read-only descriptor: nothing to lose */
        }
    }
}

void rp_files_free(rp_files **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_files *files = *out;
    *out = NULL;
    rp_files_abandon(files);
    for (int i = 0; i < files->n; i++) {
        rp_free(files->file[i].path);
    }
    rp_free(files->file);
    rp_free(files->open_list);
    rp_lock_free(&files->lock);
    rp_free(files);
}

rp_status rp_fail_io(struct rp_error *err, const char *verb, const char *path, int code)
{
    rp_status status = code == ENOENT || code == ENOTDIR ? RP_E_NOT_FOUND : RP_E_IO;
    (void)rp_error_set(err, status, "cannot %s the file: %s", verb, strerror(code));
    if (err != NULL) {
        err->sys = code;
    }
    rp_error_at_file(err, path, -1, -1);
    return status;
}

static void close_oldest_locked(rp_files *files)
{
    int oldest = -1;
    for (int k = 0; k < files->open_count; k++) {
        const struct file *file = &files->file[files->open_list[k]];
        if (file->users == 0 &&
            (oldest < 0 || file->last_use < files->file[files->open_list[oldest]].last_use)) {
            oldest = k;
        }
    }
    if (oldest >= 0) {
        struct file *file = &files->file[files->open_list[oldest]];
        (void)close(file->fd); /* read-only descriptor: nothing to lose */
        file->fd = -1;
        files->open_list[oldest] = files->open_list[--files->open_count];
    }
}

static rp_status remember_locked(rp_files *files, int i, int fd, struct rp_error *err)
{
    if (files->open_count >= files->max_open) {
        close_oldest_locked(files);
    }
    if (files->open_count == files->open_cap) { /* all in use: more threads than max_open */
        int cap = files->open_cap + files->max_open;
        int *list = rp_realloc(files->open_list, (size_t)cap, sizeof(*list));
        if (list == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %d open files", cap);
        }
        files->open_list = list;
        files->open_cap = cap;
    }
    files->open_list[files->open_count++] = i;
    files->file[i].fd = fd;
    return RP_OK;
}

/* A descriptor of file i with one more user. */
static rp_status acquire(rp_files *files, int i, int *fd, struct rp_error *err)
{
    struct file *file = &files->file[i];
    rp_lock_acquire(&files->lock);
    *fd = file->fd;
    if (*fd >= 0) {
        file->users++;
        file->last_use = ++files->clock;
    }
    rp_lock_release(&files->lock);
    if (*fd >= 0) {
        return RP_OK;
    }
    int opened;
    do {
        /* O_NONBLOCK: a pipe in the place of a video is refused, not waited for */
        opened = open(file->path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    } while (opened < 0 && errno == EINTR);
    if (opened < 0) {
        return rp_fail_io(err, "open", file->path, errno);
    }
    rp_status status = RP_OK;
    rp_lock_acquire(&files->lock);
    if (file->fd < 0) {
        status = remember_locked(files, i, opened, err);
        if (status == RP_OK) {
            opened = -1;
        }
    }
    if (status == RP_OK) {
        *fd = file->fd;
        file->users++;
        file->last_use = ++files->clock;
    }
    rp_lock_release(&files->lock);
    if (opened >= 0) {
        (void)close(opened); /* another thread was first, or memory is short */
    }
    return status;
}

static void release(rp_files *files, int i)
{
    rp_lock_acquire(&files->lock);
    files->file[i].users--;
    rp_lock_release(&files->lock);
}

static rp_status check_version(rp_files *files, int i, int fd, int64_t *size, struct rp_error *err)
{
    struct file *file = &files->file[i];
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return rp_fail_io(err, "stat", file->path, errno);
    }
    if (!S_ISREG(st.st_mode)) {
        (void)rp_error_set(err, RP_E_FORMAT, "not a regular file");
        rp_error_at_file(err, file->path, -1, -1);
        return RP_E_FORMAT;
    }
    int64_t mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    rp_lock_acquire(&files->lock);
    if (file->size < 0) {
        file->size = st.st_size;
        file->mtime_ns = mtime_ns;
    }
    int64_t pinned = file->size;
    bool same = pinned == st.st_size && file->mtime_ns == mtime_ns;
    rp_lock_release(&files->lock);
    if (!same) {
        (void)rp_error_set(err, RP_E_CHANGED,
                           "the file changed while in use (%lld bytes, %lld when first opened)",
                           (long long)st.st_size, (long long)pinned);
        rp_error_at_file(err, file->path, -1, -1);
        return RP_E_CHANGED;
    }
    *size = pinned;
    return RP_OK;
}

static bool is_ended(void *cookie)
{
    const rp_files *files = cookie;
    return __atomic_load_n(&files->ended, __ATOMIC_ACQUIRE);
}

static struct rp_remote_read remote_read(rp_files *files, int i)
{
    return (struct rp_remote_read){
        .file = files->file[i].remote, .stats = &files->stats, .watch = {is_ended, files}};
}

/* Errors of the network name the file as the dataset knows it; where it lies is in the text. */
static rp_status name_remote(const rp_files *files, int i, rp_status status, int64_t offset,
                             int64_t len, struct rp_error *err)
{
    if (status != RP_OK && status != RP_AGAIN && err != NULL) {
        err->file[0] = '\0';
        rp_error_at_file(err, files->file[i].path, offset, len);
    }
    return status;
}

static rp_status size_of_remote(rp_files *files, int i, int64_t *size, struct rp_error *err)
{
    struct file *file = &files->file[i];
    rp_lock_acquire(&files->lock);
    *size = file->size;
    rp_lock_release(&files->lock);
    if (*size >= 0) {
        return RP_OK;
    }
    struct rp_remote_read read = remote_read(files, i);
    bool whole;
    rp_status status = rp_remote_size(&read, size, &whole, err);
    if (status == RP_OK) {
        rp_lock_acquire(&files->lock);
        file->size = *size;
        __atomic_store_n(&file->whole, whole ? *size : 0, __ATOMIC_RELAXED);
        rp_lock_release(&files->lock);
    }
    return name_remote(files, i, status, -1, -1, err);
}

bool rp_files_has_cache(const rp_files *files, int i)
{
    const struct rp_remote_file *remote = files->file[i].remote;
    return remote != NULL && remote->cache != NULL && remote->key != NULL;
}

bool rp_files_read_cached(rp_files *files, int i, int64_t offset, int64_t len, uint8_t *to)
{
    struct rp_remote_read read = remote_read(files, i);
    return size_of_remote(files, i, &read.size, NULL) == RP_OK &&
           rp_remote_cached(&read, offset, len, to);
}

static rp_status read_remote(rp_files *files, int i, int64_t offset, int64_t len, uint8_t *to,
                             bool parts, struct rp_error *err)
{
    struct rp_remote_read read = remote_read(files, i);
    RP_TRY(size_of_remote(files, i, &read.size, err));
    read.whole = rp_files_whole(files, i) > 0;
    read.parts = parts;
    return name_remote(files, i, rp_remote_bytes(&read, offset, len, to, err), offset, len, err);
}

rp_status rp_files_size(rp_files *files, int i, int64_t *size, struct rp_error *err)
{
    if (files->file[i].remote != NULL) {
        return size_of_remote(files, i, size, err);
    }
    int fd;
    RP_TRY(acquire(files, i, &fd, err));
    rp_status status = check_version(files, i, fd, size, err);
    release(files, i);
    return status;
}

rp_status rp_files_version(rp_files *files, int i, int64_t *size, int64_t *mtime_ns,
                           struct rp_error *err)
{
    RP_TRY(
        rp_files_size(files, i, size, err)); /* a remote file's time is 0: its version is pinned */
    rp_lock_acquire(&files->lock);
    *mtime_ns = files->file[i].mtime_ns;
    rp_lock_release(&files->lock);
    return RP_OK;
}

static rp_status read_all(int fd, const char *path, int64_t offset, int64_t len, uint8_t *to,
                          struct rp_error *err)
{
    for (int64_t at = 0; at < len;) {
        ssize_t got = pread(fd, to + at, (size_t)(len - at), (off_t)(offset + at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            rp_status status = rp_fail_io(err, "read", path, errno);
            rp_error_at_file(err, path, offset, len);
            return status;
        }
        if (got == 0) {
            (void)rp_error_set(err, RP_E_FORMAT, "truncated: the file ends at byte %lld",
                               (long long)(offset + at));
            rp_error_at_file(err, path, offset, len);
            return RP_E_FORMAT;
        }
        at += got;
    }
    return RP_OK;
}

rp_status rp_files_acquire(rp_files *files, int i, int *fd, struct rp_error *err)
{
    int64_t size;
    RP_TRY(acquire(files, i, fd, err));
    rp_status status = check_version(files, i, *fd, &size, err);
    if (status != RP_OK) {
        release(files, i);
    }
    return status;
}

void rp_files_release(rp_files *files, int i)
{
    release(files, i);
}

rp_status rp_files_read(rp_files *files, int i, int64_t offset, int64_t len, uint8_t *to,
                        struct rp_error *err)
{
    if (files->file[i].remote != NULL) {
        return read_remote(files, i, offset, len, to, false, err);
    }
    int fd;
    RP_TRY(acquire(files, i, &fd, err));
    int64_t size;
    rp_status status = check_version(files, i, fd, &size, err);
    if (status == RP_OK) {
        status = read_all(fd, files->file[i].path, offset, len, to, err);
    }
    release(files, i);
    return status;
}

rp_status rp_files_read_parts(rp_files *files, int i, int64_t offset, int64_t len, uint8_t *to,
                              struct rp_error *err)
{
    return rp_files_is_remote(files, i) ? read_remote(files, i, offset, len, to, true, err)
                                        : rp_files_read(files, i, offset, len, to, err);
}
