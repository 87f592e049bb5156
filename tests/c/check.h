/* The CHECK macros of the harness: each prints file, line and values on failure, counts it, goes
 * on, and is itself the verdict (`if (!CHECK(p)) return;`). They work on any thread. */
#ifndef RP_TESTS_CHECK_H
#define RP_TESTS_CHECK_H

#include "base/error.h"

#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define RP_UNUSED __attribute__((unused))

static atomic_int rp_failures; /* of the running test */

/* Count a failure and print where and what. */
static void rp_fail_at(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), unused));
static void rp_fail_at(const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
    atomic_fetch_add(&rp_failures, 1);
}

static RP_UNUSED bool rp_check(const char *file, int line, const char *text, bool holds)
{
    if (!holds) {
        rp_fail_at(file, line, "%s is false", text);
    }
    return holds;
}

static RP_UNUSED bool rp_check_near(const char *file, int line, const char *text, double a,
                                    double b, double tolerance)
{
    bool near = fabs(a - b) <= tolerance;
    if (!near) {
        rp_fail_at(file, line, "%s: %.17g is not %.17g", text, a, b);
    }
    return near;
}

static RP_UNUSED bool rp_check_int(const char *file, int line, const char *a_text,
                                   const char *b_text, intmax_t a, intmax_t b)
{
    if (a != b) {
        rp_fail_at(file, line, "%s == %s: %jd is not %jd", a_text, b_text, a, b);
    }
    return a == b;
}

static RP_UNUSED bool rp_check_str(const char *file, int line, const char *a_text, const char *a,
                                   const char *b)
{
    bool equal = a != NULL && b != NULL ? strcmp(a, b) == 0 : a == b;
    if (!equal) {
        rp_fail_at(file, line, "%s: \"%s\" is not \"%s\"", a_text, a ? a : "(null)",
                   b ? b : "(null)");
    }
    return equal;
}

static RP_UNUSED bool rp_check_contains(const char *file, int line, const char *text,
                                        const char *part)
{
    bool found = text != NULL && strstr(text, part) != NULL;
    if (!found) {
        rp_fail_at(file, line, "\"%s\" does not contain \"%s\"", text ? text : "(null)", part);
    }
    return found;
}

static RP_UNUSED bool rp_check_mem(const char *file, int line, const void *a, const void *b,
                                   size_t n)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < n; i++) {
        if (x[i] != y[i]) {
            rp_fail_at(file, line, "byte %zu of %zu: %u is not %u", i, n, x[i], y[i]);
            return false;
        }
    }
    return true;
}

static RP_UNUSED bool rp_check_status(const char *file, int line, const char *call, rp_status got,
                                      rp_status want, const struct rp_error *err)
{
    if (got != want) {
        rp_fail_at(file, line, "%s: %s, not %s (%s)", call, rp_status_name(got),
                   rp_status_name(want), err != NULL ? err->what : "no error record");
    }
    return got == want;
}

/* `condition` holds. */
#define CHECK(condition) rp_check(__FILE__, __LINE__, #condition, (condition))
/* Two integers (also enums and booleans) are equal. */
#define CHECK_EQ(a, b) rp_check_int(__FILE__, __LINE__, #a, #b, (intmax_t)(a), (intmax_t)(b))
/* Two doubles differ by at most `tolerance`. */
#define CHECK_NEAR(a, b, tolerance) \
    rp_check_near(__FILE__, __LINE__, #a, (double)(a), (double)(b), (tolerance))
/* Two strings are equal; a string contains another; n bytes are equal. */
#define CHECK_STR(a, b)            rp_check_str(__FILE__, __LINE__, #a, (a), (b))
#define CHECK_CONTAINS(text, part) rp_check_contains(__FILE__, __LINE__, (text), (part))
#define CHECK_MEM(a, b, n)         rp_check_mem(__FILE__, __LINE__, (a), (b), (n))
/* A call gives this status; `err` (a struct rp_error *, or NULL) is printed if not. */
#define CHECK_STATUS(call, status, err) \
    rp_check_status(__FILE__, __LINE__, #call, (call), (status), (err))
#define CHECK_OK(call, err) CHECK_STATUS(call, RP_OK, err)

#endif
