"""`meta/info.json`: its fields, checked."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import warnings
from typing import Any

from .errors import (
    BackwardCompatibilityError,
    FormatError,
    ForwardCompatibilityError,
    make_error,
)
from .roots import INFO_FILE, LocalRoot

logger = logging.getLogger("reelpool")

MAX_INFO_BYTES = 4 << 20
DATA_TEMPLATE = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_TEMPLATE = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
NUMBER_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
OBJECT_DTYPES = frozenset(["string", "language", "image"])
_LEGACY_KEYS = {"total_videos", "total_chunks"}  # of v2.x, without use to a reader


def _bad(text: str) -> FormatError:
    return make_error(FormatError, f"{INFO_FILE}: {text}", file=INFO_FILE)


@dataclasses.dataclass
class DatasetInfo:
    """The contents of `info.json`, by attribute; `info["fps"]`, `get` and `in` work too."""

    codebase_version: str
    fps: int
    features: dict[str, dict]
    total_episodes: int = 0
    total_frames: int = 0
    total_tasks: int = 0
    chunks_size: int = 1000
    data_files_size_in_mb: int = 100
    video_files_size_in_mb: int = 200
    data_path: str = DATA_TEMPLATE
    video_path: str | None = VIDEO_TEMPLATE
    robot_type: str | None = None
    splits: dict[str, str] = dataclasses.field(default_factory=dict)
    tools: list[dict] | None = None

    def __post_init__(self) -> None:
        if (
            isinstance(self.fps, bool)
            or not isinstance(self.fps, (int, float))
            or not 0 < self.fps < 1e6
        ):
            raise _bad(f"fps must be a positive number, not {self.fps!r}")
        for name in ("total_episodes", "total_frames", "total_tasks"):
            self._check_int(name, 0)
        for name in ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb"):
            self._check_int(name, 1)
        if not isinstance(self.features, dict):
            raise _bad("features is not an object")
        for key, feature in self.features.items():
            self._check_feature(key, feature)

    def _check_int(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
            setattr(self, name, value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**53:
            raise _bad(f"{name} must be an integer >= {least}, not {value!r}")

    @staticmethod
    def _check_feature(key: str, feature: Any) -> None:
        if not isinstance(feature, dict) or not isinstance(feature.get("dtype"), str):
            raise _bad(f"features[{key!r}] has no dtype")
        for name in ("info", "video_info"):
            if not isinstance(feature.get(name), (dict, type(None))):
                raise _bad(f"features[{key!r}][{name!r}] is not an object")
        shape = feature.get("shape")
        if shape is None and feature["dtype"] in OBJECT_DTYPES | {"video"}:
            return
        if not isinstance(shape, (list, tuple)):
            raise _bad(f"features[{key!r}] has no shape")
        for size in shape:
            unknown = size is None and feature["dtype"] in ("video", "image")
            if not unknown and (type(size) is not int or not 0 <= size < 2**31):
                raise _bad(f"features[{key!r}]: shape {shape!r} is not a list of sizes")
        feature["shape"] = tuple(shape)

    @classmethod
    def from_dict(cls, raw: dict) -> DatasetInfo:
        """From decoded JSON. Unknown keys are dropped with a warning; FormatError names a missing
        one.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(set(raw) - known - _LEGACY_KEYS)
        if unknown:
            logger.warning("%s: unknown fields are ignored: %s", INFO_FILE, ", ".join(unknown))
        for name in ("codebase_version", "fps", "features"):
            if name not in raw:
                raise _bad(f"{name} is missing")
        return cls(**{k: v for k, v in raw.items() if k in known})

    def to_dict(self) -> dict:
        """A JSON-serialisable dict; `tools` only if set."""
        out = dataclasses.asdict(self)
        for feature in out["features"].values():
            if isinstance(feature.get("shape"), tuple):
                feature["shape"] = list(feature["shape"])
        if out["tools"] is None:
            del out["tools"]
        return out

    def __getitem__(self, key: str) -> Any:
        warnings.warn(f"use info.{key} instead of info[{key!r}]", DeprecationWarning, stacklevel=2)
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        warnings.warn(
            f"use info.{key} = ... instead of info[{key!r}]", DeprecationWarning, stacklevel=2
        )
        if key not in self:
            raise KeyError(key)
        setattr(self, key, value)

    def __contains__(self, key: object) -> bool:
        return key in {f.name for f in dataclasses.fields(self)}

    def get(self, key: str, default: Any = None) -> Any:
        """The field `key`, or `default` if there is none."""
        return getattr(self, key) if key in self else default


def parse_version(text: Any, repo_id: str) -> tuple[int, int]:
    """(major, minor) of a codebase version, which must be one that is read here (v2.0 <= v < v4).

    Raises FormatError for text that is no version, BackwardCompatibilityError,
    ForwardCompatibilityError.
    """
    match = (
        re.fullmatch(r"v?(\d{1,4})(?:\.(\d{1,4}))?(?:\.\w+)*", text)
        if isinstance(text, str)
        else None
    )
    if match is None:
        raise _bad(f"codebase_version {text!r} is not a version")
    major, minor = int(match.group(1)), int(match.group(2) or 0)
    if major < 2:
        raise make_error(
            BackwardCompatibilityError,
            f"{repo_id} has format {text}; v2.0 to v3.x are read\n"
            "  Convert it to v2.0 or newer with the LeRobot release that recorded it",
            dataset=repo_id,
            file=INFO_FILE,
        )
    if major >= 4:
        raise make_error(
            ForwardCompatibilityError,
            f"{repo_id} has format {text}; v2.0 to v3.x are read\n"
            "  Run: pip install --upgrade reelpool",
            dataset=repo_id,
            file=INFO_FILE,
        )
    return major, minor


def parse_json(data: bytes, rel: str) -> Any:
    """Decoded JSON. Raises FormatError naming the file and the place."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise make_error(FormatError, f"{rel} is not JSON: {error}", file=rel) from None


def load_info(root: LocalRoot) -> DatasetInfo:
    """`info.json` of a dataset, checked."""
    raw = parse_json(root.read_bytes(INFO_FILE, MAX_INFO_BYTES), INFO_FILE)
    if not isinstance(raw, dict):
        raise _bad("is not an object")
    return DatasetInfo.from_dict(raw)
