#include "parquet/thrift.h"

#include "base/memory.h"

#include <string.h>

#define MAX_DEPTH  16
#define VARINT_MAX 10 /* bytes of 64 bits, 7 each */

/* A value of several that is being passed over. */
struct level {
    bool fields;                     /* a struct, which ends with a STOP */
    enum rp_thrift_type type, other; /* of its next element, and of the one after that */
    uint64_t left;                   /* elements */
};

void rp_thrift_refuse(struct rp_thrift_in *in)
{
    in->bad = true;
    in->at = in->end;
}

static uint8_t take_byte(struct rp_thrift_in *in)
{
    if (in->at == in->end) {
        rp_thrift_refuse(in);
        return 0;
    }
    return *in->at++;
}

static void take_bytes(struct rp_thrift_in *in, uint64_t n)
{
    if (n > (uint64_t)(in->end - in->at)) {
        rp_thrift_refuse(in);
        return;
    }
    in->at += n;
}

static uint64_t take_varint(struct rp_thrift_in *in)
{
    uint64_t value = 0;
    for (int i = 0; i < VARINT_MAX; i++) {
        uint8_t byte = take_byte(in);
        value |= (uint64_t)(byte & 0x7f) << 7 * i;
        if ((byte & 0x80) == 0) {
            if (i == VARINT_MAX - 1 && byte > 1) {
                break; /* more than 64 bits */
            }
            return value;
        }
    }
    rp_thrift_refuse(in);
    return 0;
}

int64_t rp_thrift_number(struct rp_thrift_in *in)
{
    uint64_t folded = take_varint(in); /* signs lie in the lowest bit */
    return (int64_t)(folded >> 1) ^ -(int64_t)(folded & 1);
}

const uint8_t *rp_thrift_binary(struct rp_thrift_in *in, size_t *len)
{
    uint64_t n = take_varint(in);
    const uint8_t *first = in->at;
    take_bytes(in, n);
    *len = in->bad ? 0 : (size_t)n;
    return first;
}

size_t rp_thrift_list(struct rp_thrift_in *in, enum rp_thrift_type *element)
{
    uint8_t head = take_byte(in);
    uint64_t n = head >> 4;
    if (n == 15) {
        n = take_varint(in);
    }
    if (n > (uint64_t)(in->end - in->at)) {
        rp_thrift_refuse(in); /* every element takes a byte, at least */
    }
    *element = (enum rp_thrift_type)(head & 15);
    return in->bad ? 0 : (size_t)n;
}

bool rp_thrift_next(struct rp_thrift_in *in, struct rp_thrift_field *field)
{
    uint8_t head = take_byte(in);
    if (head == RP_THRIFT_STOP) {
        return false; /* as it is for bad input */
    }
    int64_t id = head >> 4 != 0 ? field->id + (head >> 4) : rp_thrift_number(in);
    if ((head & 15) == RP_THRIFT_STOP || id <= 0 || id > INT16_MAX) {
        rp_thrift_refuse(in);
    }
    *field = (struct rp_thrift_field){(enum rp_thrift_type)(head & 15), (int)id, in->at};
    return !in->bad;
}

/* Pass over a value; true when it holds others, which *level describes. */
static bool enter(struct rp_thrift_in *in, enum rp_thrift_type type, struct level *level)
{
    *level = (struct level){0};
    switch (type) {
    case RP_THRIFT_TRUE:
    case RP_THRIFT_FALSE:
    case RP_THRIFT_BYTE: take_bytes(in, 1); return false;
    case RP_THRIFT_I16:
    case RP_THRIFT_I32:
    case RP_THRIFT_I64: (void)take_varint(in); return false; /* its value is of no interest */
    case RP_THRIFT_DOUBLE: take_bytes(in, 8); return false;
    case RP_THRIFT_UUID: take_bytes(in, 16); return false;
    case RP_THRIFT_BINARY: take_bytes(in, take_varint(in)); return false;
    case RP_THRIFT_LIST:
    case RP_THRIFT_SET:
        level->left = rp_thrift_list(in, &level->type);
        level->other = level->type;
        return true;
    case RP_THRIFT_MAP:
        level->left = take_varint(in);
        if (level->left > 0) {
            uint8_t kinds = take_byte(in);
            level->type = (enum rp_thrift_type)(kinds >> 4);
            level->other = (enum rp_thrift_type)(kinds & 15);
        }
        if (level->left > (uint64_t)(in->end - in->at)) {
            rp_thrift_refuse(in);
        }
        level->left *= 2; /* keys and values take turns */
        return true;
    case RP_THRIFT_STRUCT: level->fields = true; return true;
    case RP_THRIFT_STOP: break;
    }
    rp_thrift_refuse(in);
    return false;
}

void rp_thrift_skip(struct rp_thrift_in *in, enum rp_thrift_type type, bool element)
{
    struct level levels[MAX_DEPTH];
    if (!element && (type == RP_THRIFT_TRUE || type == RP_THRIFT_FALSE)) {
        return; /* the head of the field has said it */
    }
    int depth = enter(in, type, &levels[0]) ? 1 : 0;
    while (depth > 0 && !in->bad) {
        struct level *top = &levels[depth - 1];
        enum rp_thrift_type next = top->type;
        if (top->fields) {
            struct rp_thrift_field field = {0}; /* ids are of no interest: any may follow */
            if (!rp_thrift_next(in, &field)) {
                depth--;
                continue;
            }
            next = field.type;
            if (next == RP_THRIFT_TRUE || next == RP_THRIFT_FALSE) {
                continue;
            }
        }
        else if (top->left == 0) {
            depth--;
            continue;
        }
        else {
            top->left--;
            top->type = top->other;
            top->other = next;
        }
        if (depth == MAX_DEPTH) {
            rp_thrift_refuse(in);
        }
        else if (enter(in, next, &levels[depth])) {
            depth++;
        }
    }
}

void rp_thrift_put_bytes(struct rp_thrift_out *out, const uint8_t *data, size_t len)
{
    if (out->failed || len == 0) {
        return;
    }
    if (len > out->cap - out->len) {
        size_t cap = 2 * out->cap + len + 256;
        uint8_t *more = rp_realloc(out->data, cap, 1);
        if (more == NULL) {
            out->failed = true;
            return;
        }
        out->data = more;
        out->cap = cap;
    }
    memcpy(out->data + out->len, data, len);
    out->len += len;
}

static void put_varint(struct rp_thrift_out *out, uint64_t value)
{
    uint8_t bytes[VARINT_MAX];
    size_t n = 0;
    do {
        bytes[n++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
    rp_thrift_put_bytes(out, bytes, n);
}

void rp_thrift_put_number(struct rp_thrift_out *out, int64_t value)
{
    put_varint(out, (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0));
}

void rp_thrift_put_field(struct rp_thrift_out *out, enum rp_thrift_type type, int id, int *last)
{
    int step = id - *last;
    bool near = step > 0 && step <= 15;
    uint8_t head = (uint8_t)((near ? step << 4 : 0) | (int)type);
    rp_thrift_put_bytes(out, &head, 1);
    if (!near) {
        rp_thrift_put_number(out, id);
    }
    *last = id;
}

void rp_thrift_put_list(struct rp_thrift_out *out, enum rp_thrift_type element, size_t n)
{
    uint8_t head = (uint8_t)((n < 15 ? n << 4 : 0xf0) | (size_t)element);
    rp_thrift_put_bytes(out, &head, 1);
    if (n >= 15) {
        put_varint(out, n);
    }
}

void rp_thrift_put_stop(struct rp_thrift_out *out)
{
    rp_thrift_put_bytes(out, &(uint8_t){RP_THRIFT_STOP}, 1);
}
