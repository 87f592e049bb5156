/* Header lines that tell who asks: the token, S3 signatures, and what answers say of those. */
#include "fetch/http_call_priv.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define CLOCKS_APART 300 /* seconds between ours and the server's that a refusal may be due to */

/* Whether a text is a URL of the same origin. */
static bool is_at(const struct rp_url *url, const char *text)
{
    struct rp_url other;
    return text != NULL && rp_url_parse(text, &other, NULL) == RP_OK &&
           rp_url_same_origin(url, &other);
}

/* Whether an ETag may stand between quotes in a header. */
static bool is_quotable(const char *etag)
{
    size_t len = strlen(etag);
    for (size_t i = 0; i < len; i++) {
        if (etag[i] < 0x21 || etag[i] > 0x7e || etag[i] == '"') {
            return false;
        }
    }
    return len > 0 && len < RP_VERSION_MAX;
}

static rp_status sign(struct rp_http_call *call, const struct rp_url *url, const char **lines,
                      int *n)
{
    const struct rp_http_options *options = rp_http_client_options(call->client);
    int64_t skew;
    rp_http_client_signing(call->client, call->region, &skew);
    struct rp_s3_key key = {.access = options->s3_access_key,
                            .secret = options->s3_secret_key,
                            .region = call->region,
                            .session = options->s3_session_token};
    RP_TRY(rp_s3_sign(&key, url, (int64_t)time(NULL) + skew, &call->signature, call->err));
    call->is_signed = true;
    lines[(*n)++] = call->signature.authorization;
    lines[(*n)++] = call->signature.date;
    lines[(*n)++] = "x-amz-content-sha256: " RP_S3_EMPTY_BODY;
    if (options->s3_session_token != NULL) {
        lines[(*n)++] = rp_http_client_session(call->client);
    }
    return RP_OK;
}

rp_status rp_http_authorize(struct rp_http_call *call, const struct rp_url *url,
                            struct rp_http_request *request)
{
    const struct rp_http_options *options = rp_http_client_options(call->client);
    int n = 0;
    call->is_s3 = call->is_signed = false;
    if (!call->secrets) {
        return RP_OK;
    }
    if (options->token != NULL && is_at(url, options->token_origin)) {
        request->lines[n++] = rp_http_client_authorization(call->client);
    }
    call->is_s3 = is_at(url, options->s3_origin);
    if (!call->is_s3) {
        return RP_OK;
    }
    const char *etag = rp_text_of(request->wish.etag);
    if (request->first >= 0 && is_quotable(etag)) {
        (void)snprintf(call->if_match, sizeof(call->if_match), "If-Match: \"%s\"", etag);
        request->lines[n++] = call->if_match;
    }
    return options->s3_access_key != NULL ? sign(call, url, request->lines, &n) : RP_OK;
}

/* Whether the answer names another region than the one signed for, for the first time. */
static bool learn_region(struct rp_http_call *call, const struct rp_http_head *head)
{
    bool elsewhere =
        rp_http_is_region(head->bucket_region) && strcmp(head->bucket_region, call->region) != 0;
    if (!elsewhere || call->region_tried) {
        return false;
    }
    call->region_tried = true;
    rp_http_client_learn_region(call->client, head->bucket_region);
    return true;
}

/* Whether the server has another time than the one signed with, for the first time. */
static bool learn_clock(struct rp_http_call *call, const struct rp_http_head *head)
{
    int64_t now = (int64_t)time(NULL), skew = head->date - now;
    int64_t apart = skew - rp_http_client_skew(call->client);
    bool far = apart > CLOCKS_APART || apart < -CLOCKS_APART;
    if (head->date < 0 || !far || call->clock_tried) {
        return false;
    }
    call->clock_tried = true;
    rp_http_client_learn_skew(call->client, skew);
    return true;
}

static bool is_stale(const char *code)
{
    return strcmp(code, "ExpiredToken") == 0 || strcmp(code, "InvalidToken") == 0 ||
           strcmp(code, "TokenRefreshRequired") == 0;
}

enum rp_http_row rp_http_judge_s3(struct rp_http_call *call, struct rp_http_reply *reply)
{
    struct rp_http_head *head = &reply->head;
    int status = head->status;
    if (!call->is_s3 || status < 300) {
        return reply->row;
    }
    if (head->error_code[0] == '\0') {
        rp_s3_error_code(reply->note, reply->note_len, head->error_code, sizeof(head->error_code));
    }
    if (!call->is_signed || (status != 301 && status != 400 && status != 403)) {
        return reply->row;
    }
    if (learn_region(call, head) || (status == 403 && learn_clock(call, head))) {
        return RP_ROW_SIGN_AGAIN;
    }
    return status == 400 && is_stale(head->error_code) ? RP_ROW_DENIED : reply->row;
}
