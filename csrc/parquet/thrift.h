/* Thrift's compact protocol, as far as the footer of a Parquet file needs it: values are passed
 * over or copied as they are, nothing is built of them.
 *
 * Both ends remember a failure: a reader that met bad input gives zeros and ends every loop, a
 * writer without memory writes nothing more. The caller looks once, at the end. All functions:
 * thread any, never block; no errors but those marks. */
#ifndef RP_PARQUET_THRIFT_H
#define RP_PARQUET_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rp_thrift_type {
    RP_THRIFT_STOP,
    RP_THRIFT_TRUE, /* of a field: its value; of a list's elements: a byte each */
    RP_THRIFT_FALSE,
    RP_THRIFT_BYTE,
    RP_THRIFT_I16,
    RP_THRIFT_I32,
    RP_THRIFT_I64,
    RP_THRIFT_DOUBLE,
    RP_THRIFT_BINARY,
    RP_THRIFT_LIST,
    RP_THRIFT_SET,
    RP_THRIFT_MAP,
    RP_THRIFT_STRUCT,
    RP_THRIFT_UUID
};

/* Where to read on. Owner: the bytes are borrowed. */
struct rp_thrift_in {
    const uint8_t *at, *end;
    bool bad; /* what was read is no compact protocol; at == end then */
};

/* A field of a struct. */
struct rp_thrift_field {
    enum rp_thrift_type type;
    int id;               /* 0 before the first one */
    const uint8_t *value; /* its bytes */
};

/* The next field of the struct that `in` is in, after *field, which it replaces: `in` stands at its
 * value then. False at the end of the struct, and for bad input. */
bool rp_thrift_next(struct rp_thrift_in *in, struct rp_thrift_field *field);

/* Pass over a value: of a field, or (`element`) of a list. */
void rp_thrift_skip(struct rp_thrift_in *in, enum rp_thrift_type type, bool element);

/* Read a number of I16, I32 or I64. */
int64_t rp_thrift_number(struct rp_thrift_in *in);

/* Read the length of a binary value and pass over it: its first byte is the result. */
const uint8_t *rp_thrift_binary(struct rp_thrift_in *in, size_t *len);

/* Read the head of a list: how many elements follow, at most as many as bytes are left. */
size_t rp_thrift_list(struct rp_thrift_in *in, enum rp_thrift_type *element);

/* Mark the input as bad. */
void rp_thrift_refuse(struct rp_thrift_in *in);

/* What has been written. Owner: `data` is the caller's, freed with rp_free. */
struct rp_thrift_out {
    uint8_t *data;
    size_t len, cap; /* bytes, len <= cap */
    bool failed;     /* memory was short */
};

/* Write the head of a field; *last: id of the field before it, 0 for none. */
void rp_thrift_put_field(struct rp_thrift_out *out, enum rp_thrift_type type, int id, int *last);

/* Write a number as I16, I32 or I64; the head of a list; bytes as they are; the end of a struct. */
void rp_thrift_put_number(struct rp_thrift_out *out, int64_t value);
void rp_thrift_put_list(struct rp_thrift_out *out, enum rp_thrift_type element, size_t n);
void rp_thrift_put_bytes(struct rp_thrift_out *out, const uint8_t *data, size_t len);
void rp_thrift_put_stop(struct rp_thrift_out *out);

#endif
