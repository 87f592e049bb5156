/* Inside fetch: what an HTTP exchange came to, what to do about it, and the one door to libcurl. */
#ifndef RP_FETCH_HTTP_PRIV_H
#define RP_FETCH_HTTP_PRIV_H

#include "fetch/http_client.h"
#include "fetch/http_text.h"

/* How an exchange ended below HTTP. */
enum rp_http_end {
    RP_HTTP_UNDER_WAY = 0,
    RP_HTTP_COMPLETE,   /* answer read to its end, or as far as its body is wanted */
    RP_HTTP_BROKEN,     /* name, connection, handshake, time, cut: another try may succeed */
    RP_HTTP_MALFORMED,  /* more bytes than announced, or no HTTP */
    RP_HTTP_HEAD_LIMIT, /* headers beyond their limits */
    RP_HTTP_BODY_LIMIT, /* a body larger than permitted */
    RP_HTTP_UNTRUSTED,  /* the certificate cannot be verified */
    RP_HTTP_FORBIDDEN,  /* the address rule */
    RP_HTTP_UNUSABLE,   /* libcurl refuses the request itself */
    RP_HTTP_NO_MEMORY
};

/* Rows of docs/http.md. */
enum rp_http_row {
    RP_ROW_GOOD = 0,
    RP_ROW_BUSY,      /* R1: back off */
    RP_ROW_LIMITED,   /* R2: the server tells when */
    RP_ROW_NETWORK,   /* R3: fresh connection */
    RP_ROW_SHORT,     /* R4: keep it, ask for the rest */
    RP_ROW_REFUSED,   /* R5: the signed URL is refused: resolve again */
    RP_ROW_ODD,       /* R6: not what was asked for: reconnect, resolve again */
    RP_ROW_CHANGED,   /* R7: another version */
    RP_ROW_DENIED,    /* R8: the origin itself says no */
    RP_ROW_FATAL,     /* R9: no try will help */
    RP_ROW_REDIRECT,  /* not an end: follow it */
    RP_ROW_SIGN_AGAIN /* not an end: the answer tells how to sign */
};

/* What an answer must agree with. */
struct rp_http_wish {
    bool probe;          /* size wanted, not bytes: a 200 and a 416 tell it too */
    bool whole;          /* no range was asked for */
    bool page;           /* likewise, and the size is not known: at most `limit` bytes */
    bool foreign;        /* the answer comes from a redirect's target at another origin */
    int64_t first, last; /* bytes asked for */
    int64_t size;        /* -1: not known yet */
    int64_t limit;       /* page */
    const char *etag;    /* "" or NULL: not known yet */
    const char *last_modified;
};

#define RP_HTTP_TOO_LARGE "the body is larger than permitted"

/* Which row an answer with complete headers belongs to. GOOD and SHORT: its body is wanted.
 * *why: what is wrong with it, a constant. Thread: any. Blocks: never. */
enum rp_http_row rp_http_judge(const struct rp_http_head *head, const struct rp_http_wish *wish,
                               const char **why);

/* Row of an exchange that did not end with an answer. Thread: any. Blocks: never. */
enum rp_http_row rp_http_judge_end(enum rp_http_end end);

/* Tries of one call. */
struct rp_http_tries {
    int backoff; /* failures since the last new byte */
    int refused; /* fresh targets refused in a row */
    int odd;     /* answers of R6 in a row */
    int changed; /* answers of R7 in a row */
};

struct rp_http_seen {
    enum rp_http_row row;
    int status;
    bool fresh;     /* the target was resolved for this very try */
    int64_t wait_s; /* the server asks for it; -1: it does not */
    int64_t left;   /* ms until the call's deadline */
};

struct rp_http_verdict {
    rp_status code;   /* RP_OK: try again; else the end */
    bool too_long;    /* RP_E_TIMEOUT since the wait asked for is longer than what is left */
    bool reconnect;   /* on a fresh connection */
    bool resolve;     /* forget the redirect's target */
    int64_t wait_ms;  /* before this call's next try */
    int64_t gate_ms;  /* > 0: nobody asks that origin for so long */
    bool origin_weak; /* counts towards the origin being down */
};

/* What to do about a try that gave not all bytes; counts it in *tries. random: any 64 bits.
 * Thread: any. Blocks: never. */
void rp_http_decide(const struct rp_http_seen *seen, struct rp_http_tries *tries,
                    const struct rp_http_timing *timing, uint64_t random,
                    struct rp_http_verdict *out);

/* A connection with its request; one thread uses it at a time. All functions enter the fork gate
 * themselves and are called with no lock held. */
typedef struct rp_http_transport rp_http_transport;

#define RP_HTTP_LINES 8

/* A body in the making; its maker frees data. */
struct rp_http_growing {
    uint8_t *data;
    int64_t len, room, limit;
};

struct rp_http_request {
    const char *url;
    int64_t first, last;              /* range; first < 0: none */
    const char *lines[RP_HTTP_LINES]; /* whole header lines; NULL from the first that is none */
    bool check_address;               /* the address rule holds */
    bool fresh;                       /* no connection is reused */
    struct rp_http_wish wish;
    uint8_t *to; /* room for last - first + 1 bytes (whole: wish.size); NULL: discard, or ... */
    int64_t room;
    struct rp_http_growing *growing; /* ... a page goes here; NULL: none */
};

struct rp_http_reply {
    enum rp_http_end end;
    enum rp_http_row row; /* once head.complete */
    const char *why;      /* constant */
    int64_t bytes;        /* put into `to` */
    int64_t moved;        /* bytes received in all, headers too */
    int64_t connections;  /* newly made */
    char text[160];       /* what the library says of an exchange that broke */
    char note[512];       /* beginning of the body of an error */
    size_t note_len;
    struct rp_http_head head;
};

/* Owner: *out is the caller's; options outlive it. Errors: RP_E_NOMEM; RP_E_UNSUPPORTED a libcurl
 * that cannot be used from threads. */
RP_CHECKED rp_status rp_http_transport_new(const struct rp_http_options *options,
                                           rp_http_transport **out, struct rp_error *err);

/* Begin an exchange. Owner: request and what it points to stay until the end of the exchange.
 * Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_http_transport_begin(rp_http_transport *transport,
                                             const struct rp_http_request *request,
                                             struct rp_error *err);

/* Move on for at most so many ms; reply.end tells whether it is over. Blocks: so long. */
void rp_http_transport_step(rp_http_transport *transport, int wait_ms);

/* The reply of the exchange under way or of the last one. Owner: borrowed until the next begin. */
struct rp_http_reply *rp_http_transport_reply(rp_http_transport *transport);

/* End the exchange; one that is under way loses its connection. */
void rp_http_transport_finish(rp_http_transport *transport);

/* In a forked child: close the descriptors and touch nothing else. */
void rp_http_transport_abandon(rp_http_transport *transport);

/* Close and free, null. */
void rp_http_transport_free(rp_http_transport **transport);

#endif
