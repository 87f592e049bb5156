/* For the loader's tests: the demo data set as a descriptor. Included once per program. */
#ifndef RP_TESTS_LOADER_DEMO_H
#define RP_TESTS_LOADER_DEMO_H

#include "harness.h"
#include "pool/pool.h"

#include <unistd.h>

#define DEMO "python/reelpool/_demo/dataset/videos/observation.images."

enum { ROWS = 184, RUNS = 4, FILES = 4 };
enum { FRONT = 3 * 320 * 240, WRIST = 3 * 192 * 144 }; /* bytes of a picture */

static const int64_t no_delta[1] = {0};
static const double demo_tolerance[1] = {0.01};

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
                                       .tolerance = demo_tolerance,
                                       .n_sets = 1,
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

static RP_UNUSED rp_status begin_rows(rp_loader *loader, const int64_t *rows, int64_t count,
                                      int64_t batch, bool drop_last, struct rp_error *err)
{
    rp_feed *feed = NULL;
    RP_TRY(rp_feed_new_rows(rows, count, batch, drop_last, &feed, err));
    return rp_loader_begin(loader, &feed, 0, err);
}

#endif
