"""Makes the video clips of the tests with ffmpeg: python make_clips.py OUT [NAME...]

Small (seconds long), deterministic for one FFmpeg build, never committed. CLIPS names what each is
for; a clip that is newer than this file is kept. An encoder that this FFmpeg lacks is an error.
"""

import subprocess
import sys
from pathlib import Path

FAST_X264 = "-c:v libx264 -preset veryfast -threads 1"
FAST_X265 = "-c:v libx265 -preset ultrafast -x265-params log-level=none:pools=1:frame-threads=1"
SVT = "-c:v libsvtav1 -preset 10 -svtav1-params lp=1"
AOM = "-c:v libaom-av1 -cpu-used 8 -usage realtime -row-mt 0 -threads 1"
VP9 = "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -threads 1"
TAGS = "-colorspace {0} -color_primaries {0} -color_trc {0}"

# name: (size, pictures per second, seconds, input filters, encoder and muxer arguments)
CLIPS = {
    "av1_svt_g2": ("320x240", "30", 2, "", f"{SVT} -g 2 -crf 40"),
    "av1_svt_g30": ("322x242", "30", 3, "", f"{SVT} -g 30 -crf 40"),
    "av1_aom_g2": ("320x240", "30", 1, "", f"{AOM} -g 2 -crf 40"),
    "av1_aom_g30_faststart": ("320x240", "30", 2, "", f"{AOM} -g 30 -crf 40 -movflags +faststart"),
    "av1_709_full": ("320x240", "30", 1, "", f"{SVT} -g 2 -color_range pc {TAGS.format('bt709')}"),
    "h264_bframes_edit": ("320x240", "30", 3, "", f"{FAST_X264} -g 30 -bf 3 -b_strategy 0"),
    "h264_bpyramid": ("320x240", "30", 2, "", f"{FAST_X264} -g 30 -bf 4 -x264-params b-pyramid=2"),
    "h264_g2": ("320x240", "30", 2, "", f"{FAST_X264} -g 2 -bf 0"),
    "h264_negative_ctts": ("320x240", "30", 2, "",
                           f"{FAST_X264} -g 30 -bf 3 -movflags +negative_cts_offsets"),
    "h264_odd_709": ("322x242", "25", 1, "", f"{FAST_X264} -g 10 {TAGS.format('bt709')}"),
    "h264_full_601": ("320x240", "25", 1, "format=yuvj420p",
                      f"{FAST_X264} -g 10 -color_range pc -colorspace smpte170m"),
    "h264_odd_full": ("322x242", "25", 1, "format=yuvj420p", f"{FAST_X264} -g 10 -color_range pc"),
    "h264_open_gop": ("320x240", "30", 2, "", f"{FAST_X264} -g 10 -bf 2 -x264-params open-gop=1"),
    "h264_vfr": ("320x240", "30", 3, "select='not(eq(mod(n,7),3))*not(eq(mod(n,11),5))'",
                 f"{FAST_X264} -g 15 -bf 2 -fps_mode passthrough"),
    "h264_vfr_no_b": ("320x240", "30", 3, "select='not(eq(mod(n,7),3))'",
                      f"{FAST_X264} -g 15 -bf 0 -fps_mode passthrough"),
    "h264_late_start": ("320x240", "30", 1, "", f"{FAST_X264} -g 10 -bf 2 -output_ts_offset 0.5"),
    "h264_late_no_b": ("320x240", "30", 1, "", f"{FAST_X264} -g 10 -bf 0 -output_ts_offset 0.1337"),
    "h264_late_rounded": ("320x240", "30", 1, "",
                          f"{FAST_X264} -g 10 -bf 2 -output_ts_offset 0.0337"),
    "h264_2997": ("320x240", "30000/1001", 2, "", f"{FAST_X264} -g 12 -bf 2"),
    "h264_mov": ("320x240", "30", 1, "", f"{FAST_X264} -g 10 -bf 2 -f mov -write_tmcd 0"),
    "h264_one_picture": ("320x240", "30", 1, "", f"{FAST_X264} -frames:v 1"),
    "h264_10bit": ("320x240", "30", 1, "format=yuv420p10le", f"{FAST_X264} -g 10"),
    "h264_444": ("320x240", "30", 1, "format=yuv444p", f"{FAST_X264} -g 10"),
    "h264_odd_size": ("321x241", "30", 1, "format=yuv444p", f"{FAST_X264} -g 10"),
    "hevc_open_gop": ("320x240", "30", 2, "", f"{FAST_X265}:open-gop=1:keyint=10:bframes=3"),
    "hevc_g2": ("320x240", "30", 2, "", f"{FAST_X265}:open-gop=1:keyint=2:min-keyint=2"),
    "hevc_hvc1_odd": ("322x242", "30", 1, "", f"{FAST_X265}:keyint=10 -tag:v hvc1"),
    "vp9_g30": ("320x240", "30", 2, "", f"{VP9} -g 30 -b:v 200k"),
    "vp9_odd_709": ("322x242", "30", 1, "", f"{VP9} -g 10 -b:v 200k -colorspace bt709"),
    "mpeg4_bframes": ("320x240", "25", 2, "", "-c:v mpeg4 -g 12 -bf 2 -q:v 5"),
    "mpeg4_odd": ("322x242", "30", 1, "", "-c:v mpeg4 -g 2 -q:v 5 -movflags +faststart"),
}  # fmt: skip

# Made from another clip without encoding: name: (source, arguments before -i, arguments after).
REMUXED = {
    "h264_cut_edit": ("h264_bframes_edit", "-ss 1.2", "-c copy"),
    "h264_cut_end": ("h264_bframes_edit", "-ss 0.5 -t 1.3", "-c copy"),
    "h264_cut_no_b": ("h264_vfr_no_b", "-ss 0.7", "-c copy"),
    "h264_no_edit": ("h264_bframes_edit", "", "-c copy -use_editlist 0"),
    "h264_audio": ("h264_bframes_edit", "-f lavfi -i sine=d=3", "-c:v copy -c:a aac -map 1 -map 0"),
    "hevc_faststart": ("hevc_open_gop", "", "-c copy -movflags +faststart"),
}

PLAIN = "-bitexact -map_metadata -1 -fflags +bitexact"


def run_ffmpeg(arguments, target):
    """Write `target` by way of a temporary name, so that a broken run leaves nothing behind."""
    part = target.with_name(target.stem + ".part" + target.suffix)
    command = ["ffmpeg", "-v", "error", "-nostdin", "-y", *arguments, *PLAIN.split(), str(part)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    part.replace(target)


def path_of(name, out):
    """File of a clip: .mov for names that end so, else .mp4."""
    return Path(out) / (name + (".mov" if name.endswith("_mov") else ".mp4"))


def make_clip(name, out):
    """Make one clip unless it is up to date; its path."""
    target = path_of(name, out)
    if target.exists() and target.stat().st_mtime > Path(__file__).stat().st_mtime:
        return target
    if name in REMUXED:
        source, before, after = REMUXED[name]
        run_ffmpeg([*before.split(), "-i", str(make_clip(source, out)), *after.split()], target)
        return target
    size, rate, seconds, filters, arguments = CLIPS[name]
    # A moving test picture with noise: no two pictures are equal, none is trivial to predict.
    chain = f"testsrc2=s={size}:r={rate}:d={seconds},noise=alls=12:allf=t:all_seed=7"
    chain += f",{filters}" if filters else ",format=yuv420p"
    if filters and "format=" not in filters:
        chain += ",format=yuv420p"
    run_ffmpeg(["-f", "lavfi", "-i", chain, *arguments.split()], target)
    return target


def make_clips(out, names=()):
    """Make the clips named (default: all) in folder `out`; {name: path}."""
    Path(out).mkdir(parents=True, exist_ok=True)
    unknown = set(names) - set(CLIPS) - set(REMUXED)
    if unknown:
        raise SystemExit(f"no clip is named {' '.join(sorted(unknown))}")
    return {name: make_clip(name, out) for name in names or [*CLIPS, *REMUXED]}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for path in make_clips(sys.argv[1], sys.argv[2:]).values():
        print(path)
