"""While new files are on their way to the disk they are validated, but no names exchanged."""

import errno
import os
import shutil
import threading

import pytest
from convert_sets import options, reference_fixture, tree  # noqa: F401
from reelpool import verify
from reelpool.convert import durable, job, work
from reelpool.convert.ending import Ending
from reelpool.convert.job import Job
from reelpool.convert.run import convert, dry_run
from reelpool.errors import StorageError


def is_new_file(path):
    """Whether it is one of the new dataset that has no record yet."""
    return "arm_v30" in str(path) and str(path).endswith(durable.PART)


def test_validation_does_not_wait_for_the_disk_but_the_swap_does(tmp_path, reference, monkeypatch):
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    began, synced = threading.Event(), []
    real_validate, real_swap = Ending.validate, job.swap.swap

    def sync(path):
        if is_new_file(path):
            assert began.wait(60)
            synced.append(path)
        durable.sync(path)

    def validate(self, records):
        done = self._job.folder.done_items()
        assert not synced and not done & {o.item for o in self._job.outputs()}
        began.set()
        real_validate(self, records)

    def swap(target, built, old):
        assert len(synced) == 10
        assert not list(built.rglob(f"*{durable.PART}"))
        real_swap(target, built, old)

    monkeypatch.setattr(job, "sync", sync)
    monkeypatch.setattr(Ending, "validate", validate)
    monkeypatch.setattr(job.swap, "swap", swap)
    assert convert(options(root), threads=10).files == 10
    assert tree(root) == wanted


@pytest.mark.parametrize("links", [True, False])
def test_a_disk_that_fails_at_the_end_replaces_nothing(tmp_path, reference, monkeypatch, links):
    """Files may have their names, but no item is done: all of them are made again."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    real, failed = durable.sync, []

    def sync(path):
        if is_new_file(path):
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(path)

    def link(one, other):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(job, "sync", sync)
    monkeypatch.setattr(durable, "sync", sync)  # where there are no links, `publish` calls it
    if not links:
        monkeypatch.setattr(os, "link", link)
    with pytest.raises(StorageError) as caught:
        convert(options(root), threads=10)
    assert caught.value.status == errno.EIO and failed
    assert tree(root) == tree(source)
    built = root.with_name("arm_v30")
    assert not list(built.rglob(f"*{durable.PART}"))
    assert bool([*built.glob("data/*/*"), *built.glob("videos/*/*/*")]) == links
    state = tmp_path / "_work/arm/state"
    assert not [p for p in state.glob("*.done") if not p.name.startswith("scan-")]
    monkeypatch.undo()
    assert convert(options(root)).files == 10
    assert tree(root) == wanted


def test_files_are_made_where_there_are_no_links(tmp_path, reference, monkeypatch):
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")

    def link(one, other):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", link)
    convert(options(root), threads=3)
    assert tree(root) == wanted


def test_a_name_is_given_early_in_nobodys_place(tmp_path):
    part, path = tmp_path / "a.part", tmp_path / "a"
    part.write_text("mine")
    path.write_text("on the disk")
    assert not durable.name_early(part, path)
    assert path.read_text() == "on the disk"
    path.unlink()
    assert durable.name_early(part, path)
    assert path.read_text() == "mine"
    part.unlink()
    with pytest.raises(FileNotFoundError):
        durable.name_early(part, path)


def test_all_emptied_records_are_found_at_once(tmp_path, reference):
    """However many there are: a phase is run again a few times at most."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    begun = Job(options(root, episodes_per_batch=1))
    assert begun.begin()
    for item in begun.scan_steps():
        begun.scan(item)
    begun.folder.close()
    records = list(begun.folder.state.glob("scan-*.done"))
    assert len(records) == 6
    for path in records:
        path.write_bytes(b"")
    convert(options(root))
    assert tree(root) == wanted


@pytest.mark.parametrize("name", ["request.json", "manifest.json"])
def test_a_plan_that_a_power_cut_emptied_is_made_again(tmp_path, reference, name):
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    begun = Job(options(root))
    assert begun.begin()
    for item in begun.scan_steps():
        begun.scan(item)
    begun.settle_plan()
    begun.folder.close()
    assert (begun.options.work / name).stat().st_size > 0
    (begun.options.work / name).write_bytes(b"")
    convert(options(root))
    assert tree(root) == wanted


def test_no_record_of_a_file_before_the_plan_is_on_the_disk(tmp_path, reference, monkeypatch):
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    events = []
    real_sync, real_finish = work.sync, work.WorkFolder.finish

    def sync(path):
        real_sync(path)
        events.append(path.name)

    def finish(self, item, record):
        events.append(item)
        real_finish(self, item, record)

    monkeypatch.setattr(work, "sync", sync)
    monkeypatch.setattr(work.WorkFolder, "finish", finish)
    convert(options(root), threads=3)
    first = next(i for i, e in enumerate(events) if e.startswith(("data-", "video-")))
    assert events[:first][-3:] == ["request.json", "manifest.json", "arm"]
    assert tree(root) == wanted


def test_metadata_and_tables_do_not_wait_for_videos(tmp_path, reference, monkeypatch):
    """While a video is copied, what is known of the rest is written and judged."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    judged, frames, seen = threading.Event(), [], []
    slow = dry_run(options(root))[1][-1].item
    real_fill, real_judge, real_videos = Job.fill, Ending._judge_tables, verify.Check.videos

    def fill(self, output, part, *inputs):
        if output.item == slow:
            assert judged.wait(60)
        return real_fill(self, output, part, *inputs)

    def judge(self):
        report = real_judge(self)
        frames.append(report.frames)
        assert not self._job.all_whole(self._job.made())
        if seen:
            judged.set()
        return report

    def videos(self, progress=None, files=None):
        real_videos(self, progress, files)
        seen.append(set(files))
        if frames:
            judged.set()

    monkeypatch.setattr(Job, "fill", fill)
    monkeypatch.setattr(Ending, "_judge_tables", judge)
    monkeypatch.setattr(verify.Check, "videos", videos)
    convert(options(root), threads=2)
    assert frames[0] > 0 and len(seen) > 1
    files = [rel for some in seen for rel in some]
    assert sorted(files) == sorted(rel for rel in wanted if rel.endswith(".mp4"))
    assert tree(root) == wanted


def test_a_video_that_came_out_another_way_is_described_anew(tmp_path, reference, monkeypatch):
    """What was foreseen of it counts no longer."""
    source, wanted = reference
    root = shutil.copytree(source, tmp_path / "arm")
    real, described = Job.video_records, []

    def records(self):
        found = real(self)
        if not described:
            first = next(iter(found.values()))
            first["spans"] = [[[1, 7], end] for _, end in first["spans"]]
        described.append(found)
        return found

    monkeypatch.setattr(Job, "video_records", records)
    convert(options(root), threads=2)
    assert len(described) == 2
    assert tree(root) == wanted
