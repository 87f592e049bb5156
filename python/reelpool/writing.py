"""Write mode: recording is LeRobot's work. The object stays ours and reads with our engine after
`finalize()`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .lerobot import original


def _lerobot_class() -> Any:
    """LeRobot's own class, under `patch_lerobot` too."""
    return original("LeRobotDataset")


class MetaWriteMode:
    """What LeRobot's metadata class writes, by an installed LeRobot; read anew afterwards."""

    repo_id: str
    root: Any

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Any:
        """LeRobot's own object for a new dataset. MissingExtraError without LeRobot."""
        return original("LeRobotDatasetMetadata").create(*args, **kwargs)

    def _written(self, write: Callable[[Any], Any]) -> Any:
        """Let LeRobot's object for this dataset do `write`, and read what it wrote."""
        writer = original("LeRobotDatasetMetadata")(self.repo_id, root=self.root)
        result = write(writer)
        writer.finalize()
        fresh = type(self)(self.repo_id, root=self.root)
        self.__dict__.update({k: v for k, v in fresh.__dict__.items() if k not in ("_hub",)})
        return result

    def update_chunk_settings(self, *args: Any, **kwargs: Any) -> None:
        """LeRobot's: files per folder and their sizes, in info.json."""
        self._written(lambda writer: writer.update_chunk_settings(*args, **kwargs))

    def update_video_info(self, *args: Any, **kwargs: Any) -> None:
        """LeRobot's: what info.json says of each camera's video."""
        self._written(lambda writer: writer.update_video_info(*args, **kwargs))

    def save_episode_tasks(self, *args: Any, **kwargs: Any) -> None:
        """LeRobot's: add tasks."""
        self._written(lambda writer: writer.save_episode_tasks(*args, **kwargs))

    def save_episode(self, *args: Any, **kwargs: Any) -> None:
        """LeRobot's: add an episode's row."""
        self._written(lambda writer: writer.save_episode(*args, **kwargs))

    def finalize(self) -> None:
        """Nothing is pending here."""


class WriteMode:
    """The recording half of LeRobot's dataset class, delegated to LeRobot."""

    _recorder: Any = None

    @staticmethod
    def _check_write_arguments(batch_encoding_size: int, streaming_encoding: bool) -> None:
        if batch_encoding_size != 1 or streaming_encoding:
            warnings.warn(
                "batch_encoding_size and streaming_encoding belong to create() and resume()",
                DeprecationWarning,
                stacklevel=3,
            )

    @classmethod
    def _recording(cls, recorder: Any) -> Any:
        dataset = cls.__new__(cls)
        dataset._recorder = recorder
        dataset.repo_id, dataset.root = recorder.repo_id, recorder.root
        dataset.meta, dataset.revision = recorder.meta, recorder.revision
        dataset.tolerance_s = recorder.tolerance_s
        dataset.episodes = dataset.delta_timestamps = dataset.image_transforms = None
        dataset._reset()
        return dataset

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Any:
        """A new dataset to record into: LeRobot's arguments. MissingExtraError without LeRobot."""
        return cls._recording(_lerobot_class().create(*args, **kwargs))

    @classmethod
    def resume(cls, *args: Any, **kwargs: Any) -> Any:
        """A dataset to record on: LeRobot's arguments. MissingExtraError without LeRobot."""
        return cls._recording(_lerobot_class().resume(*args, **kwargs))

    @property
    def writer(self) -> Any:
        """LeRobot's writer while recording, else None."""
        return None if self._recorder is None else self._recorder.writer

    def _writer_call(self, name: str) -> Any:
        if self._recorder is None:
            raise RuntimeError(
                f"{name}() needs a dataset opened for recording: use LeRobotDataset.create() or "
                "LeRobotDataset.resume()"
            )
        return getattr(self._recorder, name)

    def _require_readable(self) -> None:
        if self._recorder is not None:
            raise RuntimeError("this dataset is being recorded: call finalize() before reading")

    def add_frame(self, frame: dict) -> None:
        """Add a frame to the episode being recorded."""
        self._writer_call("add_frame")(frame)

    def save_episode(self, *args: Any, **kwargs: Any) -> None:
        """Write the episode being recorded."""
        self._writer_call("save_episode")(*args, **kwargs)

    def clear_episode_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Forget the episode being recorded."""
        self._writer_call("clear_episode_buffer")(*args, **kwargs)

    def has_pending_frames(self) -> bool:
        """Whether frames wait to be saved."""
        return self._recorder is not None and self._recorder.has_pending_frames()

    def finalize(self) -> None:
        """End recording; from now on the dataset can be read. Without effect otherwise."""
        if self._recorder is None:
            return
        self._recorder.finalize()
        if self.meta.total_episodes == 0:
            return  # nothing was recorded: there is nothing to read
        self.__dict__.pop("_recorder")
        self.__init__(self.repo_id, root=self.root)  # type: ignore[misc]

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Upload with LeRobot's own code."""
        recorder = self._recorder
        if recorder is None:
            recorder = _lerobot_class()(self.repo_id, root=self.root)
        return recorder.push_to_hub(*args, **kwargs)
