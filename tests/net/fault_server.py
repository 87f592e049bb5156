"""An HTTP server on loopback that misbehaves by plan; standard library only.

    with FaultServer({"/file": b"..."}) as server:
        server.fault("reset_body", times=2)       # the next two requests
        server.mix(seed=7, share=0.05, kinds=["s503", "cut"])
        client.read(server.url("/file"), 0, 100)
        server.log[-1].path, server.log[-1].headers

Which request meets which fault is drawn from (seed, request, attempt), where a request is (path,
range) and the attempt counts its repetitions: a run repeats however threads interleave. Faults are
the functions of this module whose name begins with `fault_`; each gets the handler and returns True
when it has answered. `redirects` maps paths to functions of what they answer.
"""

import contextlib
import hashlib
import re
import socket
import ssl
import struct
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

STATUSES = (400, 401, 403, 404, 408, 410, 412, 416, 418, 425, 429, 500, 502, 503, 504, 520)


class Seen(NamedTuple):
    """One request as the server saw it."""

    path: str
    query: str
    headers: dict
    fault: str | None
    port: int  # of the client: tells connections apart


def etag_of(data):
    return hashlib.sha256(data).hexdigest()[:32]


class FaultServer:
    """Serves `files` (path to bytes) from a thread until closed; counts and logs requests."""

    def __init__(self, files, host="127.0.0.1", tls=None):
        self._given = dict(files)
        self._lock = threading.Lock()
        self._planned = []  # faults of the requests to come
        self._always = None
        self._mix = None
        self._open = set()
        self.reset()
        server = self

        class Bound(Handler):
            faults = server

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request, client_address):
                pass  # a client that goes away is what is being tested

            def process_request(self, request, client_address):
                with server._lock:
                    server._open.add(request)
                super().process_request(request, client_address)

            def shutdown_request(self, request):
                with server._lock:
                    server._open.discard(request)
                super().shutdown_request(request)

        self.host = host
        self._http = Quiet(("127.0.0.1", 0), Bound)
        self.tls = tls is not None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def origin(self):
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    def url(self, path):
        return self.origin + path

    def fault(self, kind, times=1):
        """The next `times` requests meet a fault; times=None: all from now on."""
        name = "fault_" + re.sub(r"^s(\d)", r"status_\1", kind)
        assert name in globals() or name.startswith("fault_status_"), kind
        with self._lock:
            if times is None:
                self._always = kind
            else:
                self._planned += [kind] * times

    def mix(self, seed, share, kinds, most=None):
        """Every request meets one of `kinds` with probability `share`, by (seed, request); its
        repetitions from number `most` on meet none.
        """
        self._mix = (seed, share, tuple(kinds), most)

    def calm(self):
        """No faults from now on."""
        with self._lock:
            self._planned, self._always, self._mix = [], None, None

    def reset(self):
        """As it was made: no faults, redirects or log; the given files."""
        self.calm()
        with self._lock:
            self.log, self._attempts = [], {}
        self.redirects = {}  # path to f(server, seen) -> (status, headers[, body])
        self.latency_s, self.accept_ranges = 0.0, True
        self.files = dict(self._given)
        self.etags = {path: etag_of(data) for path, data in self._given.items()}

    def draw(self, request):
        """The fault that a request meets, or None."""
        with self._lock:
            attempt = self._attempts[request] = self._attempts.get(request, -1) + 1
            if self._planned:
                return self._planned.pop(0)
            if self._always:
                return self._always
        if self._mix is None:
            return None
        seed, share, kinds, most = self._mix
        if most is not None and attempt >= most:
            return None
        digest = hashlib.sha256(repr((seed, request, attempt)).encode()).digest()
        value, which = struct.unpack("<II", digest[:8])
        return kinds[which % len(kinds)] if value / 2**32 < share else None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    faults: FaultServer
    timeout = 60

    def log_message(self, *args):
        pass

    def do_GET(self):
        server = self.faults
        parts = urlsplit(self.path)
        self.name, self.query = unquote(parts.path), parts.query
        kind = server.draw((self.name, self.headers.get("Range")))
        seen = Seen(self.name, self.query, dict(self.headers), kind, self.client_address[1])
        with server._lock:
            server.log.append(seen)
        if server.latency_s:
            time.sleep(server.latency_s)
        self.etag = server.etags.get(self.name)
        try:
            if kind is None or not self.meet(kind):
                self.serve(seen)
        except OSError:
            self.close_connection = True

    do_HEAD = do_GET

    def meet(self, kind):
        status = re.fullmatch(r"s(\d{3})", kind)
        if status:
            self.answer(int(status.group(1)), {}, b"no\n")
            return True
        return globals()["fault_" + kind](self)

    def serve(self, seen):
        server = self.faults
        if self.name in server.redirects:
            status, headers, *body = server.redirects[self.name](server, seen)
            self.answer(status, headers, body[0] if body else b"")
        elif self.name not in server.files:
            self.answer(404, {}, b"no such file\n")
        else:
            self.send_part()

    def part(self):
        """(first, last, size) of the bytes asked for; first > last: none."""
        size = len(self.faults.files[self.name])
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not asked or not self.faults.accept_ranges:
            return 0, size - 1, size
        return int(asked.group(1)), min(int(asked.group(2)), size - 1), size

    def send_part(self, headers=(), cut=None, status=None):
        """The bytes asked for; headers replace ours (None: leave out); cut: send so many only."""
        first, last, size = self.part()
        whole = "Range" not in self.headers or not self.faults.accept_ranges
        if first > last and not whole:
            self.answer(416, {"Content-Range": f"bytes */{size}"}, b"")
            return
        body = self.faults.files[self.name][first : last + 1]
        lines = {
            "Content-Type": "video/mp4",
            "Content-Length": str(len(body)),
            "ETag": f'"{self.etag}"' if self.etag else None,
            "Last-Modified": "Tue, 14 Jul 2026 10:15:00 GMT",
        }
        if not whole:
            lines["Content-Range"] = f"bytes {first}-{last}/{size}"
        lines.update(dict(headers))
        self.answer(status or (200 if whole else 206), lines, body if cut is None else body[:cut])

    def answer(self, status, headers, body):
        """Status line, headers (None: left out; a list: one each), body."""
        lines = [f"HTTP/1.1 {status} X", f"Date: {formatdate(usegmt=True)}"]
        if not any(name in headers for name in ("Content-Length", "Transfer-Encoding")):
            lines.append(f"Content-Length: {len(body)}")
        for name, value in headers.items():
            values = value if isinstance(value, list) else [value]
            lines += [f"{name}: {v}" for v in values if v is not None]
        self.wfile.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def reset(self):
        """Close with a RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


def query_int(handler, name, default):
    return int(parse_qs(handler.query).get(name, [default])[0])


def fault_reset_before(handler):
    handler.reset()
    return True


def fault_reset_body(handler):
    first, last, _ = handler.part()
    handler.send_part(cut=max(1, (last - first + 1) // 3))
    handler.wfile.flush()
    time.sleep(0.01)  # let the bytes arrive before the RST throws them away
    handler.reset()
    return True


def fault_cut(handler):
    first, last, _ = handler.part()
    handler.send_part(cut=(last - first + 2) // 2)
    handler.close_connection = True
    return True


def fault_half_close(handler):
    handler.connection.shutdown(socket.SHUT_WR)
    handler.close_connection = True
    return True


def fault_stall(handler):
    """Half of the body, then silence until the client goes away."""
    first, last, _ = handler.part()
    handler.send_part(cut=(last - first + 2) // 2)
    handler.connection.settimeout(30)
    handler.connection.recv(1)
    handler.close_connection = True
    return True


def fault_silent(handler):
    handler.connection.settimeout(30)
    handler.connection.recv(1)
    handler.close_connection = True
    return True


def fault_trickle(handler):
    """The body in small pieces, a few KiB/s."""
    first, last, size = handler.part()
    body = handler.faults.files[handler.name][first : last + 1]
    headers = {"Content-Length": str(len(body)), "ETag": f'"{handler.etag}"'}
    headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    handler.answer(206, headers, b"")
    for at in range(0, len(body), 512):
        handler.wfile.write(body[at : at + 512])
        handler.wfile.flush()
        time.sleep(0.005)
    return True


def fault_slow_body(handler):
    """Two seconds for the body, in forty pieces."""
    handler.send_part(cut=0)
    first, last, _ = handler.part()
    body = handler.faults.files[handler.name][first : last + 1]
    size = len(body) // 40 + 1
    for at in range(0, len(body), size):
        handler.wfile.write(body[at : at + size])
        handler.wfile.flush()
        time.sleep(0.05)
    return True


def fault_slow_head(handler):
    """The header byte by byte."""
    first, last, size = handler.part()
    body = handler.faults.files[handler.name][first : last + 1]
    head = (
        f'HTTP/1.1 206 X\r\nContent-Length: {len(body)}\r\nETag: "{handler.etag}"\r\n'
        f"Content-Range: bytes {first}-{last}/{size}\r\n\r\n"
    )
    for byte in head.encode():
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(0.0001)
    handler.wfile.write(body)
    return True


def fault_short(handler):
    """A sound 206 of the first half."""
    first, last, size = handler.part()
    if last == first:
        return False
    middle = first + (last - first) // 2
    body = handler.faults.files[handler.name][first : middle + 1]
    headers = {
        "Content-Range": f"bytes {first}-{middle}/{size}",
        "ETag": f'"{handler.etag}"',
        "Last-Modified": "Tue, 14 Jul 2026 10:15:00 GMT",
    }
    handler.answer(206, headers, body)
    return True


def fault_whole(handler):
    data = handler.faults.files[handler.name]
    handler.answer(200, {"ETag": f'"{handler.etag}"'}, data)
    return True


def fault_shifted(handler):
    first, last, size = handler.part()
    handler.send_part({"Content-Range": f"bytes {first + 1}-{last + 1}/{size + 0}"})
    return True


def fault_no_range(handler):
    handler.send_part({"Content-Range": None})
    return True


def fault_wrong_total(handler):
    first, last, size = handler.part()
    handler.send_part({"Content-Range": f"bytes {first}-{last}/{size + 5}"})
    return True


def fault_long(handler):
    """A chunked body, three bytes longer than the range; its first half comes alone."""
    first, last, size = handler.part()
    body = handler.faults.files[handler.name][first : last + 1] + b"XYZ"
    headers = {
        "Transfer-Encoding": "chunked",
        "Content-Range": f"bytes {first}-{last}/{size}",
        "ETag": f'"{handler.etag}"',
        "Last-Modified": "Tue, 14 Jul 2026 10:15:00 GMT",
    }
    handler.answer(206, headers, b"")
    for part in (body[: len(body) // 2], body[len(body) // 2 :]):
        handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        handler.wfile.flush()
        time.sleep(0.01)
    handler.wfile.write(b"0\r\n\r\n")
    return True


def fault_gzip(handler):
    handler.send_part({"Content-Encoding": "gzip"})
    return True


def fault_html(handler):
    handler.send_part({"Content-Type": "text/html; charset=utf-8"})
    return True


def fault_huge_head(handler):
    """2 MB of headers."""
    handler.wfile.write(b"HTTP/1.1 206 X\r\n")
    line = b"X-Junk: " + b"j" * 1014 + b"\r\n"
    for _ in range(2048):
        handler.wfile.write(line)
    handler.wfile.write(b"\r\n")
    handler.close_connection = True
    return True


def fault_endless_line(handler):
    handler.wfile.write(b"HTTP/1.1 206 X\r\nX-Junk: " + b"j" * 2_000_000)
    handler.close_connection = True
    return True


def fault_two_lengths(handler):
    first, last, _ = handler.part()
    n = last - first + 1
    handler.send_part({"Content-Length": [str(n), str(n + 7)]})
    return True


def fault_new_etag(handler):
    handler.send_part({"ETag": '"another"'})
    return True


def fault_garbage(handler):
    handler.wfile.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
    handler.close_connection = True
    return True


def fault_limited(handler):
    handler.answer(429, {"Retry-After": "0"}, b"")
    return True


def fault_limited_date(handler):
    handler.answer(429, {"Retry-After": formatdate(usegmt=True)}, b"")
    return True


def fault_limited_long(handler):
    handler.answer(429, {"Retry-After": "3600", "X-Request-Id": "req-7"}, b"")
    return True


def fault_rate(handler):
    handler.answer(429, {"RateLimit": '"resolvers";r=0;t=0'}, b"")
    return True


def fault_spent(handler):
    """A sound answer that says it was the last for a very long time."""
    handler.send_part({"RateLimit": '"bytes";r=0;t=999999999999999999'})
    return True


def fault_busy_later(handler):
    handler.answer(503, {"Retry-After": "0"}, b"")
    return True


def fault_flip(handler):
    """A flipped bit: HTTP cannot notice it."""
    first, last, _ = handler.part()
    data = handler.faults.files[handler.name]
    body = bytearray(data[first : last + 1])
    body[0] ^= 1
    size = len(data)
    headers = {"Content-Range": f"bytes {first}-{last}/{size}", "ETag": f'"{handler.etag}"'}
    handler.answer(206, headers, bytes(body))
    return True
