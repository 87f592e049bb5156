/* The structures of DLPack 1.0 as its ABI has them: how an array leaves for another library. */
#ifndef RP_PYTHON_DLPACK_PRIV_H
#define RP_PYTHON_DLPACK_PRIV_H

#include <stdint.h>

enum dl_device_type { DL_CUDA = 2 };
enum dl_type_code { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BOOL = 6 };

struct dl_device {
    int32_t type;
    int32_t id;
};

struct dl_type {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t ndim;
    struct dl_type dtype;
    int64_t *shape;
    int64_t *strides; /* elements */
    uint64_t byte_offset;
};

/* A capsule named "dltensor". */
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
};

/* A capsule named "dltensor_versioned", for those who say that they know version 1. */
struct dl_managed_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    struct dl_tensor tensor;
};

#endif
