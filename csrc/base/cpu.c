#include "base/cpu.h"

enum rp_cpu_tier rp_cpu_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return RP_CPU_C;
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return RP_CPU_AVX512;
    }
    return RP_CPU_AVX2;
#elif defined(__aarch64__)
    return RP_CPU_NEON;
#else
    return RP_CPU_C;
#endif
}

enum rp_cpu_tier rp_cpu_limit(enum rp_cpu_tier highest)
{
    enum rp_cpu_tier best = rp_cpu_detect();
    if (best == RP_CPU_NEON || highest == RP_CPU_NEON) {
        return best == highest ? best : RP_CPU_C;
    }
    return highest < best ? highest : best;
}

const char *rp_cpu_name(enum rp_cpu_tier tier)
{
    switch (tier) {
    case RP_CPU_C: return "c";
    case RP_CPU_AVX2: return "avx2";
    case RP_CPU_AVX512: return "avx512";
    case RP_CPU_NEON: return "neon";
    }
    return "unknown";
}
