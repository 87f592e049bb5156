/* CPU features, seen through a process-wide mask that tests and users can lower. */
#ifndef RP_BASE_CPU_H
#define RP_BASE_CPU_H

enum rp_cpu_tier {
    RP_CPU_C = 0,
    RP_CPU_AVX2 = 1,   /* AVX2 + FMA */
    RP_CPU_AVX512 = 2, /* AVX-512 F, BW, VL, DQ */
    RP_CPU_NEON = 3    /* aarch64 baseline */
};

/* Best tier that this machine has. Thread: any. Blocks: never. */
enum rp_cpu_tier rp_cpu_detect(void);

/* Best tier that the machine has and `highest` allows (an x86 tier above what exists falls back;
 * RP_CPU_C always works). Thread: any. Blocks: never. */
enum rp_cpu_tier rp_cpu_limit(enum rp_cpu_tier highest);

/* "c", "avx2", "avx512", "neon". Owner: constant. Thread: any. Blocks: never. */
const char *rp_cpu_name(enum rp_cpu_tier tier);

#endif
