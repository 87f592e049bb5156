/* For the loader's tests: the demo data set as a descriptor, its right pictures by a plain
 * sequential decode, and checks of whole batches. Included once per program, after harness.h. */
#ifndef RP_TESTS_LOADER_FIXTURE_H
#define RP_TESTS_LOADER_FIXTURE_H

#include "base/thread.h"
#include "decode/decode.h"
#include "harness.h"
#include "pool/pool.h"

#include <unistd.h>

#define DEMO "python/reelpool/_demo/dataset/videos/observation.images."

enum { ROWS = 184, RUNS = 4, FILES = 4 };
enum { FRONT = 3 * 320 * 240, WRIST = 3 * 192 * 144 }; /* bytes of a picture */

#define SLICE_NS 50000000LL
#define STALL_NS 120000000000LL

static const int64_t no_delta[1] = {0};

/* A descriptor with all that it points to; tests change it before they open a loader. */
struct demo {
    struct rp_dataset_desc desc;
    struct rp_camera camera[2];
    struct rp_column column[1];
    struct rp_pad pad[2];
    int32_t run_file[2][RUNS];
    double run_start[2][RUNS];
    int64_t run_first[RUNS + 1], run_episode[RUNS], row_index[ROWS];
    float timestamp[ROWS];
    int64_t value[ROWS]; /* the column's: row * 7 + 3 */
    const char *paths[FILES];
};

static void demo_init(struct demo *d)
{
    static const int64_t first[RUNS + 1] = {0, 48, 92, 144, ROWS};
    static const int32_t file[2][RUNS] = {{0, 0, 1, 1}, {2, 2, 2, 3}};
    static const double start[2][RUNS] = {{0.0, 4.8, 0.0, 5.2}, {0.0, 4.8, 9.2, 0.0}};
    static const char *const path[FILES] = {
        DEMO "front/chunk-000/file-000.mp4", DEMO "front/chunk-000/file-001.mp4",
        DEMO "wrist/chunk-000/file-000.mp4", DEMO "wrist/chunk-000/file-001.mp4"};
    static const char *const key[2] = {"front", "wrist"};
    const struct rp_window plain = {no_delta, 1};
    memset(d, 0, sizeof(*d));
    memcpy(d->run_first, first, sizeof(first));
    memcpy(d->run_file, file, sizeof(file));
    memcpy(d->run_start, start, sizeof(start));
    memcpy(d->paths, path, sizeof(path));
    for (int k = 0; k < RUNS; k++) {
        d->run_episode[k] = 10 + k;
        for (int64_t row = first[k]; row < first[k + 1]; row++) {
            d->row_index[row] = 1000 + row;
            d->timestamp[row] = (float)(row - first[k]) / 10.0f;
            d->value[row] = row * 7 + 3;
        }
    }
    for (int c = 0; c < 2; c++) {
        d->camera[c] = (struct rp_camera){.key = key[c],
                                          .window = plain,
                                          .height = c == 0 ? 240 : 144,
                                          .width = c == 0 ? 320 : 192,
                                          .channels = 3,
                                          .type = RP_PIXEL_U8,
                                          .run_file = d->run_file[c],
                                          .run_start = d->run_start[c]};
        d->pad[c].window = plain;
    }
    d->column[0] = (struct rp_column){
        .window = plain, .data = (const uint8_t *)d->value, .row_bytes = sizeof(int64_t)};
    d->desc = (struct rp_dataset_desc){.paths = d->paths,
                                       .n_files = FILES,
                                       .n_rows = ROWS,
                                       .n_runs = RUNS,
                                       .run_first = d->run_first,
                                       .run_episode = d->run_episode,
                                       .row_index = d->row_index,
                                       .timestamp = d->timestamp,
                                       .tolerance = 0.01,
                                       .camera = d->camera,
                                       .n_cameras = 2,
                                       .column = d->column,
                                       .n_columns = 1,
                                       .pad = d->pad,
                                       .n_pads = 2};
}

static RP_UNUSED struct rp_loader_options demo_options(int threads, int prefetch)
{
    return (struct rp_loader_options){.num_threads = threads,
                                      .prefetch_batches = prefetch,
                                      .keep_bytes = (size_t)1 << 40,
                                      .index_bytes = (size_t)1 << 30,
                                      .max_decoders = 4};
}

static RP_UNUSED rp_loader *open_loader(const struct demo *d, struct rp_loader_options options)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_loader *loader = NULL;
    REQUIRE_OK(rp_loader_new(&d->desc, &options, &loader, &err), &err);
    return loader;
}

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
        struct rp_target target = {.data = pixels, .type = RP_PIXEL_U8, .width = image->width,
                                   .height = image->height, .row_stride = image->width,
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
        struct rp_packet packet = {.data = bytes + sample.offset, .len = sample.size,
                                   .pts = sample.pts, .dts = sample.dts, .key = sample.key,
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

/* Next batch of the stream, however many slices it takes. */
static RP_UNUSED rp_status next_batch(rp_loader *loader, rp_batch **out, struct rp_error *err)
{
    rp_status status;
    rp_error_clear(err);
    do {
        status = rp_loader_next(loader, SLICE_NS, STALL_NS, out, err);
    } while (status == RP_AGAIN);
    return status;
}

static RP_UNUSED rp_status take_ticket(rp_loader *loader, uint64_t ticket, rp_batch **out,
                                       struct rp_error *err)
{
    rp_status status;
    rp_error_clear(err);
    do {
        status = rp_loader_take(loader, ticket, SLICE_NS, STALL_NS, out, err);
    } while (status == RP_AGAIN);
    return status;
}

/* The row of a window step by the rule in words: shifted, kept inside its episode. */
static int64_t step_row(const struct demo *d, int64_t row, int64_t delta, bool *outside)
{
    int k = 0;
    while (d->run_first[k + 1] <= row) {
        k++;
    }
    int64_t first = d->run_first[k], last = d->run_first[k + 1] - 1;
    if (delta < first - row) {
        *outside = true;
        return first;
    }
    *outside = delta > last - row;
    return *outside ? last : row + delta;
}

/* Everything a batch of these rows must hold. */
static RP_UNUSED bool check_batch(const struct demo *d, const rp_batch *batch, const int64_t *rows,
                                  int64_t n)
{
    bool outside, good = CHECK_EQ(batch->n, n);
    const size_t *offset = batch->field_offset;
    for (int64_t i = 0; i < n && good; i++) {
        good = CHECK_EQ(batch->rows[i], rows[i]);
        int field = 0;
        for (int c = 0; c < d->desc.n_cameras && good; c++, field++) {
            const struct rp_window *w = &d->camera[c].window;
            for (int s = 0; s < w->n && good; s++) {
                const uint8_t *at = batch->block->data + offset[field] +
                                    (size_t)(i * w->n + s) * picture_bytes(c);
                int64_t row = step_row(d, rows[i], w->delta[s], &outside);
                good = CHECK(hash_bytes(at, picture_bytes(c)) == reference[c][row]);
            }
        }
        const struct rp_window *w = &d->column[0].window;
        for (int s = 0; s < w->n && good; s++) {
            int64_t got;
            memcpy(&got, batch->block->data + offset[field] + (size_t)(i * w->n + s) * 8, 8);
            good = CHECK_EQ(got, d->value[step_row(d, rows[i], w->delta[s], &outside)]);
        }
        field++;
        for (int p = 0; p < d->desc.n_pads && good; p++, field++) {
            w = &d->pad[p].window;
            for (int s = 0; s < w->n && good; s++) {
                (void)step_row(d, rows[i], w->delta[s], &outside);
                good = CHECK_EQ(batch->block->data[offset[field] + (size_t)(i * w->n + s)],
                                outside);
            }
        }
    }
    return good;
}

/* A whole stream checked batch by batch; every batch is given back at once. */
static RP_UNUSED void check_stream(const struct demo *d, rp_loader *loader, const int64_t *rows,
                                   int64_t count, int64_t size, bool drop_last)
{
    struct rp_error err;
    rp_error_clear(&err);
    REQUIRE_OK(rp_loader_begin(loader, rows, count, size, drop_last, &err), &err);
    int64_t at = 0;
    rp_batch *batch = NULL;
    rp_status status;
    while ((status = next_batch(loader, &batch, &err)) == RP_OK) {
        int64_t n = count - at < size ? count - at : size;
        (void)CHECK_EQ(batch->position, at);
        bool good = check_batch(d, batch, rows + at, n);
        rp_batch_free(&batch);
        REQUIRE(good);
        at += n;
    }
    (void)CHECK_STATUS(status, RP_END, &err);
    (void)CHECK_EQ(at, drop_last ? count / size * size : count);
}

/* Rows in a fixed disorder with repeats. */
static RP_UNUSED void mixed_rows(int64_t *rows, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        rows[i] = (int64_t)(seed >> 33) % ROWS;
    }
}

#endif
