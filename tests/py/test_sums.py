"""Check sums of video files: what they cover, where they lie, whom they trust."""

import os
import shutil
import sys

import numpy as np
import pytest
from demo_sets import DEMO, FRONT, ROOT, video
from reelpool import errors, sums


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def clip(tmp_path):
    """A copy of a clip that may be changed."""
    return shutil.copy(DEMO / "clips/h264.mp4", tmp_path / "a.mp4")


def damage(path, at, bit=0x10):
    """Flip a bit; size and modification time stay, as when a disk rots."""
    before = os.stat(path)
    with open(path, "r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ bit]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def crc32c(data):
    """The definition, bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_each_picture_has_its_sum(clip):
    sys.path.insert(0, str(DEMO.parents[2] / "tests/data"))
    from make_damaged import samples

    found = sums.compute(clip)
    with open(clip, "rb") as stream:
        data = stream.read()
    wanted = [crc32c(data[at : at + size]) for at, size in samples(data)]
    assert found.values.tolist() == wanted
    assert (found.path, found.size) == (os.path.realpath(clip), len(data))
    at = data.index(b"moov") - 4
    assert found.header == crc32c(data[at : at + int.from_bytes(data[at : at + 4], "big")])


def test_what_is_stored_is_loaded(clip, cache):
    assert sums.load(clip) is None
    kept = sums.compute(clip)
    place = sums.store(kept)
    assert place == sums.stored_at(clip) and cache in place.parents
    assert sums.load(clip).data == kept.data and sums.load(clip).is_of(kept.path)
    assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [p.name for p in place.parent.iterdir()] == [place.name]  # no part is left over
    link = os.path.join(os.path.dirname(clip), "link.mp4")
    os.symlink(clip, link)
    assert sums.load(link).data == kept.data  # the real path counts
    assert sums.forget(clip) and sums.load(clip) is None and not sums.forget(clip)


def test_another_version_of_the_file_is_stale(clip):
    sums.store(sums.compute(clip))
    os.utime(clip, ns=(0, os.stat(clip).st_mtime_ns + 1))
    assert not sums.load(clip).is_of(clip)
    sums.store(sums.compute(clip))
    assert sums.load(clip).is_of(clip)
    with open(clip, "ab") as stream:
        stream.write(b"\0")
    assert not sums.load(clip).is_of(clip)
    os.remove(clip)
    assert not sums.load(clip).is_of(clip)


def test_damaged_or_exchanged_sums_are_refused(clip, tmp_path):
    place = sums.store(sums.compute(clip))
    damage(place, 60)
    with pytest.raises(errors.FormatError, match="check sums"):
        sums.load(clip)
    other = shutil.copy(DEMO / "clips/vp9.mp4", tmp_path / "b.mp4")
    place.write_bytes(sums.compute(other).data)
    with pytest.raises(errors.FormatError, match="of another file"):
        sums.load(clip)


def test_a_folder_that_others_can_write_is_not_trusted(clip):
    kept = sums.compute(clip)
    sums.store(kept)
    assert sums.files_for([os.fsencode(clip)]) == [os.fsencode(sums.stored_at(clip))]
    os.chmod(sums.folder(), 0o777)
    assert sums.files_for([os.fsencode(clip)]) == [None]
    assert sums.load(clip) is None
    with pytest.raises(errors.StorageError, match="written by others"):
        sums.store(kept)


def test_without_sums_nothing_is_looked_for(clip):
    assert sums.files_for([os.fsencode(clip)] * 3) == [None] * 3


def test_what_cannot_be_summed_up(tmp_path):
    with pytest.raises(errors.NotFoundError):
        sums.compute(tmp_path / "nothing.mp4")
    (tmp_path / "text.mp4").write_text("no video at all, but long enough for a box header")
    with pytest.raises(errors.FormatError):
        sums.compute(tmp_path / "text.mp4")


def test_one_flipped_bit_changes_one_sum(tmp_path):
    path = shutil.copy(video(ROOT, FRONT), tmp_path / "front.mp4")
    os.chmod(path, 0o644)
    before = sums.compute(path)
    damage(path, 20_000)
    after = sums.compute(path)
    assert np.count_nonzero(before.values != after.values) == 1
    assert (before.header, before.mtime_ns) == (after.header, after.mtime_ns)
