/* The error record: first text wins, coordinates are filled once, long strings are cut. */
#include "harness.h"

RP_TEST(clear_means_no_coordinates)
{
    struct rp_error err;
    memset(&err, 0x5a, sizeof(err));
    rp_error_clear(&err);
    (void)CHECK_EQ(err.code, RP_OK);
    (void)CHECK_EQ(err.sys, 0);
    (void)CHECK(err.offset == -1 && err.length == -1 && err.episode == -1 && err.frame == -1);
    (void)CHECK(isnan(err.time) && isnan(err.nearest));
    (void)CHECK(err.file[0] == '\0' && err.camera[0] == '\0' && err.what[0] == '\0');
    rp_error_clear(NULL);
}

RP_TEST(the_first_failure_wins)
{
    struct rp_error err;
    rp_error_clear(&err);
    (void)CHECK_EQ(rp_error_set(&err, RP_E_IO, "first %d", 1), RP_E_IO);
    (void)CHECK_EQ(rp_error_set(&err, RP_E_ARG, "second"), RP_E_ARG);
    (void)CHECK_EQ(err.code, RP_E_IO);
    (void)CHECK_STR(err.what, "first 1");
    (void)CHECK_EQ(rp_error_set(NULL, RP_E_ARG, "nobody listens"), RP_E_ARG);
}

RP_TEST(coordinates_are_filled_once)
{
    struct rp_error err;
    rp_error_clear(&err);
    rp_error_at_file(&err, "inner.mp4", 7, 8);
    rp_error_at_file(&err, "outer.mp4", 9, 10);
    rp_error_at_frame(&err, "front", 3, -1);
    rp_error_at_frame(&err, "wrist", 4, 5);
    (void)CHECK_STR(err.file, "inner.mp4");
    (void)CHECK(err.offset == 7 && err.length == 8);
    (void)CHECK_STR(err.camera, "front");
    (void)CHECK(err.episode == 3 && err.frame == 5);
    rp_error_at_file(NULL, "x", 0, 0);
    rp_error_at_frame(NULL, "x", 0, 0);
    rp_error_at_file(&err, NULL, -1, -1);
    rp_error_at_frame(&err, NULL, -1, -1);
}

RP_TEST(long_texts_are_cut)
{
    struct rp_error err;
    char text[2000];
    memset(text, 'a', sizeof(text));
    memcpy(text + sizeof(text) - 9, "tail.mp4", 9);
    rp_error_clear(&err);
    (void)CHECK_EQ(rp_error_set(&err, RP_E_IO, "%s", text), RP_E_IO);
    rp_error_at_file(&err, text, 0, 0);
    rp_error_at_frame(&err, text, 0, 0);
    (void)CHECK_EQ(strlen(err.what), sizeof(err.what) - 1);
    (void)CHECK_EQ(strlen(err.file), sizeof(err.file) - 1);
    (void)CHECK_EQ(strlen(err.camera), sizeof(err.camera) - 1);
    (void)CHECK_STR(err.file + strlen(err.file) - 8, "tail.mp4"); /* the end of a path tells */
}

RP_TEST(every_code_has_a_name)
{
    for (int code = RP_E_CLOSED; code <= RP_NEED_SECRET; code++) {
        (void)CHECK(strcmp(rp_status_name((rp_status)code), "UNKNOWN") != 0);
    }
    (void)CHECK_STR(rp_status_name(RP_E_TIMESTAMP), "TIMESTAMP");
    (void)CHECK_STR(rp_status_name(RP_E_CLOSED), "CLOSED");
    (void)CHECK_STR(rp_status_name((rp_status)-100), "UNKNOWN");
}

static rp_status pass_on(rp_status status, int *after)
{
    RP_TRY(status);
    ++*after;
    return RP_OK;
}

RP_TEST(try_passes_on_all_but_success)
{
    int after = 0;
    (void)CHECK_EQ(pass_on(RP_OK, &after), RP_OK);
    (void)CHECK_EQ(pass_on(RP_AGAIN, &after), RP_AGAIN);
    (void)CHECK_EQ(pass_on(RP_E_IO, &after), RP_E_IO);
    (void)CHECK_EQ(after, 1);
}
