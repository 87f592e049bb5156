/* Inside cuda: structures of the driver and of NVDEC as their ABI has them. tests/gpu holds them
 * against NVIDIA's headers. */
#ifndef RP_CUDA_CUDA_VIDEO_PRIV_H
#define RP_CUDA_CUDA_VIDEO_PRIV_H

#include "cuda/cuda_priv.h"

/* CUDA_MEMCPY2D. */
struct rp_cuda_rows {
    size_t from_x, from_y;
    int from_space; /* CUmemorytype */
    const void *from_host;
    uint64_t from;
    void *from_array;
    size_t from_pitch, to_x, to_y;
    int to_space;
    void *to_host;
    uint64_t to;
    void *to_array;
    size_t to_pitch, width, rows;
};

/* CUVIDDECODECAPS and CUVIDDECODECREATEINFO of NVDEC. */
struct rp_cuvid_caps {
    int codec, chroma;
    unsigned depth_minus_8, reserved[3];
    unsigned char supported, engines;
    unsigned short output_formats;
    unsigned max_width, max_height, max_blocks;
    unsigned short min_width, min_height;
    unsigned char histogram, counter_depth;
    unsigned short histogram_bins;
    unsigned reserved_too[10];
};

struct rp_cuvid_create {
    unsigned long width, height, surfaces;
    int codec, chroma;
    unsigned long flags, depth_minus_8, intra_only, max_width, max_height, reserved;
    short display[4];
    int output_format, deinterlace;
    unsigned long target_width, target_height, outputs;
    void *lock;
    short target[4];
    unsigned long histogram, reserved_too[4];
};

#endif
