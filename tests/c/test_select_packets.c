/* select_packets.c: times to pictures, pictures to keys, packets to reads. */
#include "demux/demux.h"

#include "harness.h"
#include "mp4_build.h"

static struct rp_error err;
static struct bytes moov;

static rp_index *index_of(const struct clip *clip, int64_t file_size)
{
    rp_index *index = NULL;
    rp_error_clear(&err);
    clip_moov(&moov, clip);
    CHECK_OK(rp_index_parse(moov.data, moov.len, file_size, &index, &err), &err);
    return index;
}

static rp_status find(const rp_index *index, double t, double tolerance, int64_t *sample,
                      double *nearest)
{
    rp_error_clear(&err);
    *sample = -7;
    return rp_index_find(index, t, tolerance, sample, nearest, &err);
}

static rp_status start_key(const rp_index *index, int64_t sample, int64_t *key)
{
    rp_error_clear(&err);
    *key = -7;
    return rp_index_start_key(index, sample, key, &err);
}

RP_TEST(nearest_picture_ties_to_the_earlier)
{
    struct clip clip = simple_clip();
    clip.timescale = clip.movie_timescale = 1024; /* times exact in binary: 0, 1/8, ... 5/8 s */
    clip.stts[0][1] = 128;
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    int64_t sample;
    double nearest;
    REQUIRE_OK(find(index, 0.375, 0, &sample, &nearest), &err);
    CHECK_EQ(sample, 3);
    REQUIRE_OK(find(index, 0.1875, 1, &sample, &nearest), &err); /* half way between 1 and 2 */
    CHECK_EQ(sample, 1);
    REQUIRE_OK(find(index, 0.19, 1, &sample, &nearest), &err);
    CHECK_EQ(sample, 2);
    CHECK_NEAR(nearest, 0.25, 0);
    REQUIRE_OK(find(index, -3, 3, &sample, NULL), &err);
    CHECK_EQ(sample, 0);
    REQUIRE_OK(find(index, 99, 100, &sample, NULL), &err);
    CHECK_EQ(sample, 5);
    rp_index_free(&index);
}

RP_TEST(times_beyond_the_tolerance_are_refused)
{
    struct clip clip = simple_clip();
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    int64_t sample;
    double nearest;
    CHECK_STATUS(find(index, 0.151, 1e-4, &sample, &nearest), RP_E_TIMESTAMP, &err);
    CHECK_EQ(sample, -7);
    CHECK_NEAR(nearest, 0.2, 0);
    CHECK_NEAR(err.time, 0.151, 0);
    CHECK_NEAR(err.nearest, 0.2, 0);
    CHECK_CONTAINS(err.what, "no picture within 0.0001 s of 0.151 s, the nearest is at 0.2 s");
    CHECK_STATUS(find(index, 0.6, 1e-4, &sample, &nearest), RP_E_TIMESTAMP, &err);
    CHECK_NEAR(nearest, 0.5, 0);
    CHECK_STATUS(find(index, NAN, 1, &sample, &nearest), RP_E_TIMESTAMP, &err);
    CHECK_STATUS(find(index, -INFINITY, INFINITY, &sample, &nearest), RP_E_TIMESTAMP, &err);
    CHECK(isnan(nearest));
    CHECK_STATUS(find(index, 0.1, NAN, &sample, &nearest), RP_E_TIMESTAMP, &err);
    CHECK_STATUS(find(index, 0.1, -1, &sample, &nearest), RP_E_TIMESTAMP, &err);
    rp_index_free(&index);
}

RP_TEST(tolerance_counts_in_float_too)
{
    struct clip clip = simple_clip();
    clip.timescale = clip.movie_timescale = 10; /* pictures 100 ticks = 10 s apart */
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    int64_t sample;
    /* 50.000001 - 50 exceeds 5e-7 in f64; in f32 both are 50. */
    CHECK_OK(find(index, 50.000001, 5e-7, &sample, NULL), &err);
    /* f64 alone accepts what f32 rounds away from: 20.0000019 is 20.0000019073 in f32. */
    CHECK_OK(find(index, 20.0000019, 19.0001e-7, &sample, NULL), &err);
    CHECK_STATUS(find(index, 20.0000019, 18e-7, &sample, NULL), RP_E_TIMESTAMP, &err);
    rp_index_free(&index);
}

RP_TEST(two_pictures_of_one_time_are_refused)
{
    struct clip clip = simple_clip();
    clip.ctts_rows = 3; /* pts 0 100 300 300 400 500 */
    clip.ctts[0][0] = 2;
    clip.ctts[1][0] = 1, clip.ctts[1][1] = 100;
    clip.ctts[2][0] = 3;
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    int64_t sample;
    CHECK_STATUS(find(index, 0.3, 1e-4, &sample, NULL), RP_E_TIMESTAMP, &err);
    CHECK_CONTAINS(err.what, "two pictures have the time 0.3 s (tick 300)");
    CHECK_STATUS(find(index, 0.30005, 1e-4, &sample, NULL), RP_E_TIMESTAMP, &err);
    CHECK_STATUS(find(index, 0.29995, 1e-4, &sample, NULL), RP_E_TIMESTAMP, &err);
    CHECK_OK(find(index, 0.4, 1e-4, &sample, NULL), &err);
    rp_index_free(&index);
    clip = simple_clip();
    clip.stts_rows = 2; /* the same without ctts: 0 100 100 100 100 100 */
    clip.stts[0][0] = 1, clip.stts[0][1] = 100;
    clip.stts[1][0] = 5, clip.stts[1][1] = 0;
    index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    CHECK_STATUS(find(index, 0.1, 1e-4, &sample, NULL), RP_E_TIMESTAMP, &err);
    CHECK_OK(find(index, 0, 1e-4, &sample, NULL), &err);
    rp_index_free(&index);
}

RP_TEST(a_video_without_times_names_no_picture)
{
    struct clip clip = simple_clip();
    clip.edit_rows = 1;
    clip.edits[0][0] = 100, clip.edits[0][1] = 5000, clip.edits[0][2] = 0x10000;
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    int64_t sample;
    CHECK_EQ(rp_index_addressable(index), 0);
    CHECK_EQ(rp_index_duration(index), 0);
    CHECK_STATUS(find(index, 0, 1e9, &sample, NULL), RP_E_TIMESTAMP, &err);
    rp_index_free(&index);
}

RP_TEST(samples_past_the_end_fail_alone)
{
    struct clip clip = simple_clip();
    rp_index *index = index_of(&clip, 2015); /* sample 4 at 2010 is cut */
    REQUIRE(index != NULL);
    int64_t sample, covered;
    struct rp_byte_range range;
    CHECK_OK(find(index, 0.3, 1e-4, &sample, NULL), &err);
    CHECK_STATUS(find(index, 0.4, 1e-4, &sample, NULL), RP_E_FORMAT, &err);
    CHECK_EQ(sample, -7);
    CHECK_CONTAINS(err.what, "truncated: sample 4 ends at byte 2020, the file has 2015");
    CHECK_EQ(err.offset, 2010);
    CHECK_EQ(err.length, 10);
    CHECK_OK(rp_index_range(index, 0, 3, &covered, &range, &err), &err);
    rp_error_clear(&err);
    CHECK_STATUS(rp_index_range(index, 3, 5, &covered, &range, &err), RP_E_FORMAT, &err);
    CHECK_CONTAINS(err.what, "truncated");
    rp_index_free(&index);
}

RP_TEST(start_key_by_presentation_time)
{
    /* Open GOP, decode order: I0 P B | I(3) B(4) B(5); pts 0 200 100 | 500 300 400. The leading
     * pictures 4 and 5 refer to what lies before key 3, so decoding them starts at key 0. */
    struct clip clip = simple_clip();
    clip.ctts_rows = 5;
    clip.ctts[0][0] = 1, clip.ctts[0][1] = 0;
    clip.ctts[1][0] = 1, clip.ctts[1][1] = 100;
    clip.ctts[2][0] = 1, clip.ctts[2][1] = -100;
    clip.ctts[3][0] = 1, clip.ctts[3][1] = 200;
    clip.ctts[4][0] = 2, clip.ctts[4][1] = -100;
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    static const int64_t expected[] = {0, 0, 0, 3, 0, 0};
    for (int i = 0; i < 6; i++) {
        int64_t key;
        REQUIRE_OK(start_key(index, i, &key), &err);
        CHECK_EQ(key, expected[i]);
    }
    rp_index_free(&index);
}

RP_TEST(keys_out_of_order_and_absent)
{
    struct clip clip = simple_clip(); /* keys 0 (pts 350) and 3 (pts 300): the greatest wins */
    clip.ctts_rows = 3;
    clip.ctts[0][0] = 1, clip.ctts[0][1] = 350;
    clip.ctts[1][0] = 2, clip.ctts[1][1] = -50;
    clip.ctts[2][0] = 3, clip.ctts[2][1] = 0;
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    int64_t key;
    CHECK_OK(start_key(index, 5, &key), &err);
    CHECK_EQ(key, 0);
    CHECK_OK(start_key(index, 3, &key), &err);
    CHECK_EQ(key, 3);
    CHECK_STATUS(start_key(index, 1, &key), RP_E_FORMAT, &err);
    CHECK_EQ(key, -7);
    rp_index_free(&index);
    clip = simple_clip();
    clip.stss_rows = 0; /* the box is there and empty: no key at all */
    index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    CHECK_STATUS(start_key(index, 2, &key), RP_E_FORMAT, &err);
    CHECK_CONTAINS(err.what, "no key sample");
    rp_index_free(&index);
}

RP_TEST(long_and_large_groups_are_refused)
{
    struct clip clip = simple_clip();
    clip.common_size = 1;
    clip.samples = 5000;
    clip.stss_rows = 1;
    clip.stts[0][0] = 5000;
    clip.chunk_rows = 1;
    clip.stsc[0][1] = 5000;
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    int64_t key;
    CHECK_OK(start_key(index, 4095, &key), &err);
    CHECK_EQ(key, 0);
    CHECK_STATUS(start_key(index, 4096, &key), RP_E_UNSUPPORTED, &err);
    CHECK_CONTAINS(err.what, "4097 packets from key 0 to sample 4096, the limit is 4096");
    rp_index_free(&index);
    static const uint32_t sizes[] = {64 << 20, 64 << 20, 64 << 20, 64 << 20, 1, 1};
    clip = simple_clip();
    clip.sizes = sizes;
    clip.stss_rows = 1;
    index = index_of(&clip, 1 << 30);
    REQUIRE(index != NULL);
    CHECK_OK(start_key(index, 3, &key), &err);
    CHECK_STATUS(start_key(index, 4, &key), RP_E_UNSUPPORTED, &err);
    CHECK_CONTAINS(err.what, "268435457 bytes from key 0 to sample 4, the limit is 268435456");
    rp_index_free(&index);
}

RP_TEST(ranges_join_near_samples)
{
    struct clip clip = simple_clip();
    clip.stsc[0][1] = 1;
    clip.chunk_rows = 6; /* gap 0, gap of 64 KiB, gap of 64 KiB + 1, backwards, gap 0 */
    static const uint64_t offsets[] = {1000, 1010, 66556, 132103, 500, 510};
    memcpy(clip.chunks, offsets, sizeof(offsets));
    rp_index *index = index_of(&clip, 1 << 20);
    REQUIRE(index != NULL);
    int64_t covered;
    struct rp_byte_range range;
    rp_error_clear(&err);
    REQUIRE_OK(rp_index_range(index, 0, 5, &covered, &range, &err), &err);
    CHECK_EQ(covered, 2);
    CHECK_EQ(range.offset, 1000);
    CHECK_EQ(range.len, 66566 - 1000);
    REQUIRE_OK(rp_index_range(index, 3, 5, &covered, &range, &err), &err);
    CHECK_EQ(covered, 3);
    CHECK_EQ(range.offset, 132103);
    CHECK_EQ(range.len, 10);
    REQUIRE_OK(rp_index_range(index, 4, 5, &covered, &range, &err), &err);
    CHECK_EQ(covered, 5);
    CHECK_EQ(range.offset, 500);
    CHECK_EQ(range.len, 20);
    REQUIRE_OK(rp_index_range(index, 0, 0, &covered, &range, &err), &err);
    CHECK_EQ(covered, 0);
    CHECK_EQ(range.len, 10);
    rp_index_free(&index);
}

RP_TEST(ranges_end_at_64_mib)
{
    static const uint32_t sizes[] = {32 << 20, 32 << 20, 1, 64 << 20, 1, 1};
    struct clip clip = simple_clip();
    clip.sizes = sizes;
    clip.stsc[0][1] = 6;
    clip.chunk_rows = 1;
    rp_index *index = index_of(&clip, 1 << 30);
    REQUIRE(index != NULL);
    int64_t covered;
    struct rp_byte_range range;
    rp_error_clear(&err);
    REQUIRE_OK(rp_index_range(index, 0, 5, &covered, &range, &err), &err);
    CHECK_EQ(covered, 1);
    CHECK_EQ(range.len, 64 << 20);
    REQUIRE_OK(rp_index_range(index, 3, 5, &covered, &range, &err), &err);
    CHECK_EQ(covered, 3);
    CHECK_EQ(range.len, 64 << 20);
    rp_index_free(&index);
}
