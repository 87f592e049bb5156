/* Inside of decode: the table of a decoder library, counted frames and their recycling. */
#ifndef RP_DECODE_DECODE_PRIV_H
#define RP_DECODE_DECODE_PRIV_H

#include "decode/decode.h"

/* Recycled rp_frames of one decoder cache. Frames outlive it: it goes when the owner and the last
 * frame have let it go. */
struct rp_frame_pool;

/* How a library keeps pixels. `picture` is its own object (AVFrame). */
struct rp_picture_ops {
    void *(*create)(void);          /* NULL: memory is short */
    void (*reset)(void *picture);   /* give the pixels back; runs inside the fork gate */
    void (*destroy)(void *picture); /* of a reset picture */
};

struct rp_frame {
    struct rp_image image;
    int64_t pts;                  /* ticks */
    size_t bytes;                 /* of the planes, or of the block */
    size_t row_bytes[4], rows[4]; /* of each plane, without what pads it; 0: not known */
    void *picture;                /* struct rp_picture_ops */
    rp_block *block;              /* pixels of a kept copy; NULL: they are the picture's */
    struct rp_cuda_block
        *on_device; /* the picture's, whose pixels lie in a GPU's memory; or NULL */
    int refs;       /* atomic; 0 = in the pool */
    struct rp_frame_pool *pool;
    struct rp_frame *next; /* in the pool's lists */
};

/* New pool. Owner: *out is the caller's (one reference, rp_frame_pool_unref). Thread: any. Blocks:
 * never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_frame_pool_new(const struct rp_picture_ops *ops, struct rp_frame_pool **out,
                                       struct rp_error *err);

/* Drop the owner's reference and null. NULL or pointer to NULL: nothing. Thread: any. Blocks:
 * never. */
void rp_frame_pool_unref(struct rp_frame_pool **pool);

/* A recycled or new frame with an empty picture and one reference. Owner: *out is the caller's.
 * Thread: one at a time per pool. Blocks: never. Errors: RP_E_NOMEM. */
RP_CHECKED rp_status rp_frame_pool_get(struct rp_frame_pool *pool, rp_frame **out,
                                       struct rp_error *err);

/* One decoder library. All run inside the fork gate, on the cache's thread, and never block. Errors
 * are those of decode.h. */
struct rp_decode_backend {
    struct rp_picture_ops pictures;
    /* host: what it runs on; NULL: the CPU. with_extradata: false = the packets describe
     * themselves. Owner: *out until close. */
    rp_status (*open)(void *host, const struct rp_codec_params *params, bool with_extradata,
                      void **out, struct rp_error *err);
    /* packet NULL: no more packets. RP_AGAIN: not taken, receive first. */
    rp_status (*send)(void *native, const struct rp_packet *packet, struct rp_error *err);
    /* Fill a frame whose picture is empty: RP_OK, RP_AGAIN, RP_END. */
    rp_status (*receive)(void *native, rp_frame *frame, struct rp_error *err);
    void (*flush)(void *native); /* forget the run; the next packet is a key */
    void (*close)(void *native);
};

struct rp_decoder {
    const struct rp_decode_backend *backend;
    void *host;                   /* of the backend */
    void *native;                 /* NULL: closed after a failure, opened again by the next start */
    struct rp_frame_pool *frames; /* borrowed */
    enum rp_codec codec;
    uint64_t key;
    bool with_extradata;
    bool used; /* packets were sent since it was opened or flushed */
    bool drained;
    bool has_start;                   /* start_pts is valid */
    bool primed;                      /* the run's first packet was sent by rp_decoder_prime */
    bool open_gop;                    /* the run starts at a key picture of H.264 that is not IDR */
    int64_t start_pts;                /* of the run's first packet */
    int width, height, native_format; /* of the run's first picture; width 0: none yet */
    uint64_t last_use;
};

/* Begin a run: open or flush. Errors: those of the backend's open. */
RP_CHECKED rp_status rp_decoder_start(rp_decoder *decoder, const struct rp_codec_params *params,
                                      const struct rp_packet *first, struct rp_error *err);

/* Send the run's first packet now: rp_decoder_send then takes it without sending it again. What a
 * backend refuses of a stream it says here. */
RP_CHECKED rp_status rp_decoder_prime(rp_decoder *decoder, const struct rp_packet *first,
                                      struct rp_error *err);
void rp_decoder_close(rp_decoder *decoder);

/* Whether an H.264 packet is a key picture without an IDR slice. Thread: any. Blocks: never. */
bool rp_starts_open_gop(const struct rp_codec_params *params, const struct rp_packet *packet);
#define RP_OPEN_GOP "H.264 with open GOPs: decoding cannot start at a key picture that is not IDR"

extern const struct rp_decode_backend rp_decode_av;
extern const struct rp_decode_backend rp_decode_av_strict; /* the stricter of two libraries */

#endif
