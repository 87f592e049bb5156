/* The Engine type: what its methods and the reading of its arguments share. */
#ifndef RP_PYTHON_ENGINE_PRIV_H
#define RP_PYTHON_ENGINE_PRIV_H

#include "python/module_state.h"

/* Engine: rp_loader with the Python memory it borrows. */
struct engine_object {
    PyObject_HEAD rp_loader *loader;
    int users; /* calls under way with the GIL released */
    int closed;
    struct rp_dataset_desc desc;
    const char **paths, **sums;
    struct rp_remote_file *remote;
    PyObject **held; /* HttpClients in use; `owners` keeps them alive */
    Py_ssize_t n_held;
    uint64_t held_in; /* fork generation */
    struct rp_camera *camera;
    struct rp_column *column;
    struct rp_pad *pad;
    Py_buffer *view; /* everything borrowed through the buffer protocol */
    Py_ssize_t n_views, cap_views;
    PyObject *owners; /* the constructor's arguments: strings live in them */
    struct array_field *field;
    Py_ssize_t n_fields;
};

/* Take what the constructor's arguments describe and make the loader. What was taken is given back
 * by the object's end. Owner: buffers are borrowed until then. Thread: with the GIL. -1 with an
 * exception. */
int rp_engine_fill(struct engine_object *self, struct module_state *state, PyObject *args);

#endif
