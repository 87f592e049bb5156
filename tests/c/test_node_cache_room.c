/* What the disk cache of a node may hold: its bound, what goes first, who removes it. */
#include "node_cache_fixture.h"

#include <sys/file.h>
#include <time.h>

static void set_age(const char *key, int seconds)
{
    char path[300];
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= seconds;
    times[1] = times[0];
    snprintf(path, sizeof(path), "%s/v1/%s/%s/map", dir, key + strlen(key) - 2, key);
    (void)CHECK_EQ(utimensat(AT_FDCWD, path, times, 0), 0);
    snprintf(path, sizeof(path), "%s/v1/%s/%s/data", dir, key + strlen(key) - 2, key);
    (void)CHECK_EQ(utimensat(AT_FDCWD, path, times, 0), 0);
}

static rp_status look_at_key(rp_node_cache *cache, int i)
{
    char key[32];
    key_of(i, key);
    return rp_node_cache_read(cache, key, SIZE, 0, 1 << 20, got);
}

static void store_key(rp_node_cache *cache, int i, int age)
{
    char key[32];
    key_of(i, key);
    rp_node_cache_store(cache, key, SIZE, 0, 1 << 20, content);
    if (age > 0) {
        set_age(key, age);
    }
}

static void spoil_measure(void)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/v1/measured", dir);
    REQUIRE(truncate(path, 10) == 0); /* measured anew at the next store */
}

RP_TEST(least_recent_objects_go_first)
{
    begin();
    rp_node_cache *cache = open_cache((int64_t)10 << 20);
    for (int i = 0; i < 9; i++) { /* all older than ten minutes; object 5 the oldest */
        store_key(cache, i, i == 5 ? 90000 : 2000 - i);
    }
    (void)CHECK_EQ(stats_of(cache).evicted, 0);
    rp_node_cache_free(&cache);
    cache = open_cache((int64_t)10 << 20);
    (void)CHECK_EQ(look_at_key(cache, 0), RP_OK); /* in use again, in spite of its age */
    store_key(cache, 9, 0);
    struct rp_node_cache_stats stats = stats_of(cache);
    (void)CHECK(stats.evicted >= 1 && stats.evicted <= 3);
    (void)CHECK_EQ(stats.declined_bytes, 0);
    rp_node_cache_free(&cache);
    cache = open_cache((int64_t)10 << 20);
    (void)CHECK_EQ(look_at_key(cache, 5), RP_AGAIN);
    (void)CHECK_EQ(look_at_key(cache, 0), RP_OK);
    (void)CHECK_EQ(look_at_key(cache, 8), RP_OK);
    (void)CHECK_EQ(look_at_key(cache, 9), RP_OK);
    check_no_trouble(cache);
    rp_node_cache_free(&cache);
    end();
}

RP_TEST(what_is_in_use_stays_and_nothing_new_is_kept)
{
    begin();
    rp_node_cache *cache = open_cache((int64_t)4 << 20);
    for (int i = 0; i < 8; i++) {
        store_key(cache, i, 0);
    }
    struct rp_node_cache_stats stats = stats_of(cache);
    (void)CHECK_EQ(stats.evicted, 0);
    (void)CHECK(stats.stored_bytes <= 4 << 20);
    (void)CHECK_EQ(stats.stored_bytes + stats.declined_bytes, 8 << 20);
    int kept = 0;
    for (int i = 0; i < 8; i++) {
        kept += look_at_key(cache, i) == RP_OK;
    }
    (void)CHECK_EQ(kept, stats.stored_bytes >> 20);
    (void)CHECK(kept >= 3);
    char key[32];
    key_of(100, key); /* while there is no room, claims would only make others wait */
    rp_node_cache *other = open_cache((int64_t)4 << 20);
    (void)CHECK_EQ(rp_node_cache_claim(cache, key, SIZE, 0, 10), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(other, key, SIZE, 0, 10), RP_OK);
    for (int i = 0; i < kept; i++) {
        key_of(i, key);
        set_age(key, 700);
    }
    spoil_measure();
    store_key(cache, 200, 0);
    (void)CHECK_EQ(look_at_key(cache, 200), RP_OK);
    check_no_trouble(cache);
    rp_node_cache_free(&cache);
    rp_node_cache_free(&other);
    end();
}

RP_TEST(a_declined_store_ends_its_claim)
{
    begin();
    rp_node_cache *a = open_cache(1 << 30), *b = open_cache(1 << 30), *small = open_cache(1000);
    (void)CHECK_EQ(rp_node_cache_claim(small, KEY, SIZE, 0, 5000), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 0, 5000), RP_AGAIN);
    store(small, 0, 5000);
    (void)CHECK_EQ(stats_of(small).declined_bytes, 5000);
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 0, 5000), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 0, 5000), RP_AGAIN);
    check_no_trouble(small);
    rp_node_cache_free(&a);
    rp_node_cache_free(&b);
    rp_node_cache_free(&small);
    end();
}

RP_TEST(one_process_evicts_and_none_waits)
{
    begin();
    rp_node_cache *cache = open_cache((int64_t)4 << 20);
    for (int i = 0; i < 3; i++) {
        store_key(cache, i, 2000);
    }
    char path[256];
    snprintf(path, sizeof(path), "%s/v1/lock", dir);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    REQUIRE(fd >= 0 && flock(fd, LOCK_EX) == 0);
    store_key(cache, 3, 2000); /* above 95 %, below 100 % */
    store_key(cache, 4, 0);    /* no room, and another is at it */
    (void)CHECK_EQ(stats_of(cache).evicted, 0);
    (void)CHECK_EQ(stats_of(cache).declined_bytes, 1 << 20);
    REQUIRE(close(fd) == 0);
    store_key(cache, 4, 0);
    (void)CHECK(stats_of(cache).evicted > 0);
    (void)CHECK_EQ(look_at_key(cache, 4), RP_OK);
    rp_node_cache_free(&cache);
    end();
}

RP_TEST(remains_of_a_killed_eviction_are_removed)
{
    begin();
    rp_node_cache *cache = open_cache(1 << 30);
    store(cache, 0, 1000);
    char path[256], gone[300];
    path_of(".", path);
    path[strlen(path) - 2] = '\0';
    snprintf(gone, sizeof(gone), "%s/v1/%s/.gone-12-3", dir, AA);
    REQUIRE(rename(path, gone) == 0);
    spoil_measure();
    store(cache, 0, 1000);
    (void)CHECK(access(gone, F_OK) != 0);
    (void)CHECK_EQ(look(cache, 0, 1000), RP_OK);
    rp_node_cache_free(&cache);
    end();
}

RP_TEST(free_space_of_the_disk_counts)
{
    begin();
    rp_node_cache *cache = open_cache((int64_t)1 << 40);
    rp_node_cache_keep_free(cache, 1); /* no disk is that empty */
    store_key(cache, 0, 0);
    (void)CHECK_EQ(stats_of(cache).stored_bytes, 0);
    (void)CHECK_EQ(stats_of(cache).declined_bytes, 1 << 20);
    rp_node_cache_free(&cache);
    end();
}
