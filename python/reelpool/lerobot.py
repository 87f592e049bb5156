"""LeRobot scripts on reelpool: `patch_lerobot`, and ``python -m reelpool.lerobot SCRIPT ARGS``.

The patch rebinds names in LeRobot's modules; nothing on disk changes and `patch_lerobot(undo=True)`
takes it back. LeRobot's writing side (recording, editing, merging datasets) keeps its own classes.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import runpy
import sys
import types
from typing import Any

from .errors import MissingExtraError

__all__ = ["original", "patch_lerobot"]

_PARTITION = "lerobot.datasets.partition"
_PARTITION_NAMES = ("group_episodes_by_files", "partition_episodes")

# name -> the LeRobot module that defines it
_HOMES = {
    "LeRobotDataset": "lerobot.datasets.lerobot_dataset",
    "LeRobotDatasetMetadata": "lerobot.datasets.dataset_metadata",
    "StreamingLeRobotDataset": "lerobot.datasets.streaming_dataset",
    "EpisodeAwareSampler": "lerobot.datasets.sampler",
    "compute_sampler_state": "lerobot.datasets.sampler",
    "VideoDecoderCache": "lerobot.datasets.video_utils",
    "decode_video_frames": "lerobot.datasets.video_utils",
}

# Modules that are built on the insides of LeRobot's two classes: there they stay.
_INSIDE = frozenset(
    f"lerobot.{name}"
    for name in (
        "datasets.aggregate",
        "datasets.dataset_metadata",
        "datasets.dataset_reader",
        "datasets.dataset_tools",
        "datasets.dataset_writer",
        "datasets.lerobot_dataset",
        "datasets.multi_dataset",
        "datasets.streaming_dataset",
        "scripts.convert_dataset_v21_to_v30",
    )
)
_CLASSES = frozenset(("LeRobotDataset", "LeRobotDatasetMetadata"))

# name -> (LeRobot's object, ours) while the patch is on; empty while it is off
_bound: dict[str, tuple[Any, Any]] = {}


def patch_lerobot(undo: bool = False) -> tuple[str, ...]:
    """Make LeRobot's modules use reelpool's classes and functions of the same names.

    Rebinds the names in the modules that define them and in every LeRobot module that has imported
    them, and adds ``lerobot.datasets.partition``. Modules imported later get the new names too.
    What a script of the user's imported from LeRobot before the call stays as it was: call first.

    Args:
        undo: give LeRobot its own objects back.

    Returns:
        The names that changed hands; empty if the patch was on (or, with `undo`, off) already.

    Raises:
        MissingExtraError: LeRobot, or its extra ``dataset``, is not installed.
    """
    if undo:
        return _unpatch()
    if _bound:
        return ()
    try:
        importlib.import_module("lerobot.datasets")
    except ImportError as exc:
        raise MissingExtraError(
            f"patch_lerobot needs LeRobot ({exc}). Run: pip install 'reelpool[lerobot]'"
        ) from exc
    import reelpool

    for name, home in _HOMES.items():
        theirs = getattr(importlib.import_module(home), name, None)
        if theirs is not None and name in reelpool.__all__:
            _bound[name] = (theirs, getattr(reelpool, name))
    _rebind(_bound)
    _add_partition(reelpool)
    return tuple(_bound)


def original(name: str) -> Any:
    """LeRobot's own object called `name`, whether the patch is on or off.

    Raises:
        MissingExtraError: LeRobot is not installed.
    """
    if name in _bound:
        return _bound[name][0]
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ImportError as exc:
        raise MissingExtraError(
            f"{name} of LeRobot itself is needed for this, and LeRobot does not import ({exc}). "
            "Run: pip install 'reelpool[lerobot]'"
        ) from exc


def _unpatch() -> tuple[str, ...]:
    names = tuple(_bound)
    _rebind({name: (ours, theirs) for name, (theirs, ours) in _bound.items()})
    _bound.clear()
    module = sys.modules.get(_PARTITION)
    if getattr(module, "__reelpool__", False):
        del sys.modules[_PARTITION]
        del sys.modules["lerobot.datasets"].partition  # type: ignore[attr-defined]
    return names


def _rebind(pairs: dict[str, tuple[Any, Any]]) -> None:
    """In all loaded LeRobot modules: where a name is bound to a pair's first, bind its second."""
    for module_name, module in list(sys.modules.items()):
        if module is None or module_name.partition(".")[0] != "lerobot":
            continue
        namespace = vars(module)
        for name, (old, new) in pairs.items():
            if name in _CLASSES and module_name in _INSIDE and module_name != _HOMES[name]:
                continue
            if namespace.get(name) is old:
                namespace[name] = new


def _add_partition(reelpool: types.ModuleType) -> None:
    """The module of LeRobot's development branch that splits episodes between nodes."""
    try:
        importlib.import_module(_PARTITION)
        return
    except ModuleNotFoundError:
        pass
    module = types.ModuleType(_PARTITION, "Added by reelpool.patch_lerobot().")
    module.__reelpool__ = True  # type: ignore[attr-defined]
    for name in _PARTITION_NAMES:
        setattr(module, name, getattr(reelpool, name))
    sys.modules[_PARTITION] = module
    sys.modules["lerobot.datasets"].partition = module  # type: ignore[attr-defined]


def main(argv: list[str] | None = None) -> int:
    """Run a LeRobot command (``lerobot-train``) or a Python file under `patch_lerobot`."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m reelpool.lerobot {lerobot-train,FILE.py,...} [ARGS...]")
        return 0 if argv else 2
    script, *rest = argv
    commands = importlib.metadata.entry_points(group="console_scripts", name=script)
    if not commands and not os.path.isfile(script):
        print(f"reelpool: no command or file called {script!r}", file=sys.stderr)
        return 2
    try:
        names = patch_lerobot()
    except MissingExtraError as exc:
        print(f"reelpool: {exc}", file=sys.stderr)
        return 3
    print(f"reelpool: {script} runs with reelpool's {', '.join(names)}", file=sys.stderr)
    sys.argv = [script, *rest]
    if not commands:
        sys.path[0] = os.path.dirname(os.path.abspath(script))
        runpy.run_path(script, run_name="__main__")
        return 0
    result = next(iter(commands)).load()()
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    # Under this name the module is a second copy; the patch's state belongs in the importable one.
    from reelpool.lerobot import main as run

    sys.exit(run())
