"""Whether each episode of a dataset has a row group of its own: asked for, never needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .metadata import LeRobotDatasetMetadata


def check_row_groups(meta: LeRobotDatasetMetadata, episodes: np.ndarray) -> None:
    """ValueError naming file and counts unless the row groups of the episodes' Parquet files are
    those episodes, one each.
    """
    import pyarrow.parquet as pq

    columns = meta._columns
    for file_id in np.unique(columns.data_file_id[episodes]).tolist():
        rel = columns.data_files[file_id]
        lengths = columns.length[columns.data_file_id == file_id].tolist()
        with pq.ParquetFile(meta._files.resolve(rel)) as parquet:
            facts = parquet.metadata
            groups = [facts.row_group(i).num_rows for i in range(facts.num_row_groups)]
        if groups != lengths:
            raise ValueError(
                f"{rel} has {len(groups)} row groups for {len(lengths)} episodes, or groups of "
                "other lengths; reelpool does not need one per episode: leave "
                "validate_row_groups=False"
            )
