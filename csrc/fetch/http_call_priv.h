/* Inside fetch: one call of a client, from its first request to its last. */
#ifndef RP_FETCH_HTTP_CALL_PRIV_H
#define RP_FETCH_HTTP_CALL_PRIV_H

#include "fetch/http_url_cache_priv.h"

#define RP_MS 1000000LL /* nanoseconds */

struct rp_http_call {
    rp_http_client *client;
    const struct rp_http_file *file;
    const struct rp_http_watch *watch;
    const struct rp_http_timing *timing;
    struct rp_error *err;
    struct rp_http_info *info; /* probe: where the answer goes; else NULL */
    struct rp_http_page *page; /* a page: likewise, its body is in `growing` */
    struct rp_http_growing growing;
    int64_t offset, len, got, best; /* got <= best <= len; best: most bytes there ever were */
    uint8_t *to;
    struct rp_http_tries tries;
    int64_t last_new_ns, watched_ns;
    int requests;
    bool reconnect;
    bool hedged;      /* the exchange under way, a second time */
    int64_t asked_ns; /* when it began */
    /* where the bytes are */
    struct rp_url file_url;
    struct rp_http_known *known; /* shared; NULL: a page, nothing is remembered */
    struct rp_http_known seen;   /* what it was when looked at */
    bool resolver;               /* others wait for this call */
    bool settled;                /* in this try */
    struct rp_url_lease lease;   /* other processes wait, too */
    /* the chain of redirects under way */
    bool moved, foreign, secrets; /* beyond the file's URL, its origin; the token may be sent */
    int hops;
    uint64_t visited[24];
    char linked_etag[RP_VERSION_MAX];
    int64_t life_ns;
    /* who asks */
    bool is_s3, is_signed; /* the request under way */
    bool region_tried, clock_tried;
    char region[RP_HTTP_REGION_MAX];
    char if_match[RP_VERSION_MAX + 16];
    struct rp_s3_signature signature;
    /* the last answer */
    enum rp_http_row row;
    struct rp_http_seen last;
    char cause[480];
    bool asked_too_long; /* the server wants a wait beyond the deadline */
    char origin[RP_ORIGIN_MAX];
    char url[RP_URL_MAX + 1], next[RP_URL_MAX + 1];
};

static inline const char *rp_text_of(const char *text)
{
    return text != NULL ? text : "";
}

/* Whether the call may go on. Errors: RP_E_CLOSED, RP_E_TIMEOUT. */
RP_CHECKED rp_status rp_http_call_check(struct rp_http_call *call);

/* Run the exchange that *seat has begun with request to its end. A range that is late may be asked
 * for a second time; *seat then is that of the exchange to go by. Errors: as rp_http_call_check,
 * rp_http_settle. */
RP_CHECKED rp_status rp_http_transfer(struct rp_http_call *call,
                                      const struct rp_http_request *request,
                                      struct rp_http_seat **seat);

/* Count what an exchange at call->origin cost and give its connection back. */
void rp_http_leave(struct rp_http_call *call, struct rp_http_seat *seat);

/* Add the header lines that a request to `url` may have; they point into the call and the client.
 * Errors: RP_E_ARG, RP_E_NOMEM no signature. */
RP_CHECKED rp_status rp_http_authorize(struct rp_http_call *call, const struct rp_url *url,
                                       struct rp_http_request *request);

/* Row of a complete answer, once the words of S3 are heard: SIGN_AGAIN with another region or time,
 * at most once each. */
enum rp_http_row rp_http_judge_s3(struct rp_http_call *call, struct rp_http_reply *reply);

/* Fill in where to ask; others of the same file wait until the first has found out. Blocks: so
 * long. */
RP_CHECKED rp_status rp_http_locate(struct rp_http_call *call);

/* The answer is good: tell the others where the bytes are, and what the file is. */
RP_CHECKED rp_status rp_http_settle(struct rp_http_call *call, const struct rp_http_head *head);

/* Go where a redirect leads: REDIRECT, or the row of what is wrong with it. */
enum rp_http_row rp_http_follow(struct rp_http_call *call, const struct rp_http_head *head);

/* Forget where the file is: the resolution under way, if the call has one, and with `known` the one
 * that it used. */
void rp_http_unsettle(struct rp_http_call *call, bool known);

#endif
