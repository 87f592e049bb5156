"""From a repo id or root to the files of a dataset, and only to those.

Everything that `info.json` says about paths is untrusted: templates go through `PathTemplate`
(never str.format), and files open through `LocalRoot`, which keeps them beneath the root.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from . import env
from .errors import FormatError, NotFoundError, StorageError, UnsupportedMediaError, make_error

if TYPE_CHECKING:
    from .hub import Hub
    from .remote_root import RemoteRoot

logger = logging.getLogger("reelpool")

INFO_FILE = "meta/info.json"
_MAY_BE_ELSEWHERE = (".mp4", ".parquet")
MAX_PATH = 4096
REVISIONS = ("v3.0", "v2.1", "v2.0", "main")  # tried in this order when none is given

_DOWNLOAD = ".cache/huggingface/download"  # where huggingface_hub notes a download into a folder
_WEB_PAGE = re.compile(
    r"/datasets/([^/?#]+/[^/?#]+)(?:/?|/(?:tree|blob|viewer|discussions)(?:/.*)?)(?:[?#].*)?$"
)
_REPO_ID = re.compile(r"[A-Za-z0-9_.-]{1,96}(/[A-Za-z0-9_.-]{1,96})?")
_FIELD = re.compile(r"\{([^{}:!]*)(?::([^{}]*))?\}")
_INT_SPEC = re.compile(r"(0?\d{0,2})d?")


def check_path(path: str, source: str) -> str:
    """`path` if it is relative and cannot leave its root, else FormatError naming `source`."""
    why = None
    if not path or len(path) > MAX_PATH:
        why = f"has {len(path)} characters (1 to {MAX_PATH} are allowed)"
    elif not path.isprintable() and any(ord(c) < 32 or ord(c) == 127 for c in path):
        why = "holds a control character"
    elif "\\" in path:
        why = "holds a backslash"
    elif path.startswith("/") or re.match(r"[A-Za-z]:", path):
        why = "is absolute"
    elif ".." in path.split("/"):
        why = "holds '..'"
    if why:
        raise make_error(FormatError, f"{source}: path {path[:200]!r} {why}", file=INFO_FILE)
    return path


class PathTemplate:
    """A path template of `info.json`, such as
    "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet".

    `text` may hold `{name}` and `{name:03d}` for the integers in `fields`, and the names in
    `strings`, which are filled in at once. Everything else raises FormatError naming info.json and
    `where`, its field.
    """

    def __init__(self, text: object, where: str, fields: tuple[str, ...], **strings: str) -> None:
        source = f"{INFO_FILE}: {where}"
        if not isinstance(text, str):
            raise make_error(FormatError, f"{source} is not a string: {text!r}", file=INFO_FILE)
        self.names: list[str] = []

        def field(match: re.Match[str]) -> str:
            name, spec = match.group(1), match.group(2)
            if name in strings and not spec:
                return strings[name].replace("%", "%%")
            width = _INT_SPEC.fullmatch(spec or "")
            if name not in fields or width is None:
                allowed = ", ".join((*fields, *strings))
                problem = f"unknown field {match.group(0)!r} (allowed: {allowed})"
                raise make_error(FormatError, f"{source}: {problem}", file=INFO_FILE)
            self.names.append(name)
            return f"%{width.group(1)}d"

        pieces = []
        end = 0
        for match in _FIELD.finditer(text):
            pieces += [self._literal(text[end : match.start()], source), field(match)]
            end = match.end()
        pieces.append(self._literal(text[end:], source))
        self._format = "".join(pieces)
        # Integers render as digits only, so one rendered path speaks for all of them.
        check_path(self._format % tuple(0 for _ in self.names), source)

    @staticmethod
    def _literal(text: str, source: str) -> str:
        if "{" in text or "}" in text:
            raise make_error(
                FormatError, f"{source}: unbalanced brace near {text[:80]!r}", file=INFO_FILE
            )
        return text.replace("%", "%%")

    def format(self, **values: int) -> str:
        """The path for non-negative integer `values`, one for each field."""
        return self._format % tuple(values[name] for name in self.names)

    def format_many(self, **columns: list[int]) -> list[str]:
        """The paths for columns of equal length."""
        if not self.names:
            return [self._format % ()] * len(next(iter(columns.values())))
        return [self._format % row for row in zip(*(columns[name] for name in self.names))]


class LocalRoot:
    """Opens a dataset's files, none outside `path` but videos and tables that a link leads to.

    Those may lie on another disk: whatever a link names, these parsers show nothing of what is not
    theirs. Other files stay below the root; in huggingface_hub's cache all do, and in the `blobs/`
    beside `snapshots/`. Folders are resolved once each.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._real = os.path.realpath(self.path)
        self._blobs: str | None = None
        head, tail = os.path.split(os.path.dirname(self._real))
        if tail == "snapshots":
            self._blobs = os.path.realpath(os.path.join(head, "blobs"))
        self._folders: dict[str, str] = {}

    @property
    def real(self) -> str:
        """The root's absolute path, as it was at construction."""
        return self._real

    def _may_open(self, rel: str, real: str) -> bool:
        if self._blobs is None and rel.endswith(_MAY_BE_ELSEWHERE):
            return True
        bases = [self._real] if self._blobs is None else [self._real, self._blobs]
        return any(real == base or real.startswith(base.rstrip("/") + "/") for base in bases)

    def _refuse(self, rel: str, real: str) -> FormatError:
        return make_error(
            FormatError,
            f"{rel} leads out of the dataset, to {real}\n"
            f"  Only links to {' and '.join(_MAY_BE_ELSEWHERE)} files may leave {self.path}: put "
            "it there (cp -L)",
            file=rel,
        )

    def resolve(self, rel: str) -> str:
        """The absolute path of the regular file `rel`.

        Raises FormatError if it leaves the root or is no regular file, NotFoundError, StorageError.
        """
        check_path(rel, "file")
        folder, name = os.path.split(rel)
        real = self._folders.get(folder)
        if real is None:
            real = self._folders[folder] = os.path.realpath(os.path.join(self._real, folder))
        if not self._may_open(rel, real):
            raise self._refuse(rel, real)
        path = os.path.join(real, name)
        if os.path.islink(path):
            path = os.path.realpath(path)
            if not os.path.lexists(path):
                what = f"{rel} is a link to {path}, which is not there"
                raise make_error(NotFoundError, what, file=rel)
            if not self._may_open(rel, path):
                raise self._refuse(rel, path)
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise make_error(
                NotFoundError, f"{rel} is missing below {self.path}", file=rel
            ) from None
        except OSError as error:
            raise make_error(
                StorageError, f"{rel}: {error.strerror}", file=rel, status=error.errno
            ) from error
        if not stat.S_ISREG(mode):
            raise make_error(FormatError, f"{rel} is not a regular file", file=rel)
        return path

    video = resolve

    def files_in(self, folder: str) -> list[str]:
        """The files below a folder, sorted; hidden ones left out."""
        base = self.path / check_path(folder, "folder")
        found = (p.relative_to(self.path).as_posix() for p in base.rglob("*") if p.is_file())
        return sorted(rel for rel in found if "/." not in rel)

    def foresee(self, rels: Sequence[str], folder: str) -> None:
        """Nothing: local files need no time to come."""

    def exists(self, rel: str) -> bool:
        """True if `resolve(rel)` finds the file; FormatError if it leaves the root."""
        try:
            self.resolve(rel)
        except NotFoundError:
            return False
        return True

    def read_bytes(self, rel: str, limit: int | None = None) -> bytes:
        """The whole file. Raises FormatError above `limit` bytes, else as `resolve`."""
        path = self.resolve(rel)
        try:
            with open(path, "rb") as stream:
                data = stream.read() if limit is None else stream.read(limit + 1)
        except OSError as error:
            raise make_error(
                StorageError, f"{rel}: {error.strerror}", file=rel, status=error.errno
            ) from error
        if limit is not None and len(data) > limit:
            raise make_error(FormatError, f"{rel} is larger than {limit} bytes", file=rel)
        return data


class Root(NamedTuple):
    """Where a dataset lies: its directory or URL, the commit (or branch) if it is known, its repo
    id, the Hub that files missing there come from, None where they are expected to be there, and
    the root that is read by its URL, if it is such a one."""

    path: Path | str
    revision: str | None
    repo_id: str
    hub: Hub | None = None
    remote: RemoteRoot | None = None


def refuse_remote(what: str) -> UnsupportedMediaError:
    return make_error(
        UnsupportedMediaError,
        f"{what} is not read here; there are OWNER/NAME, hf://datasets/OWNER/NAME, "
        "hf://buckets/OWNER/NAME, https://HOST/PATH, s3://BUCKET/PREFIX, file:///PATH\n"
        "  Copy the dataset to this machine, then pass root=DIR",
    )


def _local(location: str) -> Path:
    """The directory behind a root argument. Raises UnsupportedMediaError for a remote one."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", location)
    if scheme is None:
        return Path(location).expanduser()
    if scheme.group(1).lower() != "file":
        raise refuse_remote(f"{scheme.group(1)}:// root")
    parts = urlsplit(location)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise ValueError(
            f"root={location!r}: use file:///absolute/path, without host, query or fragment"
        )
    return Path(unquote(parts.path))


def is_url(location: str) -> bool:
    """Whether a root is remote and not a dataset of the Hub."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", location)
    return scheme is not None and scheme.group(1).lower() != "file"


def parse_hub_url(location: str) -> tuple[str, str | None] | None:
    """(repo id, revision) of "hf://datasets/OWNER/NAME[@REVISION]"; None for another location.

    A slash in the revision is %2F, but for refs/pr/N and refs/convert/NAME. Raises ValueError for a
    malformed one, UnsupportedMediaError for a folder in it.
    """
    if not location.lower().startswith("hf://datasets/"):
        return None
    path = location[len("hf://datasets/") :].rstrip("/")
    if "?" in path or "#" in path:
        raise ValueError("a root hf://datasets/OWNER/NAME takes no query and no fragment")
    form = re.fullmatch(r"([^/@]+/[^/@]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(/.*)?", path)
    if form is None or not _REPO_ID.fullmatch(form.group(1)):
        raise ValueError(f"root={location!r}: use hf://datasets/OWNER/NAME[@REVISION]")
    if form.group(3):
        raise refuse_remote(f"a folder of a dataset ({location})")
    return form.group(1), unquote(form.group(2)) if form.group(2) else None


def _snapshots(cache: Path, repo_id: str, revision: str | None) -> list[tuple[Path, str]]:
    """Copies in a huggingface_hub cache and their commits, the wanted one first."""
    base = cache / ("datasets--" + repo_id.replace("/", "--"))
    if revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        return [(base / "snapshots" / revision, revision)]
    found = []
    for name in REVISIONS if revision is None else (revision,):
        if ".." in name.split("/") or name.startswith("/"):
            continue
        try:
            commit = (base / "refs" / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue  # no such branch in this cache
        if re.fullmatch(r"[0-9a-f]{40}", commit):
            found.append((base / "snapshots" / commit, commit))
    return found


def _find_copy(repo_id: str, revision: str | None, hub: Hub) -> Root | None:
    """A local copy of `repo_id`: HF_LEROBOT_HOME/{repo_id} (unless it is an unfinished or old
    download), else below HF_LEROBOT_HOME/hub and HF_HUB_CACHE."""
    home = env.hf_lerobot_home()
    own = home / repo_id
    if (own / INFO_FILE).is_file() and not (own / _DOWNLOAD).exists():
        return Root(own, revision, repo_id)
    for cache in (home / "hub", env.hf_hub_cache()):
        for path, commit in _snapshots(cache, repo_id, revision):
            # What another cache lacked of this commit was downloaded beside it.
            for copy in (*(p for p, _ in _snapshots(home / "hub", repo_id, commit)), path):
                if (copy / INFO_FILE).is_file():
                    return Root(copy, commit, repo_id, hub)
    return None


def _folder_commit(path: Path) -> str | None:
    """The commit that a download into `path` took, by what huggingface_hub noted of it."""
    try:
        note = (path / _DOWNLOAD / (INFO_FILE + ".metadata")).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None  # no download, or of a version that notes it elsewhere
    commit = note.partition("\n")[0].strip()
    return commit if re.fullmatch(r"[0-9a-f]{40}", commit) else None


def _resolve_folder(path: Path, repo_id: str, hub: Hub | None, force: bool) -> Root:
    """The dataset in a local folder, downloaded if the folder is none yet, or an unfinished
    download."""

    def found() -> Root | None:
        if not (path / INFO_FILE).is_file():
            return None
        begun = (path / _DOWNLOAD).exists()
        revision = hub.revision if hub is not None else None
        commit = _folder_commit(path) if begun else None
        return Root(path, commit or revision, repo_id, hub if begun else None)

    try:
        fillable = (path / _DOWNLOAD).exists() or not any(path.iterdir())
    except FileNotFoundError:
        fillable = True
    except OSError:
        fillable = False
    if force:
        if hub is None:
            raise ValueError(f"force_cache_sync=True: repo_id={repo_id!r} is not OWNER/NAME")
        folder, commit = hub.metadata()
        return Root(folder, commit, repo_id, hub)
    there = found()
    if there is not None:
        return there
    if not fillable or hub is None:
        raise make_error(
            NotFoundError,
            f"no dataset in {path}: {INFO_FILE} is missing\n"
            "  Run: hf download --repo-type dataset --local-dir "
            f"{path} {repo_id}     Or: pass the directory that holds meta/",
            dataset=repo_id,
            file=INFO_FILE,
        )
    fetched = hub.metadata(found=found)
    return fetched if isinstance(fetched, Root) else Root(*fetched, repo_id, hub)


def resolve_root(
    repo_id: str,
    root: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    repo_type: str = "dataset",
    *,
    token: str | bool | None = None,
    storage_options: dict | None = None,
    force: bool = False,
) -> Root:
    """The directory of a dataset: `root`, else a local copy of `repo_id`, else its metadata freshly
    downloaded from the Hub; or a bucket, an http(s) or an S3 root, which are read where they are.

    Copies are searched in HF_LEROBOT_HOME/{repo_id} (unless it is an unfinished or old download),
    then below HF_LEROBOT_HOME/hub and HF_HUB_CACHE at `revision` (None: v3.0, v2.1, v2.0, main).
    A `root` that is absent, empty or an unfinished download is filled from the Hub. force: the Hub
    is asked first.

    Raises NotFoundError, UnsupportedMediaError for a URL of another kind, the errors of `hub.Hub`
    and `RemoteRoot`, ValueError for a malformed repo id or root, TypeError for two revisions that
    differ; DatasetChangedError where another rank of this job has another version.
    """
    from .hub_pins import check_same

    found = _resolve_root(repo_id, root, revision, repo_type, token, storage_options, force)
    if found.remote is not None:
        check_same(found.remote.url, None, found.remote.pin)
    elif found.hub is not None:
        check_same(found.repo_id, revision, found.revision)
    return found


def _resolve_root(
    repo_id: str,
    root: str | os.PathLike[str] | None,
    revision: str | None,
    repo_type: str,
    token: str | bool | None,
    storage_options: dict | None,
    force: bool,
) -> Root:
    from .remote_options import parse_options

    if not isinstance(repo_id, str):
        raise TypeError(
            f"repo_id must be text, OWNER/NAME, not {repo_id!r}; a folder is given by root="
        )
    if repo_type not in ("dataset", "bucket"):
        raise ValueError(f"repo_type must be 'dataset' or 'bucket', not {repo_type!r}")
    if root is None and "://" in repo_id:
        root = repo_id
    spelled = None if root is None else parse_hub_url(os.fspath(root))
    if spelled is not None:
        repo_id, root = spelled[0], None
        if None not in (revision, spelled[1]) and revision != spelled[1]:
            raise TypeError(f"revision={revision!r} and @{spelled[1]} differ: give one of them")
        revision = revision or spelled[1]
    elif root is None and repo_type == "bucket":
        root = f"hf://buckets/{repo_id}"
    location = "" if root is None else os.fspath(root)
    page = _WEB_PAGE.match(location.removeprefix(env.hf_endpoint()))
    if page is not None and location.startswith(env.hf_endpoint()):
        raise ValueError(f"{location} is a web page of the Hub: use {page.group(1)!r}")
    if is_url(location):
        from .remote_roots import open_remote

        if revision is not None:
            raise ValueError(
                f"revision={revision!r}: {location.partition(':')[0]} roots have no revisions"
            )
        remote = open_remote(location, token, parse_options(storage_options))
        return Root(remote.path, None, repo_id, None, remote)
    well_formed = _REPO_ID.fullmatch(repo_id) and ".." not in repo_id and "--" not in repo_id
    if not well_formed and root is None:
        raise ValueError(f"repo_id={repo_id!r}: use OWNER/NAME, or root= for a local directory")
    folder = None if root is None else _local(os.fspath(root))
    from .hub import Hub

    options = parse_options(storage_options)
    hub = None
    if well_formed and ("/" in repo_id or root is None):
        hub = Hub(repo_id, revision, folder, token, options)
        if options.proxy or options.ca_file:
            logger.info(
                "proxy and ca_file of storage_options are for the bytes of videos: huggingface_hub "
                "takes its own from the environment (HTTPS_PROXY, SSL_CERT_FILE)"
            )
    if folder is not None:
        found = _resolve_folder(folder, repo_id, hub, force)
        return found if found.revision else found._replace(revision=revision)
    if force:
        return Root(*hub.metadata(), repo_id, hub)
    there = _find_copy(repo_id, revision, hub)
    if there is not None:
        return there
    fetched = hub.metadata(found=lambda: _find_copy(repo_id, revision, hub))
    return fetched if isinstance(fetched, Root) else Root(*fetched, repo_id, hub)
