"""A stand-in for the Hugging Face Hub on loopback, for tests: the real huggingface_hub client works
with it, or any other.

Two origins: the API at http://127.0.0.1:PORT, the files of LFS at http://localhost:PORT2 behind
signed URLs that expire. A request to the second one that carries a token is answered with 400 and
noted. `StandIn.log` holds one dict per request; faults are switched on with `StandIn.fault`.

Also a program: hub_stand_in.py OWNER/NAME=FOLDER ... prints the endpoint and serves until Ctrl-C.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hub_things import Blob, Bucket, Fault, Repo, files_of

LFS = (".mp4", ".parquet", ".arrow")
CHUNK = 1 << 16


class StandIn:
    """Both servers. A context: they run inside it."""

    def __init__(self, page: int = 1000, url_life: float = 3600.0) -> None:
        self.page, self.url_life, self.delay = page, url_life, 0.0
        self.repos: dict[str, Repo] = {}
        self.buckets: dict[str, Bucket] = {}
        self.renamed: dict[str, str] = {}
        self.tokens: set[str] = set()  # known ones; a repository says who may read it
        self.blobs: dict[str, Blob] = {}
        self.log: list[dict] = []
        self.faults: list[Fault] = []
        self.leaks: list[dict] = []  # requests to the second origin with a token
        self._lock = threading.Lock()
        self._key = b"stand-in"
        self._closing = threading.Event()
        self._servers = [_Server(self, "api"), _Server(self, "cdn")]
        self.endpoint = f"http://127.0.0.1:{self._servers[0].server_address[1]}"
        self.cdn = f"http://localhost:{self._servers[1].server_address[1]}"

    def __enter__(self) -> StandIn:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    # -- what tests say and ask --

    def add(self, repo_id: str, folder: Path | None = None, branch: str = "main", **facts) -> Repo:
        """A repository, with the files of a folder as its first commit."""
        repo = self.repos[repo_id] = Repo(repo_id, **facts)
        self.tokens |= repo.readers
        if folder is not None:
            repo.commit(files_of(folder), branch)
        return repo

    def add_bucket(self, bucket_id: str, folder: Path, prefix: str = "", **facts) -> Bucket:
        """A bucket with the files of a folder below a prefix ("" or "x/")."""
        files = {prefix + path: blob for path, blob in files_of(folder).items()}
        bucket = self.buckets[bucket_id] = Bucket(bucket_id, files, **facts)
        self.tokens |= bucket.readers
        return bucket

    def fault(self, pattern: str, action: str, value: object = None, times: int | None = None,
              **headers: str) -> Fault:  # fmt: skip
        """Switch a fault on; headers: those of action "status", with _ for -."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        self.faults.append(Fault(re.compile(pattern), action, value, named, times))
        return self.faults[-1]

    def requests(self, pattern: str = "") -> list[str]:
        """ "METHOD origin path" of the requests so far that match."""
        with self._lock:
            lines = [f"{e['method']} {e['origin']} {e['path']}" for e in self.log]
        return [line for line in lines if re.search(pattern, line)]

    def write_log(self, path: Path) -> None:
        """The log as JSON lines."""
        with self._lock:
            path.write_text("".join(json.dumps(entry) + "\n" for entry in self.log))

    # -- for the servers --

    def note(self, entry: dict, leak: bool) -> None:
        with self._lock:
            self.log.append(entry)
            if leak:
                self.leaks.append(entry)

    def take_fault(self, line: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times != 0 and fault.pattern.search(line):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def sleep(self, seconds: float) -> None:
        self._closing.wait(seconds)

    def signed(self, blob: Blob) -> str:
        """A URL of the second origin that is valid for `url_life` seconds."""
        sha = blob.facts()[2]
        self.blobs[sha] = blob
        expires = f"{time.time() + self.url_life:.3f}"
        return f"{self.cdn}/files/{sha}?Expires={expires}&Signature={self._sign(sha, expires)}"

    def _sign(self, sha: str, expires: str) -> str:
        return hmac.new(self._key, f"{sha} {expires}".encode(), "sha256").hexdigest()

    def unsign(self, sha: str, query: dict[str, list[str]]) -> Blob | None:
        """The file behind a signed URL; None if the URL is wrong or has run out."""
        expires, signature = (query.get(name, [""])[0] for name in ("Expires", "Signature"))
        good = hmac.compare_digest(signature, self._sign(sha, expires))
        return self.blobs.get(sha) if good and float(expires) > time.time() else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub: StandIn, origin: str) -> None:
        self.hub, self.origin = hub, origin
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients go away in the middle: that is what the tests are about."""


class _Answer(Exception):
    """Ends the work on a request: status, body, headers."""

    def __init__(self, status: int, body: object = b"", **headers: str) -> None:
        self.status, self.headers = status, {k.replace("_", "-"): v for k, v in headers.items()}
        self.body = body
        if not isinstance(body, bytes):
            self.body = json.dumps(body).encode()
            self.headers["Content-Type"] = "application/json"


def _failure(status: int, code: str, message: str) -> _Answer:
    return _Answer(status, {"error": message}, X_Error_Code=code, X_Error_Message=message)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_GET

    def _serve(self) -> None:
        hub, origin = self.server.hub, self.server.origin
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        entry = {
            "t": time.time(), "origin": origin, "method": self.command, "path": url.path,
            "token": "Authorization" in self.headers, "range": self.headers.get("Range"),
        }  # fmt: skip
        text = f"{self.path} {self.headers} {body!r}"
        leak = origin == "cdn" and (entry["token"] or any(t in text for t in hub.tokens))
        fault = hub.take_fault(f"{self.command} {origin} {url.path}")
        hub.sleep(hub.delay)
        if fault is not None and fault.action == "call":
            fault.value()
        try:
            if fault is not None and fault.action == "status":
                answer = _Answer(int(fault.value), b"fault")
                answer.headers.update(fault.headers)
            elif fault is not None and fault.action == "page":
                answer = _Answer(200, b"<html>Sign in</html>", Content_Type="text/html")
            elif leak:
                answer = _Answer(400, b"a token does not belong here")
            else:
                answer = self._answer(url.path, parse_qs(url.query), body)
        except _Answer as early:
            answer = early
        entry["status"] = answer.status
        entry["bytes"] = len(answer.body) if self.command != "HEAD" else 0
        hub.note(entry, leak)
        self._send(answer, fault)

    def _send(self, answer: _Answer, fault: Fault | None) -> None:
        action = fault.action if fault is not None else ""
        body = answer.body
        if action == "flip" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        if action == "silent":
            self.server.hub.sleep(float(fault.value))
        if action in ("silent", "reset"):
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if action == "strip":
            answer.headers.pop(str(fault.value), None)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if action in ("cut", "stall"):
            place = len(body) // 2 if action == "stall" else int(fault.value)
            self.wfile.write(body[:place])
            self.wfile.flush()
            if action == "stall":
                self.server.hub.sleep(float(fault.value))
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        for start in range(0, len(body), CHUNK):
            self.wfile.write(body[start : start + CHUNK])

    def _answer(self, path: str, query: dict[str, list[str]], body: bytes) -> _Answer:
        if self.server.origin == "cdn":
            return self._file(path, query)
        for form, answer in _ROUTES:
            match = form.fullmatch(path)
            if match:
                return answer(self, *map(unquote, match.groups("")), query=query, body=body)
        return _failure(404, "", "no such page")

    # -- the API --

    def _repo(self, repo_id: str, files: bool = False) -> Repo:
        """The repository, if this request may see it (files: its files)."""
        hub = self.server.hub
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in hub.tokens:
            raise _failure(401, "", "Invalid credentials in Authorization header")
        if repo_id in hub.renamed:
            target = self.path.replace(repo_id, hub.renamed[repo_id], 1)
            raise _Answer(307, b"", Location=target)
        repo = hub.repos.get(repo_id)
        if repo is None or (repo.private and token not in repo.readers):
            raise _failure(404 if token else 401, "RepoNotFound", "Repository not found")
        if files and repo.gated and token not in repo.readers:
            raise _failure(403 if token else 401, "GatedRepo", "Access to it is restricted")
        return repo

    def _commit(self, repo: Repo, revision: str) -> str:
        sha = repo.find(revision)
        if sha is None:
            raise _failure(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha

    def _info(self, repo_id: str, revision: str = "", **_: object) -> _Answer:
        repo = self._repo(repo_id)
        sha = self._commit(repo, revision or "main")
        siblings = [{"rfilename": path} for path in sorted(repo.commits[sha])]
        return _Answer(200, {"id": repo.id, "sha": sha, "private": repo.private,
                             "gated": "auto" if repo.gated else False, "downloads": 0, "tags": [],
                             "siblings": siblings})  # fmt: skip

    def _datasets(self, **_: object) -> _Answer:
        return _Answer(200, [{"id": r.id} for r in self.server.hub.repos.values() if not r.private])

    def _refs(self, repo_id: str, **_: object) -> _Answer:
        repo = self._repo(repo_id)

        def listed(kind: str, refs: dict[str, str]) -> list[dict]:
            return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": s}
                    for n, s in refs.items()]  # fmt: skip

        return _Answer(200, {"branches": listed("heads", repo.branches), "converts": [],
                             "tags": listed("tags", repo.tags)})  # fmt: skip

    def _entry(self, path: str, blob: Blob) -> dict:
        size, git, sha256 = blob.facts()
        entry: dict = {"type": "file", "path": path, "size": size, "oid": git}
        if path.endswith(LFS):
            entry["lfs"] = {"oid": sha256, "size": size, "pointerSize": 134}
        return entry

    def _tree(self, repo_id: str, revision: str, folder: str, query: dict, **_: object) -> _Answer:
        repo = self._repo(repo_id)
        files = repo.commits[self._commit(repo, revision)]
        below = f"{folder}/" if folder else ""
        paths = sorted(p for p in files if p.startswith(below))
        if folder and not paths:
            return _failure(404, "EntryNotFound", f"{folder} does not exist")
        last = {"lastCommit": {"id": "0" * 40, "title": "files", "date": "2026-01-01T00:00:00Z"}}
        more = last if query.get("expand", [""])[0].lower() == "true" else {}
        folders = {p[: m.end()] for p in paths for m in re.finditer(r"[^/]+(?=/)", p)}
        entries = [
            {"type": "directory", "path": f, "size": 0, "oid": "0" * 40, **more}
            for f in sorted(folders) if f.startswith(below)
        ] + [{**self._entry(p, files[p]), **more} for p in paths]  # fmt: skip
        if query.get("recursive", [""])[0].lower() not in ("true", "1"):
            entries = [e for e in entries if "/" not in e["path"][len(below) :]]
        return self._page(entries, query)

    def _page(self, entries: list[dict], query: dict) -> _Answer:
        """A page of a list, and where the next one is."""
        start, page = int(query.get("cursor", ["0"])[0]), self.server.hub.page
        answer = _Answer(200, entries[start : start + page])
        if start + page < len(entries):
            url = urlsplit(self.path)
            kept = [p for p in url.query.split("&") if p and not p.startswith("cursor=")]
            after = "&".join([*kept, f"cursor={start + page}"])
            answer.headers["Link"] = f'<{self.server.hub.endpoint}{url.path}?{after}>; rel="next"'
        return answer

    # -- buckets --

    def _bucket(self, bucket_id: str) -> Bucket:
        hub = self.server.hub
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in hub.tokens:
            raise _failure(401, "", "Invalid credentials in Authorization header")
        bucket = hub.buckets.get(bucket_id)
        if bucket is None or (bucket.private and token not in bucket.readers):
            raise _failure(404 if token else 401, "RepoNotFound", "Bucket not found")
        return bucket

    def _bucket_info(self, bucket_id: str, **_: object) -> _Answer:
        bucket = self._bucket(bucket_id)
        sizes = [blob.facts()[0] for blob in bucket.files.values()]
        then = "2026-01-01T00:00:00.000Z"
        return _Answer(200, {"id": bucket.id, "private": bucket.private, "createdAt": then,
                             "updatedAt": then, "size": sum(sizes),
                             "totalFiles": len(sizes)})  # fmt: skip

    def _bucket_tree(self, bucket_id: str, prefix: str, query: dict, **_: object) -> _Answer:
        bucket, then = self._bucket(bucket_id), "2026-01-01T00:00:00.000Z"
        return self._page(
            [
                {"type": "file", "path": path, "size": blob.facts()[0], "mtime": then,
                 "uploadedAt": then, "xetHash": blob.facts()[2]}
                for path, blob in sorted(bucket.files.items()) if path.startswith(prefix)
            ],
            query,
        )  # fmt: skip

    def _bucket_file(self, bucket_id: str, path: str, **_: object) -> _Answer:
        blob = self._bucket(bucket_id).files.get(path)
        if blob is None:
            return _failure(404, "EntryNotFound", "Entry not found")
        size, _, digest = blob.facts()
        if size == 0:
            return _Answer(200, b"", X_Linked_Size="0", X_Xet_Hash=digest)
        return _Answer(302, b"Found", X_Linked_Size=str(size), X_Xet_Hash=digest,
                       Location=self.server.hub.signed(blob))  # fmt: skip

    def _paths_info(self, repo_id: str, revision: str, body: bytes, **_: object) -> _Answer:
        repo = self._repo(repo_id)
        files = repo.commits[self._commit(repo, revision)]
        if "json" in (self.headers.get("Content-Type") or ""):
            paths = json.loads(body)["paths"]
        else:
            paths = parse_qs(body.decode()).get("paths", [])
        wanted = [paths] if isinstance(paths, str) else paths
        return _Answer(200, [self._entry(p, files[p]) for p in wanted if p in files])

    def _resolve(self, repo_id: str, revision: str, path: str, **_: object) -> _Answer:
        repo = self._repo(repo_id, files=True)
        sha = self._commit(repo, revision)
        blob = repo.commits[sha].get(path)
        if blob is None:
            answer = _failure(404, "EntryNotFound", "Entry not found")
            answer.headers["X-Repo-Commit"] = sha
            return answer
        size, git, sha256 = blob.facts()
        headers = {"X_Repo_Commit": sha, "X_Linked_Size": str(size)}
        if path.endswith(LFS):
            headers |= {"X_Linked_ETag": f'"{sha256}"', "Location": self.server.hub.signed(blob)}
            return _Answer(302, b"Found", **headers)
        target = f"/api/resolve-cache/datasets/{repo_id}/{sha}/{quote(path)}?etag=%22{git}%22"
        return _Answer(307, b"", **headers, ETag=f'"{git}"', Location=target)

    def _cached(self, repo_id: str, sha: str, path: str, **_: object) -> _Answer:
        repo = self._repo(repo_id, files=True)
        blob = repo.commits[self._commit(repo, sha)][path]
        git = blob.facts()[1]
        return self._ranged(blob.data(), {"ETag": f'"{git}"', "X-Repo-Commit": sha})

    # -- the files --

    def _file(self, path: str, query: dict[str, list[str]]) -> _Answer:
        blob = self.server.hub.unsign(path.rpartition("/")[2], query)
        if blob is None:
            return _Answer(403, b"<Error>AccessDenied</Error>", Content_Type="application/xml")
        return self._ranged(blob.data(), {"ETag": f'"cdn-{blob.facts()[2][:32]}"'})

    def _ranged(self, data: bytes, headers: dict[str, str]) -> _Answer:
        answer, total = _Answer(200, data), len(data)
        answer.headers |= {"Accept-Ranges": "bytes", **headers}
        span = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if span and span.group(1):
            start, stop = int(span.group(1)), min(int(span.group(2) or total), total - 1)
        elif span and span.group(2):
            start, stop = max(0, total - int(span.group(2))), total - 1
        else:
            return answer
        if start > stop:
            return _Answer(416, b"", Content_Range=f"bytes */{total}")
        answer.status, answer.body = 206, data[start : stop + 1]
        answer.headers["Content-Range"] = f"bytes {start}-{stop}/{total}"
        return answer


_ID = r"/api/datasets/([^/]+/[^/]+)"
_ROUTES = [
    (re.compile(r"/api/datasets"), _Handler._datasets),
    (re.compile(_ID), _Handler._info),
    (re.compile(_ID + r"/revision/([^/]+)"), _Handler._info),
    (re.compile(_ID + r"/refs"), _Handler._refs),
    (re.compile(_ID + r"/tree/([^/]+)(?:/(.*))?"), _Handler._tree),
    (re.compile(_ID + r"/paths-info/([^/]+)"), _Handler._paths_info),
    (re.compile(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)"), _Handler._resolve),
    (re.compile(r"/api/buckets/([^/]+/[^/]+)"), _Handler._bucket_info),
    (re.compile(r"/api/buckets/([^/]+/[^/]+)/tree(?:/(.*))?"), _Handler._bucket_tree),
    (re.compile(r"/buckets/([^/]+/[^/]+)/resolve/(.+)"), _Handler._bucket_file),
    (re.compile(r"/api/resolve-cache/datasets/([^/]+/[^/]+)/([^/]+)/(.+)"), _Handler._cached),
]


def main() -> None:
    """Serve folders until Ctrl-C."""
    with StandIn() as hub:
        for word in sys.argv[1:]:
            repo_id, _, folder = word.partition("=")
            hub.add(repo_id, Path(folder))
        print(hub.endpoint, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
