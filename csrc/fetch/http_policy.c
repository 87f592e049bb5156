#include "fetch/http_priv.h"

#include <string.h>

#define IN_A_ROW 3 /* answers against the rules that end a call */

static bool is_known(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* Of another version than the one known: the ETag decides, without one the date. */
static bool is_changed(const struct rp_http_head *head, const struct rp_http_wish *wish)
{
    if (is_known(wish->etag)) {
        return strcmp(head->etag, wish->etag) != 0;
    }
    return is_known(wish->last_modified) && strcmp(head->last_modified, wish->last_modified) != 0;
}

static enum rp_http_row odd(const char **why, const char *text)
{
    *why = text;
    return RP_ROW_ODD;
}

static enum rp_http_row changed(const char **why, const char *text)
{
    *why = text;
    return RP_ROW_CHANGED;
}

/* What no answer with a body may be. */
static const char *disguise(const struct rp_http_head *head)
{
    if (head->conflict) {
        return "contradictory or malformed headers";
    }
    if (head->encoded) {
        return "an encoded body, which was not asked for";
    }
    return head->html ? "an HTML page instead of the file" : NULL;
}

static enum rp_http_row judge_whole(const struct rp_http_head *head,
                                    const struct rp_http_wish *wish, const char **why)
{
    if (!wish->probe && !wish->whole) {
        return odd(why, "the whole file instead of a range");
    }
    if (head->content_length < 0) {
        return odd(why, "no size");
    }
    if (wish->size >= 0 && head->content_length != wish->size) {
        return changed(why, "another size");
    }
    return is_changed(head, wish) ? changed(why, "another version") : RP_ROW_GOOD;
}

static enum rp_http_row judge_part(const struct rp_http_head *head, const struct rp_http_wish *wish,
                                   const char **why)
{
    if (wish->whole) {
        return odd(why, "a range instead of the whole file");
    }
    if (!head->has_range || head->total < 0) {
        return odd(why, "no Content-Range");
    }
    if (wish->size >= 0 && head->total != wish->size) {
        return changed(why, "another size");
    }
    if (head->first != wish->first || head->last > wish->last) {
        return odd(why, "another range than asked for");
    }
    if (head->content_length >= 0 && head->content_length != head->last - head->first + 1) {
        return odd(why, "a length that is not the range's");
    }
    if (is_changed(head, wish)) {
        return changed(why, "another version");
    }
    return head->last < wish->last ? RP_ROW_SHORT : RP_ROW_GOOD;
}

/* A body of unknown size. */
static enum rp_http_row judge_page(const struct rp_http_head *head, const struct rp_http_wish *wish,
                                   const char **why)
{
    if (head->status != 200) {
        return odd(why, "a range instead of the whole body");
    }
    if (head->links_lost) {
        return odd(why, "a Link header that is too long");
    }
    *why = head->content_length > wish->limit ? RP_HTTP_TOO_LARGE : "";
    return head->content_length > wish->limit ? RP_ROW_FATAL : RP_ROW_GOOD;
}

static bool is_busy(int status)
{
    return status == 408 || status == 425 || status == 500 || (status >= 502 && status <= 504) ||
           (status >= 520 && status <= 524);
}

static bool is_redirect(int status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

static enum rp_http_row judge_refusal(int status, bool foreign, const char **why)
{
    switch (status) {
    case 401:
    case 403: *why = "access refused"; return foreign ? RP_ROW_REFUSED : RP_ROW_DENIED;
    case 404:
    case 410: *why = "no such file"; return foreign ? RP_ROW_REFUSED : RP_ROW_DENIED;
    case 400: *why = "bad request"; return foreign ? RP_ROW_REFUSED : RP_ROW_FATAL;
    case 412:
    case 416: return changed(why, "no such range or version");
    default: *why = "unexpected status"; return RP_ROW_FATAL;
    }
}

static enum rp_http_row judge_body(const struct rp_http_head *head, const struct rp_http_wish *wish,
                                   const char **why)
{
    const char *wrong = disguise(head);
    if (wrong != NULL) {
        return odd(why, wrong);
    }
    if (wish->page) {
        return judge_page(head, wish, why);
    }
    return head->status == 200 ? judge_whole(head, wish, why) : judge_part(head, wish, why);
}

/* How an empty file answers a request for its first byte. */
static bool is_empty(const struct rp_http_head *head, const struct rp_http_wish *wish)
{
    return head->status == 416 && wish->probe && head->has_range && head->total == 0 &&
           !head->conflict;
}

enum rp_http_row rp_http_judge(const struct rp_http_head *head, const struct rp_http_wish *wish,
                               const char **why)
{
    int status = head->status;
    *why = "";
    if (status == 200 || status == 206) {
        return judge_body(head, wish, why);
    }
    if (is_empty(head, wish)) {
        return wish->size > 0 ? changed(why, "another size") : RP_ROW_GOOD;
    }
    if (is_redirect(status)) {
        *why = "a redirect without one target";
        return head->moved && !head->conflict ? RP_ROW_REDIRECT : RP_ROW_FATAL;
    }
    if (status == 429 || is_busy(status)) {
        *why = status == 429 ? "too many requests" : "the server is busy or out of order";
        return status == 429 || rp_http_head_wait(head) >= 0 ? RP_ROW_LIMITED : RP_ROW_BUSY;
    }
    return judge_refusal(status, wish->foreign, why);
}

enum rp_http_row rp_http_judge_end(enum rp_http_end end)
{
    switch (end) {
    case RP_HTTP_COMPLETE: return RP_ROW_GOOD;
    case RP_HTTP_MALFORMED: return RP_ROW_ODD;
    case RP_HTTP_UNDER_WAY:
    case RP_HTTP_BROKEN: return RP_ROW_NETWORK;
    case RP_HTTP_HEAD_LIMIT:
    case RP_HTTP_BODY_LIMIT:
    case RP_HTTP_UNTRUSTED:
    case RP_HTTP_FORBIDDEN:
    case RP_HTTP_UNUSABLE:
    case RP_HTTP_NO_MEMORY: break;
    }
    return RP_ROW_FATAL;
}

/* uniform(0, bound) of 32 random bits. */
static int64_t jitter(int64_t bound, uint32_t random)
{
    return bound <= 0 ? 0 : (int64_t)(((unsigned __int128)(uint64_t)bound * random) >> 32);
}

static int64_t back_off(struct rp_http_tries *tries, const struct rp_http_timing *timing,
                        uint32_t random)
{
    int64_t bound = timing->backoff;
    for (int i = 0; i < tries->backoff && bound < timing->backoff_max; i++) {
        bound *= 2;
    }
    tries->backoff++;
    return jitter(bound < timing->backoff_max ? bound : timing->backoff_max, random);
}

static rp_status status_code(int status)
{
    switch (status) {
    case 404:
    case 410: return RP_E_NOT_FOUND;
    case 400:
    case 401:
    case 403: return RP_E_AUTH;
    default: return RP_E_HTTP;
    }
}

/* R2. A wait beyond the deadline ends the call at once: nothing would come of it. */
static void decide_limited(const struct rp_http_seen *seen, const struct rp_http_timing *timing,
                           uint32_t random, struct rp_http_verdict *out)
{
    int64_t asked = seen->wait_s < INT32_MAX ? seen->wait_s * 1000 : (int64_t)INT32_MAX * 1000;
    out->gate_ms = asked + timing->gate_margin + jitter(timing->gate_jitter, random);
    if (asked > seen->left) {
        out->code = RP_E_TIMEOUT;
        out->too_long = true;
    }
}

void rp_http_decide(const struct rp_http_seen *seen, struct rp_http_tries *tries,
                    const struct rp_http_timing *timing, uint64_t random,
                    struct rp_http_verdict *out)
{
    *out = (struct rp_http_verdict){.code = RP_OK};
    uint32_t low = (uint32_t)random, high = (uint32_t)(random >> 32);
    switch (seen->row) {
    case RP_ROW_GOOD:
    case RP_ROW_REDIRECT:
    case RP_ROW_SIGN_AGAIN:
    case RP_ROW_SHORT: return;
    case RP_ROW_LIMITED:
        if (seen->wait_s >= 0) {
            decide_limited(seen, timing, high, out);
            return;
        }
        break;
    case RP_ROW_BUSY: out->origin_weak = true; break;
    case RP_ROW_NETWORK:
        out->reconnect = true;
        out->origin_weak = true;
        break;
    case RP_ROW_REFUSED:
        out->resolve = true;
        tries->refused += seen->fresh ? 1 : 0;
        if (tries->refused >= IN_A_ROW) {
            out->code = status_code(seen->status);
        }
        break;
    case RP_ROW_ODD:
        out->resolve = true;
        out->reconnect = true;
        out->code = ++tries->odd >= IN_A_ROW ? RP_E_HTTP : RP_OK;
        break;
    case RP_ROW_CHANGED:
        out->resolve = true;
        out->code = ++tries->changed >= IN_A_ROW ? RP_E_CHANGED : RP_OK;
        break;
    case RP_ROW_DENIED:
    case RP_ROW_FATAL:
        out->code = seen->row == RP_ROW_DENIED ? status_code(seen->status) : RP_E_HTTP;
        break;
    }
    out->wait_ms = out->code == RP_OK ? back_off(tries, timing, low) : 0;
}
