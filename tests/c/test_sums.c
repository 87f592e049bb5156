/* Check sums of whole files, and every picture decoded once, on the embedded clips. */
#include "pool/sums.h"

#include "harness.h"
#include "pool/pool.h"

#include "base/crc32c.h"
#include "demux/index_sidecar.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLIPS "python/reelpool/_demo/clips/"

static const char *const names[] = {"av1", "h264", "hevc", "mpeg4", "vp9"};

/* A copy of one clip that may be changed. */
struct copy {
    char path[64];
    uint8_t *data;
    size_t len;
    rp_files *files;
    rp_index *index;
};

static void save(const struct copy *c)
{
    FILE *file = fopen(c->path, "wb");
    REQUIRE(file != NULL && fwrite(c->data, 1, c->len, file) == c->len);
    (void)fclose(file);
}

static struct copy copy_clip(const char *name)
{
    struct copy c = {.path = "/tmp/rp_test_sums_XXXXXX"};
    struct rp_error err;
    char path[128];
    rp_error_clear(&err);
    snprintf(path, sizeof(path), CLIPS "%s.mp4", name);
    c.data = rp_read_file(path, &c.len);
    REQUIRE(c.data != NULL);
    int fd = mkstemp(c.path);
    REQUIRE(fd >= 0);
    (void)close(fd);
    save(&c);
    const char *only = c.path;
    REQUIRE_OK(rp_files_new(&only, 1, 1, &c.files, &err), &err);
    REQUIRE_OK(rp_video_index_read(c.files, 0, &c.index, NULL, &err), &err);
    return c;
}

/* Write the changed bytes and forget what was known of the file. */
static void change(struct copy *c)
{
    struct rp_error err;
    rp_error_clear(&err);
    save(c);
    rp_files_free(&c->files);
    const char *only = c->path;
    REQUIRE_OK(rp_files_new(&only, 1, 1, &c->files, &err), &err);
}

static void drop(struct copy *c)
{
    rp_index_free(&c->index);
    rp_files_free(&c->files);
    (void)unlink(c->path);
    free(c->data);
}

static struct rp_sidecar sums_of(const struct copy *c, rp_buf **buf)
{
    struct rp_sidecar got = {0};
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_video_sums(c->files, 0, "/some/where.mp4", buf, &err), &err);
    REQUIRE_OK(rp_sidecar_parse((*buf)->data, (*buf)->len, &got, &err), &err);
    return got;
}

RP_TEST(sums_are_those_of_the_samples)
{
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        struct copy c = copy_clip(names[n]);
        rp_buf *buf = NULL;
        struct rp_sidecar got = sums_of(&c, &buf);
        (void)CHECK_EQ(got.file_size, c.len);
        (void)CHECK_EQ(got.samples, rp_index_samples(c.index));
        (void)CHECK_EQ(got.path_len, 15);
        (void)CHECK(got.mtime_ns > 1600000000LL * 1000000000);
        for (int64_t i = 0; i < got.samples; i++) {
            struct rp_sample s;
            rp_index_sample(c.index, i, &s);
            (void)CHECK_EQ(rp_sidecar_sum(&got, i), rp_crc32c_c(0, c.data + s.offset, s.size));
        }
        rp_buf_unref(&buf);
        drop(&c);
    }
}

RP_TEST(one_flipped_bit_changes_one_sum)
{
    struct copy c = copy_clip("vp9");
    rp_buf *before = NULL, *after = NULL;
    struct rp_sidecar was = sums_of(&c, &before);
    struct rp_sample s;
    rp_index_sample(c.index, 7, &s);
    c.data[s.offset + s.size - 1] ^= 0x10;
    change(&c);
    struct rp_sidecar is = sums_of(&c, &after);
    for (int64_t i = 0; i < was.samples; i++) {
        (void)CHECK_EQ(rp_sidecar_sum(&was, i) == rp_sidecar_sum(&is, i), i != 7);
    }
    (void)CHECK_EQ(was.header, is.header);
    rp_buf_unref(&after);
    size_t at = 0; /* of mvhd's creation time, of which the index knows nothing */
    while (memcmp(c.data + at, "mvhd", 4) != 0) {
        at++;
    }
    c.data[at + 8] ^= 1;
    change(&c);
    is = sums_of(&c, &after);
    (void)CHECK(was.header != is.header);
    rp_buf_unref(&after);
    rp_buf_unref(&before);
    drop(&c);
}

RP_TEST(a_sample_past_the_end_leaves_no_sums)
{
    struct copy c = copy_clip("h264");
    size_t at = 0;
    while (memcmp(c.data + at, "stco", 4) != 0) {
        at++;
    }
    c.data[at + 12] = 0x7f; /* the first chunk lies 2 GB further on */
    change(&c);
    rp_buf *buf = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_video_sums(c.files, 0, "x", &buf, &err), RP_E_FORMAT, &err);
    (void)CHECK_CONTAINS(err.what, "truncated");
    (void)CHECK_STR(err.file, c.path);
    (void)CHECK(buf == NULL);
    drop(&c);
}

static void check_all(const struct copy *c, struct rp_picture_check *check, int64_t step,
                      bool strict)
{
    struct rp_error err;
    rp_error_clear(&err);
    for (int64_t at = 0; at < rp_index_samples(c->index); at += step) {
        REQUIRE_OK(
            rp_video_check_pictures(c->files, 0, c->index, at, at + step, strict, check, &err),
            &err);
    }
}

RP_TEST(intact_pictures_decode_each_once)
{
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        struct copy c = copy_clip(names[n]);
        for (int64_t step = 1; step < 2000; step *= 5) { /* parts cover the whole, however cut */
            struct rp_picture_check check = {0};
            check_all(&c, &check, step, false);
            (void)CHECK_EQ(check.pictures, rp_index_addressable(c.index));
            (void)CHECK_EQ(check.n_bad, 0);
            rp_picture_check_free(&check);
        }
        drop(&c);
    }
}

static void lose_packet(struct copy *c, bool strict)
{
    struct rp_sample victim = {0};
    int64_t at = -1; /* the second key */
    for (int64_t i = 1; i < rp_index_samples(c->index) && at < 0; i++) {
        rp_index_sample(c->index, i, &victim);
        at = victim.key ? i : -1;
    }
    REQUIRE(at > 0);
    memset(c->data + victim.offset, 0xff, victim.size);
    change(c);
    struct rp_picture_check check = {0};
    check_all(c, &check, 1000, strict);
    (void)CHECK_EQ(check.pictures, rp_index_addressable(c->index));
    (void)CHECK(check.n_bad > 0);
    int64_t named = 0;
    for (int64_t i = 0; i < check.n_bad; i++) {
        (void)CHECK(check.bad[i].sample >= at);
        (void)CHECK(check.bad[i].error.code != RP_OK && check.bad[i].error.what[0] != 0);
        named +=
            check.bad[i].error.offset == victim.offset && check.bad[i].error.length == victim.size;
        bool other = strict && rp_video_has_strict(rp_index_codec(c->index)->codec);
        (void)CHECK_EQ(strstr(check.bad[i].error.what, "libaom") != NULL, other);
    }
    (void)CHECK(named > 0);
    rp_picture_check_free(&check);
}

RP_TEST(a_lost_packet_costs_its_pictures_and_is_named)
{
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        for (int strict = 0; strict < 2; strict++) {
            struct copy c = copy_clip(names[n]);
            lose_packet(&c, strict != 0);
            drop(&c);
        }
    }
}

RP_TEST(the_strict_decoder_takes_what_is_intact)
{
    (void)CHECK(!rp_video_has_strict(RP_CODEC_H264));
    struct copy c = copy_clip("av1");
    struct rp_picture_check check = {0};
    check_all(&c, &check, 3, true);
    (void)CHECK_EQ(check.pictures, rp_index_addressable(c.index));
    (void)CHECK_EQ(check.n_bad, 0);
    rp_picture_check_free(&check);
    drop(&c);
}

/* Put the clip's sums into a file of their own; its path. */
static const char *store(const struct copy *c, char place[80], size_t flip)
{
    rp_buf *buf = NULL;
    (void)sums_of(c, &buf);
    if (flip > 0) {
        buf->data[flip] ^= 1;
    }
    snprintf(place, 80, "%s.sums", c->path);
    FILE *file = fopen(place, "wb");
    REQUIRE(file != NULL && fwrite(buf->data, 1, buf->len, file) == buf->len);
    (void)fclose(file);
    rp_buf_unref(&buf);
    return place;
}

static rp_status load(const struct copy *c, const char *place, uint32_t **sums,
                      struct rp_error *err)
{
    rp_index *index = NULL;
    uint32_t header;
    rp_error_clear(err);
    REQUIRE_OK(rp_video_header_read(c->files, 0, &index, &header, NULL, err), err);
    rp_status status = rp_video_sums_load(c->files, 0, place, index, header, sums, err);
    rp_index_free(&index);
    return status;
}

RP_TEST(sums_are_loaded_for_their_version_only)
{
    struct copy c = copy_clip("av1");
    char place[80];
    struct rp_error err;
    uint32_t *sums = NULL;
    (void)CHECK_EQ(load(&c, "/tmp/rp_test_no_such_sums", &sums, &err), RP_END);
    (void)CHECK_EQ(load(&c, "/tmp", &sums, &err), RP_AGAIN);
    REQUIRE_OK(load(&c, store(&c, place, 0), &sums, &err), &err);
    for (int64_t i = 0; i < rp_index_samples(c.index); i++) {
        struct rp_sample s;
        rp_index_sample(c.index, i, &s);
        (void)CHECK_EQ(sums[i], rp_crc32c(0, c.data + s.offset, s.size));
    }
    rp_free(sums);
    sums = NULL;
    for (size_t flip = 1; flip < 60; flip++) { /* damaged, or another version of anything */
        (void)CHECK_EQ(load(&c, store(&c, place, flip), &sums, &err), RP_AGAIN);
    }
    (void)CHECK(sums == NULL && err.code == RP_OK);
    (void)store(&c, place, 0);
    const struct timespec later[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    REQUIRE_EQ(utimensat(AT_FDCWD, c.path, later, 0), 0);
    rp_files_free(&c.files);
    const char *only = c.path;
    REQUIRE_OK(rp_files_new(&only, 1, 1, &c.files, &err), &err);
    (void)CHECK_EQ(load(&c, place, &sums, &err), RP_AGAIN);
    (void)CHECK(sums == NULL);
    (void)unlink(place);
    drop(&c);
}

RP_TEST(another_header_or_count_is_refused)
{
    struct copy c = copy_clip("vp9");
    char place[80];
    struct rp_error err;
    uint32_t *sums = NULL;
    (void)store(&c, place, 0);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_video_sums_load(c.files, 0, place, c.index, 1, &sums, &err), RP_E_FORMAT,
                       &err);
    (void)CHECK_CONTAINS(err.what, "checksum differs");
    (void)CHECK_STR(err.file, c.path);
    (void)CHECK(sums == NULL);
    (void)unlink(place);
    drop(&c);
}

struct place_of {
    struct copy *copy;
    const char *place;
};

static void try_load(void *arg)
{
    const struct place_of *p = arg;
    uint32_t *sums = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    rp_index *index = NULL;
    uint32_t header;
    rp_status status = rp_video_header_read(p->copy->files, 0, &index, &header, NULL, &err);
    if (status == RP_OK) {
        status = rp_video_sums_load(p->copy->files, 0, p->place, index, header, &sums, &err);
        (void)CHECK_EQ(status == RP_OK, sums != NULL);
        (void)CHECK(status >= RP_OK || status == err.code);
    }
    rp_free(sums);
    rp_index_free(&index);
}

static void try_sums(void *arg)
{
    const struct copy *c = arg;
    const char *only = c->path;
    rp_files *files = NULL;
    rp_buf *buf = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_files_new(&only, 1, 1, &files, &err);
    if (status == RP_OK) {
        status = rp_video_sums(files, 0, "x", &buf, &err);
    }
    (void)CHECK_EQ(status == RP_OK, buf != NULL);
    (void)CHECK_EQ(err.code, status);
    rp_buf_unref(&buf);
    rp_files_free(&files);
}

static void try_pictures(void *arg)
{
    const struct copy *c = arg;
    struct rp_picture_check check = {0};
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status =
        rp_video_check_pictures(c->files, 0, c->index, 0, INT64_MAX, false, &check, &err);
    (void)CHECK_EQ(err.code, status);
    (void)CHECK(status != RP_OK || check.pictures == rp_index_addressable(c->index));
    rp_picture_check_free(&check);
}

RP_TEST(failing_calls_are_errors)
{
    struct copy c = copy_clip("h264");
    (void)CHECK(rp_fault_sweep((struct rp_fault){.calls = 0}, try_sums, &c) > 3);
    (void)CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_FILE}, try_pictures, &c) > 3);
    char place[80];
    struct place_of p = {&c, store(&c, place, 0)};
    (void)CHECK(rp_fault_sweep((struct rp_fault){.calls = 0}, try_load, &p) > 3);
    (void)unlink(place);
    drop(&c);
}
