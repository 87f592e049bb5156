/* A loader that compares what it reads with check sums: right batches, refused packets, threads. */
#include "loader_fixture.h"

#include "base/crc32c.h"
#include "demux/index_sidecar.h"
#include "pool/sums.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], places[FILES][96];
static const char *sums[FILES];

/* Sums of the demo's files in a folder of their own; sum `flip` of file 0 is made wrong. */
static void make_sums(struct demo *d, int64_t flip)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_files *files = NULL;
    snprintf(folder, sizeof(folder), "/tmp/rp_test_reading_XXXXXX");
    REQUIRE(mkdtemp(folder) != NULL);
    REQUIRE_OK(rp_files_new(d->paths, FILES, 4, &files, &err), &err);
    for (int i = 0; i < FILES; i++) {
        rp_buf *buf = NULL, *made = NULL;
        struct rp_sidecar got;
        REQUIRE_OK(rp_video_sums(files, i, d->paths[i], &buf, &err), &err);
        REQUIRE_OK(rp_sidecar_parse(buf->data, buf->len, &got, &err), &err);
        uint32_t *values = calloc((size_t)got.samples, sizeof(*values));
        for (int64_t k = 0; k < got.samples; k++) {
            values[k] = rp_sidecar_sum(&got, k) ^ (i == 0 && k == flip);
        }
        REQUIRE_OK(rp_sidecar_write(&got, values, &made, &err), &err);
        snprintf(places[i], sizeof(places[i]), "%s/%d", folder, i);
        FILE *file = fopen(places[i], "wb");
        REQUIRE(file != NULL && fwrite(made->data, 1, made->len, file) == made->len);
        (void)fclose(file);
        sums[i] = places[i];
        free(values);
        rp_buf_unref(&made);
        rp_buf_unref(&buf);
    }
    rp_files_free(&files);
    d->desc.sums = sums;
}

static void drop_sums(void)
{
    for (int i = 0; i < FILES; i++) {
        (void)unlink(places[i]);
    }
    (void)rmdir(folder);
}

static void all_rows(int64_t rows[ROWS])
{
    for (int64_t i = 0; i < ROWS; i++) {
        rows[i] = i;
    }
}

RP_TEST(right_sums_change_nothing_but_the_count)
{
    struct demo d;
    need_reference();
    demo_init(&d);
    make_sums(&d, -1);
    int64_t rows[2 * ROWS];
    mixed_rows(rows, 2 * ROWS, 5);
    for (int threads = 0; threads < 3; threads++) {
        for (int small = 0; small < 2; small++) { /* indexes and their sums come and go */
            struct rp_loader_options options = demo_options(threads, 2);
            options.index_bytes = small ? 1 : options.index_bytes;
            rp_loader *loader = open_loader(&d, options);
            check_stream(&d, loader, rows, 2 * ROWS, 16, false);
            struct rp_loader_stats stats;
            rp_loader_stats(loader, &stats);
            (void)CHECK(stats.counters.checked >= stats.counters.decoded);
            (void)CHECK_EQ(stats.counters.sums_stale, 0);
            rp_loader_close(&loader);
        }
    }
    drop_sums();
}

RP_TEST(sums_count_as_index_bytes)
{
    struct demo d;
    need_reference();
    demo_init(&d);
    int64_t rows[ROWS], bytes[2];
    all_rows(rows);
    for (int with = 0; with < 2; with++) {
        if (with) {
            make_sums(&d, -1);
        }
        rp_loader *loader = open_loader(&d, demo_options(1, 1));
        check_stream(&d, loader, rows, ROWS, 46, false);
        struct rp_loader_stats stats;
        rp_loader_stats(loader, &stats);
        bytes[with] = stats.index_bytes;
        rp_loader_close(&loader);
    }
    (void)CHECK_EQ(bytes[1] - bytes[0], 4 * 2 * ROWS); /* two cameras, a picture per row */
    drop_sums();
}

RP_TEST(a_packet_that_differs_is_refused_and_named)
{
    struct demo d;
    need_reference();
    demo_init(&d);
    make_sums(&d, 20);
    struct rp_error err;
    int refused = 0;
    for (int threads = 0; threads < 3; threads += 2) {
        rp_loader *loader = open_loader(&d, demo_options(threads, 2));
        for (int64_t row = 12; row < 32; row++) {
            uint64_t ticket;
            rp_batch *batch = NULL;
            rp_error_clear(&err);
            REQUIRE_OK(rp_loader_submit(loader, &row, NULL, 1, &ticket, &err), &err);
            rp_status status = take_ticket(loader, ticket, &batch, &err);
            if (status == RP_OK) {
                (void)CHECK(row != 20 && check_batch(&d, batch, &row, 1));
                rp_batch_free(&batch);
                continue;
            }
            refused++;
            (void)CHECK_EQ(status, RP_E_DECODE);
            (void)CHECK_CONTAINS(err.what, "checksum differs");
            (void)CHECK_STR(err.file, d.paths[0]);
            (void)CHECK(err.offset > 0 && err.length > 0);
            (void)CHECK_EQ(err.frame, row);
        }
        rp_loader_close(&loader);
    }
    (void)CHECK(refused >= 2 && refused <= 8);
    drop_sums();
}

RP_TEST(damaged_sums_and_none_are_no_sums)
{
    struct demo d;
    need_reference();
    demo_init(&d);
    make_sums(&d, -1);
    (void)unlink(places[1]);
    FILE *file = fopen(places[2], "r+b");
    REQUIRE(file != NULL);
    (void)fputs("damaged", file);
    (void)fclose(file);
    int64_t rows[ROWS];
    all_rows(rows);
    rp_loader *loader = open_loader(&d, demo_options(2, 2));
    check_stream(&d, loader, rows, ROWS, 16, false);
    struct rp_loader_stats stats;
    rp_loader_stats(loader, &stats);
    (void)CHECK_EQ(stats.counters.sums_stale, 1);
    (void)CHECK(stats.counters.checked > 0 && stats.counters.checked < 2 * ROWS);
    rp_loader_close(&loader);
    drop_sums();
}
