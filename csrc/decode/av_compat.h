/* Every difference between the FFmpeg versions that decode is built against: 5.1 to 7.1
 * (libavcodec 59.37 to 61). What is not named here has the same name and meaning in all of them. */
#ifndef RP_DECODE_AV_COMPAT_H
#define RP_DECODE_AV_COMPAT_H

#include <libavcodec/avcodec.h>
#include <libavutil/avutil.h>
#include <libavutil/version.h>

#if LIBAVCODEC_VERSION_INT < AV_VERSION_INT(59, 37, 100)
#    error "FFmpeg 5.1 (libavcodec 59.37) or newer is needed"
#endif

#endif
