#include "python/module_state.h"

#include "base/memory.h"
#include "pool/device.h"
#include "python/dlpack_priv.h"

#include <string.h>

#define LEGACY    "dltensor"
#define VERSIONED "dltensor_versioned"
#define MAX_NDIM  7

/* A field of a batch in a GPU's memory. */
struct device_array {
    PyObject_HEAD PyObject *owner; /* the Batch */
    rp_batch *batch;               /* the owner's */
    size_t offset;
    struct array_field field;
};

/* What travels in a capsule. It holds the batch without Python: who drops it may have no GIL. */
struct exported {
    union {
        struct dl_managed legacy;
        struct dl_managed_versioned versioned;
    } as;
    rp_batch *batch;
    int64_t stream;
    int64_t shape[MAX_NDIM], strides[MAX_NDIM];
};

static struct device_array *self_of(PyObject *object)
{
    return (struct device_array *)(void *)object;
}

PyObject *rp_device_array_new(struct module_state *state, PyObject *owner, rp_batch *batch,
                              const struct array_field *field, size_t offset)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(state->device_array_type, Py_tp_alloc);
    struct device_array *self = self_of(alloc(state->device_array_type, 0));
    if (self != NULL) {
        Py_INCREF(owner);
        self->owner = owner;
        self->batch = batch;
        self->field = *field;
        self->offset = offset;
    }
    return (PyObject *)self;
}

static void array_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(self_of(object)->owner);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static int64_t shape_of(const struct device_array *self, int64_t shape[MAX_NDIM])
{
    int64_t elements = shape[0] = self->batch->n;
    for (int i = 0; i < self->field.ndim; i++) {
        shape[i + 1] = self->field.shape[i];
        elements *= shape[i + 1];
    }
    return elements;
}

static struct dl_type type_of(char kind)
{
    switch (kind) {
    case 'B': return (struct dl_type){DL_UINT, 8, 1};
    case 'H': return (struct dl_type){DL_UINT, 16, 1};
    case 'f': return (struct dl_type){DL_FLOAT, 32, 1};
    case 'q': return (struct dl_type){DL_INT, 64, 1};
    default: return (struct dl_type){DL_BOOL, 8, 1};
    }
}

static void delete_legacy(struct dl_managed *managed)
{
    struct exported *made = managed->context;
    rp_batch_return(&made->batch, made->stream);
    rp_free(made);
}

static void delete_versioned(struct dl_managed_versioned *managed)
{
    struct exported *made = managed->context;
    rp_batch_return(&made->batch, made->stream);
    rp_free(made);
}

/* A capsule that nobody consumed; a consumer renames it. */
static void drop_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, LEGACY)) {
        delete_legacy(PyCapsule_GetPointer(capsule, LEGACY));
    }
    else if (PyCapsule_IsValid(capsule, VERSIONED)) {
        delete_versioned(PyCapsule_GetPointer(capsule, VERSIONED));
    }
}

static struct dl_tensor describe(const struct device_array *self, struct exported *made)
{
    int ndim = self->field.ndim + 1;
    int64_t step = 1;
    (void)shape_of(self, made->shape);
    for (int i = ndim - 1; i >= 0; i--) {
        made->strides[i] = step;
        step *= made->shape[i];
    }
    uint64_t address = rp_batch_address(self->batch) + self->offset;
    return (struct dl_tensor){.data = (void *)(uintptr_t)address,
                              .device = {DL_CUDA, rp_batch_device(self->batch)},
                              .ndim = ndim,
                              .dtype = type_of(self->field.kind),
                              .shape = made->shape,
                              .strides = made->strides};
}

static PyObject *new_capsule(const struct device_array *self, struct exported *made, int versioned)
{
    struct dl_tensor tensor = describe(self, made);
    if (versioned) {
        made->as.versioned = (struct dl_managed_versioned){
            .major = 1, .context = made, .deleter = delete_versioned, .tensor = tensor};
        return PyCapsule_New(&made->as.versioned, VERSIONED, drop_capsule);
    }
    made->as.legacy =
        (struct dl_managed){.context = made, .deleter = delete_legacy, .tensor = tensor};
    return PyCapsule_New(&made->as.legacy, LEGACY, drop_capsule);
}

/* DLPack's numbers of streams; None is the legacy default one. -1 with an exception. */
static int parse_stream(PyObject *object, int64_t *stream)
{
    *stream = 1;
    if (object == Py_None) {
        return 0;
    }
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "stream must be an integer or None, not %R",
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    *stream = PyLong_AsLongLong(object);
    if (*stream == -1 && PyErr_Occurred() != NULL) {
        return -1;
    }
    if (*stream == 0 || *stream < -1) {
        PyErr_Format(PyExc_ValueError,
                     "stream=%lld: 1 is the legacy default stream, 2 the thread's own, above 2 a "
                     "handle, -1 asks for no order; 0 could be either of the first two",
                     (long long)*stream);
        return -1;
    }
    return 0;
}

/* Whether the consumer knows version 1 of DLPack; -1 with an exception. */
static int parse_version(PyObject *object)
{
    int major, minor;
    if (object == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "max_version must be a tuple of two integers or None");
        return -1;
    }
    return PyArg_ParseTuple(object, "ii:max_version", &major, &minor) ? major >= 1 : -1;
}

/* BufferError for what cannot be given without a copy. */
static int check_wishes(const struct device_array *self, PyObject *device, PyObject *copy)
{
    int type, id;
    if (copy != Py_None) {
        int wanted = PyObject_IsTrue(copy);
        if (wanted < 0) {
            return -1;
        }
        if (wanted) {
            PyErr_SetString(PyExc_BufferError, "copy=True: a batch is given as it is");
            return -1;
        }
    }
    if (device == Py_None) {
        return 0;
    }
    if (!PyTuple_Check(device)) {
        PyErr_SetString(PyExc_TypeError, "dl_device must be a tuple of two integers or None");
        return -1;
    }
    if (!PyArg_ParseTuple(device, "ii:dl_device", &type, &id)) {
        return -1;
    }
    if (type != DL_CUDA || id != rp_batch_device(self->batch)) {
        PyErr_Format(PyExc_BufferError, "dl_device=(%d, %d): the batch lies on (%d, %d)", type, id,
                     DL_CUDA, rp_batch_device(self->batch));
        return -1;
    }
    return 0;
}

static PyObject *array_dlpack(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    struct device_array *self = self_of(object);
    struct module_state *state = rp_state_of(Py_TYPE(object));
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    int64_t number;
    if (state == NULL || !PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names,
                                                      &stream, &version, &device, &copy)) {
        return NULL;
    }
    int versioned = parse_version(version);
    if (versioned < 0 || parse_stream(stream, &number) < 0 || check_wishes(self, device, copy)) {
        return NULL;
    }
    struct exported *made = rp_calloc(1, sizeof(*made));
    if (made == NULL) {
        return PyErr_NoMemory();
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS status = rp_batch_lend(self->batch, number, &err);
    Py_END_ALLOW_THREADS if (status != RP_OK)
    {
        rp_free(made);
        return rp_raise(state, &err);
    }
    made->batch = self->batch;
    made->stream = number;
    PyObject *capsule = new_capsule(self, made, versioned);
    if (capsule == NULL) {
        rp_batch_return(&made->batch, number);
        rp_free(made);
    }
    return capsule;
}

static PyObject *array_dlpack_device(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    return Py_BuildValue("(ii)", DL_CUDA, rp_batch_device(self_of(object)->batch));
}

static PyObject *array_numpy(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct device_array *self = self_of(object);
    struct module_state *state = rp_state_of(Py_TYPE(object));
    void *to;
    PyObject *array = rp_field_empty(&self->field, self->batch->n, &to);
    if (state == NULL || array == NULL) {
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status;
    size_t len = (size_t)self->batch->n * self->field.sample_bytes;
    Py_BEGIN_ALLOW_THREADS status = rp_batch_read(self->batch, self->offset, len, to, &err);
    Py_END_ALLOW_THREADS if (status != RP_OK)
    {
        Py_DECREF(array);
        return rp_raise(state, &err);
    }
    return array;
}

static PyObject *array_shape(PyObject *object, void *unused)
{
    (void)unused; /* no closure */
    const struct device_array *self = self_of(object);
    int64_t shape[MAX_NDIM];
    (void)shape_of(self, shape);
    PyObject *tuple = PyTuple_New(self->field.ndim + 1);
    for (Py_ssize_t i = 0; tuple != NULL && i <= self->field.ndim; i++) {
        PyObject *side = PyLong_FromLongLong(shape[i]);
        if (side == NULL || PyTuple_SetItem(tuple, i, side) < 0) { /* it takes the number */
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

static const char *type_name(char kind)
{
    switch (kind) {
    case 'B': return "uint8";
    case 'H': return "uint16";
    case 'f': return "float32";
    case 'q': return "int64";
    default: return "bool";
    }
}

static PyObject *array_dtype(PyObject *object, void *unused)
{
    (void)unused; /* no closure */
    return PyUnicode_FromString(type_name(self_of(object)->field.kind));
}

static PyObject *array_device(PyObject *object, void *unused)
{
    (void)unused; /* no closure */
    return PyUnicode_FromFormat("cuda:%d", rp_batch_device(self_of(object)->batch));
}

static PyObject *array_nbytes(PyObject *object, void *unused)
{
    (void)unused; /* no closure */
    const struct device_array *self = self_of(object);
    return PyLong_FromSize_t((size_t)self->batch->n * self->field.sample_bytes);
}

static PyObject *array_repr(PyObject *object)
{
    PyObject *shape = array_shape(object, NULL);
    if (shape == NULL) {
        return NULL;
    }
    const struct device_array *self = self_of(object);
    PyObject *text =
        PyUnicode_FromFormat("DeviceArray(shape=%R, dtype=%s, device='cuda:%d')", shape,
                             type_name(self->field.kind), rp_batch_device(self->batch));
    Py_DECREF(shape);
    return text;
}

static Py_ssize_t array_length(PyObject *object)
{
    return (Py_ssize_t)self_of(object)->batch->n;
}

static PyMethodDef array_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))array_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A capsule for another library, whose work on `stream` begins after the batch is made. The\n"
     "memory is used again behind what that stream holds when the library lets go."},
    {"__dlpack_device__", array_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\n(2, number of the GPU): DLPack's kDLCUDA."},
    {"numpy", array_numpy, METH_NOARGS,
     "numpy($self, /)\n--\n\n"
     "A copy in the process's own memory, of the batch as it was made: work that others do on it\n"
     "is not waited for."},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef array_getset[] = {
    {"shape", array_shape, NULL, "Its shape, samples first.", NULL},
    {"dtype", array_dtype, NULL, "Name of its element type, as NumPy spells it.", NULL},
    {"device", array_device, NULL, "'cuda:N'.", NULL},
    {"nbytes", array_nbytes, NULL, "Bytes of its elements.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyType_Slot array_slots[] = {{Py_tp_dealloc, array_dealloc},
                                    {Py_tp_methods, array_methods},
                                    {Py_tp_getset, array_getset},
                                    {Py_tp_repr, array_repr},
                                    {Py_sq_length, array_length},
                                    {Py_tp_doc, "One key of a batch in a GPU's memory."},
                                    {0, NULL}};

PyType_Spec rp_device_array_spec = {
    .name = "reelpool._core.DeviceArray",
    .basicsize = sizeof(struct device_array),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = array_slots};
