"""The HTTP client of the core against a server that misbehaves: the right bytes or a typed error.

tests/net/fault_server.py says what each fault is; time limits are shortened through options.
"""

import gc
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from reelpool import errors
from reelpool._core import HttpClient, live_objects

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))

from fault_server import FaultServer

DATA = random.Random(5).randbytes(300_000)
SMALL = random.Random(6).randbytes(20_000)
FAST = {
    "network_timeout": 20,
    "connect_timeout": 2,
    "stall_time": 10,
    "stall_speed": 512,
    "backoff": 0.002,
    "backoff_max": 0.02,
    "gate_margin": 0.01,
    "gate_jitter": 0.01,
    "probe_time": 0.05,
}
SHORT = FAST | {"network_timeout": 0.25}
STALLS = ("stall", "silent")

AGAIN = (  # only time passes
    "reset_before reset_body cut half_close stall silent trickle slow_head short "
    "limited limited_date rate busy_later s408 s425 s500 s502 s503 s504 s520"
).split()
ODD = "whole shifted no_range long gzip html two_lengths garbage".split()
CHANGED = "wrong_total new_etag s412 s416".split()
PROGRESS = {"reset_body", "cut", "stall", "trickle", "slow_head", "short"}
FATAL = {
    "s400": errors.RemoteError,
    "s401": errors.AuthError,
    "s403": errors.AuthError,
    "s404": errors.NotFoundError,
    "s410": errors.NotFoundError,
    "s418": errors.RemoteError,
    "huge_head": errors.RemoteError,
    "endless_line": errors.RemoteError,
}


@pytest.fixture(scope="module")
def one_server():
    with FaultServer({"/f": DATA, "/small": SMALL, "/empty": b""}) as server:
        yield server


@pytest.fixture
def server(one_server):
    one_server.reset()
    return one_server


@pytest.fixture
def client():
    client = HttpClient(**FAST)
    yield client
    client.close()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_exact_ranges_over_one_connection(server, client):
    for offset, length in [(0, 1), (0, len(DATA)), (17, 4096), (len(DATA) - 1, 1), (5, 0)]:
        got = client.read(server.url("/f"), offset, length)
        assert isinstance(got, bytearray) and got == DATA[offset : offset + length]
    assert len({seen.port for seen in server.log}) == 1
    stats = client.stats()
    assert (stats["requests"], stats["connections"], stats["resolves"]) == (4, 1, 1)
    assert stats["bytes_fetched"] == len(DATA) + 4096 + 2
    assert all(seen.headers["Accept-Encoding"] == "identity" for seen in server.log)
    assert not any("Authorization" in seen.headers for seen in server.log)


def test_size_and_version(server, client):
    info = client.size(server.url("/f"))
    assert info == {
        "size": len(DATA),
        "etag": server.etags["/f"],
        "last_modified": "Tue, 14 Jul 2026 10:15:00 GMT",
        "accepts_ranges": True,
    }
    assert client.size(server.url("/empty"))["size"] == 0
    server.accept_ranges = False
    info = client.size(server.url("/small"))
    assert info["size"] == len(SMALL) and not info["accepts_ranges"]


def test_whole_files_where_there_are_no_ranges(server, client):
    server.accept_ranges = False
    with pytest.raises(errors.RemoteError, match="the whole file instead of a range"):
        client.read(server.url("/small"), 0, 100)
    server.fault("cut", 2)
    got = client.read(server.url("/small"), 0, len(SMALL), size=len(SMALL), whole=True)
    assert got == SMALL
    with pytest.raises(ValueError, match="read whole"):
        client.read(server.url("/small"), 1, 5, size=len(SMALL), whole=True)
    server.fault("cut", None)  # always at the same byte: no new one
    with (
        pytest.raises(errors.RemoteTimeoutError),
        HttpClientOf(SHORT) as short,
    ):
        short.read(server.url("/small"), 0, len(SMALL), size=len(SMALL), whole=True)


class HttpClientOf:
    """A client with these options, closed at the end."""

    def __init__(self, options):
        self.client = HttpClient(**options)

    def __enter__(self):
        return self.client

    def __exit__(self, *exc):
        self.client.close()


@pytest.mark.parametrize("kind", AGAIN + ODD + CHANGED)
def test_two_faults_pass_unseen(server, kind):
    with HttpClientOf(FAST | ({"stall_time": 0.1} if kind in STALLS else {})) as client:
        check_two_faults(server, client, kind)


def check_two_faults(server, client, kind):
    assert client.read(server.url("/small"), 0, 10) == SMALL[:10]
    server.fault(kind, 2)
    assert client.read(server.url("/small"), 100, 15_000) == SMALL[100:15_100]
    retries = sum(client.stats()["retries"].values())
    if kind in ("reset_before", "half_close"):  # libcurl itself tries again on a kept connection
        assert retries in (1, 2)
    else:
        assert retries == (0 if kind in ("trickle", "slow_head") else 2)
    server.fault(kind, 2)
    assert client.size(server.url("/small"))["size"] == len(SMALL)


@pytest.mark.parametrize("kind", AGAIN + ODD + CHANGED + list(FATAL))
def test_a_fault_without_end(server, kind):
    """Bytes that come in spite of it are right; else the error is of the right class."""
    expected = FATAL.get(kind, errors.RemoteTimeoutError)
    expected = errors.RemoteError if kind in ODD else expected
    expected = errors.DatasetChangedError if kind in CHANGED else expected
    with HttpClientOf(SHORT | ({"stall_time": 0.05} if kind in STALLS else {})) as client:
        assert client.read(server.url("/small"), 0, 10) == SMALL[:10]
        server.fault(kind, None)
        if kind in PROGRESS:
            assert client.read(server.url("/small"), 100, 300) == SMALL[100:400]
            return
        with pytest.raises(expected) as caught:
            client.read(server.url("/small"), 100, 9000)
    assert type(caught.value) is expected
    assert caught.value.file == server.url("/small") and caught.value.offset == 100
    if kind in FATAL:
        assert len(server.log) == 2  # at once
    if kind[0] == "s" and kind[1:].isdigit():
        assert caught.value.status == int(kind[1:])


def test_new_bytes_forgive_what_came_before(server, client):
    """Three in a row end a call, not three in all."""
    for kind, times in [("gzip", 2), ("short", 1), ("new_etag", 2), ("gzip", 2), ("cut", 1)] * 2:
        server.fault(kind, times)
    assert client.read(server.url("/small"), 0, 10_000) == SMALL[:10_000]
    assert len(server.log) == 17


def test_mixed_faults_and_the_run_repeats(server):
    def run():
        server.reset()
        server.mix(11, 0.2, AGAIN + ODD + CHANGED)
        with HttpClientOf(FAST | {"stall_time": 0.05}) as client:
            chance = random.Random(3)
            for _ in range(80):
                offset = chance.randrange(len(DATA) - 3000)
                got = client.read(server.url("/f"), offset, 3000, len(DATA), server.etags["/f"])
                assert got == DATA[offset : offset + 3000]
        return [(seen.headers["Range"], seen.fault) for seen in server.log]

    first = run()
    assert sum(fault is not None for _, fault in first) > 15
    assert run() == first


def test_eight_threads_read_two_thousand_ranges(server, client):
    server.mix(2, 0.02, ["reset_before", "cut", "s503", "short", "limited"])
    url, chance = server.url("/f"), random.Random(9)
    places = [(chance.randrange(len(DATA) - 900), chance.randrange(1, 900)) for _ in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        read = pool.map(lambda place: client.read(url, *place), places)
        assert all(got == DATA[o : o + n] for got, (o, n) in zip(read, places))
    stats = client.stats()
    assert stats["resolves"] <= 1 + stats["retries"]["odd"] + stats["retries"]["network"]
    assert stats["bytes_fetched"] == sum(n for _, n in places)


def test_a_changed_file(server, client):
    url = server.url("/f")
    client.read(url, 0, 10)
    server.etags["/f"] = "other"
    with pytest.raises(errors.DatasetChangedError, match="another version"):
        client.read(url, 0, 10)
    assert len(server.log) == 4
    server.etags["/f"] = None
    with pytest.raises(errors.DatasetChangedError):  # the version is gone: not the same either
        client.read(url, 0, 10)
    with HttpClientOf(FAST) as fresh:  # pinned by the caller
        with pytest.raises(errors.DatasetChangedError):
            fresh.read(url, 0, 10, etag="first")
        with pytest.raises(errors.DatasetChangedError, match="another size"):
            fresh.read(url, 0, 10, size=len(DATA) + 1)
        assert fresh.read(url, 0, 10, last_modified="Tue, 14 Jul 2026 10:15:00 GMT") == DATA[:10]


def test_a_wait_the_server_asks_for(server, client):
    url = server.url("/f")
    server.fault("limited_long")
    with pytest.raises(errors.RemoteTimeoutError, match="a wait of 3600 s") as caught:
        client.read(url, 0, 10)
    assert caught.value.status == 429
    with pytest.raises(errors.RemoteTimeoutError, match="asks for a wait of"):  # the gate is shut
        client.read(url, 10, 10)
    assert len(server.log) == 1
    server.redirects["/later"] = lambda server, seen: (429, {"Retry-After": "1"})
    with HttpClientOf(FAST | {"network_timeout": 1.6}) as patient:
        with pytest.raises(errors.RemoteTimeoutError):
            patient.read(server.url("/later"), 0, 10)
        assert patient.stats()["gate_s"] >= 1
    assert len([seen for seen in server.log if seen.path == "/later"]) == 2


def test_a_quota_that_is_spent(server, client):
    server.fault("spent")
    assert client.read(server.url("/f"), 0, 10) == DATA[:10]
    with pytest.raises(errors.RemoteTimeoutError, match="asks for a wait of"):
        client.read(server.url("/f"), 0, 10)
    assert len(server.log) == 1


def test_an_origin_that_is_down_gets_probes_alone(server):
    server.fault("reset_before", None)
    with HttpClientOf(FAST | {"probe_time": 0.2, "backoff_max": 0.002}) as client:
        with ThreadPoolExecutor(8) as pool:
            reads = [pool.submit(client.read, server.url("/f"), i, 100) for i in range(8)]
            threading.Event().wait(1.2)
            asked = len(server.log)
            server.calm()
            assert all(read.result() == DATA[i : i + 100] for i, read in enumerate(reads))
        assert client.stats()["down_s"] > 0
    assert asked < 30  # 8 to find out, and a probe per 0.16 s or more; unbounded it were thousands


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/f"
        with (
            HttpClientOf(SHORT) as client,
            pytest.raises(errors.RemoteTimeoutError, match=r"requests; last: http://127\.0"),
        ):
            client.read(url, 0, 10)
    with HttpClientOf(SHORT) as client, pytest.raises(errors.RemoteTimeoutError):
        client.read("http://no-such-host.invalid/f", 0, 10)


def test_close_ends_the_calls_under_way(server):
    client = HttpClient(**FAST | {"stall_time": 60, "network_timeout": 60})
    server.fault("silent", None)
    with ThreadPoolExecutor(3) as pool:
        reads = [pool.submit(client.read, server.url("/f"), 0, 10) for _ in range(3)]
        while len(server.log) < 1:  # one asks, the others wait for what it finds out
            threading.Event().wait(0.01)
        client.close()
        for read in reads:
            with pytest.raises(errors.ClosedError):
                read.result(timeout=30)
    client.close()
    with pytest.raises(errors.ClosedError):
        client.read(server.url("/f"), 0, 10)
    assert client.stats() == {}


def test_keyboard_interrupt(server):
    server.fault("silent", None)
    script = (
        "import signal, sys; from reelpool._core import HttpClient\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may have it ignored
        "try: HttpClient(stall_time=600).read(sys.argv[1], 0, 10)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, server.url("/f")], stdout=subprocess.PIPE, text=True
    )
    while not server.log:
        threading.Event().wait(0.01)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"


FORK = """
import hashlib, os, sys
from reelpool._core import HttpClient
url, size, want = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ca = sys.argv[4] if len(sys.argv) > 4 else None
client = HttpClient(network_timeout=20, ca_file=ca)

def read(part, of):
    cuts = [size * i // of for i in range(of + 1)]
    return client.read(url, cuts[part], cuts[part + 1] - cuts[part])

def whole():
    return hashlib.sha256(b"".join(bytes(read(i, 3)) for i in range(3))).hexdigest()

def connections():
    # inodes of the connected sockets of this process
    with open("/proc/self/net/tcp") as table:
        connected = {line.split()[9] for line in list(table)[1:] if line.split()[3] == "01"}
    held = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if
            os.path.islink(f"/proc/self/fd/{n}")}
    return {inode for inode in connected if f"socket:[{inode}]" in held}

assert whole() == want
inherited = connections()
assert len(inherited) == 1
pipes = []
for child in range(4):
    r, w = os.pipe()
    if os.fork() == 0:
        os.close(r)
        os.write(w, hashlib.sha256(bytes(read(child, 4))).digest())
        assert whole() == want
        assert len(connections()) == 1 and not inherited & connections()
        os.write(w, b"+")
        client.close()
        os._exit(0)
    os.close(w)
    pipes.append(r)
assert whole() == want
for child, r in enumerate(pipes):
    got = b""
    while part := os.read(r, 100):
        got += part
    assert got == hashlib.sha256(bytes(read(child, 4))).digest() + b"+", got
    assert os.wait()[1] == 0
assert whole() == want
assert client.stats()["connections"] == 1, client.stats()
print("ok")
"""


def run_fork(url, *more):
    want = hashlib.sha256(DATA).hexdigest()
    command = [sys.executable, "-W", "ignore", "-c", FORK, url, str(len(DATA)), want, *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_fork(server):
    run_fork(server.url("/f"))
    # None is shared: a connection per process at least, more where one was made anew.
    assert len({seen.port for seen in server.log}) >= 5


FORK_WHILE_READING = """
import os, sys, threading
from reelpool._core import HttpClient
client, url, stop, read = HttpClient(network_timeout=20), sys.argv[1], threading.Event(), [0] * 4

def go_on(n):
    while not stop.is_set():
        assert len(client.read(url, 1000 * n, 50_000)) == 50_000
        read[n] += 1

threads = [threading.Thread(target=go_on, args=(n,)) for n in range(4)]
for thread in threads:
    thread.start()
first = bytes(client.read(url, 0, 1000))
for _ in range(25):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if client.read(url, 0, 1000) == first else 1)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join()
assert all(read), read
print("ok")
"""


@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="the sanitizer's allocator may hang in a child forked while other threads allocate",
)
def test_fork_while_others_read(server):
    command = [sys.executable, "-W", "ignore", "-c", FORK_WHILE_READING, server.url("/f")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_nothing_is_left():
    gc.collect()
    alive, fds = live_objects(), descriptors()
    server = FaultServer({"/f": DATA})
    for kind in (None, "cut", "reset_before", "s404", "html"):
        client = HttpClient(**SHORT)
        if kind:
            server.fault(kind, None)
        with ThreadPoolExecutor(4) as pool:
            for read in [pool.submit(client.read, server.url("/f"), 0, 5000) for _ in range(8)]:
                assert read.exception() is None or isinstance(read.exception(), OSError)
        server.calm()
        if kind == "cut":
            client.close()
        del client, read
        gc.collect()
    server.close()  # its ends of the connections are in this process too
    threading.Event().wait(0.2)
    assert live_objects() == alive
    assert descriptors() <= fds


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"network_timeout": 0}, "time limit"),
        ({"stall_time": -1}, "time limit"),
        ({"connect_timeout": float("nan")}, "time limit"),
        ({"max_redirects": 21}, "max_redirects"),
        ({"token": "x"}, "origin"),
        ({"token": "a b", "token_origin": "https://h"}, "token"),
        ({"token": "a\r\nX: y", "token_origin": "https://h"}, "token"),
        ({"token": "secret", "token_origin": "http://example.org"}, "allow_http"),
        ({"user_agent": "a\r\nX: y"}, "user_agent"),
    ],
)
def test_options_that_cannot_be_honoured(options, part):
    with pytest.raises(ValueError, match=part) as caught:
        HttpClient(**options)
    assert "secret" not in str(caught.value) and "a b" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "http://u:p@h/f", "http://h/\r\nX: y", "ftp://h/f", "h", ""]
)
def test_urls_that_are_refused(client, url):
    with pytest.raises(errors.RemoteError, match="the URL"):
        client.read(url, 0, 1)
    assert client.stats()["requests"] == 0


def test_ranges_outside_of_the_file(server, client):
    for place in [(-1, 5), (0, len(DATA) + 1), (len(DATA), 1), (2**62, 2**62)]:
        with pytest.raises((ValueError, MemoryError)):
            client.read(server.url("/f"), *place, size=len(DATA))
    with pytest.raises(ValueError, match="length"):
        client.read(server.url("/f"), 0, -1)
    with pytest.raises(errors.DatasetChangedError):  # the server has the last word on its size
        client.read(server.url("/f"), len(DATA) + 5, 10)
