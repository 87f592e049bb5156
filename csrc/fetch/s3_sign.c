#include "fetch/s3_sign.h"

#include "base/memory.h"
#include "base/sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCOPE_MAX (RP_S3_KEY_MAX + 32)

static void add(struct rp_sha256 *sum, const char *text)
{
    rp_sha256_add(sum, text, strlen(text));
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    char low = (char)(c | 0x20);
    return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

static bool is_unreserved(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
           c == '.' || c == '_' || c == '~';
}

/* One byte of text, encoded or not, at from[*at], which moves on. */
static unsigned char next_byte(const char *from, size_t len, size_t *at)
{
    size_t i = *at;
    if (from[i] == '%' && len - i > 2 && digit_of(from[i + 1]) >= 0 && digit_of(from[i + 2]) >= 0) {
        *at = i + 3;
        return (unsigned char)(digit_of(from[i + 1]) * 16 + digit_of(from[i + 2]));
    }
    *at = i + 1;
    return (unsigned char)from[i];
}

/* Encode one byte; number of bytes written, at most 3. */
static size_t encode(unsigned char c, char *out)
{
    static const char digits[] = "0123456789ABCDEF";
    if (is_unreserved(c)) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = '%';
    out[1] = digits[c >> 4];
    out[2] = digits[c & 15];
    return 3;
}

static void add_path(struct rp_sha256 *sum, const struct rp_url *url)
{
    if (url->path_len == 0) {
        add(sum, "/");
    }
    for (size_t at = 0; at < url->path_len;) {
        char text[3];
        if (url->path[at] == '/') {
            rp_sha256_add(sum, "/", 1);
            at++;
            continue;
        }
        size_t n = encode(next_byte(url->path, url->path_len, &at), text);
        rp_sha256_add(sum, text, n);
    }
}

/* A parameter of the query, encoded. */
struct parameter {
    const char *name, *value;
    size_t name_len, value_len;
};

static int compare_texts(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order != 0 ? order : (a_len > b_len) - (a_len < b_len);
}

static int compare(const void *left, const void *right)
{
    const struct parameter *a = left, *b = right;
    int order = compare_texts(a->name, a->name_len, b->name, b->name_len);
    return order != 0 ? order : compare_texts(a->value, a->value_len, b->value, b->value_len);
}

/* Encode the parameter of `len` bytes at `from` to *out, which moves on. */
static void encode_parameter(const char *from, size_t len, char **out, struct parameter *to)
{
    *to = (struct parameter){.name = *out, .value = *out};
    bool in_value = false;
    for (size_t at = 0; at < len;) {
        if (from[at] == '=' && !in_value) {
            in_value = true;
            to->value = *out;
            at++;
            continue;
        }
        bool plus = from[at] == '+';
        unsigned char c = next_byte(from, len, &at);
        size_t n = encode(plus ? ' ' : c, *out);
        *out += n;
        if (in_value) {
            to->value_len += n;
        }
        else {
            to->name_len += n;
        }
    }
}

static rp_status add_query(struct rp_sha256 *sum, const struct rp_url *url, struct rp_error *err)
{
    struct parameter all[RP_S3_PARAMETERS];
    size_t n = 0;
    char *text = rp_calloc(url->query_len + 1, 3), *out = text;
    if (text == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a signature");
    }
    for (size_t at = 0; at < url->query_len && n < RP_S3_PARAMETERS;) {
        size_t len = 0;
        while (at + len < url->query_len && url->query[at + len] != '&') {
            len++;
        }
        if (len > 0) {
            encode_parameter(url->query + at, len, &out, &all[n++]);
        }
        at += len + 1;
    }
    qsort(all, n, sizeof(all[0]), compare);
    for (size_t i = 0; i < n; i++) {
        add(sum, i > 0 ? "&" : "");
        rp_sha256_add(sum, all[i].name, all[i].name_len);
        add(sum, "=");
        rp_sha256_add(sum, all[i].value, all[i].value_len);
    }
    rp_free(text);
    if (n == RP_S3_PARAMETERS) {
        RP_FAIL(err, RP_E_ARG, "a query of %d parameters or more cannot be signed",
                RP_S3_PARAMETERS);
    }
    return RP_OK;
}

/* As the Host header has it: with the port that is not the scheme's own. */
static void add_host(struct rp_sha256 *sum, const struct rp_url *url)
{
    add(sum, url->bracketed ? "[" : "");
    rp_sha256_add(sum, url->host, url->host_len);
    add(sum, url->bracketed ? "]" : "");
    if (url->port != (url->https ? 443 : 80)) {
        char port[16];
        (void)snprintf(port, sizeof(port), ":%d", url->port);
        add(sum, port);
    }
}

/* SHA-256 of the canonical request, in hex. */
static rp_status canonical(const struct rp_s3_key *key, const struct rp_url *url, const char *date,
                           const char *names, char *hex, struct rp_error *err)
{
    struct rp_sha256 sum;
    uint8_t digest[RP_SHA256_BYTES];
    rp_sha256_begin(&sum);
    add(&sum, "GET\n");
    add_path(&sum, url);
    add(&sum, "\n");
    RP_TRY(add_query(&sum, url, err));
    add(&sum, "\nhost:");
    add_host(&sum, url);
    add(&sum, "\nx-amz-content-sha256:" RP_S3_EMPTY_BODY "\nx-amz-date:");
    add(&sum, date);
    if (key->session != NULL) {
        add(&sum, "\nx-amz-security-token:");
        add(&sum, key->session);
    }
    add(&sum, "\n\n");
    add(&sum, names);
    add(&sum, "\n" RP_S3_EMPTY_BODY);
    rp_sha256_end(&sum, digest);
    rp_sha256_hex(digest, hex);
    return RP_OK;
}

/* The signature of the string to sign, in hex. */
static void seal(const struct rp_s3_key *key, const char *day, const char *text, char *hex)
{
    char secret[RP_S3_KEY_MAX + 8];
    uint8_t k[RP_SHA256_BYTES];
    int n = snprintf(secret, sizeof(secret), "AWS4%s", key->secret);
    rp_hmac_sha256(secret, (size_t)n, day, strlen(day), k);
    rp_hmac_sha256(k, sizeof(k), key->region, strlen(key->region), k);
    rp_hmac_sha256(k, sizeof(k), "s3", 2, k);
    rp_hmac_sha256(k, sizeof(k), "aws4_request", 12, k);
    rp_hmac_sha256(k, sizeof(k), text, strlen(text), k);
    rp_sha256_hex(k, hex);
    explicit_bzero(secret, sizeof(secret));
    explicit_bzero(k, sizeof(k));
}

static bool is_long(const char *text)
{
    return strlen(text) >= RP_S3_KEY_MAX;
}

rp_status rp_s3_sign(const struct rp_s3_key *key, const struct rp_url *url, int64_t now_s,
                     struct rp_s3_signature *out, struct rp_error *err)
{
    struct tm tm;
    time_t now = (time_t)now_s;
    if (is_long(key->access) || is_long(key->secret) || is_long(key->region)) {
        RP_FAIL(err, RP_E_ARG, "an S3 key or region of %d bytes or more", RP_S3_KEY_MAX);
    }
    if (now_s < 0 || now_s > INT64_C(253402300799) || gmtime_r(&now, &tm) == NULL) {
        RP_FAIL(err, RP_E_ARG, "a time that no signature can have");
    }
    const char *names = key->session != NULL
                            ? "host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
                            : "host;x-amz-content-sha256;x-amz-date";
    char date[20], day[12], hex[RP_SHA256_HEX], scope[SCOPE_MAX], text[SCOPE_MAX + 128];
    (void)strftime(date, sizeof(date), "%Y%m%dT%H%M%SZ", &tm); /* 16 bytes in these years */
    (void)strftime(day, sizeof(day), "%Y%m%d", &tm);
    RP_TRY(canonical(key, url, date, names, hex, err));
    (void)snprintf(scope, sizeof(scope), "%s/%s/s3/aws4_request", day, key->region);
    (void)snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, hex);
    seal(key, day, text, hex);
    (void)snprintf(out->date, sizeof(out->date), "x-amz-date: %s", date);
    (void)snprintf(out->authorization, sizeof(out->authorization),
                   "Authorization: AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%s",
                   key->access, scope, names, hex);
    return RP_OK;
}

void rp_s3_error_code(const char *body, size_t len, char *out, size_t room)
{
    static const char tag[] = "<Code>";
    const char *at = len > 0 ? memmem(body, len, tag, sizeof(tag) - 1) : NULL;
    size_t n = 0, left = at != NULL ? len - (size_t)(at - body) - (sizeof(tag) - 1) : 0;
    at = at != NULL ? at + sizeof(tag) - 1 : body;
    while (n < left && n < room && is_unreserved((unsigned char)at[n])) {
        n++;
    }
    bool sound = n < left && n < room && at[n] == '<';
    memcpy(out, at, sound ? n : 0);
    out[sound ? n : 0] = '\0';
}
