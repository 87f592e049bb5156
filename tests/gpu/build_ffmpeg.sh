#!/usr/bin/env bash
# A small FFmpeg with NVDEC for a GPU machine that has neither FFmpeg nor network: static, no program, the
# decoders reelpool uses. Made of Debian's sources, from the mirror of this machine's own apt; no root needed.
#
#   tests/gpu/build_ffmpeg.sh [FOLDER]      default build/gpu-ffmpeg
#
# FOLDER/bin/pkg-config then answers for it in the place of the system's, on any machine that FOLDER is copied
# to: PATH=$PWD/build/gpu-ffmpeg/bin:$PATH python3 tests/build_c.py ... . libdav1d comes along as Debian built it.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mkdir -p "${1:-build/gpu-ffmpeg}" && cd "${1:-build/gpu-ffmpeg}" && pwd)
work=$folder.work
stamp="ffmpeg 2: h264 hevc vp9 av1 mpeg4 libdav1d swscale nvdec"
if [ "$(cat "$folder/.made" 2>/dev/null)" = "$stamp" ]; then exit 0; fi

rm -rf "$folder" "$work"
mkdir -p "$folder"/{bin,lib} "$work"/{lists/partial,cache/archives/partial,deb}
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
[ -n "$mirror" ] || { echo "build_ffmpeg: apt names no Debian mirror" >&2; exit 3; }
key=/usr/share/keyrings/debian-archive-keyring.gpg
printf '%s [signed-by=%s] %s %s main\n' deb "$key" "$mirror" "$suite" deb-src "$key" "$mirror" "$suite" >"$work/sources.list"
apt=(-qq -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update

(cd "$work" && apt-get "${apt[@]}" source --download-only ffmpeg >/dev/null)
(cd "$work/deb" && apt-get "${apt[@]}" download libffmpeg-nvenc-dev libdav1d-dev "libdav1d[0-9]$" >/dev/null)
mkdir "$work/source"
tar -x -f "$work"/ffmpeg_*.orig.tar.xz -C "$work/source" --strip-components 1
for deb in "$work"/deb/*.deb; do dpkg -x "$deb" "$work/tree"; done
g++ -std=c++17 -D_GNU_SOURCE -fsyntax-only -Icsrc -I"$work/tree/usr/include" tests/gpu/nvcuvid_abi.cpp
lib=$(dirname "$(find "$work/tree" -name 'libdav1d.so')")
cp -L "$lib/libdav1d.so" "$folder/lib/libdav1d.so"
cp -L "$lib/libdav1d.so" "$folder/lib/$(readelf -d "$lib/libdav1d.so" | sed -n 's/.*SONAME.*\[\(.*\)\].*/\1/p')"

mkdir "$work/pc"
printf 'Name: ffnvcodec\nDescription: headers\nVersion: %s\nCflags: -I%s\n' \
    "$(sed -n 's/^Version: *//p' "$(find "$work/tree" -name ffnvcodec.pc)")" "$work/tree/usr/include" >"$work/pc/ffnvcodec.pc"
printf 'Name: dav1d\nDescription: AV1\nVersion: %s\nCflags: -I%s\nLibs: -L%s -ldav1d\n' \
    "$(sed -n 's/^Version: *//p' "$lib/pkgconfig/dav1d.pc")" "$(dirname "$(dirname "$(find "$work/tree" -name dav1d.h)")")" \
    "$folder/lib" >"$work/pc/dav1d.pc"
(
    cd "$work/source"
    PKG_CONFIG_PATH=$work/pc LD_LIBRARY_PATH=$folder/lib ./configure --prefix="$folder" --enable-pic --disable-shared \
        --enable-static --disable-autodetect --disable-everything --disable-programs --disable-doc --disable-network \
        --disable-avdevice --disable-avfilter --disable-avformat --disable-swresample --disable-postproc \
        --disable-debug --enable-ffnvcodec --enable-cuda --enable-nvdec --enable-libdav1d --enable-decoder=h264,hevc,vp9,av1,mpeg4,libdav1d \
        --enable-hwaccel=h264_nvdec,hevc_nvdec,vp9_nvdec,av1_nvdec \
        --enable-bsf=vp9_superframe_split,av1_frame_split >"$work/configure.log" || { tail "$work/configure.log" >&2; exit 1; }
    for codec in H264 HEVC VP9 AV1; do
        grep -qs "CONFIG_${codec}_NVDEC_HWACCEL 1" config*.h || { echo "build_ffmpeg: no NVDEC for $codec" >&2; exit 1; }
    done
    make -s -j "$(nproc)" install >"$work/make.log" 2>&1 || { tail "$work/make.log" >&2; exit 1; }
)
rm -rf "$folder"/lib/pkgconfig "$folder"/share
version() { sed -n "s/^Version: *//p" "$work/source/$1/$1.pc"; }
cat >"$folder/bin/pkg-config" <<END
#!/bin/sh
# For FFmpeg in the folder above this one; other packages are the system's.
here=\$(cd "\$(dirname "\$0")/.." && pwd)
ours= others= options=
for word; do
    case \$word in
    libavcodec | libavutil | libswscale) ours="\$ours \$word" ;;
    -*) options="\$options \$word" ;;
    *) others="\$others \$word" ;;
    esac
done
system=\$(PATH=\${PATH#"\$here/bin:"} command -v pkg-config)
[ -z "\$others" ] || "\$system" \$options \$others || exit 1
case "\$options\$ours" in
*--modversion*libavcodec*) echo "$(version libavcodec)" ;;
*--modversion*libavutil*) echo "$(version libavutil)" ;;
*--modversion*libswscale*) echo "$(version libswscale)" ;;
*--cflags*lib*) echo "-isystem \$here/include" ;;
*--libs*lib*) echo "-L\$here/lib -lswscale -lavcodec -lavutil -ldav1d -lm -pthread -ldl -Wl,-Bsymbolic -Wl,--exclude-libs,ALL -Wl,-rpath,\\\$ORIGIN/../gpu-ffmpeg/lib:\\\$ORIGIN/../../gpu-ffmpeg/lib" ;;
esac
END
chmod +x "$folder/bin/pkg-config"
echo "$stamp" >"$folder/.made"
rm -rf "$work"
du -sh "$folder" >&2
