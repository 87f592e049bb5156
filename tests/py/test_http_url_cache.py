"""Signed URLs that the processes of a node share: one resolves, the others read."""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from reelpool import errors
from test_http import DATA
from test_http_redirects import CANARY, NEAR, client_of, one_of, sign, two_origins

# tests/net is on the path since test_http
from hub_stand_in import Blob, StandIn  # isort: skip


SIZE = len(DATA)


@pytest.fixture(scope="module")
def pair():
    with two_origins({"/f": DATA}, {"/blob": DATA}) as both:
        yield both


hub, cdn = one_of("pair", 0), one_of("pair", 1)


def reads(url, folder, *pins, **options):
    """Read with a client of its own, as another process would; its stats."""
    with client_of(**NEAR | {"url_cache": str(folder)} | options) as client:
        assert client.read(url, 5, 100, *(pins or (SIZE,))) == DATA[5:105]
        return client.stats()


def entries(folder):
    return [path for path in Path(folder).glob("??/*") if len(path.name) == 64]


READER = """
import hashlib, json, random, sys
from concurrent.futures import ThreadPoolExecutor
from reelpool._core import HttpClient
number, folder, files = int(sys.argv[1]), sys.argv[2], json.load(open(sys.argv[3]))
client = HttpClient(url_cache=folder, allow_private_hosts=True, network_timeout=60)
sys.stdin.readline()  # all begin at once

def check(file):
    url, size, etag, want = file
    for cut in (0, size // 3):
        got = client.read(url, cut, size - cut, size, etag)
        assert cut > 0 or hashlib.sha256(got).hexdigest() == want, url

random.Random(number).shuffle(files)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(check, files))
print(json.dumps(client.stats()))
"""


def test_eight_processes_resolve_each_file_once(tmp_path):
    chance = random.Random(8)
    blobs = {f"videos/{n}.mp4": Blob(chance.randbytes(2000 + n)) for n in range(20)}
    with StandIn() as hub:
        sha = hub.add("owner/name").commit(blobs)
        hub.delay = 0.02
        files = [
            (f"{hub.endpoint}/datasets/owner/name/resolve/{sha}/{path}", size, digest, digest)
            for path, (size, _, digest) in ((p, b.facts()) for p, b in blobs.items())
        ]
        (tmp_path / "files").write_text(json.dumps(files))
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", READER, str(n), str(tmp_path / "url"), tmp_path / "files"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for n in range(8)
        ]  # fmt: skip
        for reader in readers:
            reader.stdin.write("\n")
            reader.stdin.flush()
        told = [json.loads(reader.communicate(timeout=120)[0]) for reader in readers]
        resolved = hub.requests("/resolve/")
    assert len(resolved) == 20 and len(set(resolved)) == 20
    assert sum(stats["resolves"] for stats in told) == 20
    assert sum(stats["resolves_cached"] for stats in told) == 140
    assert not any(stats["url_cache_errors"] for stats in told)
    assert len(entries(tmp_path / "url")) == 20 and not list(tmp_path.glob("url/??/*.*"))


def test_what_a_process_found_out_serves_the_next(hub, cdn, tmp_path):
    url = sign(hub, cdn, linked="sha-1", **{"X-Repo-Commit": "c1"})
    assert reads(url, tmp_path / "url")["resolves"] == 1
    stats = reads(url, tmp_path / "url", SIZE, "sha-1")
    assert (stats["resolves"], stats["resolves_cached"]) == (0, 1)
    assert len(hub.log) == 1 and len(cdn.log) == 2
    with client_of(**NEAR, url_cache=str(tmp_path / "url")) as client:
        assert client.size(url, SIZE)["x-repo-commit"] == "c1"
    assert len(hub.log) == 1
    (entry,) = entries(tmp_path / "url")
    facts = dict(line.split(" ", 1) for line in entry.read_text().splitlines())
    assert 0 < time.time() + 0.8 * 3600 - int(facts["fresh_ms"]) / 1000 < 60
    assert 0 < time.time() + 3600 - int(facts["expiry_ms"]) / 1000 < 60
    assert facts["size"] == str(SIZE) and facts["etag"] == "sha-1"
    assert entry.name == hashlib.sha256(url.encode()).hexdigest()


def test_what_is_past_its_time_is_resolved_again(hub, cdn, tmp_path):
    url = sign(hub, cdn, life_s=1)  # too short to be shared
    assert reads(url, tmp_path)["targets_expired"] == 0
    assert not entries(tmp_path)
    with client_of(**NEAR) as client:
        for _ in range(2):
            client.read(url, 5, 100, SIZE)
            threading.Event().wait(1.1)
        assert [client.stats()[name] for name in ("resolves", "targets_expired")] == [2, 1]
    since = len(hub.log)
    url = sign(hub, cdn)
    reads(url, tmp_path)
    (entry,) = entries(tmp_path)
    old = entry.read_bytes()
    sign(hub, cdn)
    entry.write_bytes(re.sub(rb"fresh_ms \d+", b"fresh_ms 1000", old))  # and a wrong sum with it
    assert reads(url, tmp_path)["resolves"] == 1
    assert len(hub.log) == since + 2


def test_a_call_that_knows_no_size_finds_out_itself(hub, cdn, tmp_path):
    """Where a file may have been replaced, a server is asked, not a note of an hour ago."""
    url = sign(hub, cdn)
    for _ in range(2):
        assert reads(url, tmp_path, -1)["resolves"] == 1
        with client_of(**NEAR, url_cache=str(tmp_path)) as client:
            assert client.size(url)["size"] == SIZE
    assert len(hub.log) == 4
    assert reads(url, tmp_path)["resolves_cached"] == 1  # it told the others, though


def test_another_version_is_resolved_again(hub, cdn, tmp_path):
    url = sign(hub, cdn, linked="sha-1")
    reads(url, tmp_path, SIZE, "sha-1")
    sign(hub, cdn, linked="sha-2")
    assert reads(url, tmp_path, SIZE, "sha-2")["resolves"] == 1
    with pytest.raises(errors.DatasetChangedError):
        reads(url, tmp_path, SIZE, "sha-1")
    with pytest.raises(errors.DatasetChangedError):
        reads(url, tmp_path, SIZE + 1)


@pytest.mark.parametrize("kind", ["s403", "s404", "html", "new_etag"])
def test_a_url_that_is_refused_is_dropped(hub, cdn, tmp_path, kind):
    url = sign(hub, cdn)
    reads(url, tmp_path)
    cdn.fault(kind, 1)
    stats = reads(url, tmp_path)
    assert (stats["resolves"], stats["resolves_cached"]) == (1, 1)
    assert reads(url, tmp_path)["resolves_cached"] == 1  # the new one
    assert len(hub.log) == 2
    cdn.fault(kind, None)
    with pytest.raises(errors.ReelpoolError):
        reads(url, tmp_path, network_timeout=10)
    assert not entries(tmp_path) and not list(tmp_path.glob("??/*"))


def test_damage_and_open_folders_are_misses(hub, cdn, tmp_path):
    url = sign(hub, cdn)
    reads(url, tmp_path)
    (entry,) = entries(tmp_path)
    sound = entry.read_bytes()
    for bad in (b"", b"\0" * 100, sound[:-1], sound.replace(b"/blob", b"/blub"), b"x" * 100_000):
        entry.write_bytes(bad)
        stats = reads(url, tmp_path)
        assert stats["resolves"] == 1 and stats["url_cache_errors"] > 0
        assert entry.read_bytes() != bad
    tmp_path.chmod(0o777)
    stats = reads(url, tmp_path)
    assert stats["resolves"] == 1 and stats["url_cache_errors"] > 0
    tmp_path.chmod(0o700)
    assert reads(url, tmp_path)["resolves"] == 0
    file = tmp_path / "file"
    file.touch()
    assert reads(url, file)["resolves"] == 1
    assert reads(url, "/proc/no-such-place")["resolves"] == 1


def test_the_token_is_not_in_it_and_its_rules_hold(hub, cdn, tmp_path):
    hub.redirects["/within"] = lambda *_: (307, {"Location": "/f"})
    token = {"token": CANARY, "token_origin": hub.origin}
    for _ in range(2):
        reads(hub.url("/within"), tmp_path, **token)
        reads(sign(hub, cdn), tmp_path, **token)
    assert [seen.path for seen in hub.log] == ["/within", "/f", "/signed", "/f"]
    assert all(seen.headers["Authorization"] == f"Bearer {CANARY}" for seen in hub.log)
    assert not any("Authorization" in seen.headers for seen in cdn.log)
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kept) == 2 and not any(CANARY.encode() in text for text in kept)
    with pytest.raises(errors.RemoteError, match="private address"):
        reads(hub.url("/signed"), tmp_path, allow_private_hosts=False)


HOLDER = """
import sys
from reelpool._core import HttpClient
HttpClient(url_cache=sys.argv[2], allow_private_hosts=True).read(sys.argv[1], 5, 100, 300_000)
"""


@contextlib.contextmanager
def holder_of(url, folder, hub):
    """A process that resolves and gets no answer."""
    hub.fault("silent", 1)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, url, str(folder)])
    try:
        for _ in range(3000):
            if hub.log and list(folder.glob("??/*.lease")):
                break
            threading.Event().wait(0.01)
        assert hub.log and list(folder.glob("??/*.lease"))
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_dead_process_holds_nobody_up(hub, cdn, tmp_path):
    url = sign(hub, cdn)
    with holder_of(url, tmp_path, hub) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list(tmp_path.glob("??/*.lease"))
        assert reads(url, tmp_path)["resolves"] == 1
    assert not list(tmp_path.glob("??/*.lease"))


def test_a_stuck_process_holds_nobody_up(hub, cdn, tmp_path):
    url = sign(hub, cdn)
    with holder_of(url, tmp_path, hub):
        (lease,) = tmp_path.glob("??/*.lease")
        stats = reads(url, tmp_path, network_timeout=4)  # half of network_timeout is enough waiting
        assert (stats["resolves"], stats["leases_waited_out"]) == (1, 1)
        os.utime(lease, (time.time() - 31,) * 2)
        lease.with_suffix("").unlink()
        stats = reads(url, tmp_path)
        assert (stats["resolves"], stats["leases_waited_out"]) == (1, 0)


def test_options_that_cannot_be_honoured():
    with pytest.raises(ValueError, match="url_cache"), client_of(url_cache=""):
        pass
