/* Makes the n-th call of a system function fail; linked into every C test by -Wl,--wrap=F.
 * Only calls from our own objects are wrapped: those inside shared libraries are not. */
#ifndef RP_TESTS_FAULT_INJECT_H
#define RP_TESTS_FAULT_INJECT_H

#include <stdbool.h>

/* Groups of wrapped functions, or-ed. */
enum rp_fault_calls {
    RP_FAULT_MEMORY = 1, /* malloc calloc realloc posix_memalign mmap */
    RP_FAULT_THREAD = 2, /* pthread_create pthread_mutex_init pthread_cond_init */
    RP_FAULT_FILE = 4,   /* open pread fstat */
    RP_FAULT_WRITE = 8,  /* pwrite copy_file_range fallocate fsync rename */
    RP_FAULT_ALL = 15
};

/* How a failing pread fails; but for the writing ones, the other functions always fail with their
 * own errno. */
enum rp_fault_read {
    RP_FAULT_READ_EIO = 0,
    RP_FAULT_READ_EINTR, /* once; a caller that retries succeeds */
    RP_FAULT_READ_SHORT, /* half of what was asked for, at least one byte */
    RP_FAULT_READ_END    /* 0: the file was cut */
};

/* How a failing pwrite, copy_file_range or fallocate fails; fsync and rename know EIO alone. */
enum rp_fault_write {
    RP_FAULT_WRITE_FULL = 0, /* ENOSPC */
    RP_FAULT_WRITE_EINTR,    /* once; a caller that retries succeeds */
    RP_FAULT_WRITE_SHORT,    /* half of what was asked for; fallocate succeeds */
    RP_FAULT_WRITE_UNABLE    /* it cannot copy, reserve, or write past the cache; else it can */
};

struct rp_fault {
    int calls;   /* enum rp_fault_calls; 0 = RP_FAULT_ALL */
    int read;    /* enum rp_fault_read */
    int write;   /* enum rp_fault_write */
    long nth;    /* counted from 1 over the chosen calls */
    bool onward; /* also every call after the nth */
};

/* Start counting calls. Thread: one; counted calls may come from any. Blocks: never. */
void rp_fault_arm(const struct rp_fault *fault);

/* Stop. Returns whether the nth call was reached. Thread: one. Blocks: never. */
bool rp_fault_disarm(void);

/* Calls counted since the last arm. Thread: any. Blocks: never. */
long rp_fault_count(void);

#endif
