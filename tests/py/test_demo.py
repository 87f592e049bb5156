"""The embedded data set: intact, small, of the shape that the demo and `doctor` need."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

DEMO = Path(__file__).resolve().parents[2] / "python/reelpool/_demo"
DATASET = DEMO / "dataset"


def _listed() -> dict[str, str]:
    lines = (DEMO / "SHA256SUMS").read_text().splitlines()
    return {path: digest for digest, path in (line.split("  ", 1) for line in lines)}


def _present() -> list[Path]:
    return [p for p in DEMO.rglob("*") if p.is_file() and p.name != "SHA256SUMS"]


def test_checksums_cover_every_file_and_hold():
    found = {
        p.relative_to(DEMO).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in _present()
    }
    assert found == _listed()


def test_at_most_300_kilobytes():
    assert sum(p.stat().st_size for p in _present()) <= 300_000


def test_layout():
    info = json.loads((DATASET / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    cameras = {k: v["info"]["video.codec"] for k, v in info["features"].items() if "info" in v}
    assert sorted(cameras.values()) == ["av1", "h264"]
    for camera in cameras:
        assert len(list((DATASET / "videos" / camera).rglob("*.mp4"))) == 2
    assert len(list((DATASET / "data").rglob("*.parquet"))) == 2
    table = pq.read_table(DATASET / "meta/episodes/chunk-000/file-000.parquet").to_pydict()
    lengths = table["length"]
    assert len(lengths) == info["total_episodes"] == 4
    assert sum(lengths) == info["total_frames"]
    for camera in cameras:
        assert sorted(set(table[f"videos/{camera}/file_index"])) == [0, 1]
        for start, end, length in zip(
            table[f"videos/{camera}/from_timestamp"],
            table[f"videos/{camera}/to_timestamp"],
            lengths,
        ):
            assert end - start == pytest.approx(length / info["fps"])


def test_frames_are_the_recorded_ones():
    """Every frame of both cameras, against hashes computed without this package's code."""
    import reelpool

    record = json.loads((DEMO / "frames.json").read_text())
    dataset = reelpool.LeRobotDataset("demo", root=DATASET, return_uint8=True)
    assert len(dataset) == record["episode_starts"][-1]
    for index in range(len(dataset)):
        item = dataset[index]
        for camera, digests in record["frames"].items():
            pixels = np.ascontiguousarray(np.asarray(item[camera]))
            assert pixels.dtype == np.uint8
            digest = hashlib.sha256(pixels.tobytes()).hexdigest()
            assert digest[:16] == digests[index], (camera, index)
