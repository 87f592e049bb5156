/* A server of byte ranges on loopback, for tests: GET with a Range. It serves local files by their
 * path, or the same bytes under every path; /moved is then redirected to /f, and a request without
 * a range gets a page of two bytes. Each connection has a thread, which allocates nothing: memory
 * may run out beside it. Every `fault_every`th range is cut in its middle, every other fault is a
 * 503. Included once per program. */
#ifndef RP_TESTS_RANGE_SERVER_H
#define RP_TESTS_RANGE_SERVER_H

#include "harness.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANGE_CONNECTIONS = 256 };

struct range_connection {
    struct range_server *server;
    pthread_t thread;
    int fd; /* closed by who joins */
    bool used;
    atomic_bool ended;
};

struct range_server {
    int fd, port, fault_every;
    const uint8_t *content; /* of every path, `size` bytes; NULL: local files */
    long size;
    atomic_bool silent;             /* requests are read and not answered */
    atomic_int requests, redirects; /* ranges asked for; /moved asked for */
    pthread_t acceptor;
    struct range_connection connection[RANGE_CONNECTIONS];
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
static bool range_send_part(const struct range_server *server, int fd, int file, long size,
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
           (file < 0 ? range_send(fd, server->content + first, len, 0)
                     : range_send_file(fd, file, first, len)) &&
           !cut;
}

static bool range_answer(struct range_server *server, int fd, const char *path, long first,
                         long last)
{
    int number = atomic_fetch_add(&server->requests, 1) + 1;
    bool faulty = server->fault_every > 0 && number % server->fault_every == 0;
    if (faulty && number / server->fault_every % 2 == 0) {
        return RANGE_SEND_TEXT(fd, "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n");
    }
    if (server->content != NULL) {
        return range_send_part(server, fd, -1, server->size, first, last, faulty);
    }
    struct stat st;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool there = file >= 0 && fstat(file, &st) == 0 && first < st.st_size;
    bool on = there ? range_send_part(server, fd, file, (long)st.st_size, first, last, faulty)
                    : RANGE_SEND_TEXT(fd, "HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n");
    if (file >= 0) {
        (void)close(file);
    }
    return on;
}

/* False: the connection ends. */
static bool range_take(struct range_server *server, int fd, const char *request)
{
    char path[2048];
    long first = 0, last = 0;
    const char *range = strstr(request, "Range: bytes=");
    if (atomic_load(&server->silent)) {
        return true;
    }
    if (server->content != NULL && strncmp(request, "GET /moved", 10) == 0) {
        atomic_fetch_add(&server->redirects, 1);
        return RANGE_SEND_TEXT(fd, "HTTP/1.1 302 X\r\nLocation: /f\r\nContent-Length: 0\r\n\r\n");
    }
    if (server->content != NULL && range == NULL) {
        return RANGE_SEND_TEXT(fd, "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\n[]");
    }
    return range != NULL && sscanf(range, "Range: bytes=%ld-%ld", &first, &last) == 2 &&
           sscanf(request, "GET /%2047s", path) == 1 &&
           range_answer(server, fd, path[0] == '~' ? path + 1 : path, first, last);
}

static void *range_serve(void *arg)
{
    struct range_connection *c = arg;
    char request[4096];
    size_t used = 0;
    ssize_t got;
    while ((got = recv(c->fd, request + used, sizeof(request) - 1 - used, 0)) > 0) {
        used += (size_t)got;
        request[used] = '\0';
        if (strstr(request, "\r\n\r\n") == NULL) {
            continue;
        }
        used = 0;
        if (!range_take(c->server, c->fd, request)) {
            break;
        }
    }
    (void)shutdown(c->fd, SHUT_RDWR);
    atomic_store(&c->ended, true);
    return NULL;
}

static void range_join(struct range_connection *c)
{
    (void)pthread_join(c->thread, NULL);
    (void)close(c->fd);
    c->used = false;
}

/* A connection's place; those that have ended are cleared away. NULL: all are in use. */
static struct range_connection *range_place(struct range_server *server)
{
    struct range_connection *place = NULL;
    for (int i = 0; i < RANGE_CONNECTIONS; i++) {
        struct range_connection *c = &server->connection[i];
        if (c->used && atomic_load(&c->ended)) {
            range_join(c);
        }
        place = c->used ? place : c;
    }
    return place;
}

static void *range_accept(void *arg)
{
    struct range_server *server = arg;
    int fd;
    while ((fd = accept(server->fd, NULL, NULL)) >= 0) {
        struct range_connection *c = range_place(server);
        if (c != NULL) {
            c->server = server;
            c->fd = fd;
            atomic_store(&c->ended, false);
            c->used = pthread_create(&c->thread, NULL, range_serve, c) == 0;
        }
        if (c == NULL || !c->used) {
            (void)close(fd);
        }
    }
    return NULL;
}

static RP_UNUSED void range_server_start(struct range_server *server, int fault_every)
{
    memset(server, 0, sizeof(*server));
    server->fault_every = fault_every;
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof(address);
    REQUIRE(bind(server->fd, (struct sockaddr *)&address, len) == 0);
    REQUIRE(listen(server->fd, 64) == 0);
    REQUIRE(getsockname(server->fd, (struct sockaddr *)&address, &len) == 0);
    server->port = ntohs(address.sin_port);
    REQUIRE(pthread_create(&server->acceptor, NULL, range_accept, server) == 0);
}

static RP_UNUSED void range_server_stop(struct range_server *server)
{
    (void)shutdown(server->fd, SHUT_RDWR); /* wakes accept */
    (void)pthread_join(server->acceptor, NULL);
    for (int i = 0; i < RANGE_CONNECTIONS; i++) {
        struct range_connection *c = &server->connection[i];
        if (c->used) {
            (void)shutdown(c->fd, SHUT_RDWR);
            range_join(c);
        }
    }
    (void)close(server->fd);
}

#endif
