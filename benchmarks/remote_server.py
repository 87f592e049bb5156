#!/usr/bin/env python3
"""A stand-in Hub on loopback for `remote.py`: `remote_server.py OWNER/NAME=FOLDER ...`.

The API is that of tests/net/hub_stand_in.py, whose signed URLs lead here to files sent by
sendfile(2), a thread per connection. Every reply waits for `--latency_ms`; all bodies of files
share `--bandwidth` bytes/s. Prints {"endpoint": ...}; each line read from the standard input says
which part of the requests for files meets a fault from now on, one of FAULTS in turn, and is
answered by the counters since the last one; the end of the input ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/net"))

from hub_stand_in import StandIn

FAULTS = ("busy", "reset", "cut", "silent")  # 503; before the reply; in the body; no reply at all
CHUNK = 1 << 17  # bytes that one connection may send before the next one's turn
BURST_S = 0.01  # the link makes up for so much of a late wake-up
LARGEST_HEAD = 1 << 16
REQUEST = re.compile(rb"(GET|HEAD) /files/([0-9a-f]{64})\?(\S*) HTTP/1\.1\r\n")
RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)\r\n", re.IGNORECASE)
REASONS = {200: "OK", 206: "Partial Content", 403: "Forbidden", 416: "Range Not Satisfiable",
           503: "Service Unavailable"}  # fmt: skip


class Link:
    """A bandwidth that all connections share."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free, self._lock = rate, 0.0, threading.Lock()

    def wait(self, count: int) -> None:
        """Until `count` bytes may have arrived. Blocks."""
        if not self._rate:
            return
        with self._lock:
            now = time.monotonic()
            self._free = max(self._free, now - BURST_S) + count / self._rate
            pause = self._free - now
        if pause > 0:
            time.sleep(pause)


class Hub(StandIn):
    """The stand-in with our own sender of files, and counters of it."""

    def __init__(self, latency_s: float, rate: float) -> None:
        super().__init__()
        self.delay, self.link = latency_s, Link(rate)
        self._servers[1].RequestHandlerClass = Sender
        self._open: dict[str, tuple[int, int, str]] = {}
        self.sent: dict[str, list[int]] = {}  # [requests, bytes] by the files' suffix
        self.fault_share = 0.0
        self._due, self._met = 0.0, 0  # faults owed, faults met

    def file(self, sha: str, query: str) -> tuple[int, int, str] | None:
        """(descriptor, size, suffix) of a signed URL's file; None: refused."""
        blob = self.unsign(sha, parse_qs(query))
        if blob is None:
            return None
        with self._lock:
            if sha not in self._open:
                handle = os.open(blob.source, os.O_RDONLY)
                self._open[sha] = (handle, os.fstat(handle).st_size, blob.source.suffix)
            return self._open[sha]

    def count(self, suffix: str, length: int) -> None:
        """A request for a file, and the bytes of its body."""
        with self._lock:
            found = self.sent.setdefault(suffix, [0, 0])
            found[0] += 1
            found[1] += length

    def next_fault(self) -> str | None:
        """What this request meets: every so many one of FAULTS."""
        with self._lock:
            self._due += self.fault_share
            if self._due < 1:
                return None
            self._due -= 1
            self._met += 1
            return FAULTS[self._met % len(FAULTS)]

    def take(self, faults: float = 0.0) -> dict:
        """The counters since the last call. faults: part of the requests to come."""
        with self._lock:
            self.fault_share, self._due = faults, 0.0
            met, self._met = self._met, 0
            log, self.log = self.log, []
            sent, self.sent = self.sent, {}
        videos, others = sent.get(".mp4", [0, 0]), [v for k, v in sent.items() if k != ".mp4"]
        resolves = sum("/resolve/" in e["path"] and e["path"].endswith(".mp4") for e in log)
        return {
            "api_requests": len(log),
            "video_resolves": resolves,
            "video_requests": videos[0],
            "video_bytes": videos[1],
            "other_bytes": sum(v[1] for v in others) + sum(e["bytes"] for e in log),
            "other_requests": len(log) - resolves + sum(v[0] for v in others),
            "faults": met,
            "cpu_s": time.process_time(),
        }


class Sender(socketserver.BaseRequestHandler):
    """One connection to the origin of the files."""

    request: socket.socket

    def handle(self) -> None:
        """Answer requests until the peer goes away."""
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rest = b""
        try:
            while True:
                head, found, rest = rest.partition(b"\r\n\r\n")
                while not found:
                    more = self.request.recv(LARGEST_HEAD)
                    if not more or len(head) > LARGEST_HEAD:
                        return
                    head, found, rest = (head + more).partition(b"\r\n\r\n")
                if not self._answer(head + b"\r\n"):
                    return
        except OSError:
            return  # clients go away in the middle of a body: they had enough

    def _answer(self, head: bytes) -> bool:
        """Whether the connection goes on."""
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        time.sleep(hub.delay)
        line = REQUEST.match(head)
        file = hub.file(line[2].decode(), line[3].decode()) if line else None
        if file is None or b"\r\nauthorization:" in head.lower():
            self._head(403, 0, 0)
            return False
        handle, size, suffix = file
        fault = hub.next_fault()
        if fault == "busy":
            self._head(503, 0, 0)
            return True
        if fault == "silent":
            self.request.recv(1)  # until the client goes away
        if fault in ("silent", "reset"):
            return False
        span, status, start, stop = RANGE.search(head), 200, 0, size
        if span is not None:
            start, stop = int(span[1]), min(int(span[2]) + 1, size) if span[2] else size
            status = 206 if start < stop else 416
        if status == 416:
            self._head(416, 0, 0, f"Content-Range: bytes */{size}\r\n")
            return True
        more = f'ETag: "cdn-{line[2].decode()[:32]}"\r\nAccept-Ranges: bytes\r\n'
        if status == 206:
            more += f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
        body = stop - start if line[1] == b"GET" else 0
        hub.count(suffix, body)
        self._head(status, stop - start, socket.MSG_MORE if body else 0, more)
        self._body(hub, handle, start, body // 2 if fault == "cut" else body)
        return fault != "cut"

    def _head(self, status: int, length: int, flags: int, more: str = "") -> None:
        text = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Length: {length}\r\n{more}\r\n"
        self.request.sendall(text.encode(), flags)

    def _body(self, hub: Hub, handle: int, start: int, length: int) -> None:
        stop = start + length
        while start < stop:
            part = min(CHUNK, stop - start)
            hub.link.wait(part)
            end = start + part
            while start < end:
                sent = os.sendfile(self.request.fileno(), handle, start, end - start)
                if sent == 0:
                    raise OSError("the file is shorter than it was")
                start += sent


def main() -> None:
    """Serve until the standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", metavar="OWNER/NAME=FOLDER")
    parser.add_argument("--latency_ms", type=float, default=50)
    parser.add_argument("--bandwidth", type=float, default=100e6, help="bytes/s; 0: no limit")
    args = parser.parse_args()
    with Hub(args.latency_ms / 1e3, args.bandwidth) as hub:
        for word in args.sets:
            repo_id, _, folder = word.partition("=")
            repo = hub.add(repo_id, Path(folder).resolve())
            repo.tags["v3.0"] = repo.branches["main"]
            for blob in repo.commits[repo.branches["main"]].values():
                blob.facts()  # hashed now, not while a client waits
        print(json.dumps({"endpoint": hub.endpoint}), flush=True)
        for line in sys.stdin:
            print(json.dumps(hub.take(float(line))), flush=True)


if __name__ == "__main__":
    main()
