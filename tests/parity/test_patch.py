"""patch_lerobot: which names change hands, that they come back, and that LeRobot still works."""

import importlib
import subprocess
import sys

import lerobot.datasets
import lerobot.datasets.dataset_tools
import lerobot.datasets.factory
import lerobot.datasets.lerobot_dataset
import lerobot.datasets.sampler
import lerobot.datasets.streaming_dataset
import lerobot.datasets.video_utils
import numpy as np
import pytest
import reelpool
from compare import assert_same_item
from reelpool.lerobot import original

NAMES = {
    "LeRobotDataset": (
        lerobot.datasets,
        lerobot.datasets.factory,
        lerobot.datasets.lerobot_dataset,
    ),
    "LeRobotDatasetMetadata": (lerobot.datasets, lerobot.datasets.factory),
    "EpisodeAwareSampler": (lerobot.datasets, lerobot.datasets.sampler),
    "compute_sampler_state": (lerobot.datasets, lerobot.datasets.sampler),
    "VideoDecoderCache": (lerobot.datasets.video_utils, lerobot.datasets.streaming_dataset),
    "decode_video_frames": (lerobot.datasets.video_utils, lerobot.datasets.streaming_dataset),
}


@pytest.fixture
def patched():
    reelpool.patch_lerobot()
    yield
    reelpool.patch_lerobot(undo=True)


def bindings():
    return {(n, m.__name__): getattr(m, n) for n, modules in NAMES.items() for m in modules}


def test_names_change_hands_and_come_back():
    before = bindings()
    assert set(reelpool.patch_lerobot()) >= set(NAMES)
    assert reelpool.patch_lerobot() == ()
    for (name, module), value in bindings().items():
        assert value is getattr(reelpool, name), (name, module)
        assert original(name) is before[name, module]
    # What LeRobot's own writing and editing stands on is left alone.
    own = original("LeRobotDatasetMetadata")
    assert lerobot.datasets.lerobot_dataset.LeRobotDatasetMetadata is own
    assert lerobot.datasets.dataset_tools.LeRobotDataset is original("LeRobotDataset")
    assert set(reelpool.patch_lerobot(undo=True)) >= set(NAMES)
    assert bindings() == before
    assert reelpool.patch_lerobot(undo=True) == ()


def test_modules_imported_later(patched):
    sys.modules.pop("lerobot.scripts.lerobot_train", None)
    train = importlib.import_module("lerobot.scripts.lerobot_train")
    assert train.EpisodeAwareSampler is reelpool.EpisodeAwareSampler
    reelpool.patch_lerobot(undo=True)
    assert train.EpisodeAwareSampler is lerobot.datasets.sampler.EpisodeAwareSampler
    assert train.EpisodeAwareSampler is not reelpool.EpisodeAwareSampler


def test_partition_module():
    reelpool.patch_lerobot()
    from lerobot.datasets.partition import group_episodes_by_files, partition_episodes

    assert group_episodes_by_files([[0], [1], [0]]) == [[0, 2], [1]]
    assert partition_episodes([3, 1, 1], 2) == [[0], [1, 2]]
    reelpool.patch_lerobot(undo=True)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lerobot.datasets.partition")
    assert not hasattr(lerobot.datasets, "partition")


def test_lerobots_class_reads_through_the_patched_functions(made, patched):
    """Streaming and LeRobot's own reader call decode_video_frames: ours, with the same pixels."""
    own = original("LeRobotDataset")("parity/x", root=made / "h264")
    ours = lerobot.datasets.LeRobotDataset("parity/x", root=made / "h264")
    assert type(ours) is reelpool.LeRobotDataset
    for index in (0, 41, 60):
        assert_same_item(own[index], ours[index], (index,))


def test_recording_under_the_patch(tmp_path, patched):
    features = {
        "observation.images.top": {
            "dtype": "video",
            "shape": (48, 64, 3),
            "names": ["height", "width", "channels"],
        },
        "action": {"dtype": "float32", "shape": (2,), "names": None},
    }
    dataset = lerobot.datasets.LeRobotDataset.create(
        "parity/recorded", 10, features, root=tmp_path / "recorded"
    )
    picture = np.full((48, 64, 3), 90, np.uint8)
    for step in range(4):
        action = np.array([step, -step], np.float32)
        dataset.add_frame({"observation.images.top": picture, "action": action, "task": "t"})
    assert dataset.has_pending_frames()
    dataset.save_episode()
    with pytest.raises(RuntimeError, match="finalize"):
        dataset[0]
    dataset.finalize()
    assert isinstance(dataset, reelpool.LeRobotDataset)
    own = original("LeRobotDataset")("parity/recorded", root=tmp_path / "recorded")
    assert len(dataset) == len(own) == 4
    for index in range(4):
        assert_same_item(dataset[index], own[index], (index,))


def test_recording_nothing(tmp_path, patched):
    features = {"action": {"dtype": "float32", "shape": (2,), "names": None}}
    dataset = lerobot.datasets.LeRobotDataset.create(
        "parity/empty", 10, features, root=tmp_path / "empty"
    )
    with lerobot.datasets.VideoEncodingManager(dataset):
        assert dataset.num_episodes == 0
    with pytest.raises(RuntimeError):
        dataset[0]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [([], 2, "usage"), (["lerobot-nothing"], 2, "lerobot-nothing"), (["--help"], 0, "usage")],
)
def test_command_line(arguments, code, text):
    command = [sys.executable, "-m", "reelpool.lerobot", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code
    assert text in done.stdout + done.stderr


def test_a_script_runs_unedited(made, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from lerobot.datasets.lerobot_dataset import LeRobotDataset\n"
        "if __name__ == '__main__':\n"
        "    print(LeRobotDataset.__module__, sys.argv[1:], "
        "LeRobotDataset('parity/x', root=sys.argv[1])[3]['index'].item())\n"
    )
    command = [sys.executable, "-m", "reelpool.lerobot", script, made / "stills"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "reelpool.dataset"
    assert done.stdout.split()[-1] == "3"
    assert "runs with reelpool's LeRobotDataset" in done.stderr
