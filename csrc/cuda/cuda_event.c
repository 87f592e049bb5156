#include "cuda/cuda_priv.h"

#include "base/memory.h"

/* Points in the work of streams: ours, and those of libraries that use our memory. */

#define NO_TIMING 2u

struct rp_cuda_event {
    rp_cuda *device;
    void *handle;
};

uint64_t rp_cuda_stream_handle(const rp_cuda_stream *stream)
{
    return (uintptr_t)stream->handle;
}

static void *handle_of(uint64_t stream)
{
    return (void *)(uintptr_t)stream;
}

rp_status rp_cuda_event_new(rp_cuda *device, rp_cuda_event **out, struct rp_error *err)
{
    rp_cuda_event *event = rp_calloc(1, sizeof(*event));
    if (event == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for an event");
    }
    rp_status status = rp_cuda_enter(device, err);
    if (status == RP_OK) {
        int code = device->api.event_create(&event->handle, NO_TIMING);
        if (code != 0) {
            status = rp_cuda_failed(&device->api, device, code, "making an event", err);
        }
        rp_cuda_leave(device);
    }
    if (status != RP_OK) {
        rp_free(event);
        return status;
    }
    event->device = rp_cuda_ref(device);
    *out = event;
    return RP_OK;
}

void rp_cuda_event_free(rp_cuda_event **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_cuda_event *event = *out;
    *out = NULL;
    if (rp_cuda_is_foreign(event->device)) {
        return;
    }
    bool entered = rp_cuda_enter_to_free(event->device);
    (void)event->device->api.event_destroy(event->handle); /* else it goes with its context */
    if (entered) {
        rp_cuda_leave(event->device);
    }
    rp_cuda_unref(&event->device);
    rp_free(event);
}

rp_status rp_cuda_event_record(rp_cuda_event *event, uint64_t stream, struct rp_error *err)
{
    rp_cuda *device = event->device;
    RP_TRY(rp_cuda_enter(device, err));
    rp_status status = RP_OK;
    int code = device->api.event_record(event->handle, handle_of(stream));
    if (code != 0) {
        status = rp_cuda_failed(&device->api, device, code, "marking a place in a stream", err);
    }
    rp_cuda_leave(device);
    return status;
}

/* Nobody knows any more when memory is free: it is not used again. */
static void give_up(rp_cuda *device, int code)
{
    __atomic_store_n(&device->lost, code, __ATOMIC_RELAXED);
}

void rp_cuda_finish(rp_cuda *device)
{
    int code = device->api.context_push(device->context);
    if (code == 0) {
        code = device->api.context_synchronize();
        rp_cuda_leave(device);
    }
    if (code != 0) {
        give_up(device, code);
    }
}

bool rp_cuda_event_mark(rp_cuda_event *event, uint64_t stream)
{
    rp_cuda *device = event->device;
    if (rp_cuda_is_foreign(device)) {
        return false;
    }
    int code = device->api.context_push(device->context);
    if (code != 0) {
        give_up(device, code);
        return false;
    }
    code = device->api.event_record(event->handle, handle_of(stream));
    rp_cuda_leave(device);
    if (code != 0) {
        rp_cuda_finish(device);
    }
    return code == 0;
}

rp_status rp_cuda_event_hold(const rp_cuda_event *event, uint64_t stream, struct rp_error *err)
{
    rp_cuda *device = event->device;
    RP_TRY(rp_cuda_enter(device, err));
    rp_status status = RP_OK;
    int code = device->api.stream_wait(handle_of(stream), event->handle, 0);
    if (code != 0) {
        status = rp_cuda_failed(&device->api, device, code, "ordering two streams", err);
    }
    rp_cuda_leave(device);
    return status;
}
