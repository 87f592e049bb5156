/* The cache of decoded pictures: what it finds, what goes first, its budget, and that pictures are
 * given back exactly once. */
#include "harness.h"

#include "base/thread.h"
#include "decode/decode_priv.h"
#include "pool/work_priv.h"

static int resets; /* pictures given back */

static void *create_picture(void)
{
    static int picture;
    return &picture;
}

static void reset_picture(void *picture)
{
    (void)picture;
    resets++;
}

static void destroy_picture(void *picture)
{
    (void)picture;
}

static struct rp_frame_pool *pool;
static struct frame_cache cache;

static void set_up(size_t cap)
{
    static const struct rp_picture_ops ops = {create_picture, reset_picture, destroy_picture};
    resets = 0;
    cache = (struct frame_cache){0};
    REQUIRE_OK(rp_frame_pool_new(&ops, &pool, NULL), NULL);
    REQUIRE_OK(rp_frame_cache_init(&cache, cap, NULL), NULL);
}

static void tear_down(void)
{
    rp_frame_cache_free(&cache);
    rp_frame_pool_unref(&pool);
}

/* Put a new picture whose pts says which it is; the cache holds the only reference to it then. */
static void put(int32_t file, int64_t sample, size_t bytes)
{
    rp_frame *frame = NULL;
    REQUIRE_OK(rp_frame_pool_get(pool, &frame, NULL), NULL);
    frame->pts = file * 100000 + sample;
    frame->bytes = bytes;
    rp_frame_cache_drop(rp_frame_cache_put_locked(&cache, file, sample, frame));
    rp_frame_unref(&frame);
}

static bool holds(int32_t file, int64_t sample)
{
    rp_frame *frame = rp_frame_cache_find_locked(&cache, file, sample);
    if (frame == NULL) {
        return false;
    }
    (void)CHECK_EQ(frame->pts, file * 100000 + sample);
    rp_frame_unref(&frame);
    return true;
}

RP_TEST(pictures_are_found_by_file_and_sample)
{
    set_up(1 << 20);
    for (int32_t file = 0; file < 8; file++) {
        for (int64_t sample = 0; sample < 200; sample++) { /* chains in every bucket */
            put(file, sample, 10);
        }
    }
    for (int32_t file = 0; file < 8; file++) {
        for (int64_t sample = 0; sample < 200; sample++) {
            (void)CHECK(holds(file, sample));
        }
        (void)CHECK(!holds(file, 200));
    }
    (void)CHECK(!holds(8, 0));
    (void)CHECK_EQ(cache.bytes, 8 * 200 * 10);
    (void)CHECK_EQ(resets, 0);
    tear_down();
    (void)CHECK_EQ(resets, 8 * 200);
}

RP_TEST(the_least_recently_used_goes_first)
{
    set_up(300);
    put(0, 1, 100);
    put(0, 2, 100);
    put(0, 3, 100);
    (void)CHECK(holds(0, 1)); /* used: 2 is the oldest now */
    put(0, 4, 100);
    (void)CHECK(!holds(0, 2) && holds(0, 1) && holds(0, 3) && holds(0, 4));
    put(1, 9, 250); /* three must go */
    (void)CHECK(holds(1, 9) && !holds(0, 1) && !holds(0, 3) && !holds(0, 4));
    (void)CHECK_EQ(cache.bytes, 250);
    (void)CHECK_EQ(resets, 4);
    tear_down();
}

RP_TEST(too_large_or_known_pictures_change_nothing)
{
    set_up(300);
    put(0, 1, 100);
    put(0, 2, 301);
    (void)CHECK(holds(0, 1) && !holds(0, 2));
    put(0, 1, 200);
    (void)CHECK_EQ(cache.bytes, 100);
    put(0, 3, 200); /* just fits */
    (void)CHECK(holds(0, 1) && holds(0, 3));
    tear_down();
}

RP_TEST(a_picture_in_use_outlives_its_place)
{
    set_up(100);
    put(0, 1, 100);
    rp_frame *kept = rp_frame_cache_find_locked(&cache, 0, 1);
    REQUIRE(kept != NULL);
    put(0, 2, 100);
    (void)CHECK(!holds(0, 1));
    (void)CHECK_EQ(resets, 0);
    (void)CHECK_EQ(kept->pts, 1);
    tear_down();
    rp_frame_unref(&kept);
    (void)CHECK_EQ(resets, 2);
}

RP_TEST(no_picture_is_given_back_while_the_cache_is_locked)
{
    set_up(100);
    put(0, 1, 100);
    rp_frame *frame = NULL;
    REQUIRE_OK(rp_frame_pool_get(pool, &frame, NULL), NULL);
    frame->bytes = 100;
    struct cached_frame *dead = rp_frame_cache_put_locked(&cache, 0, 2, frame);
    (void)CHECK(dead != NULL);
    (void)CHECK_EQ(resets, 0);
    rp_frame_cache_drop(dead);
    (void)CHECK_EQ(resets, 1);
    rp_frame_unref(&frame);
    rp_frame_cache_drop(NULL);
    tear_down();
}

RP_TEST(a_cache_of_no_bytes_is_off)
{
    set_up(0);
    put(0, 1, 1);
    (void)CHECK(!holds(0, 1));
    (void)CHECK_EQ(resets, 1);
    tear_down();
}

static void use_cache(void *arg)
{
    rp_frame *frame = arg;
    struct frame_cache mine = {0};
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_frame_cache_init(&mine, 1000, &err);
    if (status == RP_OK) {
        rp_frame_cache_drop(rp_frame_cache_put_locked(&mine, 0, 1, frame)); /* may forget */
    }
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == RP_E_NOMEM));
    rp_frame_cache_free(&mine);
}

RP_TEST(memory_may_be_short)
{
    set_up(0);
    rp_frame *frame = NULL;
    REQUIRE_OK(rp_frame_pool_get(pool, &frame, NULL), NULL);
    frame->bytes = 10;
    (void)CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, use_cache, frame) > 0);
    (void)CHECK_EQ(frame->refs, 1);
    rp_frame_unref(&frame);
    tear_down();
}
