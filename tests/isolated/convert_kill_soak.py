"""A conversion killed, stopped and overtaken at random moments ends with the same bytes; at every
moment the dataset has its name, and no finished file is made twice.

convert_kill_soak.py SEED N: conversions until N processes were killed. Each attempt has other
threads and worker processes; some are two at once that take each other for another host, one of
them with a clock that is a day off; some stand still until their leases are void.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

from _convert_killing import case_of, fork, in_child, status_of
from convert_sets import MIXED
from reelpool import env, verify_meta, verify_video  # noqa: F401  (loaded once, not in every child)
from reelpool.convert import work
from reelpool.convert.job import Options
from reelpool.convert.run import convert

LEASE_S = 0.3  # of processes that take each other for another host
DAY_S = 86400
MOST_ATTEMPTS = 40  # per conversion: each goes on, so that it ends before


class Attempt(NamedTuple):
    """How one process converts, and when it ends."""

    threads: int
    processes: int
    host: str  # "": this one
    skew_s: int
    after_s: float  # from its start to its end by SIGKILL
    stalls: bool  # stopped for longer than its leases live, before

    @staticmethod
    def draw(chance, usual_s, host=""):
        return Attempt(
            chance.randrange(1, 5), chance.choice([0, 0, 0, 1, 2, 3]), host,
            chance.choice([-DAY_S, 0, DAY_S]) if host else 0,
            chance.uniform(0, chance.choice([0.3, 1.2]) * usual_s),
            bool(host) and chance.random() < 0.3,
        )  # fmt: skip

    def begin(self, root):
        """Fork; its process group."""

        def work_on():
            if self.host:
                work._machine = lambda: [self.host, "", ""]
                real = time.time
                time.time = lambda: real() + self.skew_s
            env.granted_cpus = lambda: 3  # as many processes as drawn
            options = Options(root, root.name, episodes_per_batch=2, lease_s=LEASE_S)
            convert(options, self.threads, self.processes)

        return fork(work_on)


def watch(root, seconds, pids):
    """Look at the dataset until the time is over or a process ends; {pid: status} of the ended."""
    deadline = time.monotonic() + seconds
    while True:
        assert (root / "meta/info.json").exists(), "there is no dataset"
        for pid in pids:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return {pid: os.waitstatus_to_exitcode(status)}
        if time.monotonic() >= deadline:
            return {}
        time.sleep(0.001)


def end(pid):
    """Kill a process and its workers; its status."""
    os.killpg(pid, signal.SIGKILL)
    return status_of(pid)


def finished(root):
    """{file: inode} of the new files whose items are done."""
    built, state = root.with_name(f"{root.name}_v30"), root.parent / "_work" / root.name / "state"
    names = {p.stem for p in state.glob("*.done")} if state.is_dir() else set()
    out = {}
    for path in [*built.glob("data/*/*.parquet"), *built.glob("videos/*/*/*.mp4")]:
        rel = path.relative_to(built)
        if rel.parts[0] == "videos" and rel.parts[1] not in MIXED:
            continue  # the old dataset, which has this name for a moment
        camera = (
            f"video-{sorted(MIXED).index(rel.parts[1])}" if rel.parts[0] == "videos" else "data"
        )
        if f"{camera}-000-{path.stem[5:]}" in names:
            out[rel] = path.stat().st_ino
    return out


def kept(root, before):
    """Those of `before` are the same files still, wherever the new dataset is by now."""
    for rel, inode in before.items():
        places = [root.with_name(f"{root.name}_v30") / rel, root / rel]
        assert inode in [p.stat().st_ino for p in places if p.exists()], f"{rel} was made again"


def one_round(root, chance, usual_s):
    """One attempt, or two at once; (killed, whether one stood still)."""
    hosts = ["one", "two"] if chance.random() < 0.3 else [""]
    attempts = [Attempt.draw(chance, usual_s, host) for host in hosts]
    running = {attempt.begin(root): attempt for attempt in attempts}
    killed, begun, stalled = 0, time.monotonic(), False
    for pid, attempt in sorted(running.items(), key=lambda item: item[1].after_s):
        ended = watch(root, begun + attempt.after_s - time.monotonic(), [pid])
        if attempt.stalls and not ended:
            stalled = True
            os.killpg(pid, signal.SIGSTOP)
            watch(root, 3 * LEASE_S, [])
            os.killpg(pid, signal.SIGCONT)
            ended = watch(root, chance.uniform(0, usual_s), [pid])
        status = ended[pid] if ended else end(pid)
        assert status in (0, -signal.SIGKILL), (attempt, status)
        killed += status == -signal.SIGKILL
    return killed, stalled


def conversion(case, chance, usual_s):
    """One dataset, attempt after attempt; how many were killed."""
    root = case.copy()
    killed, made = 0, {}
    for _ in range(MOST_ATTEMPTS):
        now, stalled = one_round(root, chance, usual_s)
        killed += now
        new = case.sound(root)
        if not stalled:  # one that wakes may give a file its name once more
            kept(root, made)
        made = finished(root)
        if new and chance.random() < 0.8:
            break
    case.finish(root, lease_s=LEASE_S)
    return killed


def main(seed, kills):
    chance = random.Random(seed)
    with case_of(MIXED) as case:
        root, begun = case.copy(), time.monotonic()
        in_child(lambda: convert(Options(root, root.name)))
        usual_s = time.monotonic() - begun
        case.finish(root)
        killed = conversions = 0
        while killed < kills:
            killed += conversion(case, chance, usual_s)
            conversions += 1
        print(f"{killed} kills in {conversions} conversions", file=sys.stderr)
    print("ok")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
