#include "fetch/url.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_alpha(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_host_char(char c, bool bracketed)
{
    if (bracketed) {
        return is_digit(c) || c == ':' || c == '.' || (c >= 'a' && c <= 'f') ||
               (c >= 'A' && c <= 'F');
    }
    return is_digit(c) || is_alpha(c) || c == '-' || c == '.' || c == '_';
}

/* "", or ":PORT". */
static bool parse_port(const char *at, size_t len, struct rp_url *url)
{
    url->port = url->https ? 443 : 80;
    if (len == 0) {
        return true;
    }
    if (at[0] != ':' || len < 2 || len > 6) {
        return false;
    }
    url->port = 0;
    for (size_t i = 1; i < len; i++) {
        if (!is_digit(at[i])) {
            return false;
        }
        url->port = url->port * 10 + (at[i] - '0');
    }
    return url->port >= 1 && url->port <= 65535;
}

/* "HOST", "HOST:PORT", "[V6]:PORT" of `len` bytes. */
static bool parse_authority(const char *at, size_t len, struct rp_url *url)
{
    url->bracketed = len > 0 && at[0] == '[';
    size_t i = url->bracketed ? 1 : 0;
    url->host = at + i;
    while (i < len && is_host_char(at[i], url->bracketed)) {
        i++;
    }
    url->host_len = (size_t)(at + i - url->host);
    if (url->host_len == 0 || url->host_len > 253) {
        return false;
    }
    if (url->bracketed && (i == len || at[i++] != ']')) {
        return false;
    }
    return parse_port(at + i, len - i, url);
}

/* Why text is no URL for us, or NULL. */
static const char *parse(const char *text, struct rp_url *url)
{
    size_t len = strnlen(text, RP_URL_MAX + 1);
    if (len > RP_URL_MAX) {
        return "longer than 16 KiB";
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] < 0x21 || text[i] > 0x7e || text[i] == '\\') {
            return "holds a byte that no URL may hold";
        }
    }
    if (strchr(text, '#') != NULL) {
        return "has a fragment";
    }
    memset(url, 0, sizeof(*url));
    url->https = strncasecmp(text, "https://", 8) == 0;
    if (!url->https && strncasecmp(text, "http://", 7) != 0) {
        return "is neither http nor https";
    }
    const char *authority = text + (url->https ? 8 : 7);
    size_t span = strcspn(authority, "/?");
    if (memchr(authority, '@', span) != NULL) {
        return "has a user name";
    }
    if (!parse_authority(authority, span, url)) {
        return "has a malformed host or port";
    }
    url->path = authority + span;
    url->path_len = strcspn(url->path, "?");
    if (url->path[url->path_len] == '?') {
        url->query = url->path + url->path_len + 1;
        url->query_len = strlen(url->query);
    }
    return NULL;
}

rp_status rp_url_parse(const char *text, struct rp_url *url, struct rp_error *err)
{
    const char *why = parse(text, url);
    if (why != NULL) {
        char shown[160];
        rp_url_redact(text, shown, sizeof(shown));
        RP_FAIL(err, RP_E_HTTP, "the URL %s: %s", why, shown);
    }
    return RP_OK;
}

bool rp_url_same_origin(const struct rp_url *a, const struct rp_url *b)
{
    return a->https == b->https && a->port == b->port && a->host_len == b->host_len &&
           strncasecmp(a->host, b->host, a->host_len) == 0;
}

void rp_url_origin(const struct rp_url *url, char *out)
{
    (void)snprintf(out, RP_ORIGIN_MAX, "%s://%s%.*s%s:%d", url->https ? "https" : "http",
                   url->bracketed ? "[" : "", (int)url->host_len, url->host,
                   url->bracketed ? "]" : "", url->port); /* a host has at most 253 bytes */
    for (char *c = out; *c != '\0'; c++) {
        if (*c >= 'A' && *c <= 'Z') {
            *c = (char)(*c + 'a' - 'A');
        }
    }
}

void rp_url_redact(const char *text, char *out, size_t room)
{
    size_t end = strcspn(text, "?#");
    const char *start = strstr(text, "://");
    const char *authority = start != NULL && start < text + end ? start + 3 : text;
    size_t authority_len = strcspn(authority, "/?#\\");
    const char *user = NULL; /* the last '@' of the authority */
    for (size_t i = 0; i < authority_len; i++) {
        if (authority[i] == '@') {
            user = authority + i;
        }
    }
    size_t used = 0;
    for (size_t i = 0; i < end && used + 1 < room; i++) {
        const char *c = text + i;
        if (user != NULL && c >= authority && c <= user) {
            continue;
        }
        out[used++] = *c >= 0x20 && *c <= 0x7e ? *c : '?';
    }
    out[used] = '\0';
}

/* A text in the making; `full` once it did not fit. */
struct joint {
    char *out;
    size_t len;
    bool full, control;
};

static void put(struct joint *joint, const char *from, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)from[i];
        bool encode = c == ' ' || c > 0x7e;
        joint->control |= c < 0x20 || c == 0x7f;
        if (joint->len + (encode ? 3 : 1) > RP_URL_MAX) {
            joint->full = true;
            return;
        }
        if (encode) {
            (void)snprintf(joint->out + joint->len, 4, "%%%02X", c); /* room was looked at */
            joint->len += 3;
        }
        else {
            joint->out[joint->len++] = (char)c;
        }
    }
}

/* RFC 3986 5.2.4: resolve "." and ".." segments of the path that begins at out[from]. */
static void remove_dots(struct joint *joint, size_t from)
{
    char *out = joint->out + from;
    size_t len = joint->len - from, path = 0, to = 0;
    while (path < len && out[path] != '?') {
        path++;
    }
    for (size_t at = 0; at < path;) { /* out[at] is the '/' before a segment */
        size_t end = at + 1;
        while (end < path && out[end] != '/') {
            end++;
        }
        size_t n = end - at - 1;
        bool one = n == 1 && out[at + 1] == '.';
        bool two = n == 2 && out[at + 1] == '.' && out[at + 2] == '.';
        if (two) {
            while (to > 0 && out[--to] != '/') {
            }
        }
        if (!one && !two) {
            memmove(out + to, out + at, end - at);
            to += end - at;
        }
        else if (end == path) {
            out[to++] = '/'; /* "a/.." names the folder */
        }
        at = end;
    }
    memmove(out + to, out + path, len - path);
    joint->len = from + to + len - path;
}

static bool has_scheme(const char *text)
{
    size_t n = 0;
    while (is_alpha(text[n]) || (n > 0 && (is_digit(text[n]) || strchr("+-.", text[n]) != NULL))) {
        if (text[n] == '\0') {
            return false;
        }
        n++;
    }
    return n > 0 && text[n] == ':';
}

/* RFC 3986 5.2.2 for a reference without scheme and host. */
static void join_path(const struct rp_url *base, const char *location, size_t len,
                      struct joint *joint)
{
    if (location[0] == '/') {
        put(joint, location, len);
        return;
    }
    size_t kept = base->path_len;
    if (len > 0 && location[0] != '?') {
        while (kept > 0 && base->path[kept - 1] != '/') {
            kept--; /* the folder */
        }
        put(joint, "/", kept == 0 ? 1 : 0);
    }
    put(joint, base->path, kept);
    if (len == 0 && base->query != NULL) {
        put(joint, base->query - 1, base->query_len + 1);
    }
    put(joint, location, len);
}

/* RFC 3986 5.2.2; out ends with a zero. */
static void join(const struct rp_url *base, const char *from, const char *location,
                 struct joint *joint)
{
    size_t len = strcspn(location, "#");
    if (has_scheme(location)) {
        put(joint, location, len);
    }
    else if (location[0] == '/' && location[1] == '/') {
        put(joint, from, base->https ? 6 : 5); /* "https:" */
        put(joint, location, len);
    }
    else {
        put(joint, from, (size_t)(base->path - from));
        size_t path = joint->len;
        join_path(base, location, len, joint);
        if (!joint->full && joint->len > path && joint->out[path] == '/') {
            remove_dots(joint, path);
        }
    }
    joint->out[joint->len] = '\0';
}

rp_status rp_url_redirect(const char *from, const char *location, char *out, struct rp_error *err)
{
    struct rp_url base, target;
    RP_TRY(rp_url_parse(from, &base, err));
    struct joint joint = {.out = out};
    join(&base, from, location, &joint);
    if (joint.full || joint.control) {
        RP_FAIL(err, RP_E_HTTP, "a redirect's target %s",
                joint.full ? "is longer than 16 KiB" : "holds a control byte");
    }
    rp_status status = rp_url_parse(out, &target, err);
    if (status == RP_OK && base.https && !target.https) {
        char shown[160];
        rp_url_redact(out, shown, sizeof(shown));
        RP_FAIL(err, RP_E_HTTP, "a redirect leads from https to http: %s", shown);
    }
    return status;
}

/* Value of a parameter of the query, or NULL. */
static const char *query_value(const struct rp_url *url, const char *name)
{
    size_t n = strlen(name);
    const char *at = url->query;
    const char *end = at != NULL ? at + url->query_len : NULL;
    while (at != NULL && at < end) {
        if ((size_t)(end - at) > n && strncasecmp(at, name, n) == 0 && at[n] == '=') {
            return at + n + 1;
        }
        const char *next = memchr(at, '&', (size_t)(end - at));
        at = next != NULL ? next + 1 : end;
    }
    return NULL;
}

/* Digits up to '&' or the end, at most 12; -1 otherwise. */
static int64_t number_of(const char *text)
{
    if (text == NULL) {
        return -1;
    }
    int64_t value = 0;
    int n = 0;
    for (; is_digit(text[n]) && n < 13; n++) {
        value = value * 10 + (text[n] - '0');
    }
    return n > 0 && n < 13 && (text[n] == '&' || text[n] == '\0') ? value : -1;
}

static int digits(const char *text, int n)
{
    int value = 0;
    for (int i = 0; i < n; i++) {
        value = value * 10 + (text[i] - '0');
    }
    return value;
}

static bool is_leap(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static bool is_outside(int value, int least, int most)
{
    return value < least || value > most;
}

int64_t rp_utc_seconds(int year, int month, int day, int hour, int minute, int second)
{
    static const int length[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (year < 1970 || year > 9999 || month < 1 || month > 12) {
        return -1;
    }
    int leap = is_leap(year) ? 1 : 0;
    int in_month = length[month - 1] + (month == 2 ? leap : 0);
    if (is_outside(day, 1, in_month) || is_outside(hour, 0, 23) || is_outside(minute, 0, 59) ||
        is_outside(second, 0, 60)) {
        return -1;
    }
    int64_t y = year - 1; /* whole years since year 1 */
    int64_t days = 365 * y + y / 4 - y / 100 + y / 400 - 719162;
    for (int m = 1; m < month; m++) {
        days += length[m - 1] + (m == 2 ? leap : 0);
    }
    return ((days + day - 1) * 24 + hour) * 3600 + minute * 60 + second;
}

/* "20260714T101500Z" to seconds since 1970. */
static int64_t basic_date(const char *text)
{
    static const char form[] = "ddddddddTddddddZ";
    for (int i = 0; text != NULL && i < 16; i++) {
        if (form[i] == 'd' ? !is_digit(text[i]) : text[i] != form[i]) {
            return -1;
        }
    }
    if (text == NULL) {
        return -1;
    }
    return rp_utc_seconds(digits(text, 4), digits(text + 4, 2), digits(text + 6, 2),
                          digits(text + 9, 2), digits(text + 11, 2), digits(text + 13, 2));
}

int64_t rp_url_expiry(const struct rp_url *url)
{
    int64_t at = number_of(query_value(url, "Expires"));
    if (at >= 0) {
        return at;
    }
    int64_t signed_at = basic_date(query_value(url, "X-Amz-Date"));
    int64_t life = number_of(query_value(url, "X-Amz-Expires"));
    return signed_at >= 0 && life >= 0 ? signed_at + life : -1;
}

/* Blocks of addresses by their first bits; the first that fits decides. */
struct block {
    uint8_t bytes[16];
    uint8_t bits;
    uint8_t kind;
};

static bool fits(const uint8_t *a, const struct block *block)
{
    int whole = block->bits / 8, rest = block->bits % 8;
    uint8_t mask = (uint8_t)(0xff00 >> rest);
    return memcmp(a, block->bytes, (size_t)whole) == 0 &&
           (rest == 0 || ((a[whole] ^ block->bytes[whole]) & mask) == 0);
}

static enum rp_address kind_of(const uint8_t *a, const struct block *block, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fits(a, &block[i])) {
            return (enum rp_address)block[i].kind;
        }
    }
    return RP_ADDRESS_PUBLIC;
}

static enum rp_address kind_of_v4(const uint8_t *a)
{
    static const struct block blocks[] = {{{0}, 8, RP_ADDRESS_NEVER},
                                          {{169, 254}, 16, RP_ADDRESS_NEVER},
                                          {{224}, 3, RP_ADDRESS_NEVER},
                                          {{127}, 8, RP_ADDRESS_PRIVATE},
                                          {{10}, 8, RP_ADDRESS_PRIVATE},
                                          {{172, 16}, 12, RP_ADDRESS_PRIVATE},
                                          {{192, 168}, 16, RP_ADDRESS_PRIVATE},
                                          {{100, 64}, 10, RP_ADDRESS_PRIVATE},
                                          {{192, 0, 0}, 24, RP_ADDRESS_PRIVATE},
                                          {{198, 18}, 15, RP_ADDRESS_PRIVATE}};
    return kind_of(a, blocks, sizeof(blocks) / sizeof(blocks[0]));
}

enum rp_address rp_address_kind(const uint8_t *a, size_t len)
{
    static const struct block carriers[] = {/* of an IPv4 address in their last four bytes */
                                            {{[10] = 0xff, 0xff}, 96, 0},
                                            {{0}, 96, 0},
                                            {{0, 0x64, 0xff, 0x9b}, 96, 0}};
    static const struct block blocks[] = {
        {{0}, 128, RP_ADDRESS_NEVER},         {{[15] = 1}, 128, RP_ADDRESS_PRIVATE},
        {{0xfc}, 7, RP_ADDRESS_PRIVATE},      {{0xfe, 0xc0}, 10, RP_ADDRESS_PRIVATE},
        {{0xfe, 0x80}, 10, RP_ADDRESS_NEVER}, {{0xff}, 8, RP_ADDRESS_NEVER}};
    static const struct block six_to_four = {{0x20, 0x02}, 16, 0};
    if (len == 4) {
        return kind_of_v4(a);
    }
    if (len != 16) {
        return RP_ADDRESS_NEVER;
    }
    enum rp_address kind = kind_of(a, blocks, sizeof(blocks) / sizeof(blocks[0]));
    if (kind != RP_ADDRESS_PUBLIC) {
        return kind;
    }
    for (size_t i = 0; i < sizeof(carriers) / sizeof(carriers[0]); i++) {
        if (fits(a, &carriers[i])) {
            return kind_of_v4(a + 12);
        }
    }
    return fits(a, &six_to_four) ? kind_of_v4(a + 2) : RP_ADDRESS_PUBLIC;
}
