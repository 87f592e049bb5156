#include "python/module_state.h"

#include "base/rng.h"
#include "pool/plan.h"

static PyObject *raise_in(PyObject *module, const struct rp_error *err)
{
    struct module_state *state = PyModule_GetState(module);
    return state == NULL ? NULL : rp_raise(state, err);
}

static PyObject *order_rows(PyObject *module, PyObject *args)
{
    PyObject *runs, *out;
    unsigned long long seed;
    unsigned int epoch;
    long long lanes, unit, window, visit, gop, span;
    if (!PyArg_ParseTuple(args, "OKILLLLLLO:order_rows", &runs, &seed, &epoch, &lanes, &unit,
                          &window, &visit, &gop, &span, &out)) {
        return NULL;
    }
    Py_buffer runs_view, out_view;
    if (rp_buffer_get(runs, &runs_view, 8, -1, 0, "runs") < 0) {
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    const struct rp_run *run = runs_view.buf;
    size_t n_runs = (size_t)runs_view.len / sizeof(*run);
    int64_t count = 0;
    rp_status status = rp_order_count(run, n_runs, &count, &err);
    if (status != RP_OK || rp_buffer_get(out, &out_view, 8, count, 1, "out") < 0) {
        PyBuffer_Release(&runs_view);
        return status != RP_OK ? raise_in(module, &err) : NULL;
    }
    struct rp_order_params params = {.seed = seed,
                                     .epoch = epoch,
                                     .lanes = lanes,
                                     .unit = unit,
                                     .window = window,
                                     .visit = visit,
                                     .gop = gop,
                                     .span = span};
    Py_BEGIN_ALLOW_THREADS status = rp_order_rows(run, n_runs, &params, out_view.buf, &err);
    Py_END_ALLOW_THREADS PyBuffer_Release(&out_view);
    PyBuffer_Release(&runs_view);
    if (status != RP_OK) {
        return raise_in(module, &err);
    }
    Py_RETURN_NONE;
}

static PyObject *order_slice(PyObject *module, PyObject *args)
{
    (void)module; /* pure function */
    long long lanes, p, q, rank, world;
    PyObject *out;
    if (!PyArg_ParseTuple(args, "LLLLLO:order_slice", &lanes, &p, &q, &rank, &world, &out)) {
        return NULL;
    }
    if (lanes < 1 || p < 0 || q <= p || world < 1 || world > INT32_MAX || rank < 0 ||
        rank >= world) {
        PyErr_SetString(PyExc_ValueError, "order_slice: an argument is out of range");
        return NULL;
    }
    Py_buffer view;
    if (rp_buffer_get(out, &view, 8, -1, 1, "out") < 0) {
        return NULL;
    }
    if (view.len / 8 < (q - p) / world + 1) {
        PyBuffer_Release(&view);
        PyErr_SetString(PyExc_ValueError, "order_slice: out is too small");
        return NULL;
    }
    int64_t n = rp_order_slice(lanes, p, q, rank, world, view.buf);
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(n);
}

static PyObject *hash64(PyObject *module, PyObject *args)
{
    (void)module; /* pure function */
    unsigned long long seed, index;
    unsigned int epoch, tag;
    if (!PyArg_ParseTuple(args, "KIIK:hash64", &seed, &epoch, &tag, &index)) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(rp_hash64(seed, epoch, tag, index));
}

PyMethodDef rp_order_functions[] = {
    {"order_rows", order_rows, METH_VARARGS,
     "order_rows(runs, seed, epoch, lanes, unit, window, visit, gop, span, out, /)\n--\n\nWrite "
     "the\n"
     "epoch's sequence of row numbers into out (int64). runs: int64 (n, 3) of first id,\n"
     "frame_index, length."},
    {"order_slice", order_slice, METH_VARARGS,
     "order_slice(lanes, p, q, rank, world, out, /)\n--\n\nWrite the positions of batch [p, q) "
     "that\n"
     "rank takes into out (int64); returns how many."},
    {"hash64", hash64, METH_VARARGS, "hash64(seed, epoch, tag, index, /)\n--\n\nThe order's hash."},
    {NULL, NULL, 0, NULL}};
