/* Prints the index of an MP4 file: a line of facts, then one line per sample in decode order. Exit
 * status 1 and "CODE what" on stderr when the file is refused. For test_mp4_index_ffprobe.py. */
#include "base/memory.h"
#include "demux/demux.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(const struct rp_error *err)
{
    fprintf(stderr, "%s %s\n", rp_status_name(err->code), err->what);
    return 1;
}

static uint8_t *read_range(int fd, struct rp_byte_range range)
{
    uint8_t *data = rp_calloc((size_t)range.len, 1);
    if (data == NULL || pread(fd, data, (size_t)range.len, range.offset) != range.len) {
        fprintf(stderr, "IO cannot read %" PRId64 " bytes\n", range.len);
        exit(2);
    }
    return data;
}

static void dump(const rp_index *index)
{
    const struct rp_codec_params *codec = rp_index_codec(index);
    fprintf(stdout, "%s %d %d %zu %d %d %d %d %d %u %" PRId64 " %" PRId64 " %" PRId64 " %zu\n",
            rp_codec_name(codec->codec), codec->width, codec->height, codec->extradata_len,
            codec->has_colour, codec->primaries, codec->transfer, codec->matrix, codec->full_range,
            rp_index_timescale(index), rp_index_samples(index), rp_index_addressable(index),
            rp_index_duration(index), rp_index_bytes(index));
    for (int64_t i = 0; i < rp_index_samples(index); i++) {
        struct rp_sample s;
        rp_index_sample(index, i, &s);
        fprintf(stdout, "%" PRId64 " %" PRId64 " %u %" PRId64 " %d %d\n", s.pts, s.dts, s.size,
                s.offset, s.key, s.addressable);
    }
}

int main(int argc, char **argv)
{
    int fd = argc == 2 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        fprintf(stderr, "usage: dump_index FILE\n");
        return 2;
    }
    struct rp_error err;
    rp_error_clear(&err);
    struct rp_moov_search search = {0};
    struct rp_byte_range need = {0}, moov = {0};
    uint8_t *data = NULL;
    rp_status status;
    while ((status = rp_moov_find(&search, data, need.offset, (size_t)need.len, st.st_size, &need,
                                  &moov, &err)) == RP_AGAIN) {
        rp_free(data);
        data = read_range(fd, need);
    }
    rp_free(data);
    if (status != RP_OK) {
        return refuse(&err);
    }
    rp_index *index;
    data = read_range(fd, moov);
    status = rp_index_parse(data, (size_t)moov.len, st.st_size, &index, &err);
    rp_free(data);
    if (status != RP_OK) {
        return refuse(&err);
    }
    dump(index);
    rp_index_free(&index);
    close(fd);
    return 0;
}
