/* A decoded picture -> tensor bytes in their final place. Stateless but for a per-thread scratch;
 * kernels are chosen once per process by rp_convert_init. */
#ifndef RP_CONVERT_CONVERT_H
#define RP_CONVERT_CONVERT_H

#include "base/cpu.h"
#include "base/error.h"
#include "base/image.h"

#include <stddef.h>
#include <stdint.h>

enum rp_pixel_type {
    RP_PIXEL_U8 = 0,  /* RGB 0..255 */
    RP_PIXEL_F32 = 1, /* RGB, u8 / 255 by true division; with a depth table: its values */
    RP_PIXEL_U16 = 2  /* depth codes 0..4095 as they are */
};

/* Where and how one picture is to be written: CHW, channels 3 (RGB) or 1 (depth). */
struct rp_target {
    void *data; /* first element; aligned to its element. Rows and planes that start
                                 at multiples of 64 bytes are written about twice as fast */
    enum rp_pixel_type type;
    int width, height;      /* pixels; differ from the picture: RGB is resized, depth is refused */
    ptrdiff_t row_stride;   /* bytes between rows */
    ptrdiff_t plane_stride; /* bytes between channels */
    const float *depth_table; /* 4096 entries: code -> value; NULL: RGB, or RP_PIXEL_U16 codes */
};

/* Buffers that a thread's conversions reuse (resize, libswscale). */
typedef struct rp_scratch rp_scratch;

/* Choose the kernels, at most of tier `highest`; the first call wins, later ones return what was
 * chosen. Thread: any. Blocks: never. Errors: none. */
enum rp_cpu_tier rp_convert_init(enum rp_cpu_tier highest);

/* Owner: *out is the caller's. Thread: one at a time uses it. Blocks: never. Errors: RP_E_NOMEM.
 * free: NULL or pointer to NULL is fine. */
RP_CHECKED rp_status rp_scratch_new(rp_scratch **out, struct rp_error *err);
void rp_scratch_free(rp_scratch **scratch);

/* Convert one picture into *target. 8-bit 4:2:0 of even width and height by the integer formula of
 * docs/pixels.md, other RGB formats through libswscale, gray12 through the depth table or as codes.
 * Owner: image, target, scratch are borrowed for the call. Thread: any, with its own scratch.
 * Blocks: only while a fork is under way (libswscale). Allocates only inside scratch, when a size
 * is met for the first time.
 * Errors: RP_E_UNSUPPORTED the format cannot be converted to the type (depth to RGB and so on),
 * depth resized, a side beyond 1..32768; RP_E_DECODE a depth code above 4095; RP_E_NOMEM. */
RP_CHECKED rp_status rp_convert(const struct rp_image *image, const struct rp_target *target,
                                rp_scratch *scratch, struct rp_error *err);

#endif
