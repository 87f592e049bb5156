#include "python/module_state.h"

#include "pool/feed.h"

/* Feed: rp_feed until an engine takes it. */
struct feed_object {
    PyObject_HEAD rp_feed *feed; /* NULL once taken */
    int busy;                    /* a call runs with the GIL released */
};

static rp_feed *feed_of(PyObject *object)
{
    struct feed_object *self = (struct feed_object *)(void *)object;
    if (self->feed == NULL || self->busy) {
        PyErr_SetString(PyExc_ValueError, self->busy ? "the feed is in use by another thread"
                                                     : "the feed was handed to an engine");
        return NULL;
    }
    return self->feed;
}

rp_feed *rp_feed_take(struct module_state *state, PyObject *object)
{
    if (!PyObject_TypeCheck(object, state->feed_type)) {
        PyErr_SetString(PyExc_TypeError, "a Feed is needed");
        return NULL;
    }
    rp_feed *feed = feed_of(object);
    if (feed != NULL) {
        ((struct feed_object *)(void *)object)->feed = NULL;
    }
    return feed;
}

/* Make the object that owns *feed, or free it. */
static PyObject *feed_wrap(PyTypeObject *type, rp_feed **feed)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct feed_object *self = (struct feed_object *)(void *)alloc(type, 0);
    if (self == NULL) {
        rp_feed_free(feed);
        return NULL;
    }
    self->feed = *feed;
    *feed = NULL;
    return (PyObject *)self;
}

static int set_parse(PyObject *entry, struct rp_feed_set *set, Py_buffer *view)
{
    PyObject *runs;
    unsigned long long seed;
    long long lanes, unit, window, visit, gop, span, first_row;
    if (!PyArg_ParseTuple(entry, "OKLLLLLLL:set", &runs, &seed, &lanes, &unit, &window, &visit,
                          &gop, &span, &first_row) ||
        rp_buffer_get(runs, view, 8, -1, 0, "runs") < 0) {
        return -1;
    }
    if (view->len % (Py_ssize_t)sizeof(*set->runs) != 0) {
        PyErr_SetString(PyExc_ValueError, "runs: three numbers per run are needed");
        PyBuffer_Release(view);
        return -1;
    }
    *set = (struct rp_feed_set){.runs = view->buf,
                                .n_runs = (size_t)view->len / sizeof(*set->runs),
                                .params = {.seed = seed,
                                           .lanes = lanes,
                                           .unit = unit,
                                           .window = window,
                                           .visit = visit,
                                           .gop = gop,
                                           .span = span},
                                .first_row = first_row};
    return 0;
}

/* The feed of parsed sets, which stay the caller's. */
static PyObject *feed_make(PyTypeObject *type, const struct rp_feed_set *set, Py_ssize_t n,
                           const struct rp_feed_options *options)
{
    struct module_state *state = rp_state_of(type);
    if (state == NULL) {
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_feed *feed = NULL;
    rp_status status;
    Py_BEGIN_ALLOW_THREADS status = rp_feed_new(set, (size_t)n, options, &feed, &err);
    Py_END_ALLOW_THREADS return status == RP_OK ? feed_wrap(type, &feed) : rp_raise(state, &err);
}

static PyObject *feed_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *sets;
    long long epoch, start, stop, batch, rank, world, worker, workers, part = 0;
    int drop_last;
    if (kwargs != NULL && PyDict_Size(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Feed takes positional arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!LLLLLLLLp|L:Feed", &PyList_Type, &sets, &epoch, &start, &stop,
                          &batch, &rank, &world, &worker, &workers, &drop_last, &part)) {
        return NULL;
    }
    if (epoch < 0 || epoch > UINT32_MAX) {
        return PyErr_Format(PyExc_ValueError, "epoch = %lld, allowed are 0..2^32-1", epoch);
    }
    struct rp_feed_options options = {.epoch = (uint32_t)epoch,
                                      .start = start,
                                      .stop = stop,
                                      .batch = batch,
                                      .rank = rank,
                                      .world = world,
                                      .worker = worker,
                                      .workers = workers,
                                      .drop_last = drop_last != 0,
                                      .part = part};
    Py_ssize_t n = PyList_Size(sets), parsed = 0;
    struct rp_feed_set *set = PyMem_Calloc((size_t)n + 1, sizeof(*set));
    Py_buffer *view = PyMem_Calloc((size_t)n + 1, sizeof(*view));
    PyObject *feed = NULL;
    if (set == NULL || view == NULL) {
        PyErr_NoMemory();
        goto fail;
    }
    for (; parsed < n; parsed++) { /* a set's parsing runs no code that could change the list */
        PyObject *entry = PyList_GetItem(sets, parsed);
        if (entry == NULL || set_parse(entry, &set[parsed], &view[parsed]) < 0) {
            goto fail;
        }
    }
    feed = feed_make(type, set, n, &options);
fail:
    for (Py_ssize_t i = 0; i < parsed; i++) {
        PyBuffer_Release(&view[i]);
    }
    PyMem_Free(view);
    PyMem_Free(set);
    return feed;
}

static PyObject *feed_of_rows(PyObject *type, PyObject *args)
{
    PyObject *rows;
    long long batch;
    int drop_last;
    Py_buffer view;
    struct module_state *state = rp_state_of((PyTypeObject *)(void *)type);
    if (state == NULL || !PyArg_ParseTuple(args, "OLp:of_rows", &rows, &batch, &drop_last) ||
        rp_buffer_get(rows, &view, 8, -1, 0, "rows") < 0) {
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_feed *feed = NULL;
    rp_status status = rp_feed_new_rows(view.buf, view.len / 8, batch, drop_last != 0, &feed, &err);
    PyBuffer_Release(&view);
    return status == RP_OK ? feed_wrap((PyTypeObject *)(void *)type, &feed) : rp_raise(state, &err);
}

static void feed_dealloc(PyObject *object)
{
    struct feed_object *self = (struct feed_object *)(void *)object;
    PyTypeObject *type = Py_TYPE(object);
    rp_feed_free(&self->feed);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

/* (array over the first n rows of `memory`, done, repeated). */
static PyObject *feed_result(PyObject *memory, uint8_t *data, int64_t n, int64_t done,
                             int64_t repeated)
{
    static const struct array_field row = {.kind = 'q', .sample_bytes = 8};
    static const size_t offset = 0;
    PyObject *arrays = rp_fields_arrays(&row, 1, (Py_ssize_t)n, data, &offset, memory);
    if (arrays == NULL) {
        return NULL;
    }
    PyObject *result =
        Py_BuildValue("(OLL)", PyList_GetItem(arrays, 0), (long long)done, (long long)repeated);
    Py_DECREF(arrays);
    return result;
}

static PyObject *feed_next(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct feed_object *self = (struct feed_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    rp_feed *feed = feed_of(object);
    if (state == NULL || feed == NULL) {
        return NULL;
    }
    Py_ssize_t batch = (Py_ssize_t)rp_feed_batch(feed);
    PyObject *memory = PyByteArray_FromStringAndSize(NULL, batch * 8); /* batch < 2^31 */
    if (memory == NULL) {
        return NULL;
    }
    uint8_t *data = (uint8_t *)PyByteArray_AsString(memory);
    struct rp_error err;
    rp_error_clear(&err);
    int64_t n = 0, done = 0, repeated = 0;
    rp_status status;
    self->busy = 1;
    Py_BEGIN_ALLOW_THREADS /* a new epoch hashes and sorts all its units */
        status = rp_feed_next(feed, (int64_t *)(void *)data, &n, &done, &repeated, &err);
    Py_END_ALLOW_THREADS self->busy = 0;
    PyObject *result = NULL;
    if (status == RP_OK) {
        result = feed_result(memory, data, n, done, repeated);
    }
    else if (status == RP_END) {
        Py_INCREF(Py_None);
        result = Py_None;
    }
    else {
        (void)rp_raise(state, &err); /* always NULL */
    }
    Py_DECREF(memory);
    return result;
}

static PyObject *feed_batch_size(PyObject *object, void *unused)
{
    (void)unused; /* no closure */
    rp_feed *feed = feed_of(object);
    return feed == NULL ? NULL : PyLong_FromLongLong(rp_feed_batch(feed));
}

static PyMethodDef feed_methods[] = {
    {"next", feed_next, METH_NOARGS,
     "next($self, /)\n--\n\n"
     "(rows int64 array, positions done by all ranks after this batch, slots repeated in it), or\n"
     "None after the last batch. Before the last part of a batch the positions before the batch."},
    {"of_rows", feed_of_rows, METH_VARARGS | METH_CLASS,
     "of_rows($type, rows, batch_size, drop_last, /)\n--\n\n"
     "A feed of given rows (int64), in their order."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef feed_getset[] = {
    {"batch_size", feed_batch_size, NULL, "Largest number of rows in a batch.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot feed_slots[] = {
    {Py_tp_new, feed_new},
    {Py_tp_dealloc, feed_dealloc},
    {Py_tp_methods, feed_methods},
    {Py_tp_getset, feed_getset},
    {Py_tp_doc,
     "Feed(sets, epoch, start, stop, batch_size, rank, world, worker, workers, drop_last,\n"
     "part=0, /)\n"
     "--\n\n"
     "Rows of the batches of one rank and worker, from position start on. sets: list of (runs\n"
     "int64 (n, 3), seed, C, U, R, k, g, J, first_row), C = 0: ascending ids. stop < 0: no end.\n"
     "part > 0, of one set: a batch comes in parts of at most so many rows."},
    {0, NULL}};

PyType_Spec rp_feed_spec = {.name = "reelpool._core.Feed",
                            .basicsize = sizeof(struct feed_object),
                            .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                            .slots = feed_slots};
