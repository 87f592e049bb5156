"""Concatenated videos: each packet, time, key flag and picture of the sources, moov in front.

Needs ffmpeg and ffprobe with the encoders of tests/data/make_clips.py.
"""

import hashlib
import math
import os
import random
import resource
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from reelpool.errors import (
    FormatError,
    NotFoundError,
    ReelpoolError,
    StorageError,
    UnsupportedMediaError,
)

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "data"))

import make_clips  # noqa: E402

core = pytest.importorskip("reelpool._core")
pytestmark = pytest.mark.skipif(
    not (shutil.which("ffmpeg") and shutil.which("ffprobe")), reason="ffmpeg is not installed"
)

# One clip of make_clips.py per codec: its encoder makes ten clips of other pictures and lengths.
CODECS = {
    "av1": "av1_svt_g2",
    "h264": "h264_bframes_edit",
    "h264_open": "h264_open_gop",
    "hevc": "hevc_open_gop",
    "vp9": "vp9_g30",
    "mpeg4": "mpeg4_bframes",
}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Path of a clip of make_clips.py by name; kept in folder REELPOOL_TEST_CLIPS if set."""
    out = os.environ.get("REELPOOL_TEST_CLIPS") or tmp_path_factory.mktemp("clips")
    return lambda name: make_clips.make_clips(out, [name])[name]


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    """Ten clips of a codec with equal parameters; every other one has its moov in front."""
    made = {}

    def make(codec):
        if codec not in made:
            folder = tmp_path_factory.mktemp(codec)
            size, rate, _, _, arguments = make_clips.CLIPS[CODECS[codec]]
            made[codec] = [folder / f"{i}.mp4" for i in range(10)]
            for i, path in enumerate(made[codec]):
                source = f"testsrc2=s={size}:r={rate},noise=alls=12:allf=t:all_seed={i}"
                make_clips.run_ffmpeg(
                    ["-f", "lavfi", "-i", source, "-frames:v", str(5 + 7 * i % 20), "-pix_fmt",
                     "yuv420p", *arguments.split(), *["-movflags", "+faststart"][: 2 * (i % 2)]],
                    path,
                )  # fmt: skip
        return made[codec]

    return make


def concat(sources, target):
    return core.concat_videos([os.fsencode(path) for path in sources], os.fsencode(target))


def seconds(part, key):
    return Fraction(*part[key])


def packets(path):
    """[(pts in seconds, is key, SHA-256 of the bytes)] of the pictures shown, in decode order."""
    done = subprocess.run(
        ["ffprobe", "-v", "error", "-select_streams", "v:0", "-show_entries",
         "stream=time_base:packet=pts,size,pos,flags", "-of", "csv=p=0", path],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *lines, time_base = done.stdout.split()
    data = Path(path).read_bytes()
    found = []
    for pts, size, pos, flags in (line.split(",")[:4] for line in lines):
        coded = data[int(pos) : int(pos) + int(size)]
        if "D" not in flags:  # outside the edit
            key = flags.startswith("K")
            found.append((int(pts) * Fraction(time_base), key, hashlib.sha256(coded).digest()))
    return found


def decoded(path):
    """Hash of each picture that ffmpeg shows, from the first to the last in one go."""
    done = subprocess.run(
        ["ffmpeg", "-v", "error", "-nostdin", "-i", path, "-map", "0:v", "-fps_mode", "passthrough",
         "-f", "framehash", "-hash", "md5", "-"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line.rsplit(",", 1)[1].strip() for line in done.stdout.splitlines() if line[0] != "#"]


def boxes(path):
    """Types of the top-level boxes."""
    data, at, found = Path(path).read_bytes(), 0, []
    while at < len(data):
        found.append(data[at + 4 : at + 8].decode())
        size = int.from_bytes(data[at : at + 4], "big")
        at += size if size != 1 else int.from_bytes(data[at + 8 : at + 16], "big")
    assert at == len(data)
    return found


def check_concat(sources, target):
    """Concatenate and compare what both libavformat and the index say; the parts."""
    parts = concat(sources, target)
    assert boxes(target) == ["ftyp", "moov", "mdat"]
    assert len(parts) == len(sources)
    expected, times = [], []
    for source, part in zip(sources, parts, strict=True):
        shown = packets(source)
        shift = seconds(part, "offset") - seconds(part, "start")
        assert min(pts for pts, _, _ in shown) == seconds(part, "start")
        assert len(shown) == part["frames"]
        expected += [(pts + shift, key, sha) for pts, key, sha in shown]
        info = core.video_info(source)
        times += [t + float(shift) for t in np.frombuffer(info["times"])]
    found = packets(target)
    # Pictures hidden by a source's edit list are shown around its own.
    assert [packet for packet in found if packet in set(expected)] == expected
    info = core.video_info(target)
    ours = np.frombuffer(info["times"])
    assert info["samples"] == info["addressable"] == len(found)
    assert core.video_signature(target) == core.video_signature(sources[0])
    nearest = np.abs(ours[None] - np.array(times)[:, None]).min(1)
    assert nearest.max() < 1e-9
    assert sorted(float(pts) for pts, _, _ in found) == pytest.approx(list(ours), abs=1e-9)
    return parts


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("codec", CODECS)
def test_packets_times_and_flags(episodes, tmp_path, codec, count):
    sources, target = episodes(codec)[:count], tmp_path / "out.mp4"
    parts = check_concat(sources, target)
    end = Fraction(0)
    for source, part in zip(sources, parts, strict=True):
        assert (seconds(part, "start"), seconds(part, "offset")) == (0, end)
        assert part["frames"] == len(packets(source))
        end += seconds(part, "duration")
    rate = Fraction(make_clips.CLIPS[CODECS[codec]][1])
    assert end == sum(part["frames"] for part in parts) / rate
    info = core.video_info(target)
    assert Fraction(info["duration"], info["timescale"]) == end
    assert os.listdir(tmp_path) == ["out.mp4"]


@pytest.mark.parametrize("codec", CODECS)
def test_pictures(episodes, tmp_path, codec):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    from reelpool import decode_video_frames

    sources, target = episodes(codec), tmp_path / "out.mp4"
    parts = concat(sources, target)
    assert decoded(target) == [h for source in sources for h in decoded(source)]
    if codec == "h264_open":
        return  # decoding from the key of a last, short open GOP fails in the sources already
    rng = random.Random(3)
    order = list(zip(sources, parts, strict=True))
    rng.shuffle(order)
    rate = float(Fraction(make_clips.CLIPS[CODECS[codec]][1]))
    for source, part in order:
        # As LeRobot looks frames up: the episode's start in float64, the row's time in float32.
        rows = np.arange(part["frames"], dtype=np.float32) / np.float32(rate)
        numerator, denominator = part["offset"]
        times = [numerator / denominator + float(row) for row in rows]
        there = decode_video_frames(target, times, 1e-4)
        assert (there == decode_video_frames(source, rows.tolist(), 1e-4)).all()


def test_edits_audio_and_uneven_times(clips, tmp_path):
    """The same stream whole, cut by edit lists, without one, with sound; uneven and late times."""
    names = ["h264_cut_edit", "h264_audio", "h264_cut_end", "h264_bframes_edit", "h264_no_edit"]
    parts = check_concat([clips(name) for name in names], tmp_path / "out.mp4")
    assert seconds(parts[4], "start") > 0  # its first picture waits for its decoder
    check_concat([clips("h264_vfr"), clips("h264_vfr")], tmp_path / "vfr.mp4")
    check_concat([clips("h264_mov"), clips("h264_mov")], tmp_path / "mov.mp4")
    late = check_concat([clips("h264_late_start")] * 2, tmp_path / "late.mp4")
    assert seconds(late[0], "start") == Fraction(1, 2) and seconds(late[1], "offset") == 1
    one = check_concat([clips("h264_one_picture")] * 3, tmp_path / "one.mp4")
    assert [seconds(part, "offset") for part in one] == [0, Fraction(1, 30), Fraction(2, 30)]


def test_other_timescales(clips, tmp_path):
    sources = [clips("h264_bframes_edit")]
    for timescale in (600, 90000, 30):
        sources.append(tmp_path / f"{timescale}.mp4")
        make_clips.run_ffmpeg(
            ["-i", str(sources[0]), "-c", "copy", "-video_track_timescale", str(timescale)],
            sources[-1],
        )
    parts = check_concat(sources, tmp_path / "out.mp4")
    assert {seconds(part, "duration") for part in parts} == {Fraction(3)}
    scales = [core.video_info(source)["timescale"] for source in sources]
    assert len(set(scales)) > 2 and parts[0]["offset"][1] == math.lcm(*scales)


def test_real_files(data_root, tmp_path):
    real = sorted(data_root.rglob("*.mp4"))
    groups = {}
    for path in real:
        groups.setdefault(core.video_signature(path), []).append(path)
    largest = max(groups.values(), key=len)[:8]
    assert len(largest) > 1
    parts = check_concat(largest, tmp_path / "out.mp4")
    assert seconds(parts[-1], "offset") == sum(seconds(part, "duration") for part in parts[:-1])


def test_equal_sources_give_equal_bytes(episodes, tmp_path):
    for name in ("a", "b"):
        concat(episodes("h264")[:4], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = [tmp_path / "a", tmp_path / "b"]  # a result is a source like any other
    check_concat(again, tmp_path / "c")
    concat(episodes("h264")[:4] * 2, tmp_path / "d")
    assert packets(tmp_path / "c") == packets(tmp_path / "d")


def test_signatures_tell_what_can_be_joined(episodes, clips):
    signatures = {codec: {core.video_signature(p) for p in episodes(codec)} for codec in CODECS}
    assert all(len(found) == 1 for found in signatures.values())
    assert len(set.union(*signatures.values())) >= len(CODECS) - 1
    plain, tagged = clips("av1_svt_g2"), clips("av1_709_full")
    assert core.video_signature(plain) != core.video_signature(tagged)


def check_refused(error, sources, folder, file=None):
    target = folder / "out.mp4"
    before = sorted(os.listdir(folder))
    with pytest.raises(error) as caught:
        concat(sources, target)
    assert sorted(os.listdir(folder)) == before
    assert file is None or str(file) in str(caught.value)
    return caught.value


def test_refusals_leave_nothing(episodes, clips, tmp_path):
    good = episodes("h264")[0]
    check_refused(UnsupportedMediaError, [good, episodes("hevc")[0]], tmp_path, episodes("hevc")[0])
    check_refused(UnsupportedMediaError, [good, clips("h264_odd_709")], tmp_path)
    check_refused(NotFoundError, [good, tmp_path / "absent.mp4"], tmp_path, "absent.mp4")
    check_refused(NotFoundError, [good, "no_such_folder/absent.mp4"], tmp_path)
    check_refused(FormatError, [good, ROOT / "pyproject.toml"], tmp_path, "pyproject.toml")
    check_refused(ReelpoolError, [good, tmp_path], tmp_path)
    with pytest.raises(NotFoundError):
        concat([good], tmp_path / "absent" / "out.mp4")
    with pytest.raises(ValueError):
        core.concat_videos([], b"out.mp4")
    with pytest.raises(ValueError):
        core.concat_videos([b"a\0b"], b"out.mp4")
    with pytest.raises(TypeError):
        core.concat_videos(["text"], b"out.mp4")


def test_damaged_sources(episodes, tmp_path):
    good, front = episodes("h264")[0], episodes("h264")[1]
    whole = front.read_bytes()
    source = tmp_path / "damaged.mp4"
    source.write_bytes(whole[:-100])
    assert "truncated" in str(check_refused(FormatError, [good, source], tmp_path, source))
    refused = 0
    moov = whole.index(b"moov")
    for i in range(150):
        changed = bytearray(whole)
        changed[moov + i * 7919 % (whole.index(b"mdat") - moov)] ^= 1 << i % 8
        source.write_bytes(changed)
        try:
            concat([good, source], tmp_path / "out.mp4")
            (tmp_path / "out.mp4").unlink()
        except (FormatError, UnsupportedMediaError):
            refused += 1
        assert os.listdir(tmp_path) == ["damaged.mp4"]
    assert refused > 0


def test_a_file_size_limit(episodes, tmp_path):
    (tmp_path / "out.mp4").write_bytes(b"older")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, hard))
    try:
        check_refused(StorageError, episodes("mpeg4"), tmp_path, tmp_path / "out.mp4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "out.mp4").read_bytes() == b"older"


FULL_DISK = """
import os, sys
from reelpool import _core
from reelpool.errors import StorageError
try:
    _core.concat_videos([os.fsencode(path) for path in sys.argv[2:]], os.fsencode(sys.argv[1]))
except StorageError as error:
    print("full", error, os.listdir(os.path.dirname(sys.argv[1])))
"""


def test_full_disk(episodes, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = f'mount -t tmpfs -o size=32k tmpfs "{small}" && exec "$@"'
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    probe = subprocess.run([*namespace, "sh", "-c", mount, "sh", "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("no mount namespace may be made here")
    done = subprocess.run(
        [*namespace, "sh", "-c", mount, "sh", sys.executable, "-c", FULL_DISK,
         str(small / "out.mp4"), *map(str, episodes("mpeg4"))],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith("full ") and done.stdout.rstrip().endswith("[]"), done
    assert "No space left" in done.stdout
