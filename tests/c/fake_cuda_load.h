/* Finds the fake libcuda.so.1 beside the running test program, and its controls. */
#ifndef RP_TESTS_FAKE_CUDA_LOAD_H
#define RP_TESTS_FAKE_CUDA_LOAD_H

#include "fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Path of the library. */
static const char *fake_path(void)
{
    static char path[512];
    char self[400] = "";
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0 && strrchr(self, '/') != NULL) {
        *strrchr(self, '/') = '\0';
    }
    (void)snprintf(path, sizeof(path), "%s/fake_libcuda.so.1", self);
    return path;
}

/* Its state, as at the start. */
static struct fake_cuda *fake_start(void)
{
    void *library = dlopen(fake_path(), RTLD_NOW | RTLD_NODELETE);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    struct fake_cuda *(*state)(void);
    void *found = dlsym(library, FAKE_CUDA_SYMBOL);
    memcpy(&state, &found, sizeof(found));
    dlclose(library);
    state()->reset();
    return state();
}

/* Everything was given back, and nothing was done wrongly. */
static __attribute__((unused)) bool fake_is_clean(const struct fake_cuda *fake)
{
    bool clean = fake->misuse == 0 && fake->depth == 0 && fake->bytes == 0;
    for (int i = 0; i < FAKE_THINGS; i++) {
        clean = clean && fake->live[i] == 0;
    }
    if (!clean) {
        fprintf(stderr, "misuse %ld, depth %d, live %ld %ld %ld %ld %ld %ld\n", fake->misuse,
                fake->depth, fake->live[0], fake->live[1], fake->live[2], fake->live[3],
                fake->live[4], fake->live[5]);
    }
    return clean;
}

#endif
