#include "python/module_state.h"

#include <math.h>
#include <string.h>

static int put(PyObject *dict, const char *name, PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    int rc = PyDict_SetItemString(dict, name, value);
    Py_DECREF(value);
    return rc;
}

static int put_text(PyObject *dict, const char *name, const char *text)
{
    if (text[0] == '\0') {
        return 0;
    }
    return put(dict, name, PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"));
}

static int put_number(PyObject *dict, const char *name, int64_t value)
{
    return value < 0 ? 0 : put(dict, name, PyLong_FromLongLong(value));
}

static int put_seconds(PyObject *dict, const char *name, double value)
{
    return isnan(value) ? 0 : put(dict, name, PyFloat_FromDouble(value));
}

static PyObject *coordinates(const struct rp_error *err)
{
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
    if (put_text(dict, "file", err->file) < 0 || put_text(dict, "camera", err->camera) < 0 ||
        put_number(dict, "offset", err->offset) < 0 ||
        put_number(dict, "length", err->length) < 0 ||
        put_number(dict, "episode", err->episode) < 0 ||
        put_number(dict, "frame", err->frame) < 0 || put_seconds(dict, "time", err->time) < 0 ||
        put_seconds(dict, "nearest", err->nearest) < 0 ||
        (err->sys > 0 && put(dict, "status", PyLong_FromLong(err->sys)) < 0)) {
        Py_DECREF(dict);
        return NULL;
    }
    return dict;
}

PyObject *rp_exception(struct module_state *state, const struct rp_error *err)
{
    if (state->from_core == NULL) {
        PyObject *errors = PyImport_ImportModule("reelpool.errors");
        if (errors == NULL) {
            return NULL;
        }
        state->from_core = PyObject_GetAttrString(errors, "from_core");
        Py_DECREF(errors);
        if (state->from_core == NULL) {
            return NULL;
        }
    }
    PyObject *coords = coordinates(err);
    if (coords == NULL) {
        return NULL;
    }
    PyObject *error = PyObject_CallFunction(state->from_core, "ssO", rp_status_name(err->code),
                                            err->what, coords);
    Py_DECREF(coords);
    return error;
}

PyObject *rp_raise(struct module_state *state, const struct rp_error *err)
{
    PyObject *error = rp_exception(state, err);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}
