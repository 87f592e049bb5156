"""Which files a dataset needs, and fetching those that are missing here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .remote_root_hub import HubRoot

if TYPE_CHECKING:
    from .metadata import LeRobotDatasetMetadata


def needed_files(
    meta: LeRobotDatasetMetadata, episodes: Sequence[int] | None, cameras: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Parquet and video files, relative to the root, of the episodes (None: all) and cameras."""
    columns = meta._columns
    count = len(columns.length)
    chosen = np.arange(count) if episodes is None else np.asarray(episodes, np.int64).reshape(-1)
    data = [columns.data_files[i] for i in np.unique(columns.data_file_id[chosen]).tolist()]
    ids = [columns.video[key].file_id[chosen] for key in cameras]
    videos = np.unique(np.concatenate(ids)).tolist() if ids else []
    return data, [columns.video_files[i] for i in videos]


def bring_files(
    meta: LeRobotDatasetMetadata,
    episodes: Sequence[int] | None,
    cameras: Sequence[str],
    download: bool,
    again: bool = False,
) -> None:
    """Download what `needed_files` names and is not here; nothing for a plain local root.

    download: the videos too, if they are the Hub's; otherwise they are looked for, and read by
    ranges later. again: also files that are here are compared with the Hub's. `meta.root` may move
    to the place of downloads.
    """
    if meta._remote is None and (meta._hub is None or meta.revision is None):
        return
    data, videos = needed_files(meta, episodes, cameras)
    if meta._remote is None:  # a folder whose download was begun at a branch
        here = all((Path(meta.root) / rel).exists() for rel in data + videos)
        if here and not again:
            return
        meta._files = meta._remote = HubRoot(meta._hub, meta._hub.pin(), Path(meta.root))
    remote = meta._remote
    if isinstance(remote, HubRoot) and (download or again):
        wanted = data + videos if download else data
        whole = episodes is None and list(cameras) == meta.video_keys
        remote.download(wanted, whole and bool(download), again)
    if not download or not isinstance(remote, HubRoot):
        remote.prepare(data, videos)
    meta.root = remote.path
