#include "python/module_state.h"

#include <string.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION    NPY_1_22_API_VERSION
#include <numpy/arrayobject.h>

/* A finished batch. Its arrays keep it alive; its memory goes back when the last of them dies. */
struct batch_object {
    PyObject_HEAD rp_batch *batch; /* NULL once lent */
    struct array_field *field;
    Py_ssize_t n_fields;
};

int rp_numpy_import(void)
{
    import_array1(-1);
    return 0;
}

static int typenum(char kind)
{
    switch (kind) {
    case 'B': return NPY_UINT8;
    case 'H': return NPY_UINT16;
    case 'f': return NPY_FLOAT32;
    case 'q': return NPY_INT64;
    default: return NPY_BOOL;
    }
}

PyObject *rp_field_empty(const struct array_field *field, Py_ssize_t n, void **data)
{
    npy_intp dims[7] = {n};
    for (int i = 0; i < field->ndim; i++) {
        dims[i + 1] = field->shape[i];
    }
    PyObject *array = PyArray_SimpleNew(field->ndim + 1, dims, typenum(field->kind));
    *data = array == NULL ? NULL : PyArray_DATA((PyArrayObject *)array);
    return array;
}

static PyObject *field_array(const struct array_field *field, Py_ssize_t n, uint8_t *data,
                             PyObject *base)
{
    npy_intp dims[7] = {n};
    for (int i = 0; i < field->ndim; i++) {
        dims[i + 1] = field->shape[i];
    }
    PyObject *array = PyArray_New(&PyArray_Type, field->ndim + 1, dims, typenum(field->kind), NULL,
                                  data, 0, NPY_ARRAY_CARRAY, NULL);
    if (array == NULL) {
        return NULL;
    }
    Py_INCREF(base);
    if (PyArray_SetBaseObject((PyArrayObject *)array, base) < 0) { /* steals base either way */
        Py_DECREF(array);
        return NULL;
    }
    return array;
}

PyObject *rp_fields_arrays(const struct array_field *field, Py_ssize_t count, Py_ssize_t n,
                           uint8_t *data, const size_t *offset, PyObject *base)
{
    PyObject *list = PyList_New(count);
    if (list == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *array = field_array(&field[i], n, data + offset[i], base);
        if (array == NULL || PyList_SetItem(list, i, array) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

PyObject *rp_batch_wrap(struct module_state *state, rp_batch **batch,
                        const struct array_field *field, Py_ssize_t count, PyObject *engine)
{
    (void)engine; /* fields are copied, memory belongs to the arena: nothing of it is needed */
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->batch_type, Py_tp_alloc);
    struct batch_object *self = (struct batch_object *)(void *)alloc(state->batch_type, 0);
    if (self == NULL) {
        rp_batch_free(batch);
        return NULL;
    }
    self->batch = *batch;
    *batch = NULL;
    self->n_fields = count;
    self->field = PyMem_Malloc(((size_t)count + 1) * sizeof(*field));
    if (self->field == NULL) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    memcpy(self->field, field, (size_t)count * sizeof(*field));
    return (PyObject *)self;
}

static void batch_dealloc(PyObject *object)
{
    struct batch_object *self = (struct batch_object *)(void *)object;
    PyTypeObject *type = Py_TYPE(object);
    rp_batch *batch = self->batch;
    self->batch = NULL;
    Py_BEGIN_ALLOW_THREADS /* the last block of an arena unmaps memory */
        rp_batch_free(&batch);
    Py_END_ALLOW_THREADS PyMem_Free(self->field);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int check_held(const struct batch_object *self)
{
    if (self->batch == NULL || self->batch->block == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the batch was lent to another process");
        return -1;
    }
    return 0;
}

/* The same for a batch in a GPU's memory. */
static PyObject *device_arrays(struct batch_object *self)
{
    struct module_state *state = rp_state_of(Py_TYPE((PyObject *)self));
    PyObject *list = state == NULL ? NULL : PyList_New(self->n_fields);
    for (Py_ssize_t i = 0; list != NULL && i < self->n_fields; i++) {
        PyObject *array = rp_device_array_new(state, (PyObject *)self, self->batch, &self->field[i],
                                              self->batch->field_offset[i]);
        if (array == NULL || PyList_SetItem(list, i, array) < 0) { /* it takes the array */
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *batch_arrays(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct batch_object *self = (struct batch_object *)(void *)object;
    if (check_held(self) < 0) {
        return NULL;
    }
    if (rp_batch_device(self->batch) >= 0) {
        return device_arrays(self);
    }
    return rp_fields_arrays(self->field, self->n_fields, self->batch->n, self->batch->block->data,
                            self->batch->field_offset, object);
}

static PyObject *batch_rows(PyObject *object, void *unused)
{
    (void)unused; /* no closure */
    const struct batch_object *self = (struct batch_object *)(void *)object;
    npy_intp n = self->batch == NULL ? 0 : self->batch->n;
    PyObject *rows = PyArray_SimpleNew(1, &n, NPY_INT64);
    if (rows != NULL && n > 0) {
        memcpy(PyArray_DATA((PyArrayObject *)rows), self->batch->rows, (size_t)n * 8);
    }
    return rows;
}

static PyObject *batch_done(PyObject *object, void *unused)
{
    (void)unused; /* no closure */
    const struct batch_object *self = (struct batch_object *)(void *)object;
    return PyLong_FromLongLong(self->batch == NULL ? 0 : self->batch->done);
}

static PyObject *batch_substitutes(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    const struct batch_object *self = (struct batch_object *)(void *)object;
    struct module_state *state = rp_state_of(Py_TYPE(object));
    PyObject *list = state == NULL ? NULL : PyList_New(0);
    for (int64_t i = 0; list != NULL && i < self->batch->n_substitutes; i++) {
        const struct rp_substitute *s = &self->batch->substitutes[i];
        PyObject *error = rp_exception(state, &s->error);
        PyObject *entry = error == NULL
                              ? NULL
                              : Py_BuildValue("LLLN", (long long)s->place, (long long)s->wanted,
                                              (long long)s->row, error);
        if (entry == NULL || PyList_Append(list, entry) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *batch_lend(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct batch_object *self = (struct batch_object *)(void *)object;
    if (check_held(self) < 0) {
        return NULL;
    }
    rp_block *block = self->batch->block;
    if (block->fd < 0) {
        PyErr_SetString(PyExc_RuntimeError, "the batch does not lie in shared memory");
        return NULL;
    }
    PyObject *offsets = PyTuple_New(self->n_fields);
    if (offsets == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < self->n_fields; i++) {
        PyObject *offset = PyLong_FromSize_t(self->batch->field_offset[i]);
        if (offset == NULL || PyTuple_SetItem(offsets, i, offset) < 0) {
            Py_DECREF(offsets);
            return NULL;
        }
    }
    PyObject *result = Py_BuildValue("iKnnN", block->fd, (unsigned long long)block->id,
                                     (Py_ssize_t)block->len, (Py_ssize_t)self->batch->n, offsets);
    if (result != NULL) {
        rp_block_lend(&self->batch->block);
    }
    return result;
}

static Py_ssize_t batch_length(PyObject *object)
{
    const struct batch_object *self = (struct batch_object *)(void *)object;
    return self->batch == NULL ? 0 : (Py_ssize_t)self->batch->n;
}

static PyMethodDef batch_methods[] = {
    {"arrays", batch_arrays, METH_NOARGS,
     "arrays($self, /)\n--\n\n"
     "The fields as writable NumPy arrays (n, ...), or as DeviceArrays, without a copy. They keep\n"
     "the batch's memory; it is reused when the last of them is gone."},
    {"substitutes", batch_substitutes, METH_NOARGS,
     "substitutes($self, /)\n--\n\n"
     "Samples that could not be read: [(place in the batch, wanted row, row in its place,\n"
     "exception), ...]."},
    {"lend", batch_lend, METH_NOARGS,
     "lend($self, /)\n--\n\n"
     "Hand the memory to another process: (fd, block id, bytes, samples, field\n"
     "offsets). It is reused once that process has let go of it. Arrays made before must not be\n"
     "used any more. RuntimeError if the batch does not lie in shared memory."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef batch_getset[] = {
    {"rows", batch_rows, NULL, "Row numbers, int64 (n,), a copy.", NULL},
    {"done", batch_done, NULL,
     "Positions of the stream's feed that all ranks have with this batch; 0 for get().", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot batch_slots[] = {{Py_tp_dealloc, batch_dealloc},
                                    {Py_tp_methods, batch_methods},
                                    {Py_tp_getset, batch_getset},
                                    {Py_sq_length, batch_length},
                                    {Py_tp_doc, "A finished batch; made by Engine."},
                                    {0, NULL}};

PyType_Spec rp_batch_spec = {.name = "reelpool._core.Batch",
                             .basicsize = sizeof(struct batch_object),
                             .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
                                      Py_TPFLAGS_IMMUTABLETYPE,
                             .slots = batch_slots};
