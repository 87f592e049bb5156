/* How fast libavcodec alone gives the frames of one MP4 file: the limit that no loader passes.
 *
 *     decode_floor --mode seq|gop|random [--threads N] [--seconds S] FILE.mp4
 *
 * N threads, each with one single-threaded decoder over the same packets, which lie in memory before
 * the clock starts; no pixel is converted. seq: the file from start to end. gop: whole GOPs in random
 * order, flushed and drained each. random: single frames at random, flush, start key to target, drain.
 * Prints frames per second of all threads together, then how it was measured. Shares the MP4 index with
 * the core and nothing else. Build: see python/reelpool/bench/floor.py. */
#include "base/error.h"
#include "demux/demux.h"

#include <libavcodec/avcodec.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_BYTES ((int64_t)512 << 20) /* of packets held; the rest of a larger file is left out */
#define MAX_THREADS 256

struct floor {
    const rp_index *index;
    AVPacket **packet; /* in decode order */
    int64_t n;         /* packets held, up to the last whole GOP */
    int64_t *key;      /* decode index of each GOP's first packet; key[keys] = n */
    int64_t keys;
    const char *mode;
    double seconds;
    pthread_barrier_t start;
};

struct worker {
    struct floor *floor;
    pthread_t thread;
    AVCodecContext *decoder;
    AVFrame *frame;
    uint64_t random;
    int64_t frames;
    double wall;
};

static void fail(const char *what)
{
    (void)fprintf(stderr, "decode_floor: %s\n", what);
    exit(3);
}

static void check(rp_status status, const struct rp_error *err)
{
    if (status < 0) {
        fail(err->what);
    }
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *stream = fopen(path, "rb");
    if (stream == NULL || fseek(stream, 0, SEEK_END) != 0) {
        fail("the file cannot be opened");
    }
    long end = ftell(stream);
    uint8_t *data = malloc((size_t)end + 1);
    if (data == NULL || fseek(stream, 0, SEEK_SET) != 0 ||
        fread(data, 1, (size_t)end, stream) != (size_t)end) {
        fail("the file cannot be read");
    }
    (void)fclose(stream);
    *size = (size_t)end;
    return data;
}

static rp_index *parse(const uint8_t *data, size_t size)
{
    struct rp_moov_search search = {0};
    struct rp_byte_range need = {0, (int64_t)size}, moov;
    struct rp_error err;
    rp_error_clear(&err);
    rp_status status = RP_AGAIN;
    while (status == RP_AGAIN) {
        status = rp_moov_find(&search, data + need.offset, need.offset, (size_t)need.len,
                              (int64_t)size, &need, &moov, &err);
    }
    check(status, &err);
    rp_index *index = NULL;
    check(rp_index_parse(data + moov.offset, (size_t)moov.len, (int64_t)size, &index, &err), &err);
    return index;
}

static AVPacket *copy_packet(const uint8_t *data, size_t size, const struct rp_sample *sample)
{
    AVPacket *packet = av_packet_alloc();
    if (packet == NULL || sample->offset + (int64_t)sample->size > (int64_t)size ||
        av_new_packet(packet, (int)sample->size) < 0) {
        fail("a packet lies past the file's end");
    }
    memcpy(packet->data, data + sample->offset, sample->size);
    packet->pts = sample->pts;
    packet->dts = sample->dts;
    packet->flags = sample->key ? AV_PKT_FLAG_KEY : 0;
    return packet;
}

static void load_packets(struct floor *floor, const uint8_t *data, size_t size)
{
    int64_t samples = rp_index_samples(floor->index), bytes = 0;
    floor->packet = calloc((size_t)samples + 1, sizeof(AVPacket *));
    floor->key = calloc((size_t)samples + 1, sizeof(int64_t));
    if (floor->packet == NULL || floor->key == NULL) {
        fail("out of memory");
    }
    for (int64_t i = 0; i < samples; i++) {
        struct rp_sample sample;
        rp_index_sample(floor->index, i, &sample);
        if (sample.key && bytes > MAX_BYTES) {
            break;
        }
        if (sample.key) {
            floor->key[floor->keys++] = i;
        }
        floor->packet[i] = copy_packet(data, size, &sample);
        bytes += sample.size;
        floor->n = i + 1;
    }
    floor->key[floor->keys] = floor->n;
    if (floor->n == 0 || floor->key[0] != 0) {
        fail("the file does not start with a key frame");
    }
}

static AVCodecContext *open_decoder(const rp_index *index)
{
    static const enum AVCodecID id[] = {[RP_CODEC_AV1] = AV_CODEC_ID_AV1,
                                        [RP_CODEC_H264] = AV_CODEC_ID_H264,
                                        [RP_CODEC_HEVC] = AV_CODEC_ID_HEVC,
                                        [RP_CODEC_VP9] = AV_CODEC_ID_VP9,
                                        [RP_CODEC_MPEG4] = AV_CODEC_ID_MPEG4};
    const struct rp_codec_params *params = rp_index_codec(index);
    /* FFmpeg's own "av1" needs hardware. */
    const AVCodec *codec = params->codec == RP_CODEC_AV1
                               ? avcodec_find_decoder_by_name("libdav1d")
                               : avcodec_find_decoder(id[params->codec]);
    AVCodecContext *context = codec != NULL ? avcodec_alloc_context3(codec) : NULL;
    if (context == NULL) {
        fail("this FFmpeg has no decoder for the codec");
    }
    context->thread_count = 1;
    if (params->codec == RP_CODEC_AV1) {
        context->flags |= AV_CODEC_FLAG_LOW_DELAY;
    }
    if (params->extradata_len > 0) {
        context->extradata = av_mallocz(params->extradata_len + AV_INPUT_BUFFER_PADDING_SIZE);
        if (context->extradata == NULL) {
            fail("out of memory");
        }
        memcpy(context->extradata, params->extradata, params->extradata_len);
        context->extradata_size = (int)params->extradata_len;
    }
    if (avcodec_open2(context, codec, NULL) < 0) {
        fail("the decoder cannot be opened");
    }
    return context;
}

static int64_t receive(struct worker *worker)
{
    int64_t frames = 0;
    while (avcodec_receive_frame(worker->decoder, worker->frame) == 0) {
        frames++;
        av_frame_unref(worker->frame);
    }
    return frames;
}

/* Decode packets first..end-1 and drain; pictures that came out. */
static int64_t decode_run(struct worker *worker, int64_t first, int64_t end, bool drain)
{
    int64_t frames = 0;
    for (int64_t i = first; i < end; i++) {
        while (avcodec_send_packet(worker->decoder, worker->floor->packet[i]) == AVERROR(EAGAIN)) {
            frames += receive(worker);
        }
        frames += receive(worker);
    }
    if (drain) {
        (void)avcodec_send_packet(worker->decoder, NULL); /* only fails when drained already */
        frames += receive(worker);
        avcodec_flush_buffers(worker->decoder);
    }
    return frames;
}

static int64_t pick(struct worker *worker, int64_t below)
{
    worker->random = worker->random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((worker->random >> 33) % (uint64_t)below);
}

/* One step of work; pictures that count. */
static int64_t step(struct worker *worker, int64_t *at)
{
    struct floor *floor = worker->floor;
    if (strcmp(floor->mode, "seq") == 0) {
        int64_t gop = (*at)++ % floor->keys;
        return decode_run(worker, floor->key[gop], floor->key[gop + 1], gop == floor->keys - 1);
    }
    if (strcmp(floor->mode, "gop") == 0) {
        int64_t gop = pick(worker, floor->keys);
        return decode_run(worker, floor->key[gop], floor->key[gop + 1], true);
    }
    int64_t target = pick(worker, floor->n), key = 0;
    struct rp_error err;
    rp_error_clear(&err);
    check(rp_index_start_key(floor->index, target, &key, &err), &err);
    return decode_run(worker, key, target + 1, true) > 0 ? 1 : 0;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    int64_t at = 0;
    (void)decode_run(worker, 0, worker->floor->key[1], true); /* tables and pools of a first run */
    (void)pthread_barrier_wait(&worker->floor->start);
    double start = now();
    while (worker->wall < worker->floor->seconds) {
        worker->frames += step(worker, &at);
        worker->wall = now() - start;
    }
    return NULL;
}

static double measure(struct floor *floor, int threads)
{
    static struct worker workers[MAX_THREADS];
    if (pthread_barrier_init(&floor->start, NULL, (unsigned)threads) != 0) {
        fail("no barrier");
    }
    for (int i = 0; i < threads; i++) {
        workers[i] = (struct worker){.floor = floor, .random = (uint64_t)i + 1};
        workers[i].decoder = open_decoder(floor->index);
        workers[i].frame = av_frame_alloc();
        if (workers[i].frame == NULL ||
            pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            fail("no thread");
        }
    }
    double rate = 0;
    for (int i = 0; i < threads; i++) {
        (void)pthread_join(workers[i].thread, NULL); /* only fails on a wrong id */
        rate += (double)workers[i].frames / workers[i].wall;
    }
    return rate;
}

int main(int argc, char **argv)
{
    struct floor floor = {.mode = "seq", .seconds = 2.0};
    const char *path = NULL;
    int threads = 1;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--mode") == 0 && more) {
            floor.mode = argv[++i];
        }
        else if (strcmp(argv[i], "--threads") == 0 && more) {
            threads = (int)strtol(argv[++i], NULL, 10);
        }
        else if (strcmp(argv[i], "--seconds") == 0 && more) {
            floor.seconds = strtod(argv[++i], NULL);
        }
        else {
            path = argv[i];
        }
    }
    if (path == NULL || threads < 1 || threads > MAX_THREADS ||
        (strcmp(floor.mode, "seq") != 0 && strcmp(floor.mode, "gop") != 0 &&
         strcmp(floor.mode, "random") != 0)) {
        (void)fprintf(stderr, "decode_floor --mode seq|gop|random [--threads N] [--seconds S] "
                              "FILE.mp4\n");
        return 2;
    }
    av_log_set_level(AV_LOG_ERROR);
    size_t size;
    uint8_t *data = read_file(path, &size);
    floor.index = parse(data, size);
    load_packets(&floor, data, size);
    double rate = measure(&floor, threads);
    (void)fprintf(stdout, "%.1f frames/s, %s, %d threads, %.1f frames per GOP, libavcodec %u.%u.%u\n",
                  rate, floor.mode, threads, (double)floor.n / (double)floor.keys,
                  avcodec_version() >> 16, avcodec_version() >> 8 & 255, avcodec_version() & 255);
    return rate > 0 ? 0 : 3;
}
