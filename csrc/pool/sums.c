#include "pool/sums.h"

#include "base/crc32c.h"
#include "demux/index_sidecar.h"

#include <string.h>

#define STEP        64 /* samples looked at per read */
#define MAX_SIDECAR (48 + RP_SIDECAR_MAX_PATH + 4 * RP_SIDECAR_MAX_SAMPLES) /* bytes */

/* Bytes that grow with the largest read. */
struct room {
    uint8_t *bytes;
    size_t cap;
};

static rp_status make_room(struct room *room, int64_t len, struct rp_error *err)
{
    if ((size_t)len > room->cap) {
        uint8_t *grown = rp_realloc(room->bytes, (size_t)len, 1);
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld bytes of video", (long long)len);
        }
        room->bytes = grown;
        room->cap = (size_t)len;
    }
    return RP_OK;
}

static rp_status sum_samples(rp_files *files, int i, const rp_index *index, struct room *room,
                             uint32_t *sums, struct rp_error *err)
{
    int64_t n = rp_index_samples(index);
    for (int64_t at = 0; at < n;) {
        int64_t last = at + STEP - 1 < n - 1 ? at + STEP - 1 : n - 1, covered;
        struct rp_byte_range range;
        RP_TRY(rp_index_range(index, at, last, &covered, &range, err));
        RP_TRY(make_room(room, range.len, err));
        RP_TRY(rp_files_read(files, i, range.offset, range.len, room->bytes, err));
        for (; at <= covered; at++) {
            struct rp_sample sample;
            rp_index_sample(index, at, &sample);
            sums[at] = rp_crc32c(0, room->bytes + (sample.offset - range.offset), sample.size);
        }
    }
    return RP_OK;
}

static rp_status sums_of(rp_files *files, int i, const char *path, const rp_index *index,
                         uint32_t header_sum, rp_buf **out, struct rp_error *err)
{
    struct rp_sidecar facts = {.samples = rp_index_samples(index),
                               .header = header_sum,
                               .path = path,
                               .path_len = strlen(path)};
    RP_TRY(rp_files_version(files, i, &facts.file_size, &facts.mtime_ns, err));
    uint32_t *sums = rp_calloc((size_t)facts.samples, sizeof(*sums));
    if (sums == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld check sums", (long long)facts.samples);
    }
    struct room room = {0};
    rp_status status = sum_samples(files, i, index, &room, sums, err);
    if (status == RP_OK) {
        status = rp_sidecar_write(&facts, sums, out, err);
    }
    rp_free(room.bytes);
    rp_free(sums);
    return status;
}

rp_status rp_video_sums(rp_files *files, int i, const char *path, rp_buf **out,
                        struct rp_error *err)
{
    rp_index *index = NULL;
    uint32_t header_sum;
    RP_TRY(rp_video_header_read(files, i, &index, &header_sum, NULL, err));
    rp_status status = sums_of(files, i, path, index, header_sum, out, err);
    rp_index_free(&index);
    if (status != RP_OK) {
        rp_error_at_file(err, rp_files_path(files, i), -1, -1);
    }
    return status;
}

/* All bytes of a small file. RP_END: it is not there; RP_AGAIN: it cannot be read, or is larger
 * than any sidecar. */
static rp_status read_sidecar(const char *place, rp_buf **out, struct rp_error *err)
{
    rp_files *files = NULL;
    int64_t size;
    struct rp_error why;
    rp_error_clear(&why);
    RP_TRY(rp_files_new(&place, 1, 1, &files, err));
    rp_status status = rp_files_size(files, 0, &size, &why);
    if (status == RP_OK && size > MAX_SIDECAR) {
        status = RP_E_FORMAT;
    }
    if (status == RP_OK) {
        status = rp_buf_new((size_t)size, out, &why);
    }
    if (status == RP_OK) {
        status = rp_files_read(files, 0, 0, size, (*out)->data, &why);
        if (status != RP_OK) {
            rp_buf_unref(out);
        }
    }
    rp_files_free(&files);
    if (status == RP_E_NOMEM) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for the check sums of a file");
    }
    return status == RP_OK ? RP_OK : status == RP_E_NOT_FOUND ? RP_END : RP_AGAIN;
}

static rp_status take_sums(rp_files *files, int i, const rp_buf *buf, const rp_index *index,
                           uint32_t header_sum, uint32_t **out, struct rp_error *err)
{
    struct rp_sidecar got;
    int64_t size, mtime_ns;
    if (rp_sidecar_parse(buf->data, buf->len, &got, NULL) != RP_OK) {
        return RP_AGAIN;
    }
    RP_TRY(rp_files_version(files, i, &size, &mtime_ns, err));
    if (got.file_size != size || got.mtime_ns != mtime_ns) {
        return RP_AGAIN;
    }
    if (got.header != header_sum || got.samples != rp_index_samples(index)) {
        RP_FAIL(err, RP_E_FORMAT,
                "checksum differs: the file's header is not the one that was summed up");
    }
    uint32_t *sums = rp_calloc((size_t)got.samples, sizeof(*sums));
    if (sums == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld check sums", (long long)got.samples);
    }
    for (int64_t k = 0; k < got.samples; k++) {
        sums[k] = rp_sidecar_sum(&got, k);
    }
    *out = sums;
    return RP_OK;
}

rp_status rp_video_sums_load(rp_files *files, int i, const char *place, const rp_index *index,
                             uint32_t header_sum, uint32_t **out, struct rp_error *err)
{
    rp_buf *buf = NULL;
    RP_TRY(read_sidecar(place, &buf, err));
    rp_status status = take_sums(files, i, buf, index, header_sum, out, err);
    rp_buf_unref(&buf);
    if (status < RP_OK) {
        rp_error_at_file(err, rp_files_path(files, i), -1, -1);
    }
    return status;
}
