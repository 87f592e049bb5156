#include "demux/index_sidecar.h"

#include "base/bytes.h"
#include "base/crc32c.h"

#include <assert.h>
#include <string.h>

#define VERSION 1
#define BODY    16 /* where the summed part starts */
#define HEAD    48 /* bytes before the path */

static const uint8_t magic[8] = {'r', 'p', 's', 'u', 'm', 's', 0x1a, '\n'};

rp_status rp_sidecar_parse(const uint8_t *data, size_t len, struct rp_sidecar *out,
                           struct rp_error *err)
{
    if (len < HEAD || memcmp(data, magic, sizeof(magic)) != 0) {
        RP_FAIL(err, RP_E_FORMAT, "not a file of check sums");
    }
    if (rp_le32(data + 8) != VERSION) {
        RP_FAIL(err, RP_E_FORMAT, "check sums of version %u, known is %d", rp_le32(data + 8),
                VERSION);
    }
    uint64_t size = rp_le64(data + 16), samples = rp_le64(data + 32);
    uint32_t path_len = rp_le32(data + 44);
    if (size > INT64_MAX || samples < 1 || samples > RP_SIDECAR_MAX_SAMPLES || path_len < 1 ||
        path_len > RP_SIDECAR_MAX_PATH) {
        RP_FAIL(err, RP_E_FORMAT, "check sums with a field out of range");
    }
    if (len != HEAD + (size_t)path_len + 4 * (size_t)samples) {
        RP_FAIL(err, RP_E_FORMAT, "check sums of %zu bytes, their fields say %zu", len,
                HEAD + (size_t)path_len + 4 * (size_t)samples);
    }
    if (rp_crc32c(0, data + BODY, len - BODY) != rp_le32(data + 12)) {
        RP_FAIL(err, RP_E_FORMAT, "check sums that are damaged themselves");
    }
    *out = (struct rp_sidecar){.file_size = (int64_t)size,
                               .mtime_ns = (int64_t)rp_le64(data + 24),
                               .samples = (int64_t)samples,
                               .header = rp_le32(data + 40),
                               .path = (const char *)data + HEAD,
                               .path_len = path_len,
                               .sums = data + HEAD + path_len};
    return RP_OK;
}

uint32_t rp_sidecar_sum(const struct rp_sidecar *sidecar, int64_t i)
{
    assert(i >= 0 && i < sidecar->samples);
    return rp_le32(sidecar->sums + 4 * i);
}

rp_status rp_sidecar_write(const struct rp_sidecar *facts, const uint32_t *sums, rp_buf **out,
                           struct rp_error *err)
{
    if (facts->file_size < 0 || facts->samples < 1 || facts->samples > RP_SIDECAR_MAX_SAMPLES ||
        facts->path_len < 1 || facts->path_len > RP_SIDECAR_MAX_PATH) {
        RP_FAIL(err, RP_E_ARG, "no check sums for %lld samples and a path of %zu bytes",
                (long long)facts->samples, facts->path_len);
    }
    rp_buf *buf = NULL;
    RP_TRY(rp_buf_new(HEAD + facts->path_len + 4 * (size_t)facts->samples, &buf, err));
    uint8_t *to = buf->data;
    memcpy(to, magic, sizeof(magic));
    rp_put_le32(to + 8, VERSION);
    rp_put_le64(to + 16, (uint64_t)facts->file_size);
    rp_put_le64(to + 24, (uint64_t)facts->mtime_ns);
    rp_put_le64(to + 32, (uint64_t)facts->samples);
    rp_put_le32(to + 40, facts->header);
    rp_put_le32(to + 44, (uint32_t)facts->path_len);
    memcpy(to + HEAD, facts->path, facts->path_len);
    for (int64_t i = 0; i < facts->samples; i++) {
        rp_put_le32(to + HEAD + facts->path_len + 4 * i, sums[i]);
    }
    rp_put_le32(to + 12, rp_crc32c(0, to + BODY, buf->len - BODY));
    *out = buf;
    return RP_OK;
}
