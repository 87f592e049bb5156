"""Training killed at random moments, and started again in another shape each time, delivers what an
undisturbed run delivers: every sample of every step, pixel by pixel.

kill_soak.py SEED N: N kills of a DataLoader worker, of a rank or of all. kill_soak.py SEED every:
one small epoch, killed after each of its batches. The ranks are forked processes that go in step,
as a gradient exchange makes them, and append (run, step, rank, samples) to one log, fsync per step.
Rank 0 writes checkpoints. Each run has other ranks, workers, threads and budgets, and starts from
the checkpoint's state or from its step number alone. The joined log must be the golden one.
"""

import contextlib
import ctypes
import faulthandler
import json
import mmap
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

import reelpool
import torch.utils.data
from _common import pixels
from demo_sets import ROOT

SIZE = 12  # samples of a global batch: divided by 1, 2, 3, 4 ranks
MOST_RANKS = 4
WRITERS = (-1, 2, 0, 1, -1, 0, 3)  # workers of rank 0, run by run: its states are the checkpoints
GONE_S = 30  # a rank whose worker was killed must fail by itself, and orphans must go
PR_SET_CHILD_SUBREAPER = 36


class Shape(NamedTuple):
    """How one rank reads."""

    workers: int  # of a DataLoader; -1: reelpool.Loader
    threads: int
    prefetch: int
    memory: str | None
    decoded: str | None
    persistent: bool  # the DataLoader's workers
    by_step: bool  # resumes by the step number alone

    @staticmethod
    def draw(chance):
        return Shape(
            chance.choice([-1, -1, 0, 1, 2, 3]), chance.randrange(3), chance.randrange(1, 4),
            chance.choice([None, "96MiB", "200MiB"]), chance.choice([None, "0", "1MiB"]),
            chance.random() < 0.5, chance.random() < 0.5,
        )  # fmt: skip


class Job(NamedTuple):
    """What all runs share."""

    folder: Path
    board: mmap.mmap  # per rank, 8 bytes: steps that it has logged
    episodes: list | None
    every: bool

    def done(self, rank):
        return int.from_bytes(self.board[8 * rank : 8 * rank + 8], "little")

    def set_done(self, rank, steps):
        self.board[8 * rank : 8 * rank + 8] = steps.to_bytes(8, "little")

    def checkpoint(self):
        """(step, state) to go on from."""
        try:
            found = json.loads((self.folder / "checkpoint").read_text())
        except FileNotFoundError:
            return 0, None
        return found["step"], found["state"]

    def write_checkpoint(self, step, state):
        text = json.dumps({"step": step, "state": state})
        assert len(json.dumps(state)) <= 256, state
        with open(self.folder / "new", "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(self.folder / "new", self.folder / "checkpoint")


def open_stream(job, shape, rank, world):
    return reelpool.StreamingLeRobotDataset(
        "reelpool/demo", root=ROOT, episodes=job.episodes, return_uint8=True, seed=11,
        window=60 if job.every else 96, unit=8, num_threads=shape.threads,
        memory_budget=shape.memory, rank=rank, world_size=world, batch_size=SIZE // world,
    )  # fmt: skip


def batches(dataset, shape, step, state):
    """Batches from `step` on, epoch after epoch; after each the state of then."""
    if shape.workers < 0:
        source = consumer = reelpool.Loader(
            dataset, dataset.batch_size, num_threads=shape.threads, prefetch_batches=shape.prefetch,
            decoded_budget=shape.decoded,
        )  # fmt: skip
    else:
        source = dataset
        consumer = torch.utils.data.DataLoader(
            dataset, batch_size=dataset.batch_size, num_workers=shape.workers,
            multiprocessing_context="fork" if shape.workers else None,
            prefetch_factor=shape.prefetch if shape.workers else None,
            persistent_workers=shape.workers > 0 and shape.persistent,
        )  # fmt: skip
    if step:
        by_step = source.state_for_step(step)
        if state["samples_done"] < dataset.num_frames:  # else the same place has two names
            assert by_step == state, (by_step, state)
        source.load_state_dict(by_step if shape.by_step else state)
    while True:
        for batch in consumer:
            step += 1
            yield batch, source.state_for_step(step) if shape.workers > 0 else source.state_dict()


def samples(batch):
    """[[index, hash of all values]] of a batch."""
    count = len(batch["index"])
    items = [{key: values[i] for key, values in batch.items()} for i in range(count)]
    return [[int(item["index"]), pixels(item)[:16]] for item in items]


def run_rank(job, run, rank, world, shape, until):
    """One rank of one run; ends after step `until`."""
    log = os.open(job.folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    chance = random.Random(run)
    step, state = job.checkpoint()
    dataset = open_stream(job, shape, rank, world)
    for batch, reached in batches(dataset, shape, step, state):
        line = {"run": run, "step": step, "rank": rank, "world": world, "samples": samples(batch)}
        os.write(log, (json.dumps(line) + "\n").encode())
        os.fsync(log)
        step += 1
        job.set_done(rank, step)
        while min(job.done(other) for other in range(world)) < step:
            time.sleep(0.0005)
        if rank == 0 and (job.every or chance.random() < 0.4):
            job.write_checkpoint(step, reached)
        if step == until:
            return


def children(parents):
    """{pid: parent} of the living children of some processes."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) in parents and state not in "ZX":
                found[int(entry.name)] = int(parent)
    return found


def kill(pid, number=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def start(job, run, chance, until):
    """Fork the ranks of a run: their pids."""
    world = chance.choice([1, 2, 3, 4])
    shapes = [Shape.draw(chance) for _ in range(world)]
    begin = job.checkpoint()[0]
    shapes[0] = shapes[0]._replace(workers=WRITERS[run % len(WRITERS)])
    print(f"run {run} from step {begin}, world {world}: {[tuple(shape) for shape in shapes]}")
    sys.stdout.flush()
    for rank in range(world):
        job.set_done(rank, begin)
    ranks = []
    for rank, shape in enumerate(shapes):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run_rank(job, run, rank, world, shape, until)
                status = 0
            except BaseException as error:
                print(f"run {run} rank {rank}: {type(error).__name__}: {error}", file=sys.stderr)
            finally:
                sys.stderr.flush()
                os._exit(status)
        ranks.append(pid)
    return ranks


def wait_for(ranks):
    """Exit statuses, by rank."""
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]


def disturb(job, ranks, chance, how, steps):
    """Kill something once the run has done `steps` steps; end the rest as a launcher would."""
    begin = job.checkpoint()[0]

    def far_enough():
        if job.every:
            return job.checkpoint()[0] == begin + 1
        return max(job.done(rank) for rank in range(len(ranks))) >= begin + steps

    while not far_enough():
        for pid in ranks:  # none may end by itself before
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "a rank ended by itself"
        time.sleep(0.001)
    time.sleep(0 if job.every else chance.random() * 0.1)
    workers = children(set(ranks))
    if how == "worker" and workers:
        victim = chance.choice(sorted(workers))
        kill(victim)
        own = workers[victim]
        deadline = time.monotonic() + GONE_S
        while os.waitid(os.P_PID, own, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            assert time.monotonic() < deadline, "a rank whose worker was killed goes on"
            time.sleep(0.01)
        others = [pid for pid in ranks if pid != own]
        for pid in others:
            kill(pid, signal.SIGTERM)
        assert wait_for([own]) == [1]
        wait_for(others)
        return "worker"
    if how in ("rank", "worker"):
        victim = chance.choice(ranks)
        kill(victim)
        for pid in ranks:
            kill(pid, signal.SIGTERM)
    else:
        for pid in [*ranks, *(workers if how == "everything" else ())]:
            kill(pid)
    statuses = wait_for(ranks)
    assert all(status in (-signal.SIGKILL, -signal.SIGTERM) for status in statuses), statuses
    return how if how != "worker" else "rank"


def golden(job, steps):
    """Samples of each step of a run that nobody disturbs: one rank, one thread."""
    shape = Shape(-1, 0, 1, None, None, False, False)
    found = batches(open_stream(job, shape, 0, 1), shape, 0, None)
    return [samples(batch) for _, (batch, _) in zip(range(steps), found)]


def check(job, steps):
    """The joined log is the golden one, and so is whatever a later run did again."""
    want = golden(job, steps)
    joined = [{} for _ in range(steps)]
    lines = (job.folder / "log").read_text().splitlines()
    for line in map(json.loads, lines):
        step, rank, world = line["step"], line["rank"], line["world"]
        part = want[step][rank * len(want[step]) // world : (rank + 1) * len(want[step]) // world]
        assert line["samples"] == part, (line, part)
        runs = joined[step]
        runs.setdefault(line["run"], {})[rank] = (world, line["samples"])
    for step, runs in enumerate(joined):
        last = runs[max(runs)]
        assert sorted(last) == list(range(last[0][0])), (step, sorted(last))
        assert [one for rank in sorted(last) for one in last[rank][1]] == want[step], step
    return len(lines)


def main(seed, count):
    every = count == "every"
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become our children
    chance, done = random.Random(seed), {}
    faulthandler.register(signal.SIGUSR1)
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than CPUs
    before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as folder:
        board = mmap.mmap(-1, 8 * MOST_RANKS)
        job = Job(Path(folder), board, [1, 3] if every else None, every)
        epoch = -(-84 // SIZE)
        for run in range(epoch if every else int(count)):
            ranks = start(job, run, chance, None)
            if every:
                how, steps = "all", 1
            else:
                how = chance.choice(["worker", "worker", "rank", "all", "everything"])
                steps = chance.randrange(8)
            how = disturb(job, ranks, chance, how, steps)
            done[how] = done.get(how, 0) + 1
        steps = job.checkpoint()[0] + 10
        statuses = wait_for(start(job, run + 1, chance, steps))
        assert not any(statuses), statuses
        deadline = time.monotonic() + GONE_S
        while left := children({os.getpid()}):
            if time.monotonic() > deadline:
                for pid in left:
                    kill(pid, signal.SIGUSR1)  # faulthandler prints its stacks
                raise AssertionError(f"orphans: {left}")
            time.sleep(0.05)
        lines = check(job, steps)
        print(f"kills {done}, {steps} steps, {lines} lines")
        new = {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("torch_")}
        assert not new, new
    print("ok")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
