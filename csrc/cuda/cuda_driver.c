#include "cuda/cuda_priv.h"

#include "base/memory.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Finding the driver, asking it what there is, and saying what it refuses. */

#define LIBRARY        "libcuda.so.1"
#define OLDEST_VERSION 12000
#define FORKED                                                                                 \
    "CUDA does not work in a forked process: start workers with the start method 'spawn', or " \
    "leave CUDA to the process that began with it"

/* Numbers of the driver with more to say than its own text; `lost`: no later call succeeds. */
static const struct {
    int code;
    bool lost;
    const char *advice;
} known[] = {
    {RP_CU_OUT_OF_MEMORY, false,
     "a smaller batch_size or prefetch_batches, or end what else uses this GPU"},
    {RP_CU_NOT_INITIALIZED, false, FORKED},
    {4, true, "the driver is shutting down"},
    {46, true, "the GPU is in use by another process alone, or was taken away"},
    {RP_CU_NO_DEVICE, false, "see nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {101, false, "see nvidia-smi and CUDA_VISIBLE_DEVICES"},
    {209, false, "this build has no kernel for this GPU: build reelpool on this machine"},
    {214, true, "the GPU's memory is damaged: see nvidia-smi"},
    {218, false, "build reelpool on this machine"},
    {221, false, "the driver's compiler is missing: build reelpool on this machine"},
    {222, false, "the driver is older than the build: update it, or build reelpool with its CUDA"},
    {700, true, "the GPU is lost to this process: start it again"},
    {702, true, "the GPU is lost to this process: start it again"},
    {716, true, "the GPU is lost to this process: start it again"},
    {718, true, "the GPU is lost to this process: start it again"},
    {719, true, "the GPU is lost to this process: start it again"},
    {802, false, "start the fabric manager (systemctl start nvidia-fabricmanager)"},
    {803, false, "the kernel module is older or newer than libcuda: reboot after a driver update"},
    {804, false, "the driver is older than its compatibility library permits: update it"},
    {999, true, "see dmesg for the driver's own message"},
};

rp_status rp_cuda_failed(const struct rp_cuda_api *api, rp_cuda *device, int code,
                         const char *doing, struct rp_error *err)
{
    const char *name = NULL, *text = NULL, *advice = "run: nvidia-smi";
    if (api->error_name(code, &name) != 0 || name == NULL) {
        name = "unknown error";
    }
    if (api->error_text(code, &text) != 0 || text == NULL) {
        text = "no text";
    }
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].code == code) {
            advice = known[i].advice;
            if (known[i].lost && device != NULL) {
                __atomic_store_n(&device->lost, code, __ATOMIC_RELAXED);
            }
        }
    }
    char where[24] = "";
    if (device != NULL) {
        (void)snprintf(where, sizeof(where), "cuda:%d: ", device->ordinal); /* always fits */
    }
    if (err != NULL && err->code == RP_OK) { /* the first failure is the one that is told */
        (void)rp_error_set(err, RP_E_CUDA, "%s%s: %s (%s %d); %s", where, doing, text, name, code,
                           advice); /* returned below */
        err->sys = code;
    }
    return RP_E_CUDA;
}

/* The library's calls; RP_E_CUDA if it is not there or lacks one. */
static rp_status find_calls(const char *library, struct rp_cuda_api *api, struct rp_error *err)
{
    library = library != NULL ? library : LIBRARY;
    /* It starts threads and takes no unloading well: it stays, as it does for others. */
    api->library = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (api->library == NULL) {
        RP_FAIL(err, RP_E_CUDA,
                "no NVIDIA driver here: %s; install it, in a container run with "
                "--gpus all",
                dlerror());
    }
#define FIND(field, symbol, parameters)                                                      \
    {                                                                                        \
        void *found = dlsym(api->library, #symbol);                                          \
        if (found == NULL) {                                                                 \
            RP_FAIL(err, RP_E_CUDA, "the NVIDIA driver is too old: %s has no %s; update it", \
                    library, #symbol);                                                       \
        }                                                                                    \
        memcpy(&api->field, &found, sizeof(found));                                          \
    }
    RP_CUDA_CALLS(FIND)
#undef FIND
    return RP_OK;
}

/* A started driver that has at least one device. */
static rp_status start(const char *library, struct rp_cuda_api *api, int *version, int *n,
                       struct rp_error *err)
{
    RP_TRY(rp_fork_watch(err));
    RP_TRY(find_calls(library, api, err));
    int code = api->driver_version(version);
    if (code != 0) {
        return rp_cuda_failed(api, NULL, code, "asking the NVIDIA driver for its version", err);
    }
    if (*version < OLDEST_VERSION) {
        RP_FAIL(err, RP_E_CUDA,
                "the NVIDIA driver is too old: it speaks CUDA %d.%d, %d.%d is the "
                "oldest that will do; update it",
                *version / 1000, *version % 1000 / 10, OLDEST_VERSION / 1000,
                OLDEST_VERSION % 1000 / 10);
    }
    code = api->init(0);
    if (code == 0) {
        code = api->device_count(n);
    }
    if (code == 0 && *n < 1) {
        code = RP_CU_NO_DEVICE;
    }
    if (code != 0) {
        return rp_cuda_failed(api, NULL, code, "starting the NVIDIA driver", err);
    }
    return RP_OK;
}

static rp_status describe(const struct rp_cuda_api *api, int ordinal, struct rp_cuda_info *info,
                          struct rp_error *err)
{
    enum { PROCESSORS = 16, MAJOR = 75, MINOR = 76 };
    int device = 0;
    size_t bytes = 0;
    *info = (struct rp_cuda_info){0};
    int code = api->device_get(&device, ordinal);
    if (code == 0) {
        code = api->device_name(info->name, (int)sizeof(info->name) - 1, device);
    }
    if (code == 0) {
        code = api->device_bytes(&bytes, device);
    }
    if (code == 0) {
        code = api->device_attribute(&info->processors, PROCESSORS, device);
    }
    if (code == 0) {
        code = api->device_attribute(&info->major, MAJOR, device);
    }
    if (code == 0) {
        code = api->device_attribute(&info->minor, MINOR, device);
    }
    if (code != 0) {
        char doing[40];
        (void)snprintf(doing, sizeof(doing), "asking what cuda:%d is", ordinal); /* always fits */
        return rp_cuda_failed(api, NULL, code, doing, err);
    }
    info->bytes = (int64_t)bytes;
    return RP_OK;
}

rp_status rp_cuda_list(const char *library, struct rp_cuda_info out[], int *n, int *version,
                       struct rp_error *err)
{
    struct rp_cuda_api api = {0};
    int found = 0;
    rp_status status = start(library, &api, version, &found, err);
    found = found < RP_CUDA_MAX_DEVICES ? found : RP_CUDA_MAX_DEVICES;
    for (int i = 0; status == RP_OK && i < found; i++) {
        status = describe(&api, i, &out[i], err);
    }
    if (api.library != NULL) {
        (void)dlclose(api.library); /* it stays loaded; only our count goes */
    }
    *n = status == RP_OK ? found : 0;
    return status;
}

/* Its context, which other libraries of the process share. */
static rp_status retain(rp_cuda *device, struct rp_error *err)
{
    int code = device->api.device_get(&device->device, device->ordinal);
    if (code == 0) {
        code = device->api.context_retain(&device->context, device->device);
    }
    if (code != 0) {
        return rp_cuda_failed(&device->api, device, code, "making its context", err);
    }
    return RP_OK;
}

rp_status rp_cuda_open(const char *library, int ordinal, size_t keep_bytes, rp_cuda **out,
                       struct rp_error *err)
{
    int version = 0, n = 0;
    rp_cuda *device = rp_calloc(1, sizeof(*device));
    if (device == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a CUDA device");
    }
    device->ordinal = ordinal;
    device->keep_bytes = keep_bytes;
    device->refs = 1;
    rp_status status = start(library, &device->api, &version, &n, err);
    if (status == RP_OK && (ordinal < 0 || ordinal >= n)) {
        status = rp_error_set(err, RP_E_CUDA,
                              "there is no cuda:%d: devices are cuda:0 to cuda:%d; "
                              "see CUDA_VISIBLE_DEVICES",
                              ordinal, n - 1);
    }
    if (status == RP_OK) {
        status = rp_lock_init(&device->lock, err);
    }
    if (status == RP_OK) {
        status = retain(device, err);
        if (status == RP_OK) {
            device->generation = rp_fork_generation();
            *out = device;
            return RP_OK;
        }
        rp_lock_free(&device->lock);
    }
    if (device->api.library != NULL) {
        (void)dlclose(device->api.library); /* it stays loaded; only our count goes */
    }
    rp_free(device);
    return status;
}

int rp_cuda_ordinal(const rp_cuda *device)
{
    return device->ordinal;
}

bool rp_cuda_is_foreign(const rp_cuda *device)
{
    return device->generation != rp_fork_generation();
}

rp_status rp_cuda_enter(rp_cuda *device, struct rp_error *err)
{
    if (rp_cuda_is_foreign(device)) {
        RP_FAIL(err, RP_E_CUDA, "%s", FORKED);
    }
    int lost = __atomic_load_n(&device->lost, __ATOMIC_RELAXED);
    if (lost != 0) {
        return rp_cuda_failed(&device->api, device, lost, "the GPU failed before", err);
    }
    int code = device->api.context_push(device->context);
    if (code != 0) {
        return rp_cuda_failed(&device->api, device, code, "entering its context", err);
    }
    return RP_OK;
}

bool rp_cuda_enter_to_free(rp_cuda *device)
{
    return device->api.context_push(device->context) == 0;
}

rp_status rp_cuda_check(rp_cuda *device, struct rp_error *err)
{
    RP_TRY(rp_cuda_enter(device, err));
    rp_cuda_leave(device);
    return RP_OK;
}

void rp_cuda_leave(rp_cuda *device)
{
    void *context = NULL;
    int code = device->api.context_pop(&context);
    if (code != 0) {
        __atomic_store_n(&device->lost, code, __ATOMIC_RELAXED);
    }
}

rp_cuda *rp_cuda_ref(rp_cuda *device)
{
    (void)__atomic_add_fetch(&device->refs, 1, __ATOMIC_RELAXED); /* the count is not needed */
    return device;
}

void rp_cuda_unref(rp_cuda **out)
{
    rp_cuda *device = *out;
    *out = NULL;
    if (rp_cuda_is_foreign(device) || __atomic_sub_fetch(&device->refs, 1, __ATOMIC_ACQ_REL) != 0) {
        return;
    }
    (void)rp_cuda_trim(device);
    (void)device->api.context_release(device->device); /* nobody is left to be told */
    rp_lock_free(&device->lock);
    (void)dlclose(device->api.library); /* it stays loaded; only our count goes */
    rp_free(device);
}

void rp_cuda_close(rp_cuda **device)
{
    if (device != NULL && *device != NULL) {
        rp_cuda_unref(device);
    }
}
