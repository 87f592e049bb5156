/* A libcuda.so.1 without a GPU: device memory is malloc'ed, work is queued and done here, the
 * conversion kernel is its host build. Any call can be made to fail. Environment, for programs that
 * cannot reach its controls: FAKE_CUDA_VERSION, FAKE_CUDA_DEVICES, FAKE_CUDA_FAIL=cuInit:100. */
#include "fake_cuda.h"

#include "kernel_host.h"

#include "cuda/cuda_video_priv.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

/* They have the types that the core declares. */
#define DECLARE(field, symbol, parameters) API int symbol parameters;
RP_CUDA_CALLS(DECLARE)

enum {
    INVALID = 1,
    NO_MEMORY = 2,
    NOT_STARTED = 3,
    NO_DEVICE = 100,
    BAD_DEVICE = 101,
    BAD_IMAGE = 200
};
enum { BAD_CONTEXT = 201, BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600 };

enum kind { COPY, LAUNCH, WAIT, MARK };

struct op {
    struct op *next;
    enum kind kind;
    long seq;
    void *stream;
    void *to; /* COPY */
    const void *from;
    size_t len;
    size_t rows, to_pitch, from_pitch;  /* COPY of rows of len bytes; rows 0: of one */
    const struct rp_cuda_frame *frames; /* LAUNCH */
    int n;
    void *of; /* WAIT: for this stream's work up to `upto` */
    long upto;
};

struct event {
    void *stream;
    long seq; /* 0: never recorded */
};

struct memory {
    struct memory *next;
    uint8_t *data;
    size_t len;
    bool host;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_cuda state;
static struct op *queue;
static struct memory *memories;
static long seq;
static char fail_name[64];
static __thread int depth; /* contexts that this thread has pushed */

static void run_all(void);
static void do_but(void *stream);

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? (int)strtol(text, NULL, 10) : otherwise;
}

static void reset(void)
{
    long live[FAKE_THINGS];
    size_t bytes = state.bytes;
    int pushed = state.depth;
    memcpy(live, state.live, sizeof(live));
    memset(&state, 0, sizeof(state));
    memcpy(state.live, live, sizeof(live));
    state.bytes = bytes;
    state.depth = pushed;
    state.version = number("FAKE_CUDA_VERSION", 13000);
    state.devices = number("FAKE_CUDA_DEVICES", 2);
    state.run = run_all;
    state.run_but = do_but;
    state.reset = reset;
    const char *fail = getenv("FAKE_CUDA_FAIL");
    const char *colon = fail != NULL ? strchr(fail, ':') : NULL;
    if (colon != NULL) {
        (void)snprintf(fail_name, sizeof(fail_name), "%.*s", (int)(colon - fail), fail);
        state.fail_name = fail_name;
        state.fail_nth = 1;
        state.fail_code = (int)strtol(colon + 1, NULL, 10);
    }
}

static void lock_it(void)
{
    pthread_mutex_lock(&lock);
}

static void unlock_it(void)
{
    pthread_mutex_unlock(&lock);
}

API struct fake_cuda *fake_cuda(void)
{
    if (state.reset == NULL) {
        (void)pthread_atfork(lock_it, unlock_it, unlock_it); /* a child finds it free */
        reset();
    }
    return &state;
}

/* Begin a call: 0, or the number that it is to fail with. Ends with the lock held. */
static int begin(const char *name, bool in_context)
{
    pthread_mutex_lock(&lock);
    (void)fake_cuda();
    if (in_context && depth < 1) {
        state.misuse++;
        return BAD_CONTEXT;
    }
    if (state.lost != 0 && strncmp(name, "cuCtx", 5) != 0) {
        return state.lost;
    }
    bool spared = state.spare_name != NULL && strcmp(state.spare_name, name) == 0;
    if (!spared && (state.fail_name == NULL || strcmp(state.fail_name, name) == 0)) {
        state.calls++;
        if (state.calls == state.fail_nth) {
            return state.fail_code;
        }
    }
    return 0;
}

static int end(int code)
{
    pthread_mutex_unlock(&lock);
    return code;
}

static void do_op(struct op *op);

/* Whether work of the two is in one order: the legacy default stream (1) and a thread's own (2)
 * wait for each other. */
static bool in_order(const void *a, const void *b)
{
    return a == b || ((uintptr_t)a - 1 < 2 && (uintptr_t)b - 1 < 2);
}

/* Do the work of a stream up to a number; NULL: of all streams. */
static void do_stream(const void *stream, long upto)
{
    struct op **link = &queue;
    while (*link != NULL) {
        struct op *op = *link;
        if ((stream != NULL && !in_order(op->stream, stream)) || op->seq > upto) {
            link = &op->next;
            continue;
        }
        *link = op->next;
        do_op(op);
        free(op);
        link = &queue; /* what it waited for may be gone, too */
    }
}

static void do_op(struct op *op)
{
    if (op->kind == COPY) {
        for (size_t y = 0; y < (op->rows > 0 ? op->rows : 1); y++) {
            memcpy((uint8_t *)op->to + y * op->to_pitch,
                   (const uint8_t *)op->from + y * op->from_pitch, op->len);
        }
        state.copies++;
    }
    else if (op->kind == LAUNCH) {
        kernel_on_host(op->frames, op->n);
        state.launches++;
    }
    else if (op->kind == WAIT) {
        do_stream(op->of, op->upto);
    }
}

static void do_all(void)
{
    do_stream(NULL, seq);
}

static void run_all(void)
{
    lock_it();
    do_all();
    unlock_it();
}

/* The latest that a stream may come: everything else is done first. */
static void do_but(void *stream)
{
    pthread_mutex_lock(&lock);
    for (struct op *op = queue; op != NULL;) {
        bool others = !in_order(op->stream, stream);
        do_stream(op->stream, others ? op->seq : 0);
        op = others ? queue : op->next;
    }
    pthread_mutex_unlock(&lock);
}

static int submit(struct op op)
{
    struct op *made = malloc(sizeof(*made));
    if (made == NULL) {
        return NO_MEMORY;
    }
    *made = op;
    made->next = NULL;
    made->seq = ++seq;
    struct op **link = &queue;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = made;
    if (!state.lazy) {
        do_all();
    }
    return 0;
}

/* Whether the bytes lie in device memory. */
static bool is_device(uint64_t address, size_t len)
{
    for (const struct memory *m = memories; m != NULL; m = m->next) {
        uint64_t first = (uintptr_t)m->data;
        if (!m->host && address >= first && len <= m->len && address - first <= m->len - len) {
            return true;
        }
    }
    state.misuse++;
    return false;
}

static void *new_memory(size_t len, bool host)
{
    struct memory *m = malloc(sizeof(*m));
    uint8_t *data = len < (size_t)1 << 40 ? aligned_alloc(256, (len + 255) / 256 * 256) : NULL;
    if (m == NULL || data == NULL) {
        free(m);
        return NULL;
    }
    memset(data, 0xA5, len);
    *m = (struct memory){.next = memories, .data = data, .len = len, .host = host};
    memories = m;
    return data;
}

static bool lies_in(const struct memory *m, const void *p)
{
    return (uintptr_t)p >= (uintptr_t)m->data && (uintptr_t)p < (uintptr_t)m->data + m->len;
}

/* Free memory, and count it as misuse if work is left that needs it: this driver waits for nothing.
 * Returns how many bytes; 0: there is no such memory. */
static size_t free_memory(uint64_t address)
{
    struct memory **link = &memories;
    while (*link != NULL && (uintptr_t)(*link)->data != address) {
        link = &(*link)->next;
    }
    struct memory *m = *link;
    if (m == NULL) {
        state.misuse++;
        return 0;
    }
    for (const struct op *op = queue; op != NULL; op = op->next) {
        state.misuse += lies_in(m, op->to) || lies_in(m, op->from) || lies_in(m, op->frames);
    }
    size_t len = m->len;
    *link = m->next;
    free(m->data);
    free(m);
    return len;
}

/* Once started it works in this process alone, as the real one. */
API int cuInit(unsigned flags)
{
    static pid_t at_home;
    int code = begin("cuInit", false);
    at_home = at_home == 0 ? getpid() : at_home;
    if (code == 0 && at_home != getpid()) {
        code = NOT_STARTED;
    }
    return end(code != 0 ? code : flags != 0 ? INVALID : state.devices == 0 ? NO_DEVICE : 0);
}

API int cuDriverGetVersion(int *version)
{
    int code = begin("cuDriverGetVersion", false);
    *version = state.version;
    return end(code);
}

API int cuGetErrorName(int code, const char **text)
{
    *text = code == NO_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_FAKE";
    return code == 12345 ? INVALID : 0;
}

API int cuGetErrorString(int code, const char **text)
{
    *text = code == NO_MEMORY ? "out of memory" : "as told";
    return code == 12345 ? INVALID : 0;
}

API int cuDeviceGetCount(int *n)
{
    int code = begin("cuDeviceGetCount", false);
    *n = state.devices;
    return end(code);
}

API int cuDeviceGet(int *device, int ordinal)
{
    int code = begin("cuDeviceGet", false);
    *device = ordinal + 40;
    return end(code != 0 ? code : ordinal < 0 || ordinal >= state.devices ? BAD_DEVICE : 0);
}

API int cuDeviceGetName(char *text, int cap, int device)
{
    int code = begin("cuDeviceGetName", false);
    (void)snprintf(text, (size_t)cap, "Fake GPU %d", device - 40);
    return end(code);
}

API int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    int code = begin("cuDeviceTotalMem", false);
    *bytes = ((size_t)(device - 40) + 1) << 33;
    return end(code);
}

API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    int code = begin("cuDeviceGetAttribute", false);
    *value = attribute == 75   ? 9
             : attribute == 76 ? 0
             : attribute == 16 ? 132
             : attribute == 14 ? 512 /* texture alignment, which FFmpeg asks for */
                               : -1;
    return end(code);
}

API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    int code = begin("cuDevicePrimaryCtxRetain", false);
    if (code == 0) {
        *context = (void *)(uintptr_t)device;
        state.live[FAKE_CONTEXT]++;
    }
    return end(code);
}

API int cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    int code = begin("cuDevicePrimaryCtxRelease", false);
    state.live[FAKE_CONTEXT]--;
    return end(code);
}

API int cuCtxPushCurrent_v2(void *context)
{
    int code = begin("cuCtxPushCurrent", false);
    state.misuse += context == NULL || state.live[FAKE_CONTEXT] < 1;
    state.depth += code == 0;
    depth += code == 0;
    return end(code);
}

API int cuCtxPopCurrent_v2(void **context)
{
    int code = begin("cuCtxPopCurrent", true);
    *context = NULL;
    if (depth > 0) {
        state.depth--;
        depth--;
    }
    return end(code);
}

API int cuCtxSynchronize(void)
{
    int code = begin("cuCtxSynchronize", true);
    if (code == 0) {
        do_all();
    }
    return end(code);
}

API int cuMemAlloc_v2(uint64_t *address, size_t len)
{
    int code = begin("cuMemAlloc", true);
    if (code == 0 && state.limit > 0 && state.bytes + len > state.limit) {
        code = NO_MEMORY;
    }
    if (code == 0) {
        *address = (uintptr_t)new_memory(len, false);
        code = *address == 0 ? NO_MEMORY : 0;
    }
    if (code == 0) {
        state.bytes += len;
        state.live[FAKE_MEMORY]++;
    }
    return end(code);
}

API int cuMemFree_v2(uint64_t address)
{
    int code = begin("cuMemFree", false);
    state.bytes -= free_memory(address);
    state.live[FAKE_MEMORY]--;
    return end(code);
}

API int cuMemHostAlloc(void **data, size_t len, unsigned flags)
{
    (void)flags;
    int code = begin("cuMemHostAlloc", true);
    if (code == 0) {
        *data = new_memory(len, true);
        code = *data == NULL ? NO_MEMORY : 0;
        state.live[FAKE_HOST] += code == 0;
    }
    return end(code);
}

API int cuMemFreeHost(void *data)
{
    int code = begin("cuMemFreeHost", false);
    (void)free_memory((uintptr_t)data);
    state.live[FAKE_HOST]--;
    return end(code);
}

API int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t len, void *stream)
{
    int code = begin("cuMemcpyHtoDAsync", true);
    if (code == 0) {
        code = !is_device(to, len) ? INVALID
                                   : submit((struct op){.kind = COPY,
                                                        .stream = stream,
                                                        .to = (void *)(uintptr_t)to,
                                                        .from = from,
                                                        .len = len});
    }
    return end(code);
}

API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t len, void *stream)
{
    int code = begin("cuMemcpyDtoHAsync", true);
    if (code == 0) {
        code = !is_device(from, len) ? INVALID
                                     : submit((struct op){.kind = COPY,
                                                          .stream = stream,
                                                          .to = to,
                                                          .from = (void *)(uintptr_t)from,
                                                          .len = len});
    }
    return end(code);
}

/* Device to device alone. */
API int cuMemcpy2DAsync_v2(const struct rp_cuda_rows *copy, void *stream)
{
    int code = begin("cuMemcpy2DAsync", true);
    if (code == 0) {
        bool sound = copy->from_space == 2 && copy->to_space == 2 && copy->rows > 0 &&
                     copy->from_x == 0 && copy->from_y == 0 && copy->to_x == 0 && copy->to_y == 0 &&
                     is_device(copy->from, (copy->rows - 1) * copy->from_pitch + copy->width) &&
                     is_device(copy->to, (copy->rows - 1) * copy->to_pitch + copy->width);
        code = !sound ? INVALID
                      : submit((struct op){.kind = COPY,
                                           .stream = stream,
                                           .to = (void *)(uintptr_t)copy->to,
                                           .from = (const void *)(uintptr_t)copy->from,
                                           .len = copy->width,
                                           .rows = copy->rows,
                                           .to_pitch = copy->to_pitch,
                                           .from_pitch = copy->from_pitch});
    }
    return end(code);
}

#include "fake_cuda_streams.h" /* it is a part of this file */

API int cuModuleLoadData(void **module, const void *image)
{
    int code = begin("cuModuleLoadData", true);
    if (code == 0 && (image == NULL || memcmp(image, "no image", 8) == 0)) {
        code = BAD_IMAGE;
    }
    if (code == 0) {
        *module = malloc(1);
        state.live[FAKE_MODULE]++;
    }
    return end(code);
}

API int cuModuleUnload(void *module)
{
    int code = begin("cuModuleUnload", false);
    free(module);
    state.live[FAKE_MODULE]--;
    return end(code);
}

API int cuModuleGetFunction(void **function, void *module, const char *name)
{
    int code = begin("cuModuleGetFunction", true);
    *function = module;
    return end(code != 0 ? code : strcmp(name, "rp_convert_batch") != 0 ? NOT_FOUND : 0);
}

API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       void *stream, void **arguments, void **extra)
{
    int code = begin("cuLaunchKernel", true);
    if (code == 0) {
        uint64_t frames;
        memcpy(&frames, arguments[0], sizeof(frames));
        bool sound = function != NULL && grid_x >= 1 && grid_y == 1 && grid_z >= 1 &&
                     grid_z <= 65535 && block_x == 256 && block_y == 1 && block_z == 1 &&
                     shared_bytes == 0 && extra == NULL &&
                     is_device(frames, grid_z * sizeof(struct rp_cuda_frame));
        code = !sound ? INVALID
                      : submit((struct op){.kind = LAUNCH,
                                           .stream = stream,
                                           .frames = (const struct rp_cuda_frame *)frames,
                                           .n = (int)grid_z});
    }
    return end(code);
}
