#include "python/module_state.h"

#include "base/thread.h"
#include "fetch/node_cache.h"

#include <math.h>

/* NodeCache: rp_node_cache. Any thread may call it; a call holds a reference, so the cache outlives
 * the calls under way. */
struct node_object {
    PyObject_HEAD rp_node_cache *cache; /* NULL: a fork's child was short of memory */
};

static struct node_object *self_of(PyObject *object)
{
    return (struct node_object *)(void *)object;
}

static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dir", "max_bytes", "keep_free", NULL};
    PyObject *dir = NULL;
    long long max_bytes;
    double keep_free = 0.1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&L|$d:NodeCache", names, PyUnicode_FSConverter,
                                     &dir, &max_bytes, &keep_free)) {
        return NULL;
    }
    struct module_state *state = rp_state_of(type);
    struct rp_error err;
    rp_error_clear(&err);
    rp_node_cache *cache = NULL;
    rp_status status = RP_E_ARG;
    if (state != NULL && !(keep_free >= 0 && keep_free <= 1)) { /* NaN, too */
        (void)rp_error_set(&err, status, "keep_free is a share from 0 to 1");
    }
    else if (state != NULL) {
        status = rp_node_cache_new(PyBytes_AsString(dir), max_bytes, &cache, &err);
    }
    Py_DECREF(dir);
    if (state == NULL) {
        return NULL;
    }
    if (status != RP_OK) {
        return rp_raise(state, &err);
    }
    rp_node_cache_keep_free(cache, keep_free);
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct node_object *self = (struct node_object *)(void *)alloc(type, 0);
    if (self == NULL) {
        rp_node_cache_free(&cache);
        return NULL;
    }
    self->cache = cache;
    return (PyObject *)self;
}

rp_node_cache *rp_node_cache_lend(struct module_state *state, PyObject *object)
{
    if (!PyObject_TypeCheck(object, state->node_cache_type)) {
        PyErr_SetString(PyExc_TypeError, "not a NodeCache");
        return NULL;
    }
    struct node_object *self = self_of(object);
    struct rp_error err;
    rp_error_clear(&err);
    if (self->cache != NULL && rp_node_cache_generation(self->cache) != rp_fork_generation() &&
        rp_node_cache_renew(&self->cache, &err) != RP_OK) {
        (void)rp_raise(state, &err); /* always NULL */
        return NULL;
    }
    if (self->cache == NULL) {
        (void)PyErr_NoMemory(); /* always NULL */
    }
    return self->cache;
}

/* A file's key, its size and a range of it. */
struct range {
    const char *key;
    long long size, offset, len;
};

static bool range_ok(const struct range *range)
{
    if (!rp_node_cache_key_ok(range->key)) {
        PyErr_SetString(PyExc_ValueError, "a key is 8 to 80 characters a-z, 0-9, '-'");
        return false;
    }
    if (range->offset < 0 || range->len < 0 || range->offset > range->size ||
        range->len > range->size - range->offset || range->len > PY_SSIZE_T_MAX) {
        PyErr_Format(PyExc_ValueError, "no %lld bytes at %lld in a file of %lld", range->len,
                     range->offset, range->size);
        return false;
    }
    return true;
}

static rp_node_cache *cache_of(PyObject *object)
{
    struct module_state *state = rp_state_of(Py_TYPE(object));
    return state == NULL ? NULL : rp_node_cache_lend(state, object);
}

static PyObject *node_read(PyObject *object, PyObject *args)
{
    struct range r;
    if (!PyArg_ParseTuple(args, "sLLL:read", &r.key, &r.size, &r.offset, &r.len) || !range_ok(&r)) {
        return NULL;
    }
    rp_node_cache *cache = cache_of(object);
    PyObject *bytes = cache == NULL ? NULL : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)r.len);
    if (bytes == NULL) {
        return NULL;
    }
    uint8_t *to = (uint8_t *)PyBytes_AsString(bytes); /* nobody else knows the object */
    rp_status status;
    Py_BEGIN_ALLOW_THREADS /* reads the disk */
        status = rp_node_cache_read(cache, r.key, r.size, r.offset, r.len, to);
    Py_END_ALLOW_THREADS if (status != RP_OK)
    {
        Py_DECREF(bytes);
        Py_RETURN_NONE;
    }
    return bytes;
}

static PyObject *node_claim(PyObject *object, PyObject *args)
{
    struct range r;
    if (!PyArg_ParseTuple(args, "sLLL:claim", &r.key, &r.size, &r.offset, &r.len) ||
        !range_ok(&r)) {
        return NULL;
    }
    rp_node_cache *cache = cache_of(object);
    if (cache == NULL) {
        return NULL;
    }
    rp_status status;
    Py_BEGIN_ALLOW_THREADS /* writes to the disk */
        status = rp_node_cache_claim(cache, r.key, r.size, r.offset, r.len);
    Py_END_ALLOW_THREADS return PyBool_FromLong(status == RP_OK);
}

static PyObject *node_store(PyObject *object, PyObject *args)
{
    struct range r;
    PyObject *data;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "sLLO:store", &r.key, &r.size, &r.offset, &data) ||
        rp_buffer_get(data, &view, 0, -1, 0, "data") < 0) {
        return NULL;
    }
    r.len = view.len;
    rp_node_cache *cache = range_ok(&r) ? cache_of(object) : NULL;
    if (cache != NULL) {
        Py_BEGIN_ALLOW_THREADS /* writes to the disk */
            rp_node_cache_store(cache, r.key, r.size, r.offset, r.len, view.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&view);
    if (cache == NULL) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *node_release(PyObject *object, PyObject *args)
{
    struct range r;
    if (!PyArg_ParseTuple(args, "sLLL:release", &r.key, &r.size, &r.offset, &r.len) ||
        !range_ok(&r)) {
        return NULL;
    }
    rp_node_cache *cache = cache_of(object);
    if (cache == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS /* writes to the disk */
        rp_node_cache_release(cache, r.key, r.size, r.offset, r.len);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *node_stats(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    rp_node_cache *cache = cache_of(object);
    if (cache == NULL) {
        return NULL;
    }
    struct rp_node_cache_stats s;
    rp_node_cache_stats(cache, &s);
    static const char *const states[] = {"on", "read-only", "off"};
    return Py_BuildValue("{sL sL sL sL sL sL sL sL ss}", "hits", (long long)s.hits, "hit_bytes",
                         (long long)s.hit_bytes, "misses", (long long)s.misses, "stored_bytes",
                         (long long)s.stored_bytes, "declined_bytes", (long long)s.declined_bytes,
                         "evicted", (long long)s.evicted, "corrupt", (long long)s.corrupt, "waits",
                         (long long)s.waits, "state", states[s.off]);
}

static PyObject *node_trouble(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct module_state *state = rp_state_of(Py_TYPE(object));
    rp_node_cache *cache = state == NULL ? NULL : rp_node_cache_lend(state, object);
    struct rp_error why;
    if (cache == NULL) {
        return NULL;
    }
    if (!rp_node_cache_trouble(cache, &why)) {
        Py_RETURN_NONE;
    }
    return rp_exception(state, &why);
}

static void node_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    rp_node_cache_free(&self_of(object)->cache); /* a call holds a reference: none is under way */
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef node_methods[] = {
    {"read", node_read, METH_VARARGS,
     "read($self, key, size, offset, length, /)\n--\n\n"
     "Those bytes of the file of `size` bytes, or None where not all of them are here and sound."},
    {"claim", node_claim, METH_VARARGS,
     "claim($self, key, size, offset, length, /)\n--\n\n"
     "True: fetch the bytes, then store or release them. False: another process is fetching some\n"
     "of them, or has just stored them; read again in a moment."},
    {"store", node_store, METH_VARARGS,
     "store($self, key, size, offset, data, /)\n--\n\n"
     "Keep fetched bytes, if there is room. Never an error: see trouble()."},
    {"release", node_release, METH_VARARGS,
     "release($self, key, size, offset, length, /)\n--\n\n"
     "End the claim on bytes that will not be stored."},
    {"stats", node_stats, METH_NOARGS,
     "stats($self, /)\n--\n\n"
     "Counts since the start, and `state`: on, read-only, off."},
    {"trouble", node_trouble, METH_NOARGS,
     "trouble($self, /)\n--\n\n"
     "Why the cache switched itself off, as an error of reelpool.errors; once, then None."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot node_slots[] = {
    {Py_tp_new, node_new},
    {Py_tp_dealloc, node_dealloc},
    {Py_tp_methods, node_methods},
    {Py_tp_doc,
     "NodeCache(dir, max_bytes, *, keep_free=0.1)\n"
     "--\n\n"
     "Ranges of remote files kept below folder `dir`, shared by the processes of the node: at "
     "most\n"
     "about max_bytes of disk over all of them, and the share keep_free of the file system stays\n"
     "free. The folder is made at the first store. A forked child may go on using the object."},
    {0, NULL}};

PyType_Spec rp_node_cache_spec = {.name = "reelpool._core.NodeCache",
                                  .basicsize = sizeof(struct node_object),
                                  .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                                  .slots = node_slots};
