/* Any bytes as a sidecar: refused, or equal after a round trip. An input whose first byte is odd
 * gets its magic, version and sum put right first, so that the fields behind them are met. */
#include "base/crc32c.h"
#include "base/memory.h"
#include "demux/index_sidecar.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE(condition)  \
    do {                    \
        if (!(condition)) { \
            abort();        \
        }                   \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const struct rp_sidecar *got, const uint8_t *data, size_t size)
{
    PROMISE(got->samples > 0 && got->path_len > 0 && got->file_size >= 0);
    uint32_t *sums = malloc((size_t)got->samples * sizeof(*sums));
    PROMISE(sums != NULL);
    for (int64_t i = 0; i < got->samples; i++) {
        sums[i] = rp_sidecar_sum(got, i);
    }
    rp_buf *again = NULL;
    PROMISE(rp_sidecar_write(got, sums, &again, NULL) == RP_OK);
    PROMISE(again->len == size && memcmp(again->data, data, size) == 0);
    rp_buf_unref(&again);
    free(sums);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = malloc(size + 1);
    PROMISE(bytes != NULL);
    if (size > 0) {
        memcpy(bytes, data, size);
    }
    if (size >= 48 && (data[0] & 1) != 0) {
        memcpy(bytes, "rpsums\x1a\n\1\0\0\0", 12);
        uint32_t sum = rp_crc32c(0, bytes + 16, size - 16);
        for (int i = 0; i < 4; i++) {
            bytes[12 + i] = (uint8_t)(sum >> 8 * i);
        }
    }
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_sidecar got;
    rp_status status = rp_sidecar_parse(bytes, size, &got, &err);
    if (status == RP_OK) {
        check_round_trip(&got, bytes, size);
    }
    else {
        PROMISE(status == RP_E_FORMAT && err.code == status && err.what[0] != '\0');
    }
    free(bytes);
    return 0;
}
