/* Concatenation: reading back gives the samples, sources that do not fit are refused by name. */
#include "demux/mp4_write.h"

#include "concat_oracle.h"
#include "harness.h"
#include "mp4_build.h"

#define FILE_BYTES (1LL << 20)
#define MAX_CLIPS  4

static struct rp_error err;
static struct bytes moov;

static rp_index *index_of(const struct clip *clip, int64_t file_size)
{
    rp_index *index = NULL;
    rp_error_clear(&err);
    clip_moov(&moov, clip);
    REQUIRE_OK(rp_index_parse(moov.data, moov.len, file_size, &index, &err), &err);
    return index;
}

static rp_status add(rp_concat *plan, const struct clip *clip, int64_t file_size)
{
    rp_index *index = index_of(clip, file_size);
    rp_status status = rp_concat_add(plan, &index, &err);
    CHECK((index == NULL) == (status == RP_OK));
    rp_index_free(&index);
    return status;
}

/* The plan of n clips, checked by reading it back. */
static rp_concat *concat_in(const struct clip *clips, int n, int64_t file_size)
{
    rp_concat *plan = NULL;
    rp_index *sources[MAX_CLIPS] = {NULL};
    REQUIRE_OK(rp_concat_new(&plan, &err), &err);
    for (int s = 0; s < n; s++) {
        REQUIRE_OK(add(plan, &clips[s], file_size), &err);
        sources[s] = index_of(&clips[s], file_size);
    }
    REQUIRE_OK(rp_concat_finish(plan, &err), &err);
    const char *fault = concat_fault(plan, sources, n);
    CHECK_STR(fault, NULL);
    for (int s = 0; s < n; s++) {
        rp_index_free(&sources[s]);
    }
    return plan;
}

static rp_concat *concat_of(const struct clip *clips, int n)
{
    return concat_in(clips, n, FILE_BYTES);
}

static void check_part(const rp_concat *plan, int s, int64_t frames, int64_t start, int64_t offset,
                       int64_t duration)
{
    int n;
    const struct rp_concat_part *part = rp_concat_parts(plan, &n) + s;
    CHECK(s < n);
    CHECK_EQ(part->frames, frames);
    CHECK_EQ(part->start, start);
    CHECK_EQ(part->offset, offset);
    CHECK_EQ(part->duration, duration);
}

/* Decode order I P B B P B and the edit list that hides the wait of two pictures. */
static struct clip reordered_clip(void)
{
    struct clip clip = simple_clip();
    const int32_t ctts[][2] = {{1, 200}, {1, 400}, {2, 100}, {1, 300}, {1, 100}};
    memcpy(clip.ctts, ctts, sizeof(ctts));
    clip.ctts_rows = 5;
    clip.edit_rows = 1;
    clip.edits[0][0] = 600;
    clip.edits[0][1] = 200;
    clip.edits[0][2] = 0x10000;
    clip.has_stss = true;
    clip.stss_rows = 1;
    return clip;
}

RP_TEST(one_source_alone)
{
    struct clip clip = simple_clip();
    rp_concat *plan = concat_of(&clip, 1);
    check_part(plan, 0, 6, 0, 0, 600);
    CHECK_EQ(rp_concat_timescale(plan), 1000);
    size_t n;
    const struct rp_concat_range *range = rp_concat_ranges(plan, &n);
    CHECK_EQ(n, 2); /* chunks at 1000 and 2000 */
    CHECK(range[0].source == 0 && range[0].bytes.offset == 1000 && range[0].bytes.len == 30);
    CHECK(range[1].source == 0 && range[1].bytes.offset == 2000 && range[1].bytes.len == 30);
    rp_concat_free(&plan);
    rp_concat_free(&plan);
    rp_concat_free(NULL);
}

RP_TEST(sources_follow_each_other)
{
    struct clip clips[] = {simple_clip(), simple_clip(), simple_clip()};
    clips[1].stts[0][1] = 50;
    clips[1].chunks[1] = 1030; /* the two chunks are neighbours: one range */
    clips[2].has_stss = false; /* every sample a key */
    rp_concat *plan = concat_of(clips, 3);
    check_part(plan, 0, 6, 0, 0, 600);
    check_part(plan, 1, 6, 0, 600, 300);
    check_part(plan, 2, 6, 0, 900, 600);
    size_t n;
    CHECK(rp_concat_ranges(plan, &n)[2].bytes.len == 60);
    CHECK_EQ(n, 5);
    rp_concat_free(&plan);
}

RP_TEST(sources_that_reorder_by_different_distances)
{
    for (int first = 0; first < 2; first++) {
        struct clip clips[] = {simple_clip(), simple_clip(), simple_clip()};
        clips[first] = reordered_clip();
        rp_concat *plan = concat_of(clips, 3);
        check_part(plan, 2, 6, 0, 1200, 600);
        rp_concat_free(&plan);
    }
}

RP_TEST(decode_times_give_way_where_distances_are_uneven)
{
    /* Slow at first: the first sample waits 3000 ticks, the last ones none. */
    struct clip slow = simple_clip();
    const uint32_t stts[][2] = {{1, 3000}, {5, 100}};
    const int32_t ctts[][2] = {{1, 3000}, {5, 100}};
    memcpy(slow.stts, stts, sizeof(stts));
    memcpy(slow.ctts, ctts, sizeof(ctts));
    slow.stts_rows = slow.ctts_rows = 2;
    slow.edit_rows = 1;
    slow.edits[0][0] = 600;
    slow.edits[0][1] = 3000;
    slow.edits[0][2] = 0x10000;
    struct clip clips[] = {slow, simple_clip()};
    rp_concat *plan = concat_of(clips, 2);
    check_part(plan, 1, 6, 0, 600, 600);
    rp_concat_free(&plan);
}

RP_TEST(timescales_meet_in_their_least_common_multiple)
{
    struct clip clips[] = {simple_clip(), simple_clip(), simple_clip()};
    clips[1].timescale = 600;
    clips[2].timescale = 1500;
    rp_concat *plan = concat_of(clips, 3);
    CHECK_EQ(rp_concat_timescale(plan), 3000);
    check_part(plan, 1, 6, 0, 1800, 3000);
    check_part(plan, 2, 6, 0, 4800, 1200);
    rp_concat_free(&plan);
    clips[0].timescale = 65536;
    clips[1].timescale = 65521; /* a prime: beyond 2^31 together */
    REQUIRE_OK(rp_concat_new(&plan, &err), &err);
    REQUIRE_OK(add(plan, &clips[0], FILE_BYTES), &err);
    CHECK_STATUS(add(plan, &clips[1], FILE_BYTES), RP_E_UNSUPPORTED, &err);
    CHECK_CONTAINS(err.what, "timescale");
    rp_concat_free(&plan);
}

RP_TEST(late_starts_and_hidden_pictures)
{
    struct clip clips[] = {simple_clip(), simple_clip(), simple_clip(), simple_clip()};
    clips[1].edit_rows = 2; /* half a second of nothing */
    const int64_t late[][3] = {{500, -1, 0x10000}, {600, 0, 0x10000}};
    memcpy(clips[1].edits, late, sizeof(late));
    clips[2].edit_rows = 1; /* two pictures hidden at either end */
    const int64_t cut[][3] = {{200, 200, 0x10000}};
    memcpy(clips[2].edits, cut, sizeof(cut));
    rp_concat *plan = concat_of(clips, 4);
    check_part(plan, 1, 6, 500, 600, 600);
    check_part(plan, 2, 2, 0, 1400, 200);
    check_part(plan, 3, 6, 0, 1800, 600);
    rp_concat_free(&plan);
}

RP_TEST(a_last_picture_without_duration_lasts_as_the_one_before)
{
    struct clip clips[] = {simple_clip(), simple_clip()};
    const uint32_t stts[][2] = {{5, 100}, {1, 0}};
    memcpy(clips[0].stts, stts, sizeof(stts));
    clips[0].stts_rows = 2;
    rp_concat *plan = concat_of(clips, 2);
    check_part(plan, 0, 6, 0, 0, 600);
    check_part(plan, 1, 6, 0, 600, 600);
    rp_concat_free(&plan);
}

RP_TEST(more_than_four_gigabytes)
{
    static const uint32_t sizes[] = {64 << 20, 64 << 20, 64 << 20, 64 << 20, 64 << 20, 64 << 20};
    struct clip clip = simple_clip();
    clip.sizes = sizes;
    clip.chunks[1] = 1LL << 32;
    clip.wide = true;
    struct clip clips[] = {clip, clip, clip, clip};
    rp_concat *plan = concat_in(clips, 4, 8LL << 30); /* 1.5 GiB: 32-bit offsets */
    size_t len;
    uint32_t small = 0;
    const uint8_t *head = rp_concat_head(plan, &len);
    for (size_t i = 0; i + 4 <= len; i++) {
        small += memcmp(head + i, "stco", 4) == 0;
    }
    CHECK_EQ(small, 1);
    rp_concat_free(&plan);
    enum { MANY = 12 };
    REQUIRE_OK(rp_concat_new(&plan, &err), &err);
    rp_index *sources[MANY];
    for (int s = 0; s < MANY; s++) {
        REQUIRE_OK(add(plan, &clip, 8LL << 30), &err);
        sources[s] = index_of(&clip, 8LL << 30);
    }
    REQUIRE_OK(rp_concat_finish(plan, &err), &err);
    CHECK(rp_concat_bytes(plan) > 1LL << 32);
    CHECK_STR(concat_fault(plan, sources, MANY), NULL);
    for (int s = 0; s < MANY; s++) {
        rp_index_free(&sources[s]);
    }
    rp_concat_free(&plan);
}

RP_TEST(what_decoding_does_not_need_may_differ)
{
    struct clip clips[] = {simple_clip(), simple_clip()};
    uint8_t *entry[2];
    size_t len[2];
    clips[1].extra_in_entry = "btrt";
    for (int i = 0; i < 2; i++) {
        rp_index *index = index_of(&clips[i], FILE_BYTES);
        REQUIRE_OK(rp_sample_entry(index, &entry[i], &len[i], &err), &err);
        rp_index_free(&index);
    }
    CHECK_EQ(len[0], len[1]);
    CHECK_MEM(entry[0], entry[1], len[0]);
    rp_free(entry[0]);
    rp_free(entry[1]);
    struct clip mpeg4[] = {simple_clip(), simple_clip()};
    for (int i = 0; i < 2; i++) { /* its extradata is unpacked and packed again */
        mpeg4[i].entry = "mp4v";
        mpeg4[i].config = "esds";
    }
    rp_concat *plan = concat_of(mpeg4, 2);
    rp_concat_free(&plan);
}

RP_TEST(other_parameters_are_refused_and_the_plan_goes_on)
{
    struct clip good = simple_clip(), other = simple_clip();
    rp_concat *plan;
    REQUIRE_OK(rp_concat_new(&plan, &err), &err);
    other.has_stss = true;
    other.stss[0] = 2;
    other.stss_rows = 1;
    CHECK_STATUS(add(plan, &other, FILE_BYTES), RP_E_FORMAT, &err); /* the first one refused */
    CHECK_CONTAINS(err.what, "no key");
    REQUIRE_OK(add(plan, &good, FILE_BYTES), &err);
    static const char *const entries[][3] = {
        {"hvc1", "hvcC", NULL}, {"avc3", "avcC", NULL}, {"avc1", "avcC", "pasp"}};
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        other = simple_clip();
        other.entry = entries[i][0];
        other.config = entries[i][1];
        other.extra_in_entry = entries[i][2];
        CHECK_STATUS(add(plan, &other, FILE_BYTES), RP_E_UNSUPPORTED, &err);
        CHECK_CONTAINS(err.what, "codec parameters");
    }
    REQUIRE_OK(add(plan, &good, FILE_BYTES), &err);
    REQUIRE_OK(rp_concat_finish(plan, &err), &err);
    rp_index *sources[] = {index_of(&good, FILE_BYTES), index_of(&good, FILE_BYTES)};
    CHECK_STR(concat_fault(plan, sources, 2), NULL);
    rp_index_free(&sources[0]);
    rp_index_free(&sources[1]);
    rp_concat_free(&plan);
}

static void check_refused(const struct clip *clip, int64_t file_size, rp_status code,
                          const char *part)
{
    rp_concat *plan;
    REQUIRE_OK(rp_concat_new(&plan, &err), &err);
    CHECK_STATUS(add(plan, clip, file_size), code, &err);
    CHECK_CONTAINS(err.what, part);
    rp_concat_free(&plan);
}

RP_TEST(sources_that_cannot_be_copied)
{
    struct clip clip = simple_clip();
    check_refused(&clip, 2025, RP_E_FORMAT, "truncated");
    clip.chunks[0] = clip.chunks[1] = 0;
    check_refused(&clip, 59, RP_E_FORMAT, "overlap");
    clip = simple_clip();
    clip.stts[0][1] = 0;
    check_refused(&clip, FILE_BYTES, RP_E_UNSUPPORTED, "no duration");
    const uint32_t same[][2] = {{1, 1}, {5, 0}};
    memcpy(clip.stts, same, sizeof(same));
    clip.stts_rows = 2;
    check_refused(&clip, FILE_BYTES, RP_E_UNSUPPORTED, "several pictures");
    clip = simple_clip();
    clip.edit_rows = 1;
    const int64_t beyond[][3] = {{600, 5000, 0x10000}};
    memcpy(clip.edits, beyond, sizeof(beyond));
    check_refused(&clip, FILE_BYTES, RP_E_FORMAT, "no picture");
    /* The second picture is shown before the key: only a key before that one could start it. */
    clip = simple_clip();
    const int32_t leading[][2] = {{1, 300}, {5, 100}};
    memcpy(clip.ctts, leading, sizeof(leading));
    clip.ctts_rows = 2;
    clip.stss_rows = 1;
    check_refused(&clip, FILE_BYTES, RP_E_FORMAT, "no key");
}

RP_TEST(times_beyond_the_boxes)
{
    struct clip clips[] = {simple_clip(), simple_clip()};
    rp_concat *plan;
    REQUIRE_OK(rp_concat_new(&plan, &err), &err);
    clips[0].timescale = 1 << 30;
    clips[1].timescale = 1;
    clips[1].stts[0][1] = 2;
    REQUIRE_OK(add(plan, &clips[0], FILE_BYTES), &err);
    REQUIRE_OK(add(plan, &clips[1], FILE_BYTES), &err);
    CHECK_STATUS(rp_concat_finish(plan, &err), RP_E_UNSUPPORTED, &err);
    CHECK_CONTAINS(err.what, "2^31");
    rp_concat_free(&plan);
}

RP_TEST(equal_sources_give_equal_bytes)
{
    struct clip clips[] = {reordered_clip(), simple_clip()};
    rp_concat *plans[] = {concat_of(clips, 2), concat_of(clips, 2)};
    size_t len[2];
    const uint8_t *head[] = {rp_concat_head(plans[0], &len[0]), rp_concat_head(plans[1], &len[1])};
    CHECK_EQ(len[0], len[1]);
    CHECK_MEM(head[0], head[1], len[0]);
    rp_concat_free(&plans[0]);
    rp_concat_free(&plans[1]);
}

static void plan_under_fault(void *unused)
{
    (void)unused;
    rp_concat *plan = NULL;
    rp_index *index = NULL;
    rp_error_clear(&err);
    rp_status status = rp_concat_new(&plan, &err);
    for (int s = 0; s < 20 && status == RP_OK; s++) { /* enough for the arrays to grow */
        status = rp_index_parse(moov.data, moov.len, FILE_BYTES, &index, &err);
        if (status == RP_OK) {
            status = rp_concat_add(plan, &index, &err);
        }
        rp_index_free(&index);
    }
    if (status == RP_OK) {
        status = rp_concat_finish(plan, &err);
    }
    CHECK(status == RP_OK || (status == RP_E_NOMEM && err.code == RP_E_NOMEM));
    rp_concat_free(&plan);
}

RP_TEST(lack_of_memory_leaks_nothing)
{
    struct clip clip = reordered_clip();
    clip_moov(&moov, &clip);
    int runs = rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, plan_under_fault, NULL);
    CHECK(runs > 50);
}
