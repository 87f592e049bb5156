/* Where the bytes of a file are: what is known of it, redirects, signed URLs, pins. */
#include "fetch/http_call_priv.h"

#include "base/counters.h"
#include "base/thread.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LEASE_LOOK_MS  20                 /* between looks at what another process does */
#define SHARED_LIFE_NS (2 * 1000 * RP_MS) /* a target that lives shorter is not shared */

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    }
    return hash;
}

static void ask_the_url(struct rp_http_call *call)
{
    (void)snprintf(call->url, sizeof(call->url), "%s", call->file->url); /* it parsed */
    call->visited[0] = hash_of(call->url);
}

/* What is known of the file; waits while another call of this process finds out. */
static rp_status look(struct rp_http_call *call)
{
    for (;;) {
        rp_http_client_look(call->client, call->known, &call->seen, call->url);
        call->resolver = call->seen.state == RP_HTTP_UNRESOLVED;
        if (call->seen.state != RP_HTTP_RESOLVING) {
            return RP_OK;
        }
        rp_http_client_wait(call->client, rp_now_ns() + RP_HTTP_SLICE_MS * RP_MS);
        RP_TRY(rp_http_call_check(call));
    }
}

static const char *cache_of(const struct rp_http_call *call)
{
    return rp_http_client_options(call->client)->url_cache;
}

static void count_trouble(struct rp_http_call *call, rp_status status)
{
    if (status < 0) {
        rp_count(&rp_http_client_stats(call->client)->url_cache_errors, 1);
    }
}

static bool differs(const char *a, const char *b)
{
    return rp_text_of(a)[0] != '\0' && rp_text_of(b)[0] != '\0' && strcmp(a, b) != 0;
}

/* Whether another process's finding is of the file that this call wants. */
static bool agrees(const struct rp_http_call *call, const struct rp_http_known *found)
{
    const struct rp_http_file *file = call->file;
    const struct rp_http_known *seen = &call->seen;
    if (found->size != file->size || (seen->size >= 0 && found->size != seen->size) ||
        differs(seen->etag, found->etag)) {
        return false;
    }
    if (rp_text_of(file->etag)[0] != '\0') {
        return !differs(file->etag, found->etag);
    }
    return !differs(file->last_modified, found->last_modified);
}

/* Take what another process has found out. RP_AGAIN: nothing of use. */
static rp_status take_shared(struct rp_http_call *call)
{
    struct rp_http_known found;
    struct rp_url target;
    rp_status status = rp_url_cache_load(cache_of(call), call->file->url, &found, call->next);
    count_trouble(call, status);
    if (status != RP_OK || !agrees(call, &found) ||
        rp_url_parse(call->next, &target, NULL) != RP_OK ||
        (call->file_url.https && !target.https)) {
        return RP_AGAIN;
    }
    found.secrets = found.secrets && rp_url_same_origin(&target, &call->file_url);
    call->resolver = false;
    rp_count(&rp_http_client_stats(call->client)->resolves_cached, 1);
    return rp_http_client_settle(call->client, call->known, &found, call->next, call->err);
}

/* Look whether another process knows where the file is, or is finding out; *found: it knew, and
 * this process does now. Otherwise this call resolves. */
static rp_status consult(struct rp_http_call *call, bool *found)
{
    const char *dir = cache_of(call);
    if (dir == NULL || call->file->size < 0) {
        return RP_OK; /* a size that nobody told may be another by now */
    }
    int64_t most = call->timing->network / 2 * RP_MS;
    int64_t patience = RP_URL_LEASE_S * 1000 * RP_MS < most ? RP_URL_LEASE_S * 1000 * RP_MS : most;
    int64_t end = rp_now_ns() + patience;
    rp_status lease = RP_AGAIN;
    for (;;) {
        rp_status status = take_shared(call);
        *found = status == RP_OK;
        if (status != RP_AGAIN) {
            rp_url_lease_release(dir, call->file->url, &call->lease);
            return status;
        }
        if (lease != RP_AGAIN) {
            return RP_OK;
        }
        if (rp_now_ns() >= end) {
            rp_count(&rp_http_client_stats(call->client)->leases_waited_out, 1);
            return RP_OK;
        }
        lease = rp_url_lease_take(dir, call->file->url, &call->lease); /* then once more */
        count_trouble(call, lease);
        if (lease == RP_AGAIN) {
            rp_http_client_wait(call->client, rp_now_ns() + LEASE_LOOK_MS * RP_MS);
            RP_TRY(rp_http_call_check(call));
        }
    }
}

/* Tell the other processes, too. */
static void share(struct rp_http_call *call)
{
    const char *dir = cache_of(call);
    if (dir == NULL) {
        return;
    }
    if (call->moved && call->life_ns >= SHARED_LIFE_NS) {
        count_trouble(call, rp_url_cache_store(dir, call->file->url, &call->seen, call->url));
    }
    rp_url_lease_release(dir, call->file->url, &call->lease);
}

rp_status rp_http_locate(struct rp_http_call *call)
{
    call->moved = call->foreign = call->settled = false;
    call->hops = 0;
    call->linked_etag[0] = '\0';
    call->secrets = true;
    if (call->known == NULL) {
        ask_the_url(call);
        return RP_OK;
    }
    for (bool found = true; found;) {
        RP_TRY(look(call));
        found = false;
        if (call->resolver) {
            RP_TRY(consult(call, &found));
        }
    }
    if (call->resolver) {
        rp_count(&rp_http_client_stats(call->client)->resolves, 1);
        call->seen.link = (struct rp_http_link){.linked_size = -1};
    }
    if (call->url[0] == '\0') {
        ask_the_url(call);
        return RP_OK;
    }
    call->visited[0] = hash_of(call->url);
    struct rp_url target;
    RP_TRY(rp_url_parse(call->url, &target, call->err)); /* it did before */
    call->moved = true;
    call->foreign = !rp_url_same_origin(&target, &call->file_url);
    call->secrets = call->seen.secrets;
    return RP_OK;
}

/* What a good answer tells of the file, where it was not known. */
static void learn(struct rp_http_call *call, const struct rp_http_head *head)
{
    struct rp_http_known *seen = &call->seen;
    if (seen->size < 0) {
        seen->size = head->status == 200 ? head->content_length : head->total;
    }
    if (call->hops > 0 || !call->moved) {
        seen->linked = call->linked_etag[0] != '\0';
        (void)snprintf(seen->target_etag, sizeof(seen->target_etag), "%s", head->etag);
    }
    if (seen->etag[0] == '\0' && seen->last_modified[0] == '\0') {
        const char *etag = seen->linked ? call->linked_etag : head->etag;
        (void)snprintf(seen->etag, sizeof(seen->etag), "%s", etag);
        (void)snprintf(seen->last_modified, sizeof(seen->last_modified), "%s", head->last_modified);
    }
}

/* What an answer of the file's own origin says beside the bytes; the first one counts. */
static void note_link(struct rp_http_call *call, const struct rp_http_head *head)
{
    struct rp_http_link *link = &call->seen.link;
    if (call->foreign) {
        return;
    }
    if (link->repo_commit[0] == '\0') {
        memcpy(link->repo_commit, head->repo_commit, sizeof(link->repo_commit));
    }
    if (link->xet_hash[0] == '\0') {
        memcpy(link->xet_hash, head->xet_hash, sizeof(link->xet_hash));
    }
    bool own = strcmp(head->linked_etag, head->xet_hash) != 0; /* else it stands for the hash */
    if (link->linked_etag[0] == '\0' && own) {
        memcpy(link->linked_etag, head->linked_etag, sizeof(link->linked_etag));
    }
    link->linked_size = link->linked_size < 0 ? head->linked_size : link->linked_size;
}

static void inform(struct rp_http_info *info, const struct rp_http_known *seen, int status)
{
    info->size = seen->size;
    info->accepts_ranges = status != 200;
    (void)snprintf(info->etag, sizeof(info->etag), "%s", seen->etag);
    (void)snprintf(info->last_modified, sizeof(info->last_modified), "%s", seen->last_modified);
    info->link = seen->link;
}

rp_status rp_http_settle(struct rp_http_call *call, const struct rp_http_head *head)
{
    struct rp_http_known *seen = &call->seen;
    call->settled = true;
    if (call->known == NULL) {
        return RP_OK;
    }
    learn(call, head);
    note_link(call, head);
    if (call->info != NULL) {
        inform(call->info, seen, head->status);
    }
    if (seen->state == RP_HTTP_RESOLVED && call->hops == 0) {
        return RP_OK; /* as before */
    }
    seen->secrets = call->secrets;
    seen->fresh_ns = rp_now_ns() + call->life_ns / 5 * 4;
    call->resolver = false;
    share(call);
    return rp_http_client_settle(call->client, call->known, seen, call->moved ? call->url : "",
                                 call->err);
}

/* Life of a redirect's target, as the server's own clock sees it. */
static int64_t life_of(const struct rp_http_call *call, const struct rp_http_head *head,
                       const struct rp_url *target)
{
    int64_t expiry = rp_url_expiry(target);
    if (expiry < 0) {
        return call->timing->unsigned_life_s * 1000 * RP_MS;
    }
    int64_t now = head->date >= 0 ? head->date : (int64_t)time(NULL);
    int64_t life = expiry - now;
    return life <= 0 ? 0 : (life < 604800 ? life : 604800) * 1000 * RP_MS;
}

static enum rp_http_row refuse(struct rp_http_call *call, enum rp_http_row row, const char *why)
{
    (void)snprintf(call->cause, sizeof(call->cause), "%.99s: %s", call->origin, why);
    return row;
}

/* How the file that a redirect describes differs from the one wanted; NULL: it does not. */
static const char *changed_link(struct rp_http_call *call, const struct rp_http_head *head)
{
    const struct rp_http_file *file = call->file;
    int64_t size = file->size >= 0 ? file->size : call->seen.size;
    if (head->linked_size >= 0 && size >= 0 && head->linked_size != size) {
        return "another size";
    }
    if (head->linked_etag[0] == '\0') {
        return NULL;
    }
    memcpy(call->linked_etag, head->linked_etag, sizeof(call->linked_etag));
    const char *etag = rp_text_of(file->etag)[0] != '\0' ? file->etag : call->seen.etag;
    return etag[0] != '\0' && strcmp(etag, head->linked_etag) != 0 ? "another version" : NULL;
}

enum rp_http_row rp_http_follow(struct rp_http_call *call, const struct rp_http_head *head)
{
    struct rp_error why;
    rp_error_clear(&why);
    if (rp_url_redirect(call->url, head->location, call->next, &why) != RP_OK) {
        return refuse(call, RP_ROW_FATAL, why.what);
    }
    if (++call->hops > rp_http_client_options(call->client)->max_redirects) {
        return refuse(call, RP_ROW_FATAL, "too many redirects");
    }
    uint64_t hash = hash_of(call->next);
    for (int i = 0; i < call->hops; i++) {
        if (call->visited[i] == hash) {
            return refuse(call, RP_ROW_FATAL, "the redirects lead in a circle");
        }
    }
    call->visited[call->hops] = hash;
    const char *changed = changed_link(call, head);
    if (changed != NULL) {
        return refuse(call, RP_ROW_CHANGED, changed);
    }
    struct rp_url from, target;
    if (rp_url_parse(call->url, &from, NULL) != RP_OK ||
        rp_url_parse(call->next, &target, NULL) != RP_OK) {
        return refuse(call, RP_ROW_FATAL, "a malformed URL"); /* both parsed before */
    }
    note_link(call, head);
    call->moved = true;
    call->foreign = !rp_url_same_origin(&target, &call->file_url);
    call->secrets = call->secrets && rp_url_same_origin(&from, &target);
    call->life_ns = life_of(call, head, &target);
    memcpy(call->url, call->next, strlen(call->next) + 1);
    return RP_ROW_REDIRECT;
}

void rp_http_unsettle(struct rp_http_call *call, bool known)
{
    const char *dir = cache_of(call);
    if (dir != NULL && call->known != NULL) {
        rp_url_lease_release(dir, call->file->url, &call->lease);
        if (known && call->moved) {
            rp_url_cache_drop(dir, call->file->url, call->url);
        }
    }
    if (call->known != NULL && (call->resolver || known)) {
        rp_http_client_unsettle(call->client, call->known, call->seen.serial, call->resolver);
        call->resolver = false;
    }
}
