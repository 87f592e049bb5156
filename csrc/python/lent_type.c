#include "python/module_state.h"

/* BlockMap: a block of another process, mapped here. Lease: one batch in it; when the last array of
 * the lease dies, the other process may reuse the block. */
struct block_map_object {
    PyObject_HEAD rp_lent lent;
    Py_ssize_t leases;
};

struct lease_object {
    PyObject_HEAD struct block_map_object *map;
};

static PyObject *block_map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "bytes", NULL};
    int fd;
    Py_ssize_t bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "in:BlockMap", names, &fd, &bytes)) {
        return NULL;
    }
    struct module_state *state = rp_state_of(type);
    if (state == NULL) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct block_map_object *self = (struct block_map_object *)(void *)alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    if (bytes < 0 || rp_lent_map(fd, (size_t)bytes, &self->lent, &err) != RP_OK) {
        Py_DECREF((PyObject *)self);
        if (bytes < 0) {
            PyErr_SetString(PyExc_ValueError, "bytes is negative");
            return NULL;
        }
        return rp_raise(state, &err);
    }
    return (PyObject *)self;
}

static void block_map_dealloc(PyObject *object)
{
    struct block_map_object *self = (struct block_map_object *)(void *)object;
    PyTypeObject *type = Py_TYPE(object);
    rp_lent_unmap(&self->lent);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyObject *block_map_leases(PyObject *object, void *unused)
{
    (void)unused; /* no closure */
    return PyLong_FromSsize_t(((struct block_map_object *)(void *)object)->leases);
}

static PyObject *lease_arrays(struct module_state *state, struct block_map_object *map,
                              PyObject *fields, PyObject *offsets, Py_ssize_t n)
{
    struct array_field *field;
    Py_ssize_t count;
    if (rp_fields_parse(fields, &field, &count) < 0) {
        return NULL;
    }
    PyObject *arrays = NULL;
    size_t *offset = PyMem_Calloc((size_t)count + 1, sizeof(*offset));
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->lease_type, Py_tp_alloc);
    struct lease_object *lease = (struct lease_object *)(void *)alloc(state->lease_type, 0);
    if (offset == NULL || lease == NULL || PyTuple_Size(offsets) != count) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "one offset per field is needed");
        }
        goto fail;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        offset[i] = PyLong_AsSize_t(PyTuple_GetItem(offsets, i));
        size_t bytes, end;
        if (PyErr_Occurred() || __builtin_mul_overflow(field[i].sample_bytes, (size_t)n, &bytes) ||
            __builtin_add_overflow(offset[i], bytes, &end) || end > map->lent.len) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a field lies outside its block");
            }
            goto fail;
        }
    }
    Py_INCREF((PyObject *)map);
    lease->map = map;
    map->leases++;
    arrays = rp_fields_arrays(field, count, n, map->lent.data, offset, (PyObject *)lease);
fail:
    Py_XDECREF((PyObject *)lease);
    PyMem_Free(offset);
    PyMem_Free(field);
    return arrays;
}

static PyObject *block_map_lease(PyObject *object, PyObject *args)
{
    PyObject *fields, *offsets;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "OO!n:lease", &fields, &PyTuple_Type, &offsets, &n)) {
        return NULL;
    }
    struct module_state *state = rp_state_of(Py_TYPE(object));
    if (state == NULL) {
        return NULL;
    }
    if (n < 0) {
        PyErr_SetString(PyExc_ValueError, "n is negative");
        return NULL;
    }
    return lease_arrays(state, (struct block_map_object *)(void *)object, fields, offsets, n);
}

static void lease_dealloc(PyObject *object)
{
    struct lease_object *self = (struct lease_object *)(void *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->map != NULL) {
        self->map->leases--;
        rp_lent_release(&self->map->lent);
        Py_DECREF((PyObject *)self->map);
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef block_map_methods[] = {
    {"lease", block_map_lease, METH_VARARGS,
     "lease($self, fields, offsets, n, /)\n--\n\n"
     "NumPy arrays (n, ...) over one batch in the block, without a copy. When the last of them is "
     "gone, the block's owner may reuse it."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef block_map_getset[] = {
    {"leases", block_map_leases, NULL, "Batches in the block that are still in use.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot block_map_slots[] = {
    {Py_tp_new, block_map_new},
    {Py_tp_dealloc, block_map_dealloc},
    {Py_tp_methods, block_map_methods},
    {Py_tp_getset, block_map_getset},
    {Py_tp_doc,
     "BlockMap(fd, bytes)\n--\n\nA block lent by another process. fd stays the caller's."},
    {0, NULL}};

PyType_Spec rp_block_map_spec = {.name = "reelpool._core.BlockMap",
                                 .basicsize = sizeof(struct block_map_object),
                                 .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                                 .slots = block_map_slots};

static PyType_Slot lease_slots[] = {{Py_tp_dealloc, lease_dealloc},
                                    {Py_tp_doc, "One batch in a BlockMap; made by lease()."},
                                    {0, NULL}};

PyType_Spec rp_lease_spec = {.name = "reelpool._core.Lease",
                             .basicsize = sizeof(struct lease_object),
                             .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
                                      Py_TPFLAGS_IMMUTABLETYPE,
                             .slots = lease_slots};
