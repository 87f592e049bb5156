"""Datasets of format v2.x for the converter's tests, from the clips of the package."""

import hashlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reelpool
from reelpool.convert.job import Options
from reelpool.convert.run import convert
from written_datasets import NUMBERS, V21_DATA, V21_VIDEO, write_jsonl

CLIPS = Path(reelpool.__file__).parent / "_demo/clips"
CLIP_FRAMES, FPS = 8, 10
CAMERA = {"dtype": "video", "shape": [128, 192, 3], "names": ["height", "width", "channels"]}
MIXED = {  # camera: the codec of each episode's clip
    "observation.images.top": ("av1",) * 6,
    "observation.images.left": ("h264", "h264", "hevc", "h264", "vp9", "vp9"),
    "observation.images.wrist": ("vp9", "mpeg4", "mpeg4", "av1", "av1", "hevc"),
}


def png(episode, frame):
    """A PNG of 6 x 5 pixels that tells where it belongs."""
    from PIL import Image

    pixels = np.full((5, 6, 3), (episode * 20, frame * 20, 99), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_clips(root, cameras=None, version="v2.1", images=False, repeat=1):
    """A v2.x dataset of 8 frames per episode; its episodes are those of `cameras`, `repeat`
    times.
    """
    root = Path(root)
    cameras = {k: v * repeat for k, v in (MIXED if cameras is None else cameras).items()}
    count = max([len(v) for v in cameras.values()] or [3])
    features = {"observation.state": {"dtype": "float32", "shape": [3], "names": ["a", "b", "c"]}}
    features |= {key: dict(CAMERA) for key in cameras}
    if images:
        features["still"] = {"dtype": "image", "shape": [5, 6, 3], "names": CAMERA["names"]}
    (root / "meta").mkdir(parents=True)
    info = {
        "codebase_version": version,
        "robot_type": "arm",
        "total_episodes": count,
        "total_frames": count * CLIP_FRAMES,
        "total_tasks": 2,
        "total_videos": count * len(cameras),
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{count}"},
        "data_path": V21_DATA,
        "video_path": V21_VIDEO,
        "features": features | NUMBERS,
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    stats = []
    for episode in range(count):
        columns = _columns(episode, images)
        path = root / f"data/chunk-000/episode_{episode:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        for key, codecs in cameras.items():
            path = root / f"videos/chunk-000/{key}/episode_{episode:06d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(CLIPS / f"{codecs[episode]}.mp4", path)
        stats.append({"episode_index": episode, "stats": _stats(columns, episode, cameras)})
    rows = [
        {"episode_index": e, "tasks": [f"task {e % 2}"], "length": CLIP_FRAMES}
        for e in range(count)
    ]
    write_jsonl(root / "meta/episodes.jsonl", rows)
    tasks = [{"task_index": i, "task": f"task {i}"} for i in (1, 0)]
    write_jsonl(root / "meta/tasks.jsonl", tasks)
    if version == "v2.1":
        write_jsonl(root / "meta/episodes_stats.jsonl", stats)
    else:
        (root / "meta/stats.json").write_text(json.dumps(stats[0]["stats"]))
    return root


def _columns(episode, images):
    rng, frames = np.random.default_rng(episode), np.arange(CLIP_FRAMES)
    state = pa.array(rng.normal(size=3 * CLIP_FRAMES), pa.float32())
    columns = {"observation.state": pa.FixedSizeListArray.from_arrays(state, 3)}
    if images:
        cells = [{"bytes": png(episode, f), "path": f"frame-{f}.png"} for f in frames]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns["still"] = pa.array(cells, kind)
    return columns | {
        "timestamp": pa.array(frames / FPS, pa.float32()),
        "frame_index": pa.array(frames),
        "episode_index": pa.array(frames * 0 + episode),
        "index": pa.array(frames + CLIP_FRAMES * episode),
        "task_index": pa.array(frames * 0 + episode % 2),
    }


def _stats(columns, episode, cameras):
    out = {}
    for name, column in columns.items():
        if name == "still":
            continue
        values = np.array(column.to_pylist(), np.float64).reshape(CLIP_FRAMES, -1)
        out[name] = {
            "min": values.min(0).tolist(),
            "max": values.max(0).tolist(),
            "mean": values.mean(0).tolist(),
            "std": values.std(0).tolist(),
            "count": [CLIP_FRAMES],
        }
    for i, key in enumerate([*cameras, *(k for k in columns if k == "still")]):
        pixel = [[[0.1 * (episode + c + i)]] for c in range(3)]
        out[key] = dict.fromkeys(("min", "max", "mean", "std"), pixel) | {"count": [4]}
    return out


def tree(root):
    """{relative path: SHA-256} of every file below a folder."""
    root = Path(root)
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


def options(root, **changes):
    """What to convert, and how."""
    return Options(root=root, name=root.name, **changes)


@pytest.fixture(name="reference", scope="session")
def reference_fixture(tmp_path_factory):
    """(a source of six episodes, files of its conversion); for reading only."""
    base = tmp_path_factory.mktemp("reference")
    source = write_clips(base / "arm")
    convert(options(source, out=base / "out"))
    return source, tree(base / "out")
