/* A server of byte ranges on loopback, for tests: GET with a Range. It serves local files by their
 * path, or the same bytes under every path; /moved is then redirected to /f, and a request without
 * a range gets a page of two bytes. Each connection has a thread, which allocates nothing: memory
 * may run out beside it. Every `fault_every`th range is cut in its middle, every other fault is a
 * 503. Included once per program. */
#ifndef RP_TESTS_RANGE_SERVER_H
#define RP_TESTS_RANGE_SERVER_H

#include "harness.h"
#include "range_answers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
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
    int fd, port;
    struct range_content content;
    pthread_t acceptor;
    struct range_connection connection[RANGE_CONNECTIONS];
};

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
        if (!range_take(&c->server->content, c->fd, request)) {
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
    server->content.fault_every = fault_every;
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
