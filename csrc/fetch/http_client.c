#include "fetch/http_client.h"

#include "base/counters.h"
#include "base/memory.h"
#include "base/thread.h"
#include "fetch/http_state_priv.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BUCKETS     4096
#define FILES_MAX   (1 << 20)
#define ORIGINS_MAX 256 /* more are a server's malice: a redirect each */
#define DOWN_AFTER  8   /* failures in a row */
#define TIMES       24
#define TIMES_LEAST 20  /* from so many on the 95th percentile is known */
#define TIMES_MOST  512 /* then all are halved */
#define HEDGE_SHARE 50  /* one request of so many may be a second one */

struct rp_http_origin {
    char name[RP_ORIGIN_MAX];
    int64_t gate_ns;  /* nobody asks before */
    int64_t pace_ns;  /* between requests; 0: any */
    int64_t slot_ns;  /* the next request under pace */
    int64_t probe_ns; /* the next try while down */
    int failures;     /* in a row */
    int times[TIMES]; /* ranges that took less than 2^i ms; older ones count for less */
    int n_times;
    struct rp_http_origin *next;
};

struct rp_http_client {
    struct rp_http_options options; /* its texts are ours */
    char *authorization;            /* header line with the token; NULL: none */
    char *session;                  /* header line with the S3 session; NULL: none */
    uint64_t generation;
    bool ended; /* atomic */
    struct rp_http_stats stats;
    rp_lock lock;
    rp_cond changed;
    struct rp_http_seat *seats; /* all; atomic: a forked child walks it */
    /* guarded by lock: */
    struct rp_http_seat *idle;
    struct rp_http_origin *origins;
    struct rp_http_known **files; /* [BUCKETS] */
    int n_origins, n_files;
    uint64_t random;
    char region[RP_HTTP_REGION_MAX]; /* of S3 */
    int64_t skew_s;
};

/* Replace the borrowed texts of client->options by copies, and make what comes with a client. */
static bool own_options(rp_http_client *client)
{
    struct rp_http_options *o = &client->options;
    bool sound = rp_http_options_own(o);
    if (sound && o->token != NULL) {
        client->authorization = rp_http_line("Authorization: Bearer ", o->token);
        sound = client->authorization != NULL;
    }
    if (sound && o->s3_session_token != NULL) {
        client->session = rp_http_line("x-amz-security-token: ", o->s3_session_token);
        sound = client->session != NULL;
    }
    (void)snprintf(client->region, sizeof(client->region), "%s", /* fits by the check */
                   o->s3_region != NULL ? o->s3_region : "us-east-1");
    client->files = rp_calloc(BUCKETS, sizeof(struct rp_http_known *));
    return sound && client->files != NULL;
}

static void dispose(rp_http_client *client)
{
    rp_http_options_disown(&client->options);
    rp_http_discard(client->authorization);
    rp_http_discard(client->session);
    for (int i = 0; client->files != NULL && i < BUCKETS; i++) {
        for (struct rp_http_known *file = client->files[i]; file != NULL;) {
            struct rp_http_known *next = file->next;
            rp_http_discard(file->target);
            rp_free(file->url);
            rp_free(file);
            file = next;
        }
    }
    rp_free(client->files);
    for (struct rp_http_origin *origin = client->origins; origin != NULL;) {
        struct rp_http_origin *next = origin->next;
        rp_free(origin);
        origin = next;
    }
    rp_free(client);
}

rp_status rp_http_client_new(const struct rp_http_options *options, rp_http_client **out,
                             struct rp_error *err)
{
    RP_TRY(rp_http_options_check(options, err));
    RP_TRY(rp_fork_watch(err));
    rp_http_client *client = rp_calloc(1, sizeof(*client));
    if (client == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for an HTTP client");
    }
    client->options = *options;
    client->generation = rp_fork_generation();
    client->random = (uint64_t)rp_now_ns() ^ ((uint64_t)getpid() << 40) ^ (uintptr_t)client;
    rp_status status = own_options(client)
                           ? rp_lock_init(&client->lock, err)
                           : rp_error_set(err, RP_E_NOMEM, "out of memory for an HTTP client");
    if (status == RP_OK) {
        status = rp_cond_init(&client->changed, err);
        if (status != RP_OK) {
            rp_lock_free(&client->lock);
        }
    }
    if (status != RP_OK) {
        dispose(client);
        return status;
    }
    *out = client;
    return RP_OK;
}

/* Close what a forked child inherited; nothing of the parent's is locked or changed. */
static void abandon(rp_http_client *client)
{
    struct rp_http_seat *seat = __atomic_load_n(&client->seats, __ATOMIC_ACQUIRE);
    for (; seat != NULL; seat = seat->next) {
        rp_http_transport_abandon(seat->transport);
    }
}

rp_status rp_http_client_renew(rp_http_client **client, struct rp_error *err)
{
    rp_http_client *old = *client;
    *client = NULL;
    abandon(old);
    return rp_http_client_new(&old->options, client, err);
}

void rp_http_client_free(rp_http_client **out)
{
    if (out == NULL || *out == NULL) {
        return;
    }
    rp_http_client *client = *out;
    *out = NULL;
    if (client->generation != rp_fork_generation()) {
        abandon(client);
        return;
    }
    for (struct rp_http_seat *seat = client->seats; seat != NULL;) {
        struct rp_http_seat *next = seat->next;
        rp_http_transport_free(&seat->transport);
        rp_free(seat);
        seat = next;
    }
    rp_cond_free(&client->changed);
    rp_lock_free(&client->lock);
    dispose(client);
}

uint64_t rp_http_generation(const rp_http_client *client)
{
    return client->generation;
}

void rp_http_interrupt(rp_http_client *client)
{
    __atomic_store_n(&client->ended, true, __ATOMIC_RELEASE); /* waits look every slice */
}

bool rp_http_client_ended(const rp_http_client *client)
{
    return client->generation != rp_fork_generation() ||
           __atomic_load_n(&client->ended, __ATOMIC_ACQUIRE);
}

void rp_http_stats(const rp_http_client *client, struct rp_http_stats *out)
{
    const int64_t *from = (const int64_t *)(const void *)&client->stats;
    int64_t *to = (int64_t *)(void *)out;
    for (size_t i = 0; i < sizeof(*out) / sizeof(*to); i++) {
        to[i] = rp_counted(&from[i]);
    }
}

const struct rp_http_options *rp_http_client_options(const rp_http_client *client)
{
    return &client->options;
}

const char *rp_http_client_authorization(const rp_http_client *client)
{
    return client->authorization;
}

const char *rp_http_client_session(const rp_http_client *client)
{
    return client->session;
}

void rp_http_client_signing(rp_http_client *client, char *region, int64_t *skew_s)
{
    rp_lock_acquire(&client->lock);
    memcpy(region, client->region, sizeof(client->region));
    *skew_s = client->skew_s;
    rp_lock_release(&client->lock);
}

int64_t rp_http_client_skew(rp_http_client *client)
{
    char region[RP_HTTP_REGION_MAX];
    int64_t skew_s;
    rp_http_client_signing(client, region, &skew_s);
    return skew_s;
}

void rp_http_client_learn_region(rp_http_client *client, const char *region)
{
    rp_lock_acquire(&client->lock);
    (void)snprintf(client->region, sizeof(client->region), "%s", region); /* it is a region */
    rp_lock_release(&client->lock);
}

void rp_http_client_learn_skew(rp_http_client *client, int64_t skew_s)
{
    rp_lock_acquire(&client->lock);
    client->skew_s = skew_s;
    rp_lock_release(&client->lock);
}

struct rp_http_stats *rp_http_client_stats(rp_http_client *client)
{
    return &client->stats;
}

static uint64_t random_locked(rp_http_client *client)
{
    uint64_t x = client->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t rp_http_client_random(rp_http_client *client)
{
    rp_lock_acquire(&client->lock);
    uint64_t x = random_locked(client);
    rp_lock_release(&client->lock);
    return x;
}

void rp_http_client_wait(rp_http_client *client, int64_t until_ns)
{
    int64_t slice = rp_now_ns() + RP_HTTP_SLICE_MS * 1000000LL;
    rp_lock_acquire(&client->lock);
    (void)rp_cond_wait(&client->changed, &client->lock, until_ns < slice ? until_ns : slice);
    rp_lock_release(&client->lock);
}

static struct rp_http_known **slot_locked(rp_http_client *client, const char *url)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *c = url; *c != '\0'; c++) {
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    }
    struct rp_http_known **slot = &client->files[(hash ^ (hash >> 32)) % BUCKETS];
    while (*slot != NULL && strcmp((*slot)->url, url) != 0) {
        slot = &(*slot)->next;
    }
    return slot;
}

rp_status rp_http_client_file(rp_http_client *client, const char *url, struct rp_http_known **out,
                              struct rp_error *err)
{
    rp_lock_acquire(&client->lock);
    *out = *slot_locked(client, url);
    rp_lock_release(&client->lock);
    if (*out != NULL) {
        return RP_OK;
    }
    struct rp_http_known *fresh = rp_calloc(1, sizeof(*fresh));
    char *copy = rp_strdup(url);
    rp_lock_acquire(&client->lock);
    struct rp_http_known **slot = slot_locked(client, url);
    if (*slot == NULL && fresh != NULL && copy != NULL && client->n_files < FILES_MAX) {
        fresh->url = copy;
        fresh->size = fresh->link.linked_size = -1;
        *slot = fresh;
        client->n_files++;
        fresh = NULL;
        copy = NULL;
    }
    *out = *slot;
    rp_lock_release(&client->lock);
    rp_free(fresh);
    rp_free(copy);
    if (*out == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for what is known of a file");
    }
    return RP_OK;
}

void rp_http_client_look(rp_http_client *client, struct rp_http_known *file,
                         struct rp_http_known *copy, char *target)
{
    int64_t now = rp_now_ns();
    rp_lock_acquire(&client->lock);
    if (file->state == RP_HTTP_RESOLVED && file->target != NULL && now >= file->fresh_ns) {
        file->state = RP_HTTP_UNRESOLVED;
        rp_count(&client->stats.targets_expired, 1);
    }
    *copy = *file;
    target[0] = '\0';
    if (file->state == RP_HTTP_RESOLVED && file->target != NULL) {
        memcpy(target, file->target, strlen(file->target) + 1); /* at most RP_URL_MAX bytes */
    }
    if (file->state == RP_HTTP_UNRESOLVED) {
        file->state = RP_HTTP_RESOLVING;
    }
    rp_lock_release(&client->lock);
}

rp_status rp_http_client_settle(rp_http_client *client, struct rp_http_known *file,
                                const struct rp_http_known *found, const char *target,
                                struct rp_error *err)
{
    char *copy = target[0] != '\0' ? rp_strdup(target) : NULL;
    bool short_of_memory = target[0] != '\0' && copy == NULL;
    rp_lock_acquire(&client->lock);
    char *old = file->target;
    file->target = copy;
    file->state = short_of_memory ? RP_HTTP_UNRESOLVED : RP_HTTP_RESOLVED;
    file->serial++;
    file->secrets = found->secrets;
    file->linked = found->linked;
    file->fresh_ns = found->fresh_ns;
    file->size = found->size;
    memcpy(file->etag, found->etag, sizeof(file->etag));
    memcpy(file->last_modified, found->last_modified, sizeof(file->last_modified));
    memcpy(file->target_etag, found->target_etag, sizeof(file->target_etag));
    file->link = found->link;
    rp_cond_broadcast(&client->changed);
    rp_lock_release(&client->lock);
    rp_http_discard(old);
    if (short_of_memory) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a redirect's target");
    }
    return RP_OK;
}

void rp_http_client_unsettle(rp_http_client *client, struct rp_http_known *file, uint64_t serial,
                             bool mine)
{
    rp_lock_acquire(&client->lock);
    bool own = mine && file->state == RP_HTTP_RESOLVING;
    if (own || (file->state == RP_HTTP_RESOLVED && file->serial == serial)) {
        file->state = RP_HTTP_UNRESOLVED;
        rp_cond_broadcast(&client->changed);
    }
    rp_lock_release(&client->lock);
}

static struct rp_http_origin *find_locked(rp_http_client *client, const char *name)
{
    struct rp_http_origin *origin = client->origins;
    while (origin != NULL && strcmp(origin->name, name) != 0) {
        origin = origin->next;
    }
    return origin;
}

static enum rp_http_hold admit_locked(rp_http_client *client, struct rp_http_origin *origin,
                                      int64_t now, int64_t *until_ns)
{
    if (now < origin->gate_ns) {
        *until_ns = origin->gate_ns;
        return RP_HTTP_GATED;
    }
    if (origin->failures >= DOWN_AFTER) {
        if (now < origin->probe_ns) {
            *until_ns = origin->probe_ns;
            return RP_HTTP_DOWN;
        }
        const struct rp_http_timing *timing = &client->options.timing;
        int64_t most = timing->network / 4; /* or calls would end before they may ask */
        int64_t probe = (timing->probe < most ? timing->probe : most) * 1000000; /* this call's */
        origin->probe_ns =
            now + probe * 4 / 5 + (int64_t)(random_locked(client) % 1024) * (probe / 2560);
    }
    if (origin->pace_ns > 0) {
        if (now < origin->slot_ns) {
            *until_ns = origin->slot_ns;
            return RP_HTTP_GATED;
        }
        origin->slot_ns = now + origin->pace_ns;
    }
    return RP_HTTP_GO;
}

rp_status rp_http_client_admit(rp_http_client *client, const char *name, enum rp_http_hold *hold,
                               int64_t *until_ns, struct rp_error *err)
{
    int64_t now = rp_now_ns();
    struct rp_http_origin *fresh = NULL;
    rp_lock_acquire(&client->lock);
    struct rp_http_origin *origin = find_locked(client, name);
    bool room = client->n_origins < ORIGINS_MAX;
    rp_lock_release(&client->lock);
    if (origin == NULL) {
        fresh = room ? rp_calloc(1, sizeof(*fresh)) : NULL;
        if (fresh == NULL) {
            RP_FAIL(err, room ? RP_E_NOMEM : RP_E_HTTP, "no room for another origin");
        }
        (void)snprintf(fresh->name, sizeof(fresh->name), "%s", name); /* fits by its maker */
    }
    rp_lock_acquire(&client->lock);
    origin = find_locked(client, name);
    if (origin == NULL) {
        fresh->next = client->origins;
        client->origins = fresh;
        client->n_origins++;
        origin = fresh;
        fresh = NULL;
    }
    *hold = admit_locked(client, origin, now, until_ns);
    rp_lock_release(&client->lock);
    rp_free(fresh);
    return RP_OK;
}

void rp_http_client_note(rp_http_client *client, const char *name, bool weak, int64_t gate_ns,
                         int64_t pace_ns)
{
    rp_lock_acquire(&client->lock);
    struct rp_http_origin *origin = find_locked(client, name); /* admit made it */
    bool was_down = origin->failures >= DOWN_AFTER;
    origin->failures = weak ? origin->failures + 1 : 0;
    origin->gate_ns = gate_ns > origin->gate_ns ? gate_ns : origin->gate_ns;
    origin->pace_ns = weak ? origin->pace_ns : pace_ns;
    if (was_down && !weak) {
        rp_cond_broadcast(&client->changed);
    }
    rp_lock_release(&client->lock);
}

void rp_http_client_record(rp_http_client *client, const char *name, int64_t took_ns)
{
    int i = 0;
    while (i < TIMES - 1 && took_ns / 1000000 >= INT64_C(1) << i) {
        i++;
    }
    rp_lock_acquire(&client->lock);
    struct rp_http_origin *origin = find_locked(client, name); /* admit made it */
    origin->times[i]++;
    origin->n_times++;
    if (origin->n_times >= TIMES_MOST) {
        origin->n_times = 0;
        for (int k = 0; k < TIMES; k++) {
            origin->times[k] /= 2;
            origin->n_times += origin->times[k];
        }
    }
    rp_lock_release(&client->lock);
}

bool rp_http_client_may_hedge(rp_http_client *client, const char *name, int64_t waited_ns)
{
    int64_t hedges = rp_counted(&client->stats.hedges) + 1;
    bool often = hedges * HEDGE_SHARE > rp_counted(&client->stats.requests);
    rp_lock_acquire(&client->lock);
    const struct rp_http_origin *origin = find_locked(client, name);
    int i = 0, below = origin->times[0];
    while (i < TIMES - 1 && below * 20 < origin->n_times * 19) {
        below += origin->times[++i];
    }
    bool known = origin->n_times >= TIMES_LEAST;
    rp_lock_release(&client->lock);
    return known && !often && waited_ns / 1000000 >= INT64_C(4) << i;
}

rp_status rp_http_client_take(rp_http_client *client, const char *origin, struct rp_http_seat **out,
                              struct rp_error *err)
{
    rp_lock_acquire(&client->lock);
    struct rp_http_seat **place = &client->idle;
    while (*place != NULL && strcmp((*place)->origin, origin) != 0) {
        place = &(*place)->next_idle;
    }
    if (*place == NULL) {
        place = &client->idle;
    }
    struct rp_http_seat *seat = *place;
    if (seat != NULL) {
        *place = seat->next_idle;
    }
    rp_lock_release(&client->lock);
    if (seat == NULL) {
        seat = rp_calloc(1, sizeof(*seat));
        if (seat == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for a connection");
        }
        rp_status status = rp_http_transport_new(&client->options, &seat->transport, err);
        if (status != RP_OK) {
            rp_free(seat);
            return status;
        }
        seat->next = __atomic_load_n(&client->seats, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(&client->seats, &seat->next, seat, true,
                                            __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
        }
    }
    *out = seat;
    return RP_OK;
}

void rp_http_client_give(rp_http_client *client, struct rp_http_seat *seat, const char *origin)
{
    (void)snprintf(seat->origin, sizeof(seat->origin), "%s", origin); /* fits by its maker */
    rp_lock_acquire(&client->lock);
    seat->next_idle = client->idle;
    client->idle = seat;
    rp_lock_release(&client->lock);
}
