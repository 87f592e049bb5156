#include "demux/mp4_priv.h"

#include "base/bytes.h"

struct rp_box_text rp_box_name(uint32_t type)
{
    struct rp_box_text text = {{0}};
    for (int i = 0; i < 4; i++) {
        uint32_t c = type >> (24 - 8 * i) & 0xFF;
        text.s[i] = c >= 0x20 && c < 0x7F ? (char)c : '.';
    }
    return text;
}

struct rp_box_cursor rp_box_open(const struct rp_box *box, size_t skip)
{
    /* The payload ends where the box does, whichever header form it has. */
    return (struct rp_box_cursor){
        .data = box->data + skip, .len = box->len - skip, .at = box->at + 8 + skip};
}

static bool only_zeros(const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (data[i] != 0) {
            return false;
        }
    }
    return true;
}

rp_status rp_box_next(struct rp_box_cursor *cursor, struct rp_box *out, struct rp_error *err)
{
    if (cursor->len < 8) {
        if (!only_zeros(cursor->data, cursor->len)) {
            RP_FAIL(err, RP_E_FORMAT, "%zu stray bytes after the last box at byte %zu of moov",
                    cursor->len, cursor->at);
        }
        return RP_END;
    }
    uint64_t size = rp_be32(cursor->data);
    uint32_t type = rp_be32(cursor->data + 4);
    size_t header = 8;
    if (size == 1) {
        header = 16;
        size = cursor->len >= 16 ? rp_be64(cursor->data + 8) : 0;
    }
    if (size < header || size > cursor->len) {
        RP_FAIL(err, RP_E_FORMAT,
                "box '%s' at byte %zu of moov declares %llu bytes, its parent has %zu left",
                rp_box_name(type).s, cursor->at, (unsigned long long)size, cursor->len);
    }
    /* `at` is kept so that payload = at + 8 holds for the 16-byte header too. */
    *out = (struct rp_box){.type = type,
                           .at = cursor->at + header - 8,
                           .data = cursor->data + header,
                           .len = (size_t)size - header};
    cursor->data += size;
    cursor->len -= (size_t)size;
    cursor->at += (size_t)size;
    return RP_OK;
}

rp_status rp_box_need(const struct rp_box *box, size_t need, struct rp_error *err)
{
    if (box->len < need) {
        RP_FAIL(err, RP_E_FORMAT, "box '%s' at byte %zu of moov has %zu bytes, needs %zu",
                rp_box_name(box->type).s, box->at, box->len, need);
    }
    return RP_OK;
}

rp_status rp_box_version(const struct rp_box *box, size_t need0, size_t need1, int *version,
                         struct rp_error *err)
{
    RP_TRY(rp_box_need(box, 4, err));
    if (box->data[0] > 1) {
        RP_FAIL(err, RP_E_UNSUPPORTED,
                "box '%s' at byte %zu of moov has version %d, 0 and 1 are known",
                rp_box_name(box->type).s, box->at, box->data[0]);
    }
    *version = box->data[0];
    return rp_box_need(box, *version == 0 ? need0 : need1, err);
}

rp_status rp_box_table(const struct rp_box *box, size_t head, size_t entry, uint32_t *count,
                       const uint8_t **entries, struct rp_error *err)
{
    RP_TRY(rp_box_need(box, head, err));
    uint32_t n = rp_be32(box->data + head - 4);
    if (n > (box->len - head) / entry) {
        RP_FAIL(err, RP_E_FORMAT,
                "box '%s' at byte %zu of moov declares %u entries of %zu bytes, it has %zu bytes",
                rp_box_name(box->type).s, box->at, n, entry, box->len - head);
    }
    *count = n;
    *entries = box->data + head;
    return RP_OK;
}
