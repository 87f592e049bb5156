/* Hostile packets: a status for each call, no crash, nothing left alive.
 *
 * Input: byte 0 codec, bytes 1 and 2 size of the extradata, then the extradata, then packets, each
 * with a head of 3 bytes: flags (1 key, 2 wanted, 4 drain after it, 8 new run after it) and a
 * 16-bit length. */
#include "base/memory.h"
#include "decode/decode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KEY = 1, WANTED = 2, DRAIN = 4, RESTART = 8 };

/* Take all pictures and look at their first and last bytes. */
static rp_status receive(rp_decoder *decoder)
{
    rp_frame *frame = NULL;
    rp_status status;
    while ((status = rp_decoder_receive(decoder, &frame, NULL)) == RP_OK) {
        const struct rp_image *image = rp_frame_image(frame);
        assert(image->width > 0 && image->height > 0 && rp_frame_bytes(frame) > 0);
        volatile uint8_t byte = image->plane[0][0];
        byte = image->plane[0][(image->height - 1) * image->stride[0] + image->width - 1];
        (void)byte; /* reading is the check */
        rp_frame_unref(&frame);
    }
    assert(frame == NULL);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t alive = rp_live_objects();
    rp_decoder_cache *cache = NULL;
    if (size < 3 || rp_decoder_cache_new(2, &cache, NULL) != RP_OK) {
        return 0;
    }
    size_t extra = (size_t)data[1] << 8 | data[2];
    extra = extra < size - 3 ? extra : size - 3;
    struct rp_codec_params params = {.codec = (enum rp_codec)(1 + data[0] % 5),
                                     .width = 64,
                                     .height = 64,
                                     .extradata = data + 3,
                                     .extradata_len = extra,
                                     .full_range = -1,
                                     .hash = data[0] % 5};
    rp_decoder *decoder = NULL;
    int64_t time = 0;
    int packets = 0;
    for (size_t at = 3 + extra; at + 3 < size && packets < 64; packets++) {
        unsigned flags = data[at];
        size_t len = (size_t)data[at + 1] << 8 | data[at + 2];
        at += 3;
        len = len < size - at ? len : size - at;
        struct rp_packet packet = {.data = data + at,
                                   .len = len,
                                   .pts = time,
                                   .dts = time,
                                   .key = (flags & KEY) != 0,
                                   .wanted = (flags & WANTED) != 0};
        time++;
        at += len;
        if (decoder == NULL &&
            rp_decoder_cache_get(cache, &params, &packet, &decoder, NULL) != RP_OK) {
            break;
        }
        rp_status status = rp_decoder_send(decoder, &packet, NULL);
        status = status == RP_OK ? receive(decoder) : status;
        if (status >= 0 && (flags & DRAIN) != 0 && rp_decoder_drain(decoder, NULL) == RP_OK) {
            status = receive(decoder);
            assert(status != RP_AGAIN);
        }
        if (status != RP_AGAIN || (flags & RESTART) != 0) {
            decoder = NULL; /* the next packet starts a run */
        }
    }
    rp_decoder_cache_free(&cache);
    assert(rp_live_objects() == alive);
    return 0;
}
