/* Any bytes as up to four moov boxes, one behind the other, are sources of a concatenation: each is
 * taken or refused with a typed error, and what comes out reads back as what went in. */
#include "concat_oracle.h"

#include "demux/mp4_write.h"

#include <stdlib.h>

#define FILE_SIZE   (1 << 20) /* of the file that each moov claims to lie in */
#define MAX_SOURCES 4

#define PROMISE(condition)  \
    do {                    \
        if (!(condition)) { \
            abort();        \
        }                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(rp_status status, const struct rp_error *err)
{
    PROMISE(status == RP_E_FORMAT || status == RP_E_UNSUPPORTED);
    PROMISE(err->code == status && err->what[0] != '\0');
}

/* Add one moov; its index if the plan took it, else NULL. */
static rp_index *add(rp_concat *plan, const uint8_t *moov, size_t len)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_index *index = NULL, *again = NULL;
    if (rp_index_parse(moov, len, FILE_SIZE, &index, NULL) != RP_OK) {
        return NULL;
    }
    rp_status status = rp_concat_add(plan, &index, &err);
    PROMISE((index == NULL) == (status == RP_OK));
    if (status != RP_OK) {
        check_error(status, &err);
        rp_index_free(&index);
        return NULL;
    }
    PROMISE(rp_index_parse(moov, len, FILE_SIZE, &again, NULL) == RP_OK);
    return again;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rp_concat *plan = NULL;
    rp_index *source[MAX_SOURCES];
    int n = 0;
    PROMISE(rp_concat_new(&plan, NULL) == RP_OK);
    while (size >= 8 && n < MAX_SOURCES) {
        size_t box = (size_t)data[0] << 24 | (size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3];
        box = box < 8 || box > size ? size : box;
        rp_index *index = add(plan, data, box);
        if (index != NULL) {
            source[n++] = index;
        }
        data += box;
        size -= box;
    }
    if (n > 0) {
        struct rp_error err;
        rp_error_clear(&err);
        rp_status status = rp_concat_finish(plan, &err);
        if (status != RP_OK) {
            check_error(status, &err);
        }
        else {
            PROMISE(concat_fault(plan, source, n) == NULL);
        }
    }
    while (n > 0) {
        rp_index_free(&source[--n]);
    }
    rp_concat_free(&plan);
    return 0;
}
