#include "python/module_state.h"

#include "parquet/parquet.h"

static PyObject *raise_in(PyObject *module, const struct rp_error *err)
{
    struct module_state *state = PyModule_GetState(module);
    return state == NULL ? NULL : rp_raise(state, err);
}

/* A model's footer: the file is `view`. -1 with an exception. */
static int parse_model(PyObject *module, const Py_buffer *view, struct rp_parquet *model)
{
    struct rp_error err;
    rp_error_clear(&err);
    if (rp_parquet_parse(view->buf, (size_t)view->len, view->len, model, &err) != RP_OK) {
        (void)raise_in(module, &err); /* NULL: the exception is set */
        return -1;
    }
    return 0;
}

static PyObject *move(PyObject *module, const Py_buffer *tail, long long size,
                      const struct rp_parquet *model, long long at, long long ordinal)
{
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_parquet file;
    struct rp_row_group group;
    rp_status status = rp_parquet_parse(tail->buf, (size_t)tail->len, size, &file, &err);
    if (status == RP_OK) {
        status = rp_parquet_move(&file, model, at, ordinal, &group, &err);
    }
    if (status == RP_E_UNSUPPORTED || status == RP_E_FORMAT) {
        Py_RETURN_NONE; /* a Parquet library may know better, or says what is wrong */
    }
    if (status != RP_OK) {
        return raise_in(module, &err);
    }
    PyObject *result = Py_BuildValue("LLy#", (long long)group.first, (long long)group.end,
                                     (const char *)group.entry->data, (Py_ssize_t)group.entry->len);
    rp_buf_unref(&group.entry);
    return result;
}

static PyObject *parquet_row_group(PyObject *module, PyObject *args)
{
    PyObject *tail_object, *model_object;
    long long size, at, ordinal;
    if (!PyArg_ParseTuple(args, "OLOLL:parquet_row_group", &tail_object, &size, &model_object, &at,
                          &ordinal)) {
        return NULL;
    }
    Py_buffer tail, file;
    if (rp_buffer_get(tail_object, &tail, 1, -1, 0, "tail") < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    if (rp_buffer_get(model_object, &file, 1, -1, 0, "model") == 0) {
        struct rp_parquet model;
        if (parse_model(module, &file, &model) == 0) {
            result = move(module, &tail, size, &model, at, ordinal);
        }
        PyBuffer_Release(&file);
    }
    PyBuffer_Release(&tail);
    return result;
}

/* Borrowed bytes of a tuple's items, to be freed with PyMem_Free; NULL with an exception. */
static struct rp_bytes *borrow_entries(PyObject *tuple)
{
    Py_ssize_t n = PyTuple_Size(tuple);
    struct rp_bytes *entries = PyMem_Calloc((size_t)n + 1, sizeof(*entries));
    if (entries == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        char *data;
        Py_ssize_t len;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &data, &len) < 0) {
            PyMem_Free(entries);
            return NULL;
        }
        entries[i] = (struct rp_bytes){(const uint8_t *)data, (size_t)len};
    }
    return entries;
}

static PyObject *write_footer(PyObject *module, const Py_buffer *file, PyObject *tuple)
{
    struct rp_parquet model;
    struct rp_bytes *entries = borrow_entries(tuple);
    if (entries == NULL || parse_model(module, file, &model) < 0) {
        PyMem_Free(entries);
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_buf *footer = NULL;
    rp_status status =
        rp_parquet_footer(&model, entries, (size_t)PyTuple_Size(tuple), &footer, &err);
    PyObject *bytes = status != RP_OK ? raise_in(module, &err)
                                      : PyBytes_FromStringAndSize((const char *)footer->data,
                                                                  (Py_ssize_t)footer->len);
    rp_buf_unref(&footer);
    PyMem_Free(entries);
    return bytes;
}

static PyObject *parquet_footer(PyObject *module, PyObject *args)
{
    PyObject *model_object, *list;
    if (!PyArg_ParseTuple(args, "OO!:parquet_footer", &model_object, &PyList_Type, &list)) {
        return NULL;
    }
    Py_buffer file;
    if (rp_buffer_get(model_object, &file, 1, -1, 0, "model") < 0) {
        return NULL;
    }
    PyObject *tuple = PyList_AsTuple(list);
    PyObject *bytes = tuple == NULL ? NULL : write_footer(module, &file, tuple);
    Py_XDECREF(tuple);
    PyBuffer_Release(&file);
    return bytes;
}

PyMethodDef rp_parquet_functions[] = {
    {"parquet_row_group", parquet_row_group, METH_VARARGS,
     "parquet_row_group(tail, size, model, at, ordinal, /)\n--\n\nMove the one row group of a "
     "Parquet file of `size` bytes, of which `tail` are the last ones, into\nanother: (first byte, "
     "end, its entry for the new footer as bytes). There its bytes begin at `at`,\nand it is the "
     "row group number `ordinal`. None: its rows must be encoded anew, as its schema is\nnot that "
     "of `model`, a Parquet file as bytes, or it has not one row group."},
    {"parquet_footer", parquet_footer, METH_VARARGS,
     "parquet_footer(model, entries, /)\n--\n\nThe end of a Parquet file that has the schema and "
     "metadata of `model` and the row groups\n`entries` (list of bytes), all after its pages."},
    {NULL, NULL, 0, NULL}};
