"""What the tests of remote reading share: the demo set behind every kind of root, and digests."""

import contextlib
import os
import re
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "py"))

from batches import digest
from demo_sets import ROOT
from fault_server import FaultServer
from hub_stand_in import files_of

CANARY = "-".join(["Canary", "that", "must", "not", "sing"])
OPTIONS = {"return_uint8": True, "num_threads": 1}
STORAGE = {"network_timeout": 20.0}
RETRYABLE = [
    "reset_before", "reset_body", "cut", "short", "long", "shifted", "no_range", "wrong_total",
    "whole", "html", "gzip", "s408", "s425", "s500", "s502", "s503", "s504", "limited",
    "busy_later", "half_close", "garbage",
]  # fmt: skip
ENVIRONMENT = (
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy",
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION",
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3",
)  # fmt: skip


def bare(setenv, delenv, folder):
    """An environment that is online, with caches of its own below a folder."""
    for name in ENVIRONMENT:
        delenv(name)
    setenv("REELPOOL_CACHE", str(Path(folder) / "cache"))
    setenv("HF_LEROBOT_HOME", str(Path(folder) / "lerobot"))


def bare_process(folder):
    """`bare` for a script's own process."""
    bare(os.environ.__setitem__, lambda name: os.environ.pop(name, None), folder)


def serve(root=ROOT, **options):
    """A fault server with a data set below /set."""
    return FaultServer({f"/set/{rel}": b.data() for rel, b in files_of(Path(root)).items()},
                       **options)  # fmt: skip


def storage(**more):
    """storage_options: a short deadline, no disk cache unless asked for."""
    return {**STORAGE, "disk_cache": 0, **more}


def digests(batches):
    """What a run delivered: one digest per batch, keys, order and pixels."""
    return [digest(batch) for batch in batches]


def is_video(path):
    return path.endswith(".mp4")


def video_requests(server, since=0):
    """(path, first, last) of the requests for parts of videos that a fault server saw; those about
    sizes (one byte) are left out.
    """
    asked = []
    for seen in server.log[since:]:
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", seen.headers.get("Range", ""))
        if is_video(seen.path) and (span is None or span.groups() != ("0", "0")):
            asked.append((seen.path, *map(int, span.groups() if span else (0, 1 << 40))))
    return asked


def unique_bytes(parts):
    """Bytes of (path, first, last) parts, each byte once."""
    total, end, at = 0, -1, None
    for path, first, last in sorted(parts):
        if path != at:
            at, end = path, -1
        total += max(0, last - max(first, end + 1) + 1)
        end = max(end, last)
    return total


@contextlib.contextmanager
def outage(server, seconds, kind="s503"):
    """Every request of the next seconds meets a fault; a thread ends it."""
    server.fault(kind, None)
    timer = threading.Timer(seconds, server.calm)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        server.calm()


def tree_text(folder):
    """All bytes of the files below a folder, and their names: where a secret may not be."""
    parts = []
    for path in sorted(Path(folder).rglob("*")):
        parts.append(str(path).encode())
        if path.is_file():
            parts.append(path.read_bytes())
    return b"\0".join(parts)
