"""Calls to the Hub that end: repeated while that may help, given up at a deadline, failing with
reelpool's errors.

huggingface_hub waits without bound where a server says so, and some of its calls have no timeout.
So a call runs in a thread that can be left behind. Errors are made afresh: the causes hold request
headers and signed URLs.
"""

from __future__ import annotations

import concurrent.futures.thread as pools
import errno
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from .errors import (
    AuthError,
    NotFoundError,
    OfflineError,
    RemoteError,
    RemoteTimeoutError,
    StorageError,
    make_error,
    redact,
)

logger = logging.getLogger("reelpool")

NETWORK_TIMEOUT_S = 600.0  # without a new byte
FIRST_ANSWER_S = 60.0  # for the first answer of an endpoint: later than that it is not there
API_ATTEMPT_S = 30.0  # one call of the API without an answer
FILES_ATTEMPT_S = 150.0  # one download of files without a new byte
BACKOFF_S, BACKOFF_MAX_S = 0.25, 15.0
LIMIT_JITTER_S = 5.0  # spreads the clients that a rate limit made wait
IN_A_ROW = 3  # refusals of fresh signed URLs, files of the wrong size

_AGAIN = frozenset([408, 425, 429, 500, 502, 503, 504, *range(520, 525)])
_TRANSPORTS = frozenset(["httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"])
_FINAL_TRANSPORTS = (
    "JSONDecodeError",
    "TooManyRedirects",
    "UnsupportedProtocol",
    "InvalidURL",
    "MissingSchema",
)
_DISK = frozenset(
    [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EMFILE,
     errno.ENFILE, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG]
)  # fmt: skip
_LOGGERS = (
    "huggingface_hub.utils._http",
    "huggingface_hub.file_download",
    "huggingface_hub._snapshot_download",
    "huggingface_hub.utils._pagination",
    "httpx",
    "httpx2",
    *(f"{core}.{part}" for core in ("httpcore", "httpcore2") for part in ("http11", "http2")),
    "urllib3.connectionpool",
)


class Failure(NamedTuple):
    """What a failed call means. again: trying again may help; limit: so often in a row."""

    cls: type[BaseException]
    text: str
    again: bool = False
    limit: int | None = None
    status: int | None = None
    code: str = ""  # X-Error-Code
    wait: float | None = None  # seconds that the server asks for


class Abandoned(Exception):
    """Ends the work of a call that nobody waits for any more."""


class Beat:
    """What moved in one try of a call. `beat()` says that something did, and ends a try that was
    left behind. look: a number that changes when the call moves without saying so.
    """

    def __init__(self, look: Callable[[], int] | None = None) -> None:
        self.last = time.monotonic()
        self.abandoned = False
        self.done, self.bytes = 0, 0  # files; bytes since the last file
        self._look, self._seen = look, look() if look else 0

    def __call__(self, files: int = 0, size: int = 0) -> None:
        if self.abandoned:
            raise Abandoned
        self.last = time.monotonic()
        self.done, self.bytes = self.done + files, 0 if files else self.bytes + size

    def seen(self) -> bool:
        """True if `look` shows a change since it was last asked."""
        before, self._seen = self._seen, self._look() if self._look else 0
        if self._seen == before:
            return False
        self(0, max(0, self._seen - before))
        return True


class _Redacted(logging.Filter):
    """Cuts signed queries out of what the client libraries log."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "?" in text or "@" in text:
            record.msg, record.args = re.sub(r"\?[^\s'\"]*=[^\s'\"]*", "", redact(text)), ()
        return True


_FILTER = _Redacted()


def quiet_logs() -> None:
    """Keep signed URLs out of the logs of huggingface_hub and of its HTTP client."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)  # adds the same one once


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def asked_wait(headers: Any) -> float | None:
    """Seconds that an answer asks to wait: Retry-After (seconds or date), else an empty quota."""
    text = (headers.get("Retry-After") or "").strip()
    if text.isdigit():
        return float(text)
    if text:
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (TypeError, ValueError):
            return None
    quota = re.search(r"r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", headers.get("RateLimit") or "")
    return float(quota.group(1)) if quota else None


def _of_status(response: Any, origin: str) -> Failure:
    status, headers = int(response.status_code), response.headers
    code = headers.get("X-Error-Code") or ""
    request = headers.get("X-Request-Id") or headers.get("X-Amz-Cf-Id")
    text = f"answered {status}" + (f" {code}" if re.fullmatch(r"\w{1,60}", code) else "")
    if request and re.fullmatch(r"[\w.=-]{1,100}", request):
        text += f" (request {request})"
    if status in _AGAIN:
        return Failure(RemoteError, text, True, None, status, code, asked_wait(headers))
    cls: type[BaseException] = RemoteError
    if status in (401, 403):
        cls = AuthError
    elif status in (404, 410):
        cls = NotFoundError
    url = str(getattr(response, "url", "") or "")
    if status in (400, 401, 403, 404, 410) and not url.startswith(origin + "/"):
        # A signed URL that has run out: the next attempt gets a fresh one.
        return Failure(cls, f"the file server {text}", True, IN_A_ROW, status)
    return Failure(cls, text, status=status, code=code)


def judge(error: BaseException, origin: str) -> Failure:
    """What an exception of huggingface_hub means. origin: scheme and host of the endpoint."""
    links = list(_chain(error))
    for link in links:
        response = getattr(link, "response", None)
        if getattr(response, "status_code", None):
            return _of_status(response, origin)
    for link in links:
        name, module = type(link).__name__, type(link).__module__.partition(".")[0]
        if name == "OfflineModeIsEnabled":
            return Failure(OfflineError, "huggingface_hub was switched off by HF_HUB_OFFLINE")
        if name == "LocalTokenNotFoundError":
            return Failure(AuthError, "token=True, but no token is stored here")
        if "CertificateVerif" in name or "CERTIFICATE_VERIFY" in str(link):
            return Failure(RemoteError, "its TLS certificate was refused: " + _said(link))
        if name in _FINAL_TRANSPORTS:
            return Failure(RemoteError, _said(link))
        if module in _TRANSPORTS:
            return Failure(RemoteError, _said(link), True)
        if name == "FileMetadataError":
            return Failure(RemoteError, "its answer has no commit: this is no Hub endpoint")
    number = getattr(error, "errno", None)
    if isinstance(error, OSError) and number in _DISK:
        return Failure(StorageError, f"{error.strerror}: {error.filename or 'disk'}", status=number)
    if isinstance(error, (ConnectionError, TimeoutError)):
        return Failure(RemoteError, _said(error), True)
    if isinstance(error, OSError) or "xet" in type(error).__module__.lower():
        return Failure(RemoteError, _said(error), True, IN_A_ROW)
    return Failure(RemoteError, _said(error))


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return redact(text)[:300]


class Caller:
    """Calls one endpoint about one dataset. what: "datasets/o/n"; origin: of the endpoint."""

    def __init__(self, what: str, origin: str, timeout: float) -> None:
        self.what, self.origin, self.timeout = what, origin, timeout
        self._answered = False
        self.spent = 0.0  # seconds that were waited for an answer before the first call

    def call(
        self,
        doing: str,
        function: Callable[[Beat], Any],
        attempt: float = API_ATTEMPT_S,
        look: Callable[[], int] | None = None,
    ) -> Any:
        """`function(beat)`, tried again after what may pass.

        attempt: seconds without a beat after which a try counts as failed. Returns its value, or
        the Failure that is final; raises RemoteTimeoutError when nothing came for the deadline. A
        try that gets no further than one before it brought nothing.
        """
        begun, tries, rounds, in_a_row = time.monotonic() - self.spent, 0, 0, 0
        self.spent = 0.0
        failure: Failure | None = None
        best = (0, 0)
        while True:
            tries += 1
            limit = self.timeout if self._answered else min(self.timeout, FIRST_ANSWER_S)
            beat = Beat(look)
            patience = min(attempt, max(1.0, begun + limit - beat.last))
            outcome = _attempt(function, beat, patience)
            before = failure
            if not isinstance(outcome, BaseException):
                self._answered = True
                return outcome[0]
            failure = judge(outcome, self.origin)
            further = (beat.done, beat.bytes)
            self._answered |= failure.status is not None or further > best
            limit = self.timeout if self._answered else min(self.timeout, FIRST_ANSWER_S)
            if further > best:
                best, begun, rounds = further, beat.last, 0
            in_a_row = in_a_row + 1 if failure.limit else 0
            if not failure.again or (failure.limit and in_a_row >= failure.limit):
                return failure
            if failure.wait is None:
                pause = random.uniform(0, min(BACKOFF_MAX_S, BACKOFF_S * 2**rounds))
            else:
                pause = failure.wait + random.uniform(0, LIMIT_JITTER_S)
            rounds += 1
            left = begun + limit - time.monotonic()
            if left <= 0 or (failure.wait is not None and failure.wait > left):
                raise self._too_late(doing, before if beat.abandoned and before else failure,
                                     limit, tries)  # fmt: skip
            if before is None:
                logger.warning(
                    "%s, %s: %s; trying again for up to %.0f s",
                    self.what, doing, failure.text, left,
                )  # fmt: skip
            time.sleep(min(pause, left))

    def _too_late(
        self, doing: str, failure: Failure, limit: float, tries: int
    ) -> RemoteTimeoutError:
        if failure.wait is not None and failure.wait > 0:
            text = f"asks to wait {failure.wait:.0f} s, and the limit is {limit:g} s"
        else:
            text = f"gave nothing for {limit:g} s ({tries} tries; the last: {failure.text})"
        return make_error(
            RemoteTimeoutError,
            f"{self.what}, {doing}: {self.origin} {text}\n"
            "  Check the network and HF_ENDPOINT. storage_options={'network_timeout': seconds} "
            "waits longer, HF_HUB_OFFLINE=1 uses what is here",
            dataset=self.what.partition("/")[2],
            status=failure.status,
        )


def _attempt(function: Callable[[Beat], Any], beat: Beat, patience: float) -> Any:
    """(value,) of `function(beat)`, or the exception it raised, or TimeoutError."""
    box: list[Any] = []
    done = threading.Event()

    def body() -> None:
        try:
            box.append((function(beat),))
        except BaseException as error:  # handed to the caller's thread
            box.append(error)
        done.set()

    others = set(_pool_threads())
    threading.Thread(target=body, name="reelpool-hub", daemon=True).start()
    try:
        while not done.is_set():
            left = beat.last + patience - time.monotonic()
            if left <= 0 and not beat.seen():
                break
            done.wait(min(max(left, 0.0), 1.0))
    finally:  # also on Ctrl-C
        if not done.is_set():
            beat.abandoned = True
            _release(others)
    return box[0] if box else TimeoutError(f"no answer for {patience:.0f} s")


def _pool_threads() -> list[threading.Thread]:
    return [t for t in list(getattr(pools, "_threads_queues", ())) if t.daemon]


def _release(others: set[threading.Thread]) -> None:
    """Let the interpreter end without the threads of a download that was left behind.

    They are daemons, being children of one, but concurrent.futures joins its threads at exit, and
    one of them may be sleeping for as long as a server asked.
    """
    for thread in _pool_threads():
        if thread not in others:
            getattr(pools, "_threads_queues", {}).pop(thread, None)
