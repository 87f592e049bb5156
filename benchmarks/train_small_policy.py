#!/usr/bin/env python3
"""Trains a small policy on a LeRobot data set, map-style and streamed, and tells how far the loss falls.

    python benchmarks/train_small_policy.py --repo_id you/set --root path/to/set --output_dir out

Both readers feed the same network with the same first weights for as many steps; `--held_out`
episodes are kept from it and measured before and after. The network sees every camera and the state
and predicts the next actions (train_policies.py). It is there to show that what the readers deliver
can be learned from, not to be a good policy.

OUTPUT_DIR: READER.jsonl (step, loss), result.json. Exit status: 0 the loss fell; 1 it did not, or
--max was missed; 2 usage; 3 unusable input.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import torch
    from reelpool import LeRobotDataset, LeRobotDatasetMetadata, Loader, StreamingLeRobotDataset
    from reelpool.bench import targets
    from reelpool.errors import ReelpoolError
    from train_parts import UnusableError
    from train_policies import SmallPolicy
except ImportError as missing:
    print(f"{missing}\n  Run: pip install 'reelpool[torch]'", file=sys.stderr)
    sys.exit(3)

READERS = ("map", "stream")
SMOOTH = 10  # steps that the first and the last loss are the mean of


class Work:
    """The data set cut in two, and what both readers have in common."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.meta = LeRobotDatasetMetadata(args.repo_id, root=args.root, revision=args.revision)
        if "action" not in self.meta.features:
            raise UnusableError(f"{args.repo_id} has no feature `action`: nothing to learn")
        total = self.meta.total_episodes
        if total <= args.held_out:
            raise UnusableError(f"--held_out {args.held_out}: the data set has {total} episodes")
        self.learned = list(range(total - args.held_out))
        frames = sum(int(self.meta.episodes["length"][e]) for e in self.learned)
        if frames < args.batch_size:
            raise UnusableError(
                f"--batch_size {args.batch_size}: the episodes to learn from hold {frames} frames, "
                "less than one batch"
            )
        self.held_out = list(range(total - args.held_out, total))
        deltas = {"action": [i / self.meta.fps for i in range(args.n_action_steps)]}
        self.options: dict[str, Any] = {
            "root": args.root, "revision": args.revision, "delta_timestamps": deltas,
            "return_uint8": True, "tolerance_s": 1e-3,
            "resize": (args.resize, args.resize) if args.resize else None,
        }  # fmt: skip

    def loader(self, reader: str) -> Loader:
        """Shuffled batches of the episodes to learn from."""
        args = self.args
        if reader == "stream":
            streamed = StreamingLeRobotDataset(
                args.repo_id, episodes=self.learned, seed=args.seed, **self.options
            )
            return Loader(streamed, args.batch_size, num_threads=args.num_threads, drop_last=True)
        mapped = LeRobotDataset(args.repo_id, episodes=self.learned, **self.options)
        return Loader(
            mapped, args.batch_size, num_threads=args.num_threads, drop_last=True,
            shuffle=True, seed=args.seed,
        )  # fmt: skip

    def judge(self, model: torch.nn.Module) -> float | None:
        """Mean loss of the held-out episodes; None where there are none."""
        if not self.held_out:
            return None
        dataset = LeRobotDataset(self.args.repo_id, episodes=self.held_out, **self.options)
        total = samples = 0.0
        model.eval()
        with Loader(dataset, self.args.batch_size, num_threads=self.args.num_threads) as loader:
            for batch in loader:
                with torch.no_grad():
                    count = len(batch["index"])
                    total += float(model(moved(batch, self.args.device))) * count
                samples += count
        model.train()
        return total / samples


def moved(batch: dict[str, Any], device: str) -> dict[str, torch.Tensor]:
    """The tensors of a batch on a device."""
    return {k: v.to(device) for k, v in batch.items() if isinstance(v, torch.Tensor)}


def endless(loader: Loader) -> Iterator[dict[str, Any]]:
    """Batches of one epoch after the other."""
    while True:
        yield from loader


def train(work: Work, reader: str) -> dict[str, Any]:
    """One run from the first weights; its figures."""
    args = work.args
    torch.manual_seed(args.seed)
    model = SmallPolicy(work.meta, args.n_action_steps).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    before, losses, begun = work.judge(model), [], time.perf_counter()
    log = args.output_dir / f"{reader}.jsonl"
    with work.loader(reader) as loader, open(log, "w", buffering=1) as file:
        batches = endless(loader)
        for step in range(1, args.steps + 1):
            loss = model(moved(next(batches), args.device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            losses.append(float(loss.detach()))
            file.write(json.dumps({"step": step, "loss": losses[-1]}) + "\n")
            if step % args.log_freq == 0 or step == args.steps:
                print(f"{reader}: step {step}  loss {losses[-1]:.4f}", flush=True)
        stats = loader.stats()
    few = max(1, min(SMOOTH, args.steps // 4))
    first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
    after = work.judge(model)
    return {
        "reader": reader,
        "steps": args.steps,
        "samples": args.steps * args.batch_size,
        "epochs": round(args.steps / len(loader), 2),
        "first_loss": first,
        "last_loss": last,
        "loss_ratio": last / first,
        "held_out_before": before,
        "held_out_after": after,
        "held_out_ratio": None if before is None or after is None else after / before,
        "train_s": round(time.perf_counter() - begun, 2),
        "wait_s": round(stats["wait_s"], 2),
    }


def _whole(low: int) -> Any:
    def parse(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"must be {low} or more")
        return int(text)

    parse.__name__ = "int"
    return parse


def _readers(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(text.split(",")))
    if not set(found) <= set(READERS):
        raise argparse.ArgumentTypeError(f"{text!r}: use {','.join(READERS)}")
    return found


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Options of the command line."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--repo_id", required=True)
    p.add_argument("--root", help="local copy of the data set")
    p.add_argument("--revision")
    p.add_argument("--output_dir", type=Path, required=True)
    p.add_argument("--reader", type=_readers, default=READERS, help="map,stream")
    p.add_argument("--steps", type=_whole(1), default=200)
    p.add_argument("--batch_size", type=_whole(1), default=16)
    p.add_argument("--n_action_steps", type=_whole(1), default=8)
    p.add_argument("--resize", type=_whole(0), default=64, help="pictures in pixels; 0: as stored")
    p.add_argument("--held_out", type=_whole(0), default=1, help="last episodes, not learned from")
    p.add_argument("--num_threads", type=_whole(0), help="decoding threads (CPUs granted)")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--log_freq", type=_whole(1), default=20)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    targets.add_options(p)
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """The whole program; its exit status."""
    args = parse(argv)
    try:
        args.output_dir.mkdir(parents=True, exist_ok=True)
        work = Work(args)
        results = [train(work, reader) for reader in args.reader]
    except (UnusableError, ReelpoolError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3
    text = json.dumps({"repo_id": args.repo_id, "results": results}, indent=1)
    (args.output_dir / "result.json").write_text(text + "\n")
    for found in results:
        line = f"{found['reader']}: loss {found['first_loss']:.4f} -> {found['last_loss']:.4f}"
        if found["held_out_ratio"] is not None:
            line += f", held out {found['held_out_before']:.4f} -> {found['held_out_after']:.4f}"
        print(f"{line}; waited {found['wait_s']:g} s of {found['train_s']:g} s")
    bounds = [*args.maximum, ("loss_ratio", 1.0)]
    missed = targets.missed([(r["reader"], r) for r in results], args.minimum, bounds)
    for line in missed:
        print(f"MISSED: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
