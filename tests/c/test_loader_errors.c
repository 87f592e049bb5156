/* rp_loader when things fail: the right error at the right batch, the same for any number of
 * threads and any company, and every n-th call of the system failing. */
#include "loader_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

static struct demo demo;
static int64_t rows[512];
static char broken_path[64];

/* A private copy of a demo file that a test may damage. */
static void copy_file(int file, int64_t keep_bytes)
{
    size_t len = 0;
    uint8_t *bytes = rp_read_file(demo.paths[file], &len);
    REQUIRE(bytes != NULL);
    snprintf(broken_path, sizeof(broken_path), "/tmp/rp_test_loader_XXXXXX");
    int fd = mkstemp(broken_path);
    REQUIRE(fd >= 0);
    size_t n = keep_bytes >= 0 ? (size_t)keep_bytes : len;
    (void)CHECK_EQ(write(fd, bytes, n), (intmax_t)n);
    (void)close(fd);
    free(bytes);
    demo.paths[file] = broken_path;
}

static void overwrite(int64_t offset, int64_t len)
{
    static const uint8_t junk[64] = {0xff, 0xff, 0xff, 0xff, 0x13, 0xff};
    int fd = open(broken_path, O_WRONLY);
    REQUIRE(fd >= 0);
    (void)CHECK_EQ(pwrite(fd, junk, (size_t)(len < 64 ? len : 64), offset), len < 64 ? len : 64);
    (void)close(fd);
}

/* Where the picture of a row lies in its file. */
static struct rp_sample sample_of(int file, int64_t n)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_files *files = NULL;
    rp_index *index = NULL;
    struct rp_sample sample;
    REQUIRE_OK(rp_files_new(demo.paths, FILES, 2, &files, &err), &err);
    REQUIRE_OK(rp_video_index_read(files, file, &index, NULL, &err), &err);
    rp_index_sample(index, rp_index_nth(index, n), &sample);
    rp_index_free(&index);
    rp_files_free(&files);
    return sample;
}

/* Batches before `bad` are right, batch `bad` fails with this status, then the stream is over. */
static void check_failing_stream(int threads, int64_t count, int64_t size, int64_t bad,
                                 rp_status want, struct rp_error *err)
{
    rp_loader *loader = open_loader(&demo, demo_options(threads, 4));
    rp_error_clear(err);
    REQUIRE_OK(begin_rows(loader, rows, count, size, false, err), err);
    rp_batch *batch = NULL;
    for (int64_t i = 0; i < bad; i++) {
        REQUIRE_OK(next_batch(loader, &batch, err), err);
        (void)check_batch(&demo, batch, rows + i * size, size);
        rp_batch_free(&batch);
    }
    (void)CHECK_STATUS(next_batch(loader, &batch, err), want, err);
    struct rp_error after;
    (void)CHECK_STATUS(next_batch(loader, &batch, &after), RP_END, &after);
    static const int64_t good[4] = {96, 97, 98, 99}; /* the loader is as good as before */
    check_stream(&demo, loader, good, 4, 2, false);
    rp_loader_close(&loader);
}

/* Every number of threads gives the same error with the same coordinates, several times. */
static void check_everywhere(int64_t count, int64_t size, int64_t bad, rp_status want,
                             const char *camera, int64_t episode, const char *text)
{
    static const int thread_counts[] = {0, 1, 2, 8, 2, 8};
    struct rp_error err;
    for (int t = 0; t < 6; t++) {
        check_failing_stream(thread_counts[t], count, size, bad, want, &err);
        (void)CHECK_STR(err.camera, camera);
        (void)CHECK_EQ(err.episode, episode);
        (void)CHECK_CONTAINS(err.what, text);
        (void)CHECK(err.file[0] != '\0');
    }
}

RP_TEST(a_missing_file_fails_the_first_batch_that_needs_it)
{
    need_reference();
    demo_init(&demo);
    for (int64_t i = 0; i < 60; i++) {
        rows[i] = i < 41 ? i : 144 + i - 41; /* row 144 on: the wrist's second file */
    }
    demo.paths[3] = "/nonexistent/wrist.mp4";
    check_everywhere(60, 10, 4, RP_E_NOT_FOUND, "wrist", 13, "cannot open");
    demo.paths[3] = "/tmp"; /* a directory */
    check_everywhere(60, 10, 4, RP_E_FORMAT, "wrist", 13, "not a regular file");
}

RP_TEST(a_truncated_file_fails_where_the_data_end)
{
    need_reference();
    demo_init(&demo);
    struct rp_sample cut = sample_of(0, 30);
    REQUIRE(cut.key);
    copy_file(0, cut.offset);
    for (int64_t i = 0; i < 40; i++) {
        rows[i] = i;
    }
    struct rp_error err;
    rp_index *index = NULL;
    rp_files *files = NULL;
    rp_error_clear(&err);
    REQUIRE_OK(rp_files_new(demo.paths, FILES, 2, &files, &err), &err);
    rp_status parsed = rp_video_index_read(files, 0, &index, NULL, &err);
    rp_index_free(&index);
    rp_files_free(&files);
    /* moov at the end is gone with it: then no row can be read */
    check_everywhere(40, 5, parsed == RP_OK ? 6 : 0, RP_E_FORMAT, "front", 10, "");
    (void)unlink(broken_path);
}

RP_TEST(a_time_without_a_picture)
{
    need_reference();
    demo_init(&demo);
    demo.timestamp[50] += 0.05f;
    for (int64_t i = 0; i < 40; i++) {
        rows[i] = 30 + i;
    }
    check_everywhere(40, 6, 3, RP_E_TIMESTAMP, "front", 11, "");
    struct rp_error err;
    check_failing_stream(2, 40, 6, 3, RP_E_TIMESTAMP, &err);
    (void)CHECK_NEAR(err.time, 4.8 + 0.25, 1e-6);
    (void)CHECK(fabs(err.nearest - err.time) > 0.01);
}

RP_TEST(of_several_errors_the_first_place_wins)
{
    need_reference();
    demo_init(&demo);
    struct rp_sample bad = sample_of(1, 20);
    copy_file(1, -1);
    overwrite(bad.offset, bad.size);
    demo.paths[3] = "/nonexistent/wrist.mp4";
    static const int64_t order[8] = {0, 1, 92 + 20, 93, 144, 145, 2, 3};
    memcpy(rows, order, sizeof(order));
    /* place 4 cannot be decoded, place 9 has no file */
    check_everywhere(8, 8, 0, RP_E_DECODE, "front", 12, "");
    rows[2] = 150;
    rows[4] = 92 + 20;
    check_everywhere(8, 8, 0, RP_E_NOT_FOUND, "wrist", 13, "cannot open");
    (void)unlink(broken_path);
}

/* Rows of two batches share a decode run whose second packet is broken: only the batch that needs
 * it fails, however the runs were formed. */
RP_TEST(bad_bytes_fail_only_the_pictures_that_need_them)
{
    need_reference();
    static const int files[2] = {0, 2};
    for (int f = 0; f < 2; f++) {
        demo_init(&demo);
        struct rp_sample bad = sample_of(files[f], 21);
        REQUIRE(!bad.key);
        copy_file(files[f], -1);
        overwrite(bad.offset, bad.size);
        for (int64_t i = 0; i < 8; i++) {
            rows[i] = i == 1 ? 20 : i == 6 ? 21 : 30 + i;
        }
        check_everywhere(8, 4, 1, RP_E_DECODE, f == 0 ? "front" : "wrist", 10, "");
        (void)unlink(broken_path);
    }
}

/* A single read decodes ahead for its neighbours; what lies there must not fail it. */
RP_TEST(bad_bytes_ahead_of_a_single_read_do_not_matter)
{
    need_reference();
    demo_init(&demo);
    struct rp_sample bad = sample_of(2, 21);
    copy_file(2, -1);
    overwrite(bad.offset, bad.size);
    struct rp_loader_options options = demo_options(1, 1);
    options.frame_cache_bytes = 16 << 20;
    rp_loader *loader = open_loader(&demo, options);
    struct rp_error err;
    for (int64_t row = 20; row <= 22; row++) {
        rp_error_clear(&err);
        uint64_t ticket;
        rp_batch *batch = NULL;
        REQUIRE_OK(rp_loader_submit(loader, &row, NULL, 1, &ticket, &err), &err);
        rp_status status = take_ticket(loader, ticket, &batch, &err);
        (void)CHECK_STATUS(status, row == 21 ? RP_E_DECODE : RP_OK, &err);
        if (status == RP_OK) {
            (void)check_batch(&demo, batch, &row, 1);
        }
        rp_batch_free(&batch);
    }
    rp_loader_close(&loader);
    (void)unlink(broken_path);
}

/* Where the size of sample n stands in the stsz box of a file. */
static int64_t size_entry(const char *path, int64_t n)
{
    size_t len = 0;
    int64_t at = -1;
    uint8_t *bytes = rp_read_file(path, &len);
    for (size_t i = 0; bytes != NULL && i + 4 < len; i++) {
        at = memcmp(bytes + i, "stsz", 4) == 0 ? (int64_t)i + 16 + 4 * n : at;
    }
    free(bytes);
    return at;
}

/* The neighbour lies past the end of the file: nothing of the run can be read as a whole. */
RP_TEST(missing_bytes_ahead_of_a_single_read_do_not_matter)
{
    need_reference();
    demo_init(&demo);
    copy_file(2, -1);
    int64_t at = size_entry(broken_path, 21);
    int fd = open(broken_path, O_WRONLY);
    REQUIRE(at > 0 && fd >= 0);
    (void)CHECK_EQ(pwrite(fd, "\x00\x7f\xff\xff", 4, at), 4);
    (void)close(fd);
    struct rp_loader_options options = demo_options(1, 1);
    options.frame_cache_bytes = 16 << 20;
    rp_loader *loader = open_loader(&demo, options);
    struct rp_error err;
    for (int64_t row = 20; row <= 21; row++) {
        rp_error_clear(&err);
        uint64_t ticket;
        rp_batch *batch = NULL;
        REQUIRE_OK(rp_loader_submit(loader, &row, NULL, 1, &ticket, &err), &err);
        rp_status status = take_ticket(loader, ticket, &batch, &err);
        (void)CHECK_STATUS(status, row == 21 ? RP_E_FORMAT : RP_OK, &err);
        if (status == RP_OK) {
            (void)check_batch(&demo, batch, &row, 1);
        }
        rp_batch_free(&batch);
    }
    rp_loader_close(&loader);
    (void)unlink(broken_path);
}

RP_TEST(a_picture_of_another_size_is_refused)
{
    need_reference();
    demo_init(&demo);
    demo.camera[1].width = 200;
    rows[0] = 0;
    rp_loader *loader = open_loader(&demo, demo_options(1, 1));
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(begin_rows(loader, rows, 1, 1, false, &err), &err);
    rp_batch *batch = NULL;
    (void)CHECK_STATUS(next_batch(loader, &batch, &err), RP_E_FORMAT, &err);
    (void)CHECK_CONTAINS(err.what, "192x144");
    (void)CHECK_STR(err.camera, "wrist");
    rp_loader_close(&loader);
}

struct sweep {
    int threads;
};

/* A stream and two tickets; any step may fail, with a code and a text. */
static void use_loader(void *arg)
{
    const struct sweep *sweep = arg;
    struct rp_loader_options options = demo_options(sweep->threads, 2);
    options.frame_cache_bytes = 1 << 20;
    struct rp_error err;
    rp_error_clear(&err);
    rp_loader *loader = NULL;
    rp_batch *batch = NULL;
    uint64_t ticket[2] = {0};
    rp_status status = rp_loader_new(&demo.desc, &options, &loader, &err);
    if (status == RP_OK) {
        status = begin_rows(loader, rows, 12, 4, false, &err);
    }
    if (status == RP_OK) {
        status = rp_loader_submit(loader, rows, NULL, 1, &ticket[0], &err);
    }
    if (status == RP_OK) {
        status = rp_loader_submit(loader, rows + 1, NULL, 3, &ticket[1], &err);
    }
    for (int i = 0; i < 2 && status == RP_OK; i++) {
        status = take_ticket(loader, ticket[i], &batch, &err);
        if (status == RP_OK) {
            (void)check_batch(&demo, batch, rows + i, i == 0 ? 1 : 3);
        }
        rp_batch_free(&batch);
    }
    for (int64_t at = 0; status == RP_OK; at += 4) {
        status = next_batch(loader, &batch, &err);
        if (status == RP_OK) {
            (void)check_batch(&demo, batch, rows + at, 4);
        }
        rp_batch_free(&batch);
    }
    if (status != RP_END) {
        (void)CHECK_EQ(err.code, status);
        (void)CHECK(status == RP_E_NOMEM || status == RP_E_IO || status == RP_E_FORMAT);
        (void)CHECK(err.what[0] != '\0');
    }
    rp_loader_close(&loader);
}

RP_TEST(every_call_may_fail)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 12, 31);
    for (int threads = 0; threads <= 2; threads += 2) {
        struct sweep sweep = {threads};
        int runs = rp_fault_sweep((struct rp_fault){0}, use_loader, &sweep);
        (void)CHECK(runs > 0);
        for (int how = RP_FAULT_READ_EINTR; how <= RP_FAULT_READ_END; how++) {
            struct rp_fault fault = {.calls = RP_FAULT_FILE, .read = how};
            (void)CHECK(rp_fault_sweep(fault, use_loader, &sweep) > 0);
        }
    }
}

RP_TEST(everything_fails_from_some_call_on)
{
    need_reference();
    demo_init(&demo);
    mixed_rows(rows, 12, 32);
    struct sweep sweep = {2};
    for (int calls = RP_FAULT_MEMORY; calls <= RP_FAULT_FILE; calls *= 2) {
        int runs =
            rp_fault_sweep((struct rp_fault){.calls = calls, .onward = true}, use_loader, &sweep);
        (void)CHECK(runs > 0);
    }
}
