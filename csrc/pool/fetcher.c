#include "pool/work_priv.h"

#include <stdio.h>
#include <string.h>

#define IDLE_WAIT_NS 1000000000
#define ROOM_WAIT_NS 10000000 /* between looks whether there is room */

/* Fetchers make indexes of remote files and bring segments, so that threads which decode never wait
 * for the network. Each reads by itself: the HTTP client keeps a connection for each. */

/* To each its own, so that one that stays keeps no other's in memory. */
static rp_status hand_out(struct segment *group, rp_buf *bytes, int64_t from, struct rp_error *err)
{
    if (group->group == NULL) {
        group->bytes = rp_buf_ref(bytes);
        return RP_OK;
    }
    for (struct segment *s = group; s != NULL; s = s->group) {
        RP_TRY(rp_buf_new((size_t)s->extent.len, &s->bytes, err));
        memcpy(s->bytes->data, bytes->data + (s->extent.offset - from), (size_t)s->extent.len);
    }
    return RP_OK;
}

/* Settle `here`; what is in `rest` is chosen anew, with other neighbours. */
static void settle(rp_loader *loader, struct segment *here, struct segment *rest,
                   const struct rp_error *err)
{
    rp_count(&loader->counters.fetches, here != NULL);
    rp_lock_acquire(&loader->lock);
    rp_segments_settle_locked(loader, here, err);
    rp_segments_put_back_locked(loader, rest);
    loader->last_progress_ns = rp_now_ns();
    rp_cond_broadcast(&loader->work);
    rp_cond_broadcast(&loader->done); /* a caller may be the one who works */
    rp_lock_release(&loader->lock);
}

/* Of what would be fetched together the node may have a part: that is not to be fetched again.
 * Takes those out of *group. */
static struct segment *take_cached(rp_loader *loader, struct segment **group)
{
    struct segment *here = NULL;
    bool may = (*group)->group != NULL && rp_files_has_cache(loader->files, (*group)->file);
    for (struct segment **link = group; may && *link != NULL;) {
        struct segment *s = *link;
        bool got = rp_buf_new((size_t)s->extent.len, &s->bytes, NULL) == RP_OK &&
                   rp_files_read_cached(loader->files, s->file, s->extent.offset, s->extent.len,
                                        s->bytes->data);
        if (!got) {
            rp_buf_unref(&s->bytes);
            link = &s->group;
            continue;
        }
        *link = s->group;
        s->group = here;
        here = s;
    }
    return here;
}

static void fetch_group(rp_loader *loader, struct segment *group)
{
    struct rp_error err;
    rp_error_clear(&err);
    int64_t began = rp_now_ns();
    struct segment *here = take_cached(loader, &group);
    if (here != NULL) {
        rp_count(&loader->counters.fetch_ns, rp_now_ns() - began);
        settle(loader, here, group, &err);
        return;
    }
    int64_t from = group->extent.offset, to = from + group->extent.len;
    for (const struct segment *s = group->group; s != NULL; s = s->group) {
        int64_t end = s->extent.offset + s->extent.len;
        from = s->extent.offset < from ? s->extent.offset : from;
        to = end > to ? end : to;
    }
    rp_buf *bytes = NULL;
    rp_status status = rp_buf_new((size_t)(to - from), &bytes, &err);
    if (status == RP_OK) {
        bool parts = group->group != NULL;
        status = (parts ? rp_files_read_parts : rp_files_read)(loader->files, group->file, from,
                                                               to - from, bytes->data, &err);
    }
    if (status == RP_OK) {
        status = hand_out(group, bytes, from, &err);
    }
    rp_buf_unref(&bytes);
    rp_count(&loader->counters.fetch_ns, rp_now_ns() - began);
    bool again = status == RP_AGAIN;
    settle(loader, again ? NULL : group, again ? group : NULL, &err);
}

static void *fetch_main(void *arg)
{
    rp_loader *loader = arg;
    rp_lock_acquire(&loader->lock);
    while (!loader->closing) {
        int32_t file;
        struct segment *group = NULL;
        bool index = rp_index_pop_locked(loader, &file);
        if (!index) {
            group = rp_segments_pick_locked(loader);
        }
        if (!index && group == NULL) {
            bool waits = loader->segments.n_waiting > 0;
            (void)rp_cond_wait(&loader->fetch, &loader->lock, /* loops */
                               rp_now_ns() + (waits ? ROOM_WAIT_NS : IDLE_WAIT_NS));
            continue;
        }
        loader->fetching++;
        rp_lock_release(&loader->lock);
        if (index) {
            rp_index_work(loader, file);
        }
        else {
            fetch_group(loader, group);
        }
        rp_lock_acquire(&loader->lock);
        loader->fetching--;
        loader->last_progress_ns = rp_now_ns();
        rp_cond_broadcast(&loader->work);
        rp_cond_broadcast(&loader->done);
    }
    rp_lock_release(&loader->lock);
    return NULL;
}

rp_status rp_fetchers_start(rp_loader *loader, struct rp_error *err)
{
    int n = loader->options.fetch_threads > 0 ? loader->options.fetch_threads : 1;
    if (loader->segments.bucket == NULL || loader->n_fetchers > 0) {
        return RP_OK;
    }
    loader->fetchers = rp_calloc((size_t)n, sizeof(*loader->fetchers));
    if (loader->fetchers == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %d threads", n);
    }
    for (int i = 0; i < n; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "rp-fetch-%d", i % 100); /* fits */
        rp_status status = rp_thread_start(&loader->fetchers[i], name, fetch_main, loader, err);
        if (status != RP_OK && i == 0) {
            rp_free(loader->fetchers);
            loader->fetchers = NULL;
            return status;
        }
        if (status != RP_OK) {
            rp_error_clear(err);
            break; /* fewer threads do the same work */
        }
        loader->n_fetchers = i + 1;
    }
    return RP_OK;
}

void rp_fetchers_join(rp_loader *loader)
{
    for (int i = 0; i < loader->n_fetchers; i++) {
        rp_thread_join(&loader->fetchers[i]);
    }
    rp_free(loader->fetchers);
}
