/* A disk cache in a folder of its own, and the content that it is asked to keep. */
#ifndef RP_TESTS_NODE_CACHE_FIXTURE_H
#define RP_TESTS_NODE_CACHE_FIXTURE_H

#include "harness.h"

#include "fetch/node_cache.h"
#include "fetch/node_cache_map.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIZE = 3 << 20, PIECE = RP_NODE_PIECE };
#define KEY "sha256-0123456789abcdef"
#define AA  "ef"

static char base[64], dir[128];
static uint8_t content[SIZE], got[SIZE];
static struct rp_error err;

static RP_UNUSED void path_of(const char *name, char out[256])
{
    snprintf(out, 256, "%s/v1/%s/%s/%s", dir, AA, KEY, name);
}

static RP_UNUSED void begin(void)
{
    snprintf(base, sizeof(base), "/tmp/rp_test_node_XXXXXX");
    REQUIRE(mkdtemp(base) != NULL);
    snprintf(dir, sizeof(dir), "%s/a/obj", base);
    uint32_t x = 1;
    for (int i = 0; i < SIZE; i++) {
        x = x * 1664525 + 1013904223;
        content[i] = (uint8_t)(x >> 24);
    }
}

static RP_UNUSED void remove_tree(const char *path)
{
    DIR *list = opendir(path);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        char name[600];
        snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlink(name) != 0) {
            remove_tree(name);
        }
    }
    if (list != NULL) {
        closedir(list);
    }
    (void)rmdir(path);
}

static RP_UNUSED void end(void)
{
    remove_tree(base);
}

static RP_UNUSED rp_node_cache *open_cache(int64_t max_bytes)
{
    rp_node_cache *cache = NULL;
    rp_error_clear(&err);
    REQUIRE_OK(rp_node_cache_new(dir, max_bytes, &cache, &err), &err);
    rp_node_cache_keep_free(cache, 0);
    return cache;
}

static RP_UNUSED void store(rp_node_cache *cache, int64_t offset, int64_t len)
{
    rp_node_cache_store(cache, KEY, SIZE, offset, len, content + offset);
}

/* RP_OK with the right bytes, or RP_AGAIN. */
static RP_UNUSED rp_status look(rp_node_cache *cache, int64_t offset, int64_t len)
{
    memset(got, 0x5a, (size_t)len);
    rp_status status = rp_node_cache_read(cache, KEY, SIZE, offset, len, got);
    if (status == RP_OK) {
        (void)CHECK_MEM(got, content + offset, (size_t)len);
    }
    else {
        (void)CHECK_EQ(status, RP_AGAIN);
    }
    return status;
}

static RP_UNUSED struct rp_node_cache_stats stats_of(rp_node_cache *cache)
{
    struct rp_node_cache_stats stats;
    rp_node_cache_stats(cache, &stats);
    return stats;
}

static RP_UNUSED void check_no_trouble(rp_node_cache *cache)
{
    struct rp_error why;
    rp_error_clear(&why);
    if (!CHECK(!rp_node_cache_trouble(cache, &why))) {
        fprintf(stderr, "%s (%s)\n", why.what, why.file);
    }
}

static RP_UNUSED int64_t length_of(const char *name)
{
    char path[256];
    struct stat st;
    path_of(name, path);
    REQUIRE(stat(path, &st) == 0);
    return st.st_size;
}

static RP_UNUSED void key_of(int i, char out[32])
{
    snprintf(out, 32, "loc-%08x", (unsigned)i * 2654435761u);
}

static RP_UNUSED int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 1000; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

#endif
