"""Check sums of video files: what they cover, where they lie, whom they trust."""

import os
import random
import shutil
import sys

import numpy as np
import pytest
import reelpool
from demo_sets import DEMO, FRAMES, FRONT, ROOT, array, copy_demo, open_demo, truth, video
from reelpool import errors, sums, verify
from reelpool.video import VideoDecoder

sys.path.insert(0, str(DEMO.parents[2] / "tests/data"))
import make_damaged

CODECS = ("av1", "h264", "hevc", "mpeg4", "vp9")


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
    found = sums.compute(clip)
    with open(clip, "rb") as stream:
        data = stream.read()
    wanted = [crc32c(data[at : at + size]) for at, size in make_damaged.samples(data)]
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


def test_files_just_written_are_kept(clip):
    assert sums.keep([clip]) == 1 and sums.load(clip).is_of(clip)


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
    path = os.fsencode(clip)
    assert sums.with_places([path]) == [(path, os.fsencode(sums.stored_at(clip)))]
    os.chmod(sums.folder(), 0o777)
    assert sums.with_places([path]) == [path]
    assert sums.load(clip) is None
    with pytest.raises(errors.StorageError, match="written by others"):
        sums.store(kept)


def test_without_sums_nothing_is_looked_for(clip):
    assert sums.with_places([os.fsencode(clip)] * 3) == [os.fsencode(clip)] * 3


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


# -- reading --


def outcomes(path, clean):
    """Per picture of a file read by itself: "right", "wrong", or the error."""
    try:
        decoder = VideoDecoder(path)
    except errors.ReelpoolError as error:
        return [error] * len(clean)
    found = []
    for number in range(len(clean)):
        try:
            same = np.array_equal(decoder.read(np.array([number]))[0], clean[number])
            found.append("right" if same else "wrong")
        except errors.ReelpoolError as error:
            found.append(error)
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_flipped_bits_give_an_error_or_right_pixels(tmp_path, codec):
    """The reason for sums: whatever bit flips, no other picture comes out."""
    path = str(tmp_path / "clip.mp4")
    shutil.copy(DEMO / f"clips/{codec}.mp4", path)
    with open(path, "rb") as stream:
        data = stream.read()
    count = len(make_damaged.samples(data))
    clean = VideoDecoder(path).read(np.arange(count))
    sums.store(sums.compute(path))
    start, end = make_damaged.find(data, "mdat")
    rng = random.Random(codec)
    for _ in range(24):
        at = rng.randrange(start, end)
        damage(path, at, 1 << rng.randrange(8))
        hit = [i for i, (o, n) in enumerate(make_damaged.samples(data)) if o <= at < o + n]
        found = outcomes(path, clean)
        assert "wrong" not in found
        failed = [e for e in found if e != "right"]
        assert bool(failed) == bool(hit)  # a byte between the samples does no harm
        for error in failed:
            assert isinstance(error, errors.DecodeError) and "checksum differs" in str(error)
            assert error.offset <= at < error.offset + error.length and error.file == path
        with open(path, "r+b") as stream:
            stream.write(data)
        made = sums.load(path)
        os.utime(path, ns=(made.mtime_ns, made.mtime_ns))
    assert outcomes(path, clean) == ["right"] * count


def test_a_dataset_reads_past_the_damage(tmp_path):
    root = copy_demo(tmp_path / "demo")
    assert verify.check(root, write_sums=True).ok
    path = video(root, FRONT)
    at, size = make_damaged.samples(path.read_bytes())[17]
    damage(path, at + size // 2)
    dataset = open_demo(root)
    good = []
    for row in range(48):
        try:
            item = dataset[row]
        except errors.DecodeError as error:
            assert (error.episode, error.camera) == (0, FRONT)
            assert (error.offset, error.length) == (at, size) and error.frame == row
            assert "checksum differs" in str(error)
            assert f"reelpool verify {root} --episode 0 --level decode" in str(error)
        else:
            assert np.array_equal(array(item[FRONT]), truth()[FRONT][row])
            good.append(row)
    assert 17 not in good and len(good) >= 46
    stats = dataset.stats()
    assert stats["checked"] > 48 and stats["sums_stale"] == 0
    damage(path, at + size // 2)  # right again: read again, and right
    assert np.array_equal(array(dataset[17][FRONT]), truth()[FRONT][17])


def test_a_stream_checks_each_packet(tmp_path):
    root = copy_demo(tmp_path / "demo")
    verify.check(root, write_sums=True)
    loader = reelpool.Loader(open_demo(root), 16, shuffle=True, num_threads=2)
    assert sum(len(batch["index"]) for batch in loader) == FRAMES
    assert loader.stats()["checked"] >= 2 * FRAMES
    loader.close()
    path = video(root, FRONT)
    at, _ = make_damaged.samples(path.read_bytes())[30]
    damage(path, at)
    loader = reelpool.Loader(open_demo(root), 16, shuffle=True, num_threads=2)
    with pytest.raises(errors.DecodeError, match="checksum differs"):
        list(loader)
    loader.close()


@pytest.mark.parametrize("change", ["touched", "sums damaged", "sums gone"])
def test_without_valid_sums_reads_go_on_unchecked(tmp_path, change):
    root = copy_demo(tmp_path / "demo")
    verify.check(root, write_sums=True)
    path = video(root, FRONT)
    if change == "touched":
        os.utime(path, ns=(1, 1))
    elif change == "sums damaged":
        damage(sums.stored_at(path), 50)
    else:
        sums.forget(path)
    dataset = open_demo(root)
    assert np.array_equal(array(dataset[5][FRONT]), truth()[FRONT][5])
    stats = dataset.stats()
    assert stats["sums_stale"] == (0 if change == "sums gone" else 1)
    assert stats["checked"] > 0  # the other camera's


def test_a_changed_header_is_refused(tmp_path):
    root = copy_demo(tmp_path / "demo")
    verify.check(root, write_sums=True)
    path = video(root, FRONT)
    damage(path, path.read_bytes().index(b"mvhd") + 8)
    with pytest.raises(errors.FormatError, match="checksum differs") as caught:
        open_demo(root)[5]
    assert caught.value.file == str(path)
