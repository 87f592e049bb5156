"""Videos that are begun while sources are judged: the same result, and nothing left of a fault."""

import errno
import json
import os
import shutil
import threading

import pytest
from convert_sets import options, reference_fixture, tree  # noqa: F401
from reelpool.convert import head_start
from reelpool.convert.job import SPARE_BYTES, Job
from reelpool.convert.run import convert
from reelpool.convert.source import Source
from reelpool.errors import FormatError


@pytest.fixture(name="begun")
def begun_fixture(monkeypatch):
    """Scans wait until the first videos are whole; [(item, whether the plan was there)] of files
    made.
    """
    made, twice = [], threading.Event()
    real_fill, real_scan = Job.fill, Source.scan

    def fill(self, output, part, *inputs):
        try:
            return real_fill(self, output, part, *inputs)
        finally:
            made.append((output.item, bool(self.outputs())))
            if len(made) == head_start.FILES:
                twice.set()

    def scan(self, *arguments):
        assert twice.wait(60)
        return real_scan(self, *arguments)

    monkeypatch.setattr(Job, "fill", fill)
    monkeypatch.setattr(Source, "scan", scan)
    return made


def early(made):
    """Items of the files that were made before the plan."""
    return sorted(item for item, planned in made if not planned)


def test_the_first_videos_are_copied_while_sources_are_judged(tmp_path, reference, begun):
    """Each file is made once."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    assert convert(options(root), threads=2).files == 10
    assert early(begun) == ["video-0-000-000", "video-0-000-001"]
    assert len(begun) == len({item for item, _ in begun}) == 10
    assert tree(root) == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm", "arm_old"]


def test_one_thread_does_one_thing(tmp_path, reference, monkeypatch):
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    monkeypatch.setattr("reelpool.convert.job.HeadStart", None)
    convert(options(root), threads=1)
    assert tree(root) == wanted


def test_a_fault_leaves_nothing_of_them(tmp_path, reference, begun):
    """The source is as it was, no folder of the new dataset is there; mended, it goes on."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    file = root / "meta/episodes.jsonl"
    text = file.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    rows[-1]["length"] += 1
    info = json.loads((root / "meta/info.json").read_text())
    info["total_frames"] += 1
    (root / "meta/info.json").write_text(json.dumps(info))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = tree(root)
    with pytest.raises(FormatError, match="1 episode cannot be converted"):
        convert(options(root), threads=2)
    assert len(early(begun)) == 2
    assert tree(root) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["_work", "arm"]
    assert not list((tmp_path / "_work").rglob("*.lease"))
    shutil.rmtree(root)
    shutil.rmtree(tmp_path / "_work")
    shutil.copytree(source, root)
    convert(options(root), threads=2)
    assert tree(root) == wanted


def test_one_that_changed_since_is_copied_again(tmp_path, reference, monkeypatch, begun):
    """The plan knows another version of its source."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    waits, settle = Source.scan, threading.Lock()

    def scan(self, episode, *arguments):
        with settle:
            if episode == 0 and not early_touched:
                waits(self, 1, *arguments)  # until they are made
                touched = root / self.video_file(0, self.cameras[0])
                os.utime(touched, ns=(0, 1_700_000_000_000_000_000))
                early_touched.append(touched)
        return waits(self, episode, *arguments)

    early_touched = []
    monkeypatch.setattr(Source, "scan", scan)
    convert(options(root), threads=2)
    assert [item for item, _ in begun].count("video-0-000-000") == 2
    assert len(begun) == 11
    assert tree(root) == wanted


def test_one_that_fails_is_made_in_its_turn(tmp_path, reference, monkeypatch):
    """As a disk that was full for a moment."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    real, failed = Job.fill, []

    def fill(self, output, part, *inputs):
        if not self.outputs():
            failed.append(output.item)
            part.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, output, part, *inputs)

    monkeypatch.setattr(Job, "fill", fill)
    convert(options(root), threads=2)
    assert len(failed) > 0
    assert tree(root) == wanted


def test_a_disk_with_little_room_has_no_head_start(tmp_path, reference, monkeypatch):
    """The check of the whole plan comes before any byte."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    real, seen = os.statvfs, []

    def full(path):
        disk = real(path)
        if not seen:
            seen.append(path)
            return os.statvfs_result((*disk[:3], 1, 1, *disk[5:]))
        return disk

    made, fill = [], Job.fill

    def note(self, output, *rest):
        made.append(bool(self.outputs()))
        return fill(self, output, *rest)

    monkeypatch.setattr(head_start.os, "statvfs", full)
    monkeypatch.setattr(Job, "fill", note)
    convert(options(root), threads=2)
    assert made == [True] * 10
    assert tree(root) == wanted


def test_what_was_begun_needs_no_more_room(tmp_path, reference, monkeypatch, begun):
    """The free space must hold the rest only."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    files = [*root.rglob("*.mp4"), *root.rglob("*.parquet")]
    whole = sum(p.stat().st_size for p in files) + SPARE_BYTES
    real = os.statvfs

    def just_enough(path):
        parts = sum(p.stat().st_size for p in tmp_path.rglob("*.part"))
        free = whole - parts
        disk = real(path)
        return os.statvfs_result((disk[0], 1, *disk[2:4], free, *disk[5:]))

    monkeypatch.setattr(os, "statvfs", just_enough)
    convert(options(root), threads=2)
    assert len(early(begun)) == 2
    assert tree(root) == wanted
