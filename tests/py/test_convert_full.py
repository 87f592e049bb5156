"""A disk that is full, for real: whichever write comes upon it, pyarrow's own included."""

import errno
import os
import shutil
import subprocess

import pytest
from convert_sets import MIXED, tree, write_clips
from reelpool.__main__ import main
from reelpool.convert.ending import Ending
from reelpool.convert.job import Job, Options
from reelpool.convert.run import convert
from reelpool.errors import StorageError

STEP = 3 * 4096  # bytes: three pages, of which a file takes one at least


def options(root):
    return Options(root=root, name=root.name, episodes_per_batch=2)


@pytest.fixture
def disk(tmp_path):
    """A file system of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place],
                          capture_output=True, text=True, check=False)  # fmt: skip
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """(source with pictures in tables too, files of its conversion)."""
    base = tmp_path_factory.mktemp("reference")
    source = write_clips(base / "arm", MIXED, images=True)
    convert(Options(root=source, name="arm", out=base / "out"))
    return source, tree(base / "out")


def free_bytes(disk):
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def leave(disk, free):
    """Fill the disk but for `free` bytes."""
    with open(disk / "ballast", "wb") as stream:
        stream.write(b"x" * (free_bytes(disk) - free))


def names(disk):
    return sorted(p.name for p in disk.iterdir())


@pytest.mark.parametrize("threads", [1, 3])
def test_full_at_each_write(disk, reference, monkeypatch, threads):
    """A typed error, the source untouched, no part left over; with space the same bytes."""
    source, wanted = reference
    before = tree(source)
    monkeypatch.setattr(Job, "_check_space", lambda self: None)  # it would see it coming
    real = Ending.prepare

    def prepare(self):
        if threads == 1:  # one write after the other, and not metadata beside the first file
            self._until(self._job.all_whole)
        real(self)

    monkeypatch.setattr(Ending, "prepare", prepare)
    root, failed, free, places = disk / "arm", 0, 0, set()
    while failed == free // STEP:  # until all of it has room
        shutil.copytree(source, root)
        leave(disk, free)
        try:
            convert(options(root), threads)
        except StorageError as error:
            assert error.status == errno.ENOSPC and "Free some space" in str(error)
            assert tree(root) == before
            places.add(os.path.relpath(error.file, disk))
            failed += 1
            assert not [*disk.glob("arm_v30/**/*.part"), *disk.glob("_work/**/*.part")]
            assert not list(disk.glob("_work/**/*.lease"))
        (disk / "ballast").unlink()
        convert(options(root), threads)
        assert tree(root) == wanted and tree(disk / "arm_old") == before
        assert names(disk) == ["arm", "arm_old"]
        shutil.rmtree(root)
        shutil.rmtree(disk / "arm_old")
        free += STEP
    assert failed > 15, failed
    if threads == 1:  # several come upon it in any order
        for part in ("_work/arm/", "arm_v30/data", "arm_v30/videos", "arm_v30/meta"):
            assert any(place.startswith(part) for place in places), (part, sorted(places))


def test_seen_coming(disk, reference, capsys):
    """The command says how much is missing before it writes; with more space it goes on."""
    source, wanted = reference
    root = shutil.copytree(source, disk / "arm")
    assert main(["convert", str(root), "-q"]) == 3
    assert "GB are needed, 0.00 GB free\n  Free some space" in capsys.readouterr().err
    assert not list(disk.glob("arm_v30/**/*.*"))
    subprocess.run(["mount", "-o", "remount,size=200m", disk], check=True)
    assert main(["convert", str(root), "-q"]) == 0
    assert tree(root) == wanted
