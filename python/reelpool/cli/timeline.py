"""`reelpool inspect --rerun FILE` and `--spawn`: an episode on the timeline of Rerun's viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingExtraError
from . import console

AT_ONCE = 32  # items read together
QUALITY = 90  # of the pictures, as JPEG
_PLACES = ("index", "episode_index", "frame_index", "timestamp", "task_index")


def viewer() -> Any:
    """The module rerun. MissingExtraError where it is not installed."""
    try:
        import rerun
    except ImportError as error:
        raise MissingExtraError(
            "--rerun and --spawn need the package rerun-sdk. Run: pip install 'reelpool[viz]'"
        ) from error
    return rerun


def show(name: str, dataset: Any, episode: int, path: Path | None) -> None:
    """Log an episode (cameras, numbers, tasks) into a file, or into a viewer that is started.

    dataset: map-style, with uint8 pictures and without windows. Raises MissingExtraError,
    console.Unusable where the file cannot be written, and what reading raises.
    """
    rerun = viewer()
    recording = rerun.RecordingStream(f"reelpool {name}", recording_id=f"{name}, episode {episode}")
    if path is None:
        recording.spawn()
    else:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb"):
                pass
        except OSError as error:
            raise console.Unusable(f"{path} cannot be written: {error.strerror}") from None
        recording.save(path)
    meta = dataset.meta
    first, length = (
        int(meta.episodes[episode]["dataset_from_index"]),
        meta.episodes[episode]["length"],
    )
    if dataset.absolute_to_relative_idx is not None:
        first = dataset.absolute_to_relative_idx[first]
    last = first + int(length)
    numbers = _numbers(meta)
    for key in numbers:
        lines = rerun.SeriesLines(names=_names(meta, key))
        recording.log(key, lines, static=True)
    task = None
    for start in range(first, last, AT_ONCE):
        for item in dataset[start : min(last, start + AT_ONCE)]:
            recording.set_time("frame", sequence=int(item["frame_index"]))
            recording.set_time("time", duration=float(item["timestamp"]))
            for key in meta.camera_keys:
                recording.log(key, _picture(rerun, dataset, key, np.asarray(item[key])))
            for key in numbers:
                values = np.asarray(item[key], np.float64).reshape(-1)
                recording.log(key, rerun.Scalars(values))
            if item["task"] != task:
                task = item["task"]
                recording.log("task", rerun.TextDocument(task))
    recording.flush()
    recording.disconnect()


def _numbers(meta: Any) -> list[str]:
    """Features that are drawn as curves."""
    kinds = ("float", "int", "uint", "bool")
    return [
        key
        for key, feature in meta.features.items()
        if feature["dtype"].startswith(kinds) and key not in _PLACES
    ]


def _names(meta: Any, key: str) -> list[str]:
    """A name per curve of a feature."""
    names = meta.names.get(key) or []
    if isinstance(names, dict):
        names = [name for group in names.values() for name in group]
    count = int(np.prod(meta.features[key]["shape"], dtype=np.int64))
    known = [str(name) for name in names]
    return known if len(known) == count else [str(i) for i in range(count)]


def _picture(rerun: Any, dataset: Any, key: str, picture: np.ndarray) -> Any:
    """A (C, H, W) picture as Rerun takes it."""
    if key in dataset.meta.depth_keys:
        metre = 1.0 if dataset.depth_output_unit == "m" else 1000.0
        return rerun.DepthImage(picture[0].astype(np.float32), meter=metre)
    if picture.dtype.kind == "f":  # of tables: u8 / 255, or values of their own
        picture = np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)
    pixels = np.ascontiguousarray(np.moveaxis(picture, 0, -1))
    if pixels.shape[-1] == 1:
        pixels = pixels[:, :, 0]
    image = rerun.Image(pixels)
    small = pixels.dtype == np.uint8 and (pixels.ndim == 2 or pixels.shape[-1] == 3)
    return image.compress(jpeg_quality=QUALITY) if small else image
