/* Any lines as the headers of an answer: numbers stay in their ranges, texts end, and an answer
 * that is judged good or short agrees with what was asked for. */
#include "fetch/http_priv.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)  \
    do {                    \
        if (!(condition)) { \
            abort();        \
        }                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_head(const struct rp_http_head *head)
{
    PROMISE(head->lines <= RP_HEAD_LINES && head->bytes <= RP_HEAD_BYTES);
    PROMISE(memchr(head->location, '\0', sizeof(head->location)) != NULL);
    PROMISE(memchr(head->etag, '\0', sizeof(head->etag)) != NULL);
    PROMISE(memchr(head->linked_etag, '\0', sizeof(head->linked_etag)) != NULL);
    PROMISE(rp_http_head_wait(head) >= -1 && rp_http_head_pace_ns(head) >= 0);
    const char *why = NULL;
    struct rp_http_wish wish = {.first = 0, .last = 99, .size = 1000, .etag = "v"};
    enum rp_http_row row = rp_http_judge(head, &wish, &why);
    PROMISE(why != NULL);
    if (row == RP_ROW_GOOD || row == RP_ROW_SHORT) {
        PROMISE(head->status == 206 && head->first == 0 && head->total == 1000);
        PROMISE(head->last >= 0 && head->last <= 99 && (row == RP_ROW_GOOD) == (head->last == 99));
        PROMISE(!head->encoded && !head->html && strcmp(head->etag, "v") == 0);
    }
    struct rp_http_options options;
    rp_http_defaults(&options);
    struct rp_http_seen seen = {.row = row, .wait_s = rp_http_head_wait(head), .left = 1000};
    struct rp_http_tries tries = {0};
    struct rp_http_verdict verdict;
    rp_http_decide(&seen, &tries, &options.timing, head->bytes * 0x9e3779b97f4a7c15u, &verdict);
    PROMISE(verdict.wait_ms >= 0 && verdict.wait_ms <= 250 && verdict.gate_ms >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rp_http_head *head = malloc(sizeof(*head));
    PROMISE(head != NULL);
    rp_http_head_clear(head);
    size_t at = 0;
    while (at < size) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t len = end != NULL ? (size_t)(end - data) - at + 1 : size - at;
        char *line = malloc(len); /* a block of its own: reads past it are seen */
        PROMISE(line != NULL);
        memcpy(line, data + at, len);
        rp_status status = rp_http_head_line(head, line, len);
        free(line);
        if (status != RP_OK) {
            PROMISE(status == RP_E_HTTP);
            free(head);
            return 0;
        }
        at += len;
    }
    check_head(head);
    free(head);
    return 0;
}
