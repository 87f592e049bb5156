/* The test harness: one test program per module, included once, main() and all.
 *
 *     #include "harness.h"
 *     RP_TEST(empty_input_is_refused)
 *     {
 *         CHECK_EQ(rp_thing_parse(NULL, 0, &err), RP_E_FORMAT);
 *     }
 *
 * `test_thing` runs all tests in the order of the file, `test_thing NAME...` those whose name
 * contains a NAME, `test_thing -l` lists them. CHECK* print file, line and values, count a failure
 * and go on; REQUIRE* end the test. After each test that passed, rp_live_objects() must be what it
 * was before: a leak is a failure. Define RP_HARNESS_OWN_MAIN before the include to write main()
 * yourself and call rp_harness_run. Tests run one at a time, on the main thread; CHECK* work on any
 * thread. */
#ifndef RP_TESTS_HARNESS_H
#define RP_TESTS_HARNESS_H

#include "base/error.h"
#include "base/memory.h"
#include "check.h"
#include "fault_inject.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rp_test {
    const char *name;
    void (*run)(void);
};

static struct rp_test rp_tests[1024];
static int rp_test_count;
static jmp_buf rp_test_end; /* REQUIRE jumps here */

/* Define and register a test. */
#define RP_TEST(name)                                                     \
    static void test_##name(void);                                        \
    __attribute__((constructor)) static void register_##name(void)        \
    {                                                                     \
        rp_tests[rp_test_count++] = (struct rp_test){#name, test_##name}; \
    }                                                                     \
    static void test_##name(void)

/* The same, but a failure ends the test (main thread only). */
#define REQUIRE_(check)              \
    do {                             \
        if (!(check)) {              \
            longjmp(rp_test_end, 1); \
        }                            \
    } while (0)
#define REQUIRE(condition)                REQUIRE_(CHECK(condition))
#define REQUIRE_EQ(a, b)                  REQUIRE_(CHECK_EQ(a, b))
#define REQUIRE_OK(call, err)             REQUIRE_(CHECK_OK(call, err))
#define REQUIRE_STATUS(call, status, err) REQUIRE_(CHECK_STATUS(call, status, err))

/* Fault sweep: run body(arg) with call number n (then n + step, ...) of the wrapped functions
 * failing, until a run meets no fault. The body copes with failure and checks what it can (a typed
 * error, no half result); the sweep checks that nothing stays alive. REELPOOL_FAULT_STEP (default
 * 1) thins it. Returns the number of runs that met a fault: check that it is not 0. */
static RP_UNUSED int rp_fault_sweep(struct rp_fault fault, void (*body)(void *), void *arg)
{
    const char *text = getenv("REELPOOL_FAULT_STEP");
    long step = text != NULL ? strtol(text, NULL, 10) : 1;
    int runs = 0;
    for (long n = 1;; n += step > 0 ? step : 1) {
        int64_t alive = rp_live_objects();
        fault.nth = n;
        rp_fault_arm(&fault);
        body(arg);
        bool met = rp_fault_disarm();
        if (rp_live_objects() != alive) {
            rp_fail_at(__FILE__, __LINE__, "fault %ld: %" PRId64 " objects leaked", n,
                       rp_live_objects() - alive);
            return runs;
        }
        if (!met) {
            return runs;
        }
        runs++;
    }
}

/* Bytes of a whole file (malloc'ed, the caller frees), or NULL with errno set. */
static RP_UNUSED uint8_t *rp_read_file(const char *path, size_t *len)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    uint8_t *data = NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        rewind(file);
        data = size >= 0 ? malloc((size_t)size + 1) : NULL;
        *len = data != NULL ? fread(data, 1, (size_t)size, file) : 0;
    }
    fclose(file);
    return data;
}

/* Folder of the real data sets: REELPOOL_TEST_DATA, else ../shared/data beside the repository
 * (tests run in its root); NULL where it is absent, and the test says so with SKIP. */
static RP_UNUSED const char *rp_data_root(void)
{
    const char *root = getenv("REELPOOL_TEST_DATA");
    root = root != NULL ? root : "../shared/data";
    FILE *probe = fopen(root, "r");
    if (probe == NULL) {
        return NULL;
    }
    fclose(probe);
    return root;
}

/* Leave the test without a verdict; the reason is printed. A failure where REELPOOL_REQUIRE names
 * `what` (REELPOOL_REQUIRE=data,torch). Main thread only. */
#define SKIP(what, reason)                                                       \
    do {                                                                         \
        const char *required_ = getenv("REELPOOL_REQUIRE");                      \
        if (required_ != NULL && strstr(required_, what) != NULL) {              \
            rp_fail_at(__FILE__, __LINE__, "required, but skipped: %s", reason); \
        }                                                                        \
        fprintf(stderr, "%s:%d: skipped: %s\n", __FILE__, __LINE__, reason);     \
        longjmp(rp_test_end, 2);                                                 \
    } while (0)

static RP_UNUSED bool rp_test_is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strstr(name, argv[i]) != NULL) {
            return true;
        }
    }
    return argc < 2;
}

/* Run one test: 0 passed, 1 failed, 2 skipped. */
static RP_UNUSED int rp_run_test(const struct rp_test *test)
{
    atomic_store(&rp_failures, 0);
    int64_t alive = rp_live_objects();
    int ended = setjmp(rp_test_end); /* 1 from REQUIRE, 2 from SKIP */
    if (ended == 0) {
        test->run();
        (void)rp_fault_disarm();
        if (atomic_load(&rp_failures) == 0 && rp_live_objects() != alive) {
            rp_fail_at(__FILE__, __LINE__, "%" PRId64 " objects leaked", rp_live_objects() - alive);
        }
    }
    (void)rp_fault_disarm();
    static const char *const verdicts[] = {"ok  ", "FAIL", "skip"};
    int verdict = atomic_load(&rp_failures) > 0 ? 1 : ended == 2 ? 2 : 0;
    fprintf(stderr, "%s %s\n", verdicts[verdict], test->name);
    return verdict;
}

/* Run the tests that argv names (all without names). Returns the exit status of the program. */
static RP_UNUSED int rp_harness_run(int argc, char **argv)
{
    int count[3] = {0, 0, 0};
    bool list = argc == 2 && strcmp(argv[1], "-l") == 0;
    for (int i = 0; i < rp_test_count; i++) {
        if (list) {
            puts(rp_tests[i].name);
        }
        else if (rp_test_is_wanted(rp_tests[i].name, argc, argv)) {
            count[rp_run_test(&rp_tests[i])]++;
        }
    }
    if (list) {
        return 0;
    }
    fprintf(stderr, "%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
    /* A program that ran nothing proves nothing. */
    return count[1] > 0 || count[0] + count[2] == 0 ? 1 : 0;
}

#ifndef RP_HARNESS_OWN_MAIN
int main(int argc, char **argv)
{
    return rp_harness_run(argc, argv);
}
#endif

#endif
