/* The disk cache of a node: its folder goes, its disk is full or fails, others fetch the same. */
#include "node_cache_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

RP_TEST(a_folder_that_is_deleted_is_made_again)
{
    begin();
    rp_node_cache *a = open_cache(1 << 30), *b = open_cache(1 << 30);
    char path[256];
    for (int round = 0; round < 8; round++) {
        store(a, 0, 300000);
        (void)CHECK_EQ(look(b, 0, 300000), RP_OK);
        switch (round % 4) {
        case 0: remove_tree(base); break;
        case 1: remove_tree(dir); break;
        case 2:
            path_of("map", path);
            REQUIRE(unlink(path) == 0);
            break;
        default:
            path_of("data", path);
            REQUIRE(unlink(path) == 0);
            break;
        }
        (void)look(a, 0, 300000); /* the open file still has the bytes */
        (void)CHECK_EQ(look(b, 300000, 300000), RP_AGAIN);
        (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 300000, 300000), RP_OK);
        store(b, 300000, 300000);
        (void)CHECK_EQ(look(b, 300000, 300000), RP_OK);
        (void)CHECK_EQ(look(a, 300000, 300000), RP_OK);
        rp_node_cache *fresh = open_cache(1 << 30);
        (void)CHECK_EQ(look(fresh, 300000, 300000), RP_OK);
        rp_node_cache_free(&fresh);
        check_no_trouble(a);
        check_no_trouble(b);
        remove_tree(dir);
    }
    rp_node_cache_free(&a);
    rp_node_cache_free(&b);
    end();
}

RP_TEST(a_full_disk_switches_storing_off)
{
    begin();
    rp_node_cache *cache = open_cache(1 << 30);
    store(cache, 0, 1000);
    struct rp_fault full = {.calls = RP_FAULT_WRITE, .nth = 1};
    rp_fault_arm(&full);
    store(cache, 1000, 1000);
    (void)CHECK(rp_fault_disarm());
    struct rp_error why;
    rp_error_clear(&why);
    REQUIRE(rp_node_cache_trouble(cache, &why));
    (void)CHECK_EQ(why.sys, ENOSPC);
    (void)CHECK_CONTAINS(why.what, "No space left");
    (void)CHECK(!rp_node_cache_trouble(cache, &why));
    store(cache, 2000, 1000); /* not tried again */
    (void)CHECK_EQ(look(cache, 0, 1000), RP_OK);
    (void)CHECK_EQ(look(cache, 1000, 1), RP_AGAIN);
    (void)CHECK_EQ(look(cache, 2000, 1), RP_AGAIN);
    (void)CHECK_EQ(rp_node_cache_claim(cache, KEY, SIZE, 1000, 1), RP_OK);
    (void)CHECK_EQ(stats_of(cache).off, 1);
    rp_node_cache_free(&cache);

    cache = open_cache(1 << 30);
    struct rp_fault broken = {.calls = RP_FAULT_FILE, .nth = 1, .onward = true};
    rp_fault_arm(&broken);
    rp_status status = rp_node_cache_read(cache, KEY, SIZE, 0, 1000, got);
    (void)CHECK(rp_fault_disarm());
    (void)CHECK_EQ(status, RP_AGAIN);
    REQUIRE(rp_node_cache_trouble(cache, &why));
    (void)CHECK_EQ(why.sys, EIO);
    (void)CHECK_EQ(look(cache, 0, 1000), RP_AGAIN); /* a disk that fails is left alone */
    rp_node_cache_free(&cache);
    end();
}

RP_TEST(a_full_disk_makes_nobody_wait)
{
    begin();
    rp_node_cache *full = open_cache(1 << 30), *other = open_cache(1 << 30);
    (void)CHECK_EQ(rp_node_cache_claim(full, KEY, SIZE, 0, 1000), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(full, KEY, SIZE, 1000, 1000), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(full, KEY, SIZE, 2000, 1000), RP_OK);
    struct rp_fault fault = {.calls = RP_FAULT_WRITE, .nth = 2, .onward = true}; /* 1: measured */
    rp_fault_arm(&fault);
    store(full, 0, 1000);
    store(full, 1000, 1000);
    rp_node_cache_release(full, KEY, SIZE, 2000, 1000);
    (void)CHECK(rp_fault_disarm());
    (void)CHECK_EQ(stats_of(full).off, 1);
    (void)CHECK_EQ(rp_node_cache_claim(other, KEY, SIZE, 0, 3000), RP_OK);
    rp_node_cache_free(&full);
    rp_node_cache_free(&other);
    end();
}

RP_TEST(a_limit_on_file_sizes)
{
    begin();
    struct rlimit before, low;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    (void)signal(SIGXFSZ, SIG_IGN); /* as Python does */
    rp_node_cache *sound = open_cache(1 << 30);
    for (rlim_t limit = 0; limit < 300; limit += 20) { /* maps are torn, too */
        low = before;
        low.rlim_cur = limit;
        rp_node_cache *cache = open_cache(1 << 30);
        REQUIRE(setrlimit(RLIMIT_FSIZE, &low) == 0);
        for (int i = 0; i < 10; i++) {
            store(cache, i * 25, 25);
        }
        REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
        struct rp_error why;
        rp_error_clear(&why);
        (void)CHECK(rp_node_cache_trouble(cache, &why)); /* the map needs 640 bytes */
        (void)CHECK(why.sys == EFBIG || why.sys == ENOSPC);
        for (int i = 0; i < 10; i++) {
            (void)look(cache, i * 25, 25);
        }
        rp_node_cache_free(&cache);
        for (int i = 0; i < 10; i++) {
            store(sound, i * 25, 25);
        }
        (void)CHECK_EQ(look(sound, 0, 250), RP_OK);
        check_no_trouble(sound);
        remove_tree(dir);
    }
    rp_node_cache_free(&sound);
    end();
}

static void use_under_fault(void *unused)
{
    (void)unused;
    rp_node_cache *cache = NULL;
    rp_error_clear(&err);
    rp_status status = rp_node_cache_new(dir, 1 << 30, &cache, &err);
    if (status != RP_OK) {
        (void)CHECK_STATUS(status, RP_E_NOMEM, &err);
        return;
    }
    rp_node_cache_keep_free(cache, 0);
    (void)look(cache, 0, 300000);
    status = rp_node_cache_claim(cache, KEY, SIZE, 0, 400000);
    (void)CHECK(status == RP_OK || status == RP_AGAIN);
    store(cache, 0, 300000);
    (void)look(cache, 10, 1000);
    (void)look(cache, 0, 300000);
    rp_node_cache_release(cache, KEY, SIZE, 0, 400000);
    rp_node_cache_free(&cache);
    remove_tree(dir);
}

RP_TEST(every_failing_call_is_a_miss)
{
    begin();
    (void)CHECK(rp_fault_sweep((struct rp_fault){0}, use_under_fault, NULL) > 20);
    for (int how = RP_FAULT_READ_EINTR; how <= RP_FAULT_READ_END; how++) {
        struct rp_fault fault = {.calls = RP_FAULT_FILE | RP_FAULT_WRITE, .read = how};
        (void)rp_fault_sweep(fault, use_under_fault, NULL);
        fault.write = how;
        (void)rp_fault_sweep(fault, use_under_fault, NULL);
    }
    end();
}

RP_TEST(claims)
{
    begin();
    rp_node_cache *a = open_cache(1 << 30), *b = open_cache(1 << 30);
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 1000, 9000), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 1000, 9000), RP_OK); /* ours */
    (void)CHECK_EQ(length_of("map"), RP_NODE_RECORD);
    (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 1000, 9000), RP_AGAIN);
    (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 0, 1001), RP_AGAIN);
    (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 0, 1000), RP_OK); /* up to it */
    (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 10000, 5), RP_OK);
    store(a, 1000, 4000);
    (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 1000, 4000), RP_AGAIN); /* it is there */
    (void)CHECK_EQ(look(b, 1000, 4000), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 4000, 5000), RP_AGAIN);
    rp_node_cache_release(a, KEY, SIZE, 5000, 5000);
    (void)CHECK_EQ(rp_node_cache_claim(b, KEY, SIZE, 4000, 5000), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 8999, 1), RP_AGAIN);
    store(b, 4000, 5000);
    (void)CHECK_EQ(look(a, 1000, 8000), RP_OK);
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 1000, 8001), RP_OK);
    (void)CHECK_EQ(stats_of(b).waits, 4);
    (void)CHECK_EQ(stats_of(a).waits, 1);
    check_no_trouble(a);
    check_no_trouble(b);
    rp_node_cache_free(&a);
    rp_node_cache_free(&b);
    end();
}

/* A record as another process would write it. */
static void append_intent(uint32_t pid, int64_t age_ns, uint64_t owner)
{
    struct timespec now;
    uint8_t bytes[RP_NODE_RECORD];
    char path[256];
    clock_gettime(CLOCK_REALTIME, &now);
    struct rp_node_record record = {.kind = RP_NODE_INTENT,
                                    .offset = 0,
                                    .len = SIZE,
                                    .size = SIZE,
                                    .pid = pid,
                                    .serial = 1,
                                    .owner = owner};
    record.time_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - age_ns;
    rp_node_record_write(&record, bytes);
    path_of("map", path);
    int fd = open(path, O_WRONLY | O_APPEND);
    REQUIRE(fd >= 0 && write(fd, bytes, sizeof(bytes)) == sizeof(bytes) && close(fd) == 0);
}

RP_TEST(claims_of_the_dead_and_the_slow)
{
    begin();
    rp_node_cache *a = open_cache(1 << 30);
    store(a, 0, 10);
    uint32_t me = (uint32_t)getpid();
    append_intent(me, 31000000000, 1);  /* too old */
    append_intent(me, -60000000000, 2); /* of the future */
    append_intent(0, 0, 3);             /* no process: kill(0) would be a whole group */
    append_intent(UINT32_MAX, 0, 4);    /* the same for -1 */
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 100, 100), RP_OK);
    append_intent(me, 28000000000, 5);
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 500, 100), RP_AGAIN);
    remove_tree(dir);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        bool sound = rp_node_cache_renew(&a, NULL) == RP_OK &&
                     rp_node_cache_claim(a, KEY, SIZE, 0, SIZE) == RP_OK;
        (void)kill(getpid(), sound ? SIGKILL : SIGTERM);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    (void)CHECK_EQ(WTERMSIG(status), SIGKILL);
    (void)CHECK_EQ(rp_node_cache_claim(a, KEY, SIZE, 0, SIZE), RP_OK);
    rp_node_cache_free(&a);
    end();
}

enum { RACERS = 3, ROUNDS = RP_NODE_INTENTS - RACERS }; /* all are remembered */

struct racer {
    rp_node_cache *cache;
    atomic_int *arrived;
    rp_status status[ROUNDS];
};

static void *race(void *arg)
{
    struct racer *racer = arg;
    for (int i = 0; i < ROUNDS; i++) {
        atomic_fetch_add(racer->arrived, 1);
        while (atomic_load(racer->arrived) < RACERS * (i + 1)) {
            sched_yield(); /* no barrier: those of it do not wake at the same time */
        }
        racer->status[i] = rp_node_cache_claim(racer->cache, KEY, SIZE, i * 1000, 1000);
    }
    return NULL;
}

RP_TEST(one_of_many_claims_wins)
{
    begin();
    struct racer *racer = calloc(RACERS, sizeof(*racer));
    pthread_t thread[RACERS];
    atomic_int arrived = 0;
    REQUIRE(racer != NULL);
    for (int i = 0; i < RACERS; i++) {
        racer[i].cache = open_cache(1 << 30);
        racer[i].arrived = &arrived;
        REQUIRE(pthread_create(&thread[i], NULL, race, &racer[i]) == 0);
    }
    for (int i = 0; i < RACERS; i++) {
        REQUIRE(pthread_join(thread[i], NULL) == 0);
    }
    for (int k = 0; k < ROUNDS; k++) {
        int winners = 0;
        for (int i = 0; i < RACERS; i++) {
            winners += racer[i].status[k] == RP_OK;
        }
        (void)CHECK_EQ(winners, 1);
    }
    for (int i = 0; i < RACERS; i++) {
        check_no_trouble(racer[i].cache);
        rp_node_cache_free(&racer[i].cache);
    }
    free(racer);
    end();
}
