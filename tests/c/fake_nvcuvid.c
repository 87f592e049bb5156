/* A libnvcuvid.so.1 without a GPU. It decodes by a table of coded pictures (fake_nvcuvid.h): a
 * picture is the entry whose packet ends as the bytes do that FFmpeg hands to the hardware. So
 * order, references, surfaces and streams are FFmpeg's and ours to get right. Memory and streams
 * are those of the fake libcuda.so.1, which is loaded before. Environment, for programs that cannot
 * reach the controls: FAKE_NVDEC_CODECS (a number, bits as in `codecs`), FAKE_NVDEC_DELAY (us). */
#include "fake_nvcuvid.h"

#include "cuda/cuda_video.h"
#include "cuda/cuda_video_priv.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { INVALID = 1, NO_MEMORY = 2, BAD_HANDLE = 400, NO_SUPPORT = 801 };
enum { SURFACES_MAX = 64, LEAST_TAIL = 8 };

/* CUVIDPICPARAMS and CUVIDPROCPARAMS, as far as they matter here. */
struct picture_params {
    int width_blocks, height_blocks, surface, field[3];
    unsigned len;
    const uint8_t *data;
};

struct map_params {
    int progressive, field[3];
    unsigned flags, zero;
    unsigned long long raw_in;
    unsigned raw_in_pitch, raw_format;
    unsigned long long raw_out;
    unsigned raw_out_pitch, reserved;
    void *stream;
};

struct decoder {
    struct rp_cuvid_create info;
    unsigned pitch;
    size_t bytes; /* of an output surface */
    const struct fake_picture *decoded[SURFACES_MAX];
    uint64_t output[SURFACES_MAX];
    int source[SURFACES_MAX]; /* of the output: the surface that is mapped, -1: none */
    void **snapshot;          /* of mapped pictures, until their copies are done */
    size_t n_snapshots;
    void *stream; /* that pictures were mapped in last */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_nvcuvid state;
static int (*memory_alloc)(uint64_t *, size_t);
static int (*memory_free)(uint64_t);
static int (*upload)(uint64_t, const void *, size_t, void *);
static int (*synchronize)(void *);

static void reset(void)
{
    struct fake_nvcuvid seen = state;
    const char *codecs = getenv("FAKE_NVDEC_CODECS"), *delay = getenv("FAKE_NVDEC_DELAY");
    state = (struct fake_nvcuvid){
        .codecs = codecs != NULL ? (unsigned)strtoul(codecs, NULL, 0)
                                 : 1u << RP_CUDA_H264 | 1u << RP_CUDA_HEVC | 1u << RP_CUDA_VP9,
        .engines = 3,
        .min_width = 48,
        .min_height = 16,
        .max_width = 4096,
        .max_height = 4096,
        .pitch = 256,
        .most = 1000,
        .delay_us = delay != NULL ? (unsigned)strtoul(delay, NULL, 0) : 0,
        .decoders = seen.decoders,
        .surfaces = seen.surfaces,
        .reset = reset};
}

API struct fake_nvcuvid *fake_nvcuvid(void)
{
    if (state.reset == NULL) {
        reset();
    }
    return &state;
}

static void find(void *library, const char *name, void *function)
{
    void *found = library != NULL ? dlsym(library, name) : NULL;
    if (found == NULL) {
        fprintf(stderr, "fake_nvcuvid: no %s: the fake libcuda.so.1 comes first\n", name);
        abort();
    }
    memcpy(function, &found, sizeof(found));
}

static void linger(void)
{
    static __thread unsigned random;
    unsigned most = state.delay_us;
    if (most > 0) {
        random = random != 0 ? random : (unsigned)(uintptr_t)&random; /* another one per thread */
        random = random * 1664525 + 1013904223;
        (void)usleep((random >> 8) % most);
    }
}

/* Begin a call; ends with the lock held. */
static void begin(void)
{
    linger();
    pthread_mutex_lock(&lock);
    (void)fake_nvcuvid();
    if (synchronize == NULL) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        find(library, "cuMemAlloc_v2", &memory_alloc);
        find(library, "cuMemFree_v2", &memory_free);
        find(library, "cuMemcpyHtoDAsync_v2", &upload);
        find(library, "cuStreamSynchronize", &synchronize);
    }
}

static int end(int code)
{
    pthread_mutex_unlock(&lock);
    linger();
    return code;
}

API int cuvidGetDecoderCaps(struct rp_cuvid_caps *caps);
API int cuvidGetDecoderCaps(struct rp_cuvid_caps *caps)
{
    begin();
    bool known = caps->codec >= 0 && caps->codec < 32 && (state.codecs >> caps->codec & 1) != 0 &&
                 caps->chroma == 1 && caps->depth_minus_8 == 0;
    caps->supported = known;
    caps->engines = known ? state.engines : 0;
    caps->output_formats = known;
    caps->max_width = state.max_width;
    caps->max_height = state.max_height;
    caps->max_blocks = state.max_width * state.max_height / 256;
    caps->min_width = state.min_width;
    caps->min_height = state.min_height;
    return end(0);
}

static void destroy(struct decoder *d)
{
    for (int i = 0; i < SURFACES_MAX; i++) {
        if (d->output[i] != 0) {
            (void)memory_free(d->output[i]);
        }
    }
    for (size_t i = 0; i < d->n_snapshots; i++) {
        free(d->snapshot[i]);
    }
    free(d->snapshot);
    free(d);
}

static bool is_sound(const struct rp_cuvid_create *info)
{
    return info->surfaces >= 1 && info->surfaces <= 32 && info->outputs >= 1 &&
           info->outputs <= SURFACES_MAX && info->output_format == 0 &&
           info->target_width == info->width && info->target_height == info->height;
}

static int create_locked(struct decoder **out, const struct rp_cuvid_create *info)
{
    int code = state.create_code != 0                   ? state.create_code
               : state.decoders >= state.most           ? NO_MEMORY
               : (state.codecs >> info->codec & 1) == 0 ? NO_SUPPORT
                                                        : 0;
    struct decoder *d = code == 0 ? calloc(1, sizeof(*d)) : NULL;
    if (d == NULL) {
        return code != 0 ? code : NO_MEMORY;
    }
    d->info = *info;
    d->pitch = ((unsigned)info->target_width + state.pitch - 1) / state.pitch * state.pitch;
    d->bytes = d->pitch * info->target_height * 3 / 2;
    code = is_sound(info) ? 0 : INVALID;
    for (unsigned i = 0; code == 0 && i < info->outputs; i++) {
        d->source[i] = -1;
        code = memory_alloc(&d->output[i], d->bytes);
    }
    if (code != 0) {
        destroy(d);
        return code;
    }
    state.decoders++;
    state.made++;
    *out = d;
    return 0;
}

API int cuvidCreateDecoder(void **out, const struct rp_cuvid_create *info);
API int cuvidCreateDecoder(void **out, const struct rp_cuvid_create *info)
{
    struct decoder *made = NULL;
    begin();
    int code = create_locked(&made, info);
    void (*created)(void *, int) = state.created;
    void *arg = state.arg;
    *out = made;
    (void)end(0);
    if (created != NULL) {
        created(arg, code);
    }
    return code;
}

API int cuvidDestroyDecoder(void *decoder);
API int cuvidDestroyDecoder(void *decoder)
{
    struct decoder *d = decoder;
    begin();
    if (d->stream != NULL) {
        (void)synchronize(d->stream);
    }
    for (int i = 0; i < SURFACES_MAX; i++) {
        bool mapped = d->output[i] != 0 && d->source[i] >= 0;
        state.misuse += mapped;
        state.surfaces -= mapped;
    }
    destroy(d);
    state.decoders--;
    return end(0);
}

/* Bytes that both end with. */
static size_t tail(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len)
{
    size_t n = 0;
    while (n < a_len && n < b_len && a[a_len - 1 - n] == b[b_len - 1 - n]) {
        n++;
    }
    return n;
}

static const struct fake_picture *look_up(const uint8_t *data, size_t len)
{
    const struct fake_picture *found = NULL;
    size_t most = 0;
    for (int i = 0; i < state.n; i++) {
        size_t n = tail(data, len, state.pictures[i].packet, state.pictures[i].len);
        if (n > most) {
            most = n;
            found = &state.pictures[i];
        }
    }
    return most >= (len < LEAST_TAIL + 4 ? len / 2 : LEAST_TAIL) ? found : NULL;
}

API int cuvidDecodePicture(void *decoder, const struct picture_params *params);
API int cuvidDecodePicture(void *decoder, const struct picture_params *params)
{
    struct decoder *d = decoder;
    begin();
    state.decoded++;
    if (state.decode_nth > 0 && state.decoded >= state.decode_nth) {
        return end(state.decode_code);
    }
    if (params->surface < 0 || params->surface >= (int)d->info.surfaces || params->data == NULL) {
        state.misuse++;
        return end(INVALID);
    }
    for (unsigned i = 0; i < d->info.outputs; i++) {
        state.misuse += d->source[i] == params->surface;
    }
    d->decoded[params->surface] = look_up(params->data, params->len);
    state.unknown += d->decoded[params->surface] == NULL;
    return end(0);
}

/* The whole surface, what lies behind the picture in it included. */
static uint8_t *paint(const struct decoder *d, const struct fake_picture *picture)
{
    uint8_t *to = malloc(d->bytes);
    if (to == NULL) {
        return NULL;
    }
    memset(to, 0x5A, d->bytes);
    if (picture != NULL && picture->nv12 != NULL && (unsigned)picture->width <= d->info.width &&
        (unsigned)picture->height <= d->info.height) {
        size_t width = (size_t)picture->width;
        const uint8_t *from = picture->nv12;
        for (int y = 0; y < picture->height; y++, from += width) {
            memcpy(to + (size_t)y * d->pitch, from, width);
        }
        uint8_t *pairs = to + (size_t)d->pitch * d->info.target_height;
        for (int y = 0; y < picture->height / 2; y++, from += width) {
            memcpy(pairs + (size_t)y * d->pitch, from, width);
        }
        to[0] = (uint8_t)(to[0] + state.off_by);
    }
    return to;
}

API int cuvidMapVideoFrame64(void *decoder, int surface, unsigned long long *address,
                             unsigned *pitch, const struct map_params *params);
API int cuvidMapVideoFrame64(void *decoder, int surface, unsigned long long *address,
                             unsigned *pitch, const struct map_params *params)
{
    struct decoder *d = decoder;
    begin();
    state.mapped++;
    bool fails = (state.map_nth > 0 && state.mapped >= state.map_nth) ||
                 state.mapped == state.map_once ||
                 (state.map_every > 0 && state.mapped % state.map_every == 0);
    if (fails) {
        return end(state.map_code);
    }
    unsigned at = 0;
    while (at < d->info.outputs && d->source[at] >= 0) {
        at++;
    }
    void **grown = realloc(d->snapshot, (d->n_snapshots + 1) * sizeof(*grown));
    if (at == d->info.outputs || surface < 0 || surface >= (int)d->info.surfaces || grown == NULL) {
        state.misuse++;
        d->snapshot = grown != NULL ? grown : d->snapshot;
        return end(INVALID);
    }
    d->snapshot = grown;
    uint8_t *pixels = paint(d, d->decoded[surface]);
    d->snapshot[d->n_snapshots++] = pixels;
    d->stream = params->stream;
    int code = pixels == NULL ? NO_MEMORY : upload(d->output[at], pixels, d->bytes, params->stream);
    if (code == 0) {
        d->source[at] = surface;
        *address = d->output[at];
        *pitch = d->pitch;
        state.surfaces++;
    }
    return end(code);
}

API int cuvidUnmapVideoFrame64(void *decoder, unsigned long long address);
API int cuvidUnmapVideoFrame64(void *decoder, unsigned long long address)
{
    struct decoder *d = decoder;
    begin();
    for (unsigned i = 0; i < d->info.outputs; i++) {
        if (d->output[i] == address && d->source[i] >= 0) {
            d->source[i] = -1;
            state.surfaces--;
            return end(0);
        }
    }
    state.misuse++;
    return end(BAD_HANDLE);
}

/* Calls that FFmpeg looks for and that its decoders never make. */
#define REFUSE(name)       \
    API int name(void);    \
    API int name(void)     \
    {                      \
        return NO_SUPPORT; \
    }

REFUSE(cuvidGetDecodeStatus)
REFUSE(cuvidReconfigureDecoder)
REFUSE(cuvidMapVideoFrame)
REFUSE(cuvidUnmapVideoFrame)
REFUSE(cuvidCtxLockCreate)
REFUSE(cuvidCtxLockDestroy)
REFUSE(cuvidCtxLock)
REFUSE(cuvidCtxUnlock)
REFUSE(cuvidCreateVideoSource)
REFUSE(cuvidCreateVideoSourceW)
REFUSE(cuvidDestroyVideoSource)
REFUSE(cuvidSetVideoSourceState)
REFUSE(cuvidGetVideoSourceState)
REFUSE(cuvidGetSourceVideoFormat)
REFUSE(cuvidGetSourceAudioFormat)
REFUSE(cuvidCreateVideoParser)
REFUSE(cuvidParseVideoData)
REFUSE(cuvidDestroyVideoParser)
