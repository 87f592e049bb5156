/* Inside decode: what the sessions and the verdicts of NVDEC share. */
#ifndef RP_DECODE_NVDEC_PRIV_H
#define RP_DECODE_NVDEC_PRIV_H

#include "base/thread.h"
#include "cuda/cuda_video.h"
#include "decode/dec_cuda.h"
#include "decode/decode_priv.h"
#include "decode/nvdec.h"

struct rp_nvdec_session {
    rp_decoder decoder; /* native NULL: not open; its holder's while it is busy */
    bool busy;          /* guarded by the lock */
    uint64_t stream;    /* hash of its last holder's parameters; guarded by the lock */
};

struct rp_nvdec_entry {
    struct rp_nvdec_entry *next; /* oldest first */
    bool decided, under_way;     /* guarded by the lock, as all below */
    bool untold;                 /* the user is to be told of it */
    bool demoted;                /* by its failures */
    int64_t runs, failed;        /* since it was decided; failed: the CPU decoded those */
    struct rp_nvdec_verdict verdict;
};

struct rp_nvdec {
    rp_cuda *device; /* borrowed */
    const char *library;
    uint64_t generation; /* of forks */
    rp_lock lock;
    rp_cond changed;                /* a session or a verdict became free */
    struct rp_nvdec_entry *entries; /* guarded by the lock */
    struct rp_nvdec_stats stats;    /* guarded by the lock */
    uint64_t uses;                  /* guarded by the lock */
    bool opening;                   /* a session is being opened; guarded by the lock */
    int n;                          /* of session[] */
    struct rp_nvdec_session session[];
};

/* NVDEC's number of a codec; 0: it is never asked for it. Thread: any. Blocks: never. */
enum rp_cuda_codec rp_nvdec_codec(enum rp_codec codec);

/* rp_nvdec_begin. trial: nothing is decided yet, so that a refusal may be the stream's: RP_E_CUDA
 * with sys RP_NVDEC_REFUSED, RP_NVDEC_NONE or the driver's number. */
RP_CHECKED rp_status rp_nvdec_open(rp_nvdec *nvdec, const struct rp_codec_params *params,
                                   const struct rp_packet *first, bool may_wait, bool trial,
                                   rp_decoder **out, struct rp_error *err);

#endif
