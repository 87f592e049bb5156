/* Any bytes as a file: find moov in it, or take all of it as moov when it starts like one. What is
 * accepted keeps the promises of demux.h. */
#include "base/memory.h"
#include "demux/demux.h"

#include <stdlib.h>
#include <string.h>

#define FILE_SIZE (1 << 20) /* of the file that a bare moov claims to lie in */

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

static void check_samples(const rp_index *index)
{
    int64_t n = rp_index_samples(index);
    int64_t addressable = 0, end = 0;
    PROMISE(n > 0 && n <= 16 << 20);
    for (int64_t i = 0; i < n; i++) {
        struct rp_sample s;
        rp_index_sample(index, i, &s);
        PROMISE(s.size > 0 && s.size <= 64 << 20);
        PROMISE(s.offset >= 0 && s.offset <= INT64_MAX - s.size);
        PROMISE(s.dts <= s.pts);
        PROMISE(s.pts > -(1LL << 61) && s.pts < 1LL << 61);
        PROMISE(!s.addressable || s.pts >= 0);
        addressable += s.addressable;
        end = s.addressable && s.pts > end ? s.pts : end;
    }
    PROMISE(addressable == rp_index_addressable(index));
    PROMISE(rp_index_duration(index) >= end);
}

static void check_order(const rp_index *index)
{
    int64_t before_pts = -1, before = -1;
    for (int64_t k = 0; k < rp_index_addressable(index); k++) {
        struct rp_sample s;
        int64_t i = rp_index_nth(index, k);
        PROMISE(i >= 0 && i < rp_index_samples(index));
        rp_index_sample(index, i, &s);
        PROMISE(s.addressable);
        PROMISE(s.pts > before_pts || (s.pts == before_pts && i > before));
        before_pts = s.pts;
        before = i;
    }
}

static void check_index(const uint8_t *moov, size_t len, int64_t file_size)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_index *index = NULL;
    rp_status status = rp_index_parse(moov, len, file_size, &index, &err);
    if (status != RP_OK) {
        PROMISE(index == NULL);
        check_error(status, &err);
        return;
    }
    const struct rp_codec_params *codec = rp_index_codec(index);
    PROMISE(codec->width > 0 && codec->height > 0 && codec->extradata_len <= len);
    PROMISE(codec->full_range >= -1 && codec->full_range <= 1);
    PROMISE(rp_index_timescale(index) > 0);
    check_samples(index);
    check_order(index);
    rp_index_free(&index);
}

static void check_search(const uint8_t *data, size_t size)
{
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_moov_search search = {0};
    struct rp_byte_range need = {0}, moov = {0};
    rp_status status = RP_AGAIN;
    for (int steps = 0; status == RP_AGAIN; steps++) {
        PROMISE(steps < 2000);
        PROMISE(need.offset >= 0 && need.len >= 0 && need.offset + need.len <= (int64_t)size);
        status = rp_moov_find(&search, data + need.offset, need.offset, (size_t)need.len,
                              (int64_t)size, &need, &moov, &err);
    }
    if (status != RP_OK) {
        check_error(status, &err);
        return;
    }
    PROMISE(moov.offset >= 0 && moov.len >= 8 && moov.offset + moov.len <= (int64_t)size);
    check_index(data + moov.offset, (size_t)moov.len, (int64_t)size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= 8 && memcmp(data + 4, "moov", 4) == 0) {
        check_index(data, size, FILE_SIZE);
    }
    check_search(data, size);
    return 0;
}
