"""A real batch as a contact sheet: what the loader gives, not what the file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import pictures


def real_batch(repo_id: str, root: Path | None, size: int, **options: Any) -> tuple[Any, dict]:
    """(dataset, one shuffled batch of `size` samples through Loader, uint8)."""
    import reelpool

    dataset = reelpool.LeRobotDataset(repo_id, root=root, return_uint8=True, **options)
    size = min(size, len(dataset))
    with reelpool.Loader(dataset, size, shuffle=True, seed=0, output="numpy") as loader:
        return dataset, next(iter(loader))


def label_of(batch: dict, row: int) -> str:
    """What a row of the sheet says about its sample."""
    lines = [
        f"index {int(batch['index'][row])}",
        f"episode {int(batch['episode_index'][row])}, frame {int(batch['frame_index'][row])}",
        f"{float(batch['timestamp'][row]):.2f} s",
    ]
    task = batch["task"][row]
    words, line = task.split(), ""
    for word in words:
        if len(line) + len(word) > 24:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line][:7])


def sheet(repo_id: str, dataset: Any, batch: dict) -> Any:
    """A Pillow image: samples down, cameras across; of a window its last step."""
    cameras = [c for c in dataset.meta.camera_keys if c in batch]
    rows = []
    for row in range(len(batch["index"])):
        shown = []
        for camera in cameras:
            picture = np.asarray(batch[camera][row])
            shown.append(picture if picture.ndim == 3 else picture[-1])
        rows.append((label_of(batch, row), shown))
    title = f"{repo_id}: one shuffled batch through Loader"
    return pictures.contact_sheet(title, cameras, rows)


def contact_sheet_of(repo_id: str, root: Path | None, size: int) -> Any:
    """The contact sheet of one shuffled batch."""
    dataset, batch = real_batch(repo_id, root, size)
    return sheet(repo_id, dataset, batch)
