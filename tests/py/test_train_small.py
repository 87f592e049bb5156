"""benchmarks/train_small_policy.py: the loss falls, map-style and streamed, on recorded data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from demo_sets import ROOT

pytest.importorskip("torch", reason="needs the extra `torch`")

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "train_small_policy.py"
DEMO = ["--repo_id", "reelpool/demo", "--root", ROOT]


def train(output, *options):
    """(results by reader, what it printed) of a run that succeeds."""
    command = [sys.executable, SCRIPT, "--output_dir", output, "--num_threads", "1", *options]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=240,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((output / "result.json").read_text())["results"]
    return {r["reader"]: r for r in results}, done.stdout


def losses(output, reader):
    return [
        json.loads(line)["loss"] for line in (output / f"{reader}.jsonl").read_text().splitlines()
    ]


def test_the_loss_falls_on_recorded_data_map_style_and_streamed(tmp_path, data_root):
    root = data_root / "cam3"
    if not root.is_dir():
        pytest.skip("no cam3 among the test data")
    found, text = train(tmp_path, "--repo_id", "you/cam3", "--root", root, "--steps", "40")
    assert list(found) == ["map", "stream"], text
    for reader, figures in found.items():
        assert figures["loss_ratio"] < 0.8, text
        assert figures["held_out_ratio"] < 0.9, text  # of an episode that it has not seen
        curve = losses(tmp_path, reader)
        assert len(curve) == 40
        assert figures["last_loss"] == pytest.approx(sum(curve[-10:]) / 10)
    # The same first weights: what differs is the order of the samples.
    assert found["map"]["held_out_before"] == found["stream"]["held_out_before"]
    assert losses(tmp_path, "map") != losses(tmp_path, "stream")


# -- in this process --


@pytest.fixture(scope="module")
def main():
    """main(output, *options) -> exit status, with one torch thread."""
    import torch

    sys.path.insert(0, str(SCRIPT.parent))
    import train_small_policy

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    base = ["--num_threads", 1, *DEMO]
    yield lambda output, *more: train_small_policy.main(
        [str(word) for word in ["--output_dir", output, *base, *more]]
    )
    torch.set_num_threads(threads)
    sys.path.remove(str(SCRIPT.parent))


def test_a_loss_that_does_not_fall_fails_the_run(tmp_path, main, capsys):
    still = ["--lr", 0, "--steps", 4, "--held_out", 0, "--reader", "map"]
    assert main(tmp_path, *still, "--max", "loss_ratio=0.01") == 1
    (found,) = json.loads((tmp_path / "result.json").read_text())["results"]
    assert found["held_out_ratio"] is None
    said = capsys.readouterr().err
    assert "MISSED: map: loss_ratio" in said and "above 0.01" in said


@pytest.mark.parametrize("more, says", [
    (["--held_out", 4], "--held_out 4: the data set has 4 episodes"),
    (["--batch_size", 4000], "less than one batch"),
    (["--root", "/nowhere"], "/nowhere"),
])  # fmt: skip
def test_unusable_input(tmp_path, main, capsys, more, says):
    assert main(tmp_path, "--steps", 1, *more) == 3
    assert says in capsys.readouterr().err
