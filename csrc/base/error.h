/* Status codes, the error record and the one error idiom of the core.
 *
 * A function that can fail returns rp_status. 0 is success, values > 0 are flow (the caller acts
 * and goes on), values < 0 are failures. The caller may pass NULL for `struct rp_error *`; whoever
 * accepts one fills it on every failure. `what` is written once, where the failure happens; callers
 * add coordinates on the way up and never overwrite the first text. */
#ifndef RP_BASE_ERROR_H
#define RP_BASE_ERROR_H

#include <stddef.h>
#include <stdint.h>

typedef enum rp_status {
    RP_OK = 0,
    /* flow */
    RP_AGAIN = 1,
    RP_END = 2,
    RP_NEED_SECRET = 3,
    /* failures */
    RP_E_ARG = -1,
    RP_E_NOMEM = -2,
    RP_E_IO = -3,
    RP_E_NOT_FOUND = -4,
    RP_E_AUTH = -5,
    RP_E_HTTP = -6,
    RP_E_TIMEOUT = -7,
    RP_E_CHANGED = -8,
    RP_E_FORMAT = -9,
    RP_E_UNSUPPORTED = -10,
    RP_E_TIMESTAMP = -11,
    RP_E_DECODE = -12,
    RP_E_CUDA = -13,
    RP_E_STALLED = -14,
    RP_E_CLOSED = -15,
    RP_E_OFFLINE = -16
} rp_status;

#define RP_CHECKED                 __attribute__((warn_unused_result))
#define RP_PRINTF(fmt_at, args_at) __attribute__((format(printf, fmt_at, args_at)))

/* Where and why something failed. Plain data: copied by assignment, owns nothing. Absent
 * coordinates are -1 (integers), NAN (seconds) or "" (strings). */
struct rp_error {
    rp_status code;
    int sys;          /* errno, HTTP status, AVERROR or cudaError; 0 = none */
    int64_t offset;   /* byte offset in `file` */
    int64_t length;   /* bytes */
    int64_t episode;  /* the dataset's episode_index */
    int64_t frame;    /* counted from the episode's start */
    double time;      /* queried time in seconds */
    double nearest;   /* nearest available time in seconds */
    char file[512];   /* path as the user knows it, cut if longer */
    char camera[128]; /* feature name of the camera, cut if longer */
    char what[256];   /* one sentence without trailing full stop */
};

/* Reset *err to "no error, no coordinates". Owner: the caller's. Thread: any. Blocks: never.
 * NULL: allowed, does nothing. Errors: none. */
void rp_error_clear(struct rp_error *err);

/* Set code and text unless an error is stored already (the first one wins), clearing coordinates.
 * Owner: err is the caller's, fmt is borrowed. Thread: any. Blocks: never. NULL: err may be NULL.
 * Returns `code`, so that `return rp_error_set(...)` reads well. */
rp_status rp_error_set(struct rp_error *err, rp_status code, const char *fmt, ...) RP_PRINTF(3, 4);

/* Fill coordinates that are still absent. Owner: err is the caller's, strings are copied. Thread:
 * any. Blocks: never. NULL: every pointer may be NULL. Errors: none. */
void rp_error_at_file(struct rp_error *err, const char *file, int64_t offset, int64_t length);
void rp_error_at_frame(struct rp_error *err, const char *camera, int64_t episode, int64_t frame);

/* Name of a code without its prefix ("TIMESTAMP"). Owner: constant. Thread: any. Blocks: never. */
const char *rp_status_name(rp_status code);

/* Record a failure and return its code. */
#define RP_FAIL(err, code, ...) return rp_error_set((err), (code), __VA_ARGS__)

/* Pass on any status but RP_OK. */
#define RP_TRY(call)                       \
    do {                                   \
        rp_status rp_try_status_ = (call); \
        if (rp_try_status_ != RP_OK) {     \
            return rp_try_status_;         \
        }                                  \
    } while (0)

#endif
