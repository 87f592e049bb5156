"""New videos are compared with their sources, picture by picture, before they count."""

import json
import shutil

import pytest
import reelpool
from convert_sets import MIXED, tree, write_clips
from reelpool import sums, verify, verify_video
from reelpool.convert import copies
from reelpool.convert.job import Job, Options
from reelpool.convert.run import convert
from reelpool.errors import FormatError, StorageError


def flip(path, place):
    """Change one bit of a file's byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    return write_clips(tmp_path / "arm")


def planned(root):
    """A job whose sources were read, and its plan made."""
    job = Job(Options(root=root, name=root.name))
    assert job.begin()
    for item in job.scan_steps():
        job.scan(item)
    job.settle_plan()
    return job


def test_a_source_that_changes_after_the_plan_is_found(root):
    """Of the same size: a picture of a video, or a table."""
    before = tree(root)
    for rel in (f"videos/chunk-000/{next(iter(MIXED))}/episode_000001.mp4",
                "data/chunk-000/episode_000001.parquet"):  # fmt: skip
        job = planned(root)
        path = root / rel
        kept = path.read_bytes()
        rows, _ = reelpool._core.video_samples(str(path)) if rel.endswith("mp4") else (None, None)
        offset = int.from_bytes(rows[:8], "little") if rows else len(kept) // 2
        flip(path, offset + 20)
        with pytest.raises(StorageError, match=r"episode_000001.*has changed since the plan"):
            for item in job.write_steps():
                job.write(item)
        job.folder.close()
        path.write_bytes(kept)
        shutil.rmtree(job.options.work)
        shutil.rmtree(job.options.built)
    assert tree(root) == before


def test_a_copy_that_differs_is_no_result(root, monkeypatch):
    """The disk gives back another byte than was written: read back, it does not take the old one's
    place; otherwise the first read of that picture says so.
    """
    before, real = tree(root), Job.fill

    def concat(job, output, part, *inputs):
        if output.camera is None:
            return real(job, output, part, *inputs)
        check = copies.check_joined

        def worse(part, *rest, **options):
            rows, _ = reelpool._core.video_samples(str(part))
            flip(part, int.from_bytes(rows[:8], "little") + 20)
            return check(part, *rest, **options)

        monkeypatch.setattr("reelpool.convert.job.check_joined", worse)
        return real(job, output, part, *inputs)

    monkeypatch.setattr(Job, "fill", concat)
    with pytest.raises(StorageError, match="other bytes than were written"):
        convert(Options(root=root, name=root.name, validate="full"))
    assert tree(root) == before
    out = root.with_name("out")
    convert(Options(root=root, name=root.name, out=out, work_dir=root.with_name("work")))
    report = verify.check(out)
    assert {f.file for f in report.faults} == {
        p.relative_to(out).as_posix() for p in out.rglob("*.mp4")
    }


def test_an_index_that_differs_is_no_result(root, monkeypatch):
    """A picture at another time."""
    real = copies.check_joined

    def late(part, final, sources, planned, joined, read_back):
        moved = [e | {"offset": (e["offset"][0] + 1, e["offset"][1])} for e in joined]
        return real(part, final, sources, planned, moved, read_back)

    monkeypatch.setattr("reelpool.convert.job.check_joined", late)
    with pytest.raises(FormatError, match="index differs"):
        convert(Options(root=root, name=root.name))


def test_check_sums_of_the_new_videos_are_kept(root):
    result = convert(Options(root=root, name=root.name))
    videos = sorted(result.target.rglob("*.mp4"))
    assert videos and not result.notes
    for path in videos:
        found = sums.load(path)
        assert found is not None and found.is_of(path)
        assert (found.values == sums.compute(path).values).all()
    report = verify.check(result.target)
    assert report.ok and report.sums_known == len(videos)


def test_quick_validation_decodes_some_pictures_full_all(root, monkeypatch):
    seen, real = [], verify.Check

    def check(*arguments, **options):
        seen.append((options.get("spot"), real(*arguments, **options)))
        return seen[-1][1]

    monkeypatch.setattr(verify, "Check", check)
    convert(Options(root=root, name=root.name, out=root.with_name("quick")))
    convert(Options(root=root, name=root.name, out=root.with_name("full"), validate="full"))
    assert {spot for spot, _ in seen} == {8, None}
    quick, full = (sum(c.report.pictures for s, c in seen if s == spot) for spot in (8, None))
    assert 0 < quick < full


def test_spots_are_ends_of_files_and_of_episodes_spread_evenly(root):
    convert(Options(root=root, name=root.name))
    total = json.loads((root / "meta/info.json").read_text())["total_episodes"]
    some = verify.check(root, "index", spot=1)
    every = verify.check(root, "index")
    assert some.ok and every.ok and total > 2
    assert 2 * some.files <= some.pictures < every.pictures
    assert verify.check(root, "index", spot=total).pictures == every.pictures
    assert verify_video.Choices(False, 1.0, False, False, 1).spot is None
