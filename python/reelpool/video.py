"""Frames of single video files: `decode_video_frames` and `VideoDecoderCache`."""

from __future__ import annotations

import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import device as gpu
from . import env
from .engine import (
    DECODERS_PER_THREAD,
    F32,
    FRAME_CACHE_BYTES,
    INDEX_BYTES,
    TIMEOUT_S,
    U8,
    U16,
    load_core,
    torch_wanted,
)
from .errors import (
    DatasetChangedError,
    FrameTimestampError,
    UnsupportedMediaError,
    make_error,
)

__all__ = ["VideoDecoder", "VideoDecoderCache", "decode_video_frames"]

_TYPES = {U8: ("B", 3), F32: ("f", 3), U16: ("H", 1)}
_KEPT_BYTES = 64 << 20  # of free memory, of each kind
_UNSET: Any = object()


class VideoMetadata:
    """`width height codec num_frames average_fps duration_seconds` of a video track."""

    def __init__(self, info: dict[str, Any]) -> None:
        self.width, self.height, self.codec = info["width"], info["height"], info["codec"]
        self.num_frames: int = info["addressable"]
        self.duration_seconds: float = info["duration"] / info["timescale"]
        self.average_fps = self.num_frames / self.duration_seconds if info["duration"] else 0.0


class FrameBatch:
    """`data` (N, 3, H, W) uint8 and `pts_seconds` (N,) float64 of some frames."""

    def __init__(self, data: Any, pts_seconds: Any) -> None:
        self.data, self.pts_seconds = data, pts_seconds


def _identity(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """What tells a file from the one that takes its place; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _absolute(path: str) -> str:
    """A path that stays right when the process changes its folder."""
    try:
        return os.path.abspath(path) if path else path
    except FileNotFoundError:  # the folder that we are in is gone: so is the file
        return path


class VideoDecoder:
    """One local video file: its frames by number or time. Thread-safe; reopened after a fork.

    A decoder stays with the file that it opened: DatasetChangedError once another took its place.
    `device`: where frames are delivered, "cpu", "cuda" or "cuda:N".
    """

    def __init__(self, path: str | os.PathLike[str], device: str = "cpu") -> None:
        self.device = str(device)
        self._gpu = gpu.check_video_device(device, "device")
        self.path = _absolute(os.fsdecode(path))
        self.identity = _identity(self.path)  # before the index: what changes later is noticed
        info = load_core().video_info(self.path)
        self.metadata = VideoMetadata(info)
        self._times = np.frombuffer(info["times"], np.float64)
        self._engines: dict[tuple[int, int, int | None], Any] = {}
        self._lock = threading.Lock()

    def _engine(self, pixel: int, device: int | None) -> Any:
        with self._lock:
            key = (os.getpid(), pixel, device)
            if key not in self._engines:
                self._engines = {k: v for k, v in self._engines.items() if k[0] == key[0]}
                self._engines[key] = self._open(pixel, device)
            return self._engines[key]

    def _open(self, pixel: int, device: int | None) -> Any:
        if _identity(self.path) != self.identity:
            what = "the file was replaced after it was opened"
            raise make_error(DatasetChangedError, what, file=self.path)
        kind, channels = _TYPES[pixel]
        height, width = self.metadata.height, self.metadata.width
        one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
        camera = ("video", height, width, channels, pixel, zero, np.zeros(1, np.int32),
                  np.zeros(1), None, False)  # fmt: skip
        from .sums import with_places

        place = None
        if device is not None:
            workers = workers_here()
            ordinal = gpu.item_ordinal(device, workers)
            place = (ordinal, gpu.DRIVER, gpu.KERNEL, _KEPT_BYTES, max(1, workers))
        return load_core().Engine(
            with_places([os.fsencode(self.path)]), np.append(zero, one), zero, None, zero,
            np.zeros(1, np.float32), np.full(1, self.tolerance_of_engine), [camera], [], [],
            [(kind, (channels, height, width))], 0, 0, False, _KEPT_BYTES, FRAME_CACHE_BYTES, 0,
            INDEX_BYTES, DECODERS_PER_THREAD, False, 0, 0, place,
        )  # fmt: skip

    # Times are matched to stored ones before they reach the engine.
    tolerance_of_engine = 1e-9

    def nearest(self, timestamps: Sequence[float], tolerance_s: float) -> np.ndarray:
        """Numbers of the frames shown nearest to the times (seconds), int64. FrameTimestampError
        beyond the tolerance (compared in float64 or float32).
        """
        wanted = np.asarray(timestamps, np.float64)
        right = np.clip(np.searchsorted(self._times, wanted), 0, len(self._times) - 1)
        left = np.maximum(right - 1, 0)
        closer = np.abs(wanted - self._times[left]) <= np.abs(wanted - self._times[right])
        found = np.where(closer, left, right)
        stored = self._times[found]
        exact = np.abs(wanted - stored) <= tolerance_s
        with np.errstate(over="ignore"):
            single = np.abs(wanted.astype(np.float32) - stored.astype(np.float32))
            bad = ~(exact | (single <= np.float32(tolerance_s)))
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            raise make_error(
                FrameTimestampError,
                f"no frame within {tolerance_s} s of {wanted[first]} s (nearest {stored[first]} s)",
                file=self.path, time=float(wanted[first]), nearest=float(stored[first]),
            )  # fmt: skip
        return found.astype(np.int64)

    def read(self, numbers: np.ndarray, pixel: int = U8, device: int | None = None) -> Any:
        """Frames by number: (N, 3, H, W) uint8 or float32, or (N, 1, H, W) uint16 depth codes; on
        the decoder's device, or the GPU `device`. An array of the core: torch is not loaded.
        """
        times = self._times[numbers]
        device = self._gpu if device is None else device
        engine = self._engine(pixel, device)
        batch = engine.get(np.zeros(len(numbers), np.int64), TIMEOUT_S, times)
        return batch.arrays()[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return VideoDecoder, (self.path, self.device)

    def get_frames_at(self, indices: Sequence[int]) -> FrameBatch:
        """Frames by number; a negative one counts from the end. IndexError outside the file,
        TypeError for what is no integer.
        """
        count = self.metadata.num_frames
        wanted = [operator.index(i) for i in indices]
        if not wanted:
            raise ValueError("indices is empty")
        if not all(-count <= i < count for i in wanted):
            raise IndexError(f"{self.path} has frames 0..{count - 1}, asked for {wanted}")
        numbers = np.array([i + count if i < 0 else i for i in wanted], np.int64)
        return FrameBatch(_wrapped(self.read(numbers)), _wrapped(self._times[numbers]))


def workers_here() -> int:
    """Workers of the DataLoader that this process works for; 0 in any other process."""
    if not torch_wanted(None):
        return 0
    from .torch_bridge import workers

    return workers()


def _wrapped(array: Any) -> Any:
    """An array of the core as it is delivered."""
    if not torch_wanted(None):
        return array
    return gpu.item_wrapper(workers_here() > 0)(array)


class VideoDecoderCache:
    """Open `VideoDecoder`s by path, least recently used dropped first. Thread-safe.

    `max_size`: None = unbounded; default LEROBOT_VIDEO_DECODER_CACHE_SIZE, else 100. `counters`: an
    integer tensor or array of 3 that counts hits, misses, evictions, shared by whoever holds it. A
    dropped decoder stays valid for its holder. A path whose file was replaced is opened anew (a
    miss). `device`: where their frames are delivered. Raises ValueError for max_size <= 0.
    """

    def __init__(
        self, max_size: int | None = _UNSET, counters: Any = None, device: str = "cpu"
    ) -> None:
        if max_size is _UNSET:
            max_size = env.video_decoder_cache_size()
        if max_size is not None and not (hasattr(max_size, "__index__") and max_size > 0):
            raise ValueError(f"max_size must be a positive integer or None, not {max_size!r}")
        self._gpu = gpu.check_video_device(device, "device")
        self.max_size, self.device = max_size, str(device)
        self._counters = [0, 0, 0] if counters is None else counters
        self._decoders: OrderedDict[str, VideoDecoder] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, path: Any) -> bool:
        with self._lock:
            return str(path) in self._decoders

    def get_decoder(self, path: str | os.PathLike[str]) -> VideoDecoder:
        """The open decoder of a file. NotFoundError, FormatError and their kin."""
        key, now = str(path), _identity(path)
        with self._lock:
            decoder = self._decoders.get(key)
            if decoder is not None and decoder.identity != now:
                del self._decoders[key]
                decoder = None
            if decoder is not None:
                self._decoders.move_to_end(key)
                self._counters[0] += 1
                return decoder
            self._counters[1] += 1
        opened = VideoDecoder(path, self.device)
        with self._lock:
            decoder = self._decoders.setdefault(key, opened)
            if decoder.identity != opened.identity:  # another thread opened the file before this
                decoder = self._decoders[key] = opened
            while self.max_size is not None and len(self._decoders) > self.max_size:
                self._decoders.popitem(last=False)
                self._counters[2] += 1
        return decoder

    def clear(self) -> None:
        """Forget all decoders."""
        with self._lock:
            self._decoders.clear()

    def size(self) -> int:
        """Decoders held."""
        with self._lock:
            return len(self._decoders)

    @property
    def hits(self) -> int:
        return int(self._counters[0])

    @property
    def misses(self) -> int:
        return int(self._counters[1])

    @property
    def evictions(self) -> int:
        return int(self._counters[2])

    def stats(self) -> dict[str, Any]:
        """hits, misses, evictions, hit_rate (0 before the first call), size."""
        calls = self.hits + self.misses
        return {
            "hits": self.hits,
            "misses": self.misses,
            "evictions": self.evictions,
            "hit_rate": self.hits / calls if calls else 0.0,
            "size": self.size(),
        }

    def __getstate__(self) -> dict[str, Any]:
        kept = ("max_size", "_counters", "device", "_gpu")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._decoders, self._lock = OrderedDict(), threading.Lock()


_default_cache: VideoDecoderCache | None = None
_default_lock = threading.Lock()


def _shared_cache() -> VideoDecoderCache:
    global _default_cache
    with _default_lock:
        if _default_cache is None:
            _default_cache = VideoDecoderCache()
        return _default_cache


def decode_video_frames(
    video_path: str | Path,
    timestamps: Sequence[float],
    tolerance_s: float,
    backend: str | None = None,
    return_uint8: bool = False,
    is_depth: bool = False,
    *,
    decoder_cache: VideoDecoderCache | None = None,
    device: str = "cpu",
) -> Any:
    """Frames shown at `timestamps` (seconds in the file), in query order, repeats allowed.

    Returns (T, 3, H, W) float32 in [0, 1] or uint8, or (T, 1, H, W) uint16 codes with `is_depth`:
    a torch tensor if torch is installed, else a NumPy array. `backend` is accepted for
    compatibility: pixels are torchcodec's. `device`: "cpu", "cuda" or "cuda:N", where frames are
    delivered; "cpu" means the device that `decoder_cache` has. Raises ValueError for an empty list,
    a negative time or tolerance, FrameTimestampError beyond the tolerance, NotFoundError,
    FormatError, DecodeError, CudaError.
    """
    if backend not in (None, "torchcodec", "pyav", "video_reader"):
        raise ValueError(f"backend={backend!r}: use None, 'torchcodec', 'pyav' or 'video_reader'")
    place = gpu.check_video_device(device, "device")
    if "://" in str(video_path):
        what = f"{str(video_path).split('?')[0]} is remote, and this version reads local files only"
        raise make_error(UnsupportedMediaError, what)
    times = [float(t) for t in timestamps]
    if not times:
        raise ValueError("timestamps is empty")
    if not all(t >= 0 for t in times):
        raise ValueError(f"timestamps must be seconds >= 0, not {min(times)}")
    if not isinstance(tolerance_s, (int, float, np.number)) or not tolerance_s >= 0:
        raise ValueError(f"tolerance_s must be a number of seconds >= 0, not {tolerance_s!r}")
    cache = _shared_cache() if decoder_cache is None else decoder_cache
    if None not in (place, cache._gpu) and not gpu.same_device(place, cache._gpu):
        raise ValueError(f"device={device!r}, but decoder_cache has device={cache.device!r}")
    decoder = cache.get_decoder(video_path)
    numbers = decoder.nearest(times, tolerance_s)
    pixel = U16 if is_depth else U8 if return_uint8 else F32
    return _wrapped(decoder.read(numbers, pixel, place))
