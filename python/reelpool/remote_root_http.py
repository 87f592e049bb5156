"""A dataset behind a plain http(s) URL: nothing lists it, so files are known from the metadata, and
their sizes and versions from the server's first answer about each."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlsplit

from .errors import HTTP_ADVICE, AuthError, NotFoundError, ReelpoolError, make_error, redact
from .metadata_episodes import EPISODES_DIR
from .remote_manifest import Entry, folder_of
from .remote_options import Options
from .remote_root import AT_ONCE, RemoteRoot, RootUrl, at_once
from .roots import check_path

MAX_FILES = 1_000_000
_FIRST_NAMES = ("chunk-000/file-000", "chunk-000/file-001", "chunk-001/file-000")
ABSENT = Entry(-1, "")  # known not to be there
_URL = re.compile(r"https?://[^\s\x00-\x20\x7f?#@\\]+", re.IGNORECASE)


class HttpUrl(RootUrl):
    """Of a folder behind http(s)."""

    __slots__ = ()
    auth_advice = HTTP_ADVICE


class HttpRoot(RemoteRoot):
    """A root without a listing."""

    path_type = HttpUrl

    @classmethod
    def of_url(cls, url: str, options: Options) -> HttpRoot:
        """The root at http(s)://HOST[:PORT]/PATH. ValueError for anything else."""
        parts = urlsplit(url)
        dots = {".", ".."} & set(parts.path.split("/"))
        if not _URL.fullmatch(url) or not parts.hostname or dots or not url.isascii():
            raise ValueError(
                f"root={redact(url)!r}: use http(s)://HOST[:PORT]/PATH, percent-encoded, without "
                "user name, query and fragment"
            )
        place = f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
        return cls(place, options)

    def _file_url(self, rel: str) -> str:
        return f"{self.url}/{quote(rel)}"

    def _pin(self, probe: str) -> None:
        """Ask about `probe`, and make its version the pin."""
        try:
            entry = self._told(probe)
        except NotFoundError:
            raise self.no_dataset(probe) from None
        except AuthError as error:
            raise make_error(
                AuthError,
                f"{self.url} answers {error.status}: it wants credentials, and none are sent to "
                "http(s) roots\n  Check the URL, or copy the dataset here and pass root=DIR",
                dataset=self.url, file=probe, status=error.status,
            ) from None  # fmt: skip
        self._manifest.put({folder_of(probe): {probe: entry}})
        name = f"{self._file_url(probe)}\0{entry.version}\0{entry.size}"
        self._manifest.pin_to(hashlib.sha256(name.encode()).hexdigest()[:40])

    def _know(self, folders: Iterable[str]) -> None:
        """Nothing is listed."""

    def entry(self, rel: str) -> Entry:
        """Size and version of a file, asked for once. NotFoundError if there is none."""
        check_path(rel, "file")
        found = self._manifest.entry(rel)
        if found is None:
            self._ask([rel])
            found = self._manifest.entry(rel)
        if found is None or found == ABSENT:
            raise make_error(
                NotFoundError, f"{rel} is missing in {self.url}", dataset=self.url, file=rel
            )
        return found

    def _told(self, rel: str) -> Entry:
        """What the server says of a file. Without a version its copies are of this start alone."""
        try:
            entry = self._files().ask(rel)
        except ReelpoolError as error:
            raise self.named(error, rel) from None
        return entry if entry.version else entry._replace(version=f"once-{uuid.uuid4().hex}")

    def _ask(self, rels: Sequence[str]) -> None:
        """Ask about files that are not known yet."""
        unknown = [rel for rel in rels if self._manifest.entry(rel) is None]
        if not unknown:
            return
        self.need_online(unknown)

        def one(rel: str) -> Entry:
            try:
                return self._told(rel)
            except NotFoundError:
                return ABSENT

        count = min(AT_ONCE, self.options.max_connections or AT_ONCE)
        listed: dict[str, dict[str, Entry]] = {}
        for rel, entry in zip(unknown, at_once(one, unknown, self.close, count)):
            listed.setdefault(folder_of(rel), {})[rel] = entry
        self._manifest.put(listed, add=True)

    def files_in(self, folder: str) -> list[str]:
        """The files of `meta/episodes`, by their numbers up to the first that is missing."""
        if folder != EPISODES_DIR:
            raise ValueError(f"{self.url} lists nothing ({folder})")
        found: list[str] = []
        chunk = file = 0
        while len(found) < MAX_FILES:
            rel = f"{EPISODES_DIR}/chunk-{chunk:03d}/file-{file:03d}.parquet"
            if self.exists(rel):
                found.append(rel)
                file += 1
            elif file:
                chunk, file = chunk + 1, 0
            else:
                break
        return found

    def exists(self, rel: str) -> bool:
        """True if there is such a file; offline, if it was known to be there."""
        if self.options.is_offline:
            return self._manifest.entry(rel) not in (None, ABSENT)
        return super().exists(rel)

    def foresee(self, rels: Sequence[str], folder: str) -> None:
        """As `RemoteRoot.foresee`; asks about them at once, too."""
        if not self.options.is_offline:
            self._ask([*rels, *(f"{folder}/{name}.parquet" for name in _FIRST_NAMES)])
        super().foresee(rels, folder)

    def prepare(self, data: Sequence[str], videos: Sequence[str]) -> None:
        """As `RemoteRoot.prepare`; asks about each file."""
        self._ask([*data, *videos])
        super().prepare(data, videos)

    def fetch_command(self, missing: Sequence[str]) -> str:
        """The command that copies the dataset to this machine."""
        return f"wget -r -np -nH {self.url}/     then pass root=DIR"
