#include "python/module_state.h"

#include "demux/index_sidecar.h"
#include "fetch/fetch.h"
#include "pool/sums.h"

#include <string.h>

static PyObject *raise_in(PyObject *module, const struct rp_error *err)
{
    struct module_state *state = PyModule_GetState(module);
    return state == NULL ? NULL : rp_raise(state, err);
}

static PyObject *video_sums(PyObject *module, PyObject *args)
{
    PyObject *path, *name;
    if (!PyArg_ParseTuple(args, "O&O&:video_sums", PyUnicode_FSConverter, &path,
                          PyUnicode_FSConverter, &name)) {
        return NULL;
    }
    const char *path_text = PyBytes_AsString(path), *name_text = PyBytes_AsString(name);
    struct rp_error err;
    rp_error_clear(&err);
    rp_buf *sidecar = NULL;
    rp_status status;
    Py_BEGIN_ALLOW_THREADS rp_files *files = NULL;
    status = rp_files_new(&path_text, 1, 1, &files, &err);
    if (status == RP_OK) {
        status = rp_video_sums(files, 0, name_text, &sidecar, &err);
    }
    rp_files_free(&files);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    Py_DECREF(name);
    if (status != RP_OK) {
        return raise_in(module, &err);
    }
    PyObject *bytes =
        PyBytes_FromStringAndSize((const char *)sidecar->data, (Py_ssize_t)sidecar->len);
    rp_buf_unref(&sidecar);
    return bytes;
}

/* The sidecar of a file whose samples have the sums `values`; only its header is read. */
static rp_status known_sums(const char *path, const char *name, const uint32_t *values, int64_t n,
                            rp_buf **out, struct rp_error *err)
{
    rp_files *files = NULL;
    rp_index *index = NULL;
    struct rp_sidecar facts = {.path = name, .path_len = strlen(name)};
    RP_TRY(rp_files_new(&path, 1, 1, &files, err));
    rp_status status = rp_video_header_read(files, 0, &index, &facts.header, NULL, err);
    if (status == RP_OK) {
        facts.samples = rp_index_samples(index);
        status = rp_files_version(files, 0, &facts.file_size, &facts.mtime_ns, err);
    }
    if (status == RP_OK && facts.samples != n) {
        status = rp_error_set(err, RP_E_FORMAT, "%lld samples, %lld check sums",
                              (long long)facts.samples, (long long)n);
        rp_error_at_file(err, path, -1, -1);
    }
    if (status == RP_OK) {
        status = rp_sidecar_write(&facts, values, out, err);
    }
    rp_index_free(&index);
    rp_files_free(&files);
    return status;
}

/* uint32 values of a buffer that may lie at any address, to be freed with PyMem_Free. */
static uint32_t *take_values(PyObject *object, int64_t *n)
{
    Py_buffer view;
    if (rp_buffer_get(object, &view, 1, -1, 0, "values") < 0) {
        return NULL;
    }
    *n = (int64_t)view.len / (int64_t)sizeof(uint32_t);
    uint32_t *values = PyMem_Malloc((size_t)view.len + 1);
    if (values != NULL) {
        memcpy(values, view.buf, (size_t)view.len);
    }
    else {
        PyErr_NoMemory();
    }
    PyBuffer_Release(&view);
    return values;
}

static PyObject *write_sums(PyObject *module, PyObject *args)
{
    PyObject *path, *name, *object;
    if (!PyArg_ParseTuple(args, "O&O&O:write_sums", PyUnicode_FSConverter, &path,
                          PyUnicode_FSConverter, &name, &object)) {
        return NULL;
    }
    int64_t n;
    PyObject *bytes = NULL;
    uint32_t *values = take_values(object, &n);
    if (values != NULL) {
        const char *path_text = PyBytes_AsString(path), *name_text = PyBytes_AsString(name);
        struct rp_error err;
        rp_error_clear(&err);
        rp_buf *sidecar = NULL;
        PyThreadState *thread = PyEval_SaveThread(); /* the GIL is away */
        rp_status status = known_sums(path_text, name_text, values, n, &sidecar, &err);
        PyEval_RestoreThread(thread);
        bytes = status != RP_OK ? raise_in(module, &err)
                                : PyBytes_FromStringAndSize((const char *)sidecar->data,
                                                            (Py_ssize_t)sidecar->len);
        rp_buf_unref(&sidecar);
        PyMem_Free(values);
    }
    Py_DECREF(path);
    Py_DECREF(name);
    return bytes;
}

static PyObject *parse_sums(PyObject *module, PyObject *args)
{
    PyObject *data;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "O:parse_sums", &data) ||
        rp_buffer_get(data, &view, 1, -1, 0, "sums") < 0) {
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_sidecar got;
    rp_status status = rp_sidecar_parse(view.buf, (size_t)view.len, &got, &err);
    PyObject *result =
        status != RP_OK
            ? raise_in(module, &err)
            : Py_BuildValue("y#LLIy#", got.path, (Py_ssize_t)got.path_len, (long long)got.file_size,
                            (long long)got.mtime_ns, got.header, (const char *)got.sums,
                            (Py_ssize_t)(4 * got.samples));
    PyBuffer_Release(&view);
    return result;
}

PyObject *rp_sample_rows(const rp_index *index)
{
    Py_ssize_t n = (Py_ssize_t)rp_index_samples(index);
    Py_ssize_t shown = (Py_ssize_t)rp_index_addressable(index);
    PyObject *rows = PyByteArray_FromStringAndSize(NULL, 4 * n * (Py_ssize_t)sizeof(int64_t));
    PyObject *order = PyByteArray_FromStringAndSize(NULL, shown * (Py_ssize_t)sizeof(int64_t));
    if (rows == NULL || order == NULL) {
        Py_XDECREF(rows);
        Py_XDECREF(order);
        return NULL;
    }
    int64_t *to = (int64_t *)(void *)PyByteArray_AsString(rows);
    for (Py_ssize_t i = 0; i < n; i++, to += 4) {
        struct rp_sample sample;
        rp_index_sample(index, i, &sample);
        to[0] = sample.offset;
        to[1] = sample.size;
        to[2] = sample.pts;
        to[3] = (sample.key ? 1 : 0) | (sample.addressable ? 2 : 0);
    }
    to = (int64_t *)(void *)PyByteArray_AsString(order);
    for (Py_ssize_t i = 0; i < shown; i++) {
        to[i] = rp_index_nth(index, i);
    }
    return Py_BuildValue("NN", rows, order);
}

static PyObject *video_samples(PyObject *module, PyObject *args)
{
    PyObject *path;
    if (!PyArg_ParseTuple(args, "O&:video_samples", PyUnicode_FSConverter, &path)) {
        return NULL;
    }
    const char *text = PyBytes_AsString(path);
    struct rp_error err;
    rp_error_clear(&err);
    rp_index *index = NULL;
    rp_status status;
    Py_BEGIN_ALLOW_THREADS rp_files *files = NULL;
    status = rp_files_new(&text, 1, 1, &files, &err);
    if (status == RP_OK) {
        status = rp_video_index_read(files, 0, &index, NULL, &err);
    }
    rp_files_free(&files);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    if (status != RP_OK) {
        return raise_in(module, &err);
    }
    PyObject *result = rp_sample_rows(index);
    rp_index_free(&index);
    return result;
}

static PyObject *bad_list(const struct rp_picture_check *check)
{
    PyObject *list = PyList_New(0);
    for (int64_t i = 0; list != NULL && i < check->n_bad; i++) {
        const struct rp_bad_picture *bad = &check->bad[i];
        PyObject *entry = Py_BuildValue("LssLL", (long long)bad->sample,
                                        rp_status_name(bad->error.code), bad->error.what,
                                        (long long)bad->error.offset, (long long)bad->error.length);
        if (entry == NULL || PyList_Append(list, entry) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(entry);
    }
    return list;
}

static PyObject *check_pictures(PyObject *module, PyObject *args)
{
    PyObject *path;
    long long first, end;
    int strict;
    if (!PyArg_ParseTuple(args, "O&LLp:check_pictures", PyUnicode_FSConverter, &path, &first, &end,
                          &strict)) {
        return NULL;
    }
    if (first < 0) {
        Py_DECREF(path);
        return PyErr_Format(PyExc_ValueError, "check_pictures: first is %lld", first);
    }
    const char *text = PyBytes_AsString(path);
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_picture_check check = {0};
    rp_status status;
    Py_BEGIN_ALLOW_THREADS rp_files *files = NULL;
    rp_index *index = NULL;
    status = rp_files_new(&text, 1, 1, &files, &err);
    if (status == RP_OK) {
        status = rp_video_index_read(files, 0, &index, NULL, &err);
    }
    /* a second look by the same library would find nothing new */
    bool idle = strict && status == RP_OK && !rp_video_has_strict(rp_index_codec(index)->codec);
    if (status == RP_OK && first < rp_index_samples(index) && !idle) {
        status = rp_video_check_pictures(files, 0, index, first, end, strict, &check, &err);
    }
    rp_index_free(&index);
    rp_files_free(&files);
    Py_END_ALLOW_THREADS Py_DECREF(path);
    PyObject *result = NULL;
    if (status == RP_OK) {
        PyObject *bad = bad_list(&check);
        result = bad == NULL ? NULL : Py_BuildValue("LN", (long long)check.pictures, bad);
    }
    else {
        (void)raise_in(module, &err); /* NULL, as result is */
    }
    rp_picture_check_free(&check);
    return result;
}

PyMethodDef rp_sums_functions[] = {
    {"video_sums", video_sums, METH_VARARGS,
     "video_sums(path, name, /)\n--\n\nRead a whole MP4 file: the sidecar of its check sums as\n"
     "bytes. `name` is the path that the sidecar names."},
    {"write_sums", write_sums, METH_VARARGS,
     "write_sums(path, name, values, /)\n--\n\nThe same of sums that are known: uint32 values of "
     "the\nsamples, in decode order. Reads the header only."},
    {"parse_sums", parse_sums, METH_VARARGS,
     "parse_sums(data, /)\n--\n\nA sidecar as (path bytes, file size, mtime_ns, sum of the "
     "header,\n"
     "uint32 bytes of the samples' sums). FormatError for anything else."},
    {"video_samples", video_samples, METH_VARARGS,
     "video_samples(path, /)\n--\n\n(int64 bytes of rows [offset, size, pts, flags] per sample in\n"
     "decode order, int64 bytes of the addressable ones in presentation order). Flags: 1 key,\n"
     "2 addressable."},
    {"check_pictures", check_pictures, METH_VARARGS,
     "check_pictures(path, first, end, strict, /)\n--\n\nDecode each picture whose start key lies\n"
     "in samples [first, end): (pictures looked at, [(sample, code, what, offset, length), ...]).\n"
     "strict: by the stricter of two libraries; nothing is looked at where there is but one."},
    {NULL, NULL, 0, NULL}};
