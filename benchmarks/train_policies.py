"""Policies of train_streaming_multinode.py: modules that give the loss of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from train_parts import UnusableError

STATE = "observation.state"


class Normalize(nn.Module):
    """(x - mean) / std of a feature, from the data set's meta/stats.json (kept in checkpoints)."""

    def __init__(self, meta: Any, key: str) -> None:
        super().__init__()
        size = meta.features[key]["shape"][0]
        stats = (meta.stats or {}).get(key, {})
        for name, default in (("mean", 0.0), ("std", 1.0)):
            value = torch.as_tensor(stats.get(name, [default] * size), dtype=torch.float32)
            self.register_buffer(name, value.reshape(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / (self.std + 1e-6)


class SmallPolicy(nn.Module):
    """Pictures of 32 x 32 and the state -> the next actions: seconds on a CPU, torch only."""

    unused_parameters = False

    def __init__(self, meta: Any, steps: int) -> None:
        super().__init__()
        self.cameras, self.steps = list(meta.video_keys), steps
        self.state = Normalize(meta, STATE) if STATE in meta.features else None
        self.action = Normalize(meta, "action")
        width, actions = 64, meta.features["action"]["shape"][0]
        self.see = nn.Sequential(
            nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 8 * 8, width),
        )  # fmt: skip
        known = width * len(self.cameras)
        known += meta.features[STATE]["shape"][0] if self.state is not None else 0
        self.act = nn.Sequential(nn.Linear(known, 128), nn.ReLU(), nn.Linear(128, steps * actions))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        known = []
        for camera in self.cameras:
            picture = nn.functional.adaptive_avg_pool2d(batch[camera].float() / 255, 32)
            known.append(self.see(picture.expand(-1, 3, -1, -1)))  # depth has one channel
        if self.state is not None:
            known.append(self.state(batch[STATE]))
        goal = self.action(batch["action"])
        found = self.act(torch.cat(known, 1)).reshape(goal.shape)
        valid = (~batch["action_is_pad"]).unsqueeze(-1)  # (B, T, 1); the present step always is
        error = ((found - goal).abs() * valid).mean(2).sum(1) / valid.sum((1, 2))
        return error.mean()  # of samples, so that it is the same however many processes share them


class ActPolicy(nn.Module):
    """LeRobot's ACT, its backbone not pretrained (no download)."""

    unused_parameters = True

    def __init__(self, meta: Any, steps: int) -> None:
        super().__init__()
        try:
            from lerobot.configs.types import FeatureType, PolicyFeature
            from lerobot.policies.act.configuration_act import ACTConfig
            from lerobot.policies.act.modeling_act import ACTPolicy
        except ImportError as error:
            raise UnusableError(
                f"--policy act needs LeRobot: {error}\n  Run: pip install 'reelpool[lerobot]'"
            ) from None
        self.cameras = list(meta.video_keys)
        inputs = {}
        for camera in self.cameras:
            height, width = meta.features[camera]["shape"][:2]
            inputs[camera] = PolicyFeature(FeatureType.VISUAL, (3, height, width))
        self.state = Normalize(meta, STATE) if STATE in meta.features else None
        if self.state is not None:
            inputs[STATE] = PolicyFeature(FeatureType.STATE, tuple(meta.features[STATE]["shape"]))
        self.action = Normalize(meta, "action")
        self.policy = ACTPolicy(ACTConfig(
            input_features=inputs,
            output_features={
                "action": PolicyFeature(
                    FeatureType.ACTION, tuple(meta.features["action"]["shape"])
                )
            },
            chunk_size=steps, n_action_steps=steps, pretrained_backbone_weights=None,
            device="cpu",  # where it is made; it moves with the rest
        ))  # fmt: skip

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        data = {"action": self.action(batch["action"]), "action_is_pad": batch["action_is_pad"]}
        if self.state is not None:
            data[STATE] = self.state(batch[STATE])
        for camera in self.cameras:
            data[camera] = (batch[camera].float() / 255 - 0.45) / 0.225
        return self.policy(data)[0]


POLICIES = {"small": SmallPolicy, "act": ActPolicy}
