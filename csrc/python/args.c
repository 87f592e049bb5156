#include "python/module_state.h"

int rp_buffer_get(PyObject *object, Py_buffer *view, Py_ssize_t itemsize, Py_ssize_t count,
                  int writable, const char *what)
{
    int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, view, flags) < 0) {
        return -1;
    }
    if ((itemsize > 0 && view->itemsize != itemsize) ||
        (count >= 0 && view->len != count * view->itemsize)) {
        PyErr_Format(PyExc_ValueError, "%s: %zd items of %zd bytes, wanted are %zd of %zd", what,
                     view->itemsize > 0 ? view->len / view->itemsize : 0, view->itemsize, count,
                     itemsize);
        PyBuffer_Release(view);
        return -1;
    }
    return 0;
}

static int field_parse(PyObject *entry, struct array_field *field)
{
    int kind;
    PyObject *shape;
    if (!PyArg_ParseTuple(entry, "CO!:field", &kind, &PyTuple_Type, &shape)) {
        return -1;
    }
    Py_ssize_t ndim = PyTuple_Size(shape);
    if (ndim < 0 || ndim > 6) {
        PyErr_SetString(PyExc_ValueError, "a field has at most 6 dimensions");
        return -1;
    }
    field->kind = (char)kind;
    field->ndim = (int)ndim;
    switch (kind) {
    case 'B':
    case '?': field->sample_bytes = 1; break;
    case 'H': field->sample_bytes = 2; break;
    case 'f': field->sample_bytes = 4; break;
    case 'q': field->sample_bytes = 8; break;
    default: PyErr_Format(PyExc_ValueError, "unknown field kind '%c'", kind); return -1;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        Py_ssize_t n = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
        if (n < 0) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a dimension is negative");
            }
            return -1;
        }
        field->shape[i] = n;
        if (__builtin_mul_overflow(field->sample_bytes, (size_t)n, &field->sample_bytes)) {
            PyErr_SetString(PyExc_ValueError, "a field is too large");
            return -1;
        }
    }
    return 0;
}

int rp_fields_parse(PyObject *list, struct array_field **out, Py_ssize_t *count)
{
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "fields must be a list");
        return -1;
    }
    Py_ssize_t n = PyList_Size(list);
    struct array_field *field = PyMem_Calloc((size_t)n + 1, sizeof(*field));
    if (field == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (field_parse(PyList_GetItem(list, i), &field[i]) < 0) {
            PyMem_Free(field);
            return -1;
        }
    }
    *out = field;
    *count = n;
    return 0;
}
