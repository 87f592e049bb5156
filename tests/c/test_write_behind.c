/* One write in a thread of its own: its bytes, its failure, its end. */
#include "fetch/write_behind_priv.h"

#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LEN = 1 << 20, BLOCKS = 7 };

static char path[64];
static uint8_t bytes[LEN];
static struct rp_error err;

/* A new file, for reading and writing. */
static int begin(void)
{
    snprintf(path, sizeof(path), "/tmp/rp_test_behind_XXXXXX");
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    for (size_t i = 0; i < LEN; i++) {
        bytes[i] = (uint8_t)(i * 11 + i / 251);
    }
    rp_error_clear(&err);
    return fd;
}

static void end(int fd)
{
    (void)CHECK_EQ(close(fd), 0);
    (void)CHECK_EQ(unlink(path), 0);
}

static rp_write_behind *start(void)
{
    rp_write_behind *behind = NULL;
    REQUIRE_OK(rp_write_behind_new(&behind, &err), &err);
    return behind;
}

/* Whether the file holds bytes[from, from + len) at `at`. */
static bool holds(int fd, size_t from, size_t len, int64_t at)
{
    static uint8_t got[LEN];
    return pread(fd, got, len, (off_t)at) == (ssize_t)len && memcmp(got, bytes + from, len) == 0;
}

RP_TEST(bytes_arrive_where_they_belong)
{
    int fd = begin();
    rp_write_behind *behind = start();
    size_t done = 99;
    (void)CHECK_EQ(rp_write_behind_wait(behind, &done), 0); /* nothing was begun */
    (void)CHECK_EQ(done, 0);
    static const size_t lens[BLOCKS] = {LEN, 1, 4096, 4095, 77, 3, LEN / 2};
    static const int64_t places[BLOCKS] = {5LL << 30, 0, 1 << 20, 3 << 20, 9, 2, 64 << 20};
    for (size_t i = 0; i < BLOCKS; i++) {
        rp_write_behind_begin(behind, fd, bytes + i, lens[i], places[i]);
        (void)CHECK_EQ(rp_write_behind_wait(behind, &done), 0);
        (void)CHECK_EQ(done, lens[i]);
        done = 99;
        (void)CHECK_EQ(rp_write_behind_wait(behind, &done), 0);
        (void)CHECK_EQ(done, 0); /* it was told */
    }
    for (size_t i = 0; i < BLOCKS; i++) {
        (void)CHECK(holds(fd, i, lens[i], places[i]));
    }
    rp_write_behind_free(&behind);
    (void)CHECK(behind == NULL);
    rp_write_behind_free(&behind);
    rp_write_behind_free(NULL);
    end(fd);
}

/* Several in one process, each with its file. */
RP_TEST(several_at_once)
{
    enum { FILES = 3 };
    int fds[FILES];
    rp_write_behind *behind[FILES];
    for (int i = 0; i < FILES; i++) {
        fds[i] = begin();
        REQUIRE(unlink(path) == 0);
        behind[i] = start();
    }
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < FILES; i++) {
            rp_write_behind_begin(behind[i], fds[i], bytes + i, 100000, round * 100000);
        }
        for (int i = 0; i < FILES; i++) {
            size_t done;
            (void)CHECK_EQ(rp_write_behind_wait(behind[i], &done), 0);
            (void)CHECK_EQ(done, 100000);
            (void)CHECK(holds(fds[i], (size_t)i, 100000, round * 100000));
        }
    }
    for (int i = 0; i < FILES; i++) {
        rp_write_behind_free(&behind[i]);
        (void)CHECK_EQ(close(fds[i]), 0);
    }
}

/* Write LEN bytes while calls fail in one way; errno, and what arrived. */
static int faulty(rp_write_behind *behind, int fd, int how, bool onward, size_t *done)
{
    struct rp_fault fault = {.calls = RP_FAULT_WRITE, .write = how, .nth = 1, .onward = onward};
    REQUIRE(ftruncate(fd, 0) == 0);
    *done = 99;
    rp_fault_arm(&fault);
    rp_write_behind_begin(behind, fd, bytes, LEN, 0);
    int sys = rp_write_behind_wait(behind, done);
    (void)CHECK(rp_fault_disarm());
    return sys;
}

RP_TEST(what_can_go_on_goes_on)
{
    int fd = begin();
    rp_write_behind *behind = start();
    size_t done;
    static const struct {
        int how;
        bool onward;
    } ways[] = {
        {RP_FAULT_WRITE_EINTR, false}, {RP_FAULT_WRITE_SHORT, false}, {RP_FAULT_WRITE_SHORT, true}};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        (void)CHECK_EQ(faulty(behind, fd, ways[i].how, ways[i].onward, &done), 0);
        (void)CHECK_EQ(done, LEN);
        (void)CHECK(holds(fd, 0, LEN, 0));
    }
    rp_write_behind_free(&behind);
    end(fd);
}

RP_TEST(a_failure_says_how_much_arrived)
{
    int fd = begin();
    rp_write_behind *behind = start();
    size_t done;
    (void)CHECK_EQ(faulty(behind, fd, RP_FAULT_WRITE_FULL, false, &done), ENOSPC);
    (void)CHECK_EQ(done, 0);
    (void)CHECK_EQ(rp_write_behind_wait(behind, &done), 0); /* it was told once */
    struct rlimit before, low;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    low = before;
    low.rlim_cur = 5000;
    (void)signal(SIGXFSZ, SIG_IGN); /* as Python does */
    REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
    rp_write_behind_begin(behind, fd, bytes, LEN, 1000);
    int sys = rp_write_behind_wait(behind, &done);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    (void)CHECK_EQ(sys, EFBIG);
    (void)CHECK_EQ(done, 4000);
    (void)CHECK(holds(fd, 0, 4000, 1000));
    rp_write_behind_begin(behind, -1, bytes, 5, 0);
    (void)CHECK_EQ(rp_write_behind_wait(behind, &done), EBADF);
    (void)CHECK_EQ(done, 0);
    rp_write_behind_begin(behind, fd, bytes, LEN, 0); /* the next one is another matter */
    (void)CHECK_EQ(rp_write_behind_wait(behind, &done), 0);
    (void)CHECK_EQ(done, LEN);
    (void)CHECK(holds(fd, 0, LEN, 0));
    rp_write_behind_free(&behind);
    end(fd);
}

RP_TEST(its_end_waits_for_the_write)
{
    int fd = begin();
    for (int i = 0; i < 20; i++) {
        rp_write_behind *behind = start();
        REQUIRE(ftruncate(fd, 0) == 0);
        uint8_t *copy = malloc(LEN);
        REQUIRE(copy != NULL);
        memcpy(copy, bytes, LEN);
        rp_write_behind_begin(behind, fd, copy, LEN, 0);
        rp_write_behind_free(&behind);
        free(copy); /* the caller's, from now on */
        (void)CHECK(holds(fd, 0, LEN, 0));
    }
    end(fd);
}

static void start_and_end(void *unused)
{
    (void)unused;
    rp_write_behind *behind = NULL;
    rp_error_clear(&err);
    rp_status status = rp_write_behind_new(&behind, &err);
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == status));
    (void)CHECK((behind != NULL) == (status == RP_OK));
    rp_write_behind_free(&behind);
}

RP_TEST(no_memory_no_lock_no_thread)
{
    struct rp_fault any = {.calls = RP_FAULT_MEMORY | RP_FAULT_THREAD};
    (void)CHECK(rp_fault_sweep(any, start_and_end, NULL) >= 4);
}
