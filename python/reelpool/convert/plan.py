"""The plan: which episodes go into which new file. A pure function of what was scanned."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..metadata_info import DATA_TEMPLATE, VIDEO_TEMPLATE
from ..roots import PathTemplate
from .source import Source

FILES_PER_CHUNK = 1000
_MB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Output:
    """One new file: the episodes [first, stop), of one camera or the table (camera None)."""

    item: str
    path: str
    camera: str | None
    first: int
    stop: int
    chunk: int
    file: int
    size: int  # bytes of its sources


def scan_items(episodes: int, per_batch: int) -> list[tuple[str, int, int]]:
    """(item, first episode, stop) of the batches in which sources are read and judged."""
    return [
        (f"scan-{i:06d}", first, min(first + per_batch, episodes))
        for i, first in enumerate(range(0, episodes, per_batch))
    ]


def make_manifest(source: Source, scans: list[dict], data_mb: int, video_mb: int) -> dict:
    """The plan as a JSON document: inputs with size and SHA-256, options, outputs."""
    outputs = [_data_outputs(source, scans, data_mb)]
    for i in range(len(source.cameras)):
        outputs.append(video_outputs(source, [scan["videos"][i] for scan in scans], i, video_mb))
    return {
        "format": 1,
        "dataset": source.name,
        "version": list(source.version),
        "metadata": source.meta_digests(),
        "options": {"data_file_size_in_mb": data_mb, "video_file_size_in_mb": video_mb},
        "inputs": [
            [[rel, size, digest] for rel, (size, digest) in zip(source.episode_files(e), _sums(s))]
            for e, s in enumerate(scans)
        ],
        "outputs": [dataclasses.asdict(output) for group in outputs for output in group],
    }


def outputs_of(manifest: dict) -> list[Output]:
    """The outputs of a plan."""
    return [Output(**entry) for entry in manifest["outputs"]]


def _sums(scan: dict) -> list[tuple[int, str]]:
    return [tuple(part[:2]) for part in (scan["data"], *scan["videos"])]  # type: ignore[misc]


def _cut(sizes: list[int], limit: int, kinds: list[Any]) -> list[tuple[int, int]]:
    """[first, stop) of each file. LeRobot's rule: a file ends before it would reach the limit, and
    where the kind changes.
    """
    cuts, first, total = [], 0, 0
    for i, size in enumerate(sizes):
        if i > first and (total + size >= limit or kinds[i] != kinds[i - 1]):
            cuts.append((first, i))
            first, total = i, 0
        total += size
    cuts.append((first, len(sizes)))
    return cuts


def _outputs(
    template: PathTemplate, prefix: str, camera: str | None, cuts: list, bytes_: list[int]
) -> list[Output]:
    found = []
    for number, (first, stop) in enumerate(cuts):
        chunk, file = divmod(number, FILES_PER_CHUNK)
        path = template.format(chunk_index=chunk, file_index=file)
        item = f"{prefix}-{chunk:03d}-{file:03d}"
        size = sum(bytes_[first:stop])
        found.append(Output(item, path, camera, first, stop, chunk, file, size))
    return found


_FIELDS = ("chunk_index", "file_index")


def _data_outputs(source: Source, scans: list[dict], limit_mb: int) -> list[Output]:
    memory = [scan["data"][2] for scan in scans]
    cuts = _cut(memory, limit_mb * _MB, [None] * len(scans))
    template = PathTemplate(DATA_TEMPLATE, "data_path", _FIELDS)
    return _outputs(template, "data", None, cuts, [scan["data"][0] for scan in scans])


def video_outputs(source: Source, records: list[list], i: int, limit_mb: int) -> list[Output]:
    """The new videos of the camera number `i`. `records`: [bytes, digest, signature, ...] of each
    episode's; with those of the first episodes only, all but the last output are final.
    """
    camera = source.cameras[i]
    sizes = [record[0] for record in records]
    cuts = _cut(sizes, limit_mb * _MB, [record[2] for record in records])
    template = PathTemplate(VIDEO_TEMPLATE, "video_path", _FIELDS, video_key=camera)
    return _outputs(template, f"video-{i}", camera, cuts, sizes)
