/* One call, in order: where are the file's bytes (locate), may that origin be asked (admit), one
 * exchange (ask), its redirects (follow), and what an answer that is not good means
 * (http_policy.c); again, until every byte is there or the verdict is an end. */
#include "fetch/http_call_priv.h"

#include "base/counters.h"
#include "base/memory.h"
#include "base/thread.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static rp_status fail(const struct rp_http_call *call, rp_status code)
{
    char shown[sizeof(((struct rp_error *)0)->file)];
    const char *again = call->requests == 1 ? "request" : "requests";
    if (code == RP_E_TIMEOUT && !call->asked_too_long) {
        (void)rp_error_set(call->err, code, "no new byte for %.1f s, %d %s; last: %s",
                           (double)call->timing->network / 1000, call->requests, again,
                           call->cause[0] != '\0' ? call->cause : "no answer yet");
    }
    else {
        (void)rp_error_set(call->err, code, "%s, %d %s", call->cause, call->requests, again);
    }
    if (call->err != NULL && call->last.status > 0) {
        call->err->sys = call->last.status;
    }
    rp_url_redact(call->file->url, shown, sizeof(shown));
    bool ranged = call->info == NULL && call->page == NULL;
    rp_error_at_file(call->err, shown, ranged ? call->offset + call->got : -1,
                     ranged ? call->len - call->got : -1);
    return code;
}

/* Whether the call may go on. */
rp_status rp_http_call_check(struct rp_http_call *call)
{
    int64_t now = rp_now_ns();
    bool ended = rp_http_client_ended(call->client);
    if (!ended && call->watch != NULL && now - call->watched_ns >= RP_HTTP_SLICE_MS * RP_MS) {
        call->watched_ns = now;
        ended = call->watch->ended(call->watch->cookie);
    }
    if (ended) {
        (void)snprintf(call->cause, sizeof(call->cause), "the client was closed while it read");
        return fail(call, RP_E_CLOSED);
    }
    if (now - call->last_new_ns >= call->timing->network * RP_MS) {
        return fail(call, RP_E_TIMEOUT);
    }
    return RP_OK;
}

static int64_t left_ns(const struct rp_http_call *call)
{
    return call->last_new_ns + call->timing->network * RP_MS - rp_now_ns();
}

static rp_status pause_until(struct rp_http_call *call, int64_t until_ns, int64_t *counter)
{
    int64_t start = rp_now_ns(), now = start;
    rp_status status = RP_OK;
    while (status == RP_OK && now < until_ns) {
        rp_http_client_wait(call->client, until_ns);
        status = rp_http_call_check(call);
        now = rp_now_ns();
    }
    rp_count(counter, now - start);
    return status;
}

/* Wait until the origin of call->url may be asked. */
static rp_status admit(struct rp_http_call *call)
{
    struct rp_http_stats *stats = rp_http_client_stats(call->client);
    for (;;) {
        enum rp_http_hold hold;
        int64_t until;
        RP_TRY(rp_http_client_admit(call->client, call->origin, &hold, &until, call->err));
        if (hold == RP_HTTP_GO) {
            return RP_OK;
        }
        int64_t now = rp_now_ns(), slice = now + RP_HTTP_SLICE_MS * RP_MS;
        if (hold == RP_HTTP_GATED && until - now > left_ns(call)) {
            (void)snprintf(call->cause, sizeof(call->cause),
                           "%.99s asks for a wait of %lld s, longer than network_timeout permits",
                           call->origin, (long long)((until - now) / (1000 * RP_MS)) + 1);
            call->asked_too_long = true;
            return fail(call, RP_E_TIMEOUT);
        }
        RP_TRY(pause_until(call, until < slice ? until : slice,
                           hold == RP_HTTP_GATED ? &stats->gate_ns : &stats->down_ns));
    }
}

static void form_wish(const struct rp_http_call *call, struct rp_http_wish *wish)
{
    const struct rp_http_file *file = call->file;
    if (call->page != NULL) {
        *wish = (struct rp_http_wish){
            .page = true, .foreign = call->foreign, .size = -1, .limit = call->growing.limit};
        return;
    }
    bool linked = call->hops > 0 ? call->linked_etag[0] != '\0' : call->seen.linked;
    bool own_version = call->moved && linked;
    *wish = (struct rp_http_wish){
        .probe = call->info != NULL,
        .whole = file->whole && call->info == NULL,
        .foreign = call->foreign,
        .first = call->offset + call->got,
        .last = call->offset + call->len - 1,
        .size = file->size >= 0 ? file->size : call->seen.size,
    };
    if (own_version) { /* the redirect told the file's version; the target has one of its own */
        wish->etag = call->hops == 0 ? call->seen.target_etag : "";
        return;
    }
    bool pinned = rp_text_of(file->etag)[0] != '\0' || rp_text_of(file->last_modified)[0] != '\0';
    wish->etag = pinned ? rp_text_of(file->etag) : call->seen.etag;
    wish->last_modified = pinned ? rp_text_of(file->last_modified) : call->seen.last_modified;
}

/* Keep the bytes of an exchange; true if there are new ones. */
static bool keep_bytes(struct rp_http_call *call, const struct rp_http_reply *reply)
{
    bool sound = reply->end == RP_HTTP_COMPLETE || reply->end == RP_HTTP_BROKEN;
    bool wanted = reply->row == RP_ROW_GOOD || reply->row == RP_ROW_SHORT;
    if (call->info != NULL || !sound || !wanted) {
        return false;
    }
    rp_count(&rp_http_client_stats(call->client)->bytes, reply->bytes);
    call->got += reply->bytes;
    bool more = call->got > call->best;
    call->best = more ? call->got : call->best;
    return more;
}

/* What an exchange without an answer came to. */
static const char *failure_of(const struct rp_http_reply *reply)
{
    switch (reply->end) {
    case RP_HTTP_FORBIDDEN:
        return "a redirect to a private address, which allow_private_hosts permits";
    case RP_HTTP_HEAD_LIMIT: return "headers beyond 128 lines or 64 KiB";
    case RP_HTTP_BODY_LIMIT: return RP_HTTP_TOO_LARGE;
    case RP_HTTP_MALFORMED: return "the answer is malformed or too long";
    default: return reply->text;
    }
}

static void tell_cause(struct rp_http_call *call, const struct rp_http_reply *reply)
{
    const struct rp_http_head *head = &reply->head;
    if (!head->complete || reply->end != RP_HTTP_COMPLETE) {
        (void)snprintf(call->cause, sizeof(call->cause), "%.99s: %s", call->origin,
                       failure_of(reply));
        return;
    }
    const char *code = head->error_code, *id = head->request_id;
    bool elsewhere = call->is_signed && rp_http_is_region(head->bucket_region);
    (void)snprintf(call->cause, sizeof(call->cause), "HTTP %d from %.99s: %s%s%s%s%s%s%s%s",
                   head->status, call->origin, reply->why, code[0] != '\0' ? " (" : "", code,
                   code[0] != '\0' ? ")" : "", elsewhere ? ", the bucket's region is " : "",
                   elsewhere ? head->bucket_region : "", id[0] != '\0' ? ", request " : "", id);
}

static void note_page(struct rp_http_page *page, const struct rp_http_head *head)
{
    memcpy(page->etag, head->etag, sizeof(page->etag));
    memcpy(page->date, head->date_text, sizeof(page->date));
    memcpy(page->repo_commit, head->repo_commit, sizeof(page->repo_commit));
    memcpy(page->bucket_region, head->bucket_region, sizeof(page->bucket_region));
    memcpy(page->link, head->link, sizeof(page->link));
}

/* Until when nobody may ask: the quota is spent. */
static int64_t gate_of(const struct rp_http_call *call, const struct rp_http_head *head)
{
    if (head->rate_left != 0 || head->rate_reset <= 0) {
        return 0;
    }
    int64_t random = (int64_t)(rp_http_client_random(call->client) >> 1);
    int64_t reset = head->rate_reset < INT32_MAX ? head->rate_reset * 1000 : INT64_C(1) << 41;
    int64_t jitter = random % (call->timing->gate_jitter + 1);
    return rp_now_ns() + (reset + call->timing->gate_margin + jitter) * RP_MS;
}

/* Digest the end of an exchange into call->row. */
static rp_status digest(struct rp_http_call *call, struct rp_http_reply *reply)
{
    const struct rp_http_head *head = &reply->head;
    bool answered = head->complete && reply->end == RP_HTTP_COMPLETE;
    call->row = answered ? rp_http_judge_s3(call, reply) : rp_http_judge_end(reply->end);
    bool more = keep_bytes(call, reply);
    if (call->page != NULL && call->row == RP_ROW_GOOD) {
        note_page(call->page, head);
    }
    if (more) {
        memset(&call->tries, 0, sizeof(call->tries));
    }
    if (reply->end == RP_HTTP_NO_MEMORY) {
        RP_FAIL(call->err, RP_E_NOMEM, "out of memory for a transfer");
    }
    call->last = (struct rp_http_seen){.status = head->status,
                                       .fresh = call->hops > 0,
                                       .wait_s = answered ? rp_http_head_wait(head) : -1};
    int64_t gate = answered ? gate_of(call, head) : 0;
    bool weak = call->row == RP_ROW_BUSY || call->row == RP_ROW_NETWORK;
    rp_http_client_note(call->client, call->origin, weak && !more, gate,
                        rp_http_head_pace_ns(head));
    if (call->row != RP_ROW_GOOD && call->row != RP_ROW_SHORT) {
        tell_cause(call, reply);
    }
    if (call->row == RP_ROW_REDIRECT) {
        call->row = rp_http_follow(call, head);
    }
    return RP_OK;
}

/* One exchange at call->url. */
static rp_status ask(struct rp_http_call *call)
{
    struct rp_url url;
    RP_TRY(rp_url_parse(call->url, &url, call->err)); /* it did before */
    rp_url_origin(&url, call->origin);
    RP_TRY(admit(call));
    struct rp_http_request request = {
        .url = call->url, .first = -1, .check_address = call->foreign, .fresh = call->reconnect};
    form_wish(call, &request.wish);
    if (request.wish.whole || call->page != NULL) {
        call->got = call->growing.len = 0; /* without ranges a file begins again */
    }
    else {
        request.first = request.wish.first;
        request.last = request.wish.last;
    }
    request.to = call->to != NULL ? call->to + call->got : NULL;
    request.room = call->len - call->got;
    request.growing = call->page != NULL ? &call->growing : NULL;
    RP_TRY(rp_http_authorize(call, &url, &request));
    struct rp_http_seat *seat;
    RP_TRY(rp_http_client_take(call->client, call->origin, &seat, call->err));
    int64_t best = call->best;
    rp_status status = rp_http_transport_begin(seat->transport, &request, call->err);
    if (status == RP_OK) {
        call->requests++;
        status = rp_http_transfer(call, &request, &seat);
        if (status == RP_OK) {
            call->best = best; /* keep_bytes counts them if they may be kept */
            status = digest(call, rp_http_transport_reply(seat->transport));
        }
        rp_http_leave(call, seat);
        return status;
    }
    rp_http_client_give(call->client, seat, call->origin);
    return status;
}

/* A try that gave not all: count it, wait as the verdict says, or end. */
static rp_status try_again(struct rp_http_call *call)
{
    struct rp_http_verdict verdict;
    struct rp_http_stats *stats = rp_http_client_stats(call->client);
    call->last.row = call->row;
    call->last.left = left_ns(call) / RP_MS;
    rp_http_decide(&call->last, &call->tries, call->timing, rp_http_client_random(call->client),
                   &verdict);
    if (call->row >= RP_ROW_BUSY && call->row <= RP_ROW_DENIED) {
        rp_count(&stats->retries[call->row - RP_ROW_BUSY], 1);
    }
    rp_http_unsettle(call, verdict.resolve);
    if (verdict.too_long) {
        (void)snprintf(call->cause, sizeof(call->cause),
                       "HTTP %d from %.99s asks for a wait of %lld s, longer than network_timeout "
                       "permits",
                       call->last.status, call->origin, (long long)call->last.wait_s);
        call->asked_too_long = true;
    }
    if (verdict.gate_ms > 0) {
        rp_http_client_note(call->client, call->origin, false,
                            rp_now_ns() + verdict.gate_ms * RP_MS, 0);
    }
    if (verdict.code != RP_OK) {
        return fail(call, verdict.code);
    }
    call->reconnect = verdict.reconnect;
    return pause_until(call, rp_now_ns() + verdict.wait_ms * RP_MS, &stats->backoff_ns);
}

static rp_status run(struct rp_http_call *call)
{
    bool done = false;
    while (!done) {
        RP_TRY(rp_http_call_check(call));
        RP_TRY(rp_http_locate(call));
        do {
            RP_TRY(ask(call));
        } while (call->row == RP_ROW_REDIRECT || call->row == RP_ROW_SIGN_AGAIN);
        bool ranged = call->info == NULL && call->page == NULL;
        done = call->row == RP_ROW_GOOD && (!ranged || call->got == call->len);
        call->reconnect = false;
        if (!done) {
            RP_TRY(try_again(call));
        }
    }
    return RP_OK;
}

/* remember: what is found out is kept for other calls. */
static rp_status begin(rp_http_client *client, const struct rp_http_file *file, bool remember,
                       const struct rp_http_watch *watch, struct rp_http_call **out,
                       struct rp_error *err)
{
    struct rp_http_call *call = rp_calloc(1, sizeof(*call));
    if (call == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for a request");
    }
    call->client = client;
    call->file = file;
    call->watch = watch;
    call->timing = &rp_http_client_options(client)->timing;
    call->err = err;
    call->last_new_ns = call->watched_ns = rp_now_ns();
    rp_status status = rp_url_parse(file->url, &call->file_url, err);
    if (status == RP_OK && rp_http_client_ended(client)) {
        status = rp_error_set(err, RP_E_CLOSED, "the HTTP client was closed");
    }
    call->seen.size = -1;
    if (status == RP_OK && remember) {
        status = rp_http_client_file(client, file->url, &call->known, err);
    }
    if (status != RP_OK) {
        rp_free(call);
        return status;
    }
    *out = call;
    return RP_OK;
}

/* Run and free. */
static rp_status finish(struct rp_http_call *call)
{
    rp_status status = run(call);
    rp_http_unsettle(call, false);
    if (call->page != NULL && status == RP_OK) {
        call->page->data = call->growing.data;
        call->page->len = call->growing.len;
    }
    else {
        rp_free(call->growing.data);
    }
    explicit_bzero(&call->signature, sizeof(call->signature));
    explicit_bzero(call->url, sizeof(call->url)); /* signed URLs are secrets */
    explicit_bzero(call->next, sizeof(call->next));
    rp_free(call);
    return status;
}

rp_status rp_http_size(rp_http_client *client, const struct rp_http_file *file,
                       const struct rp_http_watch *watch, struct rp_http_info *out,
                       struct rp_error *err)
{
    struct rp_http_call *call = NULL;
    RP_TRY(begin(client, file, true, watch, &call, err));
    call->info = out;
    call->len = 1; /* a range to ask for; its byte is not kept */
    return finish(call);
}

rp_status rp_http_read(rp_http_client *client, const struct rp_http_file *file, int64_t offset,
                       int64_t len, uint8_t *to, const struct rp_http_watch *watch,
                       struct rp_error *err)
{
    bool outside = file->size >= 0 && (offset > file->size || len > file->size - offset);
    bool partial = file->whole && (offset != 0 || len != file->size);
    if (offset < 0 || len < 0 || outside || partial || offset > INT64_MAX - len) {
        RP_FAIL(err, RP_E_ARG, "%lld bytes at %lld are no part of a file of %lld%s", (long long)len,
                (long long)offset, (long long)file->size, partial ? ", read whole" : "");
    }
    if (len == 0) {
        return RP_OK;
    }
    struct rp_http_call *call = NULL;
    RP_TRY(begin(client, file, true, watch, &call, err));
    call->offset = offset;
    call->len = len;
    call->to = to;
    return finish(call);
}

rp_status rp_http_get(rp_http_client *client, const char *url, int64_t limit,
                      const struct rp_http_watch *watch, struct rp_http_page *out,
                      struct rp_error *err)
{
    const struct rp_http_file file = {.url = url, .size = -1};
    *out = (struct rp_http_page){.data = NULL};
    if (limit < 0 || limit > RP_HTTP_PAGE_MAX) {
        RP_FAIL(err, RP_E_ARG, "a limit of %lld bytes, allowed are 0 to %lld", (long long)limit,
                (long long)RP_HTTP_PAGE_MAX);
    }
    struct rp_http_call *call = NULL;
    RP_TRY(begin(client, &file, false, watch, &call, err));
    call->page = out;
    call->growing.limit = limit;
    return finish(call);
}
