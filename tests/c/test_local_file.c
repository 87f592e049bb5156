/* Local files: exact reads, interrupted and short ones, descriptors within their bound, files that
 * change, vanish or never were. */
#include "harness.h"

#include "base/thread.h"
#include "fetch/fetch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 12, LEN = 10000 };

static char folder[64], names[N][128];
static const char *paths[N];

static uint8_t byte_of(int file, int64_t at)
{
    return (uint8_t)(file * 37 + at * 11 + at / 256);
}

static void write_file(const char *path, int file, int64_t len)
{
    FILE *out = fopen(path, "wb");
    REQUIRE(out != NULL);
    for (int64_t i = 0; i < len; i++) {
        (void)fputc(byte_of(file, i), out);
    }
    (void)fclose(out);
}

static rp_files *make_files(int max_open)
{
    snprintf(folder, sizeof(folder), "/tmp/rp_test_files_XXXXXX");
    REQUIRE(mkdtemp(folder) != NULL);
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "%s/%d.bin", folder, i);
        paths[i] = names[i];
        write_file(names[i], i, LEN + i);
    }
    rp_files *files = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_files_new(paths, N, max_open, &files, &err), &err);
    return files;
}

static void remove_files(rp_files **files)
{
    rp_files_free(files);
    for (int i = 0; i < N; i++) {
        (void)remove(names[i]);
    }
    (void)rmdir(folder);
}

/* Read a part and compare it. */
static rp_status read_part(rp_files *files, int i, int64_t offset, int64_t len,
                           struct rp_error *err)
{
    uint8_t to[LEN + N];
    rp_error_clear(err);
    rp_status status = rp_files_read(files, i, offset, len, to, err);
    for (int64_t k = 0; k < len && status == RP_OK; k++) {
        if (to[k] != byte_of(i, offset + k)) {
            (void)CHECK_EQ(to[k], byte_of(i, offset + k));
            break;
        }
    }
    return status;
}

static int open_descriptors(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL) {
        n++;
    }
    (void)closedir(dir);
    return n;
}

RP_TEST(parts_are_read_exactly)
{
    rp_files *files = make_files(4);
    struct rp_error err;
    for (int i = 0; i < N; i++) {
        int64_t size = 0;
        rp_error_clear(&err);
        (void)CHECK_OK(rp_files_size(files, i, &size, &err), &err);
        (void)CHECK_EQ(size, LEN + i);
        (void)CHECK_STR(rp_files_path(files, i), names[i]);
        (void)CHECK_OK(read_part(files, i, 0, size, &err), &err);
        (void)CHECK_OK(read_part(files, i, size - 1, 1, &err), &err);
        (void)CHECK_OK(read_part(files, i, 777, 0, &err), &err);
        (void)CHECK_STATUS(read_part(files, i, size - 5, 6, &err), RP_E_FORMAT, &err);
        (void)CHECK_CONTAINS(err.what, "truncated");
        (void)CHECK_STR(err.file, names[i]);
        (void)CHECK(err.offset == size - 5 && err.length == 6);
    }
    remove_files(&files);
    rp_files_free(&files);
    rp_files_free(NULL);
}

RP_TEST(interrupted_and_short_reads_go_on)
{
    rp_files *files = make_files(4);
    struct rp_error err;
    for (int how = RP_FAULT_READ_EINTR; how <= RP_FAULT_READ_SHORT; how++) {
        for (long nth = 2; nth <= 4; nth++) { /* call 1 is fstat once the file is open */
            (void)CHECK_OK(read_part(files, 3, 0, 10, &err), &err);
            struct rp_fault fault = {.calls = RP_FAULT_FILE, .read = how, .nth = nth};
            rp_fault_arm(&fault);
            rp_status status = read_part(files, 3, 100, 5000, &err);
            bool met = rp_fault_disarm();
            (void)CHECK_OK(status, &err);
            (void)CHECK(met == (nth == 2));
        }
    }
    struct rp_fault half = {
        .calls = RP_FAULT_FILE, .read = RP_FAULT_READ_SHORT, .nth = 2, .onward = true};
    rp_fault_arm(&half); /* every read gives half of what was asked for */
    (void)CHECK_OK(read_part(files, 3, 100, 5000, &err), &err);
    (void)CHECK(rp_fault_disarm() && rp_fault_count() > 5);
    remove_files(&files);
}

RP_TEST(failing_reads_are_told)
{
    rp_files *files = make_files(4);
    struct rp_error err;
    static const struct {
        int read;
        rp_status status;
    } cases[2] = {{RP_FAULT_READ_EIO, RP_E_IO}, {RP_FAULT_READ_END, RP_E_FORMAT}};
    for (int c = 0; c < 2; c++) {
        (void)CHECK_OK(read_part(files, 2, 0, 10, &err), &err);
        struct rp_fault fault = {.calls = RP_FAULT_FILE, .read = cases[c].read, .nth = 2};
        rp_fault_arm(&fault);
        rp_status status = read_part(files, 2, 100, 50, &err);
        (void)CHECK(rp_fault_disarm());
        (void)CHECK_STATUS(status, cases[c].status, &err);
        (void)CHECK_STR(err.file, names[2]);
    }
    struct rp_fault fault = {.calls = RP_FAULT_FILE, .nth = 1};
    rp_fault_arm(&fault);
    (void)CHECK_STATUS(read_part(files, 7, 0, 5, &err), RP_E_IO, &err); /* open */
    (void)CHECK(rp_fault_disarm());
    (void)CHECK(err.sys != 0);
    rp_fault_arm(&fault);
    (void)CHECK_STATUS(read_part(files, 2, 0, 5, &err), RP_E_IO, &err); /* fstat */
    (void)CHECK(rp_fault_disarm());
    (void)CHECK_OK(read_part(files, 7, 0, 5, &err), &err);
    (void)CHECK_OK(read_part(files, 2, 0, 5, &err), &err);
    remove_files(&files);
}

RP_TEST(descriptors_stay_within_their_bound)
{
    int before = open_descriptors();
    rp_files *files = make_files(3);
    struct rp_error err;
    for (int round = 0; round < 3 * N; round++) {
        (void)CHECK_OK(read_part(files, round * 5 % N, 9, 100, &err), &err);
        (void)CHECK(open_descriptors() - before <= 3);
    }
    remove_files(&files);
    (void)CHECK_EQ(open_descriptors(), before);
}

/* An open file survives its removal, a closed one does not. */
RP_TEST(the_least_recently_used_is_closed)
{
    rp_files *files = make_files(3);
    struct rp_error err;
    for (int i = 0; i < 3; i++) {
        (void)CHECK_OK(read_part(files, i, 0, 10, &err), &err);
    }
    (void)CHECK_OK(read_part(files, 0, 0, 10, &err), &err);
    for (int i = 0; i < 3; i++) {
        (void)remove(names[i]);
    }
    (void)CHECK_OK(read_part(files, 3, 0, 10, &err), &err); /* closes file 1 */
    (void)CHECK_OK(read_part(files, 0, 0, 10, &err), &err);
    (void)CHECK_OK(read_part(files, 2, 0, 10, &err), &err);
    (void)CHECK_STATUS(read_part(files, 1, 0, 10, &err), RP_E_NOT_FOUND, &err);
    remove_files(&files);
}

static void set_mtime(const char *path, time_t seconds)
{
    struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    REQUIRE(utimensat(AT_FDCWD, path, times, 0) == 0);
}

RP_TEST(a_file_that_changes_is_told)
{
    rp_files *files = make_files(2);
    struct rp_error err;
    int64_t size;
    for (int i = 0; i < 5; i++) {
        set_mtime(names[i], 1000000);
        (void)CHECK_OK(read_part(files, i, 0, 10, &err), &err);
    }
    /* 3 and 4 are open now, the others closed */
    REQUIRE(truncate(names[4], 50) == 0); /* cut while open */
    (void)CHECK_STATUS(read_part(files, 4, 0, 10, &err), RP_E_CHANGED, &err);
    (void)CHECK_STR(err.file, names[4]);
    set_mtime(names[3], 1000001); /* same size, another time */
    (void)CHECK_STATUS(rp_files_size(files, 3, &size, NULL), RP_E_CHANGED, NULL);
    (void)remove(names[0]); /* replaced while closed */
    write_file(names[0], 0, LEN + 1);
    set_mtime(names[0], 1000000);
    (void)CHECK_STATUS(read_part(files, 0, 0, 10, &err), RP_E_CHANGED, &err);
    (void)remove(names[1]); /* the same again is the same */
    write_file(names[1], 1, LEN + 1);
    set_mtime(names[1], 1000000);
    (void)CHECK_OK(read_part(files, 1, 0, 10, &err), &err);
    remove_files(&files);
}

RP_TEST(what_is_no_file_is_refused)
{
    rp_files *files = make_files(2);
    struct rp_error err;
    int64_t size;
    (void)remove(names[0]);
    (void)CHECK_STATUS(read_part(files, 0, 0, 1, &err), RP_E_NOT_FOUND, &err);
    (void)CHECK_EQ(err.sys, ENOENT);
    (void)CHECK_STR(err.file, names[0]);
    REQUIRE(mkdir(names[0], 0700) == 0);
    (void)CHECK_STATUS(read_part(files, 0, 0, 1, &err), RP_E_FORMAT, &err);
    (void)CHECK_CONTAINS(err.what, "not a regular file");
    (void)remove(names[1]);
    REQUIRE(mkfifo(names[1], 0600) == 0); /* nobody writes into it: no wait for ever */
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_files_size(files, 1, &size, &err), RP_E_FORMAT, &err);
    snprintf(names[2] + strlen(names[2]), 16, "/below");
    rp_files *below = NULL;
    REQUIRE_OK(rp_files_new(paths, N, 2, &below, NULL), NULL);
    (void)CHECK_STATUS(read_part(below, 2, 0, 1, &err), RP_E_NOT_FOUND, &err); /* ENOTDIR */
    rp_files_free(&below);
    names[2][strlen(names[2]) - 6] = '\0';
    remove_files(&files);
}

static void *read_many(void *arg)
{
    rp_files *files = arg;
    struct rp_error err;
    for (int i = 0; i < 400; i++) {
        int file = (int)(((uintptr_t)&err / 4096 + (unsigned)i * 7) % N);
        if (!CHECK_OK(read_part(files, file, i * 13 % 5000, 64, &err), &err)) {
            break;
        }
    }
    return NULL;
}

RP_TEST(threads_share_few_descriptors)
{
    int before = open_descriptors();
    for (int max_open = 1; max_open <= 3; max_open++) {
        rp_files *files = make_files(max_open);
        rp_thread threads[6] = {0};
        for (int i = 0; i < 6; i++) {
            REQUIRE_OK(rp_thread_start(&threads[i], "rp-read", read_many, files, NULL), NULL);
        }
        for (int i = 0; i < 6; i++) {
            rp_thread_join(&threads[i]);
        }
        remove_files(&files);
    }
    (void)CHECK_EQ(open_descriptors(), before);
}

static void use_files(void *arg)
{
    (void)arg;
    rp_files *files = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_files_new(paths, N, 2, &files, &err);
    for (int i = 0; i < 4 && status == RP_OK; i++) {
        status = read_part(files, i, 5, 100, &err);
    }
    (void)CHECK(status == RP_OK || (err.code == status && err.what[0] != '\0'));
    rp_files_free(&files);
}

RP_TEST(every_call_may_fail)
{
    rp_files *files = make_files(2);
    int before = open_descriptors();
    (void)CHECK(rp_fault_sweep((struct rp_fault){0}, use_files, NULL) > 0);
    (void)CHECK_EQ(open_descriptors(), before);
    remove_files(&files);
}
