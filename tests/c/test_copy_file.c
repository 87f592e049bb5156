/* New files out of ranges of others: exact, whatever the file system can; on any failure a typed
 * error and nothing left in the folder. */
#include "harness.h"

#include "base/crc32c.h"
#include "fetch/fetch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LEN = 3 << 20, HEAD = 1000 }; /* sources larger than the buffer of a copy by hand */

struct range {
    int file;
    int64_t offset, len;
};

static const struct range plan[] = {
    {0, 0, 5}, {0, 777, 2 << 20}, {1, LEN - 10, 10}, {1, 0, 0}, {0, 1, LEN - 1}};
enum { RANGES = sizeof(plan) / sizeof(plan[0]) };

static char folder[64], names[2][128], target[128];
static uint8_t bytes[2][LEN], head[HEAD];
static struct rp_error err;

static int64_t total(void)
{
    int64_t n = HEAD;
    for (int k = 0; k < RANGES; k++) {
        n += plan[k].len;
    }
    return n;
}

/* Two source files in `where`, the target in a folder of its own beside them. */
static rp_files *begin_in(const char *where)
{
    const char *paths[2];
    snprintf(folder, sizeof(folder), "%s/rp_test_copy_XXXXXX", where);
    REQUIRE(mkdtemp(folder) != NULL);
    for (int i = 0; i < 2; i++) {
        for (int64_t k = 0; k < LEN; k++) {
            bytes[i][k] = (uint8_t)(i * 37 + k * 11 + k / 251);
        }
        snprintf(names[i], sizeof(names[i]), "%s/%d.bin", folder, i);
        paths[i] = names[i];
        FILE *out = fopen(names[i], "wb");
        REQUIRE(out != NULL && fwrite(bytes[i], 1, LEN, out) == LEN && fclose(out) == 0);
    }
    for (int k = 0; k < HEAD; k++) {
        head[k] = (uint8_t)(255 - k);
    }
    rp_files *files = NULL;
    rp_error_clear(&err);
    REQUIRE_OK(rp_files_new(paths, 2, 2, &files, &err), &err);
    return files;
}

static rp_files *begin(void)
{
    rp_files *files = begin_in("/tmp");
    snprintf(target, sizeof(target), "%s/out", folder);
    return files;
}

static void end(rp_files **files)
{
    rp_files_free(files);
    (void)unlink(names[0]);
    (void)unlink(names[1]);
    (void)unlink(target);
    (void)CHECK_EQ(rmdir(folder), 0); /* nothing else was left in it */
}

/* Files in the folder of the target. */
static int files_left(void)
{
    char where[128];
    snprintf(where, sizeof(where), "%.*s", (int)(strrchr(target, '/') - target), target);
    int n = 0;
    DIR *dir = opendir(where);
    REQUIRE(dir != NULL);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    (void)closedir(dir);
    return n;
}

static rp_status make(rp_files *files)
{
    rp_output *output = NULL;
    rp_error_clear(&err);
    rp_status status = rp_output_open(target, total(), &output, &err);
    if (status == RP_OK) {
        status = rp_output_write(output, head, HEAD, &err);
    }
    for (int k = 0; k < RANGES && status == RP_OK; k++) {
        status = rp_output_copy(output, files, plan[k].file, plan[k].offset, plan[k].len, &err);
    }
    if (status == RP_OK) {
        return rp_output_commit(&output, false, &err);
    }
    rp_output_abandon(&output);
    return status;
}

static void check_target(void)
{
    size_t len = 0;
    uint8_t *data = rp_read_file(target, &len);
    REQUIRE(data != NULL);
    REQUIRE(CHECK_EQ(len, total()));
    CHECK_MEM(data, head, HEAD);
    int64_t at = HEAD;
    for (int k = 0; k < RANGES; k++) {
        CHECK_MEM(data + at, bytes[plan[k].file] + plan[k].offset, (size_t)plan[k].len);
        at += plan[k].len;
    }
    free(data);
}

RP_TEST(ranges_are_copied_exactly)
{
    rp_files *files = begin();
    REQUIRE_OK(make(files), &err);
    check_target();
    (void)CHECK_EQ(files_left(), 3);
    REQUIRE_OK(make(files), &err); /* in the place of the one before */
    check_target();
    struct stat st;
    mode_t mask = umask(0);
    (void)umask(mask);
    REQUIRE(stat(target, &st) == 0);
    (void)CHECK_EQ(st.st_mode & 0777, 0666 & ~mask);
    end(&files);
}

RP_TEST(pieces_are_summed_up_on_their_way)
{
    /* begun after the head; pieces end inside copies, at their ends, and one is not complete */
    static const uint32_t sizes[] = {5, 1, (2 << 20) + 8, 0, 1, (256 << 10) + 1, LEN, 7};
    enum { PIECES = sizeof(sizes) / sizeof(sizes[0]) };
    uint32_t sums[PIECES];
    memset(sums, 0xA5, sizeof(sums));
    rp_files *files = begin();
    rp_output *output = NULL;
    REQUIRE_OK(rp_output_open(target, total(), &output, &err), &err);
    REQUIRE_OK(rp_output_write(output, head, HEAD, &err), &err);
    rp_output_sum(output, sizes, PIECES, sums);
    for (int k = 0; k < RANGES; k++) {
        REQUIRE_OK(rp_output_copy(output, files, plan[k].file, plan[k].offset, plan[k].len, &err),
                   &err);
    }
    REQUIRE_OK(rp_output_commit(&output, false, &err), &err);
    check_target();
    size_t len = 0;
    uint8_t *data = rp_read_file(target, &len);
    REQUIRE(data != NULL);
    size_t at = HEAD;
    for (int k = 0; k < PIECES - 2; k++) {
        (void)CHECK_EQ(sums[k], rp_crc32c_c(0, data + at, sizes[k]));
        at += sizes[k];
    }
    (void)CHECK_EQ(sums[PIECES - 1], 0xA5A5A5A5);
    free(data);
    end(&files);
}

/* Files around the size of the buffer, and one that ends with a whole block. */
RP_TEST(any_length_is_written_exactly)
{
    static const int64_t lengths[] = {
        0, 1, 4095, 4096, LEN, 4 << 20, (4 << 20) - 1, (4 << 20) + 1, (4 << 20) + 4096, 8 << 20};
    rp_files *files = begin();
    for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
        rp_output *output = NULL;
        REQUIRE_OK(rp_output_open(target, lengths[k], &output, &err), &err);
        for (int64_t left = lengths[k]; left > 0;) {
            int64_t some = left < LEN ? left : LEN;
            REQUIRE_OK(rp_output_copy(output, files, 1, 0, some, &err), &err);
            left -= some;
        }
        REQUIRE_OK(rp_output_commit(&output, k % 2 == 0, &err), &err);
        size_t len = 0;
        uint8_t *data = rp_read_file(target, &len);
        REQUIRE(data != NULL);
        REQUIRE(CHECK_EQ(len, lengths[k]));
        for (size_t at = 0; at < len; at += LEN) {
            CHECK_MEM(data + at, bytes[1], len - at < LEN ? len - at : LEN);
        }
        free(data);
    }
    end(&files);
}

RP_TEST(other_file_systems)
{
    if (access("/dev/shm", W_OK) != 0) {
        SKIP("another file system", "no /dev/shm");
    }
    rp_files *files = begin_in("/dev/shm");
    snprintf(target, sizeof(target), "/tmp/rp_test_copy_out_%ld", (long)getpid());
    REQUIRE_OK(make(files), &err);
    check_target();
    end(&files);
}

RP_TEST(interrupted_short_and_impossible_calls_go_on)
{
    rp_files *files = begin();
    for (int how = RP_FAULT_WRITE_EINTR; how <= RP_FAULT_WRITE_UNABLE; how++) {
        for (long nth = 1; nth <= 4; nth++) {
            struct rp_fault fault = {.calls = RP_FAULT_WRITE, .write = how, .nth = nth};
            rp_fault_arm(&fault);
            rp_status status = make(files);
            bool met = rp_fault_disarm();
            REQUIRE_OK(status, &err);
            (void)CHECK(met);
            check_target();
        }
    }
    struct rp_fault by_hand = {
        .calls = RP_FAULT_WRITE, .write = RP_FAULT_WRITE_UNABLE, .nth = 1, .onward = true};
    rp_fault_arm(&by_hand);
    rp_status status = make(files);
    (void)CHECK(rp_fault_disarm());
    REQUIRE_OK(status, &err);
    check_target();
    end(&files);
}

static void make_under_fault(void *unused)
{
    (void)unused;
    const char *paths[] = {names[0], names[1]};
    rp_files *files = NULL;
    rp_error_clear(&err);
    rp_status status = rp_files_new(paths, 2, 2, &files, &err);
    status = status == RP_OK ? make(files) : status;
    rp_files_free(&files);
    if (status != RP_OK) {
        (void)CHECK(status == RP_E_IO || status == RP_E_NOMEM);
        (void)CHECK_EQ(err.code, status);
        (void)CHECK(status == RP_E_NOMEM || (err.sys != 0 && err.file[0] != '\0'));
    }
    (void)CHECK_EQ(files_left(), status == RP_OK ? 3 : 2);
    (void)unlink(target);
}

RP_TEST(every_failure_leaves_nothing)
{
    rp_files *files = begin();
    int runs = rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_ALL}, make_under_fault, NULL);
    (void)CHECK(runs > 10);
    end(&files);
}

/* A write that goes past the page cache is tried again when it failed: the disk may be full for a
 * moment only. Everything else fails at once. */
RP_TEST(no_failed_write_passes_unseen)
{
    rp_files *files = begin();
    for (int onward = 0; onward < 2; onward++) {
        long calls = 0;
        for (bool met = true; met; calls++) {
            struct rp_fault fault = {
                .calls = RP_FAULT_WRITE, .nth = calls + 1, .onward = onward != 0};
            rp_fault_arm(&fault);
            rp_status status = make(files);
            met = rp_fault_disarm();
            (void)CHECK_EQ(files_left(), status == RP_OK ? 3 : 2);
            if (status == RP_OK && (!met || onward == 0)) {
                check_target();
                (void)unlink(target);
            }
            else {
                (void)CHECK_STATUS(status, RP_E_IO, &err);
                (void)CHECK(met);
            }
        }
        /* reserve, a buffer, whole blocks, the rest, sync, name, sync the folder; more where the
         * file system knows no writes past the page cache */
        (void)CHECK(calls - 1 >= 7);
    }
    end(&files);
}

enum { PARTS = 7, PART = 1 << 20 }; /* three buffers and some */

static rp_status make_large(rp_files *files)
{
    rp_output *output = NULL;
    rp_error_clear(&err);
    rp_status status = rp_output_open(target, PARTS * PART + HEAD, &output, &err);
    if (status == RP_OK) {
        status = rp_output_write(output, head, HEAD, &err);
    }
    for (int k = 0; k < PARTS && status == RP_OK; k++) {
        status = k % 3 == 1 ? rp_output_write(output, bytes[k % 2] + k, PART, &err)
                            : rp_output_copy(output, files, k % 2, k, PART, &err);
    }
    if (status == RP_OK) {
        return rp_output_commit(&output, true, &err);
    }
    rp_output_abandon(&output);
    return status;
}

static void check_large(void)
{
    size_t len = 0;
    uint8_t *data = rp_read_file(target, &len);
    REQUIRE(data != NULL);
    if (CHECK_EQ(len, PARTS * PART + HEAD)) {
        CHECK_MEM(data, head, HEAD);
        for (size_t k = 0; k < PARTS; k++) {
            CHECK_MEM(data + HEAD + k * PART, bytes[k % 2] + k, PART);
        }
    }
    free(data);
    (void)unlink(target);
}

/* Whether files in the folder can be written past the page cache. */
static bool knows_direct(void)
{
    int fd = open(names[0], O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd >= 0) {
        (void)close(fd);
    }
    return fd >= 0;
}

RP_TEST(any_block_may_fail_or_need_the_page_cache)
{
    rp_files *files = begin();
    static const struct {
        int write;
        bool onward, fails;
    } ways[] = {{RP_FAULT_WRITE_FULL, false, false},   {RP_FAULT_WRITE_FULL, true, true},
                {RP_FAULT_WRITE_UNABLE, false, false}, {RP_FAULT_WRITE_UNABLE, true, false},
                {RP_FAULT_WRITE_SHORT, false, false},  {RP_FAULT_WRITE_SHORT, true, false},
                {RP_FAULT_WRITE_EINTR, false, false}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct rp_fault fault = {
            .calls = RP_FAULT_WRITE, .write = ways[i].write, .onward = ways[i].onward};
        for (bool met = true; met && fault.nth < 8;) {
            fault.nth++;
            rp_fault_arm(&fault);
            rp_status status = make_large(files);
            met = rp_fault_disarm();
            (void)CHECK_EQ(files_left(), status == RP_OK ? 3 : 2);
            if (status == RP_OK) {
                (void)CHECK(!met || !ways[i].fails);
                check_large();
                continue;
            }
            (void)CHECK_STATUS(status, RP_E_IO, &err);
            (void)CHECK(met && fault.write == RP_FAULT_WRITE_FULL);
            (void)CHECK(err.sys == ENOSPC || err.sys == EIO); /* EIO: of rename */
            (void)CHECK_STR(err.file, target);
        }
        (void)CHECK(fault.nth > 7); /* reserve, three buffers, whole blocks, the rest, name */
    }
    end(&files);
}

RP_TEST(without_a_thread_it_is_written_all_the_same)
{
    rp_files *files = begin();
    struct rp_fault fault = {.calls = RP_FAULT_THREAD, .nth = 1, .onward = true};
    rp_fault_arm(&fault);
    rp_status status = make_large(files);
    bool met = rp_fault_disarm();
    REQUIRE_OK(status, &err);
    (void)CHECK_EQ(met, knows_direct()); /* there is nothing to win through the page cache */
    check_large();
    fault.onward = false; /* there is one for a later block */
    rp_fault_arm(&fault);
    status = make_large(files);
    (void)rp_fault_disarm();
    REQUIRE_OK(status, &err);
    check_large();
    end(&files);
}

RP_TEST(failures_are_named)
{
    rp_files *files = begin();
    struct rp_fault full = {.calls = RP_FAULT_WRITE, .nth = 3, .onward = true};
    rp_fault_arm(&full);
    rp_status status = make(files);
    (void)rp_fault_disarm();
    (void)CHECK_STATUS(status, RP_E_IO, &err);
    (void)CHECK_EQ(err.sys, ENOSPC);
    (void)CHECK_STR(err.file, target);
    (void)CHECK_CONTAINS(err.what, "No space left");
    rp_output *output = NULL;
    char nowhere[200];
    snprintf(nowhere, sizeof(nowhere), "%s/absent/out", folder);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_output_open(nowhere, 5, &output, &err), RP_E_NOT_FOUND, &err);
    rp_error_clear(&err);
    REQUIRE_OK(rp_output_open(target, 5, &output, &err), &err);
    (void)CHECK_STATUS(rp_output_copy(output, files, 0, LEN - 3, 5, &err), RP_E_FORMAT, &err);
    (void)CHECK_CONTAINS(err.what, "truncated");
    (void)CHECK_STR(err.file, names[0]);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_output_commit(&output, false, &err), RP_E_FORMAT,
                       &err); /* 3 of 5 bytes */
    (void)CHECK(output == NULL);
    (void)CHECK_EQ(files_left(), 2);
    rp_output_abandon(&output);
    rp_output_abandon(NULL);
    end(&files);
}

RP_TEST(a_limit_on_file_sizes)
{
    rp_files *files = begin();
    struct rlimit before, low;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    low = before;
    low.rlim_cur = 1 << 20;
    (void)signal(SIGXFSZ, SIG_IGN); /* as Python does */
    REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
    rp_status status = make(files);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    (void)CHECK_STATUS(status, RP_E_IO, &err);
    (void)CHECK_EQ(err.sys, EFBIG);
    (void)CHECK_EQ(files_left(), 2);
    end(&files);
}

RP_TEST(a_source_that_changes)
{
    rp_files *files = begin();
    int64_t size;
    REQUIRE_OK(rp_files_size(files, 1, &size, &err), &err);
    FILE *out = fopen(names[1], "ab");
    REQUIRE(out != NULL && fputc(1, out) == 1 && fclose(out) == 0);
    (void)CHECK_STATUS(make(files), RP_E_CHANGED, &err);
    (void)CHECK_EQ(files_left(), 2);
    end(&files);
}

RP_TEST(an_unfinished_file_of_another_is_not_touched)
{
    rp_files *files = begin();
    char other[160];
    snprintf(other, sizeof(other), "%s/.out.%ld.0.part", folder, (long)getpid());
    FILE *out = fopen(other, "wb");
    REQUIRE(out != NULL && fputs("theirs", out) >= 0 && fclose(out) == 0);
    REQUIRE_OK(make(files), &err);
    check_target();
    size_t len = 0;
    uint8_t *data = rp_read_file(other, &len);
    REQUIRE(data != NULL && len == 6);
    free(data);
    (void)unlink(other);
    end(&files);
}
