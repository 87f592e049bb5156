/* URLs of http and https as text: parsing, origins, the rules of redirects, addresses. Nothing here
 * looks a name up, opens a socket or reads the environment. */
#ifndef RP_FETCH_URL_H
#define RP_FETCH_URL_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_URL_MAX    16384 /* bytes of a URL, the terminator not counted */
#define RP_ORIGIN_MAX 272   /* bytes of "https://HOST:PORT" and its terminator */

/* A parsed URL; the pointers look into its text. */
struct rp_url {
    bool https;
    bool bracketed; /* the host is an IPv6 literal, without its brackets */
    int port;       /* 1..65535, the scheme's own where none is written */
    const char *host, *path;
    const char *query; /* after the question mark; NULL where there is none */
    size_t host_len, path_len, query_len;
};

/* Parse an absolute http or https URL. Refused: other schemes, user names, fragments, backslashes,
 * bytes that are not 0x21..0x7e, ports out of range, more than RP_URL_MAX bytes.
 * Owner: *url borrows text. Thread: any. Blocks: never. Errors: RP_E_HTTP, without secrets. */
RP_CHECKED rp_status rp_url_parse(const char *text, struct rp_url *url, struct rp_error *err);

/* Whether scheme, host (without case) and port agree. Thread: any. Blocks: never. */
bool rp_url_same_origin(const struct rp_url *a, const struct rp_url *b);

/* "https://host:port" in lower case, the port always written. Owner: out holds RP_ORIGIN_MAX
 * bytes. Thread: any. Blocks: never. */
void rp_url_origin(const struct rp_url *url, char *out);

/* What may be shown of any text that should be a URL: no user name, query, fragment or byte that
 * is not printable; cut to room - 1 bytes. Thread: any. Blocks: never. */
void rp_url_redact(const char *text, char *out, size_t room);

/* Where an answer of `from` (a URL that parses) with this Location leads. Relative references are
 * resolved, the fragment is cut off, bytes above 0x7e and spaces are percent-encoded.
 * Owner: out holds RP_URL_MAX + 1 bytes. Thread: any. Blocks: never. Errors: RP_E_HTTP no URL that
 * rp_url_parse takes, or https would lead to http. */
RP_CHECKED rp_status rp_url_redirect(const char *from, const char *location, char *out,
                                     struct rp_error *err);

/* When a signed URL stops being valid, in seconds since 1970: `Expires=`, else `X-Amz-Date=` plus
 * `X-Amz-Expires=`; -1 where the query tells nothing. Thread: any. Blocks: never. */
int64_t rp_url_expiry(const struct rp_url *url);

enum rp_address {
    RP_ADDRESS_PUBLIC = 0,
    RP_ADDRESS_PRIVATE, /* loopback, private, unique-local, carrier-grade NAT */
    RP_ADDRESS_NEVER    /* link-local, unspecified, multicast, reserved: no server of data */
};

/* Kind of an IPv4 (len 4) or IPv6 (len 16) address in network order; IPv4 inside IPv6 counts as
 * IPv4. Thread: any. Blocks: never. */
enum rp_address rp_address_kind(const uint8_t *bytes, size_t len);

/* Seconds since 1970 of a date in UTC; -1 for one that does not exist. Thread: any. Blocks:
 * never. */
int64_t rp_utc_seconds(int year, int month, int day, int hour, int minute, int second);

#endif
