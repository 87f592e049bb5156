#include "fault_inject.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct rp_fault current;
static atomic_bool armed;
static atomic_long count;

void rp_fault_arm(const struct rp_fault *fault)
{
    current = *fault;
    current.calls = fault->calls != 0 ? fault->calls : RP_FAULT_ALL;
    atomic_store(&count, 0);
    atomic_store(&armed, true);
}

bool rp_fault_disarm(void)
{
    bool was_armed = atomic_exchange(&armed, false);
    return was_armed && atomic_load(&count) >= current.nth;
}

long rp_fault_count(void)
{
    return atomic_load(&count);
}

static bool fails(int call)
{
    if (!atomic_load(&armed) || (current.calls & call) == 0) {
        return false;
    }
    long n = atomic_fetch_add(&count, 1) + 1;
    return n == current.nth || (current.onward && n > current.nth);
}

/* Every wrapper is called by the linker's renaming alone, so its prototype stands here. */
#define WRAP(type, name, params, args, group, failure) \
    type __real_##name params;                         \
    type __wrap_##name params;                         \
    type __wrap_##name params                          \
    {                                                  \
        if (fails(group)) {                            \
            failure;                                   \
        }                                              \
        return __real_##name args;                     \
    }

#define NO_MEMORY   \
    errno = ENOMEM; \
    return NULL

WRAP(void *, malloc, (size_t n), (n), RP_FAULT_MEMORY, NO_MEMORY)
WRAP(void *, calloc, (size_t n, size_t size), (n, size), RP_FAULT_MEMORY, NO_MEMORY)
WRAP(void *, realloc, (void *ptr, size_t n), (ptr, n), RP_FAULT_MEMORY, NO_MEMORY)
WRAP(int, posix_memalign, (void **out, size_t align, size_t n), (out, align, n), RP_FAULT_MEMORY,
     return ENOMEM)
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t offset),
     (at, n, prot, flags, fd, offset), RP_FAULT_MEMORY, errno = ENOMEM;
     return MAP_FAILED)
WRAP(int, pthread_create,
     (pthread_t * id, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
     (id, attr, run, arg), RP_FAULT_THREAD, return EAGAIN)
WRAP(int, pthread_mutex_init, (pthread_mutex_t * mutex, const pthread_mutexattr_t *attr),
     (mutex, attr), RP_FAULT_THREAD, return ENOMEM)
WRAP(int, pthread_cond_init, (pthread_cond_t * cond, const pthread_condattr_t *attr), (cond, attr),
     RP_FAULT_THREAD, return ENOMEM)
WRAP(int, fstat, (int fd, struct stat *out), (fd, out), RP_FAULT_FILE, errno = EIO; return -1)

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (fails(RP_FAULT_FILE)) {
        errno = EMFILE;
        return -1;
    }
    return __real_open(path, flags, mode);
}

ssize_t __real_pread(int fd, void *to, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t offset);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t offset)
{
    if (!fails(RP_FAULT_FILE)) {
        return __real_pread(fd, to, n, offset);
    }
    if (current.read == RP_FAULT_READ_SHORT) {
        return __real_pread(fd, to, n > 1 ? n / 2 : n, offset);
    }
    if (current.read == RP_FAULT_READ_END) {
        return 0;
    }
    errno = current.read == RP_FAULT_READ_EINTR ? EINTR : EIO;
    return -1;
}

/* Set errno as a failing write does; false where this kind of fault lets the call succeed. */
static bool write_fails(int unable)
{
    static const int code[] = {ENOSPC, EINTR, 0, 0};
    errno = current.write == RP_FAULT_WRITE_UNABLE ? unable : code[current.write];
    return errno != 0;
}

static size_t short_of(size_t n)
{
    return current.write == RP_FAULT_WRITE_SHORT && n > 1 ? n / 2 : n;
}

ssize_t __real_pwrite(int fd, const void *from, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t offset)
{
    bool faulty = fails(RP_FAULT_WRITE);
    if (faulty && write_fails((fcntl(fd, F_GETFL) & O_DIRECT) != 0 ? EINVAL : 0)) {
        return -1;
    }
    return __real_pwrite(fd, from, faulty ? short_of(n) : n, offset);
}

ssize_t __real_copy_file_range(int in, off_t *from, int out, off_t *to, size_t n, unsigned flags);
ssize_t __wrap_copy_file_range(int in, off_t *from, int out, off_t *to, size_t n, unsigned flags);
ssize_t __wrap_copy_file_range(int in, off_t *from, int out, off_t *to, size_t n, unsigned flags)
{
    bool faulty = fails(RP_FAULT_WRITE);
    if (faulty && write_fails(EXDEV)) {
        return -1;
    }
    return __real_copy_file_range(in, from, out, to, faulty ? short_of(n) : n, flags);
}

int __real_fallocate(int fd, int mode, off_t offset, off_t n);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t n);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t n)
{
    if (fails(RP_FAULT_WRITE) && write_fails(EOPNOTSUPP)) {
        return -1;
    }
    return __real_fallocate(fd, mode, offset, n);
}

#define BROKEN_DISK                             \
    if (current.write == RP_FAULT_WRITE_FULL) { \
        errno = EIO;                            \
        return -1;                              \
    }

WRAP(int, fsync, (int fd), (fd), RP_FAULT_WRITE, BROKEN_DISK)
WRAP(int, rename, (const char *from, const char *to), (from, to), RP_FAULT_WRITE, BROKEN_DISK)
