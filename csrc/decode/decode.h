/* Packets in, decoded pictures out. One single-threaded decoder per thread and codec setting. */
#ifndef RP_DECODE_DECODE_H
#define RP_DECODE_DECODE_H

#include "base/arena.h"
#include "base/error.h"
#include "base/image.h"
#include "demux/demux.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One coded picture. `data` is borrowed for the call; it need not be padded. */
struct rp_packet {
    const uint8_t *data;
    size_t len;       /* bytes */
    int64_t pts, dts; /* ticks; pts comes back as the frame's, unique within a run */
    bool key;
    bool wanted; /* false: needed only for what others take from it; may or may not come out */
};

/* A decoded picture, counted; the pixels live as long as it does. */
typedef struct rp_frame rp_frame;

/* View of the pixels. Owner: borrowed from the frame. Thread: any. Blocks: never. */
const struct rp_image *rp_frame_image(const rp_frame *frame);
int64_t rp_frame_pts(const rp_frame *frame);  /* ticks */
size_t rp_frame_bytes(const rp_frame *frame); /* memory its planes take */

/* The block of a GPU's memory that holds the pixels (decode/nvdec.h); the image's planes are
 * addresses there. NULL: they are in main memory. Owner: borrowed from the frame. Thread: any.
 * Blocks: never. */
struct rp_cuda_block *rp_frame_on_device(const rp_frame *frame);

/* Count up; count down and null: the last one gives the pixels back and the frame to its cache for
 * reuse; a frame may outlive the cache. NULL or pointer to NULL: nothing. Thread: any, holding no
 * lock (unref enters the fork gate). Blocks: never. */
rp_frame *rp_frame_ref(rp_frame *frame);
void rp_frame_unref(rp_frame **frame);

/* A reference for holding the picture longer than the decoder's next one. What a decoder allocates
 * is larger than the picture, and each decoder keeps for itself as many as were ever out at once:
 * so it is a copy, in a block of `store`, which all decoders may share. A picture that is such a
 * copy, one on a GPU, one of an unusual layout, or one for whose copy memory is short is counted up
 * instead.
 * Owner: the result is the caller's (rp_frame_unref), frame stays. Thread: that of the frame's
 * cache, holding no lock. Blocks: for the kernel to give pages. */
RP_CHECKED rp_frame *rp_frame_keep(rp_frame *frame, rp_arena *store);

typedef struct rp_decoder rp_decoder;

/* Open decoders of ONE thread, least recently used closed first. */
typedef struct rp_decoder_cache rp_decoder_cache;

/* New cache holding at most `capacity` (>= 1) open decoders. Owner: *out is the caller's. Thread:
 * the cache and its decoders are used by one thread at a time. Blocks: never. Errors: RP_E_NOMEM.
 */
RP_CHECKED rp_status rp_decoder_cache_new(int capacity, rp_decoder_cache **out,
                                          struct rp_error *err);

/* The same for checking: where this FFmpeg has a second decoder for a codec (AV1: libaom-av1 beside
 * libdav1d), it is that one, which refuses most of the damage that the usual one turns into other
 * pixels, at a higher cost. Owner: *out is the caller's. Thread: as rp_decoder_cache_new. Blocks:
 * never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_decoder_cache_new_strict(int capacity, rp_decoder_cache **out,
                                                 struct rp_error *err);

/* Whether there is a second decoder for the codec. Thread: any. Blocks: never. */
bool rp_decode_has_strict(enum rp_codec codec);

/* Close all decoders, free, null. Frames handed out stay valid. NULL or pointer to NULL: nothing.
 * Thread: the user's or none. Blocks: never for long. */
void rp_decoder_cache_free(rp_decoder_cache **cache);

/* A decoder ready for a new run of packets starting at a key, opened or reused (flushed).
 * `first` is the first packet: an AV1 key packet that carries its own sequence header lets decoders
 * be shared by all AV1 files of one picture size. Owner: *out stays the cache's, valid until the
 * next call on the cache. Thread: the cache's. Blocks: never for long. Errors: RP_E_UNSUPPORTED no
 * decoder for the codec in this FFmpeg (names it); RP_E_NOMEM; RP_E_DECODE the parameters are
 * refused. */
RP_CHECKED rp_status rp_decoder_cache_get(rp_decoder_cache *cache,
                                          const struct rp_codec_params *params,
                                          const struct rp_packet *first, rp_decoder **out,
                                          struct rp_error *err);

/* Feed one packet in decode order; receive until RP_AGAIN before the next (RP_AGAIN here: not
 * taken, receive first). A leading picture that is not wanted is left out. Owner: packet is
 * borrowed. Thread: the cache's; enters the fork gate. Blocks: never. Errors: RP_E_DECODE (the
 * decoder is closed and replaced at the next get; until then every call answers RP_E_DECODE);
 * RP_E_NOMEM likewise. */
RP_CHECKED rp_status rp_decoder_send(rp_decoder *decoder, const struct rp_packet *packet,
                                     struct rp_error *err);

/* Say that no more packets come; the rest is received after it. A run that was drained starts again
 * by rp_decoder_cache_get. Thread: the cache's; enters the fork gate. Blocks: never. Errors: as
 * rp_decoder_send. */
RP_CHECKED rp_status rp_decoder_drain(rp_decoder *decoder, struct rp_error *err);

/* Take the next picture in output order: RP_OK with *out, RP_AGAIN when it wants packets, RP_END
 * after the drain. Owner: *out is the caller's (rp_frame_unref). Thread: the cache's; enters the
 * fork gate. Blocks: never. Errors: RP_E_DECODE invalid data, a corrupt or concealed picture, size
 * or format changed within a run. */
RP_CHECKED rp_status rp_decoder_receive(rp_decoder *decoder, rp_frame **out, struct rp_error *err);

/* Version text of the linked libraries ("libavcodec 59.37.100, libdav1d yes, ..."), and whether a
 * decoder for the codec exists. Owner: text is the caller's buffer. Thread: any. Blocks: never. */
void rp_decode_describe(char *text, size_t cap);
bool rp_decode_supports(enum rp_codec codec);

#endif
