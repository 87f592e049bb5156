"""Small datasets written by LeRobot's own recorder, with every kind of feature it knows.

``python make_datasets.py FOLDER`` writes FOLDER/{av1,h264,stills}, the same each time but for what
the encoders of another FFmpeg make of it.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lerobot.configs import DepthEncoderConfig, RGBEncoderConfig
from lerobot.datasets.language import language_feature_info
from lerobot.datasets.lerobot_dataset import LeRobotDataset

IMAGE_NAMES = ["height", "width", "channels"]


def image(dtype, height, width, channels=3, **info):
    feature = {"dtype": dtype, "shape": (height, width, channels), "names": IMAGE_NAMES}
    return {**feature, "info": info} if info else feature


def column(dtype, *shape):
    return {"dtype": dtype, "shape": shape, "names": None}


COLUMNS = {
    "observation.state": column("float32", 6),
    "action": column("float32", 4),
    "next.reward": column("float32", 1),
    "next.done": column("bool", 1),
    "precise": column("float64", 1),
    "precise_vector": column("float64", 3),
    "small_int": column("int8", 1),
    "unsigned": column("uint8", 1),
    "ints": column("int32", 3),
    "flags": column("bool", 2),
    "matrix": column("float32", 2, 3),
    "int_cube": column("int64", 2, 2, 2),
    "remark": {"dtype": "string", "shape": (1,), "names": None},
}

# LeRobot cannot join the episodes of a file with B-frames.
DEPTH_OPTIONS = {"x265-params": "lossless=1:bframes=0"}

SETS = {
    # name: (fps, features, encoder, episode lengths)
    "av1": (
        10,
        {
            "observation.images.front": image("video", 48, 64),
            **COLUMNS,
            "observation.images.side": image("video", 56, 72),
            "observation.images.depth": image("video", 48, 64, 1, is_depth_map=True),
        },
        None,
        (17, 2, 30, 5, 24),
    ),
    "h264": (
        30,
        {
            "action": column("float32", 2),
            "observation.images.front": image("video", 50, 76),
            "observation.images.still": image("image", 20, 24),
        },
        RGBEncoderConfig(vcodec="h264", g=7, crf=20),
        (40, 13, 33),
    ),
    "stills": (
        20,
        {
            "observation.images.still": image("image", 20, 24),
            "observation.images.depth": image("image", 20, 24, 1, is_depth_map=True),
            **COLUMNS,
        },
        None,
        (9, 11),
    ),
}


def frame(features, rng, step, length):
    """One frame's values: pictures that move, numbers that use their whole type."""
    values = {"task": ["stack the cups", "wipe the table"][step % 7 > 4]}
    for key, feature in features.items():
        shape, dtype = tuple(feature["shape"]), feature["dtype"]
        if dtype in ("image", "video"):
            height, width, channels = shape
            y, x = np.mgrid[:height, :width]
            if channels == 1:
                values[key] = ((y * 61 + x * 37 + step * 97) % 9000 + 200).astype(np.uint16)
                values[key] = values[key][:, :, None]
            else:
                base = np.stack([x * 3 + step * 5, y * 4 + step, x + y + step * 9], axis=-1)
                noise = rng.integers(0, 24, shape)
                values[key] = ((base + noise) % 256).astype(np.uint8)
        elif dtype == "string":
            values[key] = f"step {step}/{length} åß日"
        elif dtype == "bool":
            values[key] = rng.integers(0, 2, shape).astype(bool)
        elif dtype.startswith("float"):
            values[key] = rng.normal(scale=1e3, size=shape).astype(dtype)
        else:
            bounds = np.iinfo(dtype)
            values[key] = rng.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)
    return values


def record(root, name):
    fps, features, encoder, lengths = SETS[name]
    rng = np.random.default_rng(7)
    dataset = LeRobotDataset.create(
        f"parity/{name}",
        fps,
        features,
        root=root,
        robot_type="test",
        rgb_encoder=encoder,
        depth_encoder=DepthEncoderConfig(extra_options=DEPTH_OPTIONS),
        data_files_size_in_mb=0.02,
        video_files_size_in_mb=0.02,
    )
    for length in lengths:
        for step in range(length):
            dataset.add_frame(frame(features, rng, step, length))
        dataset.save_episode(parallel_encoding=False)
    dataset.finalize()
    # Fractions of a MB made several small files; a real set declares whole numbers.
    sizes = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    update_info(root, lambda info: info.update(sizes))


def persistent_rows(episode):
    return [
        {
            "role": "assistant",
            "content": f"do part {part} of {episode}",
            "style": "subtask",
            "timestamp": part * 0.5,
            "camera": None,
            "tool_calls": None,
        }
        for part in range(episode % 3)
    ]


def event_rows(frame_index, camera):
    if frame_index % 4:
        return []
    row = {"role": "user", "content": None, "style": "vqa", "camera": camera, "tool_calls": None}
    call = {"type": "function", "function": {"name": "say", "arguments": {"text": "hm"}}}
    speech = {**row, "role": "assistant", "style": None, "camera": None, "tool_calls": [call]}
    return [{**row, "content": f"what is at {frame_index}?"}, speech][: 1 + frame_index % 8 // 4]


def add_language(root, camera):
    """The two language columns, as an annotation run appends them to a finished dataset."""
    for path in sorted(root.glob("data/*/*.parquet")):
        table = pq.read_table(path)
        episodes, frames = table["episode_index"].to_pylist(), table["frame_index"].to_pylist()
        # Types are left to inference, as LeRobot's annotation writer does.
        persistent = pa.array([persistent_rows(episode) for episode in episodes])
        events = pa.array([event_rows(index, camera) for index in frames])
        table = table.append_column("language_persistent", persistent)
        pq.write_table(table.append_column("language_events", events), path)
    update_info(root, lambda info: info["features"].update(language_feature_info()))


def update_info(root, change):
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info, indent=4))


def main(folder):
    folder = Path(folder)
    for name in SETS:
        record(folder / name, name)
    add_language(folder / "av1", "observation.images.front")


if __name__ == "__main__":
    main(sys.argv[1])
