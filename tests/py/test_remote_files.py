"""Copies of remote files: whole or not there, fetched once, continued, of the right version."""

import os
import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import reelpool.remote_files
from reelpool import errors
from reelpool.remote_files import RemoteFiles
from test_http import FAST

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))

from fault_server import FaultServer

DATA = random.Random(8).randbytes(400_000)


@pytest.fixture
def server():
    with FaultServer({"/set/meta/info.json": b"{}", "/set/a b/file.mp4": DATA}) as server:
        yield server


@pytest.fixture
def files(server, tmp_path, monkeypatch):
    monkeypatch.setattr(reelpool.remote_files, "CHUNK", 50_000)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    files = RemoteFiles(server.url("/set/"), tmp_path / "cache", **FAST)
    yield files
    files.close()


def test_fetched_once(server, files):
    server.mix(3, 0.3, ["cut", "reset_before", "s503", "short"])
    path = files.fetch("a b/file.mp4")
    assert path.read_bytes() == DATA and path.name == "file.mp4"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["file.mp4"]
    server.calm()
    asked = len(server.log)
    assert files.fetch("a b/file.mp4") == path
    assert len(server.log) == asked + 1  # of which version it is
    server.files["/set/meta/info.json"] = b""
    assert files.fetch("meta/info.json").read_bytes() == b""


def test_it_goes_on_where_it_ended(server, files):
    path = files.fetch("a b/file.mp4")
    part = path.parent / ".file.mp4.part"
    os.replace(path, part)
    os.truncate(part, 123_456)
    asked = len(server.log)
    assert files.fetch("a b/file.mp4").read_bytes() == DATA
    first = {seen.headers["Range"].split("-")[0] for seen in server.log[asked:]} - {"bytes=0"}
    assert min(int(text[6:]) for text in first) == 123_456
    assert not part.exists()


def test_another_version_is_another_copy(server, files):
    old = files.fetch("a b/file.mp4")
    server.files["/set/a b/file.mp4"] = DATA[::-1]
    server.etags["/set/a b/file.mp4"] = "two"
    files.close()  # a client keeps to the version that it saw first
    new = files.fetch("a b/file.mp4")
    assert new != old and new.read_bytes() == DATA[::-1] and old.read_bytes() == DATA


def test_many_at_once(server, files):
    with ThreadPoolExecutor(6) as pool:
        paths = set(pool.map(files.fetch, ["a b/file.mp4"] * 6))
    assert len(paths) == 1
    assert [p.name for p in next(iter(paths)).parent.iterdir()] == ["file.mp4"]
    assert paths.pop().read_bytes() == DATA
    ranges = [seen.headers["Range"] for seen in server.log]
    assert len(ranges) == 6 + 8  # six times of which version it is, the bytes once


def test_a_server_without_ranges(server, files, monkeypatch):
    server.accept_ranges = False
    assert files.fetch("a b/file.mp4").read_bytes() == DATA
    monkeypatch.setattr(reelpool.remote_files, "LARGEST_WHOLE", 1)
    server.etags["/set/a b/file.mp4"] = "two"
    files.close()
    with pytest.raises(errors.UnsupportedMediaError, match="no ranges"):
        files.fetch("a b/file.mp4")


def test_errors_leave_no_copy(server, files, tmp_path, monkeypatch):
    with pytest.raises(errors.NotFoundError):
        files.fetch("absent")
    for name in ("../x", "/etc/passwd", "a\\b", "a\nb", ""):
        with pytest.raises(errors.FormatError):
            files.fetch(name)
    assert not server.log[1:]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(errors.OfflineError):
        files.fetch("meta/info.json")
    monkeypatch.delenv("HF_HUB_OFFLINE")

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(errors.StorageError, match="No space left") as caught:
        files.fetch("a b/file.mp4")
    assert caught.value.status == 28
    monkeypatch.undo()
    assert not [p for p in (tmp_path / "cache").rglob("*.mp4") if p.name == "file.mp4"]


def test_roots_and_secrets():
    for root in ("s3://b/x", "http://u:p@h/x", "https://h/x?sig=1", "https://h/x#y"):
        with pytest.raises(ValueError) as caught:
            RemoteFiles(root)
        assert "sig" not in str(caught.value) and "u:p" not in str(caught.value)
    files = RemoteFiles("https://h/x", token="canary", token_origin="https://h", max_redirects=2)
    again = pickle.loads(pickle.dumps(files))
    assert again.client.stats()["requests"] == 0
    assert "canary" not in repr(files) and b"canary" not in pickle.dumps(files)
    assert again.root == files.root and again._options["max_redirects"] == 2
