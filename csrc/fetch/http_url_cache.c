#include "fetch/http_url_cache_priv.h"

#include "base/crc32c.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/thread.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FIRST_LINE "reelpool-url 1\n"
#define ENTRY_MAX  (RP_URL_MAX + 2048)
#define LIFE_MAX   604800000LL          /* ms: what a clock that jumped may do */
#define KEPT_S     (8 * 86400)          /* seconds that a file stays which nobody renews */
#define SWEEPS     64                   /* of so many entries kept, one removes old ones */
#define FILE_NAME  (RP_SHA256_HEX + 48) /* of a file in the folder */

/* One file's facts as they stand in an entry. */
struct entry {
    int64_t fresh_ms, expiry_ms; /* since 1970 */
    int64_t size, linked_size, linked, secrets;
    char etag[RP_VERSION_MAX], last_modified[RP_VERSION_MAX], target_etag[RP_VERSION_MAX];
    struct rp_http_link link;
    char target[RP_URL_MAX + 1];
};

struct field {
    const char *name;
    size_t at, room; /* room 0: a number */
};

#define NUMBER(name)                           \
    {                                          \
#        name, offsetof(struct entry, name), 0 \
    }
#define TEXT(name, place)                                                       \
    {                                                                           \
        name, offsetof(struct entry, place), sizeof(((struct entry *)0)->place) \
    }

static const struct field fields[] = {NUMBER(fresh_ms),
                                      NUMBER(expiry_ms),
                                      NUMBER(size),
                                      NUMBER(linked_size),
                                      NUMBER(linked),
                                      NUMBER(secrets),
                                      TEXT("etag", etag),
                                      TEXT("last_modified", last_modified),
                                      TEXT("target_etag", target_etag),
                                      TEXT("repo_commit", link.repo_commit),
                                      TEXT("xet_hash", link.xet_hash),
                                      TEXT("linked_etag", link.linked_etag),
                                      TEXT("target", target)};
enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

/* The open folder of an entry, and the entry's name in it. */
struct place {
    int folder;
    char name[RP_SHA256_HEX];
};

static int64_t now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* it exists */
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Ours, and nobody else may change it. */
static bool is_private(const struct stat *st)
{
    return st->st_uid == geteuid() && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* A folder below `at`, checked; -1 with errno. */
static int open_folder(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) != 0 || !is_private(&st))) {
        (void)close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

/* Make a folder and those above it; what fails shows when it is opened. */
static void make_folders(const char *dir)
{
    char path[4096];
    size_t len = strlen(dir);
    if (len == 0 || len >= sizeof(path)) {
        return;
    }
    memcpy(path, dir, len + 1);
    for (size_t i = 1; i < len; i++) {
        if (path[i] == '/') {
            path[i] = '\0';
            (void)mkdir(path, S_IRWXU);
            path[i] = '/';
        }
    }
    (void)mkdir(path, S_IRWXU);
}

/* RP_AGAIN: there is no such folder (never with make). */
static rp_status open_place(const char *dir, const char *url, bool make, struct place *out)
{
    struct rp_sha256 sum;
    uint8_t digest[RP_SHA256_BYTES];
    rp_sha256_begin(&sum);
    rp_sha256_add(&sum, url, strlen(url));
    rp_sha256_end(&sum, digest);
    rp_sha256_hex(digest, out->name);
    const char part[3] = {out->name[0], out->name[1], '\0'};
    int top = open_folder(AT_FDCWD, dir);
    if (top < 0 && errno == ENOENT && make) {
        make_folders(dir);
        top = open_folder(AT_FDCWD, dir);
    }
    if (top < 0) {
        return errno == ENOENT && !make ? RP_AGAIN : RP_E_IO;
    }
    if (make) {
        (void)mkdirat(top, part, S_IRWXU); /* what fails shows at once */
    }
    out->folder = open_folder(top, part);
    int code = errno;
    (void)close(top);
    if (out->folder < 0) {
        return code == ENOENT && !make ? RP_AGAIN : RP_E_IO;
    }
    return RP_OK;
}

/* Read a whole small file of ours, with a terminator; its length, or -1 with errno. */
static ssize_t read_file(int folder, const char *name, char *text, size_t room, struct stat *st)
{
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return -1;
    }
    ssize_t got = -1;
    if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode) || !is_private(st)) {
        errno = EPERM;
    }
    else {
        got = pread(fd, text, room - 1, 0);
    }
    int code = errno;
    (void)close(fd);
    errno = code;
    if (got >= 0) {
        text[got] = '\0';
    }
    return got;
}

/* "name value\n" at *at, which moves on. */
static bool parse_field(const struct field *field, char **at, struct entry *entry)
{
    size_t len = strlen(field->name);
    char *end = strchr(*at, '\n'), *value = *at + len + 1;
    if (end == NULL || strncmp(*at, field->name, len) != 0 || (*at)[len] != ' ') {
        return false;
    }
    *end = '\0';
    *at = end + 1;
    char *to = (char *)entry + field->at, *stop = value;
    if (field->room == 0) {
        errno = 0;
        int64_t number = strtoll(value, &stop, 10);
        memcpy(to, &number, sizeof(number));
        return errno == 0 && stop != value && *stop == '\0';
    }
    if ((size_t)(end - value) >= field->room) {
        return false;
    }
    memcpy(to, value, (size_t)(end - value) + 1);
    return true;
}

static uint32_t sum_of(const char *name, const char *text, size_t len)
{
    return rp_crc32c(rp_crc32c(0, name, strlen(name)), text, len); /* an entry has one name */
}

/* Whether text is a whole entry of this name. */
static bool parse(const char *name, char *text, size_t len, struct entry *entry)
{
    static const char last[] = "crc ";
    size_t tail = sizeof(last) - 1 + 9, head = sizeof(FIRST_LINE) - 1;
    if (len < head + tail || memcmp(text, FIRST_LINE, head) != 0 || strlen(text) != len) {
        return false;
    }
    char expected[16], *at = text + head, *end = text + len - tail;
    (void)snprintf(expected, sizeof(expected), "crc %08x\n", sum_of(name, text, len - tail));
    if (strcmp(end, expected) != 0) {
        return false;
    }
    for (int i = 0; i < FIELDS; i++) {
        if (!parse_field(&fields[i], &at, entry)) {
            return false;
        }
    }
    return at == end;
}

/* The entry of a place; RP_AGAIN: none. */
static rp_status read_entry(const struct place *place, struct entry *entry)
{
    char *text = rp_calloc(ENTRY_MAX, 1);
    struct stat st;
    if (text == NULL) {
        return RP_E_NOMEM;
    }
    ssize_t len = read_file(place->folder, place->name, text, ENTRY_MAX, &st);
    rp_status status = len >= 0 ? RP_OK : (errno == ENOENT ? RP_AGAIN : RP_E_IO);
    if (status == RP_OK && !parse(place->name, text, (size_t)len, entry)) {
        status = RP_E_FORMAT;
    }
    explicit_bzero(text, ENTRY_MAX); /* signed URLs are secrets */
    rp_free(text);
    return status;
}

/* An entry on the heap; the caller wipes and frees it. */
static rp_status find(const char *dir, const char *file_url, struct place *place,
                      struct entry **entry)
{
    RP_TRY(open_place(dir, file_url, false, place));
    *entry = rp_calloc(1, sizeof(**entry));
    rp_status status = *entry != NULL ? read_entry(place, *entry) : RP_E_NOMEM;
    if (status != RP_OK) {
        rp_free(*entry);
        (void)close(place->folder);
    }
    return status;
}

static void discard_entry(struct entry *entry)
{
    explicit_bzero(entry, sizeof(*entry));
    rp_free(entry);
}

rp_status rp_url_cache_load(const char *dir, const char *file_url, struct rp_http_known *found,
                            char *target)
{
    struct place place;
    struct entry *entry = NULL;
    RP_TRY(find(dir, file_url, &place, &entry));
    (void)close(place.folder);
    int64_t now = now_ms(), left = entry->fresh_ms > now ? entry->fresh_ms - now : 0;
    bool fresh = left > 0 && left <= LIFE_MAX && entry->size >= 0;
    if (fresh) {
        *found = (struct rp_http_known){.secrets = entry->secrets == 1,
                                        .linked = entry->linked == 1,
                                        .size = entry->size,
                                        .fresh_ns = rp_now_ns() + left * 1000000,
                                        .link = entry->link};
        found->link.linked_size = entry->linked_size;
        memcpy(found->etag, entry->etag, sizeof(found->etag));
        memcpy(found->last_modified, entry->last_modified, sizeof(found->last_modified));
        memcpy(found->target_etag, entry->target_etag, sizeof(found->target_etag));
        memcpy(target, entry->target, sizeof(entry->target));
    }
    discard_entry(entry);
    return fresh ? RP_OK : RP_AGAIN;
}

void rp_url_cache_drop(const char *dir, const char *file_url, const char *target)
{
    struct place place;
    struct entry *entry = NULL;
    if (find(dir, file_url, &place, &entry) == RP_OK) {
        if (strcmp(entry->target, target) == 0) {
            (void)unlinkat(place.folder, place.name, 0);
        }
        (void)close(place.folder);
        discard_entry(entry);
    }
}

/* The text of an entry; its length, or 0 where it does not fit. */
static size_t format(const char *name, const struct entry *entry, char *text, size_t room)
{
    size_t len = (size_t)snprintf(text, room, "%s", FIRST_LINE);
    for (int i = 0; i < FIELDS && len < room; i++) {
        const char *from = (const char *)entry + fields[i].at;
        int64_t number;
        memcpy(&number, from, sizeof(number));
        int n =
            fields[i].room == 0
                ? snprintf(text + len, room - len, "%s %lld\n", fields[i].name, (long long)number)
                : snprintf(text + len, room - len, "%s %s\n", fields[i].name, from);
        len += (size_t)n;
    }
    if (len + 16 > room) {
        return 0;
    }
    return len + (size_t)snprintf(text + len, room - len, "crc %08x\n", sum_of(name, text, len));
}

/* A new file in the folder with these bytes; false: none. */
static bool write_new(int folder, const char *name, const char *text, size_t len, struct stat *st)
{
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    S_IRUSR | S_IWUSR);
    if (fd < 0) {
        return false;
    }
    bool sound = write(fd, text, len) == (ssize_t)len && fstat(fd, st) == 0;
    sound = close(fd) == 0 && sound;
    int code = errno;
    if (!sound) {
        (void)unlinkat(folder, name, 0);
    }
    errno = code;
    return sound;
}

/* Remove what nobody has renewed for days. */
static void sweep(int folder)
{
    int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (list == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    int64_t oldest = now_ms() / 1000 - KEPT_S;
    for (struct dirent *item = readdir(list); item != NULL; item = readdir(list)) {
        struct stat st;
        if (fstatat(folder, item->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
            st.st_mtime < oldest) {
            (void)unlinkat(folder, item->d_name, 0);
        }
    }
    (void)closedir(list);
}

static rp_status store(const struct place *place, const struct entry *entry, char *text)
{
    size_t len = format(place->name, entry, text, ENTRY_MAX);
    char name[FILE_NAME];
    struct stat st;
    int64_t now = rp_now_ns();
    (void)snprintf(name, sizeof(name), "%s.%d.%llx", place->name, (int)getpid(),
                   (unsigned long long)now);
    if (len == 0 || !write_new(place->folder, name, text, len, &st)) {
        return RP_E_IO;
    }
    if (renameat(place->folder, name, place->folder, place->name) != 0) {
        (void)unlinkat(place->folder, name, 0);
        return RP_E_IO;
    }
    if (now / 1000 % SWEEPS == 0) {
        sweep(place->folder);
    }
    return RP_OK;
}

rp_status rp_url_cache_store(const char *dir, const char *file_url,
                             const struct rp_http_known *found, const char *target)
{
    struct place place;
    int64_t left = (found->fresh_ns - rp_now_ns()) / 1000000;
    if (left <= 0 || strlen(target) > RP_URL_MAX) {
        return RP_OK;
    }
    RP_TRY(open_place(dir, file_url, true, &place));
    struct entry *entry = rp_calloc(1, sizeof(*entry));
    char *text = rp_calloc(ENTRY_MAX, 1);
    rp_status status = RP_E_NOMEM;
    if (entry != NULL && text != NULL) {
        *entry = (struct entry){.fresh_ms = now_ms() + left,
                                .expiry_ms = now_ms() + left / 4 * 5,
                                .size = found->size,
                                .linked_size = found->link.linked_size,
                                .linked = found->linked ? 1 : 0,
                                .secrets = found->secrets ? 1 : 0,
                                .link = found->link};
        memcpy(entry->etag, found->etag, sizeof(entry->etag));
        memcpy(entry->last_modified, found->last_modified, sizeof(entry->last_modified));
        memcpy(entry->target_etag, found->target_etag, sizeof(entry->target_etag));
        memcpy(entry->target, target, strlen(target) + 1);
        status = store(&place, entry, text);
        explicit_bzero(text, ENTRY_MAX);
        explicit_bzero(entry, sizeof(*entry));
    }
    rp_free(text);
    rp_free(entry);
    (void)close(place.folder);
    return status;
}

static void lease_name(const struct place *place, char *name)
{
    (void)snprintf(name, FILE_NAME, "%s.lease", place->name);
}

/* "PID HOST": a process elsewhere cannot be asked after. */
static void describe_self(char *text, size_t room)
{
    char host[128] = "";
    (void)gethostname(host, sizeof(host) - 1);
    (void)snprintf(text, room, "%d %s", (int)getpid(), host);
}

/* Whether whoever holds a lease does so no more. */
static bool is_void(int folder, const char *name)
{
    char text[256], self[256];
    struct stat st;
    ssize_t len = read_file(folder, name, text, sizeof(text), &st);
    if (len < 0) {
        return errno == ENOENT || errno == EPERM;
    }
    int64_t age = now_ms() / 1000 - (int64_t)st.st_mtime;
    if (age > RP_URL_LEASE_S || age < -RP_URL_LEASE_S) {
        return true;
    }
    describe_self(self, sizeof(self));
    const char *host = strchr(text, ' '), *own = strchr(self, ' ');
    long pid = strtol(text, NULL, 10);
    bool near = host != NULL && own != NULL && strcmp(host, own) == 0;
    return near && pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

rp_status rp_url_lease_take(const char *dir, const char *file_url, struct rp_url_lease *lease)
{
    struct place place;
    RP_TRY(open_place(dir, file_url, true, &place));
    char name[FILE_NAME], text[256];
    struct stat st;
    lease_name(&place, name);
    describe_self(text, sizeof(text));
    rp_status status = RP_AGAIN;
    for (int tries = 0; tries < 2 && status == RP_AGAIN; tries++) {
        if (write_new(place.folder, name, text, strlen(text), &st)) {
            *lease = (struct rp_url_lease){true, (uint64_t)st.st_dev, (uint64_t)st.st_ino};
            status = RP_OK;
        }
        else if (errno != EEXIST) {
            status = RP_E_IO;
        }
        else if (tries == 0 && is_void(place.folder, name)) {
            (void)unlinkat(place.folder, name, 0); /* two may find it so: then both resolve */
        }
        else {
            tries = 2;
        }
    }
    (void)close(place.folder);
    return status;
}

void rp_url_lease_release(const char *dir, const char *file_url, struct rp_url_lease *lease)
{
    struct place place;
    struct stat st;
    if (!lease->held) {
        return;
    }
    lease->held = false;
    if (open_place(dir, file_url, false, &place) != RP_OK) {
        return;
    }
    char name[FILE_NAME];
    lease_name(&place, name);
    if (fstatat(place.folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        (uint64_t)st.st_dev == lease->device && (uint64_t)st.st_ino == lease->inode) {
        (void)unlinkat(place.folder, name, 0);
    }
    (void)close(place.folder);
}
