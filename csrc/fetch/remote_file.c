#include "fetch/fetch_priv.h"

#include "base/counters.h"
#include "base/memory.h"
#include "base/thread.h"

#include <string.h>
#include <time.h>

#define LARGEST_WHOLE (INT64_C(64) << 20) /* bytes of a file that is read whole */
#define PAUSE_NS      20000000            /* between looks at what another process fetches */

/* The file as the HTTP client is to see it: what is pinned by now is asked for. */
static struct rp_http_file pinned(const struct rp_remote_read *read)
{
    struct rp_http_file file = read->file->http;
    file.size = read->size;
    file.whole = read->whole;
    return file;
}

static rp_status check_online(const struct rp_remote_read *read, struct rp_error *err)
{
    if (read->file->client == NULL) {
        RP_FAIL(err, RP_E_OFFLINE, "the network is switched off, and these bytes are not here");
    }
    return RP_OK;
}

rp_status rp_remote_size(const struct rp_remote_read *read, int64_t *size, bool *whole,
                         struct rp_error *err)
{
    struct rp_http_info info;
    RP_TRY(check_online(read, err));
    RP_TRY(rp_http_size(read->file->client, &read->file->http, &read->watch, &info, err));
    if (!info.accepts_ranges && info.size > LARGEST_WHOLE) {
        RP_FAIL(err, RP_E_UNSUPPORTED,
                "its server sends whole files only, and this one has %lld bytes (at most 64 MiB)",
                (long long)info.size);
    }
    *size = info.size;
    *whole = !info.accepts_ranges;
    return RP_OK;
}

static bool keeps(const struct rp_remote_read *read)
{
    return read->file->cache != NULL && read->file->key != NULL;
}

bool rp_remote_cached(const struct rp_remote_read *read, int64_t offset, int64_t len, uint8_t *to)
{
    bool here = keeps(read) && rp_node_cache_read(read->file->cache, read->file->key, read->size,
                                                  offset, len, to) == RP_OK;
    rp_count(&read->stats->wanted, here ? len : 0);
    rp_count(&read->stats->cached, here ? len : 0);
    return here;
}

/* RP_OK: the bytes are here; RP_AGAIN: they are to be fetched. */
static rp_status look_up(const struct rp_remote_read *read, int64_t offset, int64_t len,
                         uint8_t *to, bool *waited, struct rp_error *err)
{
    rp_node_cache *cache = read->file->cache;
    const char *key = read->file->key;
    int64_t began = 0;
    for (;;) {
        if (rp_node_cache_read(cache, key, read->size, offset, len, to) == RP_OK) {
            rp_count(&read->stats->cached, len);
            return RP_OK;
        }
        if (rp_node_cache_claim(cache, key, read->size, offset, len) == RP_OK) {
            return RP_AGAIN;
        }
        if (read->watch.ended(read->watch.cookie)) {
            RP_FAIL(err, RP_E_CLOSED, "the loader was closed");
        }
        const struct timespec pause = {.tv_nsec = PAUSE_NS};
        *waited = true;
        began = rp_now_ns();
        (void)nanosleep(&pause, NULL); /* woken early, it looks early */
        rp_count(&read->stats->waits_ns, rp_now_ns() - began);
    }
}

static void store(const struct rp_remote_read *read, int64_t offset, int64_t len,
                  const uint8_t *bytes)
{
    rp_node_cache_store(read->file->cache, read->file->key, read->size, offset, len, bytes);
}

static rp_status fetch(const struct rp_remote_read *read, int64_t offset, int64_t len, uint8_t *to,
                       struct rp_error *err)
{
    struct rp_http_file file = pinned(read);
    RP_TRY(check_online(read, err));
    RP_TRY(rp_http_read(read->file->client, &file, offset, len, to, &read->watch, err));
    rp_count(&read->stats->fetched, len);
    return RP_OK;
}

/* A part of a file whose server knows whole files only. */
static rp_status fetch_whole(const struct rp_remote_read *read, int64_t offset, int64_t len,
                             uint8_t *to, struct rp_error *err)
{
    rp_buf *all;
    RP_TRY(rp_buf_new((size_t)read->size, &all, err));
    rp_status status = fetch(read, 0, read->size, all->data, err);
    if (status == RP_OK) {
        memcpy(to, all->data + offset, (size_t)len);
        if (keeps(read)) {
            store(read, 0, read->size, all->data);
        }
    }
    rp_buf_unref(&all);
    return status;
}

static rp_status from_network(const struct rp_remote_read *read, int64_t offset, int64_t len,
                              uint8_t *to, struct rp_error *err)
{
    if (read->whole && (offset != 0 || len != read->size)) {
        return fetch_whole(read, offset, len, to, err);
    }
    RP_TRY(fetch(read, offset, len, to, err));
    if (keeps(read)) {
        store(read, offset, len, to);
    }
    return RP_OK;
}

rp_status rp_remote_bytes(const struct rp_remote_read *read, int64_t offset, int64_t len,
                          uint8_t *to, struct rp_error *err)
{
    if (offset < 0 || len < 0 || offset > read->size || len > read->size - offset) {
        RP_FAIL(err, RP_E_FORMAT, "truncated: the file ends at byte %lld", (long long)read->size);
    }
    bool waited = false, mine = keeps(read); /* mine: a claim */
    rp_status status = RP_AGAIN;
    if (mine) {
        status = look_up(read, offset, len, to, &waited, err);
        mine = status == RP_AGAIN;
    }
    bool again = mine && waited && read->parts;
    if (status == RP_AGAIN && !again) {
        status = from_network(read, offset, len, to, err);
    }
    if (mine) {
        rp_node_cache_release(read->file->cache, read->file->key, read->size, offset, len);
    }
    rp_count(&read->stats->wanted, again ? 0 : len);
    return status;
}
