/* Controls of the fake libcuda.so.1 (fake_cuda.c), which tests load in the place of the driver. */
#ifndef RP_TESTS_FAKE_CUDA_H
#define RP_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>

enum fake_thing {
    FAKE_CONTEXT,
    FAKE_MEMORY,
    FAKE_HOST,
    FAKE_STREAM,
    FAKE_EVENT,
    FAKE_MODULE,
    FAKE_THINGS
};

struct fake_cuda {
    int version, devices;
    size_t limit;          /* bytes of device memory; 0: no limit */
    bool lazy;             /* work of a stream is done only when somebody waits for it, or by run */
    long fail_nth;         /* this call fails, counted from 1 since reset; 0: none */
    int fail_code;         /* with this number */
    const char *fail_name; /* only calls of this name are counted; NULL: all */
    int lost;              /* every call but of contexts fails so; 0: none */
    /* seen */
    long calls;             /* counted for fail_nth */
    long live[FAKE_THINGS]; /* not given back yet */
    long launches, copies;  /* done */
    size_t bytes;           /* of device memory in use */
    int depth;              /* contexts pushed and not popped */
    long misuse; /* calls without a context, unknown handles, bytes outside: bugs of the caller */
    void (*run)(void);             /* do all work */
    void (*run_but)(void *stream); /* all but that stream's, as far as it is not waited for */
    void (*reset)(void);           /* everything as at the start; what is alive stays */
    const char *spare_name;        /* calls of this name are not counted for fail_nth; NULL: none */
};

/* Symbol of the library: its one state. */
struct fake_cuda *fake_cuda(void);
#define FAKE_CUDA_SYMBOL "fake_cuda"

#endif
