/* For decode's tests: MP4 clips in memory with the hashes of their pictures.
 *
 * Clips are all files that demux accepts in REELPOOL_TEST_CLIPS (default build/clips) and one real
 * file of the data folder; included once per program, after harness.h. */
#ifndef RP_TESTS_DECODE_CLIP_H
#define RP_TESTS_DECODE_CLIP_H

#include "decode_oracle.h"

#include <dirent.h>

enum { MAX_CLIPS = 64 };
static struct clip clips[MAX_CLIPS];
static int clip_count;

static rp_status parse_clip(const uint8_t *file, size_t len, rp_index **index, struct rp_error *err)
{
    struct rp_moov_search search = {0};
    struct rp_byte_range need = {0}, moov = {0};
    rp_status status;
    while ((status = rp_moov_find(&search, file + need.offset, need.offset, (size_t)need.len,
                                  (int64_t)len, &need, &moov, err)) == RP_AGAIN) {
    }
    RP_TRY(status);
    return rp_index_parse(file + moov.offset, (size_t)moov.len, (int64_t)len, index, err);
}

static void free_clip(struct clip *clip)
{
    rp_index_free(&clip->index);
    free(clip->file);
    free(clip->hashes);
    *clip = (struct clip){0};
}

/* Load a file as the next clip; false when demux refuses it. */
static bool load_clip(const char *path)
{
    struct clip clip = {0};
    clip.file = rp_read_file(path, &clip.len);
    if (clip_count == MAX_CLIPS || clip.file == NULL ||
        parse_clip(clip.file, clip.len, &clip.index, NULL) != RP_OK) {
        free_clip(&clip);
        return false;
    }
    const char *base = strrchr(path, '/');
    snprintf(clip.name, sizeof(clip.name), "%.255s", base != NULL ? base + 1 : path);
    clip.n = rp_index_samples(clip.index);
    for (int64_t i = 0; i < clip.n; i++) {
        struct rp_sample sample;
        rp_index_sample(clip.index, i, &sample);
        if (sample.offset + sample.size > (int64_t)clip.len) {
            free_clip(&clip); /* truncated: nothing to learn about decoding */
            return false;
        }
    }
    if (clip.n == 0 || !rp_decode_supports(rp_index_codec(clip.index)->codec)) {
        free_clip(&clip);
        return false;
    }
    clip.hashes = calloc((size_t)clip.n, sizeof(clip.hashes[0]));
    decode_sequentially(&clip);
    clips[clip_count++] = clip;
    return true;
}

/* All clips of the folder. */
static void load_clip_folder(void)
{
    char path[1024];
    const char *folder = getenv("REELPOOL_TEST_CLIPS");
    folder = folder != NULL ? folder : "build/clips";
    struct dirent **entries = NULL;
    int n = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        size_t len = strlen(entries[i]->d_name);
        if (len > 4 && strcmp(entries[i]->d_name + len - 4, ".mp4") == 0) {
            snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name);
            (void)load_clip(path); /* refused files are demux's to test */
        }
        free(entries[i]);
    }
    free(entries);
}

static RP_UNUSED void load_clips(void)
{
    char path[1024];
    load_clip_folder();
    const char *root = rp_data_root();
    if (root != NULL) {
        snprintf(path, sizeof(path), "%s/cam3/videos/observation.images.top/chunk-000/file-004.mp4",
                 root);
        (void)load_clip(path); /* absent where only some data is */
    }
}

static RP_UNUSED void free_clips(void)
{
    while (clip_count > 0) {
        free_clip(&clips[--clip_count]);
    }
}

/* The n-th clip of a codec, NULL when there is none. */
static RP_UNUSED const struct clip *clip_of(enum rp_codec codec, int n)
{
    for (int i = 0; i < clip_count; i++) {
        if (rp_index_codec(clips[i].index)->codec == codec && n-- == 0) {
            return &clips[i];
        }
    }
    return NULL;
}

/* Skip unless there are AV1 and H.264 clips. */
#define NEED_CLIPS()                                                                 \
    do {                                                                             \
        if (clip_of(RP_CODEC_AV1, 0) == NULL || clip_of(RP_CODEC_H264, 0) == NULL) { \
            SKIP("clips", "no clips; make them by tests/data/make_clips.py");        \
        }                                                                            \
    } while (0)

#endif
