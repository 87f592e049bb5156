/* How fast libavcodec alone gives the frames of one MP4 file: the limit that no loader passes.
 *
 *     decode_floor --mode seq|gop|random|fault [--threads N] [--seconds S] [--json] FILE.mp4
 *
 * N threads, each with one single-threaded decoder over the same packets, which lie in memory
 * before the clock starts; no pixel is converted or copied. seq: the file from start to end. gop:
 * whole GOPs in random order, flushed and drained each. random: single frames at random: flush,
 * start key to target, drain. fault: no file; touches fresh pages of 4 KiB and counts them.
 * Prints frames per second of all threads together, then how it was measured; "CPU ms" is the
 * processor time of a thread per frame, which holds on a busy machine too. Shares the MP4 index
 * with the core and nothing else.
 *
 * Build: cc -O2 -std=c11 -D_GNU_SOURCE -Icsrc benchmarks/decode_floor.c csrc/base/error.c \
 *            csrc/base/memory.c \
 *            csrc/demux/{mp4_{index,box,codec,tables},moov_search,select_packets}.c \
 *            -o build/decode_floor \
 *            $(pkg-config --cflags --libs libavcodec libavutil) -lpthread -lm */
#include "base/error.h"
#include "demux/demux.h"

#include <libavcodec/avcodec.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_BYTES   ((int64_t)512 << 20) /* of packets held; what follows is left out */
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

struct options {
    const char *path;
    int threads;
    bool json;
};

struct worker {
    struct floor *floor;
    pthread_t thread;
    AVCodecContext *decoder;
    AVFrame *frame;
    uint64_t random;
    int64_t frames;
    double wall, cpu; /* seconds */
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

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t); /* cannot fail on Linux */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now(void)
{
    return seconds_of(CLOCK_MONOTONIC);
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
    const AVCodec *codec = params->codec == RP_CODEC_AV1 ? avcodec_find_decoder_by_name("libdav1d")
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
    int code;
    while ((code = avcodec_receive_frame(worker->decoder, worker->frame)) == 0) {
        frames++;
        av_frame_unref(worker->frame);
    }
    if (code != AVERROR(EAGAIN) && code != AVERROR_EOF) {
        fail("a picture cannot be decoded: the rate would be a lie");
    }
    return frames;
}

/* Decode packets first..end-1 and drain; pictures that came out. */
static int64_t decode_run(struct worker *worker, int64_t first, int64_t end, bool drain)
{
    int64_t frames = 0;
    for (int64_t i = first; i < end; i++) {
        int code;
        while ((code = avcodec_send_packet(worker->decoder, worker->floor->packet[i])) ==
               AVERROR(EAGAIN)) {
            frames += receive(worker);
        }
        if (code < 0) {
            fail("a packet is refused: the rate would be a lie");
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

/* Touch fresh pages, one byte each; pages. */
static int64_t touch_pages(void)
{
    size_t pages = 16384, page = 4096;
    uint8_t *fresh =
        mmap(NULL, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) {
        fail("out of memory");
    }
    (void)madvise(fresh, pages * page, MADV_NOHUGEPAGE); /* kernels without huge pages refuse it */
    for (size_t i = 0; i < pages; i++) {
        ((volatile uint8_t *)fresh)[i * page] = 1;
    }
    (void)munmap(fresh, pages * page); /* cannot fail on our own mapping */
    return (int64_t)pages;
}

/* One step of work; pictures that count. */
static int64_t step(struct worker *worker, int64_t *at)
{
    struct floor *floor = worker->floor;
    if (floor->n == 0) {
        return touch_pages();
    }
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
    if (worker->floor->n > 0) {
        (void)decode_run(worker, 0, worker->floor->key[1],
                         true); /* tables and pools of a first run */
    }
    (void)pthread_barrier_wait(&worker->floor->start);
    double start = now(), cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    while (worker->wall < worker->floor->seconds) {
        worker->frames += step(worker, &at);
        worker->wall = now() - start;
    }
    worker->cpu = seconds_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    return NULL;
}

/* Frames per second; *cpu_ms is per frame. */
static double measure(struct floor *floor, int threads, double *cpu_ms)
{
    static struct worker workers[MAX_THREADS];
    if (pthread_barrier_init(&floor->start, NULL, (unsigned)threads) != 0) {
        fail("no barrier");
    }
    for (int i = 0; i < threads; i++) {
        workers[i] = (struct worker){.floor = floor, .random = (uint64_t)i + 1};
        workers[i].decoder = floor->n > 0 ? open_decoder(floor->index) : NULL;
        workers[i].frame = av_frame_alloc();
        if (workers[i].frame == NULL ||
            pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            fail("no thread");
        }
    }
    double rate = 0, cpu = 0;
    int64_t frames = 0;
    for (int i = 0; i < threads; i++) {
        (void)pthread_join(workers[i].thread, NULL); /* only fails on a wrong id */
        rate += (double)workers[i].frames / workers[i].wall;
        cpu += workers[i].cpu;
        frames += workers[i].frames;
    }
    *cpu_ms = frames > 0 ? 1e3 * cpu / (double)frames : 0;
    return rate;
}

static bool is_mode(const char *mode)
{
    return strcmp(mode, "seq") == 0 || strcmp(mode, "gop") == 0 || strcmp(mode, "random") == 0 ||
           strcmp(mode, "fault") == 0;
}

static void report(const struct floor *floor, const struct options *o, double rate, double cpu_ms)
{
    unsigned version = avcodec_version();
    unsigned major = version >> 16, minor = version >> 8 & 255, micro = version & 255;
    double length = floor->keys > 0 ? (double)floor->n / (double)floor->keys : 0;
    const char *unit = floor->n > 0 ? "frames" : "pages";
    if (o->json) {
        (void)fprintf(stdout,
                      "{\"per_s\": %.1f, \"unit\": \"%s\", \"mode\": \"%s\", \"threads\": %d, "
                      "\"cpu_ms\": %.5f, \"frames_per_gop\": %.1f, \"libavcodec\": \"%u.%u.%u\"}\n",
                      rate, unit, floor->mode, o->threads, cpu_ms, length, major, minor, micro);
    }
    else {
        (void)fprintf(stdout,
                      "%.1f %s/s, %s, %d threads, %.5f CPU ms each, %.1f frames per GOP, "
                      "libavcodec %u.%u.%u\n",
                      rate, unit, floor->mode, o->threads, cpu_ms, length, major, minor, micro);
    }
}

/* False: the arguments make no sense. */
static bool parse_options(int argc, char **argv, struct floor *floor, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--mode") == 0 && more) {
            floor->mode = argv[++i];
        }
        else if (strcmp(argv[i], "--threads") == 0 && more) {
            o->threads = (int)strtol(argv[++i], NULL, 10);
        }
        else if (strcmp(argv[i], "--seconds") == 0 && more) {
            floor->seconds = strtod(argv[++i], NULL);
        }
        else if (strcmp(argv[i], "--json") == 0) {
            o->json = true;
        }
        else {
            o->path = argv[i];
        }
    }
    bool pages = strcmp(floor->mode, "fault") == 0;
    return (o->path != NULL || pages) && o->threads >= 1 && o->threads <= MAX_THREADS &&
           is_mode(floor->mode);
}

int main(int argc, char **argv)
{
    struct floor floor = {.mode = "seq", .seconds = 2.0};
    struct options options = {.threads = 1};
    if (!parse_options(argc, argv, &floor, &options)) {
        (void)fprintf(stderr, "decode_floor --mode seq|gop|random|fault [--threads N] "
                              "[--seconds S] [--json] FILE.mp4\n");
        return 2;
    }
    av_log_set_level(AV_LOG_ERROR);
    if (strcmp(floor.mode, "fault") != 0) {
        size_t size;
        uint8_t *data = read_file(options.path, &size);
        floor.index = parse(data, size);
        load_packets(&floor, data, size);
    }
    double cpu_ms = 0;
    double rate = measure(&floor, options.threads, &cpu_ms);
    report(&floor, &options, rate, cpu_ms);
    return rate > 0 ? 0 : 3;
}
