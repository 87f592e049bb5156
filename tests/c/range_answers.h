/* What the server of byte ranges of range_server.h answers. */
#ifndef RP_TESTS_RANGE_ANSWERS_H
#define RP_TESTS_RANGE_ANSWERS_H

#include "harness.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct range_content {
    const uint8_t *bytes; /* of every path, `size` of them; NULL: local files */
    long size;
    int fault_every;
    atomic_bool silent;             /* requests are read and not answered */
    atomic_int requests, redirects; /* ranges asked for; /moved asked for */
};

static bool range_send(int fd, const void *data, size_t len, int flags)
{
    const char *at = data;
    while (len > 0) {
        ssize_t put = send(fd, at, len, MSG_NOSIGNAL | flags);
        if (put <= 0) {
            return false;
        }
        at += put;
        len -= (size_t)put;
    }
    return true;
}

#define RANGE_SEND_TEXT(fd, text) range_send(fd, text, sizeof(text) - 1, 0)

static bool range_send_file(int fd, int file, long at, size_t len)
{
    char part[1 << 14];
    while (len > 0) {
        ssize_t got = pread(file, part, len < sizeof(part) ? len : sizeof(part), at);
        if (got <= 0 || !range_send(fd, part, (size_t)got, 0)) {
            return false;
        }
        at += got;
        len -= (size_t)got;
    }
    return true;
}

/* False: the connection ends. `file`: open, or -1 where the server has content of its own. */
static bool range_send_part(const struct range_content *content, int fd, int file, long size,
                            long first, long last, bool cut)
{
    last = last < size ? last : size - 1;
    size_t len = (size_t)(last - first + 1);
    char head[300];
    int n = snprintf(head, sizeof(head),
                     "HTTP/1.1 206 X\r\nContent-Length: %zu\r\nETag: \"v\"\r\n"
                     "Content-Range: bytes %ld-%ld/%ld\r\n\r\n",
                     len, first, last, size);
    len = cut ? len / 2 : len;
    return range_send(fd, head, (size_t)n, MSG_MORE) &&
           (file < 0 ? range_send(fd, content->bytes + first, len, 0)
                     : range_send_file(fd, file, first, len)) &&
           !cut;
}

static bool range_answer(struct range_content *content, int fd, const char *path, long first,
                         long last)
{
    int number = atomic_fetch_add(&content->requests, 1) + 1;
    bool faulty = content->fault_every > 0 && number % content->fault_every == 0;
    if (faulty && number / content->fault_every % 2 == 0) {
        return RANGE_SEND_TEXT(fd, "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n");
    }
    if (content->bytes != NULL) {
        return range_send_part(content, fd, -1, content->size, first, last, faulty);
    }
    struct stat st;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool there = file >= 0 && fstat(file, &st) == 0 && first < st.st_size;
    bool on = there ? range_send_part(content, fd, file, (long)st.st_size, first, last, faulty)
                    : RANGE_SEND_TEXT(fd, "HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n");
    if (file >= 0) {
        (void)close(file);
    }
    return on;
}

/* False: the connection ends. */
static bool range_take(struct range_content *content, int fd, const char *request)
{
    char path[2048];
    long first = 0, last = 0;
    const char *range = strstr(request, "Range: bytes=");
    if (atomic_load(&content->silent)) {
        return true;
    }
    if (content->bytes != NULL && strncmp(request, "GET /moved", 10) == 0) {
        atomic_fetch_add(&content->redirects, 1);
        return RANGE_SEND_TEXT(fd, "HTTP/1.1 302 X\r\nLocation: /f\r\nContent-Length: 0\r\n\r\n");
    }
    if (content->bytes != NULL && range == NULL) {
        return RANGE_SEND_TEXT(fd, "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n[]");
    }
    return range != NULL && sscanf(range, "Range: bytes=%ld-%ld", &first, &last) == 2 &&
           sscanf(request, "GET /%2047s", path) == 1 &&
           range_answer(content, fd, path[0] == '~' ? path + 1 : path, first, last);
}

#endif
