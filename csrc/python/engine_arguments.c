#include "python/engine_priv.h"

#include "base/thread.h"

static void *borrow(struct engine_object *self, PyObject *object, Py_ssize_t itemsize,
                    Py_ssize_t count, const char *what)
{
    if (self->n_views == self->cap_views) {
        Py_ssize_t cap = self->cap_views * 2 + 16;
        Py_buffer *grown = PyMem_Realloc(self->view, (size_t)cap * sizeof(*grown));
        if (grown == NULL) {
            return PyErr_NoMemory();
        }
        self->view = grown;
        self->cap_views = cap;
    }
    Py_buffer *view = &self->view[self->n_views];
    if (rp_buffer_get(object, view, itemsize, count, 0, what) < 0) {
        return NULL;
    }
    self->n_views++;
    return view->buf;
}

static int take_window(struct engine_object *self, PyObject *deltas, struct rp_window *window)
{
    window->delta = borrow(self, deltas, 8, -1, "deltas");
    if (window->delta == NULL) {
        return -1;
    }
    Py_ssize_t n = self->view[self->n_views - 1].len / 8;
    window->n = (int)(n / self->desc.n_sets);
    if (window->n < 1 || n % self->desc.n_sets != 0) {
        PyErr_SetString(PyExc_ValueError, "a window needs the same number of deltas, at least one, "
                                          "for each data set");
        return -1;
    }
    return 0;
}

static int take_camera(struct engine_object *self, PyObject *entry, struct rp_camera *camera)
{
    PyObject *deltas, *run_file, *run_start, *table;
    int type, resize;
    if (!PyArg_ParseTuple(entry, "siiiiOOOOp:camera", &camera->key, &camera->height, &camera->width,
                          &camera->channels, &type, &deltas, &run_file, &run_start, &table,
                          &resize)) {
        return -1;
    }
    if (type < RP_PIXEL_U8 || type > RP_PIXEL_U16) {
        PyErr_Format(PyExc_ValueError, "camera %s: unknown pixel type %d", camera->key, type);
        return -1;
    }
    camera->type = (enum rp_pixel_type)type;
    camera->resize = resize != 0;
    if (take_window(self, deltas, &camera->window) < 0) {
        return -1;
    }
    camera->run_file = borrow(self, run_file, 4, self->desc.n_runs, "run_file");
    if (camera->run_file == NULL) {
        return -1;
    }
    camera->run_start = borrow(self, run_start, 8, self->desc.n_runs, "run_start");
    if (camera->run_start == NULL) {
        return -1;
    }
    if (table != Py_None) {
        camera->depth_table =
            borrow(self, table, 4, (Py_ssize_t)4096 * self->desc.n_sets, "depth_table");
        if (camera->depth_table == NULL) {
            return -1;
        }
    }
    return 0;
}

static int take_column(struct engine_object *self, PyObject *entry, struct rp_column *column)
{
    PyObject *data, *deltas;
    Py_ssize_t row_bytes;
    if (!PyArg_ParseTuple(entry, "OnO:column", &data, &row_bytes, &deltas)) {
        return -1;
    }
    column->data = borrow(self, data, 0, -1, "column");
    if (column->data == NULL) {
        return -1;
    }
    if (row_bytes <= 0 || self->view[self->n_views - 1].len / row_bytes < self->desc.n_rows) {
        PyErr_SetString(PyExc_ValueError, "a column has fewer rows than the table");
        return -1;
    }
    column->row_bytes = (size_t)row_bytes;
    return take_window(self, deltas, &column->window);
}

/* A remote file: what it is called, where it lies, what is known of it, who reads and keeps it. */
static int take_remote(struct engine_object *self, struct module_state *state, PyObject *entry,
                       Py_ssize_t i)
{
    struct rp_remote_file *file = &self->remote[i];
    PyObject *client, *cache;
    long long size;
    int whole;
    if (!PyArg_ParseTuple(entry, "ysLzzzpOO:remote file", &self->paths[i], &file->http.url, &size,
                          &file->http.etag, &file->http.last_modified, &file->key, &whole, &client,
                          &cache)) {
        return -1;
    }
    file->http.size = size;
    file->http.whole = whole != 0;
    if (client != Py_None) { /* None: the network is switched off */
        file->client = rp_http_hold(state, client);
        if (file->client == NULL) {
            return -1;
        }
        self->held[self->n_held++] = client;
    }
    if (cache != Py_None) {
        file->cache = rp_node_cache_lend(state, cache);
        if (file->cache == NULL) {
            return -1;
        }
    }
    if (whole && size < 0) {
        PyErr_SetString(PyExc_ValueError, "a file that is read whole needs its size");
        return -1;
    }
    return 0;
}

static int take_paths(struct engine_object *self, struct module_state *state, PyObject *paths)
{
    Py_ssize_t n = PyList_Size(paths);
    self->paths = PyMem_Calloc((size_t)n + 1, sizeof(*self->paths));
    self->sums = PyMem_Calloc((size_t)n + 1, sizeof(*self->sums));
    self->remote = PyMem_Calloc((size_t)n + 1, sizeof(*self->remote));
    self->held_in = rp_fork_generation();
    self->held = PyMem_Calloc((size_t)n + 1, sizeof(*self->held));
    if (self->paths == NULL || self->sums == NULL || self->remote == NULL || self->held == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *path = PyList_GetItem(paths, i);
        if (PyTuple_Check(path) && PyTuple_Size(path) > 2) {
            if (take_remote(self, state, path, i) < 0) {
                return -1;
            }
        }
        else if (PyTuple_Check(path)) { /* with the place of its check sums */
            if (!PyArg_ParseTuple(path, "yy:path", &self->paths[i], &self->sums[i])) {
                return -1;
            }
        }
        else if ((self->paths[i] = PyBytes_AsString(path)) == NULL) {
            return -1;
        }
    }
    self->desc.paths = self->paths;
    self->desc.sums = self->sums;
    self->desc.remote = self->remote;
    self->desc.n_files = (int)n;
    return 0;
}

static int take_lists(struct engine_object *self, PyObject *cameras, PyObject *columns,
                      PyObject *pads)
{
    Py_ssize_t n_cameras = PyList_Size(cameras), n_columns = PyList_Size(columns);
    Py_ssize_t n_pads = PyList_Size(pads);
    self->camera = PyMem_Calloc((size_t)n_cameras + 1, sizeof(*self->camera));
    self->column = PyMem_Calloc((size_t)n_columns + 1, sizeof(*self->column));
    self->pad = PyMem_Calloc((size_t)n_pads + 1, sizeof(*self->pad));
    if (self->camera == NULL || self->column == NULL || self->pad == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n_cameras; i++) {
        if (take_camera(self, PyList_GetItem(cameras, i), &self->camera[i]) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < n_columns; i++) {
        if (take_column(self, PyList_GetItem(columns, i), &self->column[i]) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < n_pads; i++) {
        if (take_window(self, PyList_GetItem(pads, i), &self->pad[i].window) < 0) {
            return -1;
        }
    }
    self->desc.camera = self->camera;
    self->desc.n_cameras = (int)n_cameras;
    self->desc.column = self->column;
    self->desc.n_columns = (int)n_columns;
    self->desc.pad = self->pad;
    self->desc.n_pads = (int)n_pads;
    return 0;
}

/* The fields Python declares must be the ones that C lays out. */
static int check_fields(const struct engine_object *self)
{
    const struct rp_dataset_desc *desc = &self->desc;
    Py_ssize_t at = 0, total = desc->n_cameras + desc->n_columns + desc->n_pads;
    int good = self->n_fields == total;
    for (int i = 0; good && i < desc->n_cameras; i++) {
        const struct rp_camera *c = &desc->camera[i];
        size_t element = c->type == RP_PIXEL_U8 ? 1 : c->type == RP_PIXEL_U16 ? 2 : 4;
        good = self->field[at++].sample_bytes == (size_t)c->height * (size_t)c->width *
                                                     (size_t)c->channels * element *
                                                     (size_t)c->window.n;
    }
    for (int i = 0; good && i < desc->n_columns; i++) {
        good = self->field[at++].sample_bytes ==
               desc->column[i].row_bytes * (size_t)desc->column[i].window.n;
    }
    for (int i = 0; good && i < desc->n_pads; i++) {
        good = self->field[at++].sample_bytes == (size_t)desc->pad[i].window.n;
    }
    if (!good) {
        PyErr_Format(PyExc_ValueError, "field %zd of %zd does not fit its source", at, total);
        return -1;
    }
    return 0;
}

static int take_sets(struct engine_object *self, PyObject *run_set, PyObject *tolerance)
{
    struct rp_dataset_desc *desc = &self->desc;
    desc->tolerance = borrow(self, tolerance, 8, -1, "tolerance");
    if (desc->tolerance == NULL) {
        return -1;
    }
    desc->n_sets = (int)(self->view[self->n_views - 1].len / 8);
    if (desc->n_sets < 1) {
        PyErr_SetString(PyExc_ValueError, "tolerance: one number per data set is needed");
        return -1;
    }
    if (run_set != Py_None) {
        desc->run_set = borrow(self, run_set, 4, desc->n_runs, "run_set");
    }
    return run_set != Py_None && desc->run_set == NULL ? -1 : 0;
}

static int take_rows(struct engine_object *self, PyObject *run_first, PyObject *run_episode,
                     PyObject *row_index, PyObject *timestamp)
{
    struct rp_dataset_desc *desc = &self->desc;
    desc->run_first = borrow(self, run_first, 8, -1, "run_first");
    if (desc->run_first == NULL) {
        return -1;
    }
    desc->n_runs = self->view[self->n_views - 1].len / 8 - 1;
    if (desc->n_runs < 1) {
        PyErr_SetString(PyExc_ValueError, "the selection holds no episode");
        return -1;
    }
    desc->n_rows = desc->run_first[desc->n_runs];
    desc->run_episode = borrow(self, run_episode, 8, desc->n_runs, "run_episode");
    if (desc->run_episode == NULL) {
        return -1;
    }
    desc->row_index = borrow(self, row_index, 8, desc->n_rows, "row_index");
    if (desc->row_index == NULL) {
        return -1;
    }
    desc->timestamp = borrow(self, timestamp, 4, desc->n_rows, "timestamp");
    return desc->timestamp == NULL ? -1 : 0;
}

/* None, or (number of the GPU, driver, kernel, bytes of free memory to keep, processes that share
 * its video engines). */
static int take_device(PyObject *device, struct rp_device_options *options)
{
    Py_ssize_t keep;
    if (device == Py_None) {
        return 0;
    }
    PyObject *image;
    if (!PyTuple_Check(device)) {
        PyErr_SetString(PyExc_TypeError, "device must be a tuple or None");
        return -1;
    }
    if (!PyArg_ParseTuple(device, "izOni:device", &options->ordinal, &options->library, &image,
                          &keep, &options->processes)) {
        return -1;
    }
    if (keep < 0 || options->processes < 0) {
        PyErr_SetString(PyExc_ValueError, "a number of bytes or processes is negative");
        return -1;
    }
    if (image != Py_None && (options->image = PyBytes_AsString(image)) == NULL) {
        return -1;
    }
    options->keep_bytes = (size_t)keep;
    options->on = true;
    return 0;
}

int rp_engine_fill(struct engine_object *self, struct module_state *state, PyObject *args)
{
    PyObject *paths, *run_first, *run_episode, *run_set, *row_index, *timestamp, *tolerance;
    PyObject *cameras, *columns, *pads, *fields, *device;
    struct rp_loader_options o = {0};
    Py_ssize_t keep, frames, parked, indexes, read_ahead;
    int shared, substitute;
    if (!PyArg_ParseTuple(args, "O!OOOOOOO!O!O!O!iipnnnnipniO:Engine", &PyList_Type, &paths,
                          &run_first, &run_episode, &run_set, &row_index, &timestamp, &tolerance,
                          &PyList_Type, &cameras, &PyList_Type, &columns, &PyList_Type, &pads,
                          &PyList_Type, &fields, &o.num_threads, &o.prefetch_batches, &shared,
                          &keep, &frames, &parked, &indexes, &o.max_decoders, &substitute,
                          &read_ahead, &o.fetch_threads, &device)) {
        return -1;
    }
    if (keep < 0 || frames < 0 || parked < 0 || indexes < 0 || read_ahead < 0) {
        PyErr_SetString(PyExc_ValueError, "a number of bytes is negative");
        return -1;
    }
    o.shared = shared != 0;
    o.substitute = substitute != 0;
    o.keep_bytes = (size_t)keep;
    o.frame_cache_bytes = (size_t)frames;
    o.parked_bytes = (size_t)parked;
    o.index_bytes = (size_t)indexes;
    o.read_ahead_bytes = (size_t)read_ahead;
    if (take_device(device, &o.device) < 0 ||
        take_rows(self, run_first, run_episode, row_index, timestamp) < 0 ||
        take_sets(self, run_set, tolerance) < 0 || take_paths(self, state, paths) < 0 ||
        take_lists(self, cameras, columns, pads) < 0 ||
        rp_fields_parse(fields, &self->field, &self->n_fields) < 0 || check_fields(self) < 0) {
        return -1;
    }
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status;
    Py_BEGIN_ALLOW_THREADS /* a GPU's driver may take seconds to start */
        status = rp_loader_new(&self->desc, &o, &self->loader, &err);
    Py_END_ALLOW_THREADS if (status != RP_OK)
    {
        (void)rp_raise(state, &err); /* always NULL */
        return -1;
    }
    return 0;
}
