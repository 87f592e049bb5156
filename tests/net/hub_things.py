"""What the stand-in for the Hub holds: files, datasets, buckets, faults."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path


class Blob:
    """The bytes of a file: given, or read from a path when they are wanted."""

    def __init__(self, source: bytes | Path) -> None:
        self.source = source
        self._facts: tuple[int, str, str] | None = None

    def data(self) -> bytes:
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()

    def facts(self) -> tuple[int, str, str]:
        """(size, git's SHA-1, SHA-256)."""
        if self._facts is None:
            data = self.data()
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            self._facts = len(data), git, hashlib.sha256(data).hexdigest()
        return self._facts


def files_of(folder: Path) -> dict[str, Blob]:
    """{path: Blob} of a folder."""
    return {
        p.relative_to(folder).as_posix(): Blob(p) for p in sorted(folder.rglob("*")) if p.is_file()
    }


@dataclass
class Repo:
    """One dataset. `readers`: tokens that may read it if it is private or gated."""

    id: str
    private: bool = False
    gated: bool = False
    readers: set[str] = field(default_factory=set)
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, Blob], branch: str = "main") -> str:
        """A new commit of exactly these files; `branch` moves to it. Its SHA."""
        text = json.dumps([self.id, len(self.commits), branch, sorted(files)])
        sha = hashlib.sha1(text.encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.branches[branch] = sha
        return sha

    def find(self, revision: str) -> str | None:
        """The commit of a branch, tag or commit."""
        if revision in self.commits:
            return revision
        return self.branches.get(revision) or self.tags.get(revision)


@dataclass
class Bucket:
    """Files without commits; `readers` as a repository's."""

    id: str
    files: dict[str, Blob]
    private: bool = False
    readers: set[str] = field(default_factory=set)


@dataclass
class Fault:
    """What happens to requests whose "METHOD origin path" matches: `times` of them, or all."""

    pattern: re.Pattern[str]
    action: str  # status, reset, cut, stall, silent, strip, page (HTML), flip (one bit), call
    value: object = None
    headers: dict[str, str] = field(default_factory=dict)
    times: int | None = None
