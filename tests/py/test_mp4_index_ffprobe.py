"""The MP4 index equals what libavformat says, packet for packet: pts, dts, size, position, flags.

Every layout once; the whole matrix of clips, real files and edits is marked `soak`. Needs gcc,
ffmpeg and ffprobe; the real files also need the data sets (REELPOOL_TEST_DATA, default
../shared/data beside the repository).
"""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "data"), str(ROOT / "tests")]

import build_c  # noqa: E402
import make_clips  # noqa: E402

DATA = Path(os.environ.get("REELPOOL_TEST_DATA", ROOT.parent / "shared" / "data"))
REAL_FILES = sorted(DATA.rglob("*.mp4"))
CLIP_NAMES = [*make_clips.CLIPS, *make_clips.REMUXED]
# One clip for each thing that a container can do; the others differ in codec or picture format.
QUICK = {
    "av1_svt_g30", "av1_709_full", "h264_bframes_edit", "h264_vfr_no_b", "h264_late_rounded",
    "h264_mov", "h264_cut_end", "h264_cut_no_b", "h264_audio", "hevc_open_gop", "hevc_faststart",
    "vp9_g30", "mpeg4_bframes",
}  # fmt: skip

needs_ffmpeg = pytest.mark.skipif(
    not (shutil.which("ffmpeg") and shutil.which("ffprobe")), reason="ffmpeg is not installed"
)


def chosen(cases, quick):
    """Parameters; those that are not among the quick ones are marked `soak`."""
    known = list(cases)
    assert set(quick) <= set(known), set(quick) - set(known)
    return [pytest.param(c, marks=() if c in quick else pytest.mark.soak) for c in known]


def real_files():
    """One file of each camera is quick."""
    by_folder = {path.parent: path for path in reversed(REAL_FILES)}
    return [pytest.param(path, id=str(path.relative_to(DATA)),
                         marks=() if path in by_folder.values() else pytest.mark.soak)
            for path in REAL_FILES]  # fmt: skip


@pytest.fixture(scope="module")
def dump_index():
    """Path of the program that prints an index, built with the sanitizers."""
    try:
        builder = build_c.Builder("asan", werror=False)
    except SystemExit as no_compiler:
        pytest.skip(str(no_compiler))
    program = builder.program(ROOT / "tests" / "c" / "dump_index.c")
    assert isinstance(program, Path), program
    return program


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """{name: path} of every clip; kept between runs in folder REELPOOL_TEST_CLIPS if set."""
    out = os.environ.get("REELPOOL_TEST_CLIPS") or tmp_path_factory.mktemp("clips")
    return make_clips.make_clips(out)


def ours(program, path):
    """([pts, dts, size, position, is key, is addressable] per sample, facts of the track)."""
    done = subprocess.run([program, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts, *lines = done.stdout.splitlines()
    return [[int(word) for word in line.split()] for line in lines], facts.split()


def theirs(path):
    """The same from ffprobe."""
    done = subprocess.run(
        ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries",
         "packet=pts,dts,size,pos,flags", "-of", "csv=p=0", path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    packets = []
    for line in done.stdout.split():
        pts, dts, size, pos, flags = line.split(",")[:5]
        packets.append([int(pts), int(dts), int(size), int(pos),
                        int(flags.startswith("K")), int("D" not in flags)])  # fmt: skip
    return packets


def check_equal(program, path):
    samples, facts = ours(program, path)
    packets = theirs(path)
    assert packets, "ffprobe saw no packets"
    # libavformat leaves out whole GOPs outside the edit; what it leaves out has no time in ours.
    listed = {packet[3] for packet in packets}
    assert [sample for sample in samples if sample[3] in listed] == packets
    assert not [sample for sample in samples if sample[3] not in listed and sample[5]]
    assert int(facts[10]) == len(samples)
    assert int(facts[11]) == sum(sample[5] for sample in samples)


@needs_ffmpeg
@pytest.mark.skipif(not REAL_FILES, reason=f"no MP4 files in {DATA}")
@pytest.mark.parametrize("path", real_files())
def test_real_file_equals_ffprobe(dump_index, path):
    check_equal(dump_index, path)
    facts = ours(dump_index, path)[1]
    assert facts[0] == "av1"
    assert int(facts[13]) <= 6 * int(facts[10]) + 1024  # bytes per sample


@needs_ffmpeg
@pytest.mark.parametrize("name", chosen(CLIP_NAMES, QUICK))
def test_clip_equals_ffprobe(dump_index, clips, name):
    check_equal(dump_index, clips[name])


@needs_ffmpeg
@pytest.mark.parametrize("name", chosen(CLIP_NAMES, QUICK))
def test_facts_equal_ffprobe(dump_index, clips, name):
    facts = ours(dump_index, clips[name])[1]
    done = subprocess.run(
        ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries",
         "stream=codec_name,width,height,extradata_size,time_base", "-of",
         "default=nk=1:nw=1", clips[name]],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    codec, width, height, time_base, *extradata = done.stdout.split()
    assert facts[:3] == [codec, width, height]
    assert time_base == f"1/{facts[9]}"
    if codec != "vp9":  # libavformat keeps no vpcC
        assert facts[3] == extradata[0]


@needs_ffmpeg
def test_colour_tags_of_the_container(dump_index, clips):
    assert ours(dump_index, clips["av1_709_full"])[1][4:9] == ["1", "1", "1", "1", "1"]
    assert ours(dump_index, clips["h264_odd_709"])[1][4:9] == ["1", "1", "1", "1", "0"]
    assert ours(dump_index, clips["h264_g2"])[1][4:9] == ["0", "2", "2", "2", "-1"]


@needs_ffmpeg
@pytest.mark.parametrize("name", chosen(["h264_bframes_edit", "h264_late_start", "h264_vfr_no_b",
                                         "av1_svt_g30", "h264_cut_edit"],
                                        ["h264_bframes_edit"]))  # fmt: skip
def test_any_edit_equals_ffprobe(dump_index, clips, name, tmp_path):
    """Edits rewritten in place: starts between pictures, ends that round up, down or lie behind."""
    whole = clips[name].read_bytes()
    at = whole.index(b"elst")
    (count,) = struct.unpack_from(">I", whole, at + 8)
    row = at + 12 + 12 * (count - 1)
    for duration in (500, 833, 834, 866, 867, 5000):
        for start in (None, 700, 5000):
            changed = bytearray(whole)
            struct.pack_into(">I", changed, row, duration)
            if start is not None:
                struct.pack_into(">i", changed, row + 4, start)
            path = tmp_path / f"{duration}_{start}.mp4"
            path.write_bytes(changed)
            check_equal(dump_index, path)


@needs_ffmpeg
def test_damaged_moov_is_refused_or_read(dump_index, clips, tmp_path):
    """Flipped bytes anywhere in moov: a typed error or an index, never a crash."""
    whole = clips["h264_audio"].read_bytes()
    start, end = whole.index(b"moov") - 4, len(whole)
    refused = 0
    for i in range(120):
        changed = bytearray(whole)
        changed[start + i * 7919 % (end - start)] ^= 1 << i % 8
        path = tmp_path / "damaged.mp4"
        path.write_bytes(changed)
        done = subprocess.run([dump_index, path], capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        if done.returncode == 1:
            assert done.stderr.split()[0] in ("FORMAT", "UNSUPPORTED"), done.stderr
            refused += 1
    assert refused > 0


@needs_ffmpeg
def test_cut_file_with_moov_first_keeps_its_index(dump_index, clips, tmp_path):
    whole = clips["hevc_faststart"].read_bytes()
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole[: len(whole) - 20000])
    assert ours(dump_index, path)[0] == ours(dump_index, clips["hevc_faststart"])[0]
    path.write_bytes(clips["hevc_open_gop"].read_bytes()[:-20000])
    done = subprocess.run([dump_index, path], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("FORMAT truncated"), done.stderr
