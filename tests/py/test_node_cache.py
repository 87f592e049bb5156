"""The disk cache of a node as Python sees it: bytes or None, shared by processes, never an error.

What it survives on the disk is tested in C: tests/c/test_node_cache*.c.
"""

import gc
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from reelpool import errors
from reelpool._core import NodeCache, live_objects

KEY = "sha256-" + "ab" * 32
DATA = random.Random(1).randbytes(1_500_000)
SIZE = len(DATA)
BOUND = 1 << 30


def open_cache(folder, max_bytes=BOUND, **options):
    return NodeCache(folder, max_bytes, **{"keep_free": 0.0, **options})


def put(cache, offset, length):
    cache.store(KEY, SIZE, offset, memoryview(DATA)[offset : offset + length])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "obj"


def test_bytes_or_none(folder):
    cache = open_cache(folder)
    assert cache.read(KEY, SIZE, 0, 10) is None
    assert not folder.exists()  # nothing is made before the first store
    put(cache, 1000, 700_000)
    put(cache, 701_000, 10)
    assert cache.read(KEY, SIZE, 1000, 700_010) == DATA[1000:701_010]
    assert cache.read(KEY, SIZE, 262_000, 300) == DATA[262_000:262_300]
    assert cache.read(KEY, SIZE, 999, 2) is None
    assert cache.read(KEY, SIZE, 0, 0) == b""
    assert cache.stats() == {
        "hits": 3,
        "hit_bytes": 700_310,
        "misses": 2,
        "stored_bytes": 700_010,
        "declined_bytes": 0,
        "evicted": 0,
        "corrupt": 0,
        "waits": 0,
        "state": "on",
    }
    assert cache.trouble() is None
    assert (folder / "v1" / "ab" / KEY / "map").stat().st_mode & 0o777 == 0o600


def test_wrong_arguments(folder):
    with pytest.raises(ValueError, match="0 bytes"):
        NodeCache(folder, 0)
    for share in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="keep_free"):
            NodeCache(folder, 1, keep_free=share)
    with pytest.raises(TypeError):
        NodeCache(folder)
    cache = open_cache(folder)
    for key in ("short", "UPPER-CASE-KEY", "../../../etc/passwd", "k" * 81, "key-with\nnewline"):
        with pytest.raises(ValueError, match="a key is"):
            cache.read(key, 10, 0, 1)
        with pytest.raises(ValueError, match="a key is"):
            cache.store(key, 10, 0, b"a")
    for offset, length in ((-1, 2), (0, -1), (SIZE, 1), (2**62, 2**62)):
        for call in (cache.read, cache.claim, cache.release):
            with pytest.raises(ValueError, match="in a file of"):
                call(KEY, SIZE, offset, length)
    with pytest.raises(ValueError, match="in a file of"):
        cache.store(KEY, SIZE, SIZE - 2, b"abc")
    with pytest.raises(TypeError):
        cache.store(KEY, SIZE, 0, "text")
    with pytest.raises(TypeError):
        pickle.dumps(cache)
    assert not folder.exists()


def test_what_is_refused_is_told_once(folder):
    put(open_cache(folder), 0, 1000)
    (folder / "v1").chmod(0o777)
    cache = open_cache(folder)
    assert cache.read(KEY, SIZE, 0, 1000) is None
    put(cache, 0, 1000)
    trouble = cache.trouble()
    assert isinstance(trouble, errors.ReelpoolError)
    assert "writable by other users" in str(trouble) and str(folder) in str(trouble)
    assert cache.trouble() is None
    assert cache.stats()["state"] == "off"
    assert cache.claim(KEY, SIZE, 0, 1000)  # who asks is to fetch


def test_a_full_disk_is_no_error(folder):
    code = f"""
import resource, signal
from reelpool._core import NodeCache
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
cache = NodeCache({str(folder)!r}, 1 << 30, keep_free=0)
cache.store("loc-00000001", 1 << 20, 0, b"a" * 50_000)
cache.store("loc-00000001", 1 << 20, 50_000, b"b" * 200_000)
assert "File too large" in str(cache.trouble()), cache.trouble()
assert cache.read("loc-00000001", 1 << 20, 0, 50_000) == b"a" * 50_000
assert cache.read("loc-00000001", 1 << 20, 0, 200_000) is None
assert cache.stats()["state"] == "read-only"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_objects_and_descriptors_go(folder):
    gc.collect()
    alive, before = live_objects(), len(os.listdir("/proc/self/fd"))
    for number in range(5):
        cache = open_cache(folder)
        put(cache, number * 1000, 1000)
        assert cache.read(KEY, SIZE, 0, 1000 * (number + 1)) is not None
        del cache
    gc.collect()
    assert live_objects() == alive
    assert len(os.listdir("/proc/self/fd")) == before


def test_claims_of_two_caches(folder):
    ours, theirs = open_cache(folder), open_cache(folder)
    assert ours.claim(KEY, SIZE, 0, 5000)
    assert not theirs.claim(KEY, SIZE, 4999, 10)
    ours.release(KEY, SIZE, 0, 5000)
    assert theirs.claim(KEY, SIZE, 4999, 10)
    assert not ours.claim(KEY, SIZE, 0, 5000)
    put(theirs, 4999, 10)
    assert ours.claim(KEY, SIZE, 0, 5000)
    assert ours.stats()["waits"] == 1


def fetch_through(folder, seed, fetched):
    """Read every block of DATA through the cache, as a loader's process would."""
    cache = open_cache(folder)
    blocks = list(range(0, SIZE, 50_000))
    random.Random(seed).shuffle(blocks)
    while blocks:
        start = blocks.pop()
        length = min(50_000, SIZE - start)
        data = cache.read(KEY, SIZE, start, length)
        if data is None and cache.claim(KEY, SIZE, start, length):
            with fetched.get_lock():
                fetched.value += length
            put(cache, start, length)
            data = cache.read(KEY, SIZE, start, length)
        if data is None:
            blocks.insert(0, start)
        else:
            assert data == DATA[start : start + length]
    assert cache.trouble() is None


def test_processes_fetch_each_byte_once(folder):
    context = multiprocessing.get_context("spawn")
    fetched = context.Value("q", 0)
    processes = [
        context.Process(target=fetch_through, args=(folder, seed, fetched)) for seed in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert fetched.value == SIZE


FORKING = """
import os, signal, sys
from reelpool._core import NodeCache

key, data = "loc-00000001", bytes(range(256)) * 4000
cache = NodeCache(sys.argv[1], 1 << 30, keep_free=0)
cache.store(key, len(data), 0, data[:300_000])
assert cache.read(key, len(data), 0, 300_000) == data[:300_000]
pid = os.fork()
if pid == 0:
    code = 1
    try:
        assert cache.read(key, len(data), 100, 1000) == data[100:1100]
        assert cache.stats()["hits"] == 1  # its own
        assert cache.claim(key, len(data), 300_000, 1000)
        cache.store(key, len(data), 300_000, data[300_000:301_000])
        code = 0
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert cache.read(key, len(data), 0, 301_000) == data[:301_000]

pid = os.fork()
if pid == 0:
    try:
        assert cache.claim(key, len(data), 400_000, 1000)
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
assert cache.claim(key, len(data), 400_000, 1000)  # the claim of a dead process is none
"""


def test_a_forked_child_goes_on(folder):
    subprocess.run([sys.executable, "-c", FORKING, folder], check=True, timeout=60)


def test_threads(folder):
    cache = open_cache(folder)
    wrong = []

    def work(seed):
        draw = random.Random(seed)
        for _ in range(60):
            start = draw.randrange(SIZE)
            length = min(draw.randrange(1, 200_000), SIZE - start)
            data = cache.read(KEY, SIZE, start, length)
            if data is None:
                put(cache, start, length)
            elif data != DATA[start : start + length]:
                wrong.append((start, length))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and cache.trouble() is None
    assert cache.stats()["corrupt"] == 0


def test_the_bound_holds(folder):
    cache = open_cache(folder, 4 << 20)
    for number in range(12):
        cache.store(f"loc-{number:08x}", SIZE, 0, DATA)
    stats = cache.stats()
    held = sum(f.stat().st_blocks * 512 for f in Path(folder).rglob("*") if f.is_file())
    assert held <= (4 << 20) + (1 << 18)
    assert stats["declined_bytes"] > 0 and stats["evicted"] == 0  # all in use a moment ago
    assert stats["stored_bytes"] + stats["declined_bytes"] == 12 * SIZE
