"""A conversion killed after each of its changes to the disk goes on to the same bytes; at every
moment the dataset has its name.

Runs on a small dataset of its own. Each attempt is a forked process that ends by SIGKILL.
"""

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

from convert_sets import tree, write_clips
from reelpool import verify_meta, verify_video  # noqa: F401  (loaded once, not in every child)
from reelpool.convert import swap
from reelpool.convert.job import Options
from reelpool.convert.run import convert

CAMERAS = {"front": ("h264", "h264")}
CHANGES = ("rename", "replace", "unlink", "mkdir", "rmdir", "open")


def kill_at(number):
    """End this process after its `number`th change of a folder; returns the counter."""
    count = [0]

    def wrap(module, name):
        real = getattr(module, name)

        def call(*arguments, **keywords):
            done = real(*arguments, **keywords)
            if name != "open" or arguments[1] & os.O_CREAT:
                count[0] += 1
                if count[0] == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return done

        setattr(module, name, call)

    for name in CHANGES:
        wrap(os, name)
    wrap(swap, "exchange")
    return count


def attempt(root, number, threads=1):
    """Convert in a forked process that is killed; its status."""

    def killed():
        kill_at(number)
        convert(Options(root=root, name=root.name), threads)

    return status_of(fork(killed))


def fork(function):
    """Run in a forked process, which leads a group of its own; its number."""
    pid = os.fork()
    if pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the child may be first
            os.setpgid(pid, pid)
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def status_of(pid):
    """Wait for the end of a forked process."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(function):
    """Run in a forked process, so that this one stays free of threads; its status must be 0."""
    assert status_of(fork(function)) == 0


def total_changes(root):
    """How many changes one undisturbed conversion makes."""
    reading, writing = os.pipe()

    def count():
        counter = kill_at(0)
        convert(Options(root=root, name=root.name))
        os.write(writing, str(counter[0]).encode())

    in_child(count)
    return int(os.read(reading, 32))


class Case(NamedTuple):
    """A dataset to convert again and again in the empty folder `base`: the files (`tree`) before,
    those wanted after.
    """

    base: Path
    source: Path
    before: dict
    wanted: dict

    def copy(self):
        """A fresh copy of the dataset."""
        return shutil.copytree(self.source, self.base / "arm")

    def sound(self, root):
        """There is one of the two datasets; whether it is the new one."""
        found = tree(root)
        assert found in (self.before, self.wanted), "neither the old nor the new dataset"
        return found == self.wanted

    def finish(self, root, **more):
        """The last conversion, undisturbed: complete, byte for byte. Empties the folder."""
        in_child(lambda: convert(Options(root, root.name, **more)))
        assert self.sound(root) and tree(self.base / "arm_old") == self.before
        left = sorted(p.name for p in self.base.iterdir())
        assert left == ["arm", "arm_old"], left
        for path in self.base.iterdir():
            shutil.rmtree(path)


@contextlib.contextmanager
def case_of(cameras):
    """A `Case` of clips."""
    memory = Path("/dev/shm")  # syncing is not what is looked at here
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        os.environ["REELPOOL_CACHE"] = f"{folder}/cache"
        source, runs = Path(folder, "source"), Path(folder, "runs")
        in_child(lambda: write_clips(source, cameras))
        before = tree(source)
        root = shutil.copytree(source, runs / "arm")  # where later ones find their cache's folders
        in_child(lambda: convert(Options(root, "arm")))
        wanted = tree(root)
        assert wanted != before and "meta/tasks.parquet" in wanted
        case = Case(runs, source, before, wanted)
        case.finish(root)
        yield case


def check(case, number, threads=1):
    """Killed, then run again."""
    root = case.copy()
    status = attempt(root, number, threads)
    assert status in (0, -signal.SIGKILL), status
    case.sound(root)
    case.finish(root)
    return status


def run(half, chances):
    """Kill in the first (0) or second (1) half of the changes, then `chances` times with threads,
    where a number means another moment each time.
    """
    with case_of(CAMERAS) as case:
        root = case.copy()
        count = total_changes(root)
        case.finish(root)
        assert count > 30
        numbers = range(1, count // 2) if half == 0 else range(count // 2, count + 1)
        killed = [check(case, number) for number in numbers]
        assert killed.count(-signal.SIGKILL) >= len(numbers) - 1
        chance = random.Random(7)
        for number in chance.sample(range(1, count), chances):
            check(case, number, threads=4)
    print("ok")
