#include "python/module_state.h"

#include "base/memory.h"
#include "base/thread.h"
#include "fetch/http_client.h"

#include <math.h>
#include <string.h>

/* HttpClient: rp_http_client until it is closed. Any thread may call it. */
struct http_object {
    PyObject_HEAD rp_http_client *client; /* NULL: closed */
    int calls;                            /* under way with the GIL released */
    int closing;                          /* the last of them frees */
};

static struct http_object *self_of(PyObject *object)
{
    return (struct http_object *)(void *)object;
}

/* Seconds as milliseconds; what cannot be kept becomes -1, which the core refuses. */
static int64_t to_ms(double seconds)
{
    return isfinite(seconds) && seconds >= 0 && seconds < 1e9 ? (int64_t)llround(seconds * 1000)
                                                              : -1;
}

static PyObject *http_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"network_timeout",
                            "connect_timeout",
                            "stall_time",
                            "stall_speed",
                            "backoff",
                            "backoff_max",
                            "gate_margin",
                            "gate_jitter",
                            "probe_time",
                            "max_redirects",
                            "ca_file",
                            "proxy",
                            "no_proxy",
                            "allow_http",
                            "allow_private_hosts",
                            "token_origin",
                            "token",
                            "user_agent",
                            "s3_origin",
                            "s3_access_key",
                            "s3_secret_key",
                            "s3_session_token",
                            "s3_region",
                            "url_cache",
                            "hedge_time",
                            NULL};
    struct rp_http_options options;
    rp_http_defaults(&options);
    double network = 600, connect = 10, stall = 20, backoff = 0.25, most = 15, margin = 1,
           jitter = 5, probe = 5, hedge = 2;
    long long speed = options.timing.stall_speed;
    int allow_http = 0, allow_private = 0;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$dddLdddddizzzppzzzzzzzzzd:HttpClient", names, &network, &connect,
            &stall, &speed, &backoff, &most, &margin, &jitter, &probe, &options.max_redirects,
            &options.ca_file, &options.proxy, &options.no_proxy, &allow_http, &allow_private,
            &options.token_origin, &options.token, &options.user_agent, &options.s3_origin,
            &options.s3_access_key, &options.s3_secret_key, &options.s3_session_token,
            &options.s3_region, &options.url_cache, &hedge)) {
        return NULL;
    }
    options.allow_http = allow_http != 0;
    options.allow_private_hosts = allow_private != 0;
    struct rp_http_timing *timing = &options.timing;
    timing->network = to_ms(network);
    timing->connect = to_ms(connect);
    timing->stall = to_ms(stall);
    timing->stall_speed = speed;
    timing->backoff = to_ms(backoff);
    timing->backoff_max = to_ms(most);
    timing->gate_margin = to_ms(margin);
    timing->gate_jitter = to_ms(jitter);
    timing->probe = to_ms(probe);
    timing->hedge = to_ms(hedge);
    struct module_state *state = rp_state_of(type);
    struct rp_error err;
    rp_error_clear(&err);
    rp_http_client *client = NULL;
    if (state == NULL) {
        return NULL;
    }
    if (rp_http_client_new(&options, &client, &err) != RP_OK) {
        return rp_raise(state, &err);
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct http_object *self = (struct http_object *)(void *)alloc(type, 0);
    if (self == NULL) {
        rp_http_client_free(&client);
        return NULL;
    }
    self->client = client;
    return (PyObject *)self;
}

/* The client for one more call, renewed in a forked child; NULL with an exception. */
static rp_http_client *call_begin(struct http_object *self, struct module_state *state)
{
    struct rp_error err;
    rp_error_clear(&err);
    if (self->client == NULL || self->closing) {
        (void)rp_error_set(&err, RP_E_CLOSED, "this HttpClient was closed");
        (void)rp_raise(state, &err); /* always NULL */
        return NULL;
    }
    if (rp_http_generation(self->client) != rp_fork_generation()) {
        self->calls = 0; /* the parent's */
        if (rp_http_client_renew(&self->client, &err) != RP_OK) {
            (void)rp_raise(state, &err); /* always NULL */
            return NULL;
        }
    }
    self->calls++;
    return self->client;
}

static void free_unless_used(struct http_object *self)
{
    if (self->calls == 0) {
        rp_http_client *client = self->client;
        self->client = NULL;
        Py_BEGIN_ALLOW_THREADS /* says goodbye to servers */
            rp_http_client_free(&client);
        Py_END_ALLOW_THREADS
    }
}

static void call_end(struct http_object *self)
{
    self->calls--;
    if (self->closing) {
        free_unless_used(self);
    }
}

rp_http_client *rp_http_hold(struct module_state *state, PyObject *object)
{
    if (Py_TYPE(object) != state->http_type) {
        PyErr_SetString(PyExc_TypeError, "an HttpClient is needed");
        return NULL;
    }
    return call_begin(self_of(object), state);
}

void rp_http_let_go(PyObject *object)
{
    call_end(self_of(object));
}

/* The caller's thread between its slices: signals are looked at with the GIL. */
struct signal_watch {
    PyThreadState *thread;
    bool raised;
};

static bool look_at_signals(void *cookie)
{
    struct signal_watch *watch = cookie;
    PyEval_RestoreThread(watch->thread);
    watch->raised = PyErr_CheckSignals() < 0;
    watch->thread = PyEval_SaveThread();
    return watch->raised;
}

static bool parse_file(PyObject *args, PyObject *kwargs, struct rp_http_file *file,
                       long long *offset, long long *length, bool is_read)
{
    static char *read_names[] = {"url",  "offset",        "length", "size",
                                 "etag", "last_modified", "whole",  NULL};
    static char *size_names[] = {"url", "size", "etag", "last_modified", NULL};
    long long size = -1;
    int whole = 0;
    const char *etag = NULL, *modified = NULL;
    int parsed =
        is_read ? PyArg_ParseTupleAndKeywords(args, kwargs, "sLL|Lzzp:read", read_names, &file->url,
                                              offset, length, &size, &etag, &modified, &whole)
                : PyArg_ParseTupleAndKeywords(args, kwargs, "s|Lzz:size", size_names, &file->url,
                                              &size, &etag, &modified);
    file->size = size;
    file->etag = etag;
    file->last_modified = modified;
    file->whole = whole != 0;
    return parsed != 0;
}

static PyObject *http_read(PyObject *object, PyObject *args, PyObject *kwargs)
{
    struct http_object *self = self_of(object);
    struct module_state *state = rp_state_of(Py_TYPE(object));
    struct rp_http_file file;
    long long offset = 0, length = 0;
    if (state == NULL || !parse_file(args, kwargs, &file, &offset, &length, true)) {
        return NULL;
    }
    if (length < 0 || length > PY_SSIZE_T_MAX) {
        return PyErr_Format(PyExc_ValueError, "length = %lld", length);
    }
    PyObject *bytes = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (bytes == NULL) {
        return NULL;
    }
    rp_http_client *client = call_begin(self, state);
    if (client == NULL) {
        Py_DECREF(bytes);
        return NULL;
    }
    uint8_t *to = (uint8_t *)PyByteArray_AsString(bytes); /* nobody else knows the object */
    struct rp_error err;
    rp_error_clear(&err);
    struct signal_watch signals = {.thread = PyEval_SaveThread()}; /* the GIL is away */
    struct rp_http_watch watch = {look_at_signals, &signals};
    rp_status status = rp_http_read(client, &file, offset, length, to, &watch, &err);
    PyEval_RestoreThread(signals.thread);
    call_end(self);
    if (status != RP_OK) {
        Py_DECREF(bytes);
        return signals.raised ? NULL : rp_raise(state, &err);
    }
    return bytes;
}

/* Put a text that came from a server (any bytes above 0x1f) into a dict, unless it is empty. */
static bool put_text(PyObject *dict, const char *key, const char *text)
{
    if (text[0] == '\0') {
        return true;
    }
    PyObject *value = PyUnicode_DecodeLatin1(text, (Py_ssize_t)strlen(text), NULL);
    bool done = value != NULL && PyDict_SetItemString(dict, key, value) == 0;
    Py_XDECREF(value);
    return done;
}

static PyObject *http_size(PyObject *object, PyObject *args, PyObject *kwargs)
{
    struct http_object *self = self_of(object);
    struct module_state *state = rp_state_of(Py_TYPE(object));
    struct rp_http_file file;
    if (state == NULL || !parse_file(args, kwargs, &file, NULL, NULL, false)) {
        return NULL;
    }
    rp_http_client *client = call_begin(self, state);
    if (client == NULL) {
        return NULL;
    }
    struct rp_http_info info;
    struct rp_error err;
    rp_error_clear(&err);
    struct signal_watch signals = {.thread = PyEval_SaveThread()}; /* the GIL is away */
    struct rp_http_watch watch = {look_at_signals, &signals};
    rp_status status = rp_http_size(client, &file, &watch, &info, &err);
    PyEval_RestoreThread(signals.thread);
    call_end(self);
    if (status != RP_OK) {
        return signals.raised ? NULL : rp_raise(state, &err);
    }
    PyObject *dict = Py_BuildValue("{sL ss ss sO}", "size", (long long)info.size, "etag", info.etag,
                                   "last_modified", info.last_modified, "accepts_ranges",
                                   info.accepts_ranges ? Py_True : Py_False);
    const struct rp_http_link *link = &info.link;
    bool sound = dict != NULL && put_text(dict, "x-repo-commit", link->repo_commit) &&
                 put_text(dict, "x-linked-etag", link->linked_etag) &&
                 put_text(dict, "x-xet-hash", link->xet_hash);
    if (sound && link->linked_size >= 0) {
        PyObject *size = PyLong_FromLongLong(link->linked_size);
        sound = size != NULL && PyDict_SetItemString(dict, "x-linked-size", size) == 0;
        Py_XDECREF(size);
    }
    if (!sound) {
        Py_CLEAR(dict);
    }
    return dict;
}

/* (bytes, headers) of a page. */
static PyObject *pair_of(const struct rp_http_page *page, PyObject *body)
{
    PyObject *headers = PyDict_New();
    bool sound = headers != NULL && put_text(headers, "link", page->link) &&
                 put_text(headers, "etag", page->etag) && put_text(headers, "date", page->date) &&
                 put_text(headers, "x-repo-commit", page->repo_commit) &&
                 put_text(headers, "x-amz-bucket-region", page->bucket_region);
    PyObject *pair = sound ? PyTuple_Pack(2, body, headers) : NULL;
    Py_XDECREF(headers);
    return pair;
}

static PyObject *http_get(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"url", "limit", "headers", NULL};
    struct http_object *self = self_of(object);
    struct module_state *state = rp_state_of(Py_TYPE(object));
    const char *url;
    long long limit;
    int headers = 0;
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "sL|p:get", names, &url, &limit, &headers)) {
        return NULL;
    }
    struct rp_http_page *page = rp_calloc(1, sizeof(*page));
    rp_http_client *client = page != NULL ? call_begin(self, state) : NULL;
    if (client == NULL) {
        rp_free(page);
        return page == NULL ? PyErr_NoMemory() : NULL;
    }
    struct rp_error err;
    rp_error_clear(&err);
    struct signal_watch signals = {.thread = PyEval_SaveThread()}; /* the GIL is away */
    struct rp_http_watch watch = {look_at_signals, &signals};
    rp_status status = rp_http_get(client, url, limit, &watch, page, &err);
    PyEval_RestoreThread(signals.thread);
    call_end(self);
    PyObject *result = NULL;
    if (status == RP_OK) {
        result = PyBytes_FromStringAndSize((const char *)page->data, (Py_ssize_t)page->len);
        if (result != NULL && headers != 0) {
            PyObject *pair = pair_of(page, result);
            Py_DECREF(result);
            result = pair;
        }
    }
    else if (!signals.raised) {
        (void)rp_raise(state, &err); /* always NULL */
    }
    rp_free(page->data);
    rp_free(page);
    return result;
}

static PyObject *http_stats(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct http_object *self = self_of(object);
    if (self->client == NULL) {
        return PyDict_New();
    }
    struct rp_http_stats s;
    rp_http_stats(self->client, &s);
    const int64_t *r = s.retries;
    return Py_BuildValue(
        "{sL sL sL sL sL sL sL sL sL sd sd sd s{sL sL sL sL sL sL sL sL}}", "requests",
        (long long)s.requests, "connections", (long long)s.connections, "bytes_fetched",
        (long long)s.bytes, "resolves", (long long)s.resolves, "hedges", (long long)s.hedges,
        "resolves_cached", (long long)s.resolves_cached, "url_cache_errors",
        (long long)s.url_cache_errors, "leases_waited_out", (long long)s.leases_waited_out,
        "targets_expired", (long long)s.targets_expired, "gate_s", (double)s.gate_ns / 1e9,
        "down_s", (double)s.down_ns / 1e9, "backoff_s", (double)s.backoff_ns / 1e9, "retries",
        "busy", (long long)r[0], "limited", (long long)r[1], "network", (long long)r[2], "short",
        (long long)r[3], "refused", (long long)r[4], "odd", (long long)r[5], "changed",
        (long long)r[6], "denied", (long long)r[7]);
}

static PyObject *http_close(PyObject *object, PyObject *unused)
{
    (void)unused; /* METH_NOARGS */
    struct http_object *self = self_of(object);
    if (self->client != NULL && rp_http_generation(self->client) != rp_fork_generation()) {
        self->calls = 0; /* the parent's */
    }
    if (self->client != NULL && !self->closing) {
        self->closing = 1;
        rp_http_interrupt(self->client);
        free_unless_used(self);
    }
    Py_RETURN_NONE;
}

static void http_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    rp_http_client_free(&self_of(object)->client); /* a call holds a reference: none is under way */
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMethodDef http_methods[] = {
    {"read", (PyCFunction)(void (*)(void))http_read, METH_VARARGS | METH_KEYWORDS,
     "read($self, url, offset, length, size=-1, etag=None, last_modified=None, whole=False)\n--\n\n"
     "Exactly those bytes of the file as a bytearray, or an error of reelpool.errors. size and\n"
     "version are pinned: by the arguments, else by the first answer. whole: the server serves no\n"
     "ranges; offset must be 0 and length the size."},
    {"size", (PyCFunction)(void (*)(void))http_size, METH_VARARGS | METH_KEYWORDS,
     "size($self, url, size=-1, etag=None, last_modified=None)\n--\n\n"
     "What the server says of a file: size, etag, last_modified, accepts_ranges, and of\n"
     "x-repo-commit, x-linked-size, x-linked-etag, x-xet-hash what it sends."},
    {"get", (PyCFunction)(void (*)(void))http_get, METH_VARARGS | METH_KEYWORDS,
     "get($self, url, limit, headers=False)\n--\n\n"
     "The whole body behind a URL, bytes, at most `limit` of them (RemoteError beyond). With\n"
     "headers: (bytes, dict) with those of link, etag, date, x-repo-commit, x-amz-bucket-region\n"
     "that came."},
    {"stats", http_stats, METH_NOARGS,
     "stats($self, /)\n--\n\n"
     "Counts since the start; empty once closed."},
    {"close", http_close, METH_NOARGS,
     "close($self, /)\n--\n\n"
     "End the calls under way with ClosedError and close the connections."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot http_slots[] = {
    {Py_tp_new, http_new},
    {Py_tp_dealloc, http_dealloc},
    {Py_tp_methods, http_methods},
    {Py_tp_doc,
     "HttpClient(*, network_timeout=600, connect_timeout=10, stall_time=20, stall_speed=4096, "
     "backoff=0.25, backoff_max=15, gate_margin=1, gate_jitter=5, probe_time=5, max_redirects=5, "
     "ca_file=None, proxy=None, no_proxy=None, allow_http=False, allow_private_hosts=False, "
     "token_origin=None, token=None, user_agent=None, s3_origin=None, s3_access_key=None, "
     "s3_secret_key=None, s3_session_token=None, s3_region=None, url_cache=None, hedge_time=2)\n"
     "--\n\n"
     "Reads ranges of files by http and https. Times are seconds, stall_speed bytes per second.\n"
     "Connections are made at the first read; each thread that reads uses one of its own. The\n"
     "token goes to token_origin's scheme, host and port and nowhere else; likewise requests to\n"
     "s3_origin alone are signed with the S3 keys. A forked child may go on using the object; it\n"
     "makes connections of its own. url_cache: a folder in which processes share where redirects\n"
     "lead (reads of files whose size is given); never a token."},
    {0, NULL}};

PyType_Spec rp_http_spec = {.name = "reelpool._core.HttpClient",
                            .basicsize = sizeof(struct http_object),
                            .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
                            .slots = http_slots};
