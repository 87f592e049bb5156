/* Controls of the fake libnvcuvid.so.1 (fake_nvcuvid.c), which stands in for NVDEC. */
#ifndef RP_TESTS_FAKE_NVCUVID_H
#define RP_TESTS_FAKE_NVCUVID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A coded picture and what it decodes to. */
struct fake_picture {
    const uint8_t *packet;
    size_t len;
    const uint8_t
        *nv12; /* width x height luma bytes, then half as many pairs; NULL: it is never shown */
    int width, height;
};

struct fake_nvcuvid {
    unsigned codecs; /* bits by NVDEC's number: those that it decodes */
    unsigned char engines;
    unsigned short min_width, min_height;
    unsigned max_width, max_height;
    unsigned pitch;            /* bytes between rows are a multiple of it */
    int most;                  /* decoders at a time; more: out of memory */
    int create_code;           /* every creation fails so; 0: none */
    int map_code, decode_code; /* the same of pictures, from the call map_nth / decode_nth on */
    long map_nth, decode_nth;
    long map_once;     /* this call fails, too */
    long map_every;    /* and those that it divides; 0: none */
    int off_by;        /* added to the luma of every picture's first byte */
    unsigned delay_us; /* every call takes up to this long, before and behind its work */
    /* Called when a creation has ended, with its number, on its thread; NULL: nobody. */
    void (*created)(void *arg, int code);
    void *arg;
    const struct fake_picture *pictures;
    int n;
    /* seen */
    int decoders; /* alive */
    int surfaces; /* mapped now */
    long made, decoded, mapped;
    long unknown;        /* coded pictures that are not in the table */
    long misuse;         /* indices outside, surfaces in use, more mapped than asked for */
    void (*reset)(void); /* controls and counts as at the start; what is alive stays */
};

/* Symbol of the library: its one state. Set it up while no decoder works. */
struct fake_nvcuvid *fake_nvcuvid(void);
#define FAKE_NVCUVID_SYMBOL "fake_nvcuvid"

#endif
