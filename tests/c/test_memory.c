/* Checked allocation, the live-object count and counted buffers. */
#include "harness.h"

#include <pthread.h>

RP_TEST(products_that_overflow_are_refused)
{
    int64_t alive = rp_live_objects();
    (void)CHECK(rp_calloc(SIZE_MAX / 2, 3) == NULL);
    (void)CHECK(rp_calloc(SIZE_MAX, 1) == NULL); /* above PTRDIFF_MAX */
    (void)CHECK(rp_realloc(NULL, (size_t)1 << 33, (size_t)1 << 33) == NULL);
    rp_buf *buf = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_STATUS(rp_buf_new(SIZE_MAX - 8, &buf, &err), RP_E_NOMEM, &err);
    (void)CHECK(buf == NULL);
    (void)CHECK_EQ(rp_live_objects(), alive);
}

RP_TEST(objects_are_counted_once)
{
    int64_t alive = rp_live_objects();
    uint8_t *zeroed = rp_calloc(16, 4), *nothing = rp_calloc(0, 8);
    uint8_t *grown = rp_realloc(NULL, 8, 1);
    char *text = rp_strdup("text");
    REQUIRE(zeroed != NULL && nothing != NULL && grown != NULL && text != NULL);
    for (int i = 0; i < 64; i++) {
        (void)CHECK_EQ(zeroed[i], 0);
    }
    (void)CHECK_EQ(rp_live_objects(), alive + 4);
    grown[7] = 42;
    uint8_t *larger = rp_realloc(grown, 100000, 1);
    REQUIRE(larger != NULL);
    (void)CHECK_EQ(larger[7], 42);
    (void)CHECK_EQ(rp_live_objects(), alive + 4);
    (void)CHECK_STR(text, "text");
    rp_free(zeroed);
    rp_free(nothing);
    rp_free(larger);
    rp_free(text);
    rp_free(NULL);
    (void)CHECK_EQ(rp_live_objects(), alive);
}

RP_TEST(a_failed_realloc_keeps_the_old_block)
{
    uint8_t *block = rp_calloc(8, 1);
    REQUIRE(block != NULL);
    block[3] = 9;
    struct rp_fault fault = {.calls = RP_FAULT_MEMORY, .nth = 1};
    int64_t alive = rp_live_objects();
    rp_fault_arm(&fault);
    void *grown = rp_realloc(block, 64, 1);
    (void)CHECK(rp_fault_disarm());
    (void)CHECK(grown == NULL);
    (void)CHECK_EQ(block[3], 9);
    (void)CHECK_EQ(rp_live_objects(), alive);
    rp_free(block);
}

RP_TEST(buffers_are_padded_with_zeros)
{
    rp_buf *buf = NULL;
    REQUIRE_OK(rp_buf_new(100, &buf, NULL), NULL);
    (void)CHECK_EQ(buf->len, 100);
    memset(buf->data, 0xff, buf->len);
    for (int i = 0; i < RP_BUF_PADDING; i++) {
        (void)CHECK_EQ(buf->data[100 + i], 0);
    }
    rp_buf_unref(&buf);
    (void)CHECK(buf == NULL);
    rp_buf_unref(&buf);
    rp_buf_unref(NULL);
    REQUIRE_OK(rp_buf_new(0, &buf, NULL), NULL);
    rp_buf_unref(&buf);
}

static atomic_int released;

static void count_release(void *cookie, uint8_t *data)
{
    (void)CHECK(cookie == &released && *data == 5);
    atomic_fetch_add(&released, 1);
}

static void *ref_and_unref(void *arg)
{
    for (int i = 0; i < 10000; i++) {
        rp_buf *mine = rp_buf_ref(arg);
        rp_buf_unref(&mine);
    }
    return NULL;
}

RP_TEST(foreign_memory_is_released_once_by_the_last)
{
    static uint8_t data[1] = {5};
    atomic_store(&released, 0);
    rp_buf *buf = NULL;
    REQUIRE_OK(rp_buf_wrap(data, 1, count_release, &released, &buf, NULL), NULL);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        REQUIRE_EQ(pthread_create(&threads[i], NULL, ref_and_unref, buf), 0);
    }
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    (void)CHECK_EQ(atomic_load(&released), 0);
    rp_buf_unref(&buf);
    (void)CHECK_EQ(atomic_load(&released), 1);
}

static void use_buffers(void *arg)
{
    (void)arg;
    static uint8_t data[1];
    rp_buf *a = NULL, *b = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = rp_buf_new(10, &a, &err);
    if (status == RP_OK) {
        status = rp_buf_wrap(data, 1, NULL, NULL, &b, &err);
    }
    (void)CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == RP_E_NOMEM));
    rp_buf_unref(&a);
    rp_buf_unref(&b);
}

RP_TEST(memory_may_be_short)
{
    (void)CHECK(rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, use_buffers, NULL) > 0);
}
