#include "python/module_state.h"

#include "cuda/cuda_video.h"
#include "pool/nvdec_probe.h"

#define MOST_FILES 16

static const struct {
    enum rp_codec codec;
    enum rp_cuda_codec number;
} codecs[] = {{RP_CODEC_H264, RP_CUDA_H264},
              {RP_CODEC_HEVC, RP_CUDA_HEVC},
              {RP_CODEC_VP9, RP_CUDA_VP9},
              {RP_CODEC_AV1, RP_CUDA_AV1}};
enum { CODECS = sizeof(codecs) / sizeof(codecs[0]) };

static rp_status read_caps(const char *driver, const char *library, int ordinal,
                           struct rp_cuda_video_caps caps[], struct rp_error *err)
{
    rp_cuda *device = NULL;
    RP_TRY(rp_cuda_open(driver, ordinal, 0, &device, err));
    rp_status status = RP_OK;
    for (int i = 0; i < CODECS && status == RP_OK; i++) {
        status = rp_cuda_video_caps(device, library, codecs[i].number, &caps[i], err);
    }
    rp_cuda_close(&device);
    return status;
}

static PyObject *nvdec_caps(PyObject *module, PyObject *args)
{
    const char *driver = NULL, *library = NULL;
    struct rp_cuda_video_caps caps[CODECS];
    struct rp_error err;
    int ordinal = 0;
    if (!PyArg_ParseTuple(args, "|izz:nvdec_caps", &ordinal, &driver, &library)) {
        return NULL;
    }
    rp_error_clear(&err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = read_caps(driver, library, ordinal, caps, &err);
    Py_END_ALLOW_THREADS;
    if (status != RP_OK) {
        return rp_raise(PyModule_GetState(module), &err);
    }
    PyObject *found = PyDict_New();
    for (int i = 0; found != NULL && i < CODECS; i++) {
        const struct rp_cuda_video_caps *c = &caps[i];
        PyObject *value = c->supported ? Py_BuildValue("(i(ii)(ii))", c->engines, c->min_width,
                                                       c->min_height, c->max_width, c->max_height)
                                       : Py_NewRef(Py_None);
        if (value == NULL ||
            PyDict_SetItemString(found, rp_codec_name(codecs[i].codec), value) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(value);
    }
    return found;
}

static PyObject *verdict_list(const struct rp_nvdec_verdict *verdicts, int n)
{
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        const struct rp_nvdec_verdict *v = &verdicts[i];
        PyObject *item = Py_BuildValue("(siiOs)", rp_codec_name(v->codec), v->width, v->height,
                                       v->on_gpu ? Py_True : Py_False, v->reason);
        if (item == NULL || PyList_SetItem(list, i, item) < 0) { /* it takes the item */
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *nvdec_probe(PyObject *module, PyObject *args)
{
    PyObject *files = NULL;
    const char *driver = NULL, *library = NULL, *paths[MOST_FILES];
    struct rp_nvdec_verdict verdicts[MOST_FILES];
    struct rp_error err;
    int ordinal = 0;
    if (!PyArg_ParseTuple(args, "O!|izz:nvdec_probe", &PyTuple_Type, &files, &ordinal, &driver,
                          &library)) {
        return NULL;
    }
    Py_ssize_t n = PyTuple_Size(files);
    if (n < 1 || n > MOST_FILES) {
        return PyErr_Format(PyExc_ValueError, "%zd files: 1 to %d", n, MOST_FILES);
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        paths[i] = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(files, i), NULL);
        if (paths[i] == NULL) {
            return NULL;
        }
    }
    rp_error_clear(&err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = rp_nvdec_probe(driver, library, ordinal, paths, (int)n, verdicts, &err);
    Py_END_ALLOW_THREADS;
    return status != RP_OK ? rp_raise(PyModule_GetState(module), &err)
                           : verdict_list(verdicts, (int)n);
}

PyMethodDef rp_nvdec_functions[] = {
    {"nvdec_caps", nvdec_caps, METH_VARARGS,
     "nvdec_caps(ordinal=0, driver=None, library=None, /)\n--\n\n"
     "What NVDEC says of 8-bit 4:2:0: {codec: (engines, smallest, largest (width, height)), or\n"
     "None: it does not decode it}. CudaError: no GPU, no libnvcuvid."},
    {"nvdec_probe", nvdec_probe, METH_VARARGS,
     "nvdec_probe(paths, ordinal=0, driver=None, library=None, /)\n--\n\n"
     "Decode the first pictures of each file on the GPU and on the CPU: [(codec, width, height,\n"
     "whether the GPU decodes such streams from now on, why)]. CudaError: no GPU, or it is full."},
    {NULL, NULL, 0, NULL}};
