"""Which files a dataset needs, and fetching those that are missing from the Hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .errors import UnsupportedMediaError, make_error

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
    download: bool | None,
    again: bool = False,
) -> None:
    """Download what `needed_files` names and `meta.root` lacks; nothing for a plain local root.

    download: False: no videos; None: nothing. What would have to come as byte ranges then is an
    UnsupportedMediaError. again: also files that are there are compared with the Hub's. `meta.root`
    may move to the place of downloads.
    """
    hub, commit = meta._hub, meta.revision
    if hub is None or commit is None:
        return
    data, videos = needed_files(meta, episodes, cameras)
    root = Path(meta.root)
    absent = [rel for rel in videos if not (root / rel).exists()]
    ranges = absent if not download else []
    if download is None:
        ranges = [rel for rel in data if not (root / rel).exists()] + absent
    if ranges:
        hub.need_online(ranges)
        instead = "download_videos=True, which downloads them once"
        if download is None:
            instead = f"LeRobotDataset({meta.repo_id!r}), which downloads them once"
        raise make_error(
            UnsupportedMediaError,
            f"{meta.repo_id}: {len(ranges)} files are not on this machine ({ranges[0]}), and this "
            f"version does not read parts of files from the Hub\n  Use {instead}",
            dataset=meta.repo_id, revision=commit, file=ranges[0],
        )  # fmt: skip
    if download is None:
        return
    wanted = data + videos
    missing = [rel for rel in wanted if again or not (root / rel).exists()]
    if not missing:
        return
    hub.need_online(missing)
    ours = os.path.realpath(hub.cache) + "/"
    if hub.folder is None and not os.path.realpath(root).startswith(ours):  # not to be written
        meta._move(hub.metadata(commit)[0])
    whole = episodes is None and list(cameras) == meta.video_keys
    hub.files(commit, wanted, Path(meta.root), whole, again)
