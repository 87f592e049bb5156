#include "pool/nvdec_probe.h"

#include "base/memory.h"
#include "cuda/cuda.h"
#include "fetch/fetch.h"
#include "pool/pool.h"

enum { MOST = 32 }; /* packets of a file: as many as are compared */

/* The file's first group, at most MOST packets, read one by one. */
static rp_status read_packets(rp_files *files, int i, const rp_index *index,
                              struct rp_packet *packets, uint8_t **bytes, int *n,
                              struct rp_error *err)
{
    struct rp_sample sample;
    size_t total = 0;
    int64_t end = rp_index_samples(index) < MOST ? rp_index_samples(index) : MOST;
    for (*n = 0; *n < end; (*n)++) {
        rp_index_sample(index, *n, &sample);
        if (*n > 0 && sample.key) {
            break;
        }
        total += sample.size;
    }
    *bytes = rp_calloc(1, total > 0 ? total : 1);
    if (*bytes == NULL) {
        RP_FAIL(err, RP_E_NOMEM, "out of memory for %zu bytes of video", total);
    }
    uint8_t *at = *bytes;
    for (int k = 0; k < *n; k++) {
        rp_index_sample(index, k, &sample);
        RP_TRY(rp_files_read(files, i, sample.offset, sample.size, at, err));
        packets[k] = (struct rp_packet){.data = at,
                                        .len = sample.size,
                                        .pts = sample.pts,
                                        .dts = sample.dts,
                                        .key = sample.key,
                                        .wanted = true};
        at += sample.size;
    }
    return RP_OK;
}

static rp_status probe_file(rp_nvdec *nvdec, rp_files *files, int i, struct rp_nvdec_verdict *out,
                            struct rp_error *err)
{
    rp_index *index = NULL;
    struct rp_packet packets[MOST];
    uint8_t *bytes = NULL;
    int n = 0;
    RP_TRY(rp_video_index_read(files, i, &index, NULL, err));
    rp_status status = read_packets(files, i, index, packets, &bytes, &n, err);
    if (status == RP_OK) {
        status = rp_nvdec_decide(nvdec, rp_index_codec(index), packets, n, out, err);
    }
    rp_free(bytes);
    rp_index_free(&index);
    return status;
}

rp_status rp_nvdec_probe(const char *driver, const char *library, int ordinal,
                         const char *const *paths, int n, struct rp_nvdec_verdict *out,
                         struct rp_error *err)
{
    rp_files *files = NULL;
    rp_cuda *device = NULL;
    rp_nvdec *nvdec = NULL;
    RP_TRY(rp_files_new(paths, n, n, &files, err));
    rp_status status = rp_cuda_open(driver, ordinal, 0, &device, err);
    if (status == RP_OK) {
        status = rp_nvdec_new(device, library, 1, &nvdec, err);
    }
    for (int i = 0; i < n && status == RP_OK; i++) {
        status = probe_file(nvdec, files, i, &out[i], err);
    }
    rp_nvdec_free(&nvdec);
    rp_cuda_close(&device);
    rp_files_free(&files);
    return status;
}
