#include "pool/sums.h"

#include "base/memory.h"
#include "decode/decode.h"

#include <stdlib.h>

#define ALONE 64 /* pictures of a failing run that are tried by themselves */

struct picture {
    int64_t sample; /* decode index */
    int64_t pts;    /* ticks */
    bool got;
};

/* The pictures that start at one key. */
struct group {
    rp_files *files;
    int file;
    const rp_index *index;
    rp_decoder_cache *decoders;
    rp_decoder *decoder;
    uint8_t *bytes;
    size_t cap_bytes;
    int64_t key, last;       /* decode index of the start key, of the last picture */
    struct picture *picture; /* by pts */
    int64_t n, cap;
    int64_t failed_at; /* packet at which the run ended, -1: none */
};

static bool is_content(rp_status status)
{
    return status == RP_E_DECODE || status == RP_E_FORMAT || status == RP_E_UNSUPPORTED;
}

static rp_status add_bad(struct rp_picture_check *check, int64_t sample, const struct rp_error *why,
                         struct rp_error *err)
{
    if (check->n_bad == check->cap_bad) {
        int64_t cap = check->cap_bad + check->cap_bad / 2 + 16;
        struct rp_bad_picture *grown = rp_realloc(check->bad, (size_t)cap, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld faults", (long long)cap);
        }
        check->bad = grown;
        check->cap_bad = cap;
    }
    check->bad[check->n_bad++] = (struct rp_bad_picture){.sample = sample, .error = *why};
    return RP_OK;
}

static int by_pts(const void *a, const void *b)
{
    const struct picture *x = a, *y = b;
    return x->pts < y->pts ? -1 : x->pts > y->pts;
}

/* The picture of this pts, or NULL. */
static struct picture *find(const struct group *g, int64_t pts)
{
    struct picture key = {.pts = pts};
    return g->n == 0 ? NULL : bsearch(&key, g->picture, (size_t)g->n, sizeof(*g->picture), by_pts);
}

static rp_status add_picture(struct group *g, const struct rp_sample *sample, int64_t i,
                             struct rp_error *err)
{
    if (g->n == g->cap) {
        int64_t cap = g->cap + g->cap / 2 + 64;
        struct picture *grown = rp_realloc(g->picture, (size_t)cap, sizeof(*grown));
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld pictures", (long long)cap);
        }
        g->picture = grown;
        g->cap = cap;
    }
    g->picture[g->n++] = (struct picture){.sample = i, .pts = sample->pts};
    g->last = i > g->last ? i : g->last;
    return RP_OK;
}

/* First sample after i that is a key, or the number of samples. */
static int64_t next_key(const rp_index *index, int64_t i)
{
    struct rp_sample sample;
    for (i++; i < rp_index_samples(index); i++) {
        rp_index_sample(index, i, &sample);
        if (sample.key) {
            break;
        }
    }
    return i;
}

/* Gather the pictures whose start key is g->key: of its own group, [key, next), and those of the
 * group after it that are shown before that one's key. What has no start key is bad. */
static rp_status gather(struct group *g, int64_t next, struct rp_picture_check *check,
                        struct rp_error *err)
{
    int64_t end = next < rp_index_samples(g->index) ? next_key(g->index, next) : next;
    g->n = 0;
    g->last = g->key;
    for (int64_t i = g->key; i < end; i++) {
        struct rp_sample sample;
        rp_index_sample(g->index, i, &sample);
        if (!sample.addressable) {
            continue;
        }
        int64_t key;
        struct rp_error why;
        rp_error_clear(&why);
        rp_status status = rp_index_start_key(g->index, i, &key, &why);
        if (status == RP_OK && key == g->key) {
            RP_TRY(add_picture(g, &sample, i, err));
        }
        else if (status != RP_OK && i < next) {
            check->pictures++;
            RP_TRY(add_bad(check, i, &why, err));
        }
    }
    check->pictures += g->n;
    if (g->n > 0) {
        qsort(g->picture, (size_t)g->n, sizeof(*g->picture), by_pts);
    }
    return RP_OK;
}

static rp_status receive(struct group *g, struct rp_error *err)
{
    for (;;) {
        rp_frame *frame = NULL;
        rp_status status = rp_decoder_receive(g->decoder, &frame, err);
        if (status == RP_AGAIN || status == RP_END) {
            return RP_OK;
        }
        if (status != RP_OK) {
            return status;
        }
        struct picture *picture = find(g, rp_frame_pts(frame));
        if (picture != NULL) {
            picture->got = true;
        }
        rp_frame_unref(&frame);
    }
}

static rp_status send_packet(struct group *g, int64_t i, int64_t only, const uint8_t *data,
                             struct rp_error *err)
{
    struct rp_sample sample;
    rp_index_sample(g->index, i, &sample);
    const struct picture *picture = find(g, sample.pts);
    struct rp_packet packet = {.data = data,
                               .len = sample.size,
                               .pts = sample.pts,
                               .dts = sample.dts,
                               .key = sample.key,
                               .wanted = only < 0 ? picture != NULL : i == only};
    rp_status status = RP_OK;
    if (g->decoder == NULL) {
        status =
            rp_decoder_cache_get(g->decoders, rp_index_codec(g->index), &packet, &g->decoder, err);
    }
    if (status == RP_OK) {
        status = rp_decoder_send(g->decoder, &packet, err);
    }
    if (status == RP_AGAIN) {
        status = rp_error_set(err, RP_E_DECODE, "the decoder takes no packet and gives no picture");
    }
    if (status == RP_OK) {
        status = receive(g, err);
    }
    if (status != RP_OK) {
        g->failed_at = i;
        rp_error_at_file(err, rp_files_path(g->files, g->file), sample.offset, sample.size);
    }
    return status;
}

/* Bytes of samples from `at` on, as many as one read gives: up to *covered. */
static rp_status read_part(struct group *g, int64_t at, int64_t last, int64_t *covered,
                           int64_t *offset, struct rp_error *err)
{
    struct rp_byte_range range;
    rp_status status = rp_index_range(g->index, at, last, covered, &range, err);
    if (status != RP_OK) {
        g->failed_at = at;
        return status;
    }
    if ((size_t)range.len > g->cap_bytes) {
        uint8_t *grown = rp_realloc(g->bytes, (size_t)range.len, 1);
        if (grown == NULL) {
            RP_FAIL(err, RP_E_NOMEM, "out of memory for %lld bytes of video", (long long)range.len);
        }
        g->bytes = grown;
        g->cap_bytes = (size_t)range.len;
    }
    *offset = range.offset;
    return rp_files_read(g->files, g->file, range.offset, range.len, g->bytes, err);
}

/* Send key..last and drain; `only` >= 0: that picture alone is wanted. */
static rp_status decode_group(struct group *g, int64_t last, int64_t only, struct rp_error *err)
{
    g->decoder = NULL;
    g->failed_at = -1;
    for (int64_t at = g->key; at <= last;) {
        int64_t covered, offset = 0;
        RP_TRY(read_part(g, at, last, &covered, &offset, err));
        for (; at <= covered; at++) {
            struct rp_sample sample;
            rp_index_sample(g->index, at, &sample);
            RP_TRY(send_packet(g, at, only, g->bytes + (sample.offset - offset), err));
        }
    }
    rp_status status = rp_decoder_drain(g->decoder, err);
    return status == RP_OK ? receive(g, err) : status;
}

/* A picture that a failing run did not give, by itself. */
static rp_status judge(struct group *g, struct picture *picture, const struct rp_error *failure,
                       int tried, struct rp_picture_check *check, struct rp_error *err)
{
    struct rp_error why = *failure;
    if (tried < ALONE) {
        rp_error_clear(&why);
        rp_status status = decode_group(g, picture->sample, picture->sample, &why);
        if (status != RP_OK && !is_content(status)) {
            *err = why;
            return status;
        }
        if (picture->got) {
            return RP_OK;
        }
    }
    if (why.code == RP_OK) {
        struct rp_sample sample;
        rp_index_sample(g->index, picture->sample, &sample);
        (void)rp_error_set(&why, RP_E_DECODE, "the decoder does not return the picture"); /* kept */
        rp_error_at_file(&why, rp_files_path(g->files, g->file), sample.offset, sample.size);
    }
    return add_bad(check, picture->sample, &why, err);
}

static rp_status check_group(struct group *g, struct rp_picture_check *check, struct rp_error *err)
{
    if (g->n == 0) {
        return RP_OK;
    }
    struct rp_error failure, again;
    rp_error_clear(&failure);
    rp_status status = decode_group(g, g->last, -1, &failure);
    if (status != RP_OK && is_content(status) && g->failed_at > g->key) {
        rp_error_clear(&again); /* what comes before the bad packet: one run for all of it */
        rp_status before = decode_group(g, g->failed_at - 1, -1, &again);
        if (before != RP_OK && !is_content(before)) {
            *err = again;
            return before;
        }
    }
    if (status != RP_OK && !is_content(status)) {
        *err = failure;
        return status;
    }
    int tried = 0;
    for (int64_t i = 0; i < g->n; i++) {
        if (!g->picture[i].got) {
            RP_TRY(judge(g, &g->picture[i], &failure, tried++, check, err));
        }
    }
    return RP_OK;
}

bool rp_video_has_strict(enum rp_codec codec)
{
    return rp_decode_has_strict(codec);
}

rp_status rp_video_check_pictures(rp_files *files, int i, const rp_index *index, int64_t first,
                                  int64_t end, bool strict, struct rp_picture_check *check,
                                  struct rp_error *err)
{
    struct group g = {.files = files, .file = i, .index = index};
    RP_TRY(strict ? rp_decoder_cache_new_strict(1, &g.decoders, err)
                  : rp_decoder_cache_new(1, &g.decoders, err));
    rp_status status = RP_OK;
    g.key = first == 0 ? 0 : next_key(index, first - 1);
    while (status == RP_OK && g.key < end && g.key < rp_index_samples(index)) {
        int64_t next = next_key(index, g.key);
        status = gather(&g, next, check, err);
        if (status == RP_OK) {
            status = check_group(&g, check, err);
        }
        g.key = next;
    }
    rp_decoder_cache_free(&g.decoders);
    rp_free(g.bytes);
    rp_free(g.picture);
    return status;
}

void rp_picture_check_free(struct rp_picture_check *check)
{
    if (check != NULL) {
        rp_free(check->bad);
        *check = (struct rp_picture_check){0};
    }
}
