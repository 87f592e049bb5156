/* What the types of the module share. One .c per type; each offers its spec and, where others make
 * its objects, a constructor. Everything here runs with the GIL held unless a comment says so. */
#ifndef RP_PYTHON_MODULE_STATE_H
#define RP_PYTHON_MODULE_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "base/arena.h"
#include "base/error.h"
#include "fetch/node_cache.h"
#include "pool/feed.h"
#include "pool/pool.h"

struct module_state {
    PyTypeObject *engine_type;
    PyTypeObject *batch_type;
    PyTypeObject *device_array_type;
    PyTypeObject *block_map_type;
    PyTypeObject *lease_type;
    PyTypeObject *feed_type;
    PyTypeObject *http_type;
    PyTypeObject *node_cache_type;
    PyObject *from_core; /* reelpool.errors.from_core, imported at the first error */
};

extern PyType_Spec rp_engine_spec;
extern PyType_Spec rp_batch_spec;
extern PyType_Spec rp_device_array_spec;
extern PyType_Spec rp_block_map_spec;
extern PyType_Spec rp_lease_spec;
extern PyType_Spec rp_feed_spec;
extern PyType_Spec rp_http_spec;
extern PyType_Spec rp_node_cache_spec;

/* State of the module that made `type`; NULL with an exception when it is gone. */
struct module_state *rp_state_of(PyTypeObject *type);

/* What `err` says as an object of a class of reelpool.errors: a new reference, or NULL with an
 * exception. */
PyObject *rp_exception(struct module_state *state, const struct rp_error *err);

/* Raise what `err` says as a class of reelpool.errors. Always returns NULL. */
PyObject *rp_raise(struct module_state *state, const struct rp_error *err);

/* NumPy's array functions for this module; 0, or -1 with ImportError set. batch_type.c owns it. */
int rp_numpy_import(void);

/* One field of a batch as Python sees it. */
struct array_field {
    char kind; /* 'B' uint8, 'H' uint16, 'f' float32, 'q' int64, '?' bool */
    int ndim;  /* of one sample, <= 6 */
    Py_ssize_t shape[6];
    size_t sample_bytes;
};

/* Parse [(kind, shape), ...]. Owner: *out is the caller's (PyMem_Free). -1 with an exception. */
int rp_fields_parse(PyObject *list, struct array_field **out, Py_ssize_t *count);

/* NumPy arrays of shape (n, *field.shape) over memory that `base` owns: a new list, or NULL with an
 * exception. The arrays are writable and keep `base` alive. */
PyObject *rp_fields_arrays(const struct array_field *field, Py_ssize_t count, Py_ssize_t n,
                           uint8_t *data, const size_t *offset, PyObject *base);

/* A new NumPy array (n, *field.shape), its elements undefined, at *data. NULL with an exception. */
PyObject *rp_field_empty(const struct array_field *field, Py_ssize_t n, void **data);

/* A field of a batch that lies in a GPU's memory: a new DeviceArray, which keeps `owner`, whose
 * batch it is, alive. NULL with an exception. */
PyObject *rp_device_array_new(struct module_state *state, PyObject *owner, rp_batch *batch,
                              const struct array_field *field, size_t offset);

/* New Batch that takes *batch over (nulled) and knows its fields through `engine` (kept alive).
 * NULL with an exception; then *batch has been freed. */
PyObject *rp_batch_wrap(struct module_state *state, rp_batch **batch,
                        const struct array_field *field, Py_ssize_t count, PyObject *engine);

/* Take the feed out of a Feed, which is empty afterwards. Owner: the result is the caller's, freed
 * with rp_feed_free. NULL with TypeError (no Feed) or ValueError (taken before, or in use). */
rp_feed *rp_feed_take(struct module_state *state, PyObject *object);

/* The cache inside a NodeCache, renewed in a forked child. Owner: borrowed, for as long as a
 * reference to the object is held and the process is not forked. NULL with TypeError or
 * MemoryError. */
rp_node_cache *rp_node_cache_lend(struct module_state *state, PyObject *object);

/* The client of an HttpClient until rp_http_let_go: closing the object waits for that. In a forked
 * child it is made anew. NULL with TypeError (another object) or an error of reelpool (closed). */
rp_http_client *rp_http_hold(struct module_state *state, PyObject *object);
void rp_http_let_go(PyObject *object);

/* Contiguous borrowed buffers with an item size and count check. -1 with ValueError or TypeError
 * naming `what`. Release with PyBuffer_Release. */
int rp_buffer_get(PyObject *object, Py_buffer *view, Py_ssize_t itemsize, Py_ssize_t count,
                  int writable, const char *what);

/* (int64 rows [offset, size, pts, flags] of all samples in decode order, int64 the shown ones in
 * presentation order) as bytearrays: a new tuple, or NULL with an exception. */
PyObject *rp_sample_rows(const rp_index *index);

/* Functions of the module that belong to no type. */
extern PyMethodDef rp_order_functions[];
extern PyMethodDef rp_mp4_functions[];
extern PyMethodDef rp_sums_functions[];
extern PyMethodDef rp_parquet_functions[];
extern PyMethodDef rp_nvdec_functions[];
extern PyMethodDef rp_cuda_functions[];

#endif
