"""A conversion killed after each of its changes to the disk goes on to the same bytes; at every
moment the dataset has its name.

Runs on a small dataset of its own. Each attempt is a forked process that ends by SIGKILL.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

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
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            kill_at(number)
            convert(Options(root=root, name=root.name), threads)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_child(function):
    """Run in a forked process, so that this one stays free of threads; its status must be 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def total_changes(root):
    """How many changes one undisturbed conversion makes."""
    reading, writing = os.pipe()

    def count():
        counter = kill_at(0)
        convert(Options(root=root, name=root.name))
        os.write(writing, str(counter[0]).encode())

    in_child(count)
    return int(os.read(reading, 32))


def check(base, source, wanted, before, number, threads=1):
    """Killed, then run again: complete, byte for byte."""
    root = base / "arm"
    shutil.copytree(source, root)
    status = attempt(root, number, threads)
    assert status in (0, -signal.SIGKILL), status
    assert tree(root) in (before, wanted), "the dataset was neither the old nor the new one"
    in_child(lambda: convert(Options(root=root, name=root.name)))
    assert tree(root) == wanted and tree(base / "arm_old") == before
    left = sorted(p.name for p in base.iterdir())
    assert left == ["arm", "arm_old"], left
    for path in base.iterdir():
        shutil.rmtree(path)
    return status


def run(half, chances):
    """Kill in the first (0) or second (1) half of the changes, then `chances` times with threads,
    where a number means another moment each time.
    """
    memory = Path("/dev/shm")  # syncing is not what is looked at here
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        base = Path(folder)
        source, made = base / "source", base / "runs"
        in_child(lambda: write_clips(source, CAMERAS))
        before = tree(source)
        shutil.copytree(source, base / "arm")
        total = total_changes(base / "arm")
        wanted = tree(base / "arm")
        assert total > 30 and "meta/tasks.parquet" in wanted
        made.mkdir()
        numbers = range(1, total // 2) if half == 0 else range(total // 2, total + 1)
        killed = [check(made, source, wanted, before, number) for number in numbers]
        assert killed.count(-signal.SIGKILL) >= len(numbers) - 1
        chance = random.Random(7)
        for number in chance.sample(range(1, total), chances):
            check(made, source, wanted, before, number, threads=4)
    print("ok")
