// NVDEC's structures as reelpool and its stand-in declare them, held against the headers that FFmpeg is built
// with (nv-codec-headers). Compiles or does not; build_ffmpeg.sh tries it where those headers are at hand.
#include "cuda/cuda_video.h"
#include "cuda/cuda_video_priv.h"

#include <cstddef>

#include <ffnvcodec/dynlink_cuda.h>
#include <ffnvcodec/dynlink_cuviddec.h>

#define SAME(ours, field, theirs, name)                                                  \
    static_assert(offsetof(ours, field) == offsetof(theirs, name) &&                     \
                      sizeof(ours::field) == sizeof(theirs::name), #name)

static_assert(sizeof(rp_cuvid_caps) == sizeof(CUVIDDECODECAPS), "");
SAME(rp_cuvid_caps, codec, CUVIDDECODECAPS, eCodecType);
SAME(rp_cuvid_caps, chroma, CUVIDDECODECAPS, eChromaFormat);
SAME(rp_cuvid_caps, depth_minus_8, CUVIDDECODECAPS, nBitDepthMinus8);
SAME(rp_cuvid_caps, supported, CUVIDDECODECAPS, bIsSupported);
SAME(rp_cuvid_caps, engines, CUVIDDECODECAPS, nNumNVDECs);
SAME(rp_cuvid_caps, output_formats, CUVIDDECODECAPS, nOutputFormatMask);
SAME(rp_cuvid_caps, max_width, CUVIDDECODECAPS, nMaxWidth);
SAME(rp_cuvid_caps, max_blocks, CUVIDDECODECAPS, nMaxMBCount);
SAME(rp_cuvid_caps, min_width, CUVIDDECODECAPS, nMinWidth);
SAME(rp_cuvid_caps, min_height, CUVIDDECODECAPS, nMinHeight);

static_assert(sizeof(rp_cuvid_create) == sizeof(CUVIDDECODECREATEINFO), "");
SAME(rp_cuvid_create, width, CUVIDDECODECREATEINFO, ulWidth);
SAME(rp_cuvid_create, surfaces, CUVIDDECODECREATEINFO, ulNumDecodeSurfaces);
SAME(rp_cuvid_create, codec, CUVIDDECODECREATEINFO, CodecType);
SAME(rp_cuvid_create, chroma, CUVIDDECODECREATEINFO, ChromaFormat);
SAME(rp_cuvid_create, output_format, CUVIDDECODECREATEINFO, OutputFormat);
SAME(rp_cuvid_create, target_width, CUVIDDECODECREATEINFO, ulTargetWidth);
SAME(rp_cuvid_create, target_height, CUVIDDECODECREATEINFO, ulTargetHeight);
SAME(rp_cuvid_create, outputs, CUVIDDECODECREATEINFO, ulNumOutputSurfaces);

static_assert(static_cast<int>(RP_CUDA_H264) == cudaVideoCodec_H264, "");
static_assert(static_cast<int>(RP_CUDA_HEVC) == cudaVideoCodec_HEVC, "");
static_assert(static_cast<int>(RP_CUDA_VP9) == cudaVideoCodec_VP9, "");
static_assert(static_cast<int>(RP_CUDA_AV1) == cudaVideoCodec_AV1, "");
static_assert(cudaVideoChromaFormat_420 == 1 && cudaVideoSurfaceFormat_NV12 == 0, "");
