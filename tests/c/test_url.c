/* URLs: what parses, which origins are one, where redirects lead, what is shown, when signed ones
 * end, which addresses are whose. */
#include "harness.h"

#include "fetch/url.h"

static rp_status parse(const char *text, struct rp_url *url)
{
    struct rp_error err;
    rp_error_clear(&err);
    return rp_url_parse(text, url, &err);
}

RP_TEST(parts_of_a_url)
{
    struct rp_url url;
    REQUIRE_EQ(parse("HTTPS://Ex-ample.com:8443/a/b%20c?x=1&y", &url), RP_OK);
    CHECK(url.https && url.port == 8443 && !url.bracketed);
    CHECK(url.host_len == 12 && memcmp(url.host, "Ex-ample.com", 12) == 0);
    CHECK(url.path_len == 8 && memcmp(url.path, "/a/b%20c", 8) == 0);
    CHECK(url.query_len == 5 && memcmp(url.query, "x=1&y", 5) == 0);
    REQUIRE_EQ(parse("http://[::1]", &url), RP_OK);
    CHECK(!url.https && url.port == 80 && url.bracketed && url.host_len == 3);
    CHECK(url.path_len == 0 && url.query == NULL);
    REQUIRE_EQ(parse("http://h?q", &url), RP_OK);
    CHECK(url.path_len == 0 && url.query_len == 1);
}

RP_TEST(what_is_no_url)
{
    static const char *const bad[] = {
        "",
        "h",
        "//h/p",
        "ftp://h/p",
        "file:///etc/passwd",
        "javascript:x",
        "http:/h",
        "http://",
        "http:///p",
        "https://u@h/p",
        "https://u:p@h/p",
        "http://h/p#f",
        "http://h /p",
        "http://h/p\n",
        "http://h\\p/",
        "http://h/\x80",
        "http://h:/p",
        "http://h:0/p",
        "http://h:65536/p",
        "http://h:123456/p",
        "http://h:8x/p",
        "http://[::1/p",
        "http://[]/p",
        "http://[::1]x/p",
        "http://::1/p",
        "http://h%41/p",
    };
    struct rp_url url;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (parse(bad[i], &url) != RP_E_HTTP) {
            rp_fail_at(__FILE__, __LINE__, "taken: %s", bad[i]);
        }
    }
    char longest[RP_URL_MAX + 2] = "http://h/";
    memset(longest + 9, 'a', RP_URL_MAX - 9);
    CHECK_EQ(parse(longest, &url), RP_OK);
    longest[RP_URL_MAX] = 'a';
    CHECK_EQ(parse(longest, &url), RP_E_HTTP);
}

RP_TEST(errors_show_no_secret)
{
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_url url;
    CHECK_EQ(rp_url_parse("https://me:SECRET@h/p?sig=SECRET", &url, &err), RP_E_HTTP);
    CHECK_CONTAINS(err.what, "https://h/p");
    CHECK(strstr(err.what, "SECRET") == NULL);
}

static bool same(const char *a, const char *b)
{
    struct rp_url x, y;
    REQUIRE_EQ(parse(a, &x), RP_OK);
    REQUIRE_EQ(parse(b, &y), RP_OK);
    return rp_url_same_origin(&x, &y);
}

RP_TEST(origins)
{
    CHECK(same("https://A.b/x", "HTTPS://a.B:443/y?z"));
    CHECK(same("http://a", "http://a:80/"));
    CHECK(!same("https://a/", "http://a/"));
    CHECK(!same("https://a/", "https://a:8443/"));
    CHECK(!same("https://a/", "https://a.b/"));
    CHECK(!same("http://127.0.0.1:9/", "http://localhost:9/"));
    struct rp_url url;
    char out[RP_ORIGIN_MAX];
    REQUIRE_EQ(parse("HTTP://[FE80::1]/x", &url), RP_OK);
    rp_url_origin(&url, out);
    CHECK_STR(out, "http://[fe80::1]:80");
}

RP_TEST(redirects_lead_where_rfc_3986_says)
{
    static const char *const cases[][2] = {
        {"g", "http://a/b/c/g"},
        {"./g", "http://a/b/c/g"},
        {"g/", "http://a/b/c/g/"},
        {"/g", "http://a/g"},
        {"//g", "http://g"},
        {"?y", "http://a/b/c/d;p?y"},
        {"g?y", "http://a/b/c/g?y"},
        {"#s", "http://a/b/c/d;p?q"},
        {"g#s", "http://a/b/c/g"},
        {"", "http://a/b/c/d;p?q"},
        {".", "http://a/b/c/"},
        {"..", "http://a/b/"},
        {"../g", "http://a/b/g"},
        {"../..", "http://a/"},
        {"../../../g", "http://a/g"},
        {"/./g", "http://a/g"},
        {"/../g", "http://a/g"},
        {"g.", "http://a/b/c/g."},
        {"..g", "http://a/b/c/..g"},
        {"./g/.", "http://a/b/c/g/"},
        {"g?y/../x", "http://a/b/c/g?y/../x"},
        {"https://b:1/%2e/x?s=a%2Fb", "https://b:1/%2e/x?s=a%2Fb"},
        {"http://b/../x", "http://b/../x"},
        {"/a b\xc3\xa4", "http://a/a%20b%C3%A4"},
    };
    char out[RP_URL_MAX + 1];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rp_error err;
        rp_error_clear(&err);
        CHECK_OK(rp_url_redirect("http://a/b/c/d;p?q", cases[i][0], out, &err), &err);
        CHECK_STR(out, cases[i][1]);
    }
    CHECK_EQ(rp_url_redirect("http://a", "g", out, NULL), RP_OK);
    CHECK_STR(out, "http://a/g");
}

RP_TEST(redirects_that_are_refused)
{
    char out[RP_URL_MAX + 1], location[RP_URL_MAX + 100] = "/";
    static const char *const bad[] = {"file:///etc/passwd", "http://h/x",  "https://u:p@h/x",
                                      "gopher://h/",        "https:///x",  "/a\x01_",
                                      "https://h:99999/",   "data:text,x", "//u@h/"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct rp_error err;
        rp_error_clear(&err);
        CHECK_STATUS(rp_url_redirect("https://a/b", bad[i], out, &err), RP_E_HTTP, &err);
        CHECK(err.what[0] != '\0');
    }
    memset(location + 1, 'x', RP_URL_MAX);
    CHECK_EQ(rp_url_redirect("https://a/b", location, out, NULL), RP_E_HTTP);
    CHECK_EQ(rp_url_redirect("http://a/b", "https://h/x", out, NULL), RP_OK); /* up is fine */
}

RP_TEST(what_is_shown)
{
    char out[64];
    rp_url_redact("https://user:pw@h:1/p?sig=1#f", out, sizeof(out));
    CHECK_STR(out, "https://h:1/p");
    rp_url_redact("https://a@b@h/p", out, sizeof(out));
    CHECK_STR(out, "https://h/p");
    rp_url_redact("no url \x01", out, sizeof(out));
    CHECK_STR(out, "no url ?");
    rp_url_redact("https://h/0123456789", out, 12);
    CHECK_STR(out, "https://h/0");
}

static int64_t expiry(const char *text)
{
    struct rp_url url;
    REQUIRE_EQ(parse(text, &url), RP_OK);
    return rp_url_expiry(&url);
}

RP_TEST(life_of_signed_urls)
{
    CHECK_EQ(expiry("https://h/p?a=1&Expires=1784110500&b"), 1784110500);
    CHECK_EQ(expiry("https://h/p?X-Amz-Date=20260714T101500Z&X-Amz-Expires=3600"), 1784027700);
    CHECK_EQ(expiry("https://h/p?x-amz-expires=60&x-amz-date=19700101T000000Z"), 60);
    CHECK_EQ(expiry("https://h/p"), -1);
    CHECK_EQ(expiry("https://h/p?NotExpires=5"), -1);
    CHECK_EQ(expiry("https://h/p?Expires="), -1);
    CHECK_EQ(expiry("https://h/p?Expires=1x"), -1);
    CHECK_EQ(expiry("https://h/p?Expires=99999999999999999999"), -1);
    CHECK_EQ(expiry("https://h/p?X-Amz-Date=20260732T101500Z&X-Amz-Expires=3600"), -1);
    CHECK_EQ(expiry("https://h/p?X-Amz-Date=2026&X-Amz-Expires=3600"), -1);
    CHECK_EQ(rp_utc_seconds(2000, 2, 29, 0, 0, 0), 951782400);
    CHECK_EQ(rp_utc_seconds(2100, 2, 29, 0, 0, 0), -1);
    CHECK_EQ(rp_utc_seconds(1970, 1, 1, 0, 0, 0), 0);
}

RP_TEST(addresses)
{
    static const struct {
        uint8_t bytes[16];
        size_t len;
        enum rp_address kind;
    } cases[] = {
        {{8, 8, 8, 8}, 4, RP_ADDRESS_PUBLIC},
        {{127, 0, 0, 1}, 4, RP_ADDRESS_PRIVATE},
        {{10, 1, 2, 3}, 4, RP_ADDRESS_PRIVATE},
        {{172, 15, 0, 1}, 4, RP_ADDRESS_PUBLIC},
        {{172, 31, 255, 1}, 4, RP_ADDRESS_PRIVATE},
        {{172, 32, 0, 1}, 4, RP_ADDRESS_PUBLIC},
        {{192, 168, 1, 1}, 4, RP_ADDRESS_PRIVATE},
        {{100, 63, 0, 1}, 4, RP_ADDRESS_PUBLIC},
        {{100, 127, 0, 1}, 4, RP_ADDRESS_PRIVATE},
        {{198, 19, 0, 1}, 4, RP_ADDRESS_PRIVATE},
        {{169, 254, 169, 254}, 4, RP_ADDRESS_NEVER},
        {{0, 0, 0, 0}, 4, RP_ADDRESS_NEVER},
        {{224, 0, 0, 1}, 4, RP_ADDRESS_NEVER},
        {{255, 255, 255, 255}, 4, RP_ADDRESS_NEVER},
        {{0}, 16, RP_ADDRESS_NEVER},
        {{[15] = 1}, 16, RP_ADDRESS_PRIVATE},
        {{0x20, 0x01, 0x48, 0x60, [15] = 1}, 16, RP_ADDRESS_PUBLIC},
        {{0xfd, 1, [15] = 1}, 16, RP_ADDRESS_PRIVATE},
        {{0xfe, 0x80, [15] = 1}, 16, RP_ADDRESS_NEVER},
        {{0xff, 2, [15] = 1}, 16, RP_ADDRESS_NEVER},
        {{[10] = 0xff, 0xff, 169, 254, 169, 254}, 16, RP_ADDRESS_NEVER},
        {{[10] = 0xff, 0xff, 127, 0, 0, 1}, 16, RP_ADDRESS_PRIVATE},
        {{[10] = 0xff, 0xff, 8, 8, 8, 8}, 16, RP_ADDRESS_PUBLIC},
        {{0, 0x64, 0xff, 0x9b, [12] = 10, 0, 0, 1}, 16, RP_ADDRESS_PRIVATE},
        {{0x20, 0x02, 127, 0, 0, 1}, 16, RP_ADDRESS_PRIVATE},
        {{1, 2, 3}, 3, RP_ADDRESS_NEVER},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (rp_address_kind(cases[i].bytes, cases[i].len) != cases[i].kind) {
            rp_fail_at(__FILE__, __LINE__, "address %zu has another kind", i);
        }
    }
}
