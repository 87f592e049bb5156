#include "base/error.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void rp_error_clear(struct rp_error *err)
{
    if (err == NULL) {
        return;
    }
    memset(err, 0, sizeof(*err));
    err->offset = err->length = err->episode = err->frame = -1;
    err->time = err->nearest = NAN;
}

rp_status rp_error_set(struct rp_error *err, rp_status code, const char *fmt, ...)
{
    if (err == NULL || err->code < 0) {
        return code;
    }
    rp_error_clear(err);
    err->code = code;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(err->what, sizeof(err->what), fmt, args); /* cut text is fine */
    va_end(args);
    return code;
}

static void copy_text(char *to, size_t cap, const char *from)
{
    if (from == NULL || to[0] != '\0') {
        return;
    }
    size_t n = strlen(from);
    if (n >= cap) {
        from += n - (cap - 1); /* the end of a path tells more than its start */
        n = cap - 1;
    }
    memcpy(to, from, n);
    to[n] = '\0';
}

void rp_error_at_file(struct rp_error *err, const char *file, int64_t offset, int64_t length)
{
    if (err == NULL) {
        return;
    }
    copy_text(err->file, sizeof(err->file), file);
    if (err->offset < 0) {
        err->offset = offset;
        err->length = length;
    }
}

void rp_error_at_frame(struct rp_error *err, const char *camera, int64_t episode, int64_t frame)
{
    if (err == NULL) {
        return;
    }
    copy_text(err->camera, sizeof(err->camera), camera);
    if (err->episode < 0) {
        err->episode = episode;
    }
    if (err->frame < 0) {
        err->frame = frame;
    }
}

const char *rp_status_name(rp_status code)
{
    switch (code) {
    case RP_OK: return "OK";
    case RP_AGAIN: return "AGAIN";
    case RP_END: return "END";
    case RP_NEED_SECRET: return "NEED_SECRET";
    case RP_E_ARG: return "ARG";
    case RP_E_NOMEM: return "NOMEM";
    case RP_E_IO: return "IO";
    case RP_E_NOT_FOUND: return "NOT_FOUND";
    case RP_E_AUTH: return "AUTH";
    case RP_E_HTTP: return "HTTP";
    case RP_E_TIMEOUT: return "TIMEOUT";
    case RP_E_CHANGED: return "CHANGED";
    case RP_E_FORMAT: return "FORMAT";
    case RP_E_UNSUPPORTED: return "UNSUPPORTED";
    case RP_E_TIMESTAMP: return "TIMESTAMP";
    case RP_E_DECODE: return "DECODE";
    case RP_E_CUDA: return "CUDA";
    case RP_E_STALLED: return "STALLED";
    case RP_E_CLOSED: return "CLOSED";
    case RP_E_OFFLINE: return "OFFLINE";
    }
    return "UNKNOWN";
}
