/* The GPU's kernel, run here: the same source, item by item. */
#ifndef RP_TESTS_KERNEL_HOST_H
#define RP_TESTS_KERNEL_HOST_H

#include "cuda/convert_kernel.h"

static void kernel_on_host(const struct rp_cuda_frame *frames, int n)
{
    for (int i = 0; i < n; i++) {
        int items = rp_cuda_items(&frames[i]);
        for (int k = items - 1; k >= 0; k--) { /* the order of items means nothing */
            rp_cuda_item(&frames[i], k);
        }
    }
}

#endif
