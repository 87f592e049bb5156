"""benchmarks/remote.py: what its server sends and counts, what figures mean, a whole short run."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from reelpool.bench.scenarios import DEMO

ROOT = Path(__file__).resolve().parents[2]
DATA = DEMO / "dataset"
VIDEO = sorted(DATA.glob("videos/**/*.mp4"))[0]
sys.path.insert(0, str(ROOT / "benchmarks"))


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


remote_server, remote = load("remote_server"), load("remote")


@pytest.fixture
def hub():
    with remote_server.Hub(0.0, 0.0) as server:
        server.add("o/n", DATA)
        yield server


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(url: str, method: str = "GET", **headers: str) -> Answer:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=3)
    with contextlib.closing(connection):
        connection.request(method, f"{parts.path}?{parts.query}", headers=headers)
        with connection.getresponse() as answer:
            return Answer(answer.status, answer.headers, answer.read())


def resolve(hub) -> str:
    rel = VIDEO.relative_to(DATA).as_posix()
    answer = ask(f"{hub.endpoint}/datasets/o/n/resolve/main/{rel}", "HEAD")
    assert answer.status == 302
    return answer.headers["Location"]


def test_the_server_sends_ranges_and_counts_them(hub):
    url, data = resolve(hub), VIDEO.read_bytes()
    answer = ask(url, Range="bytes=100-299")
    assert (answer.status, answer.body) == (206, data[100:300])
    assert answer.headers["Content-Range"] == f"bytes 100-299/{len(data)}"
    assert ask(url, Range="bytes=1000-").body == data[1000:]
    assert ask(url).body == data
    assert ask(url, Range=f"bytes={len(data)}-").status == 416
    counts = hub.take()
    assert counts["video_resolves"] == counts["api_requests"] == 1
    assert counts["video_requests"] == 3
    assert counts["video_bytes"] == 200 + len(data) - 1000 + len(data)
    assert hub.take()["video_requests"] == 0


def test_one_connection_serves_many_requests(hub):
    url = urlsplit(resolve(hub))
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
    with contextlib.closing(connection):
        connection.connect()
        first = connection.sock
        for start in (0, 5, 77):
            span = {"Range": f"bytes={start}-{start + 9}"}
            connection.request("GET", f"{url.path}?{url.query}", headers=span)
            assert connection.getresponse().read() == VIDEO.read_bytes()[start : start + 10]
            assert connection.sock is first


def test_wrong_signatures_and_tokens_are_refused(hub):
    url = resolve(hub)
    assert ask(url.replace("Signature=", "Signature=0")).status == 403
    assert ask(url, Authorization="Bearer x").status == 403
    assert hub.take()["video_bytes"] == 0


def test_every_so_many_requests_meet_a_fault(hub):
    url, ends = resolve(hub), []
    hub.take(0.25)
    for _ in range(16):
        try:
            answer = ask(url, Range="bytes=0-999")
            ends.append(answer.status)
        except http.client.IncompleteRead:
            ends.append("cut")
        except (http.client.RemoteDisconnected, TimeoutError):
            ends.append("none")
    assert ends.count(206) == 12 and ends[3::4].count(206) == 0
    assert {503, "cut", "none"} <= set(ends)
    assert hub.take()["faults"] == 4
    assert ask(url, Range="bytes=0-999").status == 206


def test_a_link_is_shared(monkeypatch):
    pauses, now = [], [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=pauses.append)
    monkeypatch.setattr(remote_server, "time", clock)
    link = remote_server.Link(1000.0)
    for _ in range(3):  # three connections at the same moment
        link.wait(500)
    assert pauses == pytest.approx([0.49, 0.99, 1.49])
    now[0] = 102.0  # an idle link saves up no more than the burst
    link.wait(500)
    assert pauses[-1] == pytest.approx(0.49)


def run(row: str, **changes) -> dict:
    """Figures of a made-up run: 128 samples in 2 batches of a set of 128 frames and 1000 bytes."""
    raw = {"arrivals": [0.5, 1.0], "sizes": [64, 64], "ends": [2], "construct_s": 1.0,
           "import_s": 1.0, "cpu_s": 0.2, "first_stats": {"fetch": {"bytes_fetched": 500}},
           "stats": {"decoded": 128, "read_s": 0.5, "fetch": {"requests": 2}},
           "versions": {}}  # fmt: skip
    asked = {"api_requests": 5, "video_resolves": 1, "video_requests": 2, "video_bytes": 1000,
             "other_bytes": 10, "faults": 0, "cpu_s": 0.1}  # fmt: skip
    which = next(r for r in remote.ROWS if r.name == row)
    raw |= {k: v for k, v in changes.items() if k in raw}
    asked |= {k: v for k, v in changes.items() if k in asked}
    return remote.figures(which, raw, asked, FACTS)


FACTS = remote.remote_set.Facts(frames=128, episodes=1, fps=30, files=1, video_bytes=1000)


def goals(bandwidth: float = 1e8, **rows: dict) -> dict[str, bool]:
    args = SimpleNamespace(
        latency_ms=50, bandwidth=bandwidth, batch_size=64, num_threads=2, faults=0.01
    )
    bench = SimpleNamespace(args=args, facts=FACTS, runs={k: [v] for k, v in rows.items()})
    found = remote.targets({r["row"]: r for r in remote.records(bench)}, bench)
    out: dict[str, bool] = {}
    for goal in found:
        out[goal["what"]] = out.get(goal["what"], True) and goal["met"]
    return out


def test_figures_of_a_run():
    got = run("remote")
    assert (got["samples_per_s"], got["bytes_ratio"], got["resolves"]) == (128.0, 1.0, 1)
    assert (got["first_batch_latency_s"], got["first_batch_bytes"]) == (0.5, 500)
    assert got["counters"] == {"decoded": 128} and got["stage_s"] == {"read_s": 0.5}
    assert run("local")["bytes_ratio"] is None
    part = run("lerobot", ends=[], sizes=[1, 1])  # of a set of fewer frames than its buffer
    assert part["bytes_ratio"] == 1.0 and not part["whole_epoch"]


def test_targets_are_met_and_missed():
    same = goals(local=run("local"), remote=run("remote"))
    assert len(same) == 4 and all(same.values())
    slow = goals(local=run("local"), remote=run("remote", arrivals=[0.81, 1.4]))
    assert not slow["throughput / min(local, link)"]
    assert not slow["first batch, metadata here, s"]
    assert goals(local=run("local"), remote=run("remote", arrivals=[0.79, 1.29]))[
        "first batch, metadata here, s"
    ]
    # A link of 100 samples/s, and 128 samples in 1 s or 2: prefetched ones do not count as fast.
    for end, met in ((1.0, True), (2.0, False)):
        pair = {n: run(n, arrivals=[end - 0.5, end]) for n in ("local", "remote")}
        assert goals(bandwidth=100 * 1000 / 128, **pair)["throughput / min(local, link)"] is met
    greedy = goals(remote=run("remote", video_bytes=1060, video_resolves=2))
    assert not any(greedy.values())
    assert not goals(remote=run("remote", video_resolves=0))["resolves per file, no node cache"]
    for end, met in ((1.05, True), (1.10, False)):
        held = goals(remote=run("remote"), faulty=run("faulty", arrivals=[0.5, end]))
        assert held["throughput with 1% of faults / without"] is met
    again = goals(cached=run("cached", video_requests=1, video_resolves=0))
    assert again == {"requests for videos, second run": False, "resolves, second run": True}


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the ffmpeg program")
def test_a_whole_short_run(tmp_path):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    program = str(ROOT / "benchmarks/remote.py")
    command = [sys.executable, program, str(DATA), "--repeat", "1", "--copies", "2",
               "--latency_ms", "1", "--batch_size", "8", "--faults", "0.2", "--out_dir",
               str(tmp_path)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "remote.json").read_text())
    rows = {r["row"]: r for r in record["rows"]}
    assert list(rows) == [r.name for r in remote.ROWS if r.impl == "reelpool"]
    files = record["env"]["files"]
    for name in ("remote", "cold"):
        assert rows[name]["resolves"] == files and rows[name]["bytes_ratio"] <= 1.05
    assert rows["faulty"]["faults"] > 0 == rows["remote"]["faults"]
    assert rows["faulty"]["samples_measured"] == rows["remote"]["samples_measured"]
    assert rows["cached"]["requests"] == rows["cached"]["resolves"] == 0
    assert rows["random"]["samples_measured"] == rows["local"]["samples_measured"]
    text = json.dumps(record) + done.stdout
    assert str(tmp_path) not in text and str(ROOT) not in text and "kernel" not in record["env"]
    digest = hashlib.sha256(VIDEO.read_bytes()).hexdigest()
    assert digest not in text  # nor a signed URL
