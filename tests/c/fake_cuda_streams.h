/* A part of fake_cuda.c, which includes it: streams and events. */
#ifndef RP_TESTS_FAKE_CUDA_STREAMS_H
#define RP_TESTS_FAKE_CUDA_STREAMS_H

API int cuStreamCreate(void **stream, unsigned flags)
{
    int code = begin("cuStreamCreate", true);
    (void)flags;
    if (code == 0) {
        *stream = malloc(1);
        state.live[FAKE_STREAM]++;
    }
    return end(code);
}

API int cuStreamDestroy_v2(void *stream)
{
    int code = begin("cuStreamDestroy", false);
    do_stream(stream, seq);
    free(stream);
    state.live[FAKE_STREAM]--;
    return end(code);
}

API int cuStreamSynchronize(void *stream)
{
    int code = begin("cuStreamSynchronize", false);
    do_stream(stream, seq);
    return end(code);
}

API int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    const struct event *e = event;
    int code = begin("cuStreamWaitEvent", true);
    if (code == 0) {
        code = flags != 0 || e->seq == 0
                   ? INVALID
                   : submit((struct op){
                         .kind = WAIT, .stream = stream, .of = e->stream, .upto = e->seq});
    }
    return end(code);
}

API int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    int code = begin("cuEventCreate", true);
    if (code == 0) {
        *event = calloc(1, sizeof(struct event));
        state.live[FAKE_EVENT]++;
    }
    return end(code);
}

API int cuEventDestroy_v2(void *event)
{
    int code = begin("cuEventDestroy", false);
    free(event);
    state.live[FAKE_EVENT]--;
    return end(code);
}

API int cuEventRecord(void *event, void *stream)
{
    int code = begin("cuEventRecord", true);
    if (code == 0) {
        code = submit((struct op){.kind = MARK, .stream = stream});
        *(struct event *)event = (struct event){.stream = stream, .seq = seq};
    }
    return end(code);
}

API int cuEventQuery(void *event)
{
    const struct event *e = event;
    int code = begin("cuEventQuery", true);
    for (const struct op *op = queue; op != NULL && code == 0; op = op->next) {
        code = in_order(op->stream, e->stream) && op->seq <= e->seq ? NOT_READY : 0;
    }
    return end(code);
}

API int cuEventSynchronize(void *event)
{
    const struct event *e = event;
    int code = begin("cuEventSynchronize", false);
    if (e->seq > 0) {
        do_stream(e->stream, e->seq);
    }
    return end(code);
}

#endif
