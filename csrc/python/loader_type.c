#include "python/engine_priv.h"

#include "base/thread.h"

#define SLICE_NS 200000000 /* how long a call waits before it looks at signals */

static PyObject *engine_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct module_state *state = rp_state_of(type);
    if (state == NULL) {
        return NULL;
    }
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Engine takes positional arguments");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct engine_object *self = (struct engine_object *)(void *)alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF(args);
    self->owners = args;
    if (rp_engine_fill(self, state, args) < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Give back the clients that its loader used; a parent's were not lent to this process. */
static void engine_let_go(struct engine_object *self)
{
    bool mine = self->held_in == rp_fork_generation();
    while (self->n_held > 0) {
        PyObject *client = self->held[--self->n_held];
        if (mine) {
            rp_http_let_go(client);
        }
    }
}

/* Free the loader when nobody is inside it any more. */
static void engine_shut(struct engine_object *self)
{
    if (self->loader != NULL && self->users == 0) {
        rp_loader *loader = self->loader;
        self->loader = NULL;
        Py_BEGIN_ALLOW_THREADS rp_loader_close(&loader);
        Py_END_ALLOW_THREADS engine_let_go(self);
    }
}

static int engine_enter(struct engine_object *self, struct module_state *state)
{
    if (self->closed || self->loader == NULL) {
        struct rp_error err;
        rp_error_clear(&err);
        (void)rp_error_set(&err, RP_E_CLOSED, "the loader was closed"); /* raised below */
        (void)rp_raise(state, &err);                                    /* always NULL */
        return -1;
    }
    self->users++;
    return 0;
}

static void engine_leave(struct engine_object *self)
{
    self->users--;
    if (self->closed) {
        engine_shut(self);
    }
}

static int engine_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->owners);
    return 0;
}

static int engine_clear(PyObject *object)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    self->closed = 1;
    engine_shut(self);
    engine_let_go(self);
    Py_CLEAR(self->owners);
    return 0;
}

static void engine_dealloc(PyObject *object)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    (void)engine_clear(object); /* always 0 */
    for (Py_ssize_t i = 0; i < self->n_views; i++) {
        PyBuffer_Release(&self->view[i]);
    }
    PyMem_Free(self->view);
    PyMem_Free(self->paths);
    PyMem_Free(self->sums);
    PyMem_Free(self->remote);
    PyMem_Free(self->held);
    PyMem_Free(self->camera);
    PyMem_Free(self->column);
    PyMem_Free(self->pad);
    PyMem_Free(self->field);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *engine_begin(PyObject *object, PyObject *args)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    PyObject *source;
    Py_ssize_t ahead;
    if (state == NULL || !PyArg_ParseTuple(args, "On:begin", &source, &ahead) ||
        engine_enter(self, state) < 0) {
        return NULL;
    }
    rp_feed *feed = rp_feed_take(state, source);
    if (feed == NULL) {
        engine_leave(self);
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS status = rp_loader_begin(self->loader, &feed, ahead, &err);
    Py_END_ALLOW_THREADS engine_leave(self);
    if (status != RP_OK) {
        return rp_raise(state, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *engine_expect(PyObject *object, PyObject *rows)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    Py_buffer view;
    if (state == NULL || rp_buffer_get(rows, &view, 8, -1, 0, "rows") < 0) {
        return NULL;
    }
    if (engine_enter(self, state) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS status = rp_loader_expect(self->loader, view.buf, view.len / 8, &err);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    engine_leave(self);
    if (status != RP_OK) {
        return rp_raise(state, &err);
    }
    Py_RETURN_NONE;
}

/* A time that added to any clock fits: a hundred years stand for all that is longer. */
static int64_t nanoseconds(double seconds)
{
    return seconds < 3e9 ? (int64_t)(seconds * 1e9) : (int64_t)3000000000 * 1000000000;
}

/* Call who wants to know that nothing is there yet; -1: it raised. */
static int tell(PyObject *waits)
{
    PyObject *done = waits != Py_None ? PyObject_CallObject(waits, NULL) : NULL;
    if (waits != Py_None && done == NULL) {
        return -1;
    }
    Py_XDECREF(done);
    return 0;
}

static PyObject *engine_next(PyObject *object, PyObject *args)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    PyObject *waits = Py_None;
    double timeout_s;
    if (state == NULL || !PyArg_ParseTuple(args, "d|O:next", &timeout_s, &waits) ||
        engine_enter(self, state) < 0) {
        return NULL;
    }
    struct rp_error err;
    rp_batch *batch = NULL;
    rp_status status;
    do {
        rp_error_clear(&err);
        Py_BEGIN_ALLOW_THREADS status =
            rp_loader_next(self->loader, SLICE_NS, nanoseconds(timeout_s), &batch, &err);
        Py_END_ALLOW_THREADS
    } while (status == RP_AGAIN && PyErr_CheckSignals() == 0 && tell(waits) == 0);
    PyObject *result = NULL;
    if (status == RP_OK) {
        result = rp_batch_wrap(state, &batch, self->field, self->n_fields, object);
    }
    else if (status == RP_END) {
        Py_INCREF(Py_None);
        result = Py_None;
    }
    else if (status != RP_AGAIN) {
        (void)rp_raise(state, &err); /* always NULL */
    }
    engine_leave(self);
    return result;
}

static PyObject *engine_get(PyObject *object, PyObject *args)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    PyObject *rows, *times = Py_None;
    double timeout_s;
    if (state == NULL || !PyArg_ParseTuple(args, "Od|O:get", &rows, &timeout_s, &times)) {
        return NULL;
    }
    Py_buffer view, time_view = {0};
    if (rp_buffer_get(rows, &view, 8, -1, 0, "rows") < 0) {
        return NULL;
    }
    if ((times != Py_None && rp_buffer_get(times, &time_view, 8, view.len / 8, 0, "times") < 0) ||
        engine_enter(self, state) < 0) {
        PyBuffer_Release(&view);
        if (time_view.obj != NULL) {
            PyBuffer_Release(&time_view);
        }
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    uint64_t ticket;
    rp_batch *batch = NULL;
    rp_status status;
    Py_BEGIN_ALLOW_THREADS /* the first call starts threads, or waits for who does */
        status =
            rp_loader_submit(self->loader, view.buf, time_view.buf, view.len / 8, &ticket, &err);
    Py_END_ALLOW_THREADS int submitted = status == RP_OK;
    PyBuffer_Release(&view);
    if (time_view.obj != NULL) {
        PyBuffer_Release(&time_view);
    }
    while (submitted) {
        rp_error_clear(&err);
        Py_BEGIN_ALLOW_THREADS status =
            rp_loader_take(self->loader, ticket, SLICE_NS, nanoseconds(timeout_s), &batch, &err);
        Py_END_ALLOW_THREADS if (status != RP_AGAIN)
        {
            break;
        }
        if (PyErr_CheckSignals() != 0) {
            rp_loader_drop(self->loader, ticket);
            break;
        }
    }
    PyObject *result = NULL;
    if (status == RP_OK) {
        result = rp_batch_wrap(state, &batch, self->field, self->n_fields, object);
    }
    else if (status != RP_AGAIN) {
        (void)rp_raise(state, &err); /* always NULL */
    }
    engine_leave(self);
    return result;
}

static PyObject *engine_close(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct engine_object *self = (struct engine_object *)(void *)object;
    self->closed = 1;
    if (self->loader != NULL && self->users > 0) {
        rp_loader_interrupt(self->loader);
    }
    engine_shut(self);
    Py_RETURN_NONE;
}

static PyObject *engine_stats(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct engine_object *self = (struct engine_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    if (state == NULL || engine_enter(self, state) < 0) {
        return NULL;
    }
    struct rp_loader_stats s;
    rp_loader_stats(self->loader, &s);
    engine_leave(self);
    const struct rp_counters *c = &s.counters;
    const struct {
        const char *name;
        int64_t value;
    } count[] = {{"samples", c->samples},
                 {"batches", c->batches},
                 {"delivered", c->delivered},
                 {"decoded", c->decoded},
                 {"preroll", c->preroll},
                 {"cache_hits", c->cache_hits},
                 {"waited", c->parked},
                 {"redecoded", c->redecoded},
                 {"substituted", c->substituted},
                 {"runs", c->runs},
                 {"indexed", c->indexed},
                 {"checked", c->checked},
                 {"sums_stale", c->sums_stale},
                 {"bytes_read", c->bytes_read},
                 {"arena_blocks", s.arena.blocks},
                 {"arena_bytes", s.arena.bytes},
                 {"arena_grown", s.arena.grown},
                 {"frame_cache_bytes", s.frame_cache_bytes},
                 {"parked", s.parked},
                 {"parked_bytes", s.parked_bytes},
                 {"index_bytes", s.index_bytes},
                 {"repeated_tail", s.repeated_tail},
                 {"device_bytes", s.device.device_bytes},
                 {"pinned_bytes", s.device.pinned_bytes},
                 {"uploaded_bytes", s.device.uploaded},
                 {"converted_on_gpu", s.device.converted},
                 {"decoded_on_gpu", s.device.decoded},
                 {"threads", s.threads},
                 {"fetches", c->fetches},
                 {"fetch_wanted", s.remote.wanted},
                 {"fetch_bytes", s.remote.fetched},
                 {"fetch_cached", s.remote.cached},
                 {"fetch_pending", s.fetch_pending},
                 {"fetch_foreseen", c->foreseen},
                 {"fetch_evicted", s.fetch_evicted},
                 {"fetch_again", s.fetch_again},
                 {"read_ahead_bytes", s.read_ahead_bytes}};
    PyObject *dict =
        Py_BuildValue("{sd sd sd sd sd sd sd sd}", "fetch_s", (double)c->fetch_ns / 1e9,
                      "fetch_wait_s", (double)s.remote.waits_ns / 1e9, "starved_s",
                      (double)c->starve_ns / 1e9, "read_s", (double)c->read_ns / 1e9, "decode_s",
                      (double)c->decode_ns / 1e9, "convert_s", (double)c->convert_ns / 1e9,
                      "plan_s", (double)c->plan_ns / 1e9, "wait_s", (double)c->wait_ns / 1e9);
    for (size_t i = 0; dict != NULL && i < sizeof(count) / sizeof(count[0]); i++) {
        PyObject *value = PyLong_FromLongLong(count[i].value);
        if (value == NULL || PyDict_SetItemString(dict, count[i].name, value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    return dict;
}

/* Streams that the GPU leaves to the CPU, and that nobody was told of yet. */
static PyObject *engine_notices(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct engine_object *self = (struct engine_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    if (state == NULL || engine_enter(self, state) < 0) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    struct rp_nvdec_verdict v;
    while (list != NULL && rp_loader_notice(self->loader, &v)) {
        PyObject *item =
            Py_BuildValue("(siis)", rp_codec_name(v.codec), v.width, v.height, v.reason);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    engine_leave(self);
    return list;
}

static PyObject *engine_batch_bytes(PyObject *object, PyObject *args)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    Py_ssize_t n;
    if (state == NULL || !PyArg_ParseTuple(args, "n:batch_bytes", &n) ||
        engine_enter(self, state) < 0) {
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    size_t bytes;
    rp_status status = rp_loader_layout(self->loader, n, NULL, &bytes, &err);
    engine_leave(self);
    return status == RP_OK ? PyLong_FromSize_t(bytes) : rp_raise(state, &err);
}

static PyMethodDef engine_methods[] = {
    {"begin", engine_begin, METH_VARARGS,
     "begin($self, feed, ahead, /)\n--\n\n"
     "Start a stream of a Feed's batches, which is used up; pictures of `ahead` batches beyond\n"
     "those being filled are looked up. Ends the stream before."},
    {"next", engine_next, METH_VARARGS,
     "next($self, timeout_s, waits=None, /)\n--\n\n"
     "The stream's next Batch, None at its end. LoaderStalledError when no work item ends for\n"
     "timeout_s. waits() is called several times a second until there is one."},
    {"expect", engine_expect, METH_O,
     "expect($self, rows, /)\n--\n\n"
     "The stream after this one begins with these rows (int64): what they need of remote files is\n"
     "fetched when nothing else is."},
    {"get", engine_get, METH_VARARGS,
     "get($self, rows, timeout_s, times=None, /)\n--\n\n"
     "One Batch of rows (int64); times (float64): seconds in the file instead of the rows' own."},
    {"close", engine_close, METH_NOARGS,
     "close($self, /)\n--\n\nStop threads, free memory. Idempotent."},
    {"stats", engine_stats, METH_NOARGS, "stats($self, /)\n--\n\nCounters as a dict."},
    {"notices", engine_notices, METH_NOARGS,
     "notices($self, /)\n--\n\n"
     "[(codec, width, height, why)] of streams that the GPU leaves to the CPU: the first of each\n"
     "codec, and the first that is left for its failures. Each is told once."},
    {"batch_bytes", engine_batch_bytes, METH_VARARGS,
     "batch_bytes($self, n, /)\n--\n\nBytes of a batch of n samples."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot engine_slots[] = {
    {Py_tp_new, engine_new},
    {Py_tp_dealloc, engine_dealloc},
    {Py_tp_traverse, engine_traverse},
    {Py_tp_clear, engine_clear},
    {Py_tp_methods, engine_methods},
    {Py_tp_doc,
     "Engine(paths, run_first, run_episode, run_set, row_index, timestamp, tolerance, cameras,\n"
     "columns, pads, fields, num_threads, prefetch_batches, shared, keep_bytes,\n"
     "frame_cache_bytes, parked_bytes, index_bytes, max_decoders, substitute, read_ahead_bytes,\n"
     "fetch_threads, device, /)\n--\n\n"
     "Decodes and batches the rows of one dataset, or of several that are mixed."},
    {0, NULL}};

PyType_Spec rp_engine_spec = {.name = "reelpool._core.Engine",
                              .basicsize = sizeof(struct engine_object),
                              .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                       Py_TPFLAGS_IMMUTABLETYPE,
                              .slots = engine_slots};
