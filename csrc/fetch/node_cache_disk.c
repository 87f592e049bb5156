#include "fetch/node_cache_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDER (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

void rp_node_object_name(const char *key, char out[RP_NODE_KEY_MAX + 4])
{
    size_t len = strlen(key); /* the end of a key is a hash's: even */
    (void)snprintf(out, RP_NODE_KEY_MAX + 4, "%.2s/%.80s", key + len - 2, key);
}

/* Why a file or folder is not used; NULL: it is ours alone to write. */
static const char *refusal(const struct stat *st, mode_t kind)
{
    if ((st->st_mode & S_IFMT) != kind) {
        return kind == S_IFDIR ? "is not a folder" : "is not a regular file";
    }
    if (st->st_uid != geteuid()) {
        return "belongs to another user";
    }
    return (st->st_mode & (S_IWGRP | S_IWOTH)) != 0 ? "is writable by other users" : NULL;
}

static int checked(rp_node_cache *cache, int fd, mode_t kind, const char *name, struct stat *st)
{
    if (fstat(fd, st) != 0) {
        rp_node_trouble(cache, "stat", name, errno);
    }
    else {
        const char *what = refusal(st, kind);
        if (what == NULL) {
            return fd;
        }
        rp_node_trouble(cache, what, name, 0);
    }
    (void)close(fd); /* nothing was written */
    errno = EPERM;
    return -1;
}

static int open_at(int at, const char *name, int flags)
{
    int fd;
    do {
        fd = openat(at, name, flags, 0600);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

/* A folder of the cache's own. */
static int open_folder(rp_node_cache *cache, int at, const char *path, const char *name, bool make)
{
    struct stat st;
    int fd = open_at(at, path, FOLDER);
    if (fd < 0 && errno == ENOENT && make) {
        if (mkdirat(at, path, 0700) != 0 && errno != EEXIST) {
            int code = errno;
            rp_node_trouble(cache, "make", name, code);
            errno = code;
            return -1;
        }
        fd = open_at(at, path, FOLDER);
    }
    if (fd < 0) {
        bool odd = errno == ELOOP || errno == ENOTDIR;
        int code = errno;
        rp_node_trouble(cache, odd ? "is not a folder" : "open", name, odd ? 0 : code);
        errno = code;
        return -1;
    }
    return checked(cache, fd, S_IFDIR, name, &st);
}

/* The folders above the cache's own: as the user's other folders are. */
static bool make_parents(rp_node_cache *cache)
{
    char path[4096];
    size_t len = strlen(cache->dir);
    if (len >= sizeof(path)) {
        rp_node_trouble(cache, "make", "", ENAMETOOLONG);
        return false;
    }
    memcpy(path, cache->dir, len + 1);
    for (size_t i = 1; i < len; i++) {
        if (path[i] != '/') {
            continue;
        }
        path[i] = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST && access(path, X_OK) != 0) {
            rp_node_trouble(cache, "make", "", errno);
            return false;
        }
        path[i] = '/';
    }
    return true;
}

static int open_root_once(rp_node_cache *cache, bool make)
{
    int dir = open_folder(cache, AT_FDCWD, cache->dir, "", false);
    if (dir < 0 && errno == ENOENT && make) {
        if (!make_parents(cache)) {
            return -1;
        }
        dir = open_folder(cache, AT_FDCWD, cache->dir, "", true);
    }
    if (dir < 0) {
        return -1;
    }
    int root = open_folder(cache, dir, "v1", "v1", make);
    int code = errno;
    (void)close(dir); /* a folder: nothing to lose */
    errno = code;
    return root;
}

int rp_node_open_root(rp_node_cache *cache, bool make)
{
    for (int i = 0; i < 3; i++) { /* somebody may be removing the tree just now */
        int root = open_root_once(cache, make);
        if (root >= 0 || !make || errno != ENOENT) {
            return root;
        }
    }
    rp_node_trouble(cache, "cannot be made", "", 0);
    return -1;
}

int rp_node_open_file(rp_node_cache *cache, int at, const char *name, int flags, struct stat *st)
{
    /* O_NONBLOCK: a pipe in the place of a file is refused, not waited for */
    int fd = open_at(at, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        bool odd = errno == ELOOP || errno == EISDIR || errno == ENXIO;
        rp_node_trouble(cache, odd ? "is not a regular file" : "open", name, odd ? 0 : errno);
        return -1;
    }
    return checked(cache, fd, S_IFREG, name, st);
}

/* Folder of an object; its parent is inside a folder that is ours alone. */
static int open_object_folder(rp_node_cache *cache, int root, const char *name, bool make)
{
    int fd = open_at(root, name, FOLDER);
    if (fd >= 0) {
        struct stat st;
        return checked(cache, fd, S_IFDIR, name, &st);
    }
    if (errno == ENOENT && make) {
        char above[3] = {name[0], name[1], '\0'};
        int at = open_folder(cache, root, above, above, true);
        if (at < 0) {
            return -1;
        }
        fd = open_folder(cache, at, name + 3, name, true);
        (void)close(at); /* a folder: nothing to lose */
        return fd;
    }
    bool odd = errno == ELOOP || errno == ENOTDIR;
    rp_node_trouble(cache, odd ? "is not a folder" : "open", name, odd ? 0 : errno);
    return -1;
}

bool rp_node_open_object(rp_node_cache *cache, int root, const char *key, enum rp_node_mode mode,
                         struct rp_node_files *out)
{
    char name[RP_NODE_KEY_MAX + 4];
    rp_node_object_name(key, name);
    struct stat map, data;
    *out = (struct rp_node_files){.dir = -1, .map = -1, .data = -1};
    out->dir = open_object_folder(cache, root, name, mode == RP_NODE_MAKE);
    if (out->dir < 0) {
        return false;
    }
    static const int flags_of[] = {O_RDONLY, O_RDWR, O_RDWR | O_CREAT};
    int flags = flags_of[mode], append = mode == RP_NODE_READ ? 0 : O_APPEND;
    out->data = rp_node_open_file(cache, out->dir, "data", flags, &data);
    if (out->data >= 0) {
        out->map = rp_node_open_file(cache, out->dir, "map", flags | append, &map);
    }
    if (out->map < 0) {
        rp_node_close_object(out);
        return false;
    }
    out->dev = data.st_dev;
    out->ino = data.st_ino;
    return true;
}

void rp_node_close_object(struct rp_node_files *files)
{
    int *fd[] = {&files->dir, &files->map, &files->data};
    for (size_t i = 0; i < sizeof(fd) / sizeof(fd[0]); i++) {
        if (*fd[i] >= 0) {
            (void)close(*fd[i]); /* what a failing disk loses, the sums show */
            *fd[i] = -1;
        }
    }
}

int rp_node_pread(int fd, uint8_t *to, size_t len, int64_t offset)
{
    for (size_t at = 0; at < len;) {
        ssize_t got = pread(fd, to + at, len - at, (off_t)(offset + (int64_t)at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got < 0 ? -1 : 0;
        }
        at += (size_t)got;
    }
    return 1;
}

bool rp_node_pwrite(int fd, const uint8_t *from, size_t len, int64_t offset)
{
    for (size_t at = 0; at < len;) {
        ssize_t put = pwrite(fd, from + at, len - at, (off_t)(offset + (int64_t)at));
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            errno = put < 0 ? errno : EIO;
            return false;
        }
        at += (size_t)put;
    }
    return true;
}

bool rp_node_append(int fd, const uint8_t *from, size_t len)
{
    ssize_t put;
    do {
        put = write(fd, from, len);
    } while (put < 0 && errno == EINTR);
    if (put >= 0 && (size_t)put < len) {
        errno = ENOSPC; /* others may have appended since: the rest would stand apart */
    }
    return put >= 0 && (size_t)put == len;
}

bool rp_node_remove(rp_node_cache *cache, int root, const char *name)
{
    struct stat st;
    char gone[64];
    int at = name[0] == '.' ? -1 : openat(root, (char[]){name[0], name[1], '\0'}, FOLDER);
    if (at < 0) {
        return false;
    }
    rp_lock_acquire(&cache->lock);
    uint32_t serial = ++cache->serial;
    rp_lock_release(&cache->lock);
    (void)snprintf(gone, sizeof(gone), ".gone-%lx-%lx", (unsigned long)cache->owner,
                   (unsigned long)serial);
    const char *key = name + 3;
    bool left = strncmp(key, ".gone-", 6) == 0; /* of a process that was killed just here */
    bool moved = left || renameat(at, key, at, gone) == 0;
    int dir = moved ? openat(at, left ? key : gone, FOLDER) : -1;
    if (dir >= 0 && fstat(dir, &st) == 0 && refusal(&st, S_IFDIR) == NULL) {
        (void)unlinkat(dir, "map", 0); /* a failure shows in that the folder stays */
        (void)unlinkat(dir, "data", 0);
        moved = unlinkat(at, left ? key : gone, AT_REMOVEDIR) == 0;
    }
    if (dir >= 0) {
        (void)close(dir); /* a folder: nothing to lose */
    }
    (void)close(at); /* the same */
    return moved;
}

void rp_node_touch(rp_node_cache *cache, const char *key)
{
    char name[RP_NODE_KEY_MAX + 4], path[RP_NODE_KEY_MAX + 12];
    rp_node_object_name(key, name);
    (void)snprintf(path, sizeof(path), "%s/map", name);
    int root = rp_node_open_root(cache, false);
    if (root >= 0) {
        (void)utimensat(root, path, NULL, AT_SYMLINK_NOFOLLOW); /* gone, or read-only: as it is */
        (void)close(root);                                      /* a folder: nothing to lose */
    }
}
