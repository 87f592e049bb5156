// The driver's calls as reelpool declares them, held against NVIDIA's cuda.h: names with their
// versions, the number of parameters, and of each its size and whether it is a pointer. Compiles or
// does not; nothing is run or linked.
#include "cuda/cuda_video_priv.h"

#include <cuda.h>

#include <cstddef>

#include <string_view>
#include <type_traits>

template <class A, class B>
constexpr bool same = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;

template <class R, class... A, class S, class... B>
constexpr bool alike(R (*)(A...), S (*)(B...))
{
    if constexpr (sizeof...(A) == sizeof...(B)) {
        return same<R, S> && (same<A, B> && ...);
    }
    return false;
}

#define SPELLED(symbol) #symbol
#define EXPANDED(symbol) SPELLED(symbol)
#define CHECK_CALL(field, symbol, parameters)                                                 \
    static_assert(std::string_view(#symbol) == EXPANDED(symbol), #symbol " has a newer form"); \
    static_assert(alike(decltype(rp_cuda_api::field){}, decltype(&symbol){}), #symbol);
RP_CUDA_CALLS(CHECK_CALL)

static_assert(static_cast<int>(RP_CU_OUT_OF_MEMORY) == static_cast<int>(CUDA_ERROR_OUT_OF_MEMORY), "");
static_assert(static_cast<int>(RP_CU_NOT_INITIALIZED) == static_cast<int>(CUDA_ERROR_NOT_INITIALIZED), "");
static_assert(static_cast<int>(RP_CU_NO_DEVICE) == static_cast<int>(CUDA_ERROR_NO_DEVICE), "");
static_assert(static_cast<int>(RP_CU_NOT_READY) == static_cast<int>(CUDA_ERROR_NOT_READY), "");
static_assert(CU_EVENT_BLOCKING_SYNC == 1 && CU_EVENT_DISABLE_TIMING == 2, "EVENT_FLAGS");
static_assert(CU_STREAM_NON_BLOCKING == 1 && CU_MEMHOSTALLOC_PORTABLE == 1, "flags");
static_assert(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == 16, "PROCESSORS");
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75, "MAJOR");
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76, "MINOR");

#define SAME(ours, theirs) static_assert(offsetof(rp_cuda_rows, ours) == offsetof(CUDA_MEMCPY2D, theirs), #theirs)
static_assert(sizeof(rp_cuda_rows) == sizeof(CUDA_MEMCPY2D), "");
SAME(from_space, srcMemoryType);
SAME(from, srcDevice);
SAME(from_pitch, srcPitch);
SAME(to_space, dstMemoryType);
SAME(to, dstDevice);
SAME(to_pitch, dstPitch);
SAME(width, WidthInBytes);
SAME(rows, Height);
static_assert(CU_MEMORYTYPE_DEVICE == 2, "DEVICE_SPACE");
