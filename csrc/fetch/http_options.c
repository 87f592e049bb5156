#include "fetch/http_client.h"

#include "base/memory.h"
#include "fetch/http_state_priv.h"

#include <stdio.h>
#include <string.h>

#define SECRET_MAX 8192

void rp_http_defaults(struct rp_http_options *options)
{
    *options = (struct rp_http_options){.timing = {.network = 600000,
                                                   .connect = 10000,
                                                   .stall = 20000,
                                                   .stall_speed = 4096,
                                                   .backoff = 250,
                                                   .backoff_max = 15000,
                                                   .gate_margin = 1000,
                                                   .gate_jitter = 5000,
                                                   .hedge = 2000,
                                                   .probe = 5000,
                                                   .unsigned_life_s = 600},
                                        .max_redirects = 5};
}

void rp_http_discard(const char *text)
{
    if (text != NULL) {
        char *own = (char *)(uintptr_t)text; /* options hold const pointers to our copies */
        explicit_bzero(own, strlen(own));
        rp_free(own);
    }
}

static rp_status check_timing(const struct rp_http_timing *t, struct rp_error *err)
{
    const int64_t year = 366LL * 86400 * 1000;
    const int64_t all[] = {t->network,     t->connect,     t->stall, t->backoff,     t->backoff_max,
                           t->gate_margin, t->gate_jitter, t->probe, t->stall_speed, t->hedge};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i] < (i < 3 ? 1 : 0) || all[i] > year) {
            RP_FAIL(err, RP_E_ARG, "a time limit of %lld ms cannot be kept", (long long)all[i]);
        }
    }
    return RP_OK;
}

static bool is_printable(const char *text, char least)
{
    for (; text != NULL && *text != '\0'; text++) {
        if (*text < least || *text > 0x7e) {
            return false;
        }
    }
    return true;
}

static bool is_this_host(const struct rp_url *url)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "::1"};
    for (size_t i = 0; i < 3; i++) {
        if (url->host_len == strlen(names[i]) && memcmp(url->host, names[i], url->host_len) == 0) {
            return true;
        }
    }
    return false;
}

static rp_status check_token(const struct rp_http_options *options, struct rp_error *err)
{
    if (options->token == NULL) {
        return RP_OK;
    }
    struct rp_url url;
    if (options->token_origin == NULL) {
        RP_FAIL(err, RP_E_ARG, "a token without the origin that it is for");
    }
    RP_TRY(rp_url_parse(options->token_origin, &url, err));
    if (!url.https && !options->allow_http && !is_this_host(&url)) {
        RP_FAIL(err, RP_E_ARG, "a token is sent by https alone, unless allow_http says otherwise");
    }
    if (options->token[0] == '\0' || !is_printable(options->token, 0x21) ||
        strlen(options->token) > SECRET_MAX) {
        RP_FAIL(err, RP_E_ARG, "the token is empty, too long, or holds bytes no header may hold");
    }
    return RP_OK;
}

bool rp_http_is_region(const char *text)
{
    size_t len = strlen(text);
    for (size_t i = 0; i < len; i++) {
        bool letter = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z');
        if (!letter && (text[i] < '0' || text[i] > '9') && text[i] != '-') {
            return false;
        }
    }
    return len > 0 && len < RP_HTTP_REGION_MAX;
}

/* A text that may stand in a header, of less than `room` bytes; NULL is none. */
static bool is_word(const char *text, size_t room)
{
    return text == NULL || (text[0] != '\0' && is_printable(text, 0x21) && strlen(text) < room);
}

static rp_status check_s3_keys(const struct rp_http_options *options, const struct rp_url *url,
                               struct rp_error *err)
{
    if (!is_word(options->s3_access_key, RP_S3_KEY_MAX) ||
        !is_word(options->s3_secret_key, RP_S3_KEY_MAX) ||
        !is_word(options->s3_session_token, SECRET_MAX)) {
        RP_FAIL(err, RP_E_ARG, "an S3 key is empty, too long, or holds bytes no header may hold");
    }
    if (options->s3_access_key == NULL) {
        return RP_OK;
    }
    if (!url->https && !options->allow_http && !is_this_host(url)) {
        RP_FAIL(err, RP_E_ARG, "S3 keys are used by https alone, unless allow_http says otherwise");
    }
    struct rp_url other;
    if (options->token != NULL && rp_url_parse(options->token_origin, &other, NULL) == RP_OK &&
        rp_url_same_origin(url, &other)) {
        RP_FAIL(err, RP_E_ARG, "a token and S3 keys for the same origin");
    }
    return RP_OK;
}

static rp_status check_s3(const struct rp_http_options *options, struct rp_error *err)
{
    bool access = options->s3_access_key != NULL, secret = options->s3_secret_key != NULL;
    if (access != secret || (options->s3_session_token != NULL && !access)) {
        RP_FAIL(err, RP_E_ARG, "s3_access_key and s3_secret_key go together");
    }
    if (options->s3_origin == NULL) {
        if (access) {
            RP_FAIL(err, RP_E_ARG, "S3 keys without the origin that they are for");
        }
        return RP_OK;
    }
    struct rp_url url;
    RP_TRY(rp_url_parse(options->s3_origin, &url, err));
    if (options->s3_region != NULL && !rp_http_is_region(options->s3_region)) {
        RP_FAIL(err, RP_E_ARG, "s3_region is no name of a region");
    }
    return check_s3_keys(options, &url, err);
}

rp_status rp_http_options_check(const struct rp_http_options *options, struct rp_error *err)
{
    RP_TRY(check_timing(&options->timing, err));
    if (options->max_redirects < 0 || options->max_redirects > 20) {
        RP_FAIL(err, RP_E_ARG, "max_redirects is %d, allowed are 0 to 20", options->max_redirects);
    }
    if (!is_printable(options->user_agent, 0x20) || !is_printable(options->proxy, 0x21) ||
        !is_printable(options->no_proxy, 0x20)) {
        RP_FAIL(err, RP_E_ARG, "user_agent, proxy or no_proxy holds bytes that are not printable");
    }
    if (options->url_cache != NULL && options->url_cache[0] == '\0') {
        RP_FAIL(err, RP_E_ARG, "url_cache is an empty path");
    }
    RP_TRY(check_token(options, err));
    return check_s3(options, err);
}

#define TEXTS 12

/* Where the texts of options are. */
static void texts_of(struct rp_http_options *o, const char **texts[TEXTS])
{
    const char **all[TEXTS] = {&o->ca_file,          &o->proxy,         &o->no_proxy,
                               &o->user_agent,       &o->token_origin,  &o->token,
                               &o->s3_origin,        &o->s3_access_key, &o->s3_secret_key,
                               &o->s3_session_token, &o->s3_region,     &o->url_cache};
    memcpy(texts, all, sizeof(all));
}

bool rp_http_options_own(struct rp_http_options *options)
{
    const char **texts[TEXTS];
    texts_of(options, texts);
    bool sound = true;
    for (int i = 0; i < TEXTS; i++) {
        if (*texts[i] != NULL) {
            *texts[i] = sound ? rp_strdup(*texts[i]) : NULL;
            sound = sound && *texts[i] != NULL;
        }
    }
    return sound;
}

void rp_http_options_disown(struct rp_http_options *options)
{
    const char **texts[TEXTS];
    texts_of(options, texts);
    for (int i = 0; i < TEXTS; i++) {
        rp_http_discard(*texts[i]);
        *texts[i] = NULL;
    }
}

char *rp_http_line(const char *name, const char *value)
{
    size_t room = strlen(name) + strlen(value) + 1;
    char *line = rp_calloc(room, 1);
    if (line != NULL) {
        (void)snprintf(line, room, "%s%s", name, value);
    }
    return line;
}
