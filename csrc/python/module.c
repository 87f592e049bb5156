#include "python/module_state.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "base/thread.h"
#include "cuda/cuda.h"
#include "pool/pool.h"

#include <string.h>

struct module_state *rp_state_of(PyTypeObject *type)
{
    return PyType_GetModuleState(type);
}

static PyObject *live_objects(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused; /* METH_NOARGS */
    return PyLong_FromLongLong(rp_live_objects());
}

static PyObject *fork_generation(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused; /* METH_NOARGS */
    return PyLong_FromUnsignedLongLong(rp_fork_generation());
}

static PyObject *limit_cpu(PyObject *module, PyObject *args)
{
    (void)module; /* process-wide */
    const char *name;
    if (!PyArg_ParseTuple(args, "s:limit_cpu", &name)) {
        return NULL;
    }
    static const enum rp_cpu_tier tiers[] = {RP_CPU_C, RP_CPU_AVX2, RP_CPU_AVX512, RP_CPU_NEON};
    for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++) {
        if (strcmp(name, rp_cpu_name(tiers[i])) == 0) {
            return PyUnicode_FromString(rp_cpu_name(rp_convert_init(tiers[i])));
        }
    }
    return PyErr_Format(PyExc_ValueError, "unknown CPU tier '%s': c, avx2, avx512 or neon", name);
}

static PyObject *describe(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused; /* METH_NOARGS */
    char libraries[512];
    rp_pool_describe(libraries, sizeof(libraries));
    PyObject *supports = PyDict_New();
    for (int codec = RP_CODEC_AV1; supports != NULL && codec <= RP_CODEC_MPEG4; codec++) {
        PyObject *known = PyBool_FromLong(rp_pool_supports((enum rp_codec)codec));
        if (known == NULL ||
            PyDict_SetItemString(supports, rp_codec_name((enum rp_codec)codec), known) < 0) {
            Py_CLEAR(supports);
        }
        Py_XDECREF(known);
    }
    if (supports == NULL) {
        return NULL;
    }
    return Py_BuildValue("{ss ss sN ss}", "libraries", libraries, "cpu_tier",
                         rp_cpu_name(rp_convert_init(rp_cpu_detect())), "supports", supports,
                         "cuda", rp_cuda_built());
}

static PyMethodDef functions[] = {
    {"live_objects", live_objects, METH_NOARGS,
     "live_objects()\n--\n\nC objects alive in this process."},
    {"fork_generation", fork_generation, METH_NOARGS,
     "fork_generation()\n--\n\nForks between the loading process and this one."},
    {"limit_cpu", limit_cpu, METH_VARARGS,
     "limit_cpu(tier, /)\n--\n\nChoose kernels of at most this tier, before the first use; "
     "returns\n"
     "the tier in use."},
    {"describe", describe, METH_NOARGS,
     "describe()\n--\n\nLibrary versions, CPU tier, codecs and CUDA ('': none) of this build."},
    {NULL, NULL, 0, NULL}};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **out)
{
    *out = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *out == NULL ? -1 : PyModule_AddType(module, *out);
}

static int execute(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    if (rp_numpy_import() < 0 || add_type(module, &rp_engine_spec, &state->engine_type) < 0 ||
        add_type(module, &rp_batch_spec, &state->batch_type) < 0 ||
        add_type(module, &rp_device_array_spec, &state->device_array_type) < 0 ||
        add_type(module, &rp_block_map_spec, &state->block_map_type) < 0 ||
        add_type(module, &rp_lease_spec, &state->lease_type) < 0 ||
        add_type(module, &rp_feed_spec, &state->feed_type) < 0 ||
        add_type(module, &rp_http_spec, &state->http_type) < 0 ||
        add_type(module, &rp_node_cache_spec, &state->node_cache_type) < 0) {
        return -1;
    }
    PyMethodDef *functions_of[] = {rp_order_functions,   rp_mp4_functions,   rp_sums_functions,
                                   rp_parquet_functions, rp_nvdec_functions, rp_cuda_functions};
    for (size_t i = 0; i < sizeof(functions_of) / sizeof(functions_of[0]); i++) {
        if (PyModule_AddFunctions(module, functions_of[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct module_state *state = PyModule_GetState(module);
    Py_VISIT(state->engine_type);
    Py_VISIT(state->batch_type);
    Py_VISIT(state->device_array_type);
    Py_VISIT(state->block_map_type);
    Py_VISIT(state->lease_type);
    Py_VISIT(state->feed_type);
    Py_VISIT(state->http_type);
    Py_VISIT(state->node_cache_type);
    Py_VISIT(state->from_core);
    return 0;
}

static int module_clear(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->engine_type);
    Py_CLEAR(state->batch_type);
    Py_CLEAR(state->device_array_type);
    Py_CLEAR(state->block_map_type);
    Py_CLEAR(state->lease_type);
    Py_CLEAR(state->feed_type);
    Py_CLEAR(state->http_type);
    Py_CLEAR(state->node_cache_type);
    Py_CLEAR(state->from_core);
    return 0;
}

static void module_free(void *module)
{
    (void)module_clear((PyObject *)module); /* always 0 */
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "reelpool._core",
                                        .m_doc = "The C core of reelpool.",
                                        .m_size = sizeof(struct module_state),
                                        .m_methods = functions,
                                        .m_slots = slots,
                                        .m_traverse = module_traverse,
                                        .m_clear = module_clear,
                                        .m_free = module_free};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&definition);
}
