"""Errors of reelpool: one class per cause, each also a builtin error.

Every class derives from `ReelpoolError` and from the builtin that a caller would catch anyway, is
built from one string (so torch's DataLoader can raise it again from a worker), and pickles with its
coordinates. The coordinates are attributes, None where unknown: `dataset revision file offset
length episode frame camera time nearest status`. `offset` and `length` are bytes, `time` and
`nearest` seconds, `frame` counts from the episode's start, `status` is an HTTP status or an errno.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from typing import Any

__all__ = [
    "AuthError",
    "BackwardCompatibilityError",
    "ClosedError",
    "CompatibilityError",
    "CudaError",
    "DatasetChangedError",
    "DecodeError",
    "FormatError",
    "ForwardCompatibilityError",
    "FrameTimestampError",
    "LoaderStalledError",
    "MissingExtraError",
    "NotFoundError",
    "OfflineError",
    "ReelpoolError",
    "RemoteError",
    "RemoteTimeoutError",
    "SharedMemoryError",
    "StateError",
    "StorageError",
    "TooManyBadSamplesError",
    "UnsupportedMediaError",
    "from_core",
    "make_error",
]

COORDINATES = (
    "dataset",
    "revision",
    "file",
    "offset",
    "length",
    "episode",
    "frame",
    "camera",
    "time",
    "nearest",
    "status",
)


class ReelpoolError(Exception):
    """Base of all errors of this package."""

    dataset: str | None = None
    revision: str | None = None
    file: str | None = None
    offset: int | None = None
    length: int | None = None
    episode: int | None = None
    frame: int | None = None
    camera: str | None = None
    time: float | None = None
    nearest: float | None = None
    status: int | None = None


class FrameTimestampError(ReelpoolError, ValueError):
    """No stored frame lies within the tolerance of a wanted time."""


class FormatError(ReelpoolError, ValueError):
    """A file of the dataset breaks its format."""


class UnsupportedMediaError(ReelpoolError, NotImplementedError):
    """Sound data of a kind that this build does not read."""


class DecodeError(ReelpoolError, RuntimeError):
    """A picture could not be decoded."""


class TooManyBadSamplesError(DecodeError):
    """More samples were substituted than `max_bad_fraction` permits."""


class DatasetChangedError(ReelpoolError, RuntimeError):
    """A file is not the one that was opened at the start."""


class StorageError(ReelpoolError, OSError):
    """The operating system failed to read a file."""


class NotFoundError(ReelpoolError, FileNotFoundError):
    """A file or dataset does not exist."""


class AuthError(ReelpoolError, PermissionError):
    """Access was refused."""


class RemoteError(ReelpoolError, OSError):
    """A server answered with a failure."""


class RemoteTimeoutError(RemoteError, TimeoutError):
    """No byte came from a server within the deadline."""


class LoaderStalledError(ReelpoolError, TimeoutError):
    """No stage of the loader moved within the deadline."""


class ClosedError(ReelpoolError, RuntimeError):
    """The object was closed."""


class CudaError(ReelpoolError, RuntimeError):
    """The GPU or its driver failed."""


class OfflineError(ReelpoolError, ConnectionError):
    """Something is missing locally and the network is switched off."""


class StateError(ReelpoolError, ValueError):
    """A state does not belong to this dataset, order or class."""


class CompatibilityError(ReelpoolError, ValueError):
    """The dataset's format version cannot be read."""


class BackwardCompatibilityError(CompatibilityError):
    """The dataset is older than v2.0."""


class ForwardCompatibilityError(CompatibilityError):
    """The dataset is of v4.0 or newer."""


class SharedMemoryError(ReelpoolError, OSError):
    """Shared memory could not be made or mapped."""


class MissingExtraError(ReelpoolError, ImportError):
    """An optional package is not installed."""


_CORE_CLASSES: dict[str, type[BaseException]] = {
    "TIMESTAMP": FrameTimestampError,
    "FORMAT": FormatError,
    "UNSUPPORTED": UnsupportedMediaError,
    "DECODE": DecodeError,
    "CHANGED": DatasetChangedError,
    "IO": StorageError,
    "NOT_FOUND": NotFoundError,
    "AUTH": AuthError,
    "HTTP": RemoteError,
    "TIMEOUT": RemoteTimeoutError,
    "STALLED": LoaderStalledError,
    "CLOSED": ClosedError,
    "OFFLINE": OfflineError,
    "CUDA": CudaError,
    "NOMEM": MemoryError,
    "ARG": ValueError,
}

# What to do, by core code. {dataset}, {episode} and {file} are filled in below.
_ADVICE: dict[str, str] = {
    "TIMESTAMP": "Run: reelpool inspect {dataset}{episode} (shows how far off all frames are)     "
    "Or: a larger tolerance_s=",
    "FORMAT": "Run: reelpool verify {dataset}{episode}     Or: fetch {file} again",
    "UNSUPPORTED": "Run: reelpool doctor (codecs and pixel formats of this build)",
    "DECODE": "Run: reelpool verify {dataset}{episode} --level decode     "
    "Or: fetch {file} again, leave the episode out (episodes=), or on_corrupt='substitute'",
    "CHANGED": "The file was replaced while in use: open the dataset again",
    "IO": "Check the disk and the permissions of {file}",
    "NOT_FOUND": "Fetch {file} again, or leave its episodes out (episodes=)",
    "AUTH": "Run: hf auth login     Or: check the permissions of {file}",
    "HTTP": "Try again later; the answer above is the server's",
    "TIMEOUT": "Check the network; storage_options={{'network_timeout': seconds}} waits longer",
    "STALLED": "Raise timeout_s=, or lower num_threads= and prefetch_batches=",
    "CLOSED": "Make a new object; this one was closed",
    "OFFLINE": "Unset HF_HUB_OFFLINE, or fetch the dataset first: hf download --repo-type dataset",
    "CUDA": "Use device='cpu'     Or run: reelpool doctor",
    "NOMEM": "Lower batch_size=, prefetch_batches= or memory_budget=",
}

# Of metadata and tables, which Python reads.
_PLAIN_ADVICE: tuple[tuple[type[ReelpoolError], str], ...] = (
    (FormatError, "Run: reelpool verify DATASET     Or: fetch {file} again"),
    (NotFoundError, "Run: reelpool verify DATASET (lists what is missing)     Or: fetch {file}"),
    (StorageError, "Check the disk and the permissions of {file} of DATASET"),
)

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LFS_ADVICE = (
    "That file is only a pointer of Git LFS. Run: cd DATASET && git lfs install && git lfs pull"
)

S3_ADVICE = (
    "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or profile=, region=, "
    "anonymous= of storage_options; reading needs s3:GetObject"
)
HTTP_ADVICE = (
    "No credentials are sent to http(s) roots: check the URL and who may read it, or copy the "
    "dataset here and pass root=DIR"
)
_HUB_FILE = re.compile(r"https?://[^/]+/(?:.*/)?(?:(?:datasets|buckets)/[^/]+/[^/]+/resolve|api)/")

_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)([^\s/@?#'\"]*@)?([^\s?#'\"]*)([?#][^\s'\"]*)?")


def redact(text: str) -> str:
    """`text` with user names, passwords, queries and fragments cut out of every URL in it."""
    return _URL.sub(lambda m: m.group(1) + m.group(3), text)


def _known(value: Any) -> bool:
    if value is None or value == "":
        return False
    return not (isinstance(value, float) and math.isnan(value))


def _clean(coords: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(coords) - set(COORDINATES))
    if unknown:
        raise TypeError(f"unknown error coordinates: {', '.join(unknown)}")
    return {k: redact(v) if isinstance(v, str) else v for k, v in coords.items() if _known(v)}


def make_error(cls: type[BaseException], message: str, **coords: Any) -> BaseException:
    """An error of class `cls` with `message` (URL queries cut out) and the given coordinates as
    attributes.

    Coordinates that are None, "" or NaN count as unknown. Raises TypeError for a name that is no
    coordinate.
    """
    error = cls(redact(message))
    for name, value in _clean(coords).items():
        setattr(error, name, value)
    return error


def advise(error: ReelpoolError, advice: str) -> None:
    """Put `advice` in the place of what an error says is to be done."""
    if error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0].partition(chr(10))[0]}\n  {advice}", *error.args[1:])


def is_lfs_pointer(file: str | None, root: object) -> bool:
    """Whether a file of a local dataset is what git leaves in its place without git-lfs."""
    try:
        with open(os.path.join(str(root or ""), file or ""), "rb") as stream:
            return stream.read(len(_LFS_POINTER)) == _LFS_POINTER
    except (OSError, ValueError):
        return False  # a URL, or what cannot be read


def name_dataset(error: ReelpoolError, dataset: str, root: object = None) -> None:
    """Give an error its dataset, as attribute and in the command that it advises; one of metadata
    or tables, which says nothing of what to do yet, gets such a command.
    """
    silent = bool(error.args) and "\n" not in str(error.args[0])
    if error.dataset is None or silent:
        error.dataset = error.dataset or dataset
        advice = getattr(root, "auth_advice", None) if isinstance(error, AuthError) else None
        if isinstance(error, FormatError) and is_lfs_pointer(error.file, root):
            advice = _LFS_ADVICE
        elif advice is None and silent:
            found = [text for cls, text in _PLAIN_ADVICE if isinstance(error, cls)]
            advice = found[0].format(file=error.file or "its files") if found else None
        if advice is not None:
            advise(error, advice)
        if error.args and isinstance(error.args[0], str):
            place = shlex.quote(str(root)) if root is not None else dataset
            text = error.args[0].replace(" DATASET", f" {place}")
            error.args = (text, *error.args[1:])


def _size(count: int) -> str:
    if count < 1_000_000:
        return f"byte {count}"
    return f"{count / 1e6:.1f} MB"


def _place(coords: dict[str, Any], message: str) -> str:
    """Where it happened: the coordinates that `message` does not name already."""
    parts = []
    if "frame" in coords:
        parts.append(f"frame {coords['frame']}")
    if "camera" in coords and coords["camera"] not in message:
        parts.append(f"camera {coords['camera']}")
    if "episode" in coords:
        parts.append(f"episode {coords['episode']}")
    if "time" in coords:
        near = f" (nearest {coords['nearest']:.6f} s)" if "nearest" in coords else ""
        parts.append(f"time {coords['time']:.6f} s{near}")
    where = [
        str(coords[k]) for k in ("dataset", "file") if k in coords and str(coords[k]) not in message
    ]
    if where:
        at = f" @ {_size(coords['offset'])}" if "offset" in coords else ""
        parts.append(" ".join(where) + at)
    return ", ".join(p for p in parts if not re.search(rf"{re.escape(p)}\b", message))


def from_core(code_name: str, message: str, coords: dict[str, Any] | None = None) -> BaseException:
    """The exception for an error of the C core.

    `code_name` is the core's status without its prefix ("FORMAT", "DECODE", ...), `message` what
    happened, `coords` any of the coordinates; -1 as offset, length, episode, frame or status counts
    as unknown, as do "", None and NaN. The text is `message`, the place, and a line that says what
    to do. An unknown code gives a ReelpoolError.
    """
    cleaned = _clean(dict(coords or {}))
    for name in ("offset", "length", "episode", "frame", "status"):
        if name in cleaned and cleaned[name] < 0:
            del cleaned[name]
    cls = _CORE_CLASSES.get(code_name, ReelpoolError)
    text = redact(message)
    place = _place(cleaned, text)
    if place:
        text = f"{text}, {place}"
    advice = _ADVICE.get(code_name)
    url = str(cleaned.get("file", ""))
    if code_name == "AUTH" and "://" in url and not _HUB_FILE.match(url):
        advice = S3_ADVICE if ".amazonaws.com/" in url else HTTP_ADVICE
    if advice:
        episode = f" --episode {cleaned['episode']}" if "episode" in cleaned else ""
        target = cleaned.get("dataset", "DATASET")
        text += "\n  " + advice.format(
            dataset=target, episode=episode, file=cleaned.get("file", "the file")
        )
    return make_error(cls, text, **cleaned)
