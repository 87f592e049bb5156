/* The disk cache of a node under processes that are killed, forks, threads. */
#include "node_cache_fixture.h"

#include "base/thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Store and read random ranges; the number of wrong answers. */
static int use_at_random(rp_node_cache *cache, uint32_t seed, int rounds)
{
    int wrong = 0;
    uint8_t *to = malloc(SIZE);
    for (int i = 0; i < rounds && to != NULL; i++) {
        int64_t offset = draw(&seed) % SIZE, len = 1 + draw(&seed) % 400000;
        len = len < SIZE - offset ? len : SIZE - offset;
        if (rp_node_cache_read(cache, KEY, SIZE, offset, len, to) == RP_OK) {
            wrong += memcmp(to, content + offset, (size_t)len) != 0;
        }
        else if (rp_node_cache_claim(cache, KEY, SIZE, offset, len) == RP_OK) {
            rp_node_cache_store(cache, KEY, SIZE, offset, len, content + offset);
        }
    }
    free(to);
    return to == NULL ? -1 : wrong;
}

RP_TEST(processes_that_write_the_same_at_once)
{
    begin();
    enum { N = 4 };
    rp_node_cache *cache = open_cache(1 << 30);
    store(cache, 0, 10);
    pid_t child[N];
    for (int i = 0; i < N; i++) {
        child[i] = fork();
        REQUIRE(child[i] >= 0);
        if (child[i] == 0) {
            int wrong = rp_node_cache_renew(&cache, NULL) == RP_OK ? 0 : 1;
            wrong += use_at_random(cache, (uint32_t)i / 2, 60); /* two do exactly the same */
            rp_node_cache_store(cache, KEY, SIZE, 0, SIZE, content);
            struct rp_error why;
            wrong += rp_node_cache_trouble(cache, &why);
            rp_node_cache_free(&cache);
            _exit(wrong != 0);
        }
    }
    for (int i = 0; i < N; i++) {
        int status;
        REQUIRE(waitpid(child[i], &status, 0) == child[i]);
        (void)CHECK_EQ(status, 0);
    }
    (void)CHECK_EQ(look(cache, 0, SIZE), RP_OK);
    (void)CHECK_EQ(stats_of(cache).corrupt, 0);
    rp_node_cache_free(&cache);
    end();
}

/* What is there was last used long ago, and is to be measured: the next store evicts it. */
static void make_old(void)
{
    static const char *const names[] = {"map", "data"};
    char path[256];
    struct timespec times[2];
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= 2000;
    times[1] = times[0];
    for (int i = 0; i < 2; i++) {
        path_of(names[i], path);
        (void)utimensat(AT_FDCWD, path, times, 0);
    }
    snprintf(path, sizeof(path), "%s/v1/measured", dir);
    (void)truncate(path, 10);
}

/* Store, read and evict; the number of wrong answers. */
static int churn(rp_node_cache *cache, uint32_t seed, int rounds)
{
    int wrong = 0;
    for (int i = 0; i < rounds && wrong == 0; i++) {
        wrong = use_at_random(cache, seed + (uint32_t)i, 10);
        make_old();
    }
    return wrong;
}

RP_TEST(writers_that_are_killed)
{
    begin();
    uint32_t seed = 7;
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            rp_node_cache *mine = NULL;
            if (rp_node_cache_new(dir, 1 << 20, &mine, NULL) == RP_OK) {
                rp_node_cache_keep_free(mine, 0);
                _exit(churn(mine, seed, 1 << 30) != 0);
            }
            _exit(2);
        }
        struct timespec pause = {0, 100000 + (long)(draw(&seed) % 8000) * 1000};
        (void)nanosleep(&pause, NULL);
        int status;
        REQUIRE(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        (void)CHECK(WIFSIGNALED(status)); /* it met no wrong byte before */
        rp_node_cache *cache = open_cache(1 << 30);
        for (int i = 0; i < 20; i++) {
            int64_t offset = draw(&seed) % SIZE;
            (void)look(cache, offset, SIZE - offset < 5000 ? SIZE - offset : 5000);
        }
        if (round % 10 == 9) {
            store(cache, 0, SIZE);
            (void)CHECK_EQ(look(cache, 0, SIZE), RP_OK);
            (void)CHECK_EQ(rp_node_cache_claim(cache, KEY, SIZE, 0, 5), RP_AGAIN); /* there */
            remove_tree(dir);
        }
        check_no_trouble(cache);
        rp_node_cache_free(&cache);
    }
    rp_node_cache *cache = open_cache(1 << 20);
    (void)CHECK_EQ(churn(cache, 1, 10), 0);
    (void)CHECK(stats_of(cache).evicted > 0); /* so did those that were killed */
    rp_node_cache_free(&cache);
    end();
}

RP_TEST(after_a_fork)
{
    begin();
    int before = open_descriptors();
    rp_node_cache *cache = open_cache(1 << 30);
    store(cache, 0, 300000);
    (void)CHECK_EQ(look(cache, 0, 300000), RP_OK);
    for (int how = 0; how < 2; how++) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            bool sound = rp_node_cache_generation(cache) != rp_fork_generation();
            if (how == 0) {
                sound = sound && rp_node_cache_renew(&cache, NULL) == RP_OK &&
                        rp_node_cache_read(cache, KEY, SIZE, 5, 1000, got) == RP_OK &&
                        memcmp(got, content + 5, 1000) == 0;
                rp_node_cache_store(cache, KEY, SIZE, 300000, 1000, content + 300000);
            }
            rp_node_cache_free(&cache);
            _exit(!sound || open_descriptors() != before);
        }
        int status;
        REQUIRE(waitpid(child, &status, 0) == child);
        (void)CHECK_EQ(status, 0);
        (void)CHECK_EQ(look(cache, 0, 301000), RP_OK); /* the parent's goes on */
    }
    rp_node_cache_free(&cache);
    (void)CHECK_EQ(open_descriptors(), before);
    end();
}

struct thread_use {
    rp_node_cache *cache;
    uint32_t seed;
    int wrong;
};

static void *use_by_thread(void *arg)
{
    struct thread_use *use = arg;
    uint8_t to[3000];
    for (int i = 0; i < 300; i++) { /* more keys than stay open */
        char key[32];
        key_of((int)(draw(&use->seed) % 400), key);
        int64_t offset = draw(&use->seed) % 5000;
        if (rp_node_cache_read(use->cache, key, SIZE, offset, sizeof(to), to) == RP_OK) {
            use->wrong += memcmp(to, content + offset, sizeof(to)) != 0;
        }
        else if (rp_node_cache_claim(use->cache, key, SIZE, offset, sizeof(to)) == RP_OK) {
            rp_node_cache_store(use->cache, key, SIZE, offset, sizeof(to), content + offset);
        }
    }
    use->wrong += use_at_random(use->cache, use->seed, 15);
    return NULL;
}

RP_TEST(threads_with_many_objects)
{
    begin();
    enum { N = 4 };
    rp_node_cache *cache = open_cache(1 << 30);
    struct thread_use use[N];
    pthread_t thread[N];
    for (int i = 0; i < N; i++) {
        use[i] = (struct thread_use){cache, (uint32_t)i, 0};
        REQUIRE(pthread_create(&thread[i], NULL, use_by_thread, &use[i]) == 0);
    }
    for (int i = 0; i < N; i++) {
        REQUIRE(pthread_join(thread[i], NULL) == 0);
        (void)CHECK_EQ(use[i].wrong, 0);
    }
    (void)CHECK(open_descriptors() < 250);
    (void)CHECK_EQ(stats_of(cache).corrupt, 0);
    check_no_trouble(cache);
    rp_node_cache_free(&cache);
    end();
}
