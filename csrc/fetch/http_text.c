#include "fetch/http_text.h"

#include <string.h>
#include <strings.h>

struct text {
    const char *at;
    size_t len;
};

void rp_http_head_clear(struct rp_http_head *head)
{
    head->status = 0;
    head->lines = 0;
    head->bytes = 0;
    head->complete = head->conflict = head->encoded = head->html = false;
    head->has_range = head->moved = head->links_lost = false;
    head->content_length = head->first = head->last = head->total = -1;
    head->retry_after = head->retry_date = head->date = -1;
    head->rate_left = head->rate_reset = head->rate_quota = head->linked_size = -1;
    head->etag[0] = head->linked_etag[0] = head->last_modified[0] = '\0';
    head->request_id[0] = head->location[0] = head->link[0] = head->error_code[0] = '\0';
    head->xet_hash[0] = head->repo_commit[0] = head->bucket_region[0] = head->date_text[0] = '\0';
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static struct text trim(struct text text)
{
    while (text.len > 0 && is_space(text.at[0])) {
        text.at++;
        text.len--;
    }
    while (text.len > 0 && is_space(text.at[text.len - 1])) {
        text.len--;
    }
    return text;
}

/* Take the digits at the front; -1 where there are none or more than 18. */
static int64_t take_number(struct text *text)
{
    int64_t value = 0;
    size_t n = 0;
    while (n < text->len && n < 19 && is_digit(text->at[n])) {
        value = n < 18 ? value * 10 + (text->at[n] - '0') : -1;
        n++;
    }
    text->at += n;
    text->len -= n;
    return n == 0 || n > 18 ? -1 : value;
}

static int64_t whole_number(struct text text)
{
    int64_t value = take_number(&text);
    return text.len == 0 ? value : -1;
}

static bool take(struct text *text, char c)
{
    if (text->len == 0 || text->at[0] != c) {
        return false;
    }
    text->at++;
    text->len--;
    return true;
}

static bool equals(struct text text, const char *word)
{
    return text.len == strlen(word) && strncasecmp(text.at, word, text.len) == 0;
}

static bool starts(struct text text, const char *word)
{
    size_t n = strlen(word);
    return text.len >= n && strncasecmp(text.at, word, n) == 0;
}

/* Copy printable text; what does not fit is left out whole, since half of it would be another. */
static void copy(struct text text, char *out, size_t room)
{
    size_t used = 0;
    for (size_t i = 0; i < text.len && text.len < room; i++) {
        unsigned char c = (unsigned char)text.at[i];
        out[used++] = c >= 0x20 && c != 0x7f ? (char)c : '?';
    }
    out[used] = '\0';
}

/* An entity tag without its quotes and the mark of a weak one. */
static void copy_bare(struct text text, char *out, size_t room)
{
    if (starts(text, "W/")) {
        text.at += 2;
        text.len -= 2;
    }
    if (text.len >= 2 && text.at[0] == '"' && text.at[text.len - 1] == '"') {
        text.at++;
        text.len -= 2;
    }
    copy(text, out, room);
}

/* "bytes 0-99/1000", "bytes 0-99/" and a star, "bytes " star "/1000" (RFC 9110 14.4). */
static void parse_range(struct rp_http_head *head, struct text text)
{
    int64_t first = -1, last = -1, total = -1;
    bool sound = starts(text, "bytes ");
    if (sound) {
        text.at += 6;
        text.len -= 6;
        if (!take(&text, '*')) {
            first = take_number(&text);
            sound = take(&text, '-');
            last = take_number(&text);
            sound = sound && first >= 0 && last >= first;
        }
        sound = sound && take(&text, '/');
        if (!equals(text, "*")) {
            total = whole_number(text);
            sound = sound && total >= 0 && last < total;
        }
    }
    bool again =
        head->has_range && (head->first != first || head->last != last || head->total != total);
    head->conflict |= !sound || again;
    head->has_range = true;
    head->first = first;
    head->last = last;
    head->total = total;
}

int64_t rp_http_date(const char *text, size_t len)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    static const char form[] = "aaa, dd aaa dddd dd:dd:dd GMT"; /* RFC 9110 5.6.7 */
    if (len != sizeof(form) - 1) {
        return -1;
    }
    for (size_t i = 0; i < len; i++) {
        bool fits = form[i] == 'd'   ? is_digit(text[i])
                    : form[i] == 'a' ? (text[i] | 0x20) >= 'a' && (text[i] | 0x20) <= 'z'
                                     : text[i] == form[i];
        if (!fits) {
            return -1;
        }
    }
    int month = 0;
    while (month < 12 && strncasecmp(months + 3 * month, text + 8, 3) != 0) {
        month++;
    }
    static const unsigned char at[] = {5, 17, 20, 23};
    int value[4];
    for (int i = 0; i < 4; i++) {
        value[i] = (text[at[i]] - '0') * 10 + (text[at[i] + 1] - '0');
    }
    int year =
        (text[12] - '0') * 1000 + (text[13] - '0') * 100 + (text[14] - '0') * 10 + (text[15] - '0');
    return rp_utc_seconds(year, month + 1, value[0], value[1], value[2], value[3]);
}

/* Number after ";NAME=" in a list of parameters; the least one where a name comes often. */
static int64_t parameter(struct text text, char name)
{
    int64_t least = -1;
    for (size_t i = 1; i + 1 < text.len; i++) {
        bool before = text.at[i - 1] == ';' || text.at[i - 1] == ' ';
        if (before && (text.at[i] | 0x20) == name && text.at[i + 1] == '=') {
            struct text rest = {text.at + i + 2, text.len - i - 2};
            int64_t value = take_number(&rest);
            least = value >= 0 && (least < 0 || value < least) ? value : least;
        }
    }
    return least;
}

static void one_number(struct rp_http_head *head, struct text value, int64_t *to)
{
    int64_t number = whole_number(value);
    head->conflict |= number < 0 || (*to >= 0 && *to != number);
    *to = number;
}

static void parse_location(struct rp_http_head *head, struct text value)
{
    bool again = head->moved && (strlen(head->location) != value.len ||
                                 memcmp(head->location, value.at, value.len) != 0);
    bool fits = value.len <= RP_URL_MAX && memchr(value.at, '\0', value.len) == NULL;
    head->conflict |= again || !fits;
    head->moved = true;
    size_t len = fits ? value.len : 0;
    memcpy(head->location, value.at, len);
    head->location[len] = '\0';
}

static void parse_retry(struct rp_http_head *head, struct text value)
{
    head->retry_after = whole_number(value);
    head->retry_date = head->retry_after < 0 ? rp_http_date(value.at, value.len) : -1;
}

/* Add one to the links there are. */
static void add_link(struct rp_http_head *head, struct text value)
{
    size_t used = strlen(head->link);
    if (used + value.len + 3 > sizeof(head->link)) {
        head->links_lost = true;
        return;
    }
    if (used > 0) {
        memcpy(head->link + used, ", ", 2);
        used += 2;
    }
    copy(value, head->link + used, sizeof(head->link) - used);
}

enum field {
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    ETAG,
    LAST_MODIFIED,
    LOCATION,
    RETRY_AFTER,
    DATE,
    RATE_LIMIT,
    RATE_POLICY,
    LINKED_SIZE,
    LINKED_ETAG,
    XET_HASH,
    REQUEST_ID,
    AMZ_REQUEST_ID,
    REPO_COMMIT,
    BUCKET_REGION,
    ERROR_CODE,
    LINK,
    FIELDS
};

/* Headers that are names, as they stand. */
static void parse_name(struct rp_http_head *head, enum field field, struct text value)
{
    switch (field) {
    case REPO_COMMIT: copy(value, head->repo_commit, sizeof(head->repo_commit)); break;
    case BUCKET_REGION: copy(value, head->bucket_region, sizeof(head->bucket_region)); break;
    case ERROR_CODE: copy(value, head->error_code, sizeof(head->error_code)); break;
    case LINK: add_link(head, value); break;
    default: break;
    }
}

static void parse_field(struct rp_http_head *head, enum field field, struct text value)
{
    switch (field) {
    case CONTENT_LENGTH: one_number(head, value, &head->content_length); break;
    case CONTENT_RANGE: parse_range(head, value); break;
    case CONTENT_ENCODING: head->encoded |= !equals(value, "identity") && value.len > 0; break;
    case CONTENT_TYPE: head->html |= starts(value, "text/html"); break;
    case ETAG:
        if (!starts(value, "W/")) {
            copy_bare(value, head->etag, sizeof(head->etag));
        }
        break;
    case LAST_MODIFIED: copy(value, head->last_modified, sizeof(head->last_modified)); break;
    case LOCATION: parse_location(head, value); break;
    case RETRY_AFTER: parse_retry(head, value); break;
    case DATE:
        head->date = rp_http_date(value.at, value.len);
        copy(value, head->date_text, sizeof(head->date_text));
        break;
    case RATE_LIMIT:
        head->rate_left = parameter(value, 'r');
        head->rate_reset = parameter(value, 't');
        break;
    case RATE_POLICY: head->rate_quota = parameter(value, 'q'); break;
    case LINKED_SIZE: one_number(head, value, &head->linked_size); break;
    case LINKED_ETAG: copy_bare(value, head->linked_etag, sizeof(head->linked_etag)); break;
    case XET_HASH:
        copy_bare(value, head->xet_hash, sizeof(head->xet_hash));
        if (head->linked_etag[0] == '\0') {
            copy_bare(value, head->linked_etag, sizeof(head->linked_etag));
        }
        break;
    case REQUEST_ID:
    case AMZ_REQUEST_ID: copy(value, head->request_id, sizeof(head->request_id)); break;
    default: parse_name(head, field, value); break;
    }
}

static enum field field_of(struct text name)
{
    static const char *const names[FIELDS] = {
        "content-length",   "content-range", "content-encoding",    "content-type", "etag",
        "last-modified",    "location",      "retry-after",         "date",         "ratelimit",
        "ratelimit-policy", "x-linked-size", "x-linked-etag",       "x-xet-hash",   "x-request-id",
        "x-amz-request-id", "x-repo-commit", "x-amz-bucket-region", "x-error-code", "link"};
    int i = 0;
    while (i < FIELDS && !equals(name, names[i])) {
        i++;
    }
    return (enum field)i;
}

/* "HTTP/1.1 206 Partial Content" begins an answer: an interim one (1xx) came before it. */
static bool parse_status(struct rp_http_head *head, struct text line)
{
    if (!starts(line, "HTTP/")) {
        return false;
    }
    int lines = head->lines;
    size_t bytes = head->bytes; /* the limits hold for interim answers and the last one together */
    rp_http_head_clear(head);
    head->lines = lines;
    head->bytes = bytes;
    const char *space = memchr(line.at, ' ', line.len);
    if (space != NULL) {
        struct text rest = {space + 1, (size_t)(line.at + line.len - space) - 1};
        int64_t status = take_number(&rest);
        head->status = status >= 100 && status <= 999 ? (int)status : 0;
    }
    return true;
}

rp_status rp_http_head_line(struct rp_http_head *head, const char *at, size_t len)
{
    head->lines++;
    head->bytes += len;
    if (head->lines > RP_HEAD_LINES || head->bytes > RP_HEAD_BYTES) {
        return RP_E_HTTP;
    }
    struct text line = trim((struct text){at, len});
    if (line.len == 0) {
        head->complete = head->status >= 200;
        return RP_OK;
    }
    if (head->complete || parse_status(head, line)) {
        return RP_OK; /* trailers of a chunked body say nothing that counts */
    }
    const char *colon = memchr(line.at, ':', line.len);
    if (colon != NULL) {
        size_t name = (size_t)(colon - line.at);
        struct text value = trim((struct text){colon + 1, line.len - name - 1});
        parse_field(head, field_of((struct text){line.at, name}), value);
    }
    return RP_OK;
}

int64_t rp_http_head_wait(const struct rp_http_head *head)
{
    if (head->retry_after >= 0) {
        return head->retry_after;
    }
    if (head->retry_date >= 0 && head->date >= 0) {
        return head->retry_date > head->date ? head->retry_date - head->date : 0;
    }
    return head->rate_left == 0 ? head->rate_reset : -1;
}

int64_t rp_http_head_pace_ns(const struct rp_http_head *head)
{
    if (head->rate_left <= 0 || head->rate_reset <= 0 || head->rate_quota <= 0 ||
        head->rate_left >= head->rate_quota / 4) {
        return 0;
    }
    int64_t seconds = head->rate_reset < 3600 ? head->rate_reset : 3600;
    return seconds * 1000000000 / head->rate_left;
}
