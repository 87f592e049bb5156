#include "cuda/cuda.h"

#ifdef RP_WITH_CUDA
/* nvcc's fatbin of convert_kernel.cu, written by compile_kernel.py. */
static const unsigned char image[] __attribute__((aligned(16))) = {
#    include "cuda/convert_kernel.inc"
};

const void *rp_cuda_image(void)
{
    return image;
}

const char *rp_cuda_built(void)
{
    return RP_WITH_CUDA;
}
#else
const void *rp_cuda_image(void)
{
    return NULL;
}

const char *rp_cuda_built(void)
{
    return "";
}
#endif
