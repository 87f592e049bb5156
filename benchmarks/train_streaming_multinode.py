#!/usr/bin/env python3
"""Trains a policy on a streamed LeRobot data set, on any number of processes and nodes, and goes on after any end.

    python benchmarks/train_streaming_multinode.py --repo_id you/set --output_dir out
    torchrun --nproc_per_node 2 benchmarks/train_streaming_multinode.py ...   (or accelerate launch)
    sbatch benchmarks/slurm/train_streaming.sh --repo_id you/set --output_dir out

There is no DistributedSampler: reelpool.Loader knows its rank, and each process gets its part of
every global batch. A checkpoint holds model, optimizer, scheduler, random numbers and the place in
the data; it is complete or not there. `--resume_from auto` goes on at the next sample, also with
another number of processes: the global batch stays, each process gets its part of it.
`--dummy` leaves the model out: what the data path alone delivers. docs/slurm.md tells the rest.

OUTPUT_DIR: log.jsonl (step, SHA-256 of the samples' `index` over all processes, loss),
checkpoints/step_N.pt, result.json. Exit status: 0 done; 2 usage; 3 unusable input; 75 stopped by
SIGTERM after a checkpoint.
"""  # noqa: E501

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

STOPPED = 75  # EX_TEMPFAIL: start again and it goes on


try:
    import torch
    from reelpool import Loader, StreamingLeRobotDataset
    from reelpool.distributed import local_world_size
    from reelpool.env import granted_cpus
    from reelpool.errors import ReelpoolError
    from train_parts import (
        Log,
        Processes,
        UnusableError,
        checkpoints,
        random_state,
        set_random_state,
        write_whole,
    )
    from train_policies import POLICIES
except ImportError as missing:
    print(f"{missing}\n  Run: pip install 'reelpool[torch]'", file=sys.stderr)
    sys.exit(3)


class Training:
    """One run: dataset, loader, model, and where it is."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.output = args, Path(args.output_dir)
        policy = POLICIES[args.policy]
        self.processes = Processes(args.backend, policy.unused_parameters)
        self.rank, self.world = self.processes.rank, self.processes.world
        if self.rank == 0:
            (self.output / "checkpoints").mkdir(parents=True, exist_ok=True)
        saved = self._saved()
        self.step = saved["step"] if saved else 0
        self.batch_size = self._batch_size(saved)
        torch.manual_seed(args.seed)  # the same first weights everywhere
        random.seed(args.seed)
        self.loader = self._loader()
        self.cameras = len(self.loader.dataset.meta.video_keys)
        self.model = self.optimizer = self.schedule = None
        if not args.dummy:
            self._make_model(policy)
        if saved:
            self._restore(saved)
        else:
            self._own_random_numbers()
        self.log: Log | None = None
        self.stop = False
        signal.signal(signal.SIGTERM, self._on_term)

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def _on_term(self, *_: Any) -> None:
        self.stop = True

    def _saved(self) -> dict[str, Any] | None:
        """The checkpoint to go on from: the one that process 0 chose, read by every process."""
        chosen: str | UnusableError | None = None
        if self.rank == 0:
            try:
                chosen = self._choose()
            except UnusableError as error:
                chosen = error
        chosen = self.processes.first(chosen)
        if isinstance(chosen, UnusableError):
            raise chosen
        if chosen is None:
            return None
        try:
            return torch.load(chosen, map_location="cpu", weights_only=True)
        except Exception as error:
            raise UnusableError(f"checkpoint {chosen} cannot be read: {error}") from error

    def _choose(self) -> str | None:
        asked = self.args.resume_from
        here = checkpoints(self.output)
        if asked is None:
            if here:
                raise UnusableError(
                    f"{here[-1]} is of an earlier run: --resume_from auto goes on from it, another "
                    "--output_dir begins anew"
                )
            return None
        found = here if asked == "auto" else checkpoints(Path(asked))
        if not found and asked != "auto":
            raise UnusableError(f"--resume_from {asked}: no checkpoints/step_*.pt there")
        return str(found[-1]) if found else None

    def _batch_size(self, saved: dict[str, Any] | None) -> int:
        """Samples per process; at a resume those that keep the global batch, unless told."""
        if self.args.batch_size is not None:
            size = self.args.batch_size
            if saved and size * self.world != saved["global_batch"]:
                self.say(
                    f"global batch {size * self.world} instead of {saved['global_batch']}: the "
                    "samples go on in the same order, but a step holds another number of them"
                )
            return size
        total = self.args.global_batch_size
        if total is None and not saved:
            return 64
        if total is None:
            total = saved["global_batch"]
        size, rest = divmod(total, self.world)
        if rest or not size:
            raise UnusableError(
                f"the global batch of {total} cannot be shared by "
                f"{self.world} processes: give --batch_size (per process)"
            )
        return size

    def _loader(self) -> Loader:
        args = self.args
        options: dict[str, Any] = {
            "root": args.root, "data_files_root": args.data_files_root, "seed": args.seed,
            "buffer_size": args.buffer_size, "tolerance_s": 1e-3, "return_uint8": True,
            "video_decoder_cache_size": args.video_decoder_cache_size, "repeat": True,
        }  # fmt: skip
        dataset = StreamingLeRobotDataset(args.repo_id, **options)
        if "action" not in dataset.meta.features:
            raise UnusableError(f"{args.repo_id} has no feature `action`: nothing to learn")
        deltas = {"action": [i / dataset.meta.fps for i in range(args.n_action_steps)]}
        dataset = StreamingLeRobotDataset(args.repo_id, delta_timestamps=deltas, **options)
        threads = args.num_workers
        if threads:
            threads = min(threads, max(1, granted_cpus() // local_world_size()))
        return Loader(dataset, self.batch_size, num_threads=threads)

    def _make_model(self, policy: Any) -> None:
        model = policy(self.loader.dataset.meta, self.args.n_action_steps)
        model = model.to(self.processes.device)
        # eps: a gradient of the size of rounding must not become a step of full size, so that the
        # loss is the same to rounding under any number of processes.
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.args.lr, eps=1e-4)
        # The plain optimizer: Accelerate's own would count every process's step.
        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 50))
        self.plain = model
        self.model, self.optimizer = self.processes.prepare(model, optimizer)
        self.model.train()

    def _own_random_numbers(self) -> None:
        """Other ones in every process, and at every step where a run can begin."""
        number = (self.args.seed * 1_000_003 + self.step) * 65_537 + self.rank
        torch.manual_seed(number % 2**63)
        random.seed(number)

    def _restore(self, saved: dict[str, Any]) -> None:
        if (saved["model"] is None) != self.args.dummy:
            raise UnusableError(
                f"a checkpoint {'without' if saved['model'] is None else 'with'} a model: "
                f"{'it needs' if saved['model'] is None else 'leave out'} --dummy"
            )
        self.loader.load_state_dict(saved["loader"])
        if self.model is not None:
            self.plain.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.schedule.load_state_dict(saved["schedule"])
        if len(saved["random"]) == self.world:
            set_random_state(saved["random"][self.rank])
        else:
            self._own_random_numbers()
        self.say(
            f"resumed after step {self.step}: {len(saved['random'])} -> {self.world} processes, "
            f"{self.batch_size} samples each"
        )

    def save(self) -> None:
        """A checkpoint after the present step."""
        numbers = self.processes.gather_objects(random_state())
        if self.rank == 0:
            self.log.sync()
            model = self.model is not None
            content = {
                "step": self.step, "global_batch": self.batch_size * self.world,
                "model": self.plain.state_dict() if model else None,
                "optimizer": self.optimizer.state_dict() if model else None,
                "schedule": self.schedule.state_dict() if model else None,
                "random": numbers, "loader": self.loader.state_dict(),
            }  # fmt: skip
            path = self.output / "checkpoints" / f"step_{self.step:08d}.pt"
            write_whole(path, lambda file: torch.save(content, file))
            for old in checkpoints(self.output)[: -self.args.keep]:
                old.unlink()
            for torn in path.parent.glob(".step_*.tmp"):
                torn.unlink()
        self.processes.first(None)  # nobody ends before it is written

    def learn(self, batch: dict[str, Any]) -> float | None:
        """One optimizer step; the mean loss of all processes."""
        device = self.processes.device
        data = {k: v.to(device) for k, v in batch.items() if isinstance(v, torch.Tensor)}
        if self.model is None:
            return None
        loss = self.model(data)
        self.processes.backward(loss)
        self.processes.clip(self.model, 10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return float(self.processes.gather(loss.detach().reshape(1)).mean())

    def run(self) -> int:
        """Train to --steps; the exit status."""
        args, loss = self.args, None
        self.log = Log(self.output / "log.jsonl", self.rank, self.step)
        meter = Meter(self)
        batches = iter(self.loader)
        while self.step < args.steps:
            batch = next(batches)
            self.step += 1
            mine = torch.cat([batch["index"], torch.tensor([int(self.stop)])])
            everyone = self.processes.gather(mine)
            ids, stop = everyone[:, :-1].reshape(-1), bool(everyone[:, -1].any())
            loss = self.learn(batch)
            line: dict[str, Any] = {"step": self.step, "sha256": digest(ids)}
            self.log.line(line if loss is None else {**line, "loss": loss})
            meter.step()
            if self.step % args.log_freq == 0 or self.step == args.steps:
                meter.report(loss)
            if self.step % args.save_freq == 0 or self.step == args.steps or stop:
                self.save()
            if stop and self.step < args.steps:
                self.say(f"stopped by SIGTERM after step {self.step}: --resume_from auto goes on")
                return STOPPED
        if self.rank == 0:
            result = {"steps": self.step, "world_size": self.world, "loss": loss, **meter.total()}
            write_whole(self.output / "result.json", lambda f: f.write(json.dumps(result).encode()))
        return 0

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        self.loader.close()
        self.processes.end()


def digest(ids: torch.Tensor) -> str:
    """SHA-256 of a global batch's `index`, as little-endian int64 in the order of ranks."""
    return hashlib.sha256(ids.numpy().astype("<i8").tobytes()).hexdigest()


class Meter:
    """Decoded frames per second: samples times cameras."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.steps = self.seconds = 0.0
        self.rates: list[float] = []
        self.since, self.counted = time.perf_counter(), 0

    def step(self) -> None:
        self.counted += 1

    def report(self, loss: float | None) -> None:
        training = self.training
        now = time.perf_counter()
        samples = self.counted * training.batch_size
        rate = torch.tensor([samples * training.cameras / (now - self.since)], dtype=torch.float64)
        self.rates = training.processes.gather(rate.float()).reshape(-1).tolist()
        parts = ", ".join(f"rank {r}: {rate:.0f}" for r, rate in enumerate(self.rates))
        text = f"step {training.step}  frames/s {parts}, total {sum(self.rates):.0f}"
        training.say(text if loss is None else f"{text}  loss {loss:.5f}")
        self.seconds += now - self.since
        self.steps += self.counted
        self.since, self.counted = time.perf_counter(), 0

    def total(self) -> dict[str, Any]:
        """Of process 0, over all steps of this start, the wait for the first batch included."""
        training = self.training
        samples = self.steps * training.batch_size * training.world
        rate = samples / self.seconds if self.seconds else None
        return {
            "samples_per_s": rate,
            "frames_per_s": None if rate is None else rate * training.cameras,
            "frames_per_s_by_rank": self.rates,
        }


def parse(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--repo_id", required=True)
    p.add_argument("--root", help="local copy of the data set")
    p.add_argument("--data_files_root", help="other place of data and videos; meta/ stays")
    p.add_argument("--output_dir", required=True, help="seen by all nodes")
    p.add_argument("--steps", type=positive, default=1000)
    p.add_argument("--batch_size", type=positive, help="per process; default 64")
    p.add_argument("--global_batch_size", type=positive, help="of all processes, instead")
    p.add_argument("--num_workers", type=whole, default=8, help="decoding threads, if CPUs allow")
    p.add_argument("--buffer_size", type=positive, default=2000, help="no effect: see design.md")
    p.add_argument("--video_decoder_cache_size", type=positive)
    p.add_argument("--n_action_steps", type=positive, default=16)
    p.add_argument("--save_freq", type=positive, default=200)
    p.add_argument("--log_freq", type=positive, default=20)
    p.add_argument("--resume_from", metavar="DIR,auto", help="auto: --output_dir's newest, if any")
    p.add_argument("--policy", choices=list(POLICIES), default="small")
    p.add_argument("--dummy", action="store_true", help="no model: frames/s of the data path")
    p.add_argument("--backend", choices=["auto", "accelerate", "torch"], default="auto")
    p.add_argument("--keep", type=positive, default=2, help="newest checkpoints that stay")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=42)
    args = p.parse_args(argv)
    if args.batch_size is not None and args.global_batch_size is not None:
        p.error("--batch_size and --global_batch_size exclude each other")
    return args


def whole(text: str) -> int:
    if int(text) < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return int(text)


def positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        training = Training(args)
        try:
            return training.run()
        finally:
            training.close()
    except (UnusableError, ReelpoolError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
