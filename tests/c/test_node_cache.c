/* The disk cache of a node: the right bytes or a miss, whatever happens to its files. */
#include "node_cache_fixture.h"

#include "base/crc32c.h"

RP_TEST(what_was_stored_is_read)
{
    begin();
    rp_node_cache *cache = open_cache(1 << 30);
    (void)CHECK_EQ(look(cache, 0, 10), RP_AGAIN);
    store(cache, 1000, 600000);
    store(cache, 700000, 5);
    store(cache, 601000, 50000); /* joins the first */
    static const int64_t there[][2] = {{1000, 600000}, {1000, 1},      {1500, 300}, {262143, 2},
                                       {600999, 2},    {2000, 649000}, {700000, 5}, {700004, 1},
                                       {1000, 650000}, {3000, 0},      {SIZE, 0}};
    static const int64_t absent[][2] = {{999, 2},    {0, 1},         {650999, 2},  {699999, 2},
                                        {700004, 2}, {1000, 699005}, {SIZE - 1, 1}};
    for (int fresh = 0; fresh < 2; fresh++) {
        for (size_t i = 0; i < sizeof(there) / sizeof(there[0]); i++) {
            (void)CHECK_EQ(look(cache, there[i][0], there[i][1]), RP_OK);
        }
        for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
            (void)CHECK_EQ(look(cache, absent[i][0], absent[i][1]), RP_AGAIN);
        }
        check_no_trouble(cache);
        struct rp_node_cache_stats stats = stats_of(cache);
        (void)CHECK_EQ(stats.hits, 11);
        (void)CHECK_EQ(stats.misses, fresh ? 7 : 8);
        (void)CHECK_EQ(stats.stored_bytes, fresh ? 0 : 650005);
        (void)CHECK_EQ(stats.corrupt + stats.evicted + stats.off, 0);
        rp_node_cache_free(&cache);
        cache = open_cache(1 << 30);
    }
    store(cache, 0, SIZE); /* the rest */
    (void)CHECK_EQ(look(cache, 0, SIZE), RP_OK);
    (void)CHECK_EQ(look(cache, 17, SIZE - 100), RP_OK);
    store(cache, 0, SIZE); /* nothing is written again */
    (void)CHECK(stats_of(cache).stored_bytes <= SIZE);
    rp_node_cache_free(&cache);
    rp_node_cache_free(&cache);
    rp_node_cache_free(NULL);
    end();
}

RP_TEST(long_ranges_take_several_rounds)
{
    begin();
    rp_node_cache *cache = open_cache(1 << 30);
    int64_t len = 70 * (int64_t)PIECE + 12345;
    uint8_t *big = malloc((size_t)len), *back = malloc((size_t)len);
    REQUIRE(big != NULL && back != NULL);
    for (int64_t i = 0; i < len; i++) {
        big[i] = (uint8_t)(i * 31 + i / 1021);
    }
    rp_node_cache_store(cache, KEY, len + 100, 50, len, big);
    REQUIRE_EQ(rp_node_cache_read(cache, KEY, len + 100, 50, len, back), RP_OK);
    (void)CHECK_MEM(back, big, (size_t)len);
    (void)CHECK_EQ(rp_node_cache_read(cache, KEY, len + 100, 50, len + 1, back), RP_AGAIN);
    (void)CHECK_EQ(rp_node_cache_read(cache, KEY, len + 101, 50, len, back), RP_AGAIN);
    free(big);
    free(back);
    rp_node_cache_free(&cache);
    end();
}

RP_TEST(bad_arguments_are_misses)
{
    begin();
    rp_node_cache *cache = NULL;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_node_cache_new("", 5, &cache, &err), RP_E_ARG, &err);
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_node_cache_new(dir, 0, &cache, &err), RP_E_ARG, &err);
    cache = open_cache(1 << 30);
    char longest[RP_NODE_KEY_MAX + 2];
    memset(longest, 'k', sizeof(longest));
    longest[RP_NODE_KEY_MAX + 1] = '\0';
    const char *keys[] = {"", "short", "../../../etc", "UPPERCASE", "slash/slash", longest};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        (void)CHECK(!rp_node_cache_key_ok(keys[i]));
        rp_node_cache_store(cache, keys[i], SIZE, 0, 100, content);
        (void)CHECK_EQ(rp_node_cache_read(cache, keys[i], SIZE, 0, 100, got), RP_AGAIN);
        (void)CHECK_EQ(rp_node_cache_claim(cache, keys[i], SIZE, 0, 100), RP_OK);
    }
    longest[RP_NODE_KEY_MAX] = '\0';
    (void)CHECK(rp_node_cache_key_ok(longest));
    static const int64_t ranges[][2] = {
        {-1, 2}, {0, -1}, {SIZE, 1}, {5, INT64_MAX}, {INT64_MAX, 5}};
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        rp_node_cache_store(cache, KEY, SIZE, ranges[i][0], ranges[i][1], content);
        (void)CHECK_EQ(rp_node_cache_read(cache, KEY, SIZE, ranges[i][0], ranges[i][1], got),
                       RP_AGAIN);
    }
    rp_node_cache_store(cache, KEY, INT64_MAX, INT64_MAX - 5, 5, content); /* no disk holds that */
    struct stat st;
    (void)CHECK(stat(dir, &st) != 0); /* nothing was made */
    rp_node_cache_free(&cache);
    end();
}

RP_TEST(folders_and_files_are_private)
{
    begin();
    mode_t mask = umask(0);
    rp_node_cache *cache = open_cache(1 << 30);
    store(cache, 0, 100);
    (void)umask(mask);
    char path[256];
    struct stat st;
    static const char *const names[] = {"data", "map", ".", ".."};
    for (size_t i = 0; i < 4; i++) {
        path_of(names[i], path);
        REQUIRE(stat(path, &st) == 0);
        (void)CHECK_EQ(st.st_mode & 07777, i < 2 ? 0600 : 0700);
    }
    REQUIRE(stat(dir, &st) == 0);
    (void)CHECK_EQ(st.st_mode & 07777, 0700);
    rp_node_cache_free(&cache);
    end();
}

/* A fresh cache refuses what it finds, says so once, and is used no more. */
static void check_refused(const char *what)
{
    rp_node_cache *cache = open_cache(1 << 30);
    (void)CHECK_EQ(look(cache, 0, 100), RP_AGAIN);
    store(cache, 0, 100);
    (void)CHECK_EQ(look(cache, 0, 100), RP_AGAIN);
    (void)CHECK_EQ(rp_node_cache_claim(cache, KEY, SIZE, 0, 5), RP_OK);
    struct rp_error why;
    rp_error_clear(&why);
    if (CHECK(rp_node_cache_trouble(cache, &why))) {
        (void)CHECK_EQ(why.code, RP_E_IO);
        (void)CHECK_CONTAINS(why.what, what);
        (void)CHECK_CONTAINS(why.file, dir);
    }
    (void)CHECK(!rp_node_cache_trouble(cache, &why));
    (void)CHECK_EQ(stats_of(cache).off, 2);
    rp_node_cache_free(&cache);
}

RP_TEST(what_others_could_write_is_refused)
{
    begin();
    char path[256], away[400], elsewhere[300];
    static const char *const names[] = {"data", "map", ".", "../../../.", "../.."};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        rp_node_cache *cache = open_cache(1 << 30);
        store(cache, 0, 100);
        rp_node_cache_free(&cache);
        path_of(names[i], path);
        REQUIRE(chmod(path, i < 2 ? 0620 : 0702) == 0);
        check_refused("writable by other");
        REQUIRE(chmod(path, i < 2 ? 0600 : 0700) == 0);
        if (geteuid() == 0) {
            REQUIRE(chown(path, 12345, (gid_t)-1) == 0);
            check_refused("another user");
            REQUIRE(chown(path, 0, (gid_t)-1) == 0);
        }
        remove_tree(dir);
    }
    for (int i = 0; i < 4; i++) { /* links to what is sound */
        rp_node_cache *cache = open_cache(1 << 30);
        store(cache, 0, 100);
        rp_node_cache_free(&cache);
        path_of(i == 0 ? "data" : i == 1 ? "map" : "", path);
        if (i == 3) {
            snprintf(path, sizeof(path), "%s", dir);
        }
        path[strlen(path) - (i == 2)] = '\0'; /* without its slash */
        snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", base);
        snprintf(away, sizeof(away), "%s", elsewhere);
        REQUIRE(rename(path, away) == 0 && symlink(away, path) == 0);
        check_refused(i < 2 ? "not a regular file" : "not a folder");
        REQUIRE(unlink(path) == 0);
        remove_tree(away);
        (void)unlink(away);
        remove_tree(dir);
    }
    REQUIRE(mkdir(dir, 0700) == 0);
    path_of("..", path);
    snprintf(elsewhere, sizeof(elsewhere), "%s/v1", dir);
    int fd = open(elsewhere, O_CREAT | O_WRONLY, 0600);
    REQUIRE(fd >= 0 && close(fd) == 0);
    check_refused("not a folder");
    end();
}

static void flip(const char *name, int64_t at, uint8_t with)
{
    char path[256];
    path_of(name, path);
    int fd = open(path, O_RDWR);
    uint8_t byte;
    REQUIRE(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= with;
    REQUIRE(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

static void cut(const char *name, int64_t to)
{
    char path[256];
    path_of(name, path);
    REQUIRE(truncate(path, to) == 0);
}

RP_TEST(damaged_bytes_are_a_miss_and_heal)
{
    begin();
    rp_node_cache *warm = open_cache(1 << 30);
    store(warm, 500, 700000);
    (void)CHECK_EQ(look(warm, 500, 700000), RP_OK);
    static const int64_t places[] = {500, 501, PIECE - 1, PIECE, 600000, 700499};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        flip("data", places[i], 0x10);
        rp_node_cache *fresh = open_cache(1 << 30);
        (void)CHECK_EQ(look(fresh, places[i], 1), RP_AGAIN); /* a part of a piece */
        rp_node_cache_free(&fresh);
        fresh = open_cache(1 << 30);
        rp_node_cache *both[] = {warm, fresh};
        for (int k = 0; k < 2; k++) {
            (void)CHECK_EQ(look(both[k], 500, 700000), RP_AGAIN);
            (void)CHECK_EQ(look(both[k], places[i], 1), RP_AGAIN);
            (void)CHECK_EQ(look(both[k], places[i] < PIECE ? 2 * PIECE : 500, 10), RP_OK);
            (void)CHECK_EQ(stats_of(both[k]).corrupt, k == 0 ? (int64_t)i + 1 : 1);
        }
        store(fresh, 500, 700000);
        (void)CHECK_EQ(look(warm, 500, 700000), RP_OK);
        (void)CHECK_EQ(look(fresh, 500, 700000), RP_OK);
        check_no_trouble(fresh);
        rp_node_cache_free(&fresh);
    }
    cut("data", 600000);
    memcpy(got, content + 500, 700000); /* a buffer that holds the right bytes already */
    (void)CHECK_EQ(rp_node_cache_read(warm, KEY, SIZE, 500, 700000, got), RP_AGAIN);
    store(warm, 500, 700000);
    (void)CHECK_EQ(look(warm, 500, 700000), RP_OK);
    cut("data", 600000);
    (void)CHECK_EQ(look(warm, 650000, 10), RP_AGAIN);
    store(warm, 500, 700000);
    (void)CHECK_EQ(look(warm, 500, 700000), RP_OK);
    check_no_trouble(warm);
    rp_node_cache_free(&warm);
    end();
}

RP_TEST(damaged_maps_never_lie_and_heal)
{
    begin();
    enum { STEP = 40000, N = 4 };
    rp_node_cache *cache = open_cache(1 << 30);
    for (int i = 0; i < N; i++) {
        store(cache, i * STEP, STEP);
    }
    rp_node_cache_free(&cache);
    REQUIRE_EQ(length_of("map"), N * RP_NODE_RECORD);
    for (int at = 0; at < N * RP_NODE_RECORD; at += 3) {
        flip("map", at, 0x80);
        cache = open_cache(1 << 30);
        for (int i = 0; i < N; i++) { /* a bad record ends the map */
            (void)CHECK_EQ(look(cache, i * STEP, STEP), i < at / RP_NODE_RECORD ? RP_OK : RP_AGAIN);
        }
        if (at % 2 == 0) {
            flip("map", at, 0x80);
        }
        else {
            for (int i = 0; i < N; i++) {
                store(cache, i * STEP, STEP);
                (void)CHECK_EQ(look(cache, i * STEP, STEP), RP_OK);
            }
            (void)CHECK_EQ(stats_of(cache).corrupt, 1);
            (void)CHECK_EQ(length_of("map"), N * RP_NODE_RECORD);
        }
        check_no_trouble(cache);
        rp_node_cache_free(&cache);
    }
    for (int len = N * RP_NODE_RECORD - 1; len >= 0; len -= 5) {
        cut("map", len);
        cache = open_cache(1 << 30);
        for (int i = 0; i < N; i++) {
            (void)CHECK_EQ(look(cache, i * STEP, STEP),
                           i < len / RP_NODE_RECORD ? RP_OK : RP_AGAIN);
        }
        for (int i = 0; i < N; i++) {
            store(cache, i * STEP, STEP);
        }
        (void)CHECK_EQ(look(cache, 0, N * STEP), RP_OK);
        check_no_trouble(cache);
        rp_node_cache_free(&cache);
    }
    end();
}

RP_TEST(a_map_that_is_too_long)
{
    begin();
    enum { N = 1 << 16 };
    rp_node_cache *cache = open_cache(1 << 30);
    store(cache, 0, 1000);
    rp_node_cache_free(&cache);
    char path[256];
    path_of("map", path);
    uint8_t *bytes = malloc(N);
    struct rp_node_record record = {.kind = RP_NODE_OVER, .len = 5, .size = SIZE};
    REQUIRE(bytes != NULL);
    for (int at = 0; at < N; at += RP_NODE_RECORD) {
        rp_node_record_write(&record, bytes + at);
    }
    int fd = open(path, O_WRONLY | O_APPEND);
    for (int64_t at = 0; at < RP_NODE_MAP_MAX; at += N) {
        REQUIRE(fd >= 0 && write(fd, bytes, N) == N);
    }
    REQUIRE(close(fd) == 0);
    free(bytes);
    cache = open_cache(1 << 30);
    (void)CHECK_EQ(look(cache, 0, 1000), RP_OK);
    store(cache, 0, 2000);
    (void)CHECK_EQ(look(cache, 0, 2000), RP_OK);
    (void)CHECK(length_of("map") < 1000);
    check_no_trouble(cache);
    rp_node_cache_free(&cache);
    end();
}

RP_TEST(records_that_lie_about_the_bytes)
{
    begin();
    rp_node_cache *cache = open_cache(1 << 30);
    store(cache, 0, 1000);
    char path[256];
    path_of("map", path);
    uint8_t bytes[2 * RP_NODE_RECORD];
    struct rp_node_record far = {
        .kind = RP_NODE_EXTENT, .offset = SIZE - 5000, .len = 5000, .size = SIZE, .crc = 77};
    rp_node_record_write(&far, bytes); /* nothing was written there */
    far.size = SIZE + 1;
    far.crc = rp_crc32c(0, content + SIZE - 5000, 5000);
    rp_node_record_write(&far, bytes + RP_NODE_RECORD); /* of a file of another size */
    int fd = open(path, O_WRONLY | O_APPEND);
    REQUIRE(fd >= 0 && write(fd, bytes, sizeof(bytes)) == sizeof(bytes) && close(fd) == 0);
    (void)CHECK_EQ(look(cache, SIZE - 5000, 5000), RP_AGAIN);
    (void)CHECK_EQ(look(cache, SIZE - 3000, 10), RP_AGAIN);
    store(cache, SIZE - 5000, 5000);
    (void)CHECK_EQ(look(cache, SIZE - 5000, 5000), RP_OK);
    check_no_trouble(cache);
    rp_node_cache_free(&cache);
    cache = open_cache(1 << 30);
    (void)CHECK_EQ(look(cache, SIZE - 5000, 5000), RP_OK); /* of two records the last one counts */
    rp_node_cache_free(&cache);
    end();
}
