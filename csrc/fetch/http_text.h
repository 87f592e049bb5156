/* Headers of an HTTP answer as facts: pure text, no socket, no clock. */
#ifndef RP_FETCH_HTTP_TEXT_H
#define RP_FETCH_HTTP_TEXT_H

#include "base/error.h"
#include "fetch/url.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_HEAD_LINES  128         /* of one answer */
#define RP_HEAD_BYTES  (64 * 1024) /* of one answer */
#define RP_VERSION_MAX 128         /* bytes of an ETag or date and its terminator */

/* What the headers of one answer say. Absent numbers are -1, absent texts "". */
struct rp_http_head {
    int status; /* of the status line, 0 before it */
    int lines;
    size_t bytes;
    bool complete; /* the empty line has come */
    bool conflict; /* two different values of a header that has one, or a length that is none */
    bool encoded;  /* Content-Encoding other than identity */
    bool html;     /* Content-Type text/html */
    bool has_range;
    bool moved;      /* Location was given */
    bool links_lost; /* more of them than `link` holds */
    int64_t content_length;
    int64_t first, last, total;                /* of Content-Range; with "*" for either part: -1 */
    int64_t retry_after;                       /* seconds; a date is taken relative to `date` */
    int64_t retry_date, date;                  /* seconds since 1970 */
    int64_t rate_left, rate_reset, rate_quota; /* RateLimit r, t (seconds); RateLimit-Policy q */
    int64_t linked_size;                       /* X-Linked-Size */
    char etag[RP_VERSION_MAX];                 /* strong ones only, without quotes */
    char linked_etag[RP_VERSION_MAX];          /* X-Linked-ETag or X-Xet-Hash, bare */
    char last_modified[RP_VERSION_MAX];
    char xet_hash[80], repo_commit[64], bucket_region[64]; /* X-Xet-Hash ... */
    char request_id[64], error_code[64];                   /* X-Error-Code */
    char date_text[64];
    char link[8192]; /* Link; several by ", " */
    char location[RP_URL_MAX + 1];
};

/* Forget all. Thread: any. Blocks: never. */
void rp_http_head_clear(struct rp_http_head *head);

/* Take one header line as it came, line end included; a status line begins a new answer.
 * Thread: one per head. Blocks: never. Errors: RP_E_HTTP more than RP_HEAD_LINES or
 * RP_HEAD_BYTES. */
RP_CHECKED rp_status rp_http_head_line(struct rp_http_head *head, const char *line, size_t len);

/* Seconds to wait that the answer asks for: Retry-After, else RateLimit's t where nothing is left;
 * -1 without either. Thread: any. Blocks: never. */
int64_t rp_http_head_wait(const struct rp_http_head *head);

/* Nanoseconds between requests that RateLimit asks for once less than a quarter of the quota is
 * left; 0: none. Thread: any. Blocks: never. */
int64_t rp_http_head_pace_ns(const struct rp_http_head *head);

/* Seconds since 1970 of "Tue, 14 Jul 2026 10:15:00 GMT"; -1 for anything else. Thread: any.
 * Blocks: never. */
int64_t rp_http_date(const char *text, size_t len);

#endif
