/* Inside fetch: what the callers of one HTTP client share. Everything here is behind one lock,
 * which each function takes for microseconds and never while it talks to libcurl. */
#ifndef RP_FETCH_HTTP_STATE_PRIV_H
#define RP_FETCH_HTTP_STATE_PRIV_H

#include "fetch/http_priv.h"
#include "fetch/s3_sign.h"

#define RP_HTTP_REGION_MAX 64  /* bytes of a region's name and its terminator */
#define RP_HTTP_SLICE_MS   100 /* after so long a waiting call looks around */

/* What is known of a file: pins, and where its bytes are. */
struct rp_http_known {
    char *url;    /* never changes */
    char *target; /* where redirects led; NULL: the URL itself, or not known */
    enum { RP_HTTP_UNRESOLVED = 0, RP_HTTP_RESOLVING, RP_HTTP_RESOLVED } state;
    bool secrets;     /* the target's origin may have the token */
    bool linked;      /* the redirect told the version: target_etag is the target's own */
    uint64_t serial;  /* of the resolution */
    int64_t fresh_ns; /* the target is asked until then */
    int64_t size;     /* -1: not known */
    char etag[RP_VERSION_MAX], last_modified[RP_VERSION_MAX], target_etag[RP_VERSION_MAX];
    struct rp_http_link link; /* what the answers on the way to it said */
    struct rp_http_known *next;
};

/* A transport in the pool. */
struct rp_http_seat {
    rp_http_transport *transport;
    char origin[RP_ORIGIN_MAX]; /* last asked */
    struct rp_http_seat *next_idle;
    struct rp_http_seat *next; /* of all; never changes */
};

/* Wipe and free a text that may be a secret; NULL: nothing. */
void rp_http_discard(const char *text);

/* Whether options can be honoured. Errors: RP_E_ARG, without secrets. */
RP_CHECKED rp_status rp_http_options_check(const struct rp_http_options *options,
                                           struct rp_error *err);

/* Whether a text is a name of a region: letters, digits, hyphens. */
bool rp_http_is_region(const char *text);

/* Replace borrowed texts by copies (false: memory was short, disown what there is); free them. */
bool rp_http_options_own(struct rp_http_options *options);
void rp_http_options_disown(struct rp_http_options *options);

/* A header line, "name" as "Name: ". Owner: the caller's (rp_http_discard). NULL: no memory. */
char *rp_http_line(const char *name, const char *value);

/* Options of the client (borrowed), its token's URL (NULL: none) and header line. */
const struct rp_http_options *rp_http_client_options(const rp_http_client *client);
const char *rp_http_client_authorization(const rp_http_client *client);

/* Header line of the S3 session; NULL: none. */
const char *rp_http_client_session(const rp_http_client *client);

/* Region to sign for (RP_HTTP_REGION_MAX bytes), seconds that the server's clock is ahead; and what
 * an answer told of them. */
void rp_http_client_signing(rp_http_client *client, char *region, int64_t *skew_s);
int64_t rp_http_client_skew(rp_http_client *client);
void rp_http_client_learn_region(rp_http_client *client, const char *region);
void rp_http_client_learn_skew(rp_http_client *client, int64_t skew_s);

/* Counters, written with rp_count. */
struct rp_http_stats *rp_http_client_stats(rp_http_client *client);

/* Whether the client was interrupted or is a parent's. */
bool rp_http_client_ended(const rp_http_client *client);

/* 64 random bits. */
uint64_t rp_http_client_random(rp_http_client *client);

/* Wait for a change of the shared state, at most until `until_ns` and RP_HTTP_SLICE_MS. */
void rp_http_client_wait(rp_http_client *client, int64_t until_ns);

/* The entry of a URL, made when new; it lives as long as the client. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_http_client_file(rp_http_client *client, const char *url,
                                         struct rp_http_known **out, struct rp_error *err);

/* Copy what is known, with the target's URL copied to `target` (RP_URL_MAX + 1 bytes, "" where
 * there is none). The state tells the caller's part: RESOLVED ask the target, or the URL itself;
 * UNRESOLVED the caller resolves and calls settle or unsettle; RESOLVING another caller does,
 * wait. */
void rp_http_client_look(rp_http_client *client, struct rp_http_known *file,
                         struct rp_http_known *copy, char *target);

/* What a good answer told: `found` holds state, pins and life; target "": the URL itself. */
RP_CHECKED rp_status rp_http_client_settle(rp_http_client *client, struct rp_http_known *file,
                                           const struct rp_http_known *found, const char *target,
                                           struct rp_error *err);

/* Forget the resolution `serial`, or give up one's own (mine). */
void rp_http_client_unsettle(rp_http_client *client, struct rp_http_known *file, uint64_t serial,
                             bool mine);

enum rp_http_hold { RP_HTTP_GO = 0, RP_HTTP_GATED, RP_HTTP_DOWN };

/* Whether `origin` may be asked now; if not, *until_ns is when to ask this again. */
RP_CHECKED rp_status rp_http_client_admit(rp_http_client *client, const char *origin,
                                          enum rp_http_hold *hold, int64_t *until_ns,
                                          struct rp_error *err);

/* What an exchange says of its origin: weak (a failure that counts towards being down) or not, the
 * time nobody may ask it, the least time between requests. */
void rp_http_client_note(rp_http_client *client, const char *origin, bool weak, int64_t gate_ns,
                         int64_t pace_ns);

/* How long a whole range took; whether one may be asked for a second time that has waited so long:
 * longer than four times the 95th percentile, and in at most one of HEDGE_SHARE requests. */
void rp_http_client_record(rp_http_client *client, const char *origin, int64_t took_ns);
bool rp_http_client_may_hedge(rp_http_client *client, const char *origin, int64_t waited_ns);

/* A transport, if possible one that has a connection to `origin`. Errors: as
 * rp_http_transport_new. */
RP_CHECKED rp_status rp_http_client_take(rp_http_client *client, const char *origin,
                                         struct rp_http_seat **out, struct rp_error *err);
void rp_http_client_give(rp_http_client *client, struct rp_http_seat *seat, const char *origin);

#endif
