/* Which row of the failure table an answer belongs to, and what follows from a row. */
#include "harness.h"

#include "fetch/http_priv.h"

static struct rp_http_head head;
static const char *why;

/* A sound answer to bytes 10-19 of 100, to be spoilt. */
static void sound(void)
{
    rp_http_head_clear(&head);
    head.status = 206;
    head.complete = head.has_range = true;
    head.first = 10;
    head.last = 19;
    head.total = 100;
    head.content_length = 10;
    (void)snprintf(head.etag, sizeof(head.etag), "v1");
    (void)snprintf(head.last_modified, sizeof(head.last_modified), "monday");
}

static struct rp_http_wish wish(void)
{
    return (struct rp_http_wish){.first = 10, .last = 19, .size = 100, .etag = "v1"};
}

static enum rp_http_row judge(const struct rp_http_wish *want)
{
    return rp_http_judge(&head, want, &why);
}

static enum rp_http_row judge_status(int status, bool foreign)
{
    struct rp_http_wish want = wish();
    want.foreign = foreign;
    rp_http_head_clear(&head);
    head.status = status;
    head.complete = true;
    return judge(&want);
}

RP_TEST(sound_answers)
{
    struct rp_http_wish want = wish();
    sound();
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
    head.last = 15;
    head.content_length = 6;
    CHECK_EQ(judge(&want), RP_ROW_SHORT);
    sound();
    want.size = -1;
    want.etag = "";
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
}

RP_TEST(odd_answers)
{
    struct rp_http_wish want = wish();
#define ODD(spoil)                          \
    do {                                    \
        sound();                            \
        spoil;                              \
        CHECK_EQ(judge(&want), RP_ROW_ODD); \
        CHECK(why[0] != '\0');              \
    } while (0)
    ODD(head.status = 200);
    ODD(head.has_range = false);
    ODD(head.total = -1);
    ODD(head.first = 11);
    ODD(head.first = 9);
    ODD(head.last = 20);
    ODD(head.content_length = 11);
    ODD(head.conflict = true);
    ODD(head.encoded = true);
    ODD(head.html = true);
    want.whole = true;
    ODD((void)0);
}

RP_TEST(another_version)
{
    struct rp_http_wish want = wish();
    sound();
    head.etag[1] = '2';
    CHECK_EQ(judge(&want), RP_ROW_CHANGED);
    sound();
    head.etag[0] = '\0';
    CHECK_EQ(judge(&want), RP_ROW_CHANGED);
    sound();
    head.total = 101;
    CHECK_EQ(judge(&want), RP_ROW_CHANGED);
    want.etag = NULL;
    want.last_modified = "tuesday";
    sound();
    CHECK_EQ(judge(&want), RP_ROW_CHANGED);
    want.last_modified = "monday";
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
    CHECK_EQ(judge_status(412, false), RP_ROW_CHANGED);
    CHECK_EQ(judge_status(416, false), RP_ROW_CHANGED);
}

RP_TEST(probes_and_whole_files)
{
    struct rp_http_wish want = {.probe = true, .size = -1};
    sound();
    head.first = head.last = 0;
    head.content_length = 1;
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
    head.status = 200;
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
    head.content_length = -1;
    CHECK_EQ(judge(&want), RP_ROW_ODD);
    head.status = 416;
    head.first = head.last = -1;
    head.total = 0;
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
    want.size = 5;
    CHECK_EQ(judge(&want), RP_ROW_CHANGED);
    want = (struct rp_http_wish){.whole = true, .size = 10, .last = 9};
    sound();
    head.status = 200;
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
    head.content_length = 9;
    CHECK_EQ(judge(&want), RP_ROW_CHANGED);
}

RP_TEST(rows_of_statuses)
{
    static const int busy[] = {408, 425, 500, 502, 503, 504, 520, 521, 522, 523, 524};
    for (size_t i = 0; i < sizeof(busy) / sizeof(busy[0]); i++) {
        CHECK_EQ(judge_status(busy[i], true), RP_ROW_BUSY);
        head.retry_after = 3;
        struct rp_http_wish want = wish();
        CHECK_EQ(judge(&want), RP_ROW_LIMITED);
    }
    CHECK_EQ(judge_status(429, false), RP_ROW_LIMITED);
    static const int refusals[] = {401, 403, 404, 410};
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        CHECK_EQ(judge_status(refusals[i], true), RP_ROW_REFUSED);
        CHECK_EQ(judge_status(refusals[i], false), RP_ROW_DENIED);
    }
    CHECK_EQ(judge_status(400, true), RP_ROW_REFUSED);
    static const int fatal[] = {400, 402, 405, 418, 501, 505, 204, 300, 304, 302, 308, 0};
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++) {
        CHECK_EQ(judge_status(fatal[i], false), RP_ROW_FATAL); /* 302, 308: without Location */
    }
    static const int moved[] = {301, 302, 303, 307, 308};
    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        struct rp_http_wish want = wish();
        (void)judge_status(moved[i], false);
        head.moved = true;
        CHECK_EQ(judge(&want), RP_ROW_REDIRECT);
    }
}

static const struct rp_http_timing timing = {.network = 600000,
                                             .backoff = 250,
                                             .backoff_max = 15000,
                                             .gate_margin = 1000,
                                             .gate_jitter = 5000};

static struct rp_http_verdict decide(enum rp_http_row row, int status, struct rp_http_tries *tries,
                                     bool fresh, int64_t wait_s, uint64_t random)
{
    struct rp_http_verdict verdict;
    struct rp_http_seen seen = {
        .row = row, .status = status, .fresh = fresh, .wait_s = wait_s, .left = 600000};
    rp_http_decide(&seen, tries, &timing, random, &verdict);
    return verdict;
}

RP_TEST(back_off_doubles_up_to_its_bound)
{
    static const int64_t bound[] = {250, 500, 1000, 2000, 4000, 8000, 15000, 15000, 15000};
    struct rp_http_tries tries = {0};
    for (size_t i = 0; i < sizeof(bound) / sizeof(bound[0]); i++) {
        struct rp_http_verdict v = decide(RP_ROW_NETWORK, 0, &tries, false, -1, UINT32_MAX);
        CHECK_EQ(v.code, RP_OK);
        CHECK_EQ(v.wait_ms, bound[i] - 1);
        CHECK(v.reconnect && v.origin_weak && !v.resolve && v.gate_ms == 0);
    }
    CHECK_EQ(decide(RP_ROW_BUSY, 503, &tries, false, -1, 0).wait_ms, 0);
    for (int i = 0; i < 100000; i++) { /* never a count: the deadline alone ends it */
        CHECK_EQ(decide(RP_ROW_NETWORK, 0, &tries, false, -1, 0).code, RP_OK);
        CHECK_EQ(decide(RP_ROW_BUSY, 500, &tries, false, -1, 0).code, RP_OK);
    }
}

RP_TEST(gates)
{
    struct rp_http_tries tries = {0};
    struct rp_http_verdict v = decide(RP_ROW_LIMITED, 429, &tries, false, 7, 0);
    CHECK_EQ(v.gate_ms, 8000);
    CHECK_EQ(v.wait_ms, 0);
    CHECK(!v.origin_weak);
    v = decide(RP_ROW_LIMITED, 429, &tries, false, 7, UINT64_MAX);
    CHECK_EQ(v.gate_ms, 12999);
    v = decide(RP_ROW_LIMITED, 429, &tries, false, -1, UINT64_MAX);
    CHECK_EQ(v.gate_ms, 0);
    CHECK_EQ(v.wait_ms, 249);
    v = decide(RP_ROW_LIMITED, 429, &tries, false, 601, 0);
    CHECK_EQ(v.code, RP_E_TIMEOUT);
    CHECK(v.too_long);
    v = decide(RP_ROW_LIMITED, 429, &tries, false, INT64_MAX, 0);
    CHECK_EQ(v.code, RP_E_TIMEOUT);
}

RP_TEST(three_in_a_row)
{
    static const struct {
        enum rp_http_row row;
        int status;
        rp_status code;
    } cases[] = {{RP_ROW_REFUSED, 403, RP_E_AUTH},      {RP_ROW_REFUSED, 400, RP_E_AUTH},
                 {RP_ROW_REFUSED, 404, RP_E_NOT_FOUND}, {RP_ROW_REFUSED, 410, RP_E_NOT_FOUND},
                 {RP_ROW_ODD, 200, RP_E_HTTP},          {RP_ROW_CHANGED, 206, RP_E_CHANGED}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rp_http_tries tries = {0};
        for (int k = 0; k < 2; k++) {
            struct rp_http_verdict v = decide(cases[i].row, cases[i].status, &tries, true, -1, 0);
            CHECK_EQ(v.code, RP_OK);
            CHECK(v.resolve);
            CHECK_EQ(v.reconnect, cases[i].row == RP_ROW_ODD);
        }
        CHECK_EQ(decide(cases[i].row, cases[i].status, &tries, true, -1, 0).code, cases[i].code);
    }
    struct rp_http_tries tries = {0}; /* a cached target that ran out is no refusal yet */
    for (int k = 0; k < 9; k++) {
        CHECK_EQ(decide(RP_ROW_REFUSED, 403, &tries, false, -1, 0).code, RP_OK);
    }
}

RP_TEST(ends_at_once)
{
    struct rp_http_tries tries = {0};
    CHECK_EQ(decide(RP_ROW_DENIED, 401, &tries, false, -1, 0).code, RP_E_AUTH);
    CHECK_EQ(decide(RP_ROW_DENIED, 403, &tries, false, -1, 0).code, RP_E_AUTH);
    CHECK_EQ(decide(RP_ROW_DENIED, 404, &tries, false, -1, 0).code, RP_E_NOT_FOUND);
    CHECK_EQ(decide(RP_ROW_FATAL, 404, &tries, false, -1, 0).code, RP_E_HTTP);
    CHECK_EQ(decide(RP_ROW_SHORT, 206, &tries, false, -1, 0).wait_ms, 0);
    CHECK_EQ(rp_http_judge_end(RP_HTTP_BROKEN), RP_ROW_NETWORK);
    CHECK_EQ(rp_http_judge_end(RP_HTTP_UNTRUSTED), RP_ROW_FATAL);
    CHECK_EQ(rp_http_judge_end(RP_HTTP_HEAD_LIMIT), RP_ROW_FATAL);
    CHECK_EQ(rp_http_judge_end(RP_HTTP_FORBIDDEN), RP_ROW_FATAL);
    CHECK_EQ(rp_http_judge_end(RP_HTTP_MALFORMED), RP_ROW_ODD);
}

RP_TEST(pages)
{
    struct rp_http_wish want = {.page = true, .size = -1, .limit = 10};
    sound();
    CHECK_EQ(judge(&want), RP_ROW_ODD); /* a range */
    head.status = 200;
    head.has_range = false;
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
    head.content_length = -1;
    CHECK_EQ(judge(&want), RP_ROW_GOOD);
    head.content_length = 11;
    CHECK_EQ(judge(&want), RP_ROW_FATAL);
    head.content_length = 5;
    head.links_lost = true;
    CHECK_EQ(judge(&want), RP_ROW_ODD);
    head.links_lost = false;
    head.html = true;
    CHECK_EQ(judge(&want), RP_ROW_ODD);
}
