#include "python/module_state.h"

#include "demux/demux.h"
#include "fetch/fetch.h"

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

static PyObject *describe(const rp_index *index)
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
    return Py_BuildValue(
        "{ss si si sL sL sI sL sn sN sN}", "codec", rp_codec_name(codec->codec), "width",
        codec->width, "height", codec->height, "samples", (long long)rp_index_samples(index),
        "addressable", (long long)rp_index_addressable(index), "timescale",
        rp_index_timescale(index), "duration", (long long)rp_index_duration(index), "index_bytes",
        (Py_ssize_t)rp_index_bytes(index), "times", times, "keys_and_bytes", counts);
}

static PyObject *video_info(PyObject *module, PyObject *args)
{
    PyObject *path_bytes;
    if (!PyArg_ParseTuple(args, "O&:video_info", PyUnicode_FSConverter, &path_bytes)) {
        return NULL;
    }
    struct module_state *state = PyModule_GetState(module);
    const char *path = PyBytes_AsString(path_bytes);
    struct rp_error err;
    rp_error_clear(&err);
    rp_index *index = NULL;
    rp_status status;
    Py_BEGIN_ALLOW_THREADS rp_files *files = NULL;
    status = rp_files_new(&path, 1, 1, &files, &err);
    if (status == RP_OK) {
        status = rp_video_index_read(files, 0, &index, NULL, &err);
    }
    rp_files_free(&files);
    Py_END_ALLOW_THREADS Py_DECREF(path_bytes);
    if (status != RP_OK) {
        return state == NULL ? NULL : rp_raise(state, &err);
    }
    PyObject *info = describe(index);
    rp_index_free(&index);
    return info;
}

PyMethodDef rp_mp4_functions[] = {
    {"video_info", video_info, METH_VARARGS,
     "video_info(path, /)\n--\n\nFacts of an MP4 file's video track as a dict; `times` are the\n"
     "pictures' seconds in presentation order (float64 bytes), `keys_and_bytes` counts key\n"
     "pictures and coded bytes."},
    {NULL, NULL, 0, NULL}};
