/* The index of a moov: what it says, and one test per reason to refuse it. */
#include "demux/demux.h"

#include "harness.h"
#include "mp4_build.h"

static struct rp_error err;
static struct bytes moov;

static rp_status parse_bytes(rp_index **index)
{
    rp_error_clear(&err);
    *index = NULL;
    /* A heap block of the exact size: reads past its end are seen by the address sanitizer. */
    uint8_t *exact = malloc(moov.len);
    memcpy(exact, moov.data, moov.len);
    rp_status status = rp_index_parse(exact, moov.len, 1 << 20, index, &err);
    free(exact);
    return status;
}

static rp_status parse(const struct clip *clip, rp_index **index)
{
    clip_moov(&moov, clip);
    return parse_bytes(index);
}

/* The clip is refused with a code and a text that contains `part`. */
#define CHECK_REFUSED(clip, status, part)                      \
    do {                                                       \
        rp_index *index_;                                      \
        CHECK_STATUS(parse(&(clip), &index_), (status), &err); \
        CHECK(index_ == NULL);                                 \
        CHECK_CONTAINS(err.what, (part));                      \
        rp_index_free(&index_);                                \
    } while (0)

static void check_sample(const rp_index *index, int64_t i, int64_t pts, int64_t dts, int64_t offset,
                         bool key, bool addressable)
{
    struct rp_sample s;
    rp_index_sample(index, i, &s);
    CHECK_EQ(s.pts, pts);
    CHECK_EQ(s.dts, dts);
    CHECK_EQ(s.offset, offset);
    CHECK_EQ(s.key, key);
    CHECK_EQ(s.addressable, addressable);
}

RP_TEST(simple_clip_is_read)
{
    struct clip clip = simple_clip();
    rp_index *index;
    REQUIRE_OK(parse(&clip, &index), &err);
    const struct rp_codec_params *codec = rp_index_codec(index);
    CHECK_STR(rp_codec_name(codec->codec), "h264");
    CHECK_EQ(codec->width, 320);
    CHECK_EQ(codec->height, 240);
    CHECK_EQ(codec->extradata_len, 4);
    CHECK_MEM(codec->extradata, "\1\2\3\4", 4);
    CHECK(!codec->has_colour);
    CHECK_EQ(rp_index_samples(index), 6);
    CHECK_EQ(rp_index_addressable(index), 6);
    CHECK_EQ(rp_index_timescale(index), 1000);
    CHECK_EQ(rp_index_duration(index), 600);
    check_sample(index, 0, 0, 0, 1000, true, true);
    check_sample(index, 2, 200, 200, 1020, false, true);
    check_sample(index, 3, 300, 300, 2000, true, true);
    check_sample(index, 5, 500, 500, 2020, false, true);
    rp_index_free(&index);
    CHECK(index == NULL);
    rp_index_free(&index);
    rp_index_free(NULL);
}

RP_TEST(version_1_boxes_and_64_bit_offsets)
{
    struct clip clip = simple_clip();
    clip.version = 1;
    clip.wide = true;
    clip.chunks[1] = 1ull << 40;
    clip.edit_rows = 1;
    clip.edits[0][0] = 600;
    clip.edits[0][2] = 0x10000;
    rp_index *index;
    REQUIRE_OK(parse(&clip, &index), &err);
    check_sample(index, 4, 400, 400, (1ll << 40) + 10, false, true);
    rp_index_free(&index);
}

RP_TEST(every_sample_is_a_key_without_stss)
{
    struct clip clip = simple_clip();
    clip.has_stss = false;
    rp_index *index;
    REQUIRE_OK(parse(&clip, &index), &err);
    check_sample(index, 2, 200, 200, 1020, true, true);
    rp_index_free(&index);
}

RP_TEST(composition_offsets_order_the_pictures)
{
    struct clip clip = simple_clip();
    clip.ctts_rows = 4;
    clip.ctts[0][0] = 1, clip.ctts[0][1] = 100;
    clip.ctts[1][0] = 1, clip.ctts[1][1] = 300;
    clip.ctts[2][0] = 2, clip.ctts[2][1] = 0;
    clip.ctts[3][0] = 2, clip.ctts[3][1] = 100;
    rp_index *index; /* pts 100 400 200 300 500 600 */
    REQUIRE_OK(parse(&clip, &index), &err);
    static const int64_t shown[] = {0, 2, 3, 1, 4, 5};
    for (int n = 0; n < 6; n++) {
        CHECK_EQ(rp_index_nth(index, n), shown[n]);
    }
    CHECK_EQ(rp_index_duration(index), 700);
    check_sample(index, 1, 400, 100, 1010, false, true);
    rp_index_free(&index);
    clip.ctts[2][1] = -100; /* pts 100 400 100 200 500 600: dts moves below every pts */
    REQUIRE_OK(parse(&clip, &index), &err);
    check_sample(index, 2, 100, 100, 1020, false, true);
    check_sample(index, 0, 100, -100, 1000, true, true);
    rp_index_free(&index);
}

static void set_edit(struct clip *clip, int row, int64_t duration, int64_t start)
{
    clip->edits[row][0] = duration;
    clip->edits[row][1] = start;
    clip->edits[row][2] = 0x10000;
    clip->edit_rows = (uint32_t)row + 1;
}

RP_TEST(edits_shift_and_cut)
{
    struct clip clip = simple_clip();
    rp_index *index;
    set_edit(&clip, 0, 250, 200);
    REQUIRE_OK(parse(&clip, &index), &err);
    CHECK_EQ(rp_index_addressable(index), 3);
    CHECK_EQ(rp_index_nth(index, 0), 2);
    check_sample(index, 1, -100, -100, 1010, false, false);
    check_sample(index, 4, 200, 200, 2010, false, true);
    check_sample(index, 5, 300, 300, 2020, false, false);
    CHECK_EQ(rp_index_duration(index), 300);
    rp_index_free(&index);
    set_edit(&clip, 0, 500, 150); /* starts between pictures: picture 2 moves to 0 */
    REQUIRE_OK(parse(&clip, &index), &err);
    check_sample(index, 2, 0, 0, 1020, false, true);
    CHECK_EQ(rp_index_addressable(index), 4);
    rp_index_free(&index);
    clip.movie_timescale = 600;
    set_edit(&clip, 0, 7, -1); /* 7/600 s = 11.67 ticks: 12 */
    set_edit(&clip, 1, 600, 0);
    REQUIRE_OK(parse(&clip, &index), &err);
    check_sample(index, 0, 12, 12, 1000, true, true);
    CHECK_EQ(rp_index_addressable(index), 6);
    rp_index_free(&index);
}

RP_TEST(tables_larger_than_a_block)
{
    static uint32_t sizes[1000];
    struct clip clip = simple_clip();
    for (uint32_t i = 0; i < 1000; i++) {
        sizes[i] = 1 + i % 7;
    }
    clip.sizes = sizes;
    clip.samples = 1000;
    clip.stts_rows = 2;
    clip.stts[0][0] = 333, clip.stts[0][1] = 10;
    clip.stts[1][0] = 667, clip.stts[1][1] = 20;
    clip.chunk_rows = 3; /* 70, 70 and 860 samples; the second follows the first without a gap */
    clip.stsc_rows = 2;
    clip.stsc[0][1] = 70;
    clip.stsc[1][0] = 3, clip.stsc[1][1] = 860, clip.stsc[1][2] = 1;
    clip.chunks[0] = 500, clip.chunks[1] = 780, clip.chunks[2] = 5000;
    rp_index *index;
    REQUIRE_OK(parse(&clip, &index), &err);
    int64_t offset = 500, pts = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        offset = i == 70 ? 780 : i == 140 ? 5000 : offset;
        struct rp_sample s;
        rp_index_sample(index, i, &s);
        REQUIRE_EQ(s.offset, offset);
        REQUIRE_EQ(s.size, sizes[i]);
        REQUIRE_EQ(s.pts, pts);
        REQUIRE_EQ(s.key, i == 0 || i == 3);
        offset += sizes[i];
        pts += i < 333 ? 10 : 20;
    }
    CHECK(rp_index_bytes(index) < 6 * 1000);
    rp_index_free(&index);
}

RP_TEST(codecs_by_sample_entry)
{
    static const struct {
        const char *entry, *config;
        enum rp_codec codec;
    } kinds[] = {{"av01", "av1C", RP_CODEC_AV1},  {"avc3", "avcC", RP_CODEC_H264},
                 {"hvc1", "hvcC", RP_CODEC_HEVC}, {"hev1", "hvcC", RP_CODEC_HEVC},
                 {"vp09", "vpcC", RP_CODEC_VP9},  {"vp09", NULL, RP_CODEC_VP9}};
    uint64_t before = 0;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct clip clip = simple_clip();
        clip.entry = kinds[i].entry;
        clip.config = kinds[i].config;
        rp_index *index;
        REQUIRE_OK(parse(&clip, &index), &err);
        CHECK_EQ(rp_index_codec(index)->codec, kinds[i].codec);
        CHECK_EQ(rp_index_codec(index)->hash == before, i == 3); /* hev1 as hvc1: one decoder */
        before = rp_index_codec(index)->hash;
        rp_index_free(&index);
    }
    struct clip clip = simple_clip();
    clip.entry = "mp4v";
    clip.config = "esds";
    rp_index *index;
    REQUIRE_OK(parse(&clip, &index), &err);
    CHECK_EQ(rp_index_codec(index)->codec, RP_CODEC_MPEG4);
    CHECK_EQ(rp_index_codec(index)->extradata_len, 2);
    CHECK_MEM(rp_index_codec(index)->extradata, "\xAB\xCD", 2);
    rp_index_free(&index);
}

RP_TEST(unknown_codecs_and_configs_are_refused)
{
    struct clip clip = simple_clip();
    clip.entry = "mjpa";
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "unknown codec: sample entry 'mjpa'");
    clip = simple_clip();
    clip.config = NULL;
    CHECK_REFUSED(clip, RP_E_FORMAT, "sample entry 'avc1' has no box 'avcC'");
    clip = simple_clip();
    clip.extra_in_entry = "avcC";
    CHECK_REFUSED(clip, RP_E_FORMAT, "two boxes 'avcC'");
    clip = simple_clip();
    clip.entry = "mp4v";
    clip.config = "esds";
    clip_moov(&moov, &clip);
    moov.data[payload_of(&moov, "esds") + 11] = 0x6C; /* JPEG */
    rp_index *index;
    CHECK_STATUS(parse_bytes(&index), RP_E_UNSUPPORTED, &err);
    CHECK_CONTAINS(err.what, "object type 0x6c");
    moov.data[payload_of(&moov, "esds") + 5] = 0xFF;
    CHECK_STATUS(parse_bytes(&index), RP_E_FORMAT, &err);
}

RP_TEST(encryption_is_refused)
{
    struct clip clip = simple_clip();
    clip.entry = "encv";
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "encrypted");
    clip = simple_clip();
    clip.extra_in_entry = "sinf";
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "encrypted");
}

RP_TEST(boxes_past_their_parent_are_refused)
{
    struct clip clip = simple_clip();
    rp_index *index;
    static const char *const types[] = {"mvhd", "tkhd", "stsz", "stbl", "hdlr"};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        clip_moov(&moov, &clip);
        set32(&moov, payload_of(&moov, types[i]) - 8, 1u << 20);
        CHECK_STATUS(parse_bytes(&index), RP_E_FORMAT, &err);
        CHECK_CONTAINS(err.what, types[i]);
        CHECK_CONTAINS(err.what, "declares 1048576 bytes");
    }
}

RP_TEST(counts_larger_than_their_box_are_refused)
{
    static const struct {
        const char *type;
        size_t at;
    } tables[] = {{"stts", 4}, {"ctts", 4}, {"stss", 4}, {"stsz", 8}, {"stsc", 4},
                  {"stco", 4}, {"elst", 4}, {"dref", 4}, {"stsd", 4}};
    struct clip clip = simple_clip();
    clip.ctts_rows = 1;
    clip.ctts[0][0] = 6;
    set_edit(&clip, 0, 600, 0);
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        rp_index *index;
        clip_moov(&moov, &clip);
        set32(&moov, payload_of(&moov, tables[i].type) + tables[i].at, 0x80000000);
        CHECK_STATUS(parse_bytes(&index), RP_E_FORMAT, &err);
        CHECK_CONTAINS(err.what, tables[i].type);
        CHECK_CONTAINS(err.what, "declares 2147483648 entries");
    }
}

RP_TEST(tables_that_disagree_are_refused)
{
    struct clip clip = simple_clip();
    clip.stsc[0][1] = 2;
    CHECK_REFUSED(clip, RP_E_FORMAT, "stsc places 4 samples, stsz has 6");
    clip.stsc[0][1] = 4;
    CHECK_REFUSED(clip, RP_E_FORMAT, "more samples than the 6 of stsz");
    clip = simple_clip();
    clip.stts[0][0] = 5;
    CHECK_REFUSED(clip, RP_E_FORMAT, "stts times 5 samples, stsz has 6");
    clip.stts[0][0] = 7;
    CHECK_REFUSED(clip, RP_E_FORMAT, "stts times more samples");
    clip = simple_clip();
    clip.ctts_rows = 1;
    clip.ctts[0][0] = 4;
    CHECK_REFUSED(clip, RP_E_FORMAT, "ctts covers 4 samples");
    clip.ctts[0][0] = 8;
    CHECK_REFUSED(clip, RP_E_FORMAT, "ctts covers more");
    clip = simple_clip();
    clip.stss[1] = 7;
    CHECK_REFUSED(clip, RP_E_FORMAT, "stss names sample 7");
    clip.stss[1] = 1;
    CHECK_REFUSED(clip, RP_E_FORMAT, "stss names sample 1 after 1");
    clip = simple_clip();
    clip.stsc[0][0] = 0;
    CHECK_REFUSED(clip, RP_E_FORMAT, "stsc row 0");
    clip.stsc[0][0] = 2;
    CHECK_REFUSED(clip, RP_E_FORMAT, "stsc row 0: chunks 2 to 2 of 2");
    clip = simple_clip();
    clip.stsc[0][2] = 2;
    CHECK_REFUSED(clip, RP_E_FORMAT, "sample description 2");
    clip = simple_clip();
    clip.stts[0][1] = 1u << 31;
    CHECK_REFUSED(clip, RP_E_FORMAT, "duration of 2147483648 ticks");
    clip = simple_clip();
    clip.wide = true;
    clip.chunks[0] = 1ull << 63;
    CHECK_REFUSED(clip, RP_E_FORMAT, "chunk offset 9223372036854775808");
}

RP_TEST(empty_and_missing_things_are_refused)
{
    static const uint32_t one_empty[] = {10, 10, 0, 10, 10, 10};
    struct clip clip = simple_clip();
    clip.sizes = one_empty;
    CHECK_REFUSED(clip, RP_E_FORMAT, "sample 2 is empty");
    clip = simple_clip();
    clip.samples = 0;
    CHECK_REFUSED(clip, RP_E_FORMAT, "no samples");
    clip = simple_clip();
    clip.handler = "soun";
    CHECK_REFUSED(clip, RP_E_FORMAT, "no video track");
    clip = simple_clip();
    clip.timescale = 0;
    CHECK_REFUSED(clip, RP_E_FORMAT, "timescale 0 in mdhd");
    clip = simple_clip();
    clip.movie_timescale = 0;
    set_edit(&clip, 0, 600, 0);
    CHECK_REFUSED(clip, RP_E_FORMAT, "timescale 0 in mvhd");
    clip = simple_clip();
    clip.entries = 0;
    CHECK_REFUSED(clip, RP_E_FORMAT, "stsd");
    static const char *const types[] = {"mvhd", "mdhd", "stsd", "stts", "stsc", "stsz", "stco"};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        rp_index *index;
        clip = simple_clip();
        clip_moov(&moov, &clip);
        memcpy(moov.data + payload_of(&moov, types[i]) - 4, "free", 4);
        CHECK_STATUS(parse_bytes(&index), RP_E_FORMAT, &err);
        CHECK_CONTAINS(err.what, types[i]);
    }
    rp_index *index;
    CHECK_EQ(rp_index_parse((const uint8_t *)"", 0, 100, &index, NULL), RP_E_FORMAT);
    CHECK_EQ(rp_index_parse((const uint8_t *)"\0\0\0\x08mdat", 8, 100, &index, NULL), RP_E_FORMAT);
}

RP_TEST(boxes_that_come_twice_are_refused)
{
    struct clip clip = simple_clip();
    clip.extra_in_stbl = "stts";
    CHECK_REFUSED(clip, RP_E_FORMAT, "two boxes 'stts'");
    clip.extra_in_stbl = "co64"; /* beside stco */
    CHECK_REFUSED(clip, RP_E_FORMAT, "has both");
}

RP_TEST(other_layouts_are_refused)
{
    struct clip clip = simple_clip();
    clip.extra_in_moov = "mvex";
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "fragmented");
    clip.extra_in_moov = "cmov";
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "compressed");
    clip = simple_clip();
    clip.extra_in_stbl = "stz2";
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "stz2");
    clip = simple_clip();
    clip.entries = 2;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "2 sample descriptions");
    clip = simple_clip();
    clip.tracks = 2;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "more than one video track");
    clip = simple_clip();
    clip.dref_flags = 0;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "another file");
    clip = simple_clip();
    clip.version = 2;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "version 2");
}

RP_TEST(rotation_is_refused)
{
    struct clip clip = simple_clip();
    clip.matrix[0] = clip.matrix[3] = 0;
    clip.matrix[1] = 0x10000;
    clip.matrix[2] = 0xFFFF0000;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "rotated or mirrored video: tkhd matrix 0 1 -1 0");
    clip = simple_clip();
    clip.matrix[0] = clip.matrix[3] = 0xFFFF0000;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "rotated");
    clip.version = 1;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "tkhd matrix -1 0 0 -1");
}

RP_TEST(other_edits_are_refused)
{
    struct clip clip = simple_clip();
    set_edit(&clip, 0, 100, 0);
    set_edit(&clip, 1, 100, 300);
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "edit list of 2 entries");
    set_edit(&clip, 2, 100, 300);
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "edit list of 3 entries");
    set_edit(&clip, 0, 100, -1);
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "edit list of 1 entries");
    set_edit(&clip, 0, 100, -2);
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "edit list of 1 entries");
    set_edit(&clip, 0, 0, 0);
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "duration 0");
    set_edit(&clip, 0, 100, 0);
    clip.edits[0][2] = 0x20000;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "rate 2");
    clip.version = 1;
    set_edit(&clip, 0, INT64_MAX, 0);
    CHECK_REFUSED(clip, RP_E_FORMAT, "edit of 9223372036854775807 movie ticks");
    set_edit(&clip, 0, 100, INT64_MAX);
    CHECK_REFUSED(clip, RP_E_FORMAT, "edit starts at tick");
}

RP_TEST(limits_name_value_and_limit)
{
    static const uint32_t giant[] = {10, 10, (64 << 20) + 1, 10, 10, 10};
    struct clip clip = simple_clip();
    clip.sizes = giant;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "sample 2 has 67108865 bytes, the limit is 67108864");
    clip = simple_clip();
    clip.common_size = 1;
    clip.samples = (16 << 20) + 1;
    CHECK_REFUSED(clip, RP_E_UNSUPPORTED, "16777217 samples, the limit is 16777216");
    clip.samples = (1 << 20) + 1; /* no table: only the file's size bounds it */
    CHECK_REFUSED(clip, RP_E_FORMAT, "in a file of 1048576 bytes");
    rp_index *index = NULL;
    uint8_t *large = calloc(1, (64 << 20) + 1);
    rp_error_clear(&err);
    CHECK_STATUS(rp_index_parse(large, (64 << 20) + 1, 1 << 30, &index, &err), RP_E_UNSUPPORTED,
                 &err);
    CHECK_CONTAINS(err.what, "67108865 bytes, the limit is 67108864");
    free(large);
}

RP_TEST(deep_nesting_is_not_followed)
{
    struct clip clip = simple_clip();
    clip_moov(&moov, &clip);
    size_t whole = moov.len;
    size_t at[500];
    for (int i = 0; i < 500; i++) { /* inside moov, behind the track */
        at[i] = begin(&moov, "udta");
    }
    for (int i = 499; i >= 0; i--) {
        end(&moov, at[i]);
    }
    set32(&moov, 0, (uint32_t)moov.len);
    CHECK(moov.len > whole);
    rp_index *index;
    REQUIRE_OK(parse_bytes(&index), &err);
    rp_index_free(&index);
}

RP_TEST(every_cut_is_refused)
{
    struct clip clip = simple_clip();
    clip_moov(&moov, &clip);
    size_t whole = moov.len;
    for (size_t len = 0; len < whole; len++) {
        rp_index *index;
        moov.len = len;
        CHECK_STATUS(parse_bytes(&index), RP_E_FORMAT, &err);
    }
}

RP_TEST(every_flipped_bit_is_read_or_refused)
{
    struct clip clip = simple_clip();
    set_edit(&clip, 0, 600, 0);
    clip_moov(&moov, &clip);
    for (size_t bit = 0; bit < moov.len * 8; bit++) {
        rp_index *index;
        moov.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        rp_status status = parse_bytes(&index);
        CHECK(status == RP_OK || status == RP_E_FORMAT || status == RP_E_UNSUPPORTED);
        CHECK_EQ(status == RP_OK, index != NULL);
        CHECK_EQ(status == RP_OK, err.what[0] == '\0');
        rp_index_free(&index);
        moov.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

static void parse_under_fault(void *arg)
{
    rp_index *index = NULL;
    rp_error_clear(&err);
    rp_status status = rp_index_parse(moov.data, moov.len, 1 << 20, &index, &err);
    CHECK(status == RP_OK || status == RP_E_NOMEM);
    CHECK_EQ(status == RP_OK, index != NULL);
    rp_index_free(&index);
    (void)arg;
}

RP_TEST(lack_of_memory_leaks_nothing)
{
    struct clip clip = simple_clip();
    clip.ctts_rows = 1;
    clip.ctts[0][0] = 6;
    clip.ctts[0][1] = 5;
    clip_moov(&moov, &clip);
    int runs = rp_fault_sweep((struct rp_fault){.calls = RP_FAULT_MEMORY}, parse_under_fault, NULL);
    CHECK(runs >= 8);
}
