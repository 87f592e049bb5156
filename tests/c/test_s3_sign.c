/* SHA-256, HMAC and S3 signatures against the published vectors. */
#include "harness.h"

#include "base/sha256.h"
#include "fetch/s3_sign.h"

static const char *sha256_of(const char *text, size_t times, size_t piece)
{
    static char hex[RP_SHA256_HEX];
    struct rp_sha256 sum;
    uint8_t out[RP_SHA256_BYTES];
    size_t len = strlen(text);
    rp_sha256_begin(&sum);
    for (size_t i = 0; i < times; i++) {
        for (size_t at = 0; at < len; at += piece) {
            rp_sha256_add(&sum, text + at, len - at < piece ? len - at : piece);
        }
    }
    rp_sha256_end(&sum, out);
    rp_sha256_hex(out, hex);
    return hex;
}

RP_TEST(sha256_vectors) /* FIPS 180-4, NIST's examples */
{
    static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    CHECK_STR(sha256_of("", 1, 1), RP_S3_EMPTY_BODY);
    CHECK_STR(sha256_of("abc", 1, 3),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    for (size_t piece = 1; piece < 60; piece++) {
        CHECK_STR(sha256_of(two_blocks, 1, piece),
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
    CHECK_STR(sha256_of("aaaaaaaaaa", 100000, 7),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static const char *hmac_of(const void *key, size_t key_len, const char *data)
{
    static char hex[RP_SHA256_HEX];
    uint8_t out[RP_SHA256_BYTES];
    rp_hmac_sha256(key, key_len, data, strlen(data), out);
    rp_sha256_hex(out, hex);
    return hex;
}

RP_TEST(hmac_vectors) /* RFC 4231: 1, 2, 6 */
{
    uint8_t key[131];
    memset(key, 0x0b, 20);
    CHECK_STR(hmac_of(key, 20, "Hi There"),
              "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK_STR(hmac_of("Jefe", 4, "what do ya want for nothing?"),
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    CHECK_STR(hmac_of(key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First"),
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

/* The key of AWS's examples. */
static const struct rp_s3_key example = {.access = "AKIA"
                                                   "IOSFODNN7EXAMPLE",
                                         .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                                         .region = "us-east-1"};
static const int64_t noon = 1369353600; /* 20130524T000000Z */
static struct rp_s3_signature made;

static rp_status sign(const struct rp_s3_key *key, const char *text)
{
    struct rp_url url;
    REQUIRE_OK(rp_url_parse(text, &url, NULL), NULL);
    return rp_s3_sign(key, &url, noon, &made, NULL);
}

static const char *signature_of(const char *text)
{
    REQUIRE_OK(sign(&example, text), NULL);
    const char *at = strstr(made.authorization, "Signature=");
    return at != NULL ? at + 10 : "";
}

RP_TEST(aws_examples) /* "Signature calculations: transferring payload in a single chunk" */
{
    CHECK_STR(signature_of("https://examplebucket.s3.amazonaws.com/?lifecycle"),
              "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    CHECK_STR(made.date, "x-amz-date: 20130524T000000Z");
    CHECK_STR(made.authorization,
              "Authorization: AWS4-HMAC-SHA256 Credential=AKIA"
              "IOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
              "SignedHeaders=host;x-amz-content-sha256;x-amz-date,Signature="
              "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    CHECK_STR(signature_of("https://examplebucket.s3.amazonaws.com/?max-keys=2&prefix=J"),
              "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

/* Both must have one signature: they are one request. */
static void check_same(const char *a, const char *b)
{
    char first[RP_SHA256_HEX + 16];
    snprintf(first, sizeof(first), "%s", signature_of(a));
    CHECK_STR(signature_of(b), first);
}

RP_TEST(one_request_has_one_signature)
{
    check_same("https://h/?max-keys=2&prefix=J", "https://h?prefix=J&max-keys=2");
    check_same("https://h/a?b=1&b-c=2", "https://h/a?b-c=2&b=1");
    check_same("https://h/a?b=2&b=1&", "https://h/a?b=1&b=2");
    check_same("https://h/a%2Bb%7E%c3%bc", "https://h/a+b~%C3%BC");
    check_same("https://h/a?p=x%2fy%20z", "https://h/a?p=x/y+z");
    check_same("https://h:443/a", "https://h/a");
    char plain[RP_SHA256_HEX + 16];
    snprintf(plain, sizeof(plain), "%s", signature_of("https://h/a"));
    static const char *const others[] = {"https://h:444/a", "https://h/a/", "https://h//a",
                                         "https://h/A",     "https://g/a",  "https://h/a?a",
                                         "https://h/a%2F",  "https://h/./a"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        CHECK(strcmp(signature_of(others[i]), plain) != 0);
    }
}

RP_TEST(a_session_is_signed)
{
    struct rp_s3_key key = example;
    key.session = "one";
    REQUIRE_OK(sign(&key, "https://h/a"), NULL);
    CHECK(strstr(made.authorization, "x-amz-date;x-amz-security-token,") != NULL);
    CHECK(strstr(made.authorization, "one") == NULL);
    struct rp_s3_signature before = made;
    key.session = "two";
    REQUIRE_OK(sign(&key, "https://h/a"), NULL);
    CHECK(strcmp(before.authorization, made.authorization) != 0);
}

RP_TEST(what_cannot_be_signed)
{
    struct rp_error err;
    struct rp_url url;
    char many[RP_S3_PARAMETERS * 4 + 20] = "https://h/?", *secret = malloc(RP_S3_KEY_MAX + 1);
    for (int i = 0; i < RP_S3_PARAMETERS; i++) {
        strcat(many, "a=b&");
    }
    CHECK_EQ(sign(&example, many), RP_E_ARG);
    memset(secret, 'k', RP_S3_KEY_MAX);
    secret[RP_S3_KEY_MAX] = '\0';
    struct rp_s3_key key = example;
    key.secret = secret;
    rp_error_clear(&err);
    REQUIRE_OK(rp_url_parse("https://h/", &url, NULL), NULL);
    CHECK_EQ(rp_s3_sign(&key, &url, noon, &made, &err), RP_E_ARG);
    CHECK(strstr(err.what, "kkk") == NULL);
    CHECK_EQ(rp_s3_sign(&example, &url, -1, &made, NULL), RP_E_ARG);
    CHECK_EQ(rp_s3_sign(&example, &url, INT64_MAX, &made, NULL), RP_E_ARG);
    CHECK_EQ(rp_s3_sign(&example, &url, 253402300799, &made, NULL), RP_OK);
    free(secret);
}

static void sign_without_memory(void *arg)
{
    (void)arg; /* nothing is shared */
    struct rp_url url;
    REQUIRE_OK(rp_url_parse("https://h/?a=b", &url, NULL), NULL);
    rp_status status = rp_s3_sign(&example, &url, noon, &made, NULL);
    CHECK(status == RP_OK || status == RP_E_NOMEM);
}

RP_TEST(memory_runs_out)
{
    CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, sign_without_memory, NULL) >
          0);
}

static const char *code_of(const char *body)
{
    static char out[12];
    rp_s3_error_code(body, strlen(body), out, sizeof(out));
    return out;
}

RP_TEST(codes_of_errors)
{
    CHECK_STR(code_of("<?xml?><Error><Code>NoSuchKey</Code><Key>x</Key></Error>"), "NoSuchKey");
    CHECK_STR(code_of("<Code>A</Code><Code>B</Code>"), "A");
    static const char *const none[] = {"",           "<Code>",      "<Code>NoSuch",
                                       "<code>A<",   "<Code>a b</", "<Code>TwelveBytes_</Code>",
                                       "<Code></Co", "Code>A<"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        CHECK_STR(code_of(none[i]), "");
    }
}
