"""Arguments of `StreamingLeRobotDataset` that other streaming datasets have: synonyms, those
without effect, and those that cannot be honoured."""

from __future__ import annotations

import logging
from typing import Any

from .order import is_int

logger = logging.getLogger("reelpool")

_NO_EFFECT = ("prefetch_episodes", "decoded_queue_size", "video_fetch_workers")
_NO_EFFECT_PREFIXES = ("native_http_", "byte_index_")


def one_of(**spellings: Any) -> Any:
    """The value of an argument with several names; TypeError if two differ."""
    given = {name: value for name, value in spellings.items() if value is not None}
    if len(set(map(str, given.values()))) > 1:
        raise TypeError(f"{' and '.join(given)} mean the same and differ: give one of them")
    return next(iter(given.values()), None)


def note_no_effect(
    owner: str, buffer_size: int, max_num_shards: int, others: dict[str, Any]
) -> None:
    """One INFO line on the arguments that have no effect here; TypeError for unknown ones."""
    unknown = [n for n in others if n not in _NO_EFFECT and not n.startswith(_NO_EFFECT_PREFIXES)]
    if unknown:
        raise TypeError(f"{owner}() got an unexpected keyword argument {unknown[0]!r}")
    names = list(others)
    if buffer_size != 1000:
        names.append("buffer_size")
    if max_num_shards != 16:
        names.append("max_num_shards")
    if names:
        logger.info(
            "%s: no effect of %s: memory is set in bytes (memory_budget=), samples are mixed over "
            "window= frames, threads read and decode by themselves",
            owner, ", ".join(sorted(names)),
        )  # fmt: skip


def check_arguments(streaming: bool, batch_size: int | None, rng: Any) -> None:
    """ValueError or TypeError for what cannot be honoured."""
    if not streaming:
        raise ValueError("streaming=False: use LeRobotDataset, which reads by index")
    if batch_size is not None and not (is_int(batch_size) and batch_size >= 1):
        raise ValueError(f"batch_size must be an integer >= 1, not {batch_size!r}")
    if rng is not None and not hasattr(rng, "integers"):
        raise TypeError(f"rng must be a numpy.random.Generator, not {type(rng).__name__}")


def decoders_of(count: int | None) -> int | None:
    """Open decoders per process; ValueError below 1."""
    if count is not None and not (is_int(count) and count >= 1):
        raise ValueError(f"video_decoder_cache_size must be an integer >= 1, not {count!r}")
    return None if count is None else int(count)


def gib(value: float | None) -> int | None:
    """Bytes of a number of GiB; ValueError for what is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ValueError(f"a budget in GiB must be a number >= 0, not {value!r}")
    return int(value * 2**30)
