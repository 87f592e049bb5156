"""Single files: decode_video_frames and VideoDecoderCache, on the embedded clips."""

import os
import pickle
import shutil
import struct
import threading

import numpy as np
import pytest
import reelpool
from demo_sets import DEMO, FRONT, ROOT, STARTS, WRIST, array, truth, video
from reelpool import VideoDecoderCache, decode_video_frames
from reelpool.errors import (
    DatasetChangedError,
    FormatError,
    FrameTimestampError,
    NotFoundError,
    ReelpoolError,
    UnsupportedMediaError,
)

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

CLIPS = sorted((DEMO / "clips").glob("*.mp4"))
AV1 = video(ROOT, FRONT)  # episodes 0 and 1, 10 frames a second
TOL = 1e-4


@pytest.mark.parametrize("camera", [FRONT, WRIST])
def test_frames_in_query_order_with_repeats(camera):
    numbers = [5, 0, 91, 5, 4, 60]
    got = decode_video_frames(video(ROOT, camera), [n / 10 for n in numbers], TOL, None, True)
    assert got.dtype == torch.uint8 and isinstance(got, torch.Tensor)
    assert np.array_equal(array(got), truth()[camera][numbers])
    floats = decode_video_frames(str(video(ROOT, camera)), [n / 10 for n in numbers], TOL)
    assert floats.dtype == torch.float32
    assert torch.equal(floats, got.float() / 255)


def test_results_are_writable_and_their_own():
    first = decode_video_frames(AV1, [0.0], TOL, return_uint8=True)
    first.zero_()
    again = decode_video_frames(AV1, [0.0], TOL, return_uint8=True)
    assert np.array_equal(array(again), truth()[FRONT][:1])


def test_timestamps_of_any_sequence():
    for times in ((0.1, 0.2), np.array([0.1, 0.2]), np.array([0.1, 0.2], np.float32),
                  torch.tensor([0.1, 0.2])):  # fmt: skip
        got = decode_video_frames(AV1, times, TOL, return_uint8=True)
        assert np.array_equal(array(got), truth()[FRONT][1:3])


def test_tolerance():
    near = decode_video_frames(AV1, [0.1 + 0.9e-3], 1e-3, return_uint8=True)
    assert np.array_equal(array(near), truth()[FRONT][1:2])
    with pytest.raises(FrameTimestampError, match=r"0\.12") as caught:
        decode_video_frames(AV1, [0.1, 0.12], 1e-3)
    error = caught.value
    assert isinstance(error, ValueError) and error.file == str(AV1)
    assert (error.time, error.nearest) == pytest.approx((0.12, 0.1))
    with pytest.raises(FrameTimestampError):
        decode_video_frames(AV1, [9.2], TOL)  # the first moment past the end
    for bad in (-1e-9, float("nan"), "1", None):
        with pytest.raises(ValueError, match="tolerance_s"):
            decode_video_frames(AV1, [0.0], bad)
    with pytest.raises(FrameTimestampError):
        decode_video_frames(AV1, [1e300], TOL)
    assert decode_video_frames(AV1, [0.04], np.float32(0.05)).shape[0] == 1
    last = decode_video_frames(AV1, [9.1], TOL, return_uint8=True)
    assert np.array_equal(array(last), truth()[FRONT][[STARTS[2] - 1]])


@pytest.mark.parametrize("times", [[], [-0.1], [0.0, -1e-9], [float("nan")], [float("inf")]])
def test_times_that_cannot_be(times):
    with pytest.raises(ValueError):
        decode_video_frames(AV1, times, TOL)


def test_arguments():
    for backend in ("torchcodec", "pyav", "video_reader"):
        assert decode_video_frames(AV1, [0.0], TOL, backend).shape == (1, 3, 240, 320)
    with pytest.raises(ValueError, match="decord"):
        decode_video_frames(AV1, [0.0], TOL, "decord")
    with pytest.raises(ValueError, match="'cuda:N'"):
        decode_video_frames(AV1, [0.0], TOL, device="gpu")
    with pytest.raises(UnsupportedMediaError) as caught:
        decode_video_frames("https://host/a.mp4?token=secret", [0.0], TOL)
    assert "secret" not in str(caught.value)


def test_files_that_cannot_be(tmp_path):
    with pytest.raises(NotFoundError) as caught:
        decode_video_frames(tmp_path / "none.mp4", [0.0], TOL)
    assert caught.value.file == str(tmp_path / "none.mp4")
    (tmp_path / "text.mp4").write_text("no video " * 100)
    with pytest.raises(FormatError):
        decode_video_frames(tmp_path / "text.mp4", [0.0], TOL)
    with pytest.raises(ReelpoolError):
        decode_video_frames(tmp_path, [0.0], TOL)
    with pytest.raises(NotFoundError):
        decode_video_frames("", [0.0], TOL)


def test_a_working_folder_that_is_gone(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(NotFoundError):
        decode_video_frames("a.mp4", [0.0], TOL)
    assert decode_video_frames(AV1, [0.0], TOL).shape[0] == 1


def test_colour_video_has_no_depth_codes():
    with pytest.raises((ReelpoolError, ValueError)):
        decode_video_frames(AV1, [0.0], TOL, is_depth=True)


@pytest.mark.parametrize("clip", CLIPS, ids=lambda p: p.stem)
def test_decoders_by_number(clip):
    decoder = VideoDecoderCache().get_decoder(clip)
    meta = decoder.metadata
    assert meta.codec == clip.stem and meta.num_frames >= 2 and meta.width > 0 < meta.height
    assert meta.average_fps == pytest.approx(meta.num_frames / meta.duration_seconds)
    last = meta.num_frames - 1
    frames = decoder.get_frames_at([0, last, -1, 1])
    assert frames.data.shape == (4, 3, meta.height, meta.width)
    assert frames.data.dtype == torch.uint8 and torch.equal(frames.data[1], frames.data[2])
    seconds = array(frames.pts_seconds)
    assert seconds.dtype == np.float64 and seconds[0] <= seconds[3] <= seconds[1] == seconds[2]
    same = decode_video_frames(clip, [seconds[1]], TOL, return_uint8=True)
    assert torch.equal(same[0], frames.data[1])
    for bad in ([last + 1], [-last - 2], [2**70]):
        with pytest.raises(IndexError):
            decoder.get_frames_at(bad)
    for bad in ([1.5], ["1"], [[1]], 1):
        with pytest.raises(TypeError):
            decoder.get_frames_at(bad)
    assert torch.equal(decoder.get_frames_at(np.array([last])).data[0], frames.data[1])
    with pytest.raises(ValueError, match="empty"):
        decoder.get_frames_at([])


# -- the cache --


def test_least_recently_used_goes_first():
    cache = VideoDecoderCache(max_size=2)
    a, b, c = CLIPS[:3]
    first = cache.get_decoder(a)
    cache.get_decoder(b)
    assert cache.get_decoder(str(a)) is first
    cache.get_decoder(c)
    assert a in cache and str(c) in cache and b not in cache and cache.size() == 2
    assert (cache.hits, cache.misses, cache.evictions) == (1, 3, 1)
    assert cache.stats() == {"hits": 1, "misses": 3, "evictions": 1, "hit_rate": 0.25, "size": 2}
    cache.get_decoder(b)
    assert a not in cache
    assert first.get_frames_at([0]).data.shape[0] == 1  # evicted, and valid for its holder
    cache.clear()
    assert cache.size() == 0 and VideoDecoderCache().stats()["hit_rate"] == 0


def test_max_size(monkeypatch):
    name = "LEROBOT_VIDEO_DECODER_CACHE_SIZE"
    monkeypatch.delenv(name, raising=False)
    assert VideoDecoderCache().max_size == 100 and VideoDecoderCache(None).max_size is None
    for bad in (0, -1, 1.5, "3"):
        with pytest.raises(ValueError, match="max_size"):
            VideoDecoderCache(bad)
    for text, size in [("7", 7), ("none", None), ("unbounded", None), ("-1", None)]:
        monkeypatch.setenv(name, text)
        assert VideoDecoderCache().max_size == size
    monkeypatch.setenv(name, "many")
    with pytest.raises(ValueError, match=name):
        VideoDecoderCache()
    assert VideoDecoderCache(3).max_size == 3
    with pytest.raises(ValueError, match="'cuda:N'"):
        VideoDecoderCache(3, device="cuda:")


def test_shared_counters_and_pickles():
    counters = torch.zeros(3, dtype=torch.int64)
    one, two = VideoDecoderCache(1, counters), VideoDecoderCache(1, counters)
    for cache in (one, two):
        cache.get_decoder(CLIPS[0])
        cache.get_decoder(CLIPS[1])
        cache.get_decoder(CLIPS[1])
    assert counters.tolist() == [2, 4, 2] and one.hits == two.hits == 2
    copy = pickle.loads(pickle.dumps(one))
    assert copy.max_size == 1 and copy.size() == 0 and copy.get_decoder(CLIPS[0])
    decoder = copy.get_decoder(CLIPS[0])
    frames = decoder.get_frames_at([1]).data
    assert torch.equal(pickle.loads(pickle.dumps(decoder)).get_frames_at([1]).data, frames)


def test_own_cache_is_used_and_failures_are_not_kept(tmp_path):
    cache = VideoDecoderCache()
    decode_video_frames(AV1, [0.0], TOL, decoder_cache=cache)
    decode_video_frames(AV1, [0.1], TOL, decoder_cache=cache)
    assert (cache.hits, cache.misses) == (1, 1) and AV1 in cache
    for _ in range(2):
        with pytest.raises(NotFoundError):
            decode_video_frames(tmp_path / "x.mp4", [0.0], TOL, decoder_cache=cache)
    assert (cache.misses, cache.size()) == (3, 1)


@pytest.mark.parametrize("how", ["replace", "rewrite", "same size and time"])
def test_a_file_that_was_replaced_is_opened_anew(tmp_path, how):
    """Recording over a file and reading on is no damage: the new file's frames come."""
    path, cache = tmp_path / "a.mp4", VideoDecoderCache()
    front, wrist = video(ROOT, FRONT).read_bytes(), video(ROOT, WRIST).read_bytes()
    room = len(wrist) - len(front)  # both files end up equally long
    path.write_bytes(front + struct.pack(">I4s", room, b"free") + bytes(room - 8))
    for pixels in (True, False):
        got = decode_video_frames(path, [0.3], TOL, None, pixels, decoder_cache=cache)
    assert np.array_equal(array(got)[0], np.float32(truth()[FRONT][3]) / np.float32(255))
    held, was = cache.get_decoder(path), path.stat()
    if how == "rewrite":
        path.write_bytes(wrist)
    else:
        new = tmp_path / "new.mp4"
        new.write_bytes(wrist)
        if how == "same size and time":
            os.utime(new, ns=(was.st_atime_ns, was.st_mtime_ns))
            assert new.stat().st_size == was.st_size
        new.replace(path)
    got = decode_video_frames(path, [0.3], TOL, None, True, decoder_cache=cache)
    assert np.array_equal(array(got), truth()[WRIST][[3]])
    assert cache.get_decoder(path) is not held and cache.size() == 1
    assert (cache.misses, cache.evictions) == (2, 0)
    path.unlink()
    with pytest.raises(NotFoundError):
        decode_video_frames(path, [0.3], TOL, decoder_cache=cache)
    assert path not in cache


def test_a_held_decoder_never_mixes_two_files(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(video(ROOT, FRONT).read_bytes())
    decoder = VideoDecoderCache().get_decoder(path)  # has read the index, but no picture
    path.write_bytes(video(ROOT, WRIST).read_bytes())
    with pytest.raises(DatasetChangedError) as caught:
        decoder.get_frames_at([0])
    assert caught.value.file == str(path)


def test_relative_paths_and_a_change_of_folder(tmp_path, monkeypatch):
    cache = VideoDecoderCache()
    for folder, camera in (("one", FRONT), ("two", WRIST)):
        (tmp_path / folder).mkdir()
        shutil.copyfile(video(ROOT, camera), tmp_path / folder / "a.mp4")
    monkeypatch.chdir(tmp_path / "one")
    held = cache.get_decoder("a.mp4")
    monkeypatch.chdir(tmp_path / "two")
    got = decode_video_frames("a.mp4", [0.3], TOL, None, True, decoder_cache=cache)
    assert np.array_equal(array(got), truth()[WRIST][[3]])
    assert np.array_equal(array(held.get_frames_at([3]).data), truth()[FRONT][[3]])


def test_threads_share_a_cache():
    cache, wrong = VideoDecoderCache(max_size=1), []

    def work(camera, seed):
        rng = np.random.default_rng(seed)
        for _ in range(6):
            numbers = rng.integers(0, STARTS[2], 3)
            got = decode_video_frames(
                video(ROOT, camera), numbers / 10, TOL, return_uint8=True, decoder_cache=cache
            )
            if not np.array_equal(array(got), truth()[camera][numbers]):
                wrong.append((camera, numbers))

    truth()
    threads = [threading.Thread(target=work, args=(c, s)) for s in (1, 2) for c in (FRONT, WRIST)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.size() == 1


def test_a_forked_child_decodes():
    want = decode_video_frames(AV1, [0.3, 4.0], TOL, return_uint8=True)
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        status = 1
        try:
            again = decode_video_frames(AV1, [0.3, 4.0], TOL, return_uint8=True)
            status = int(not np.array_equal(array(again), array(want)))
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def test_names_at_the_top():
    assert reelpool.decode_video_frames is decode_video_frames
