#include "demux/mp4_priv.h"

#include "base/bytes.h"

#define HEAD_BYTES 4096
#define TAIL_BYTES (1 << 20) /* asked for past `mdat`: holds the `moov` of nearly every file */
#define MAX_BOXES  1024

struct header {
    uint32_t type;
    int64_t size; /* bytes, header included */
};

/* Read the box header at `p`; `have` bytes of the file lie there, `rest` remain to its end. */
static rp_status read_header(const uint8_t *p, size_t have, int64_t at, int64_t rest,
                             struct header *out, struct rp_error *err)
{
    uint64_t size = rp_be32(p);
    uint64_t least = 8;
    out->type = rp_be32(p + 4);
    if (size == 0) {
        size = (uint64_t)rest;
    }
    else if (size == 1) {
        least = 16;
        size = have >= 16 ? rp_be64(p + 8) : 0;
    }
    if (size < least) {
        rp_status code = rp_error_set(err, RP_E_FORMAT,
                                      "broken box '%s' of %llu bytes: not an MP4 file or damaged",
                                      rp_box_name(out->type).s, (unsigned long long)size);
        rp_error_at_file(err, NULL, at, 8);
        return code;
    }
    if (size > (uint64_t)rest) {
        rp_status code = rp_error_set(
            err, RP_E_FORMAT,
            "truncated, or not an MP4 file: box '%s' declares %llu bytes, the file has %lld left",
            rp_box_name(out->type).s, (unsigned long long)size, (long long)rest);
        rp_error_at_file(err, NULL, at, rest);
        return code;
    }
    out->size = (int64_t)size;
    return RP_OK;
}

static rp_status found_moov(const struct header *box, int64_t at, struct rp_byte_range *moov,
                            struct rp_error *err)
{
    if (box->size > RP_MAX_MOOV) {
        rp_status code = rp_error_set(err, RP_E_UNSUPPORTED, "moov of %lld bytes, the limit is %d",
                                      (long long)box->size, RP_MAX_MOOV);
        rp_error_at_file(err, NULL, at, box->size);
        return code;
    }
    *moov = (struct rp_byte_range){.offset = at, .len = box->size};
    return RP_OK;
}

rp_status rp_moov_find(struct rp_moov_search *search, const uint8_t *data, int64_t data_offset,
                       size_t len, int64_t file_size, struct rp_byte_range *need,
                       struct rp_byte_range *moov, struct rp_error *err)
{
    for (;;) {
        int64_t at = search->at;
        int64_t rest = file_size - at;
        if (rest < 8) {
            RP_FAIL(err, RP_E_FORMAT, "no moov box among the %d boxes of the file's %lld bytes",
                    search->boxes, (long long)file_size);
        }
        size_t wanted = rest < 16 ? 8 : 16;
        int64_t skip = at - data_offset; /* both >= 0: no overflow */
        if (skip < 0 || (uint64_t)skip > len || len - (size_t)skip < wanted) {
            int64_t most = at == 0 ? HEAD_BYTES : TAIL_BYTES;
            *need = (struct rp_byte_range){.offset = at, .len = rest < most ? rest : most};
            return RP_AGAIN;
        }
        struct header box = {0, 0};
        RP_TRY(read_header(data + skip, len - (size_t)skip, at, rest, &box, err));
        if (box.type == RP_FOURCC('m', 'o', 'o', 'v')) {
            return found_moov(&box, at, moov, err);
        }
        if (box.type == RP_FOURCC('m', 'o', 'o', 'f')) {
            rp_status code =
                rp_error_set(err, RP_E_UNSUPPORTED, "fragmented MP4: a moof box comes before moov");
            rp_error_at_file(err, NULL, at, box.size);
            return code;
        }
        if (++search->boxes > MAX_BOXES) {
            RP_FAIL(err, RP_E_FORMAT, "no moov among the first %d boxes", MAX_BOXES);
        }
        search->at = at + box.size;
    }
}
