/* For the loader's tests: the right pictures of the demo data set, by a plain sequential decode
 * outside the loader. Included once per program. */
#ifndef RP_TESTS_LOADER_REFERENCE_H
#define RP_TESTS_LOADER_REFERENCE_H

#include "decode/decode.h"
#include "loader_demo.h"

static uint64_t hash_bytes(const uint8_t *data, size_t len)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = 0;
        memcpy(&word, data + i, len - i < 8 ? len - i : 8);
        hash = (hash ^ word) * 1099511628211u;
        hash ^= hash >> 29;
    }
    return hash;
}

static size_t picture_bytes(int camera)
{
    return camera == 0 ? FRONT : WRIST;
}

static uint64_t reference[2][ROWS]; /* hash of the row's picture; 0: not made yet */

/* Rows whose picture of camera c is shown at the frame's time: its pts, in tenths of a second. */
static void record_picture(const struct demo *d, int c, int file, double time, uint64_t hash)
{
    for (int k = 0; k < RUNS; k++) {
        for (int64_t row = d->run_first[k]; row < d->run_first[k + 1]; row++) {
            double at = d->run_start[c][k] + (double)(row - d->run_first[k]) / 10.0;
            if (d->run_file[c][k] == file && fabs(at - time) < 0.01) {
                reference[c][row] = hash;
            }
        }
    }
}

static void take_pictures(const struct demo *d, int file, rp_decoder *decoder, rp_index *index,
                          rp_scratch *scratch, uint8_t *pixels)
{
    rp_frame *frame = NULL;
    struct rp_error err;
    rp_error_clear(&err);
    while (rp_decoder_receive(decoder, &frame, &err) == RP_OK) {
        const struct rp_image *image = rp_frame_image(frame);
        struct rp_target target = {.data = pixels,
                                   .type = RP_PIXEL_U8,
                                   .width = image->width,
                                   .height = image->height,
                                   .row_stride = image->width,
                                   .plane_stride = image->width * image->height};
        (void)CHECK_OK(rp_convert(image, &target, scratch, &err), &err);
        double time = (double)rp_frame_pts(frame) / rp_index_timescale(index);
        record_picture(d, file / 2, file, time, hash_bytes(pixels, picture_bytes(file / 2)));
        rp_frame_unref(&frame);
    }
}

static void decode_file(const struct demo *d, int file, rp_scratch *scratch, uint8_t *pixels)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_files *files = NULL;
    rp_index *index = NULL;
    rp_decoder_cache *cache = NULL;
    rp_decoder *decoder = NULL;
    size_t len = 0;
    uint8_t *bytes = rp_read_file(d->paths[file], &len);
    REQUIRE(bytes != NULL);
    REQUIRE_OK(rp_files_new(d->paths, FILES, 2, &files, &err), &err);
    REQUIRE_OK(rp_video_index_read(files, file, &index, NULL, &err), &err);
    REQUIRE_OK(rp_decoder_cache_new(1, &cache, &err), &err);
    for (int64_t i = 0; i < rp_index_samples(index); i++) {
        struct rp_sample sample;
        rp_index_sample(index, i, &sample);
        struct rp_packet packet = {.data = bytes + sample.offset,
                                   .len = sample.size,
                                   .pts = sample.pts,
                                   .dts = sample.dts,
                                   .key = sample.key,
                                   .wanted = true};
        if (decoder == NULL) {
            REQUIRE_OK(rp_decoder_cache_get(cache, rp_index_codec(index), &packet, &decoder, &err),
                       &err);
        }
        REQUIRE_OK(rp_decoder_send(decoder, &packet, &err), &err);
        take_pictures(d, file, decoder, index, scratch, pixels);
    }
    REQUIRE_OK(rp_decoder_drain(decoder, &err), &err);
    take_pictures(d, file, decoder, index, scratch, pixels);
    rp_decoder_cache_free(&cache);
    rp_index_free(&index);
    rp_files_free(&files);
    free(bytes);
}

/* Decode all files once per program, outside the loader. */
static void need_reference(void)
{
    if (reference[0][0] != 0) {
        return;
    }
    static struct demo d;
    demo_init(&d);
    rp_scratch *scratch = NULL;
    REQUIRE_OK(rp_scratch_new(&scratch, NULL), NULL);
    uint8_t *pixels = rp_calloc(FRONT, 1);
    REQUIRE(pixels != NULL);
    for (int file = 0; file < FILES; file++) {
        decode_file(&d, file, scratch, pixels);
    }
    rp_free(pixels);
    rp_scratch_free(&scratch);
    for (int64_t row = 0; row < ROWS; row++) {
        REQUIRE(reference[0][row] != 0 && reference[1][row] != 0);
    }
}

#endif
