#include "pool/sums.h"
#include "pool/work_priv.h"

#include "base/crc32c.h"

#include <assert.h>
#include <string.h>

rp_status rp_index_table_init(rp_loader *loader, struct rp_error *err)
{
    size_t n = (size_t)loader->desc->n_files;
    loader->indexes.entry = rp_calloc(n, sizeof(*loader->indexes.entry));
    loader->indexes.queue = rp_calloc(n, sizeof(*loader->indexes.queue));
    if (loader->indexes.entry == NULL || loader->indexes.queue == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu files", n);
    }
    return RP_OK;
}

static void enqueue(rp_loader *loader, int32_t file)
{
    struct index_table *table = &loader->indexes;
    table->queue[(table->queue_head + table->queue_len) % loader->desc->n_files] = file;
    table->queue_len++;
    table->entry[file].state = INDEX_QUEUED;
    rp_cond_signal(&loader->fetch);
}

bool rp_index_pin_locked(rp_loader *loader, int32_t file)
{
    struct index_table *table = &loader->indexes;
    struct index_entry *entry = &table->entry[file];
    entry->pins++;
    entry->last_use = ++table->clock;
    if (entry->state == INDEX_NONE) {
        enqueue(loader, file);
    }
    return entry->state == INDEX_READY || entry->state == INDEX_FAILED;
}

bool rp_index_pop_locked(rp_loader *loader, int32_t *file)
{
    struct index_table *table = &loader->indexes;
    if (table->queue_len == 0) {
        return false;
    }
    *file = table->queue[table->queue_head];
    table->queue_head = (table->queue_head + 1) % loader->desc->n_files;
    table->queue_len--;
    table->entry[*file].state = INDEX_WORKING;
    table->entry[*file].era = loader->era;
    return true;
}

/* A failed index that nobody waits for is tried again by the next who asks. */
static void forget_failed(struct index_entry *entry)
{
    if (entry->pins == 0 && entry->state == INDEX_FAILED) {
        rp_free(entry->error);
        entry->error = NULL;
        entry->state = INDEX_NONE;
    }
}

void rp_index_unpin_locked(rp_loader *loader, int32_t file)
{
    struct index_entry *entry = &loader->indexes.entry[file];
    assert(entry->pins > 0);
    entry->pins--;
    forget_failed(entry);
}

static rp_status read_part(rp_files *files, int i, const struct rp_byte_range *part, rp_buf **out,
                           int64_t *bytes_read, struct rp_error *err)
{
    RP_TRY(rp_buf_new((size_t)part->len, out, err));
    rp_status status = rp_files_read(files, i, part->offset, part->len, (*out)->data, err);
    if (status != RP_OK) {
        rp_buf_unref(out);
    }
    else if (bytes_read != NULL) {
        rp_count(bytes_read, part->len);
    }
    return status;
}

/* As read_part; what lies in `have`, read from offset `at` on, is not read again. */
static rp_status take_part(rp_files *files, int i, const struct rp_byte_range *part,
                           const rp_buf *have, int64_t at, rp_buf **out, int64_t *bytes_read,
                           struct rp_error *err)
{
    int64_t skip = part->offset - at;
    if (have == NULL || skip < 0 || skip + part->len > (int64_t)have->len) {
        return read_part(files, i, part, out, bytes_read, err);
    }
    RP_TRY(rp_buf_new((size_t)part->len, out, err));
    memcpy((*out)->data, have->data + skip, (size_t)part->len);
    return RP_OK;
}

static rp_status read_moov(rp_files *files, int i, int64_t size, rp_buf **moov, int64_t *bytes_read,
                           struct rp_error *err)
{
    struct rp_moov_search search = {0};
    struct rp_byte_range need, found;
    rp_buf *buf = NULL;
    int64_t at = 0;
    for (;;) {
        rp_status status = rp_moov_find(&search, buf != NULL ? buf->data : NULL, at,
                                        buf != NULL ? buf->len : 0, size, &need, &found, err);
        if (status == RP_OK) {
            status = take_part(files, i, &found, buf, at, moov, bytes_read, err);
            rp_buf_unref(&buf);
            return status;
        }
        rp_buf_unref(&buf);
        if (status != RP_AGAIN) {
            return status;
        }
        if (rp_files_whole(files, i) > 0) { /* any part of it costs all of it */
            need = (struct rp_byte_range){.len = size};
        }
        RP_TRY(read_part(files, i, &need, &buf, bytes_read, err));
        at = need.offset;
    }
}

rp_status rp_video_header_read(rp_files *files, int i, rp_index **out, uint32_t *header_sum,
                               int64_t *bytes_read, struct rp_error *err)
{
    int64_t size;
    rp_buf *moov = NULL;
    rp_status status = rp_files_size(files, i, &size, err);
    if (status == RP_OK) {
        status = read_moov(files, i, size, &moov, bytes_read, err);
    }
    if (status == RP_OK) {
        *header_sum = rp_crc32c(0, moov->data, moov->len);
        status = rp_index_parse(moov->data, moov->len, size, out, err);
        rp_buf_unref(&moov);
    }
    if (status != RP_OK) {
        rp_error_at_file(err, rp_files_path(files, i), -1, -1);
    }
    return status;
}

rp_status rp_video_index_read(rp_files *files, int i, rp_index **out, int64_t *bytes_read,
                              struct rp_error *err)
{
    uint32_t header_sum;
    return rp_video_header_read(files, i, out, &header_sum, bytes_read, err);
}

/* The file's index and, where they are known, its check sums. A header that is not the one that
 * was summed up is read once more: the bytes on the disk may be right. */
static rp_status read_index(rp_loader *loader, int32_t file, rp_index **index, uint32_t **sums,
                            struct rp_error *err)
{
    const char *place = loader->desc->sums == NULL ? NULL : loader->desc->sums[file];
    rp_status status = RP_OK;
    for (int attempt = 0; attempt < 2; attempt++) {
        uint32_t header_sum;
        rp_error_clear(err);
        RP_TRY(rp_video_header_read(loader->files, file, index, &header_sum,
                                    &loader->counters.bytes_read, err));
        if (place == NULL) {
            return RP_OK;
        }
        status = rp_video_sums_load(loader->files, file, place, *index, header_sum, sums, err);
        if (status >= RP_OK) {
            rp_count(&loader->counters.sums_stale, status == RP_AGAIN);
            return RP_OK;
        }
        rp_index_free(index);
        if (status != RP_E_FORMAT) {
            break;
        }
    }
    return status;
}

static int64_t bytes_of(const struct index_entry *entry)
{
    int64_t sums = entry->sums == NULL ? 0 : 4 * rp_index_samples(entry->index);
    return (int64_t)rp_index_bytes(entry->index) + sums;
}

/* An index that was taken out of the table. */
struct dead_index {
    rp_index *index;
    uint32_t *sums;
};

/* Forget least recently used indexes that nobody uses until the rest fits. */
static void evict_locked(rp_loader *loader, struct dead_index *dead, int cap_dead, int *n_dead)
{
    struct index_table *table = &loader->indexes;
    while (table->bytes > (int64_t)loader->options.index_bytes && *n_dead < cap_dead) {
        struct index_entry *oldest = NULL;
        for (int32_t i = 0; i < loader->desc->n_files; i++) {
            struct index_entry *entry = &table->entry[i];
            if (entry->state == INDEX_READY && entry->pins == 0 &&
                (oldest == NULL || entry->last_use < oldest->last_use)) {
                oldest = entry;
            }
        }
        if (oldest == NULL) {
            return; /* all in use: the budget gives way to progress */
        }
        table->bytes -= bytes_of(oldest);
        dead[(*n_dead)++] = (struct dead_index){oldest->index, oldest->sums};
        oldest->index = NULL;
        oldest->sums = NULL;
        oldest->state = INDEX_NONE;
    }
}

static void wake_waiting_batches_locked(rp_loader *loader, int32_t file)
{
    for (struct batch *b = loader->batches; b != NULL; b = b->next) {
        if (b->state == BATCH_INDEXING && b->awaits == file) {
            b->state = BATCH_QUEUED;
        }
    }
}

void rp_index_work(rp_loader *loader, int32_t file)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_index *index = NULL;
    uint32_t *sums = NULL;
    struct dead_index dead[16];
    int n_dead = 0;
    int64_t began = rp_now_ns();
    rp_status status = read_index(loader, file, &index, &sums, &err);
    struct rp_error *stored = NULL;
    if (status != RP_OK) {
        stored = rp_calloc(1, sizeof(*stored)); /* NULL is read as "out of memory" */
        if (stored != NULL) {
            *stored = err;
        }
    }
    rp_count(&loader->counters.indexed, 1);
    rp_count(&loader->counters.read_ns, rp_now_ns() - began);
    rp_lock_acquire(&loader->lock);
    struct index_table *table = &loader->indexes;
    struct index_entry *entry = &table->entry[file];
    if (status != RP_OK && entry->pins > 0 && entry->era != loader->era) {
        enqueue(loader, file); /* that failure is not theirs who ask now */
        rp_lock_release(&loader->lock);
        rp_free(stored);
        return;
    }
    entry->index = index;
    entry->sums = sums;
    entry->error = stored;
    entry->state = status == RP_OK ? INDEX_READY : INDEX_FAILED;
    if (index != NULL) {
        table->bytes += bytes_of(entry);
        evict_locked(loader, dead, 16, &n_dead);
    }
    wake_waiting_batches_locked(loader, file);
    forget_failed(entry);
    rp_lock_release(&loader->lock);
    while (n_dead > 0) {
        n_dead--;
        rp_index_free(&dead[n_dead].index);
        rp_free(dead[n_dead].sums);
    }
}

void rp_index_table_free(rp_loader *loader)
{
    struct index_table *table = &loader->indexes;
    for (int32_t i = 0; table->entry != NULL && i < loader->desc->n_files; i++) {
        rp_index_free(&table->entry[i].index);
        rp_free(table->entry[i].sums);
        rp_free(table->entry[i].error);
    }
    rp_free(table->entry);
    rp_free(table->queue);
}
