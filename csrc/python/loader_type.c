#include "python/module_state.h"

#include "base/thread.h"

#define SLICE_NS 200000000 /* how long a call waits before it looks at signals */

/* Engine: rp_loader with the Python memory it borrows. */
struct engine_object {
    PyObject_HEAD rp_loader *loader;
    int users; /* calls under way with the GIL released */
    int closed;
    struct rp_dataset_desc desc;
    const char **paths;
    struct rp_camera *camera;
    struct rp_column *column;
    struct rp_pad *pad;
    Py_buffer *view; /* everything borrowed through the buffer protocol */
    Py_ssize_t n_views, cap_views;
    PyObject *owners; /* the constructor's arguments: strings live in them */
    struct array_field *field;
    Py_ssize_t n_fields;
    Py_buffer stream; /* rows of the stream under way; obj NULL: none */
};

static void *borrow(struct engine_object *self, PyObject *object, Py_ssize_t itemsize,
                    Py_ssize_t count, const char *what)
{
    if (self->n_views == self->cap_views) {
        Py_ssize_t cap = self->cap_views * 2 + 16;
        Py_buffer *grown = PyMem_Realloc(self->view, (size_t)cap * sizeof(*grown));
        if (grown == NULL) {
            return PyErr_NoMemory();
        }
        self->view = grown;
        self->cap_views = cap;
    }
    Py_buffer *view = &self->view[self->n_views];
    if (rp_buffer_get(object, view, itemsize, count, 0, what) < 0) {
        return NULL;
    }
    self->n_views++;
    return view->buf;
}

static int take_window(struct engine_object *self, PyObject *deltas, struct rp_window *window)
{
    window->delta = borrow(self, deltas, 8, -1, "deltas");
    if (window->delta == NULL) {
        return -1;
    }
    window->n = (int)(self->view[self->n_views - 1].len / 8);
    if (window->n < 1) {
        PyErr_SetString(PyExc_ValueError, "a window needs at least one delta");
        return -1;
    }
    return 0;
}

static int take_camera(struct engine_object *self, PyObject *entry, struct rp_camera *camera)
{
    PyObject *deltas, *run_file, *run_start, *table;
    int type, resize;
    if (!PyArg_ParseTuple(entry, "siiiiOOOOp:camera", &camera->key, &camera->height, &camera->width,
                          &camera->channels, &type, &deltas, &run_file, &run_start, &table,
                          &resize)) {
        return -1;
    }
    if (type < RP_PIXEL_U8 || type > RP_PIXEL_U16) {
        PyErr_Format(PyExc_ValueError, "camera %s: unknown pixel type %d", camera->key, type);
        return -1;
    }
    camera->type = (enum rp_pixel_type)type;
    camera->resize = resize != 0;
    if (take_window(self, deltas, &camera->window) < 0) {
        return -1;
    }
    camera->run_file = borrow(self, run_file, 4, self->desc.n_runs, "run_file");
    if (camera->run_file == NULL) {
        return -1;
    }
    camera->run_start = borrow(self, run_start, 8, self->desc.n_runs, "run_start");
    if (camera->run_start == NULL) {
        return -1;
    }
    if (table != Py_None) {
        camera->depth_table = borrow(self, table, 4, 4096, "depth_table");
        if (camera->depth_table == NULL) {
            return -1;
        }
    }
    return 0;
}

static int take_column(struct engine_object *self, PyObject *entry, struct rp_column *column)
{
    PyObject *data, *deltas;
    Py_ssize_t row_bytes;
    if (!PyArg_ParseTuple(entry, "OnO:column", &data, &row_bytes, &deltas)) {
        return -1;
    }
    column->data = borrow(self, data, 0, -1, "column");
    if (column->data == NULL) {
        return -1;
    }
    if (row_bytes <= 0 || self->view[self->n_views - 1].len / row_bytes < self->desc.n_rows) {
        PyErr_SetString(PyExc_ValueError, "a column has fewer rows than the table");
        return -1;
    }
    column->row_bytes = (size_t)row_bytes;
    return take_window(self, deltas, &column->window);
}

static int take_paths(struct engine_object *self, PyObject *paths)
{
    Py_ssize_t n = PyList_Size(paths);
    self->paths = PyMem_Calloc((size_t)n + 1, sizeof(*self->paths));
    if (self->paths == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        self->paths[i] = PyBytes_AsString(PyList_GetItem(paths, i));
        if (self->paths[i] == NULL) {
            return -1;
        }
    }
    self->desc.paths = self->paths;
    self->desc.n_files = (int)n;
    return 0;
}

static int take_lists(struct engine_object *self, PyObject *cameras, PyObject *columns,
                      PyObject *pads)
{
    Py_ssize_t n_cameras = PyList_Size(cameras), n_columns = PyList_Size(columns);
    Py_ssize_t n_pads = PyList_Size(pads);
    self->camera = PyMem_Calloc((size_t)n_cameras + 1, sizeof(*self->camera));
    self->column = PyMem_Calloc((size_t)n_columns + 1, sizeof(*self->column));
    self->pad = PyMem_Calloc((size_t)n_pads + 1, sizeof(*self->pad));
    if (self->camera == NULL || self->column == NULL || self->pad == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n_cameras; i++) {
        if (take_camera(self, PyList_GetItem(cameras, i), &self->camera[i]) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < n_columns; i++) {
        if (take_column(self, PyList_GetItem(columns, i), &self->column[i]) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < n_pads; i++) {
        if (take_window(self, PyList_GetItem(pads, i), &self->pad[i].window) < 0) {
            return -1;
        }
    }
    self->desc.camera = self->camera;
    self->desc.n_cameras = (int)n_cameras;
    self->desc.column = self->column;
    self->desc.n_columns = (int)n_columns;
    self->desc.pad = self->pad;
    self->desc.n_pads = (int)n_pads;
    return 0;
}

/* The fields Python declares must be the ones that C lays out. */
static int check_fields(const struct engine_object *self)
{
    const struct rp_dataset_desc *desc = &self->desc;
    Py_ssize_t at = 0, total = desc->n_cameras + desc->n_columns + desc->n_pads;
    int good = self->n_fields == total;
    for (int i = 0; good && i < desc->n_cameras; i++) {
        const struct rp_camera *c = &desc->camera[i];
        size_t element = c->type == RP_PIXEL_U8 ? 1 : c->type == RP_PIXEL_U16 ? 2 : 4;
        good = self->field[at++].sample_bytes == (size_t)c->height * (size_t)c->width *
                                                     (size_t)c->channels * element *
                                                     (size_t)c->window.n;
    }
    for (int i = 0; good && i < desc->n_columns; i++) {
        good = self->field[at++].sample_bytes ==
               desc->column[i].row_bytes * (size_t)desc->column[i].window.n;
    }
    for (int i = 0; good && i < desc->n_pads; i++) {
        good = self->field[at++].sample_bytes == (size_t)desc->pad[i].window.n;
    }
    if (!good) {
        PyErr_Format(PyExc_ValueError, "field %zd of %zd does not fit its source", at, total);
        return -1;
    }
    return 0;
}

static int take_rows(struct engine_object *self, PyObject *run_first, PyObject *run_episode,
                     PyObject *row_index, PyObject *timestamp)
{
    struct rp_dataset_desc *desc = &self->desc;
    desc->run_first = borrow(self, run_first, 8, -1, "run_first");
    if (desc->run_first == NULL) {
        return -1;
    }
    desc->n_runs = self->view[self->n_views - 1].len / 8 - 1;
    if (desc->n_runs < 1) {
        PyErr_SetString(PyExc_ValueError, "the selection holds no episode");
        return -1;
    }
    desc->n_rows = desc->run_first[desc->n_runs];
    desc->run_episode = borrow(self, run_episode, 8, desc->n_runs, "run_episode");
    if (desc->run_episode == NULL) {
        return -1;
    }
    desc->row_index = borrow(self, row_index, 8, desc->n_rows, "row_index");
    if (desc->row_index == NULL) {
        return -1;
    }
    desc->timestamp = borrow(self, timestamp, 4, desc->n_rows, "timestamp");
    return desc->timestamp == NULL ? -1 : 0;
}

static int engine_fill(struct engine_object *self, struct module_state *state, PyObject *args)
{
    PyObject *paths, *run_first, *run_episode, *row_index, *timestamp, *cameras, *columns, *pads;
    PyObject *fields;
    struct rp_loader_options o = {0};
    Py_ssize_t keep, frames, indexes;
    int shared;
    if (!PyArg_ParseTuple(args, "O!OOOOdO!O!O!O!iipnnni:Engine", &PyList_Type, &paths, &run_first,
                          &run_episode, &row_index, &timestamp, &self->desc.tolerance, &PyList_Type,
                          &cameras, &PyList_Type, &columns, &PyList_Type, &pads, &PyList_Type,
                          &fields, &o.num_threads, &o.prefetch_batches, &shared, &keep, &frames,
                          &indexes, &o.max_decoders)) {
        return -1;
    }
    if (keep < 0 || frames < 0 || indexes < 0) {
        PyErr_SetString(PyExc_ValueError, "a number of bytes is negative");
        return -1;
    }
    o.shared = shared != 0;
    o.keep_bytes = (size_t)keep;
    o.frame_cache_bytes = (size_t)frames;
    o.index_bytes = (size_t)indexes;
    if (take_rows(self, run_first, run_episode, row_index, timestamp) < 0 ||
        take_paths(self, paths) < 0 || take_lists(self, cameras, columns, pads) < 0 ||
        rp_fields_parse(fields, &self->field, &self->n_fields) < 0 || check_fields(self) < 0) {
        return -1;
    }
    struct rp_error err;
    rp_error_clear(&err);
    if (rp_loader_new(&self->desc, &o, &self->loader, &err) != RP_OK) {
        (void)rp_raise(state, &err); /* always NULL */
        return -1;
    }
    return 0;
}

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
    if (engine_fill(self, state, args) < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Free the loader when nobody is inside it any more. */
static void engine_shut(struct engine_object *self)
{
    if (self->loader != NULL && self->users == 0) {
        rp_loader *loader = self->loader;
        self->loader = NULL;
        Py_BEGIN_ALLOW_THREADS rp_loader_close(&loader);
        Py_END_ALLOW_THREADS
    }
    if (self->loader == NULL && self->stream.obj != NULL) {
        PyBuffer_Release(&self->stream);
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
    PyObject *rows;
    Py_ssize_t batch_size;
    int drop_last;
    if (state == NULL || !PyArg_ParseTuple(args, "Onp:begin", &rows, &batch_size, &drop_last)) {
        return NULL;
    }
    Py_buffer view;
    if (rp_buffer_get(rows, &view, 8, -1, 0, "rows") < 0) {
        return NULL;
    }
    if (engine_enter(self, state) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS status =
        rp_loader_begin(self->loader, view.buf, view.len / 8, batch_size, drop_last != 0, &err);
    Py_END_ALLOW_THREADS if (status == RP_OK)
    {
        Py_buffer before = self->stream;
        self->stream = view;
        view = before;
    }
    if (view.obj != NULL) {
        PyBuffer_Release(&view);
    }
    engine_leave(self);
    if (status != RP_OK) {
        return rp_raise(state, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *engine_next(PyObject *object, PyObject *args)
{
    struct engine_object *self = (struct engine_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    double timeout_s;
    if (state == NULL || !PyArg_ParseTuple(args, "d:next", &timeout_s) ||
        engine_enter(self, state) < 0) {
        return NULL;
    }
    struct rp_error err;
    rp_batch *batch = NULL;
    rp_status status;
    do {
        rp_error_clear(&err);
        Py_BEGIN_ALLOW_THREADS status =
            rp_loader_next(self->loader, SLICE_NS, (int64_t)(timeout_s * 1e9), &batch, &err);
        Py_END_ALLOW_THREADS
    } while (status == RP_AGAIN && PyErr_CheckSignals() == 0);
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
        Py_BEGIN_ALLOW_THREADS status = rp_loader_take(self->loader, ticket, SLICE_NS,
                                                       (int64_t)(timeout_s * 1e9), &batch, &err);
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
    return Py_BuildValue("{sL sL sL sL sL sL sL sL sL sd sd sd sd sd sL sL sL sL sL si}", "samples",
                         c->samples, "batches", c->batches, "delivered", c->delivered, "decoded",
                         c->decoded, "preroll", c->preroll, "cache_hits", c->cache_hits, "runs",
                         c->runs, "indexed", c->indexed, "bytes_read", c->bytes_read, "read_s",
                         (double)c->read_ns / 1e9, "decode_s", (double)c->decode_ns / 1e9,
                         "convert_s", (double)c->convert_ns / 1e9, "plan_s",
                         (double)c->plan_ns / 1e9, "wait_s", (double)c->wait_ns / 1e9,
                         "arena_blocks", s.arena.blocks, "arena_bytes", s.arena.bytes,
                         "arena_grown", s.arena.grown, "frame_cache_bytes", s.frame_cache_bytes,
                         "index_bytes", s.index_bytes, "threads", s.threads);
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
     "begin($self, rows, batch_size, drop_last, /)\n--\n\n"
     "Start a stream over rows (int64). Ends the one before."},
    {"next", engine_next, METH_VARARGS,
     "next($self, timeout_s, /)\n--\n\n"
     "The stream's next Batch, None at its end. LoaderStalledError when no work item ends for\n"
     "timeout_s."},
    {"get", engine_get, METH_VARARGS,
     "get($self, rows, timeout_s, times=None, /)\n--\n\n"
     "One Batch of rows (int64); times (float64): seconds in the file instead of the rows' own."},
    {"close", engine_close, METH_NOARGS,
     "close($self, /)\n--\n\nStop threads, free memory. Idempotent."},
    {"stats", engine_stats, METH_NOARGS, "stats($self, /)\n--\n\nCounters as a dict."},
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
     "Engine(paths, run_first, run_episode, row_index, timestamp, tolerance, cameras, columns,\n"
     "pads, fields, num_threads, prefetch_batches, shared, keep_bytes, frame_cache_bytes,\n"
     "index_bytes, max_decoders, /)\n--\n\nDecodes and batches the rows of one dataset."},
    {0, NULL}};

PyType_Spec rp_engine_spec = {.name = "reelpool._core.Engine",
                              .basicsize = sizeof(struct engine_object),
                              .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                       Py_TPFLAGS_IMMUTABLETYPE,
                              .slots = engine_slots};
