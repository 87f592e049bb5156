/* Bytes of files behind http and https: blocking reads of exact ranges, and nothing but those bytes
 * or a typed error. Each calling thread uses a connection of its own from the client's pool, so the
 * number of callers is the number of transfers. A client serves any number of URLs and threads. */
#ifndef RP_FETCH_HTTP_CLIENT_H
#define RP_FETCH_HTTP_CLIENT_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define RP_HTTP_VERSION 128 /* bytes of an ETag or date and its terminator */

#define RP_HTTP_PAGE_MAX (1LL << 30)

typedef struct rp_http_client rp_http_client;

/* Milliseconds unless said otherwise. */
struct rp_http_timing {
    int64_t network;         /* without a new byte, all tries of a call together */
    int64_t connect;         /* name, connection and TLS of one try */
    int64_t stall;           /* a try that moves less than stall_speed for so long is cut */
    int64_t stall_speed;     /* bytes per second */
    int64_t backoff;         /* first and ... */
    int64_t backoff_max;     /* ... largest bound of the random wait between tries */
    int64_t gate_margin;     /* added to a wait that a server asks for, ... */
    int64_t gate_jitter;     /* ... and at most so much at random */
    int64_t hedge;           /* a range later than this, and than four times the 95th percentile,
                              * is asked for once more; 0: never */
    int64_t probe;           /* between the tries that an origin gets which is down; at most a
                              * quarter of `network` */
    int64_t unsigned_life_s; /* seconds: life of a redirect's target that tells none */
};

struct rp_http_options {
    struct rp_http_timing timing;
    int max_redirects;
    bool allow_http;          /* the token may go over http to hosts that are not this one */
    bool allow_private_hosts; /* redirects may lead to private addresses */
    const char *ca_file;      /* NULL: the system's */
    const char *proxy;        /* NULL: none; the environment is not read */
    const char *no_proxy;     /* hosts without proxy, by commas; NULL: none */
    const char *user_agent;   /* NULL: none */
    const char *token_origin; /* URL whose scheme, host and port alone ever get the token */
    const char *token;        /* NULL: none; bytes 0x21..0x7e */
    /* Folder (made at need, 0700) in which the processes of this user share where redirects lead;
     * used for reads of files whose size is given. NULL: none. */
    const char *url_cache;
    /* S3. Requests to exactly this URL's scheme, host and port carry If-Match where the ETag is
     * known and, with keys, a signature (Signature Version 4). NULL: no such origin. */
    const char *s3_origin;
    const char *s3_access_key, *s3_secret_key; /* both or none (anonymous) */
    const char *s3_session_token;              /* NULL: none */
    const char *s3_region;                     /* NULL: us-east-1; a server may correct it */
};

/* What is known of a file. */
struct rp_http_file {
    const char *url;
    int64_t size;              /* -1: whatever the first answer tells, from then on that */
    const char *etag;          /* strong ETag without quotes, or X-Linked-ETag; NULL: as size */
    const char *last_modified; /* counts where there is no ETag; NULL: as size */
    bool whole;                /* the server knows no ranges: reads are of the whole file */
};

/* What a hub says of a file beside its bytes; "" and -1 where it does not. */
struct rp_http_link {
    char repo_commit[64];              /* X-Repo-Commit */
    char xet_hash[80];                 /* X-Xet-Hash */
    char linked_etag[RP_HTTP_VERSION]; /* X-Linked-ETag, bare */
    int64_t linked_size;               /* X-Linked-Size */
};

struct rp_http_info {
    int64_t size;
    char etag[RP_HTTP_VERSION], last_modified[RP_HTTP_VERSION]; /* "" where there is none */
    bool accepts_ranges;
    struct rp_http_link link;
};

/* A body whose size is not known before, and the headers that lists of files need ("": absent). */
struct rp_http_page {
    uint8_t *data; /* the caller's (rp_free); NULL where len is 0 */
    int64_t len;
    char etag[RP_HTTP_VERSION];
    char date[64], repo_commit[64], bucket_region[64];
    char link[8192]; /* Link; several by ", " */
};

/* Asked at least every 200 ms while a call waits, on the calling thread, with nothing held; true
 * ends the call with RP_E_CLOSED. NULL instead of a watch: never asked. */
struct rp_http_watch {
    bool (*ended)(void *cookie);
    void *cookie;
};

/* Since the client was made. */
struct rp_http_stats {
    int64_t requests, connections, bytes;
    int64_t resolves;   /* first requests of files, and those after a redirect's target ran out */
    int64_t retries[8]; /* by row of docs/http.md: [0] R1 ... [7] R8 */
    int64_t gate_ns;    /* waited since a server asked for it */
    int64_t down_ns;    /* waited for an origin that is down */
    int64_t backoff_ns; /* waited between tries */
    int64_t hedges;     /* second requests of ranges that were late */
    int64_t resolves_cached;   /* redirects' targets that other processes had found */
    int64_t url_cache_errors;  /* times that the shared folder could not be used */
    int64_t leases_waited_out; /* files resolved while another process was at it, for too long */
    int64_t targets_expired;   /* redirects' targets that ran out: resolved again at the next use */
};

/* The defaults: 600 s without a new byte, 10 s to connect, 4 KiB/s over 20 s, back-off from 0.25 to
 * 15 s, 5 redirects. Thread: any. Blocks: never. */
void rp_http_defaults(struct rp_http_options *options);

/* Make a client; options are copied, nothing is started. Owner: *out is the caller's. Thread: any.
 * Blocks: never. Errors: RP_E_ARG an option cannot be honoured; RP_E_NOMEM. */
RP_CHECKED rp_status rp_http_client_new(const struct rp_http_options *options, rp_http_client **out,
                                        struct rp_error *err);

/* Size, version and whether ranges are served. Owner: *out and file are the caller's. Thread: any.
 * Blocks: on the network. Errors: as rp_http_read; RP_E_HTTP the server tells no size. */
RP_CHECKED rp_status rp_http_size(rp_http_client *client, const struct rp_http_file *file,
                                  const struct rp_http_watch *watch, struct rp_http_info *out,
                                  struct rp_error *err);

/* Read exactly len bytes at offset into to; on failure `to` holds nothing of meaning. Broken
 * transfers go on at the last good byte, without a count of tries, until timing.network has passed
 * without a new byte.
 * Owner: all arguments are the caller's; file is borrowed for the call. Thread: any, many at once.
 * Blocks: on the network, in other processes' fork never. err->file is the URL without its query.
 * Errors: RP_E_NOT_FOUND 404, 410; RP_E_AUTH 401, 403, or a signed URL refused three times in a
 * row; RP_E_CHANGED three answers in a row of another size or version; RP_E_TIMEOUT; RP_E_HTTP
 * any other answer, a certificate that cannot be verified, a redirect against the rules;
 * RP_E_CLOSED interrupted, or a client of a parent process; RP_E_NOMEM; RP_E_ARG a range outside
 * of the file. err->sys is the HTTP status. */
RP_CHECKED rp_status rp_http_read(rp_http_client *client, const struct rp_http_file *file,
                                  int64_t offset, int64_t len, uint8_t *to,
                                  const struct rp_http_watch *watch, struct rp_error *err);

/* The whole body behind a URL, at most `limit` bytes of it: lists in JSON and XML. Nothing is
 * pinned or remembered; a broken transfer begins again.
 * Owner: *out and its data are the caller's; data is NULL on failure. Thread: any, many at once.
 * Blocks: on the network. Errors: as rp_http_read; RP_E_HTTP the body is larger than limit. */
RP_CHECKED rp_status rp_http_get(rp_http_client *client, const char *url, int64_t limit,
                                 const struct rp_http_watch *watch, struct rp_http_page *out,
                                 struct rp_error *err);

/* End every call under way and to come with RP_E_CLOSED, within a second. Thread: any. Blocks:
 * never. */
void rp_http_interrupt(rp_http_client *client);

/* What was done so far. Thread: any. Blocks: never. */
void rp_http_stats(const rp_http_client *client, struct rp_http_stats *out);

/* Fork generation that the client belongs to. Thread: any. Blocks: never. */
uint64_t rp_http_generation(const rp_http_client *client);

/* In a forked child: close the connections inherited from the parent, leave the rest of its client
 * alone, and put a new one with the same options in its place. Owner: *client stays the caller's;
 * on failure it is NULL. Thread: one. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_http_client_renew(rp_http_client **client, struct rp_error *err);

/* Close the connections, wipe the secrets, free, null. NULL or pointer to NULL: nothing; a parent's
 * client: its descriptors are closed, the rest is left alone. No call is under way. Thread: any.
 * Blocks: never. */
void rp_http_client_free(rp_http_client **client);

#endif
