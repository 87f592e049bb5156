"""Memory, descriptors, threads and native objects stay level over many lives and batches."""

import gc
import os
import time

import pytest
import reelpool
from demo_sets import ROOT, WRIST, open_demo, video
from reelpool import _core
from reelpool.errors import ReelpoolError

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

# Bytes that the interpreter and the allocator may take meanwhile. A sanitizer keeps freed memory
# back and looks for leaks itself.
GROWTH = 1 << 40 if "libasan" in os.environ.get("LD_PRELOAD", "") else 8 << 20


def resident():
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def usage():
    gc.collect()
    return {
        "objects": _core.live_objects(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def settled(before):
    """`usage()` once nothing is more than before, or after a while."""
    for _ in range(100):  # the kernel lists a joined thread for a moment longer
        after = usage()
        if all(after[key] <= before[key] for key in after):
            break
        time.sleep(0.02)
    return after


def check_level(work, warm_up, rounds):
    """`work()` over and over leaves nothing behind.

    A leak grows in every pass; in the first ones allocators fill their pools, and which thread
    opened which decoder is chance.
    """
    for _ in range(warm_up):
        work()
    for _ in range(5):
        before, memory = usage(), resident()
        for _ in range(rounds):
            work()
        after = settled(before)
        grown = {key: after[key] - before[key] for key in after if after[key] > before[key]}
        if resident() - memory >= GROWTH:
            grown["memory"] = resident() - memory
        if not grown:
            return
    raise AssertionError(f"more in every pass: {grown}")


def test_loaders_made_used_and_closed():
    dataset = open_demo(cameras=[WRIST])

    def work():
        with reelpool.Loader(dataset, 8, shuffle=True, num_threads=2) as loader:
            for _, _batch in zip(range(2), loader):
                pass

    check_level(work, 10, 50)


def test_loaders_dropped_without_close():
    dataset = open_demo(cameras=[WRIST])

    def work():
        stream = iter(reelpool.Loader(dataset, 8, shuffle=True, num_threads=1))
        return next(stream)

    check_level(work, 10, 30)


def test_datasets_made_read_and_dropped():
    check_level(lambda: open_demo(cameras=[WRIST])[5], 10, 40)


def test_batches_of_one_loader():
    dataset = open_demo(cameras=[])
    with reelpool.Loader(dataset, 2, shuffle=True, num_threads=1) as loader:
        check_level(lambda: sum(len(batch["index"]) for batch in loader), 10, 30)
    # Further batches ahead keep decoded pictures, as many as the timing of a pass asks for.
    with reelpool.Loader(
        open_demo(cameras=[WRIST]), 6, shuffle=True, num_threads=2, prefetch_batches=1
    ) as loader:
        check_level(lambda: sum(len(batch["index"]) for batch in loader), 3, 12)


def test_items_and_lists():
    dataset = open_demo(cameras=[WRIST])

    def work():
        _ = dataset[7], dataset.__getitems__([1, 60, 120])

    check_level(work, 20, 200)


def test_errors():
    def work():
        with pytest.raises(ReelpoolError):
            reelpool.decode_video_frames(video(ROOT, WRIST), [0.05], 1e-4)
        with pytest.raises(ReelpoolError):
            reelpool.decode_video_frames(ROOT / "meta/info.json", [0.0], 1e-4)

    check_level(work, 20, 300)


def test_single_videos():
    def work():
        cache = reelpool.VideoDecoderCache()
        reelpool.decode_video_frames(video(ROOT, WRIST), [0.0, 1.0], 1e-4, decoder_cache=cache)

    check_level(work, 10, 60)


def test_kept_batches_are_given_back():
    dataset = open_demo(cameras=[WRIST])
    loader = reelpool.Loader(dataset, 8, num_threads=1)
    with loader:
        batches = list(loader)
    before = _core.live_objects()
    del batches
    gc.collect()
    assert _core.live_objects() < before
