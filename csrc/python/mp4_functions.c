#include "python/module_state.h"

#include "base/memory.h"
#include "demux/demux.h"
#include "demux/mp4_write.h"
#include "fetch/fetch.h"
#include "pool/sums.h"

#include <limits.h>

#define OPEN_SOURCES 16 /* descriptors kept while files are concatenated */

static int copy_times(const rp_index *index, PyObject *out)
{
    int64_t n = rp_index_addressable(index);
    double *to = (double *)(void *)PyByteArray_AsString(out);
    double timescale = rp_index_timescale(index);
    for (int64_t i = 0; i < n; i++) {
        struct rp_sample sample;
        rp_index_sample(index, rp_index_nth(index, i), &sample);
        to[i] = (double)sample.pts / timescale;
    }
    return 0;
}

static PyObject *count_keys(const rp_index *index)
{
    int64_t keys = 0, bytes = 0;
    for (int64_t i = 0; i < rp_index_samples(index); i++) {
        struct rp_sample sample;
        rp_index_sample(index, i, &sample);
        keys += sample.key;
        bytes += sample.size;
    }
    return Py_BuildValue("LL", (long long)keys, (long long)bytes);
}

static PyObject *describe(const rp_index *index, uint32_t header_sum)
{
    const struct rp_codec_params *codec = rp_index_codec(index);
    PyObject *times = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)rp_index_addressable(index) *
                                                              (Py_ssize_t)sizeof(double));
    PyObject *counts = count_keys(index);
    if (times == NULL || counts == NULL || copy_times(index, times) < 0) {
        Py_XDECREF(times);
        Py_XDECREF(counts);
        return NULL;
    }
    return Py_BuildValue("{ss si si sL sL sI sL sn sI sN sN}", "codec", rp_codec_name(codec->codec),
                         "width", codec->width, "height", codec->height, "samples",
                         (long long)rp_index_samples(index), "addressable",
                         (long long)rp_index_addressable(index), "timescale",
                         rp_index_timescale(index), "duration", (long long)rp_index_duration(index),
                         "index_bytes", (Py_ssize_t)rp_index_bytes(index), "header",
                         (unsigned int)header_sum, "times", times, "keys_and_bytes", counts);
}

/* The index of one file, and the check sum of its header. Runs without the GIL. */
static rp_status read_index(const char *path, rp_index **out, uint32_t *header_sum,
                            struct rp_error *err)
{
    rp_files *files = NULL;
    RP_TRY(rp_files_new(&path, 1, 1, &files, err));
    rp_status status = rp_video_header_read(files, 0, out, header_sum, NULL, err);
    rp_files_free(&files);
    return status;
}

/* Add what comparing and joining need to know: `signature`, `rows`, `order`. NULL with an
 * exception; then `info` is freed. */
static PyObject *describe_more(struct module_state *state, const rp_index *index, const char *path,
                               PyObject *info)
{
    struct rp_error err;
    rp_error_clear(&err);
    uint8_t *entry = NULL;
    size_t len = 0;
    if (rp_sample_entry(index, &entry, &len, &err) != RP_OK) {
        rp_error_at_file(&err, path, -1, -1);
        Py_DECREF(info);
        return state == NULL ? NULL : rp_raise(state, &err);
    }
    PyObject *signature = PyBytes_FromStringAndSize((const char *)entry, (Py_ssize_t)len);
    rp_free(entry);
    PyObject *samples = rp_sample_rows(index);
    bool good = signature != NULL && samples != NULL &&
                PyDict_SetItemString(info, "signature", signature) == 0 &&
                PyDict_SetItemString(info, "rows", PyTuple_GetItem(samples, 0)) == 0 &&
                PyDict_SetItemString(info, "order", PyTuple_GetItem(samples, 1)) == 0;
    Py_XDECREF(signature);
    Py_XDECREF(samples);
    if (!good) {
        Py_CLEAR(info);
    }
    return info;
}

static PyObject *video_info(PyObject *module, PyObject *args)
{
    PyObject *path_bytes;
    int more = 0;
    if (!PyArg_ParseTuple(args, "O&|p:video_info", PyUnicode_FSConverter, &path_bytes, &more)) {
        return NULL;
    }
    struct module_state *state = PyModule_GetState(module);
    const char *path = PyBytes_AsString(path_bytes);
    struct rp_error err;
    rp_error_clear(&err);
    rp_index *index = NULL;
    uint32_t header_sum = 0;
    PyThreadState *thread = PyEval_SaveThread(); /* the GIL is away */
    rp_status status = read_index(path, &index, &header_sum, &err);
    PyEval_RestoreThread(thread);
    PyObject *info = NULL;
    if (status == RP_OK) {
        info = describe(index, header_sum);
    }
    else if (state != NULL) {
        (void)rp_raise(state, &err); /* NULL, as info is */
    }
    if (info != NULL && more) {
        info = describe_more(state, index, path, info);
    }
    rp_index_free(&index);
    Py_DECREF(path_bytes);
    return info;
}

static PyObject *video_signature(PyObject *module, PyObject *args)
{
    PyObject *path_bytes;
    if (!PyArg_ParseTuple(args, "O&:video_signature", PyUnicode_FSConverter, &path_bytes)) {
        return NULL;
    }
    struct module_state *state = PyModule_GetState(module);
    const char *path = PyBytes_AsString(path_bytes);
    struct rp_error err;
    rp_error_clear(&err);
    uint8_t *entry = NULL;
    size_t len = 0;
    PyThreadState *thread = PyEval_SaveThread(); /* the GIL is away */
    rp_index *index = NULL;
    uint32_t header_sum;
    rp_status status = read_index(path, &index, &header_sum, &err);
    if (status == RP_OK) {
        status = rp_sample_entry(index, &entry, &len, &err);
        rp_error_at_file(&err, path, -1, -1);
        rp_index_free(&index);
    }
    PyEval_RestoreThread(thread);
    Py_DECREF(path_bytes);
    if (status != RP_OK) {
        return state == NULL ? NULL : rp_raise(state, &err);
    }
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)entry, (Py_ssize_t)len);
    rp_free(entry);
    return bytes;
}

/* Add every file to the plan. */
static rp_status plan_files(rp_concat *plan, rp_files *files, int n, struct rp_error *err)
{
    for (int i = 0; i < n; i++) {
        rp_index *index = NULL;
        RP_TRY(rp_video_index_read(files, i, &index, NULL, err));
        rp_status status = rp_concat_add(plan, &index, err);
        if (status != RP_OK) {
            rp_index_free(&index);
            rp_error_at_file(err, rp_files_path(files, i), -1, -1);
            return status;
        }
    }
    return rp_concat_finish(plan, err);
}

/* Append the pictures of all sources and sum them up: sums[k] of the k-th one. */
static rp_status copy_pictures(const rp_concat *plan, rp_files *files, rp_output *output,
                               uint32_t *sums, struct rp_error *err)
{
    size_t ranges;
    const struct rp_concat_range *range = rp_concat_ranges(plan, &ranges);
    int64_t count = 0;
    for (size_t i = 0; i < ranges; i++) {
        if (i == 0 || range[i].source != range[i - 1].source) {
            sums += count; /* those of the source before are complete */
            const uint32_t *sizes = rp_concat_sizes(plan, range[i].source, &count);
            rp_output_sum(output, sizes, count, sums);
        }
        RP_TRY(rp_output_copy(output, files, range[i].source, range[i].bytes.offset,
                              range[i].bytes.len, err));
    }
    return RP_OK;
}

static rp_status write_planned(const rp_concat *plan, rp_files *files, const char *path, bool later,
                               uint32_t *sums, struct rp_error *err)
{
    size_t len;
    const uint8_t *head = rp_concat_head(plan, &len);
    rp_output *output = NULL;
    RP_TRY(rp_output_open(path, rp_concat_bytes(plan), &output, err));
    rp_status status = rp_output_write(output, head, len, err);
    if (status == RP_OK) {
        status = copy_pictures(plan, files, output, sums, err);
    }
    if (status == RP_OK) {
        return rp_output_commit(&output, later, err);
    }
    rp_output_abandon(&output);
    return status;
}

/* Concatenate n files, or only plan it (out: NULL, *sums: all 0); *plan and *sums are the caller's,
 * on failure too. Runs without the GIL. */
static rp_status concat(const char *const *paths, int n, const char *out, bool later,
                        rp_concat **plan, uint32_t **sums, struct rp_error *err)
{
    rp_files *files = NULL;
    RP_TRY(rp_concat_new(plan, err));
    RP_TRY(rp_files_new(paths, n, OPEN_SOURCES, &files, err));
    rp_status status = plan_files(*plan, files, n, err);
    if (status == RP_OK) {
        size_t samples = (size_t)rp_concat_samples(*plan);
        *sums = rp_calloc(samples, sizeof(**sums));
        if (*sums == NULL) {
            status = rp_error_set(err, RP_E_NOMEM, "out of memory for %zu check sums", samples);
        }
        else if (out != NULL) {
            status = write_planned(*plan, files, out, later, *sums, err);
        }
    }
    rp_files_free(&files);
    return status;
}

static PyObject *list_parts(const rp_concat *plan, const uint32_t *sums)
{
    int n;
    const struct rp_concat_part *part = rp_concat_parts(plan, &n);
    unsigned int timescale = rp_concat_timescale(plan);
    PyObject *list = PyList_New(n);
    for (int i = 0; list != NULL && i < n; i++) {
        int64_t count;
        (void)rp_concat_sizes(plan, i, &count);
        PyObject *dict = Py_BuildValue(
            "{sL s(LI) s(LI) s(LI) sy#}", "frames", (long long)part[i].frames, "start",
            (long long)part[i].start, timescale, "offset", (long long)part[i].offset, timescale,
            "duration", (long long)part[i].duration, timescale, "sums", (const char *)sums,
            (Py_ssize_t)(count * (int64_t)sizeof(*sums)));
        sums += count;
        if (dict == NULL || PyList_SetItem(list, i, dict) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Borrowed paths of a tuple of bytes, to be freed with PyMem_Free; NULL with an exception. */
static const char **borrow_paths(PyObject *tuple)
{
    Py_ssize_t n = PyTuple_Size(tuple);
    const char **paths = PyMem_Calloc((size_t)n, sizeof(*paths));
    if (paths == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        char *path; /* without a length asked for, a zero byte inside is a ValueError */
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(tuple, i), &path, NULL) < 0) {
            PyMem_Free(paths);
            return NULL;
        }
        paths[i] = path;
    }
    return paths;
}

static PyObject *concat_videos(PyObject *module, PyObject *args)
{
    PyObject *list;
    PyObject *out_bytes;
    char *out = NULL; /* None: only plan */
    int later = 0;
    if (!PyArg_ParseTuple(args, "O!O|p:concat_videos", &PyList_Type, &list, &out_bytes, &later) ||
        (out_bytes != Py_None && PyBytes_AsStringAndSize(out_bytes, &out, NULL) < 0)) {
        return NULL;
    }
    struct module_state *state = PyModule_GetState(module);
    PyObject *tuple = PyList_AsTuple(list); /* nobody changes it while the GIL is away */
    if (state == NULL || tuple == NULL) {
        Py_XDECREF(tuple);
        return NULL;
    }
    Py_ssize_t n = PyTuple_Size(tuple);
    if (n == 0 || n > INT_MAX) {
        Py_DECREF(tuple);
        return PyErr_Format(PyExc_ValueError, "%zd videos to concatenate", n);
    }
    const char **paths = borrow_paths(tuple);
    if (paths == NULL) {
        Py_DECREF(tuple);
        return NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_concat *plan = NULL;
    uint32_t *sums = NULL;
    PyThreadState *thread = PyEval_SaveThread(); /* the GIL is away */
    rp_status status = concat(paths, (int)n, out, later, &plan, &sums, &err);
    PyEval_RestoreThread(thread);
    PyObject *parts = status == RP_OK ? list_parts(plan, sums) : rp_raise(state, &err);
    rp_concat_free(&plan);
    rp_free(sums);
    PyMem_Free((void *)paths);
    Py_DECREF(tuple);
    return parts;
}

PyMethodDef rp_mp4_functions[] = {
    {"video_info", video_info, METH_VARARGS,
     "video_info(path, more=False, /)\n--\n\nFacts of an MP4 file's video track as a dict; `times` "
     "are the\npictures' seconds in presentation order (float64 bytes), `keys_and_bytes` counts "
     "key\npictures and coded bytes, `header` is the CRC-32C of its `moov`. With `more` also\n"
     "`signature` as `video_signature`, `rows` and `order` as `video_samples`."},
    {"video_signature", video_signature, METH_VARARGS,
     "video_signature(path, /)\n--\n\nWhat decoding an MP4 file needs to know: its sample entry as "
     "bytes, without bit rates and\nencoder names. Files with equal ones can be concatenated."},
    {"concat_videos", concat_videos, METH_VARARGS,
     "concat_videos(paths, out, later=False, /)\n--\n\nMake a new MP4 file of the video tracks of "
     "others, nothing decoded; it replaces `out` once it\nis whole and on the disk; with `later` "
     "the caller syncs it. Per file a dict: `frames` shown, "
     "`start` of the first one in the file (0 unless it\nstarts late), its `offset` in the new "
     "one, `duration` of all, seconds as (numerator,\ndenominator); `sums` CRC-32C of each "
     "picture as it was read and written, in decode\norder (uint32 bytes). `out` None: nothing is "
     "written, the sums mean nothing."},
    {NULL, NULL, 0, NULL}};
