/* Inside decode: what the decoders of the CPU and those of a GPU share of libavcodec. */
#ifndef RP_DECODE_DEC_AV_H
#define RP_DECODE_DEC_AV_H

#include "decode/av_compat.h"
#include "decode/decode_priv.h"

#include <libavutil/buffer.h>
#include <libavutil/frame.h>

#define RP_AV_POOLS 11

struct rp_av_decoder {
    AVCodecContext *context;
    AVPacket *packet;
    AVBufferPool *pools[RP_AV_POOLS];
};

/* Sets up a context before it is opened. */
typedef rp_status (*rp_av_prepare)(AVCodecContext *context, void *arg, struct rp_error *err);

/* Open a decoder with the house's options. prepare: may be NULL. Owner: *out, a struct
 * rp_av_decoder, is the caller's (rp_av_close). Thread: any. Errors: RP_E_UNSUPPORTED codec is
 * NULL; RP_E_NOMEM; RP_E_DECODE the parameters are refused. */
RP_CHECKED rp_status rp_av_open(const AVCodec *codec, const struct rp_codec_params *params,
                                bool with_extradata, rp_av_prepare prepare, void *arg, void **out,
                                struct rp_error *err);
void rp_av_close(void *native);
void rp_av_flush(void *native);

/* Send a packet, NULL: no more packets; *rc is libavcodec's answer. RP_AGAIN: not taken. Errors:
 * RP_E_DECODE an impossible size, RP_E_NOMEM. */
RP_CHECKED rp_status rp_av_feed(struct rp_av_decoder *decoder, const struct rp_packet *packet,
                                int *rc, struct rp_error *err);

/* Give the picture's facts but the planes to the frame, or refuse it: corrupt, without a time,
 * empty. */
RP_CHECKED rp_status rp_av_accept(const AVFrame *picture, const char *name, rp_frame *frame,
                                  struct rp_error *err);

/* Record libavcodec's failure: RP_E_NOMEM or RP_E_DECODE. */
RP_CHECKED rp_status rp_av_failed(struct rp_error *err, int code, const char *what,
                                  const char *decoder);

#endif
