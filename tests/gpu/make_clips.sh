#!/usr/bin/env bash
# Clips for check_nvdec, by the ffmpeg program: bench_*.mp4 of two sizes and several lengths of group, beside those
# of tests/data/make_clips.py.
#   tests/gpu/make_clips.sh [FOLDER]        default build/gpu-clips
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-build/gpu-clips}
mkdir -p "$folder"
[ -d build/clips ] && cp -u build/clips/*.mp4 "$folder"
clip() { # NAME SIZE FRAMES ENCODER ARGS...
    local name=$1 size=$2 frames=$3 encoder=$4
    shift 4
    [ -e "$folder/$name.mp4" ] && return
    ffmpeg -v error -f lavfi -i "testsrc2=size=$size:rate=30,noise=alls=6:allf=t" -frames:v "$frames" -pix_fmt yuv420p \
        -c:v "$encoder" "$@" -an -y "$folder/.new.mp4"
    mv "$folder/.new.mp4" "$folder/$name.mp4"
}
x265() { echo "log-level=error:keyint=$1:min-keyint=$1:scenecut=0:open-gop=0${2:-}"; }
clip bench_h264_480_g2 640x480 120 libx264 -preset veryfast -crf 27 -g 2 -bf 0
clip bench_h264_480_g30 640x480 240 libx264 -preset veryfast -crf 27 -g 30 -bf 2 -sc_threshold 0
clip bench_hevc_480_g2 640x480 120 libx265 -preset ultrafast -crf 29 -tag:v hvc1 -x265-params "$(x265 2 :bframes=0)"
clip bench_hevc_480_g30 640x480 240 libx265 -preset ultrafast -crf 29 -tag:v hvc1 -x265-params "$(x265 30)"
clip bench_vp9_480_g30 640x480 120 libvpx-vp9 -deadline realtime -cpu-used 8 -b:v 1500k -g 30
clip bench_h264_1080_g30 1920x1080 90 libx264 -preset veryfast -crf 29 -g 30 -bf 2 -sc_threshold 0
clip bench_hevc_1080_g30 1920x1080 90 libx265 -preset ultrafast -crf 31 -tag:v hvc1 -x265-params "$(x265 30)"
du -sh "$folder" >&2
