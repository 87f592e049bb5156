/* Check sums as a file: written and read again, and every way to be refused. */
#include "demux/index_sidecar.h"

#include "harness.h"

#include "base/crc32c.h"

static const uint32_t some_sums[] = {0, 1, 0xffffffffu, 0x12345678u, 42};

static struct rp_sidecar some_facts(void)
{
    return (struct rp_sidecar){.file_size = 1234567890123,
                               .mtime_ns = -5,
                               .samples = 5,
                               .header = 0xdeadbeefu,
                               .path = "/data/a.mp4",
                               .path_len = 11};
}

static rp_buf *some_sidecar(void)
{
    struct rp_sidecar facts = some_facts();
    rp_buf *buf = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_sidecar_write(&facts, some_sums, &buf, &err), &err);
    return buf;
}

static void fix_sum(uint8_t *data, size_t len)
{
    uint32_t sum = rp_crc32c(0, data + 16, len - 16);
    for (int i = 0; i < 4; i++) {
        data[12 + i] = (uint8_t)(sum >> 8 * i);
    }
}

static void refused(const uint8_t *data, size_t len, const char *part)
{
    struct rp_sidecar got = {.samples = 77};
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_sidecar_parse(data, len, &got, &err), RP_E_FORMAT, &err);
    (void)CHECK_CONTAINS(err.what, part);
    (void)CHECK_EQ(got.samples, 77);
}

RP_TEST(what_is_written_is_read)
{
    rp_buf *buf = some_sidecar();
    struct rp_sidecar got;
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_sidecar_parse(buf->data, buf->len, &got, &err), &err);
    (void)CHECK_EQ(got.file_size, 1234567890123);
    (void)CHECK_EQ(got.mtime_ns, -5);
    (void)CHECK_EQ(got.samples, 5);
    (void)CHECK_EQ(got.header, 0xdeadbeefu);
    (void)CHECK_EQ(got.path_len, 11);
    (void)CHECK_MEM(got.path, "/data/a.mp4", 11);
    for (int i = 0; i < 5; i++) {
        (void)CHECK_EQ(rp_sidecar_sum(&got, i), some_sums[i]);
    }
    rp_buf_unref(&buf);
}

RP_TEST(every_flipped_bit_and_every_other_length_is_refused)
{
    rp_buf *buf = some_sidecar();
    for (size_t bit = 0; bit < 8 * buf->len; bit++) {
        buf->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        refused(buf->data, buf->len, "check sums");
        buf->data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t len = 0; len < buf->len; len++) {
        refused(buf->data, len, "check sums");
    }
    refused(buf->data, buf->len + 4, "their fields say"); /* padding of the buffer */
    rp_buf_unref(&buf);
}

/* Somebody who can compute the sum gets no further. */
RP_TEST(lying_fields_are_refused)
{
    static const struct {
        size_t at;
        uint8_t value;
        const char *part;
    } lies[] = {
        {23, 0x80, "out of range"},   /* file size beyond int64 */
        {32, 0, "out of range"},      /* no samples */
        {32, 4, "their fields say"},  /* fewer */
        {36, 1, "out of range"},      /* 2^32 more */
        {35, 1, "out of range"},      /* 2^24 more */
        {44, 0, "out of range"},      /* no path */
        {44, 12, "their fields say"}, /* a longer one */
        {47, 0xff, "out of range"},   /* one of gigabytes */
    };
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        rp_buf *buf = some_sidecar();
        buf->data[lies[i].at] = lies[i].value;
        fix_sum(buf->data, buf->len);
        refused(buf->data, buf->len, lies[i].part);
        rp_buf_unref(&buf);
    }
    rp_buf *buf = some_sidecar();
    buf->data[8] = 2;
    refused(buf->data, buf->len, "version 2");
    rp_buf_unref(&buf);
}

RP_TEST(fields_out_of_range_are_not_written)
{
    struct rp_error err;
    rp_buf *buf = NULL;
    for (int i = 0; i < 5; i++) {
        struct rp_sidecar facts = some_facts();
        switch (i) {
        case 0: facts.file_size = -1; break;
        case 1: facts.samples = 0; break;
        case 2: facts.samples = RP_SIDECAR_MAX_SAMPLES + 1; break;
        case 3: facts.path_len = 0; break;
        default: facts.path_len = RP_SIDECAR_MAX_PATH + 1; break;
        }
        rp_error_clear(&err);
        (void)CHECK_STATUS(rp_sidecar_write(&facts, some_sums, &buf, &err), RP_E_ARG, &err);
        (void)CHECK(buf == NULL);
    }
}
