"""`reelpool inspect --rerun` and `--spawn`: what Rerun is told, by a stand-in; its real file."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import reelpool
from demo_sets import FRONT, ROOT, STARTS, WRIST, array, truth
from reelpool.__main__ import main
from reelpool.cli import timeline
from reelpool.errors import MissingExtraError
from test_depth import depth_set  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from remote_things import bare, serve


class Recording:
    """A RecordingStream that keeps what it is told."""

    def __init__(self, name, recording_id):
        self.name, self.id, self.times, self.told = name, recording_id, {}, []
        self.path, self.spawned, self.ended = None, False, False

    def save(self, path):
        self.path = path

    def spawn(self):
        self.spawned = True

    def set_time(self, line, **value):
        (self.times[line],) = value.values()

    def log(self, place, what, static=False):
        self.told.append((None if static else dict(self.times), place, what))

    def flush(self):
        self.ended = True

    def disconnect(self):
        assert self.ended

    def of(self, place):
        return [(times, what) for times, at, what in self.told if at == place and times]


class Picture(SimpleNamespace):
    def compress(self, jpeg_quality):
        return Picture(pixels=self.pixels, quality=jpeg_quality)


@pytest.fixture(name="rerun")
def rerun_fixture(monkeypatch):
    """A stand-in for the module; `made` are its recordings."""
    made = []

    def stream(name, recording_id):
        made.append(Recording(name, recording_id))
        return made[-1]

    module = SimpleNamespace(
        RecordingStream=stream, made=made, Scalars=np.array, TextDocument=str,
        Image=lambda pixels: Picture(pixels=pixels),
        DepthImage=lambda pixels, meter: SimpleNamespace(depth=pixels, meter=meter),
        SeriesLines=lambda names: names,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "rerun", module)
    return module


@pytest.mark.parametrize("place", [str(ROOT), ROOT.as_uri()])
def test_an_episode(rerun, tmp_path, capsys, place):
    path = tmp_path / "new/arm.rrd"
    words = ["--episode", "1", "--rerun", str(path), "--out-dir", str(tmp_path), "--json"]
    assert main(["inspect", place, *words]) == 0
    assert str(path) in json.loads(capsys.readouterr().out)["files"]
    (made,) = rerun.made
    assert made.path == path and made.ended and not made.spawned and made.id.endswith("episode 1")
    rows = range(STARTS[1], STARTS[2])
    for camera in (FRONT, WRIST):
        seen = made.of(camera)
        assert [times["frame"] for times, _ in seen] == list(range(len(rows)))
        assert [times["time"] for times, _ in seen] == pytest.approx(np.arange(len(rows)) / 10)
        for row, (_, picture) in zip(rows, seen):
            assert np.array_equal(picture.pixels, np.moveaxis(truth()[camera][row], 0, -1))
            assert picture.quality == timeline.QUALITY
    dataset = reelpool.LeRobotDataset("x/y", ROOT, cameras=[])
    for key in ("action", "observation.state"):
        seen = made.of(key)
        assert np.array_equal([v for _, v in seen], [array(dataset[row][key]) for row in rows])
        (names,) = [what for times, at, what in made.told if at == key and times is None]
        assert names == ["shoulder", "elbow", "gripper"]
    assert [what for _, what in made.of("task")] == [dataset[STARTS[1]]["task"]]
    assert not made.of("index")


def test_a_viewer_that_is_started(rerun, tmp_path):
    path = tmp_path / "a.rrd"
    both = ["--spawn", "--rerun", str(path), "--out-dir", str(tmp_path), "-q"]
    assert main(["inspect", str(ROOT), *both]) == 0
    assert [made.spawned for made in rerun.made] == [False, True]
    assert rerun.made[0].told[-1][:2] == rerun.made[1].told[-1][:2]


@pytest.mark.parametrize("unit", ["m", "mm"])
def test_depth(rerun, depth_set, unit):  # noqa: F811
    root, _ = depth_set
    dataset = reelpool.LeRobotDataset("x/y", root, depth_output_unit=unit, episodes=[2])
    timeline.show("x/y", dataset, 2, None)
    seen = rerun.made[0].of("depth")
    assert len(seen) == 5 and {what.meter for _, what in seen} == {{"m": 1.0, "mm": 1000.0}[unit]}
    assert np.array_equal(seen[3][1].depth, array(dataset[3]["depth"])[0])


def test_an_episode_behind_a_url(rerun, tmp_path, monkeypatch):
    bare(monkeypatch.setenv, lambda name: monkeypatch.delenv(name, raising=False), tmp_path)
    with serve() as server:
        words = ["--episode", "3", "--rerun", str(tmp_path / "a.rrd")]
        assert main(["inspect", server.url("/set"), *words]) == 0
        assert main(["inspect", server.url("/set"), "--episode", "4", "--spawn"]) == 3
    (made,) = rerun.made
    assert [times["frame"] for times, _ in made.of(WRIST)] == list(range(STARTS[4] - STARTS[3]))
    assert np.array_equal(made.of(WRIST)[5][1].pixels[:, :, 0], truth()[WRIST][STARTS[3] + 5][0])


def test_without_rerun(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(MissingExtraError, match=r"reelpool\[viz\]"):
        timeline.viewer()
    assert main(["inspect", str(ROOT), "--spawn", "--out-dir", str(tmp_path)]) == 3
    assert "pip install 'reelpool[viz]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # nothing was begun


def test_a_file_that_cannot_be_written(rerun, tmp_path, capsys):
    (tmp_path / "file").touch()
    place = tmp_path / "file/x.rrd"
    assert main(["inspect", str(ROOT), "--rerun", str(place), "--out-dir", str(tmp_path)]) == 3
    assert f"{place} cannot be written" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("rerun") is None, reason="needs the extra `viz`")
def test_the_real_file(tmp_path):
    path = tmp_path / "arm.rrd"
    assert main(["inspect", str(ROOT), "--rerun", str(path), "--out-dir", str(tmp_path)]) == 0
    assert path.read_bytes()[:4] == b"RRF2" and path.stat().st_size > 100_000
