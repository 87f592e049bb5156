/* Any text as a URL, and as a redirect's target from the text before it: what is taken parses
 * again, stays within its bounds, never leads from https to http, and shows no query. */
#include "base/memory.h"
#include "fetch/url.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)  \
    do {                    \
        if (!(condition)) { \
            abort();        \
        }                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_url(const char *text)
{
    struct rp_url url, again;
    struct rp_error err;
    rp_error_clear(&err);
    char shown[256], origin[RP_ORIGIN_MAX];
    rp_url_redact(text, shown, sizeof(shown));
    PROMISE(strlen(shown) < sizeof(shown) && strchr(shown, '#') == NULL);
    if (rp_url_parse(text, &url, &err) != RP_OK) {
        PROMISE(err.code == RP_E_HTTP && err.what[0] != '\0');
        return;
    }
    PROMISE(url.port >= 1 && url.port <= 65535 && url.host_len >= 1 && url.host_len <= 253);
    const char *end = text + strlen(text);
    PROMISE(url.host > text && url.path >= url.host && url.path + url.path_len <= end);
    PROMISE(url.query == NULL || url.query + url.query_len == end);
    PROMISE(rp_url_expiry(&url) >= -1);
    rp_url_origin(&url, origin);
    PROMISE(rp_url_parse(origin, &again, NULL) == RP_OK && rp_url_same_origin(&url, &again));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *out = malloc(RP_URL_MAX + 1);
    PROMISE(text != NULL && out != NULL);
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    char *location = strchr(text, '\n');
    if (location != NULL) {
        *location++ = '\0';
    }
    check_url(text);
    struct rp_url from, to;
    if (location != NULL && rp_url_parse(text, &from, NULL) == RP_OK) {
        struct rp_error err;
        rp_error_clear(&err);
        if (rp_url_redirect(text, location, out, &err) == RP_OK) {
            PROMISE(rp_url_parse(out, &to, NULL) == RP_OK && (to.https || !from.https));
            check_url(out);
        }
        else {
            PROMISE(err.code == RP_E_HTTP && err.what[0] != '\0');
        }
    }
    if (size >= 16) {
        PROMISE(rp_address_kind(data, 16) <= RP_ADDRESS_NEVER);
        PROMISE(rp_address_kind(data, 4) <= RP_ADDRESS_NEVER);
    }
    free(out);
    free(text);
    return 0;
}
