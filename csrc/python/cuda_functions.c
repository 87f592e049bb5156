#include "python/module_state.h"

#include "cuda/cuda.h"

static PyObject *device_tuple(const struct rp_cuda_info *info)
{
    return Py_BuildValue("(s(ii)iL)", info->name, info->major, info->minor, info->processors,
                         (long long)info->bytes);
}

static PyObject *cuda_devices(PyObject *module, PyObject *args)
{
    const char *library = NULL;
    struct rp_cuda_info info[RP_CUDA_MAX_DEVICES];
    struct rp_error err;
    int n = 0, version = 0;
    if (!PyArg_ParseTuple(args, "|z:cuda_devices", &library)) {
        return NULL;
    }
    rp_error_clear(&err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS;
    status = rp_cuda_list(library, info, &n, &version, &err);
    Py_END_ALLOW_THREADS;
    if (status != RP_OK) {
        return rp_raise(PyModule_GetState(module), &err);
    }
    PyObject *devices = PyList_New(n);
    for (Py_ssize_t i = 0; devices != NULL && i < n; i++) {
        PyObject *device = device_tuple(&info[i]);
        if (device == NULL || PyList_SetItem(devices, i, device) < 0) { /* it takes the device */
            Py_CLEAR(devices);
        }
    }
    return devices == NULL ? NULL : Py_BuildValue("(iN)", version, devices);
}

PyMethodDef rp_cuda_functions[] = {
    {"cuda_devices", cuda_devices, METH_VARARGS,
     "cuda_devices(library=None, /)\n--\n\n"
     "(CUDA version of the driver, [(name, (major, minor), multiprocessors, bytes), ...]); makes\n"
     "no context. CudaError says why there is none. library: another libcuda.so.1."},
    {NULL, NULL, 0, NULL}};
