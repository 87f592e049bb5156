#include "convert/convert_priv.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* Antialiased bilinear resize of uint8 planes, equal to torchvision's resize(uint8,
 * antialias=True): horizontal then vertical pass, uint8 in between. Output i sits at the input
 * position scale * (i + 0.5); its weights are a triangle of half-width max(scale, 1), normalised in
 * f64, then rounded to int16 at the largest shift whose greatest weight still fits. */

#define MAX_SHIFT 22

void rp_axis_free(struct rp_axis *axis)
{
    rp_free(axis->first);
    rp_free(axis->count);
    rp_free(axis->weight);
    *axis = (struct rp_axis){0};
}

/* First input sample and number of samples under the triangle around `centre`. */
static void axis_span(double centre, double support, int in, int taps, int *first, int *count)
{
    int low = (int)(centre - support + 0.5);
    int high = (int)(centre + support + 0.5);
    low = low > 0 ? low : 0;
    high = high < in ? high : in;
    *first = low;
    *count = high - low < taps ? high - low : taps;
}

/* The normalised weights of one output sample; returns the greatest. */
static double axis_weights(double centre, double inverse, int first, int count, double *weight)
{
    double total = 0.0;
    for (int k = 0; k < count; k++) {
        double x = fabs((first + k - centre + 0.5) * inverse);
        weight[k] = x < 1.0 ? 1.0 - x : 0.0;
        total += weight[k];
    }
    double greatest = 0.0;
    for (int k = 0; k < count; k++) {
        weight[k] = total != 0.0 ? weight[k] / total : weight[k];
        greatest = fmax(greatest, weight[k]);
    }
    return greatest;
}

static int axis_shift(double greatest)
{
    int shift = 0;
    while (shift < MAX_SHIFT && (int)(0.5 + greatest * (1 << (shift + 1))) < (1 << 15)) {
        shift++;
    }
    return shift;
}

rp_status rp_axis_fill(struct rp_axis *axis, int in, int out, struct rp_error *err)
{
    double scale = (double)in / out;
    double support = scale >= 1.0 ? scale : 1.0;
    double inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    int taps = (int)ceil(support) * 2 + 1;
    size_t n = (size_t)out;

    *axis = (struct rp_axis){.in = in, .out = out, .taps = taps};
    axis->first = rp_calloc(n, sizeof(*axis->first));
    axis->count = rp_calloc(n, sizeof(*axis->count));
    axis->weight = rp_calloc(n * (size_t)taps, sizeof(*axis->weight));
    double *weight = rp_calloc(n * (size_t)taps, sizeof(*weight));
    if (axis->first == NULL || axis->count == NULL || axis->weight == NULL || weight == NULL) {
        rp_free(weight);
        rp_axis_free(axis);
        RP_FAIL(err, RP_E_NOMEM, "out of memory for the weights of a resize from %d to %d", in,
                out);
    }
    double greatest = 0.0;
    for (int i = 0; i < out; i++) {
        double centre = scale * (i + 0.5);
        axis_span(centre, support, in, taps, &axis->first[i], &axis->count[i]);
        double w = axis_weights(centre, inverse, axis->first[i], axis->count[i],
                                weight + (size_t)i * (size_t)taps);
        greatest = fmax(greatest, w);
    }
    axis->shift = axis_shift(greatest);
    for (size_t i = 0; i < n * (size_t)taps; i++) {
        axis->weight[i] = (int16_t)(0.5 + weight[i] * (1 << axis->shift));
    }
    rp_free(weight);
    return RP_OK;
}

/* The weights in -> out, from the cache or computed into its least recently used slot. */
static rp_status axis_get(rp_scratch *scratch, int in, int out, const struct rp_axis **axis,
                          struct rp_error *err)
{
    struct rp_axis *oldest = &scratch->axis[0];
    for (int i = 0; i < RP_AXIS_SLOTS; i++) {
        struct rp_axis *slot = &scratch->axis[i];
        if (slot->in == in && slot->out == out) {
            slot->used = ++scratch->clock;
            *axis = slot;
            return RP_OK;
        }
        oldest = slot->used < oldest->used ? slot : oldest;
    }
    rp_axis_free(oldest);
    RP_TRY(rp_axis_fill(oldest, in, out, err));
    oldest->used = ++scratch->clock;
    *axis = oldest;
    return RP_OK;
}

static inline uint8_t clip8(int v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void pass_x(const uint8_t *in, uint8_t *out, const struct rp_axis *axis)
{
    const int half = 1 << (axis->shift - 1);
    const int16_t *weight = axis->weight;
    for (int i = 0; i < axis->out; i++, weight += axis->taps) {
        const uint8_t *from = in + axis->first[i];
        int sum = half;
        for (int k = 0; k < axis->count[i]; k++) {
            sum += from[k] * weight[k];
        }
        out[i] = clip8(sum >> axis->shift);
    }
}

#define STRIP 512

/* One output row; strips of columns keep the sums in the first-level cache. */
static void pass_y(const uint8_t *in, ptrdiff_t stride, uint8_t *out, int width,
                   const int16_t *weight, int count, int shift)
{
    int sum[STRIP];
    for (int x0 = 0; x0 < width; x0 += STRIP) {
        int n = width - x0 < STRIP ? width - x0 : STRIP;
        for (int x = 0; x < n; x++) {
            sum[x] = 1 << (shift - 1);
        }
        for (int k = 0; k < count; k++) {
            const uint8_t *row = in + k * stride + x0;
            const int16_t w = weight[k];
            for (int x = 0; x < n; x++) {
                sum[x] += row[x] * w;
            }
        }
        for (int x = 0; x < n; x++) {
            out[x0 + x] = clip8(sum[x] >> shift);
        }
    }
}

/* ax or ay is NULL where that size stays; `middle` is used when both change. */
static void resize_plane(const uint8_t *in, ptrdiff_t in_stride, int in_h, const struct rp_axis *ax,
                         const struct rp_axis *ay, uint8_t *middle, uint8_t *out,
                         ptrdiff_t out_stride, int out_w, int out_h)
{
    if (ax != NULL) {
        for (int y = 0; y < in_h; y++) {
            uint8_t *to = ay != NULL ? middle + (ptrdiff_t)y * out_w : out + y * out_stride;
            pass_x(in + y * in_stride, to, ax);
        }
        in = middle;
        in_stride = out_w;
    }
    if (ay != NULL) {
        for (int y = 0; y < out_h; y++) {
            pass_y(in + ay->first[y] * in_stride, in_stride, out + y * out_stride, out_w,
                   ay->weight + (ptrdiff_t)y * ay->taps, ay->count[y], ay->shift);
        }
    }
}

rp_status rp_resize_planes(const struct rp_planes *in, int in_w, int in_h,
                           const struct rp_planes *out, int out_w, int out_h, rp_scratch *scratch,
                           struct rp_error *err)
{
    const struct rp_axis *ax = NULL;
    const struct rp_axis *ay = NULL;
    if (in_w != out_w) {
        RP_TRY(axis_get(scratch, in_w, out_w, &ax, err));
    }
    if (in_h != out_h) {
        RP_TRY(axis_get(scratch, in_h, out_h, &ay, err));
    }
    if (ax != NULL && ay != NULL) {
        RP_TRY(rp_grown_reserve(&scratch->middle, (size_t)out_w * (size_t)in_h, err));
    }
    for (int c = 0; c < 3; c++) {
        resize_plane(in->plane[c], in->row_stride, in_h, ax, ay, scratch->middle.data,
                     out->plane[c], out->row_stride, out_w, out_h);
    }
    return RP_OK;
}
