/* What must hold of every concatenation: reading the new moov back gives the sources' samples. */
#ifndef RP_TESTS_CONCAT_ORACLE_H
#define RP_TESTS_CONCAT_ORACLE_H

#include "base/memory.h"
#include "demux/mp4_write.h"

#include <stdbool.h>
#include <string.h>

/* The index of the file that the plan describes, from its head alone; NULL if it has none. */
static inline rp_index *concat_index(const rp_concat *plan)
{
    size_t len;
    const uint8_t *head = rp_concat_head(plan, &len);
    struct rp_moov_search search = {0};
    struct rp_byte_range need, moov;
    rp_index *index = NULL;
    if (rp_moov_find(&search, head, 0, len, rp_concat_bytes(plan), &need, &moov, NULL) != RP_OK ||
        rp_index_parse(head + moov.offset, (size_t)moov.len, rp_concat_bytes(plan), &index, NULL) !=
            RP_OK) {
        return NULL;
    }
    return index;
}

/* Do the plan's ranges hold the bytes of sample `want` of source `source` next? */
static inline bool concat_takes(const rp_concat *plan, size_t *range, int64_t *used, int source,
                                const struct rp_sample *want)
{
    size_t count;
    const struct rp_concat_range *ranges = rp_concat_ranges(plan, &count);
    if (*range < count && *used == ranges[*range].bytes.len) {
        ++*range;
        *used = 0;
    }
    if (*range == count || ranges[*range].source != source ||
        ranges[*range].bytes.offset + *used != want->offset ||
        ranges[*range].bytes.len - *used < want->size) {
        return false;
    }
    *used += want->size;
    return true;
}

/* One source's part of the output; *at is its first sample there. */
static inline const char *concat_part_fault(const rp_concat *plan, const rp_index *index,
                                            const rp_index *source, int s, int64_t *at,
                                            int64_t *offset, size_t *range, int64_t *used)
{
    int parts;
    const struct rp_concat_part *part = rp_concat_parts(plan, &parts) + s;
    int64_t scale = rp_concat_timescale(plan) / rp_index_timescale(source);
    int64_t shown = 0;
    for (int64_t i = 0; i < rp_index_samples(source); i++, ++*at) {
        struct rp_sample want, got;
        rp_index_sample(source, i, &want);
        rp_index_sample(index, *at, &got);
        if (got.size != want.size || got.key != want.key || got.offset != *offset) {
            return "size, key flag or place of a sample";
        }
        if (got.pts != part->offset - part->start + want.pts * scale) {
            return "time of a picture";
        }
        if (!got.addressable || got.dts > got.pts) {
            return "a picture that no time names";
        }
        if (!concat_takes(plan, range, used, s, &want)) {
            return "bytes to copy";
        }
        shown += want.addressable;
        *offset += want.size;
        if (want.addressable && rp_index_samples(source) <= 4096) { /* a search may be slow */
            int64_t key = *at, want_key = i;
            rp_status found = rp_index_start_key(source, i, &want_key, NULL);
            if (rp_index_start_key(index, *at, &key, NULL) != found || key - *at != want_key - i) {
                return "another start key";
            }
        }
    }
    return part->frames == shown && part->duration > 0 ? NULL : "frames or duration of a source";
}

/* Does the head end with that of an mdat which reaches to the end of the file? */
static inline bool concat_ends_in_mdat(const rp_concat *plan)
{
    size_t len;
    const uint8_t *head = rp_concat_head(plan, &len);
    struct rp_moov_search search = {0};
    struct rp_byte_range need, moov;
    if (rp_moov_find(&search, head, 0, len, rp_concat_bytes(plan), &need, &moov, NULL) != RP_OK) {
        return false;
    }
    const uint8_t *mdat = head + moov.offset + moov.len;
    uint64_t size = 0;
    for (size_t i = 0; i < (head + len - mdat == 16 ? 8 : 4); i++) {
        size = size << 8 | mdat[i + (head + len - mdat == 16 ? 8 : 0)];
    }
    return memcmp(mdat + 4, "mdat", 4) == 0 &&
           size == (uint64_t)(rp_concat_bytes(plan) - moov.offset - moov.len);
}

/* NULL, or what is wrong with a finished plan of these sources (parsed a second time). */
static inline const char *concat_fault(const rp_concat *plan, rp_index *const *sources, int n)
{
    rp_index *index = concat_index(plan);
    if (index == NULL) {
        return "the moov is refused";
    }
    if (!concat_ends_in_mdat(plan)) {
        rp_index_free(&index);
        return "size of mdat";
    }
    size_t head, range = 0, ranges;
    (void)rp_concat_head(plan, &head);
    int64_t at = 0, offset = (int64_t)head, used = 0;
    const char *fault = NULL;
    for (int s = 0; s < n && fault == NULL; s++) {
        if (at + rp_index_samples(sources[s]) > rp_index_samples(index)) {
            fault = "fewer samples than the sources";
            break;
        }
        fault = concat_part_fault(plan, index, sources[s], s, &at, &offset, &range, &used);
    }
    const struct rp_concat_range *list = rp_concat_ranges(plan, &ranges);
    if (fault == NULL && (at != rp_index_samples(index) || offset != rp_concat_bytes(plan) ||
                          range + 1 != ranges || used != list[range].bytes.len)) {
        fault = "more than the sources";
    }
    const struct rp_codec_params *codec = rp_index_codec(index);
    if (fault == NULL && codec->hash != rp_index_codec(sources[0])->hash) {
        fault = "codec parameters";
    }
    rp_index_free(&index);
    return fault;
}

#endif
