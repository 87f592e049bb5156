"""reelpool: batches from LeRobot robot-video datasets, decoded and shuffled by a C core.

Importing this package loads neither torch nor the extension module; both come at first use.
"""

from __future__ import annotations

import importlib
from typing import Any

from . import env

__version__ = "0.1.0"

_PLACES = {
    "EpisodeAwareSampler": "sampler",
    "LeRobotDataset": "dataset",
    "LeRobotDatasetMetadata": "metadata",
    "Loader": "loader",
    "StreamingLeRobotDataset": "streaming",
    "VideoDecoderCache": "video",
    "Item": "collation",
    "collate": "collation",
    "compute_sampler_state": "sampler",
    "decode_video_frames": "video",
    "group_episodes_by_files": "sampler",
    "partition_episodes": "sampler",
    "patch_lerobot": "lerobot",
}

__all__ = [
    "EpisodeAwareSampler",
    "Item",
    "LeRobotDataset",
    "LeRobotDatasetMetadata",
    "Loader",
    "StreamingLeRobotDataset",
    "VideoDecoderCache",
    "__version__",
    "collate",
    "compute_sampler_state",
    "decode_video_frames",
    "errors",
    "group_episodes_by_files",
    "partition_episodes",
    "patch_lerobot",
]

env.log_to_stderr()


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module(".errors", __name__)
    if name in _PLACES:
        value = getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
