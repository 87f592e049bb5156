#include "cuda/convert_kernel.h"

/* A batch in one launch: blockIdx.z is the picture, the threads of a grid row share its items. The
 * descriptor lies in shared memory: read from global memory it would be read again after every
 * store. */
extern "C" __global__ void __launch_bounds__(256)
    rp_convert_batch(const struct rp_cuda_frame *frames)
{
    __shared__ struct rp_cuda_frame frame;
    static_assert(sizeof(frame) % 4 == 0, "copied by words");
    const uint32_t *from = (const uint32_t *)(frames + blockIdx.z);
    for (unsigned i = threadIdx.x; i < sizeof(frame) / 4; i += blockDim.x) {
        ((uint32_t *)&frame)[i] = from[i];
    }
    __syncthreads();
    const int items = rp_cuda_items(&frame);
    const int step = (int)(gridDim.x * blockDim.x);
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < items; i += step) {
        rp_cuda_item(&frame, i);
    }
}
