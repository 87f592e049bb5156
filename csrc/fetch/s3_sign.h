/* Signatures of S3 requests (AWS Signature Version 4) and the codes of its errors: pure text. */
#ifndef RP_FETCH_S3_SIGN_H
#define RP_FETCH_S3_SIGN_H

#include "base/error.h"
#include "fetch/url.h"

#include <stdint.h>

#define RP_S3_KEY_MAX    256 /* bytes of an access key, a secret or a region */
#define RP_S3_PARAMETERS 64  /* of a query */

/* SHA-256 of the empty body, as a header line. */
#define RP_S3_EMPTY_BODY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

/* Texts that may stand in a header. */
struct rp_s3_key {
    const char *access, *secret, *region;
    const char *session; /* NULL: none */
};

/* Header lines; wipe them with explicit_bzero. */
struct rp_s3_signature {
    char authorization[1024]; /* "Authorization: AWS4-HMAC-SHA256 Credential=..." */
    char date[40];            /* "x-amz-date: 20130524T000000Z" */
};

/* Sign a GET of url with an empty body at now_s (seconds since 1970). Signed are: host,
 * x-amz-content-sha256 (RP_S3_EMPTY_BODY), x-amz-date and, with a session, x-amz-security-token;
 * all of them must be sent. Path and query are decoded and encoded again, each once; in the query a
 * plus sign is a space. Owner: *out is the caller's. Thread: any. Blocks: never. Errors: RP_E_ARG a
 * key that is too long, a time before 1970 or after 9999, more than RP_S3_PARAMETERS parameters;
 * RP_E_NOMEM. Secrets are never in the error. */
RP_CHECKED rp_status rp_s3_sign(const struct rp_s3_key *key, const struct rp_url *url,
                                int64_t now_s, struct rp_s3_signature *out, struct rp_error *err);

/* The <Code> of an error body, letters and digits alone; "" where there is none that fits out.
 * Thread: any. Blocks: never. */
void rp_s3_error_code(const char *body, size_t len, char *out, size_t room);

#endif
