"""`verify`: each kind of fault is found, placed, and alone; sound sets have none."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo_sets import DEMO, FRAMES, FRONT, ROOT, STARTS, WRIST, copy_demo, video
from reelpool import errors, sums, verify, verify_meta, verify_video
from reelpool.engine import load_core
from test_sums import damage
from written_datasets import NUMBERS, edit_info, rows, write_jsonl, write_v2, write_v30

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
import make_damaged

EPISODES = "meta/episodes/chunk-000/file-000.parquet"
DATA = "data/chunk-000/file-000.parquet"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def demo(tmp_path):
    """A copy of the embedded set that may be broken."""
    return copy_demo(tmp_path / "demo")


def write_clips(root):
    """A v2.1 set of two episodes, whose videos are clips of 8 pictures."""
    camera = {"dtype": "video", "shape": [128, 192, 3], "names": ["height", "width", "channels"]}
    state = {"dtype": "float32", "shape": [2], "names": None}
    features = {"state": state, "cam": camera, **NUMBERS}
    write_v2(root, lengths=(8, 8), features=features, columns=rows((8, 8)))
    folder = root / "videos/chunk-000/cam"
    folder.mkdir(parents=True)
    for i in range(2):
        shutil.copy(DEMO / "clips/h264.mp4", folder / f"episode_{i:06d}.mp4")
    entry = {"min": [0], "max": [1], "mean": [0.5], "std": [0.5], "count": [8]}
    stats = dict.fromkeys(features, entry)
    lines = [{"episode_index": i, "stats": stats} for i in range(2)]
    write_jsonl(root / "meta/episodes_stats.jsonl", lines)
    return root


def edit_table(path, **columns):
    """Replace columns of a Parquet file by functions of their values."""
    table = pq.read_table(path)
    for name, change in columns.items():
        values = change(table.column(name).to_pylist())
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
    pq.write_table(table, path)


def with_item(at, value):
    """A list with one element replaced."""
    return lambda values: [*values[:at], value, *values[at + 1 :]]


def only(report, **wanted):
    """The one fault of a report, which has these attributes."""
    assert len(report.faults) == 1, report.text()
    fault = report.faults[0]
    for name, value in wanted.items():
        got = getattr(fault, name)
        assert value in got if name in ("what", "consequence", "fix") else got == value, (
            report.text()
        )
    assert fault.consequence and fault.fix
    return fault


# -- sound sets --


@pytest.mark.parametrize("level", verify.LEVELS)
def test_a_sound_set_has_no_fault(level):
    report = verify.check(ROOT, level)
    assert report.ok and not report.notes, report.text()
    assert (report.episodes, report.frames, report.version) == (4, FRAMES, "v3.0")
    assert report.files == (0 if level == "meta" else 4)
    assert report.pictures == {"meta": 0, "index": 16, "decode": 2 * FRAMES}[level]
    assert report.sums_written == 0 and sums.load(video(ROOT, FRONT)) is None
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


def test_sound_clips_of_v21_have_no_fault(tmp_path):
    report = verify.check(write_clips(tmp_path / "v21"), "decode")
    assert report.ok, report.text()
    assert (report.files, report.pictures, report.version) == (2, 16, "v2.1")


@pytest.mark.parametrize("name", ["g1_small_v21", "g1_small_v30", "cam3"])
def test_real_sets_have_no_fault(data_root, name):
    report = verify.check(data_root / name)
    assert report.ok, report.text()


# -- level "meta" --


def test_missing_statistics(demo):
    (demo / "meta/stats.json").unlink()
    only(verify.check(demo, "meta"), level="meta", what="no statistics", file="meta/stats.json")


def test_statistics_without_a_feature(demo):
    path = demo / "meta/stats.json"
    stats = json.loads(path.read_text())
    del stats["action"]
    path.write_text(json.dumps(stats))
    only(verify.check(demo, "meta"), what="no statistics of action")
    stats["action"] = {"min": [0], "max": [1]}
    path.write_text(json.dumps(stats))
    only(verify.check(demo, "meta"), what="std is missing for action")


def test_statistics_without_an_episode(tmp_path):
    root = write_clips(tmp_path / "v21")
    path = root / "meta/episodes_stats.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    only(verify.check(root, "meta"), what="no statistics of episode 1", episode=1)


def test_count_of_tasks(demo):
    total = json.loads((demo / "meta/info.json").read_text())["total_tasks"]
    edit_info(demo, total_tasks=total + 1)
    only(verify.check(demo, "meta"), what=f"says {total + 1}", file="meta/tasks.parquet")


def test_unknown_task_of_an_episode(demo):
    edit_table(demo / EPISODES, tasks=with_item(2, ["juggle"]))
    only(verify.check(demo, "meta"), what="'juggle'", episode=2)


@pytest.mark.parametrize("rel", [DATA, f"videos/{WRIST}/chunk-000/file-001.mp4"])
def test_missing_file(demo, rel):
    (demo / rel).unlink()
    for level in verify.LEVELS:
        fault = only(verify.check(demo, level), level="meta", what="is missing", file=rel)
    assert fault.consequence.startswith("episode")


def test_episodes_that_lack_are_all_listed(tmp_path):
    root = write_clips(tmp_path / "v21")
    entries = [{"episode_index": i, "tasks": [], "length": 8} for i in (0, 2, 5, 5)]
    write_jsonl(root / "meta/episodes.jsonl", entries)
    faults = verify.check(root).faults
    assert sorted(f.episode for f in faults) == [1, 3, 4, 5]
    assert all("cannot be opened" in f.consequence for f in faults)


@pytest.mark.parametrize(
    "column, change, what, episode, frame",
    [
        ("timestamp", with_item(30, 2.9), "does not rise", 0, 30),
        ("frame_index", with_item(50, 7), "not the frame's number", 1, 2),
        ("task_index", with_item(10, 77), "names no task", 0, 10),
        ("index", with_item(10, 77), "index is 77", 0, None),
        ("timestamp", with_item(30, float("nan")), "does not rise", 0, 30),
    ],
)
def test_bad_rows(demo, column, change, what, episode, frame):
    edit_table(demo / DATA, **{column: change})
    only(verify.check(demo, "meta"), what=what, episode=episode, frame=frame, file=DATA)


def test_a_damaged_table_is_one_fault_and_the_others_are_read(demo):
    data = (demo / DATA).read_bytes()
    (demo / DATA).write_bytes(data[: len(data) // 2])
    report = verify.check(demo, "meta")
    only(report, what="not a readable Parquet file", file=DATA)
    assert report.frames == FRAMES - STARTS[3]


def test_frame_numbers_with_a_gap(demo):
    for name in ("dataset_from_index", "dataset_to_index"):
        edit_table(demo / EPISODES, **{name: lambda v: [*v[:3], v[3] + 5]})
    faults = verify.check(demo, "meta").faults
    assert any("those before it end at 144" in f.what and f.episode == 3 for f in faults)


def test_scrambled_segments(demo):
    key = f"videos/{FRONT}/"
    edit_table(demo / EPISODES, **{key + "from_timestamp": lambda v: [v[0], v[1] - 1.0, *v[2:]]})
    faults = verify.check(demo, "meta").faults
    assert {f.episode for f in faults} == {1} and {f.camera for f in faults} == {FRONT}
    assert any("where episode 0 still runs" in f.what for f in faults)
    assert any("frames take" in f.what for f in faults)


# -- level "index" --


def test_a_cut_video(demo):
    path = video(demo, FRONT)
    path.write_bytes(path.read_bytes()[:9000])
    fault = only(verify.check(demo), level="index", file=f"videos/{FRONT}/chunk-000/file-000.mp4")
    assert fault.camera == FRONT and fault.consequence == "episodes 0-1 cannot be read"


def test_times_beyond_the_tolerance(demo):
    key = f"videos/{WRIST}/"
    for name in ("from_timestamp", "to_timestamp"):
        edit_table(demo / EPISODES, **{key + name: lambda v: [*v[:2], v[2] + 0.02, v[3]]})
    fault = only(verify.check(demo), what="no picture at", episode=2, camera=WRIST, frame=0)
    assert "FrameTimestampError" in fault.consequence
    assert verify.check(demo, tolerance_s=0.03).ok


def test_jumping_times(demo):
    path = video(demo, WRIST, 1)
    data = bytearray(path.read_bytes())
    at, _ = make_damaged.find(data, "stts")
    delta = int.from_bytes(data[at + 12 : at + 16], "big")
    data[at + 12 : at + 16] = (3 * delta).to_bytes(4, "big")
    path.write_bytes(data)
    faults = verify.check(demo).faults
    assert any("times of its pictures have jumped" in f.consequence for f in faults)
    assert any("no picture at" in f.what and f.episode == 3 for f in faults)


def test_fewer_or_more_pictures_than_frames(tmp_path):
    root = write_clips(tmp_path / "v21")
    write_v2(tmp_path / "long", lengths=(9, 7))
    for name in ("data/chunk-000", "meta"):
        shutil.rmtree(root / name)
    features = {"cam": {"dtype": "video", "shape": [128, 192, 3], "names": None}, **NUMBERS}
    write_v2(tmp_path / "other", lengths=(9, 7), features=features, columns=rows((9, 7)))
    for name in ("data", "meta"):
        shutil.copytree(tmp_path / "other" / name, root / name, dirs_exist_ok=True)
    whats = [(f.episode, f.what) for f in verify.check(root).faults if f.level == "index"]
    assert (0, "it holds 8 pictures, its episodes have 9 frames") in whats
    assert (1, "it holds 8 pictures, its episode has 7 frames") in whats
    assert any(e == 0 and "no picture at 0.8" in what for e, what in whats)


def test_two_frames_of_one_picture(tmp_path):
    root = write_clips(tmp_path / "v21")
    for i in range(2):
        path = root / f"data/chunk-000/episode_{i:06d}.parquet"
        edit_table(path, timestamp=lambda values: [0.4 * t for t in values])
    faults = verify.check(root, tolerance_s=0.06).faults
    assert [(f.episode, f.frame) for f in faults] == [(0, 1), (1, 1)]
    assert all(f.what == "two frames show one picture (4 frames)" for f in faults)


def test_two_pictures_of_one_time(tmp_path):
    root = write_clips(tmp_path / "v21")
    path = root / "videos/chunk-000/cam/episode_000001.mp4"
    data = bytearray(path.read_bytes())
    at, _ = make_damaged.find(data, "stts")
    data[at + 12 : at + 16] = bytes(4)
    path.write_bytes(data)
    faults = verify.check(root).faults
    assert {f.episode for f in faults} == {1}
    assert any(f.what == "two pictures have the time of a frame (1 frames)" for f in faults)


def test_another_picture_size(demo):
    info = json.loads((demo / "meta/info.json").read_text())
    info["features"][WRIST]["shape"] = [100, 100, 3]
    edit_info(demo, features=info["features"])
    faults = verify.check(demo).faults
    assert any("192x144, meta/info.json declares 100x100" in f.what for f in faults)


def zero_sample(path, sample):
    """Overwrite a coded picture; (offset, size)."""
    data = bytearray(path.read_bytes())
    at, size = make_damaged.samples(data)[sample]
    data[at : at + size] = b"\xff" * size
    path.write_bytes(data)
    return at, size


def test_first_picture_of_an_episode(demo):
    at, size = zero_sample(video(demo, WRIST), 48)  # the first frame of episode 1
    report = verify.check(demo)
    fault = only(report, level="index", episode=1, frame=0, camera=WRIST, offset=at, length=size)
    assert fault.consequence == "reading it raises DecodeError"


# -- level "decode" --


def test_a_lost_picture_inside_an_episode(demo):
    path = video(demo, FRONT)
    keys = make_damaged.keys(path.read_bytes())
    inside = next(k for k in keys if 5 < k < 40)
    behind = next(k for k in keys if k > inside)
    at, size = zero_sample(path, inside)
    assert verify.check(demo).ok
    report = verify.check(demo, "decode")
    fault = only(report, level="decode", episode=0, camera=FRONT, offset=at, length=size)
    assert (fault.frame, fault.frames) == (inside, behind - inside)
    assert report.pictures == 2 * FRAMES - fault.frames
    assert f"bytes {at}-{at + size - 1}" in fault.text()
    for kept in ([0], [1, 2]):
        assert verify.check(demo, "decode", kept).ok == (kept == [1, 2])


def test_pictures_kept_in_tables(tmp_path):
    import io

    from PIL import Image

    def cell(value):
        stream = io.BytesIO()
        Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(stream, "PNG")
        return {"bytes": stream.getvalue(), "path": None}

    cells = [cell(i) for i in range(12)]
    cells[4]["bytes"] = cells[4]["bytes"][:40]
    cells[11]["bytes"] = b"no picture"
    feature = {"dtype": "image", "shape": [4, 4, 3], "names": ["height", "width", "channels"]}
    columns = rows((3, 4, 5), state=False) | {"cam": pa.array(cells)}
    root = write_v30(tmp_path / "set", features={"cam": feature, **NUMBERS}, columns=columns)
    entry = {"min": [0], "max": [1], "mean": [0.5], "std": [0.5], "count": [12]}
    stats = dict.fromkeys(["cam", *NUMBERS], entry)
    (root / "meta/stats.json").write_text(json.dumps(stats))
    assert verify.check(root, "meta").ok
    fault = only(verify.check(root, "index"), level="index", camera="cam", episode=2, frame=4)
    assert fault.file == DATA
    faults = verify.check(root, "decode").faults
    assert [(f.episode, f.frame) for f in faults] == [(1, 1), (2, 4)]
    assert verify.check(root, "decode", [0]).pictures == 3


def test_damage_that_the_decoder_of_reads_passes_over(demo):
    core = load_core()
    libraries = core.describe()["libraries"]
    if "libdav1d yes" not in libraries or "libaom-av1 yes" not in libraries:
        pytest.skip("this FFmpeg has one AV1 decoder only")
    path = video(demo, FRONT)
    data = path.read_bytes()
    rng = random.Random(3)
    for _ in range(40):
        at, size = rng.choice(make_damaged.samples(data)[:48])
        damaged = bytearray(data)
        damaged[at + rng.randrange(size)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        if not core.check_pictures(path, 0, 48, False)[1] and (
            found := core.check_pictures(path, 0, 48, True)[1]
        ):
            break
    else:
        raise AssertionError("no flipped bit was seen by the second decoder alone")
    faults = verify.check(demo, "decode", [0]).faults
    assert faults and all("without a sign" in f.what for f in faults)
    assert sum(f.frames for f in faults) == len(found)
    assert {f.camera for f in faults} == {FRONT} and {f.episode for f in faults} == {0}


def test_nearest_is_what_a_read_finds():
    stored = np.array([0.0, 0.1, 0.2])
    wanted = np.array([-0.5, 0.05, 0.1 + 1e-5, 0.15, 9.0])
    place, bad, times = verify_video.nearest(stored, wanted, 1e-4)
    assert place.tolist() == [0, 0, 1, 1, 2] and bad.tolist() == [True, True, False, True, True]
    assert times.tolist() == [0.0, 0.0, 0.1, 0.1, 0.2]
    assert verify_video.nearest(stored[:0], wanted, 1.0)[1].all()


# -- check sums --


def test_sums_are_written_for_sound_files_only(demo):
    zero_sample(video(demo, WRIST), 48)
    report = verify.check(demo, write_sums=True)
    assert report.sums_written == 3 and len(report.faults) == 1
    assert sums.load(video(demo, WRIST)) is None and sums.load(video(demo, FRONT)) is not None


def test_a_cache_that_cannot_be_written_is_a_note(demo, cache):
    cache.write_text("a file, not a folder")
    report = verify.check(demo, write_sums=True)
    assert report.ok and report.sums_written == 0
    assert len(report.notes) == 1 and "not kept" in report.notes[0]


@pytest.mark.parametrize("at", [20_000, "moov"])
def test_rotten_bytes_are_found_by_their_sums(demo, at):
    path = video(demo, FRONT)
    assert verify.check(demo, write_sums=True).ok
    place = path.read_bytes().index(b"mvhd") + 8 if at == "moov" else at
    damage(path, place)
    report = verify.check(demo, write_sums=True)
    assert report.sums_known == 4 and report.sums_written == 0
    if at == "moov":
        only(report, what="header is not the one", file=f"videos/{FRONT}/chunk-000/file-000.mp4")
        return
    fault = only(report, what="check sum differs", camera=FRONT)
    assert fault.offset <= at < fault.offset + fault.length and fault.episode in (0, 1)
    assert verify.check(demo, sums=False).sums_known == 0
    damage(path, place)  # flips it back
    assert verify.check(demo).ok


def test_neighbours_that_changed_are_one_fault(demo):
    path = video(demo, FRONT)
    verify.check(demo, write_sums=True)
    places = make_damaged.samples(path.read_bytes())
    for sample in (50, 51, 52, 60):
        damage(path, places[sample][0])
    first, second = verify.check(demo).faults
    assert (first.episode, first.frame, first.frames) == (1, 2, 3)
    assert (first.offset, first.offset + first.length) == (places[50][0], sum(places[52]))
    assert (second.frame, second.frames, second.length) == (12, 1, places[60][1])


def test_a_touched_file_gets_new_sums(demo):
    assert verify.check(demo, write_sums=True).sums_written == 4
    os.utime(video(demo, FRONT), ns=(1, 1))
    report = verify.check(demo, write_sums=True)
    assert report.ok and (report.sums_known, report.sums_written) == (3, 1)
    assert sums.load(video(demo, FRONT)).mtime_ns == 1


def test_a_file_of_the_hubs_cache_is_compared_with_its_name(demo, tmp_path):
    import hashlib

    snapshot = tmp_path / "datasets--a--b/snapshots/0123"
    blobs = tmp_path / "datasets--a--b/blobs"
    blobs.mkdir(parents=True)
    shutil.copytree(demo, snapshot)
    path = video(snapshot, FRONT)
    blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
    shutil.move(path, blob)
    path.symlink_to(blob)
    assert verify.check(snapshot).ok
    damage(blob, 20_000)
    only(verify.check(snapshot), what="SHA-256 is not the Hub's", camera=FRONT)


# -- arguments and the command --


def test_arguments_are_checked(tmp_path):
    with pytest.raises(ValueError, match="level"):
        verify.check(ROOT, "all")
    with pytest.raises(ValueError, match=r"episodes 0\.\.3"):
        verify.check(ROOT, episodes=[4])
    with pytest.raises(errors.NotFoundError):
        verify.check(tmp_path)


def command(*words, cache):
    return subprocess.run(
        [sys.executable, "-m", "reelpool", "verify", *map(str, words)],
        capture_output=True, text=True, timeout=120,
        env={**os.environ, "REELPOOL_CACHE": str(cache)},
    )  # fmt: skip


def test_the_command(demo, cache, tmp_path):
    done = command(demo, "--json", "--level", "meta", cache=cache)
    assert done.returncode == 0 and json.loads(done.stdout)["ok"] and done.stderr == ""
    done = command(demo, cache=cache)
    assert done.returncode == 0 and "no fault" in done.stdout
    assert "check sums of 4 files were kept" in done.stderr
    damage(video(demo, FRONT), 20_000)
    words = ["--json", "--episode", 0, "--episode", 1, "-q", "--out-dir", tmp_path / "out"]
    done = command(demo, *words, cache=cache)
    assert done.returncode == 1 and done.stderr == ""
    (fault,) = json.loads(done.stdout)["faults"]
    assert json.loads((tmp_path / "out/verify.json").read_text())["faults"] == [fault]
    assert fault["what"].startswith("its bytes changed") and fault["length"] > 0
    assert command(demo, "--no-sums", cache=cache).returncode == 0
    assert command(tmp_path, cache=cache).returncode == 3
    assert command(demo, "--episode", 99, cache=cache).returncode == 3
    assert command(demo, "--level", "all", cache=cache).returncode == 2


def test_rows_are_held_in_parts(demo, monkeypatch):
    """The same faults in parts of one episode."""
    bad = STARTS[2] + 3
    edit_table(demo / DATA, task_index=lambda v: [7 if i == bad else x for i, x in enumerate(v)])
    real, held = verify_meta.load_table, []
    load = lambda meta, part, *more: held.append(len(part)) or real(meta, part, *more)  # noqa: E731
    monkeypatch.setattr(verify_meta, "load_table", load)
    whole = verify.check(demo, "meta").to_dict()
    monkeypatch.setattr(verify_meta, "BYTES_AT_ONCE", 1000)
    parts = verify.check(demo, "meta").to_dict()
    assert [f["episode"] for f in whole["faults"]] == [2]
    assert parts | {"seconds": 0} == whole | {"seconds": 0}
    assert held == [whole["episodes"]] + [1] * whole["episodes"]
