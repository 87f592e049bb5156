"""What `inspect` and `doctor` find out about a dataset behind a URL, without copying its videos."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from ..errors import AuthError, ReelpoolError

TIMEOUT_S = 20.0
Findings = Iterator[tuple[str, str, str | None]]  # status, text, fix


def is_url(name: str) -> bool:
    """Whether a DATASET is read where it is."""
    return name.partition("://")[0].lower() in ("hf", "http", "https", "s3") and "://" in name


def metadata(name: str, revision: str | None) -> Any:
    """The metadata behind a URL; only meta/ is copied."""
    import reelpool

    options = {"network_timeout": TIMEOUT_S}
    return reelpool.LeRobotDatasetMetadata(name, revision=revision, storage_options=options)


def sizes(meta: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of the Parquet and of the video files, by their names, as the root lists them."""
    from ..remote_root import AT_ONCE, RemoteRoot, at_once

    root, columns = meta._remote, meta._columns

    def size_of(rel: str) -> int:
        here = root.video(rel)
        return os.stat(here).st_size if isinstance(here, str) else here.size

    def all_of(rels: list[str]) -> dict[str, int]:
        if not isinstance(root, RemoteRoot):  # a folder that is a copy already
            return {rel: os.stat(meta._files.resolve(rel)).st_size for rel in rels}
        return dict(zip(rels, at_once(size_of, rels, root.close, AT_ONCE)))

    return all_of(columns.data_files), all_of(columns.video_files)


def describe(name: str, meta: Any) -> dict[str, Any]:
    """The document of `inspect`: facts of the metadata, bytes by the list of files."""
    data, videos = sizes(meta)
    cameras = {}
    for camera in meta.camera_keys:
        feature = meta.features[camera]
        height, width = feature["shape"][:2]
        entry: dict[str, Any] = {"width": width, "height": height, "codec": feature["dtype"]}
        if feature["dtype"] == "video":
            entry |= _video_facts(meta, camera, videos)
        cameras[camera] = entry
    return {
        "dataset": name,
        "root": str(meta._remote.url if meta._remote is not None else meta.root),
        "revision": meta.revision,
        "version": str(meta.info.codebase_version),
        "episodes": meta.total_episodes,
        "frames": meta.total_frames,
        "fps": meta.fps,
        "seconds": round(meta.total_frames / meta.fps, 1),
        "robot_type": meta.robot_type,
        "features": {
            k: {"dtype": f["dtype"], "shape": list(f["shape"])} for k, f in meta.features.items()
        },
        "cameras": cameras,
        "data": {"files": len(data), "bytes": sum(data.values())},
        "videos": {"files": len(videos), "bytes": sum(videos.values())},
        "bytes_per_epoch": sum(videos.values()),
        "files": [],
    }


def _video_facts(meta: Any, camera: str, videos: dict[str, int]) -> dict[str, Any]:
    columns, info = meta._columns, meta.features[camera].get("info") or {}
    rels = [columns.video_files[i] for i in sorted(set(columns.video[camera].file_id.tolist()))]
    size = sum(videos[rel] for rel in rels)
    of_frame = size / max(1, meta.total_frames)
    facts: dict[str, Any] = {
        "codec": info.get("video.codec") or "-",
        "bytes_per_frame": round(of_frame),
        "files": len(rels),
        "bytes": size,
    }
    gop = info.get("video.g")
    if isinstance(gop, (int, float)) and gop > 0:
        facts |= {"gop": gop, "bytes_per_gop": round(of_frame * gop)}
    return facts


def lines(document: dict[str, Any]) -> list[str]:
    """What the text of a remote dataset says beside that of a local one."""
    data, videos = document["data"], document["videos"]
    return [
        f"read at {document['root']}",
        f"revision {document['revision'] or 'none: a URL without revisions'}",
        f"data   {data['files']:6} files {data['bytes']:15,} bytes, copied at the first start",
        f"videos {videos['files']:6} files {videos['bytes']:15,} bytes, read by ranges: "
        f"at most {document['bytes_per_epoch']:,} bytes per epoch",
    ]


def credentials(root: Any) -> str:
    """Which credentials go to a root, never what they are. AuthError where some are wanted."""
    from ..remote_root_s3 import S3Root, find_keys

    if isinstance(root, S3Root):
        return "no credentials (anonymous)" if find_keys(root.options) is None else "S3 credentials"
    hub = getattr(root, "hub", None)
    return "no credentials are sent" if hub is None else f"token: {hub.token_word()}"


def examine(name: str, revision: str | None) -> Findings:
    """`doctor`'s section about a URL: who asks, how fast one request is, ranges."""
    from ..remote_root import RemoteRoot, RemoteVideo

    try:
        meta = metadata(name, revision)
    except ReelpoolError as error:
        what, _, fix = str(error).partition("\n")
        yield "FAIL", f"{type(error).__name__}: {what}", fix.strip() or None
        return
    root, columns = meta._remote, meta._columns
    if not isinstance(root, RemoteRoot):
        yield "ok", f"a copy is read: {meta.root}", None
        return
    at = f", commit {meta.revision[:12]}" if meta.revision else ""
    yield "ok", f"{root.url}{at}, {credentials(root)}", None
    if root.options.is_offline:
        yield "WARN", "not asked: the network is switched off", "HF_HUB_OFFLINE=0"
        return
    rel = next(iter([*columns.video_files, *columns.data_files]), None)
    found = None if rel is None else root.video(rel)
    if not isinstance(found, RemoteVideo):
        yield "ok", f"{rel or 'no file'} is on this machine: {found}", None
        return
    try:
        yield from _request(root.client(), found, rel)
    except ReelpoolError as error:
        advice = getattr(root.path, "auth_advice", None) if isinstance(error, AuthError) else None
        what, _, fix = str(error).partition("\n")
        yield "FAIL", f"{type(error).__name__}: {what}", advice or fix.strip() or None


def _request(client: Any, video: Any, rel: str | None) -> Findings:
    took = []
    for _ in range(2):  # the second one needs no connection and no resolve
        begun = time.perf_counter()
        info = client.size(video.url, video.size, video.etag, video.last_modified)
        took.append(1e3 * (time.perf_counter() - begun))
    yield "ok", f"one request: {took[1]:.0f} ms, the first one {took[0]:.0f} ms ({rel})", None
    if info["accepts_ranges"]:
        yield "ok", "byte ranges are served", None
    else:
        yield "WARN", "no byte ranges: videos up to 64 MiB are read whole", "use another server"
