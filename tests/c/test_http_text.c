/* Headers as facts: ranges, lengths, dates, rate limits, versions, and the limits of a head. */
#include "harness.h"

#include "fetch/http_text.h"

static struct rp_http_head head;

/* Headers by lines, after a status line of 206; the empty line is added. */
static void read_head(const char *text)
{
    rp_http_head_clear(&head);
    REQUIRE_EQ(rp_http_head_line(&head, "HTTP/1.1 206 X\r\n", 16), RP_OK);
    while (*text != '\0') {
        size_t len = strcspn(text, "\n");
        REQUIRE_EQ(rp_http_head_line(&head, text, len), RP_OK);
        text += len + (text[len] == '\n');
    }
    REQUIRE_EQ(rp_http_head_line(&head, "\r\n", 2), RP_OK);
    CHECK(head.complete);
}

RP_TEST(a_range)
{
    read_head("Content-Range: bytes 10-19/100\nCONTENT-length:10\r\n");
    CHECK(head.has_range && !head.conflict);
    CHECK_EQ(head.first, 10);
    CHECK_EQ(head.last, 19);
    CHECK_EQ(head.total, 100);
    CHECK_EQ(head.content_length, 10);
    read_head("content-range: bytes */7");
    CHECK(head.has_range && !head.conflict && head.first == -1 && head.total == 7);
    read_head("content-range: bytes 0-1/*");
    CHECK(!head.conflict && head.last == 1 && head.total == -1);
}

RP_TEST(what_is_no_range)
{
    static const char *const bad[] = {"",
                                      "bytes",
                                      "bytes 1-2",
                                      "bytes 2-1/9",
                                      "bytes 1-9/9",
                                      "bytes -1-2/9",
                                      "bytes 1-/9",
                                      "lines 1-2/9",
                                      "bytes 1-2/",
                                      "bytes 1-2/9x",
                                      "bytes 1 -2/9",
                                      "bytes a-b/c",
                                      "bytes */",
                                      "bytes 1-99999999999999999999/9",
                                      "bytes 0-1/-5"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char line[100];
        snprintf(line, sizeof(line), "Content-Range: %s", bad[i]);
        read_head(line);
        if (!head.conflict) {
            rp_fail_at(__FILE__, __LINE__, "taken: %s", bad[i]);
        }
    }
}

RP_TEST(headers_that_contradict_each_other)
{
    read_head("Content-Length: 5\nContent-Length: 5\n");
    CHECK(!head.conflict);
    read_head("Content-Length: 5\nContent-Length: 6\n");
    CHECK(head.conflict);
    read_head("Content-Length: 5, 5\n");
    CHECK(head.conflict);
    read_head("Content-Range: bytes 0-1/5\nContent-Range: bytes 0-1/6\n");
    CHECK(head.conflict);
    read_head("Location: /a\nLocation: /b\n");
    CHECK(head.conflict);
    read_head("Location: /a\nLocation: /a\n");
    CHECK(!head.conflict && head.moved);
    CHECK_STR(head.location, "/a");
}

RP_TEST(versions)
{
    read_head("ETag: \"abc\"\nLast-Modified: Tue, 14 Jul 2026 10:15:00 GMT\n");
    CHECK_STR(head.etag, "abc");
    CHECK_STR(head.last_modified, "Tue, 14 Jul 2026 10:15:00 GMT");
    read_head("ETag: W/\"abc\"\nX-Linked-ETag: W/\"def\"\nX-Linked-Size: 12\n");
    CHECK_STR(head.etag, ""); /* a weak one does not promise the same bytes */
    CHECK_STR(head.linked_etag, "def");
    CHECK_EQ(head.linked_size, 12);
    read_head("X-Xet-Hash: 0123\n");
    CHECK_STR(head.linked_etag, "0123");
    read_head("ETag: \"a\x01"
              "b\"\n");
    CHECK_STR(head.etag, "a?b");
    char line[200] = "ETag: ";
    memset(line + 6, 'e', 150);
    read_head(line);
    CHECK_STR(head.etag, ""); /* half of one would equal another's half */
}

RP_TEST(bodies_in_disguise)
{
    read_head("Content-Encoding: identity\nContent-Type: text/plain\n");
    CHECK(!head.encoded && !head.html);
    read_head("Content-Encoding: gzip\nContent-Type: Text/HTML; charset=x\n");
    CHECK(head.encoded && head.html);
}

RP_TEST(waits)
{
    read_head("Retry-After: 17\n");
    CHECK_EQ(rp_http_head_wait(&head), 17);
    read_head("Date: Tue, 14 Jul 2026 10:15:00 GMT\nRetry-After: Tue, 14 Jul 2026 10:16:30 GMT\n");
    CHECK_EQ(rp_http_head_wait(&head), 90);
    read_head("Date: Tue, 14 Jul 2026 10:15:00 GMT\nRetry-After: Tue, 14 Jul 2026 10:14:00 GMT\n");
    CHECK_EQ(rp_http_head_wait(&head), 0);
    read_head("Retry-After: soon\n");
    CHECK_EQ(rp_http_head_wait(&head), -1);
    read_head("RateLimit: \"resolvers\";r=0;t=31\n");
    CHECK_EQ(rp_http_head_wait(&head), 31);
    read_head("RateLimit: \"api\";r=5;t=31\n");
    CHECK_EQ(rp_http_head_wait(&head), -1);
}

RP_TEST(pace)
{
    read_head("RateLimit: \"resolvers\";r=3000;t=300\nRateLimit-Policy: \"x\";q=3000;w=300\n");
    CHECK_EQ(rp_http_head_pace_ns(&head), 0);
    read_head("RateLimit: \"resolvers\";r=100;t=300\nRateLimit-Policy: \"x\";q=3000;w=300\n");
    CHECK_EQ(rp_http_head_pace_ns(&head), 3000000000);
    read_head("RateLimit: \"resolvers\";r=100;t=300\n");
    CHECK_EQ(rp_http_head_pace_ns(&head), 0);
}

RP_TEST(dates)
{
    CHECK_EQ(rp_http_date("Thu, 01 Jan 1970 00:00:00 GMT", 29), 0);
    CHECK_EQ(rp_http_date("Tue, 14 Jul 2026 10:15:00 GMT", 29), 1784024100);
    CHECK_EQ(rp_http_date("Tue, 14 Jul 2026 10:15:00 UTC", 29), -1);
    CHECK_EQ(rp_http_date("Tue, 14 Jux 2026 10:15:00 GMT", 29), -1);
    CHECK_EQ(rp_http_date("Tue, 31 Feb 2026 10:15:00 GMT", 29), -1);
    CHECK_EQ(rp_http_date("Tue, 14 Jul 2026 24:15:00 GMT", 29), -1);
    CHECK_EQ(rp_http_date("", 0), -1);
}

RP_TEST(an_interim_answer_is_not_the_answer)
{
    rp_http_head_clear(&head);
    CHECK_EQ(rp_http_head_line(&head, "HTTP/1.1 103 Early\r\n", 20), RP_OK);
    CHECK_EQ(rp_http_head_line(&head, "Content-Length: 9\r\n", 19), RP_OK);
    CHECK_EQ(rp_http_head_line(&head, "\r\n", 2), RP_OK);
    CHECK(!head.complete);
    CHECK_EQ(rp_http_head_line(&head, "HTTP/1.1 206 X\r\n", 16), RP_OK);
    CHECK_EQ(head.content_length, -1);
    CHECK_EQ(head.status, 206);
    CHECK_EQ(rp_http_head_line(&head, "\r\n", 2), RP_OK);
    CHECK(head.complete);
    CHECK_EQ(rp_http_head_line(&head, "Content-Length: 9\r\n", 19), RP_OK); /* a trailer */
    CHECK_EQ(head.content_length, -1);
}

RP_TEST(limits)
{
    rp_http_head_clear(&head);
    for (int i = 0; i < RP_HEAD_LINES; i++) {
        REQUIRE_EQ(rp_http_head_line(&head, "A: b\r\n", 6), RP_OK);
    }
    CHECK_EQ(rp_http_head_line(&head, "\r\n", 2), RP_E_HTTP);
    static char line[RP_HEAD_BYTES + 2];
    memset(line, 'x', sizeof(line));
    rp_http_head_clear(&head);
    CHECK_EQ(rp_http_head_line(&head, line, RP_HEAD_BYTES), RP_OK);
    CHECK_EQ(rp_http_head_line(&head, line, 1), RP_E_HTTP);
}

RP_TEST(what_hubs_and_buckets_say)
{
    read_head("X-Repo-Commit: c1\nX-Xet-Hash: \"e1\"\nX-Linked-ETag: \"a1\"\nDate: soon\n"
              "X-Amz-Bucket-Region: eu-west-1\nX-Error-Code: GatedRepo\n");
    CHECK_STR(head.repo_commit, "c1");
    CHECK_STR(head.xet_hash, "e1");
    CHECK_STR(head.linked_etag, "a1");
    CHECK_STR(head.bucket_region, "eu-west-1");
    CHECK_STR(head.error_code, "GatedRepo");
    CHECK_STR(head.date_text, "soon");
    read_head("X-Error-Code: a\x02"
              "b\n");
    CHECK_STR(head.error_code, "a?b");
}

RP_TEST(links)
{
    read_head("Link: </a>; rel=\"next\"\nlink: </b>\n");
    CHECK_STR(head.link, "</a>; rel=\"next\", </b>");
    char text[9000] = "Link: </a>\nLink: ";
    memset(text + 17, 'x', sizeof(text) - 18);
    read_head(text);
    CHECK_STR(head.link, "</a>");
    CHECK(head.links_lost);
    read_head("");
    CHECK(head.link[0] == '\0' && !head.links_lost);
}
