/* A server of byte ranges of local files on loopback, for tests: GET /PATH with a Range. Each
 * connection has a thread. Every `fault_every`th request is cut in its middle, every other fault is
 * a 503. Included once per program. */
#ifndef RP_TESTS_RANGE_SERVER_H
#define RP_TESTS_RANGE_SERVER_H

#include "harness.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct range_server {
    int fd, port, fault_every;
    atomic_int requests;
    pthread_t acceptor;
};

static bool range_send(int fd, const void *data, size_t len)
{
    const char *at = data;
    while (len > 0) {
        ssize_t put = send(fd, at, len, MSG_NOSIGNAL);
        if (put <= 0) {
            return false;
        }
        at += put;
        len -= (size_t)put;
    }
    return true;
}

/* False: the connection ends. */
static bool range_answer(struct range_server *server, int fd, const char *path, long first,
                         long last)
{
    int number = atomic_fetch_add(&server->requests, 1) + 1;
    bool faulty = server->fault_every > 0 && number % server->fault_every == 0;
    if (faulty && number / server->fault_every % 2 == 0) {
        static const char busy[] = "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n";
        return range_send(fd, busy, sizeof(busy) - 1);
    }
    struct stat st;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &st) != 0 || first >= st.st_size) {
        static const char none[] = "HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n";
        (void)close(file);
        return range_send(fd, none, sizeof(none) - 1);
    }
    last = last < st.st_size ? last : (long)st.st_size - 1;
    size_t len = (size_t)(last - first + 1);
    char head[300], *data = malloc(len);
    bool sent = data != NULL && pread(file, data, len, first) == (ssize_t)len;
    (void)close(file);
    int n = snprintf(head, sizeof(head),
                     "HTTP/1.1 206 X\r\nContent-Length: %zu\r\nETag: \"v\"\r\n"
                     "Content-Range: bytes %ld-%ld/%ld\r\n\r\n",
                     len, first, last, (long)st.st_size);
    sent = sent && range_send(fd, head, (size_t)n) && range_send(fd, data, faulty ? len / 2 : len);
    free(data);
    return sent && !faulty;
}

struct range_connection {
    struct range_server *server;
    int fd;
};

static void *range_serve(void *arg)
{
    struct range_connection c = *(struct range_connection *)arg;
    free(arg);
    char request[4096], path[2048];
    size_t used = 0;
    for (;;) {
        ssize_t got = recv(c.fd, request + used, sizeof(request) - 1 - used, 0);
        if (got <= 0) {
            break;
        }
        used += (size_t)got;
        request[used] = '\0';
        if (strstr(request, "\r\n\r\n") == NULL) {
            continue;
        }
        used = 0;
        long first = 0, last = 0;
        const char *range = strstr(request, "Range: bytes=");
        if (range == NULL || sscanf(range, "Range: bytes=%ld-%ld", &first, &last) != 2 ||
            sscanf(request, "GET /%2047s", path) != 1 ||
            !range_answer(c.server, c.fd, path[0] == '~' ? path + 1 : path, first, last)) {
            break;
        }
    }
    (void)close(c.fd);
    return NULL;
}

static void *range_accept(void *arg)
{
    struct range_server *server = arg;
    for (;;) {
        int fd = accept(server->fd, NULL, NULL);
        if (fd < 0) {
            return NULL;
        }
        struct range_connection *c = malloc(sizeof(*c));
        pthread_t thread;
        if (c != NULL) {
            *c = (struct range_connection){server, fd};
        }
        if (c == NULL || pthread_create(&thread, NULL, range_serve, c) != 0) {
            (void)close(fd);
            free(c);
            continue;
        }
        (void)pthread_detach(thread); /* ends with its connection */
    }
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
    (void)close(server->fd);
}

#endif
