"""Unmodified lerobot-train on reelpool: ACT on three cameras has the losses of plain LeRobot, and a
stream trains where LeRobot's own fails.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reelpool

DEMO = Path(reelpool.__file__).parent / "_demo/dataset"
DATA = Path(
    os.environ.get("REELPOOL_TEST_DATA", Path(__file__).resolve().parents[3] / "shared" / "data")
)
STEP = re.compile(r"step:(\d+) .*?loss:([\d.]+) grdn:([\d.]+)")


def train(command, out, steps, workers, *more, root=DATA / "cam3"):
    """(losses and gradient norms printed for each step, hash of the trained weights, log)."""
    done = subprocess.run(
        [
            *command,
            f"--dataset.repo_id=parity/{root.name}",
            f"--dataset.root={root}",
            "--policy.type=act",
            "--policy.device=cpu",
            "--policy.push_to_hub=false",
            "--policy.pretrained_backbone_weights=null",
            "--policy.chunk_size=8",
            "--policy.n_action_steps=8",
            "--policy.dim_model=64",
            "--policy.n_heads=2",
            "--policy.dim_feedforward=128",
            "--policy.n_encoder_layers=1",
            "--policy.n_vae_encoder_layers=1",
            "--policy.latent_dim=8",
            f"--steps={steps}",
            "--batch_size=1",
            f"--num_workers={workers}",
            "--log_freq=1",
            "--save_checkpoint=true",
            f"--save_freq={steps}",
            "--seed=7",
            "--wandb.enable=false",
            f"--output_dir={out}",
            *more,
        ],
        capture_output=True,
        text=True,
        # The number of threads decides the order of float sums.
        env={**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"},
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    log = done.stdout + done.stderr
    weights = Path(out, "checkpoints", f"{steps:06d}", "pretrained_model", "model.safetensors")
    return STEP.findall(log), hashlib.sha256(weights.read_bytes()).hexdigest(), log


def patched():
    return [sys.executable, "-m", "reelpool.lerobot", "lerobot-train"]


def plain():
    return [str(Path(sys.executable).with_name("lerobot-train"))]


@pytest.mark.skipif(
    not (DATA / "cam3").is_dir(), reason="no cam3 (set REELPOOL_TEST_DATA to the folder of it)"
)
def test_twenty_steps_of_act_give_the_same_losses_and_weights(tmp_path):
    steps, weights, _ = train(plain(), tmp_path / "plain", 20, 0)
    assert len(steps) == 20
    our_steps, our_weights, log = train(patched(), tmp_path / "patched", 20, 0)
    assert "reelpool: lerobot-train runs with reelpool's LeRobotDataset" in log
    assert our_steps == steps
    assert our_weights == weights

    # Worker processes, started as lerobot-train starts them, change nothing.
    worker_steps, _, _ = train(patched(), tmp_path / "workers", 3, 2)
    assert worker_steps == steps[:3]


def test_training_on_a_stream(tmp_path):
    """Three steps of a set with several files per camera, here and in a spawned worker."""
    more = ["--dataset.streaming=true", "--dataset.episodes=[1, 3]"]
    steps, weights, log = train(patched(), tmp_path / "here", 3, 0, *more, root=DEMO)
    assert len(steps) == 3
    assert "cfg.steps=3" in log and "dataset.num_frames=84" in log
    found = train(patched(), tmp_path / "worker", 3, 1, *more, root=DEMO)
    assert found[:2] == (steps, weights)
    assert "leaked" not in found[2]  # semaphores, shared memory
