#!/usr/bin/env python3
"""Make the data set embedded in the package: python/reelpool/_demo.

A two-link arm carries a block to a tray, seen by a fixed camera (AV1) and by one at the gripper
(H.264). Four episodes, two tasks, LeRobot v3.0 layout, two video files per camera that split the
episodes differently, two data files. Beside it stand one short clip per codec, for `doctor`, and
the SHA-256 of decoded RGB frames, computed here from ffmpeg's YUV planes with the integer formula
written out below, so that they do not depend on the code they test.

Needs ffmpeg with libsvtav1, libx264, libx265, libvpx-vp9 and mpeg4, NumPy and pyarrow. Everything
is seeded and encoded by one thread; another ffmpeg release may still give other bytes.

    python tests/data/make_demo.py [--out python/reelpool/_demo]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FPS = 10
LENGTHS = (48, 44, 52, 40)
TASKS = ("put the orange block in the tray", "put the blue block in the tray")
EPISODE_TASK = (0, 1, 0, 1)
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
SIZE = {FRONT: (240, 320), WRIST: (144, 192)}
CODEC = {FRONT: "av1", WRIST: "h264"}
GROUPS = {FRONT: ((0, 1), (2, 3)), WRIST: ((0, 1, 2), (3,))}
DATA_GROUPS = ((0, 1, 2), (3,))
JOINTS = ("shoulder", "elbow", "gripper")
MAX_TOTAL = 300_000
QUIET = os.environ | {"SVT_LOG": "1"}
ENCODE = {
    "av1": "-c:v libsvtav1 -preset 4 -crf 42 -g 2 -svtav1-params lp=1:keyint=2:scd=0",
    "h264": "-c:v libx264 -preset veryslow -crf 32 -g 2 -bf 0 -threads 1 -x264-params scenecut=0",
    "hevc": "-c:v libx265 -crf 30 -g 2 -bf 0 -x265-params log-level=error:pools=none"
    ":frame-threads=1:keyint=2:bframes=0 -tag:v hvc1",
    "vp9": "-c:v libvpx-vp9 -crf 40 -b:v 0 -g 2 -threads 1 -row-mt 0",
    "mpeg4": "-c:v mpeg4 -qscale:v 6 -g 2 -bf 0 -threads 1 -flags +bitexact",
}


# ---- the scene: signed distances in metres, x right, y up, soft edges ----


def _blend(rgb: np.ndarray, colour, distance: np.ndarray, soft: float) -> None:
    alpha = np.clip(0.5 - distance / soft, 0.0, 1.0)[..., None]
    rgb += (np.asarray(colour, np.float64) - rgb) * alpha


def _capsule(x, y, a, b, radius):
    dx, dy = b[0] - a[0], b[1] - a[1]
    t = np.clip(((x - a[0]) * dx + (y - a[1]) * dy) / (dx * dx + dy * dy), 0.0, 1.0)
    return np.hypot(x - a[0] - t * dx, y - a[1] - t * dy) - radius


def _box(x, y, centre, half, radius=0.01):
    dx, dy = np.abs(x - centre[0]) - half[0] + radius, np.abs(y - centre[1]) - half[1] + radius
    outside = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
    return outside + np.minimum(np.maximum(dx, dy), 0) - radius


def _paint(x: np.ndarray, y: np.ndarray, scene: dict, soft: float) -> np.ndarray:
    """RGB in 0..255 at world points (x, y)."""
    rgb = np.empty(x.shape + (3,))
    depth = np.clip(y / 1.2, 0, 1)[..., None]
    rgb[:] = np.array([214, 196, 170.0]) * (1 - depth) + np.array([120, 150, 176.0]) * depth
    line = np.minimum(np.abs((x * 5) % 1 - 0.5), np.abs((y * 5) % 1 - 0.5))
    rgb *= 1 - 0.06 * (line < 0.06)[..., None]
    _blend(rgb, (66, 92, 84), _box(x, y, (0.55, 0.16), (0.22, 0.13), 0.03), soft)
    _blend(rgb, (104, 138, 122), _box(x, y, (0.55, 0.16), (0.18, 0.09), 0.02), soft)
    bx, by = scene["block"]
    _blend(rgb, (150, 136, 120), _box(x, y, (bx + 0.012, by - 0.015), (0.065, 0.065)), soft * 3)
    _blend(rgb, scene["colour"], _box(x, y, (bx, by), (0.06, 0.06)), soft)
    _blend(rgb, (255, 244, 220), _box(x, y, (bx - 0.015, by + 0.02), (0.028, 0.018), 0.008), soft)
    base, elbow, tip = scene["base"], scene["elbow_at"], scene["tip"]
    _blend(rgb, (52, 56, 66), _capsule(x, y, base, elbow, 0.05), soft)
    _blend(rgb, (226, 92, 62), _capsule(x, y, elbow, tip, 0.036), soft)
    for point, radius in ((base, 0.085), (elbow, 0.058)):
        _blend(rgb, (34, 38, 46), np.hypot(x - point[0], y - point[1]) - radius, soft)
        _blend(rgb, (240, 240, 236), np.hypot(x - point[0], y - point[1]) - radius * 0.4, soft)
    along = np.subtract(tip, elbow) / np.hypot(*np.subtract(tip, elbow))
    side = np.array([-along[1], along[0]]) * (0.035 + 0.05 * scene["open"])
    for sign in (1, -1):
        root, end = tip + sign * side, tip + sign * side + along * 0.09
        _blend(rgb, (40, 44, 54), _capsule(x, y, root, end, 0.016), soft)
    _blend(rgb, (40, 44, 54), _capsule(x, y, tip + side, tip - side, 0.018), soft)
    return rgb


def _episode(number: int) -> tuple[np.ndarray, list[dict]]:
    """State (length, 3) float32 and one scene per frame; the action is the next state."""
    rng = np.random.default_rng(1000 + number)
    length, base, upper, lower = LENGTHS[number], np.array([0.0, 0.06]), 0.52, 0.50
    start = np.array([rng.uniform(-0.55, -0.35), rng.uniform(0.25, 0.55)])
    goal = np.array([0.55 + rng.uniform(-0.05, 0.05), 0.16])
    home = np.array([rng.uniform(-0.1, 0.1), 0.9])
    points = np.array([home, start, start, start * 0.4 + goal * 0.6 + (0, 0.35), goal, goal, home])
    times = np.array([0.0, 0.28, 0.36, 0.58, 0.78, 0.86, 1.0])
    grip = np.array([1.0, 1.0, 0.25, 0.25, 0.25, 1.0, 1.0])
    colour = ((240, 148, 44), (58, 106, 214))[EPISODE_TASK[number]]
    state, scenes = np.zeros((length, 3), np.float32), []
    for i in range(length):
        t = i / (length - 1)
        k = min(int(np.searchsorted(times, t, "right")) - 1, len(times) - 2)
        f = (t - times[k]) / (times[k + 1] - times[k])
        f = f * f * (3 - 2 * f)
        reach = points[k] * (1 - f) + points[k + 1] * f
        tip = reach - base
        distance = min(np.hypot(*tip), upper + lower - 1e-3)
        bend = np.arccos((distance**2 - upper**2 - lower**2) / (2 * upper * lower))
        swing = np.arctan2(tip[1], tip[0]) + np.arctan2(
            lower * np.sin(bend), upper + lower * np.cos(bend)
        )
        elbow = base + upper * np.array([np.cos(swing), np.sin(swing)])
        tip = elbow + lower * np.array([np.cos(swing - bend), np.sin(swing - bend)])
        opening = grip[k] * (1 - f) + grip[k + 1] * f
        held = times[2] <= t < times[4] + 0.02
        block = start if t < times[2] else tip if held else goal
        state[i] = swing, -bend, opening
        scenes.append(
            {"base": base, "elbow_at": elbow, "tip": tip, "open": opening, "block": block}
            | {"colour": colour, "angle": swing - bend}
        )
    return state, scenes


def _render(scene: dict, camera: str) -> np.ndarray:
    """uint8 (H, W, 3)."""
    height, width = SIZE[camera]
    u = (np.arange(width) + 0.5) / width - 0.5
    v = 0.5 - (np.arange(height) + 0.5) / height
    u, v = np.meshgrid(u * width / height, v)
    if camera == FRONT:
        rgb = _paint(u * 1.35, v * 1.35 + 0.55, scene, 1.35 / height * 1.5)
        radius = np.hypot(u, v)
        rgb *= (1 - 0.22 * radius**2)[..., None]
    else:
        turn = scene["angle"] - np.pi / 2
        c, s = np.cos(turn), np.sin(turn)
        x = scene["tip"][0] + 0.62 * (c * u - s * (v + 0.18))
        y = scene["tip"][1] + 0.62 * (s * u + c * (v + 0.18))
        rgb = _paint(x, y, scene, 0.62 / height * 1.5)
    return np.clip(np.rint(rgb), 0, 255).astype(np.uint8)


# ---- video ----


def _ffmpeg(args: list[str], stdin: bytes | None = None) -> bytes:
    command = ["ffmpeg", "-hide_banner", "-v", "error", "-nostdin", "-y", *args]
    if stdin is not None:
        command.remove("-nostdin")
    return subprocess.run(
        command, input=stdin, check=True, stdout=subprocess.PIPE, env=QUIET
    ).stdout


def _encode(frames: list[np.ndarray], codec: str, path: Path) -> None:
    """Write frames (H, W, 3) uint8 as an MP4; BT.601 limited range, untagged as LeRobot's."""
    height, width = frames[0].shape[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {FPS} -i -".split()
    tail = "-pix_fmt yuv420p -map_metadata -1 -fflags +bitexact -video_track_timescale 10240"
    _ffmpeg(
        head + ENCODE[codec].split() + tail.split() + [str(path)],
        stdin=b"".join(f.tobytes() for f in frames),
    )


def _yuv(path: Path, height: int, width: int) -> np.ndarray:
    """Decoded I420 bytes, (frames, H * W * 3 / 2) uint8."""
    raw = _ffmpeg(["-i", str(path), "-f", "rawvideo", "-pix_fmt", "yuv420p", "-fps_mode",
                   "passthrough", "-"])  # fmt: skip
    return np.frombuffer(raw, np.uint8).reshape(-1, height * width * 3 // 2)


def rgb_of(i420: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint8 (3, H, W) by BT.601, limited range: int16 products, high halves, floor."""
    luma = i420[: height * width].reshape(height, width).astype(np.int32)
    chroma = i420[height * width :].reshape(2, height // 2, width // 2).astype(np.int32)
    u, v = (8 * c.repeat(2, 0).repeat(2, 1) - 1024 for c in chroma)
    y = ((8 * luma - 128) * 9539) >> 16
    red = y + ((v * 13075) >> 16)
    green = y + (((v * -6660) >> 16) + ((u * -3209) >> 16))
    blue = y + ((u * 16525) >> 16)
    return np.clip(np.stack([red, green, blue]), 0, 255).astype(np.uint8)


# ---- tables ----


def _stats(values: np.ndarray, quantiles: bool) -> dict:
    """LeRobot's statistics over axis 0 of (n, k)."""
    out = {
        "min": values.min(0),
        "max": values.max(0),
        "mean": values.mean(0),
        "std": values.std(0),
        "count": np.array([len(values)]),
    }
    if quantiles:
        out |= {f"q{q:02d}": np.quantile(values, q / 100, axis=0) for q in (1, 10, 50, 90, 99)}
    return {k: v.astype(np.int64 if k == "count" else np.float64) for k, v in out.items()}


def _image_stats(frames: np.ndarray, quantiles: bool) -> dict:
    """The same of (n, 3, H, W) uint8 as (3, 1, 1) lists over a pixel grid of every 8th frame."""
    pixels = frames[::8, :, ::4, ::4].transpose(0, 2, 3, 1).reshape(-1, 3) / 255.0
    out = _stats(pixels, quantiles) | {"count": np.array([len(frames[::8])])}
    return {k: v if k == "count" else np.round(v, 6)[:, None, None] for k, v in out.items()}


def _columns(episodes: list[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Per episode: column name -> values."""
    out, first = [], 0
    for number, state in enumerate(episodes):
        n = len(state)
        out.append(
            {
                "observation.state": state,
                "action": np.concatenate([state[1:], state[-1:]]),
                "timestamp": (np.arange(n) / FPS).astype(np.float32),
                "frame_index": np.arange(n),
                "episode_index": np.full(n, number),
                "index": np.arange(first, first + n),
                "task_index": np.full(n, EPISODE_TASK[number]),
            }
        )
        first += n
    return out


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def _write_data(columns: list[dict], out: Path) -> None:
    vector = pa.list_(pa.float32(), len(JOINTS))
    features = {}
    for name in columns[0]:
        if name in ("observation.state", "action"):
            value = {"dtype": "float32", "_type": "Value"}
            features[name] = {"feature": value, "length": len(JOINTS), "_type": "List"}
        else:
            kind = "float32" if name == "timestamp" else "int64"
            features[name] = {"dtype": kind, "_type": "Value"}
    meta = {"huggingface": json.dumps({"info": {"features": features}})}
    for number, group in enumerate(DATA_GROUPS):
        arrays, names = [], list(columns[0])
        for name in names:
            values = np.concatenate([columns[e][name] for e in group])
            if values.ndim == 2:
                flat = pa.array(values.reshape(-1), pa.float32())
                arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=vector))
            else:
                arrays.append(pa.array(values))
        table = pa.Table.from_arrays(arrays, names).replace_schema_metadata(meta)
        _write(table, out / f"data/chunk-000/file-{number:03d}.parquet")


def _write_meta(columns: list[dict], frames: dict, out: Path) -> None:
    rows, starts = [], np.concatenate([[0], np.cumsum(LENGTHS)])
    for e, length in enumerate(LENGTHS):
        row = {
            "episode_index": e,
            "tasks": [TASKS[EPISODE_TASK[e]]],
            "length": length,
            "data/chunk_index": 0,
            "data/file_index": next(i for i, g in enumerate(DATA_GROUPS) if e in g),
            "dataset_from_index": int(starts[e]),
            "dataset_to_index": int(starts[e + 1]),
        }
        for camera, groups in GROUPS.items():
            index = next(i for i, g in enumerate(groups) if e in g)
            before = sum(LENGTHS[x] for x in groups[index] if x < e)
            row |= {
                f"videos/{camera}/chunk_index": 0,
                f"videos/{camera}/file_index": index,
                f"videos/{camera}/from_timestamp": before / FPS,
                f"videos/{camera}/to_timestamp": (before + length) / FPS,
            }
        for name, values in columns[e].items():
            for k, v in _stats(values.reshape(length, -1), False).items():
                row[f"stats/{name}/{k}"] = v.tolist()
        for camera in SIZE:
            part = frames[camera][starts[e] : starts[e + 1]]
            for k, v in _image_stats(part, False).items():
                row[f"stats/{camera}/{k}"] = v.tolist()
        rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
    _write(pa.Table.from_pylist(rows), out / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pa.table({"task_index": pa.array(range(len(TASKS)), pa.int64()), "task": list(TASKS)})
    column = {"metadata": None, "numpy_type": "object", "pandas_type": "unicode"}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [column | {"name": None, "field_name": None}],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64",
             "numpy_type": "int64", "metadata": None},
            column | {"name": "task", "field_name": "task"},
        ],
        "pandas_version": "2.2.0",
    }  # fmt: skip
    _write(
        tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), out / "meta/tasks.parquet"
    )
    stats = {
        name: _stats(np.concatenate([c[name] for c in columns]).reshape(starts[-1], -1), True)
        for name in columns[0]
    } | {camera: _image_stats(frames[camera], True) for camera in SIZE}
    text = {n: {k: np.round(v, 6).tolist() for k, v in s.items()} for n, s in stats.items()}
    (out / "meta/stats.json").write_text(json.dumps(text) + "\n")
    (out / "meta/info.json").write_text(json.dumps(_info(), indent=1) + "\n")


def _info() -> dict:
    joints = {"dtype": "float32", "shape": [len(JOINTS)], "names": list(JOINTS)}
    features: dict = {"observation.state": joints, "action": joints}
    for camera, (height, width) in SIZE.items():
        features[camera] = {
            "dtype": "video",
            "shape": [height, width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": height,
                "video.width": width,
                "video.codec": CODEC[camera],
                "video.pix_fmt": "yuv420p",
                "video.fps": FPS,
                "video.channels": 3,
                "has_audio": False,
                "video.g": 2,
                "is_depth_map": False,
            },
        }
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    return {
        "codebase_version": "v3.0",
        "robot_type": "drawn_two_link_arm",
        "fps": FPS,
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "features": features,
    }


def build(out: Path) -> int:
    """Write everything under out; the number of bytes written."""
    dataset, clips = out / "dataset", out / "clips"
    episodes = [_episode(e) for e in range(len(LENGTHS))]
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    frames, expected = {}, {}
    for camera, groups in GROUPS.items():
        height, width = SIZE[camera]
        decoded = []
        for number, group in enumerate(groups):
            path = dataset / f"videos/{camera}/chunk-000/file-{number:03d}.mp4"
            drawn = [_render(s, camera) for e in group for s in episodes[e][1]]
            _encode(drawn, CODEC[camera], path)
            planes = _yuv(path, height, width)
            assert len(planes) == len(drawn), (path, len(planes), len(drawn))
            decoded += [rgb_of(p, height, width) for p in planes]
        frames[camera] = np.stack(decoded)
        expected[camera] = [hashlib.sha256(f.tobytes()).hexdigest()[:16] for f in decoded]
    columns = _columns([state for state, _ in episodes])
    _write_data(columns, dataset)
    _write_meta(columns, frames, dataset)
    drawn = [_render(s, FRONT)[48:176, 64:256] for s in episodes[0][1][8:24:2]]
    hashes = {}
    for codec in ENCODE:
        path = clips / f"{codec}.mp4"
        _encode(drawn, codec, path)
        planes = _yuv(path, 128, 192)
        assert len(planes) == len(drawn), path
        hashes[codec] = [hashlib.sha256(rgb_of(p, 128, 192).tobytes()).hexdigest() for p in planes]
    record = {"fps": FPS, "episode_starts": starts.tolist(), "frames": expected, "clips": hashes}
    (out / "frames.json").write_text(json.dumps(record, indent=0) + "\n")
    files = sorted(p for p in out.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(out).as_posix()}\n"
             for p in files)  # fmt: skip
    (out / "SHA256SUMS").write_text("".join(lines))
    return sum(p.stat().st_size for p in out.rglob("*") if p.is_file())


def main() -> None:
    """Build beside the target, then swap it in."""
    default = Path(__file__).resolve().parents[2] / "python/reelpool/_demo"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=default)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "demo"
        size = build(made)
        for path in sorted(p for p in made.rglob("*") if p.is_file()):
            print(f"{path.stat().st_size:8d}  {path.relative_to(made)}")
        print(f"{size:8d}  total, at most {MAX_TOTAL}")
        if size > MAX_TOTAL:
            raise SystemExit("too large")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)


if __name__ == "__main__":
    main()
