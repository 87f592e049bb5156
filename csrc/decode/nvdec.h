/* Runs of packets decoded by a GPU's video engine (NVDEC), with pictures in the GPU's memory.
 *
 * Which streams: rp_nvdec_decide, once per stream; the answer never comes from the GPU's name. A
 * run: rp_nvdec_begin, then rp_decoder_send, _receive and _drain as in decode.h, then rp_nvdec_end.
 * Frames are NV12 (RP_PIX_NV12, RP_PIX_NV12J) in a block of the device (rp_frame_on_device), which
 * is theirs until rp_frame_unref. A stream of the user's reads it between rp_cuda_await and
 * rp_cuda_mark (cuda/cuda_video.h).
 *
 * A run that fails with RP_E_DECODE or RP_E_UNSUPPORTED may hold pictures that the CPU decodes:
 * decode its wants again there. NVDEC conceals damage inside of slices without a sign: check sums
 * find it, where there are any. After a fork the child gets RP_E_CUDA, which names "spawn". */
#ifndef RP_DECODE_NVDEC_H
#define RP_DECODE_NVDEC_H

#include "base/error.h"
#include "cuda/cuda.h"
#include "decode/decode.h"

#include <stdbool.h>
#include <stdint.h>

#define RP_NVDEC_MAX_SESSIONS 64

/* Decode sessions of one GPU, shared by the threads of a process. */
typedef struct rp_nvdec rp_nvdec;

/* sessions: at most so many decoders at a time, each with its surfaces in GPU memory; 0: two for
 * each engine; below: the share in those of one of -sessions processes, at least one. library: NULL
 * for libnvcuvid.so.1 (FFmpeg loads that name in any case). Opens none. Owner: *out is the caller's
 * (rp_nvdec_free); the device stays open as long. Thread: any. Blocks: for the driver. Errors:
 * RP_E_ARG too many, RP_E_NOMEM. That there is no NVDEC is no error here: rp_nvdec_decide says so.
 */
RP_CHECKED rp_status rp_nvdec_new(rp_cuda *device, const char *library, int sessions,
                                  rp_nvdec **out, struct rp_error *err);

/* No run is under way; frames handed out stay valid. In a forked child everything is abandoned.
 * Nulls the pointer. NULL or pointer to NULL: nothing. Thread: any. Blocks: while the GPU works. */
void rp_nvdec_free(rp_nvdec **nvdec);

/* What was decided for a stream. */
struct rp_nvdec_verdict {
    enum rp_codec codec;
    int width, height; /* of the sample entry */
    uint64_t hash;     /* of its codec parameters: depth, chroma and profile are in them */
    bool on_gpu;
    char reason[256]; /* why the CPU; or what was compared */
};

/* Decide where a stream is decoded: on the GPU if FFmpeg has NVDEC for the codec, the driver says
 * that the GPU decodes this size, a session opens, and the packets, at most the first 32 of one run
 * from its key, give the same planes and tags on GPU and CPU. Decided once for equal parameters;
 * threads that ask meanwhile wait. n 0: RP_AGAIN if nothing is decided. Sizes that are odd, or
 * anything but 8-bit 4:2:0: the CPU.
 * Owner: all is the caller's. Thread: any, in no run of its own. Blocks: the first time, for two
 * decodes of the packets; while all sessions are busy. Errors (nothing is decided): RP_E_CUDA no
 * session to be had (names fewer workers, 0 or Loader), the GPU is lost, a forked child;
 * RP_E_NOMEM; RP_E_DECODE, RP_E_UNSUPPORTED the CPU refuses these packets, too. */
RP_CHECKED rp_status rp_nvdec_decide(rp_nvdec *nvdec, const struct rp_codec_params *params,
                                     const struct rp_packet *packets, int n,
                                     struct rp_nvdec_verdict *out, struct rp_error *err);

/* A decoder ready for a run of a stream that is decided for the GPU. `first` is the run's first
 * packet, as it will be sent; it is decoded here already where the session is new.
 * Owner: *out is the caller's until rp_nvdec_end. Thread: one at a time uses it. Blocks: if
 * may_wait, while all sessions are busy. Errors: RP_AGAIN they are, and it may not wait; RP_E_CUDA
 * as rp_nvdec_decide; RP_E_NOMEM; RP_E_DECODE the packet is damaged;
 * RP_E_UNSUPPORTED an open group of H.264, which is the CPU's to judge. */
RP_CHECKED rp_status rp_nvdec_begin(rp_nvdec *nvdec, const struct rp_codec_params *params,
                                    const struct rp_packet *first, bool may_wait, rp_decoder **out,
                                    struct rp_error *err);

/* End the run, failed or not, and give its session back; nulls the pointer. NULL or pointer to
 * NULL: nothing. Thread: any. Blocks: where a failed session is closed. */
void rp_nvdec_end(rp_nvdec *nvdec, rp_decoder **decoder);

#define RP_NVDEC_FAILURES 3
#define RP_NVDEC_IN_RUNS  10

/* Note that a run failed on NVDEC and that the CPU then decoded it. A stream of which
 * RP_NVDEC_FAILURES runs did, and one in RP_NVDEC_IN_RUNS, is the CPU's from then on; `why` becomes
 * the verdict's reason. Thread: any. Blocks: never for long. */
void rp_nvdec_failed(rp_nvdec *nvdec, const struct rp_codec_params *params, const char *why);

/* A verdict that the user is to be told of: the first stream of a codec that goes to the CPU, and
 * the first that is sent there for its failures. False: there is none that was not told yet.
 * Thread: any. Blocks: never for long. */
bool rp_nvdec_notice(rp_nvdec *nvdec, struct rp_nvdec_verdict *out);

struct rp_nvdec_stats {
    int most;       /* sessions at a time; falls when the driver gives no more */
    int open, busy; /* sessions now */
    int64_t made;   /* ever; opening one costs more than many pictures */
    int64_t runs;   /* begun */
    int64_t waits;  /* runs that waited for a session */
};
/* Thread: any. Blocks: never for long. */
void rp_nvdec_stats(rp_nvdec *nvdec, struct rp_nvdec_stats *out);

/* Copy up to cap verdicts, oldest first; how many there are. Thread: any. Blocks: never for long.
 */
int rp_nvdec_verdicts(rp_nvdec *nvdec, struct rp_nvdec_verdict *out, int cap);

/* Whether this FFmpeg was built with NVDEC for the codec. Thread: any. Blocks: never. */
bool rp_nvdec_in_ffmpeg(enum rp_codec codec);

#endif
