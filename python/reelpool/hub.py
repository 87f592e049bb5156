"""A dataset on the Hugging Face Hub: its commit, its metadata, its files, downloaded whole.

Everything goes through huggingface_hub, into its cache layout below HF_LEROBOT_HOME/hub or into a
local folder, and stays pinned to one commit. `meta/info.json` comes last of the metadata: where it
is, the rest of `meta/` is.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import env
from .errors import (
    AuthError,
    MissingExtraError,
    NotFoundError,
    OfflineError,
    ReelpoolError,
    RemoteError,
    StorageError,
    make_error,
)
from .hub_calls import (
    API_ATTEMPT_S,
    FILES_ATTEMPT_S,
    IN_A_ROW,
    Beat,
    Caller,
    Failure,
    quiet_logs,
)
from .hub_pins import first_of_job
from .hub_place import alone, bar_class, escaped, is_loopback, stored_token, switched_off
from .remote_options import Options, parse_options
from .roots import INFO_FILE, check_path

if TYPE_CHECKING:
    from .hub_cold import ColdStart

logger = logging.getLogger("reelpool")

COMMIT = re.compile(r"[0-9a-f]{40}")
FALLBACKS = ("v2.1", "v2.0")  # tried in this order where no v3.x is
PATTERNS = 256  # files named per call: huggingface_hub matches each of its files with each of them

__all__ = ["Hub", "Options", "check_revision", "parse_options"]


def check_revision(revision: str | None) -> str | None:
    """`revision` if it can be a branch, tag or commit, else ValueError."""
    if revision is None:
        return None
    bad = not isinstance(revision, str) or not re.fullmatch(r"[^\x00-\x20\x7f~^:?*\[\\#%]{1,255}",
                                                            revision)  # fmt: skip
    if bad or ".." in revision or revision.startswith(("/", "-")) or revision.endswith("/"):
        raise ValueError(f"revision={revision!r}: use a branch, a tag or a commit")
    return revision


class Hub:
    """One dataset on the Hub, and the place its files go to.

    folder: a local folder; None: the cache below HF_LEROBOT_HOME/hub. kind: "datasets" or "buckets"
    (of which only `bucket_files` speaks). Nothing is asked before a method needs it. Methods raise
    AuthError, NotFoundError, OfflineError, StorageError, RemoteError and its RemoteTimeoutError;
    the token enters none of them.
    """

    def __init__(
        self,
        repo_id: str,
        revision: str | None,
        folder: Path | None,
        token: str | bool | None = None,
        options: Options | None = None,
        kind: str = "datasets",
    ) -> None:
        self.repo_id, self.revision, self.folder = repo_id, check_revision(revision), folder
        self.what = f"{kind}/{repo_id}"
        self.options = options or Options()
        self.endpoint = env.hf_endpoint()
        parts = urlsplit(self.endpoint)
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._plain = parts.scheme == "http" and not is_loopback(parts.hostname or "")
        self._token = token
        self._caller = Caller(self.what, self._origin, self.options.network_timeout)
        self._cold: ColdStart | None = None

    @property
    def offline(self) -> bool:
        """True if no request may be made."""
        return self.options.is_offline

    @property
    def cache(self) -> Path:
        """huggingface_hub's cache that downloads go to."""
        return env.hf_lerobot_home() / "hub"

    # -- what is asked --

    def pin(self) -> str:
        """The commit behind the revision, the same for all ranks of a job: one request; none for a
        commit, two for None.
        """
        if self.revision is not None and COMMIT.fullmatch(self.revision):
            return self.revision
        what = f"{self._origin} {self.repo_id} {self.revision}"
        try:
            commit, self._name = first_of_job(what, self._ask_pin)
        except OSError as error:
            raise error if isinstance(error, ReelpoolError) else self._disk(error) from None
        return commit

    def _ask_pin(self) -> tuple[str, str]:
        """(commit, branch or tag) of the revision."""
        cold = self.cold()
        found = cold and cold.pin(self.revision, self._choose)
        if found and COMMIT.fullmatch(found[1]):
            return self._pinned(*found)
        self._caller.spent = cold.seconds if cold else 0.0
        name = self.revision or self._newest()
        info = self._ask(
            f"revision {name}",
            lambda api: api.dataset_info(self.repo_id, revision=name, timeout=API_ATTEMPT_S),
        )
        if not COMMIT.fullmatch(str(info.sha)):
            raise self._error(RemoteError, "its answer has no commit: this is no Hub endpoint")
        return self._pinned(name, info.sha, info.id)

    def _pinned(self, name: str, commit: str, repo_id: Any) -> tuple[str, str]:
        if repo_id != self.repo_id and isinstance(repo_id, str):
            logger.warning("%s is called %s now: use that name", self.repo_id, repo_id)
        return commit, name

    _name: str | None = None

    def _newest(self) -> str:
        """The branch or tag of the newest format that is read, else main."""
        refs = self._ask(
            "branches and tags", lambda api: api.list_repo_refs(self.repo_id, repo_type="dataset")
        )
        return self._choose({ref.name for ref in [*refs.branches, *refs.tags]})

    def _choose(self, names: set[str]) -> str:
        """As `_newest`, of all names there are."""
        threes = [(int(m[1]), n) for n in names if (m := re.fullmatch(r"v3\.(\d{1,4})", n))]
        found = [name for minor, name in sorted(threes, reverse=True) if minor <= 0]
        found += [name for name in FALLBACKS if name in names]
        if found:
            return found[0]
        logger.warning(
            "%s has no branch or tag v3.0, v2.1 or v2.0: main is read; revision= names another",
            self.repo_id,
        )
        return "main"

    def facts(self) -> str:
        """One request of the API, for people: the commit of the revision or of main; without a repo
        id only that the Hub answers.
        """
        if not self.repo_id:
            self._ask("the list of datasets", lambda api: list(api.list_datasets(limit=1)))
            return "the list of datasets"
        name = self.revision or "main"
        info = self._ask(
            f"revision {name}",
            lambda api: api.dataset_info(self.repo_id, revision=name, timeout=API_ATTEMPT_S),
        )
        return f"{info.id} at {name} is commit {str(info.sha)[:12]}"

    # -- what is fetched --

    def metadata(self, commit: str | None = None, found: Callable[[], Any] = lambda: None) -> Any:
        """`found()` once no other process downloads, if it is true; else (folder, commit) of the
        metadata, downloaded. commit: the one to take, instead of the revision's.
        """
        if self.offline:
            where = self.folder or f"{self.cache} or {env.hf_hub_cache()}"
            raise self._offline(f"no copy of {self.repo_id} in {where}", [])
        with self.alone():
            there = found()
            if there:
                return there
            commit = commit or self.pin()
            cold = self.cold()
            if cold is not None and self._came_whole(cold, commit):
                self._note_revision(commit)
                return cold.place(commit).folder, commit
            listed = self._meta_files(commit)
            folder = self._bring(commit, ["meta/*"], [r for r in listed if r != INFO_FILE])
            self._bring(commit, [INFO_FILE], [INFO_FILE])
            self._note_revision(commit)
        return folder, commit

    def cold(self) -> ColdStart | None:
        """The short way to this dataset's files; None where huggingface_hub goes the long one: for
        downloads into a folder, and once the short one gave nothing.
        """
        if self.folder is not None or self.offline or switched_off():
            return None
        if self._cold is None:
            from .hub_cold import ColdStart

            self._cold = ColdStart(self)
        return None if self._cold.broken else self._cold

    def _came_whole(self, cold: ColdStart, commit: str) -> bool:
        try:
            return cold.metadata(commit, self._name)
        except OSError as error:
            if isinstance(error, RemoteError):
                raise
            logger.debug("%s", error)  # huggingface_hub meets it, too, and says so
            return False

    def _meta_files(self, commit: str) -> list[str]:
        """The files of meta/ at a commit. NotFoundError if info.json is not among them."""
        entries = self.tree(commit, "meta")
        names = [check_path(e.path, "the Hub") for e in entries if hasattr(e, "size")]
        if INFO_FILE not in names:
            raise self._error(
                NotFoundError,
                f"commit {commit[:12]} has no {INFO_FILE}: no LeRobot dataset, or no finished one",
                file=INFO_FILE,
            )
        return names

    def tree(self, commit: str, folder: str) -> list[Any]:
        """What a commit has below a folder, as huggingface_hub lists it; [] without the folder."""
        return self._ask(
            f"the list of {folder}/",
            lambda api: list(
                api.list_repo_tree(
                    self.repo_id, folder, recursive=True, revision=commit, repo_type="dataset"
                )
            ),
            no_entry=[],
        )

    def bucket_files(self, prefix: str) -> list[Any]:
        """Files of a bucket whose paths begin with a prefix, as huggingface_hub lists them."""
        from huggingface_hub import HfApi

        if not hasattr(HfApi, "list_bucket_tree"):
            raise MissingExtraError(
                "buckets need a newer huggingface_hub. Run: pip install 'huggingface_hub>=1.6'"
            )
        return self._ask(
            f"the list of {prefix or 'its files'}",
            lambda api: list(api.list_bucket_tree(self.repo_id, prefix or None, recursive=True)),
            no_entry=[],
        )

    def files(
        self, commit: str, wanted: Sequence[str], folder: Path, whole: bool, again: bool
    ) -> None:
        """Download those of `wanted` that are not in `folder` yet.

        whole: `wanted` is all of data/ and videos/; again: ask for those that are there, too.
        """
        with self.alone():
            missing = [rel for rel in wanted if again or not (folder / rel).exists()]
            if not missing:
                return
            if whole and len(missing) == len(wanted):
                patterns = sorted({escaped(rel.rpartition("/")[0]) + "/*" for rel in missing})
            else:
                patterns = [escaped(rel) for rel in missing]
            self._bring(commit, patterns, missing)

    def _bring(self, commit: str, patterns: list[str], wanted: Sequence[str]) -> Path:
        """Download what matches; the folder. huggingface_hub may return without the files when the
        Hub fails, so `wanted` is looked for: NotFoundError for what the commit does not have.
        """
        but = None if INFO_FILE in wanted else [INFO_FILE]
        for _ in range(IN_A_ROW):
            for start in range(0, len(patterns), PATTERNS):
                folder = self._snapshot(commit, patterns[start : start + PATTERNS], but)
            left = [rel for rel in wanted if not (folder / rel).exists()]
            if not left:
                return folder
            absent = self._absent(commit, left[:100])
            if absent:
                raise self._error(
                    NotFoundError, f"commit {commit[:12]} has no {absent[0]}",
                    "  Check the dataset; episodes= leaves episodes out", file=absent[0],
                )  # fmt: skip
        raise self._error(RemoteError, f"{left[0]} did not arrive", file=left[0])

    def _absent(self, commit: str, paths: list[str]) -> list[str]:
        """Those of `paths` that the commit does not have."""
        there = self._ask(
            f"a look for {paths[0]}",
            lambda api: api.get_paths_info(
                self.repo_id, paths, revision=commit, repo_type="dataset"
            ),
        )
        names = {entry.path for entry in there}
        return [rel for rel in paths if rel not in names]

    def need_online(self, missing: Sequence[str]) -> None:
        """OfflineError if `missing` cannot be fetched because the network is switched off."""
        if missing and self.offline:
            raise self._offline(f"{len(missing)} files of {self.repo_id} are not here "
                                f"({missing[0]})", missing)  # fmt: skip

    def _snapshot(self, commit: str, patterns: list[str], but: list[str] | None = None) -> Path:
        from huggingface_hub import snapshot_download

        self.need_online(patterns)
        place = {"cache_dir": self.cache} if self.folder is None else {"local_dir": self.folder}
        show = sys.stderr is not None and sys.stderr.isatty() and not env.progress_disabled()
        token = self._checked_token()

        def fetch(beat: Beat) -> str:
            return snapshot_download(
                self.repo_id, repo_type="dataset", revision=commit, allow_patterns=patterns,
                ignore_patterns=but, endpoint=self.endpoint, token=token, library_name="reelpool",
                tqdm_class=bar_class(beat, show), **place,
            )  # fmt: skip

        what = patterns[0] if len(patterns) == 1 else f"{len(patterns)} files"
        return Path(self._done(self._caller.call(what, fetch, FILES_ATTEMPT_S, self._unfinished)))

    def _unfinished(self) -> int:
        """Bytes in the files that are being downloaded, here or by another process."""
        place = self.cache / f"datasets--{self.repo_id.replace('/', '--')}" / "blobs"
        if self.folder is not None:
            place = self.folder / ".cache/huggingface/download"
        size = 0
        for path in place.rglob("*.incomplete"):
            with suppress(OSError):  # it was finished meanwhile
                size += path.stat().st_size
        return size

    def _ask(self, doing: str, function: Callable[[Any], Any], no_entry: Any = None) -> Any:
        """A call of the API. no_entry: what it means that the path does not exist."""
        from huggingface_hub import HfApi

        quiet_logs()
        api = HfApi(endpoint=self.endpoint, token=self._checked_token(), library_name="reelpool")
        outcome = self._caller.call(doing, lambda beat: function(api))
        if (
            isinstance(outcome, Failure)
            and outcome.code == "EntryNotFound"
            and no_entry is not None
        ):
            return no_entry
        return self._done(outcome)

    def _note_revision(self, commit: str) -> None:
        """Write which commit the branch or tag is, as huggingface_hub does: for the next start,
        which asks nothing."""
        if self.folder is not None or self._name is None:
            return
        path = self.cache / f"datasets--{self.repo_id.replace('/', '--')}" / "refs" / self._name
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(commit)
            temporary.replace(path)
        except OSError as error:
            raise self._disk(error) from None

    def alone(self) -> Any:
        """A context: the processes of a node that want this dataset in this place go one after the
        other.
        """
        place = os.path.realpath(self.folder or self.cache)
        try:
            return alone(f"{self._origin} {self.repo_id} {place}")
        except OSError as error:
            raise self._disk(error) from None

    # -- tokens --

    def _checked_token(self) -> str | bool | None:
        """The token to send: only over TLS, or to this machine, or where plain http is allowed."""
        parts = urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError("HF_ENDPOINT must be http(s)://host[:port]")
        if "@" in parts.netloc:
            raise ValueError("HF_ENDPOINT must not hold a user name or password")
        token = self._token
        if token is False or (token is None and env.hub_implicit_token_disabled()):
            return False
        if not isinstance(token, str):
            stored = stored_token()
            if not stored:
                return token if token else False
            token = stored
        if not re.fullmatch(r"[\x21-\x7e]{1,4096}", token):
            raise ValueError("the token holds a space, a line break or another foreign character")
        if self._plain and not self.options.allow_http:
            if self._token is None:
                logger.warning(
                    "%s is plain http: no token is sent; storage_options={'allow_http': True} "
                    "sends it", self._origin,
                )  # fmt: skip
                return False
            raise ValueError(
                f"{self._origin} is plain http, which shows the token to everyone on the way: use "
                "https, or storage_options={'allow_http': True}"
            )
        return token

    @property
    def token_wanted(self) -> bool | None:
        """What a copy in another process is told of the token: never the token itself."""
        return None if isinstance(self._token, str) else self._token

    def token(self) -> str | None:
        """The token that may be sent, None for none. AuthError where one is wanted and missing."""
        token = self._checked_token()
        if token is True:
            self._done(Failure(AuthError, "token=True, but no token is stored here"))
        return token or None

    def token_word(self) -> str:
        """How a token is known, for people: "none", "given" or "stored"."""
        token = self._checked_token()
        return ("given" if isinstance(self._token, str) else "stored") if token else "none"

    # -- errors --

    def _done(self, outcome: Any) -> Any:
        if not isinstance(outcome, Failure):
            return outcome
        cls, text = outcome.cls, outcome.text
        page = f"{self.endpoint}/{self.what}"
        advice = "  Try again later; the text above is what was met"
        if cls is AuthError:
            state = "gated" if outcome.code == "GatedRepo" else "missing, private or gated"
            text += f" ({state}; token: {self.token_word()})"
            advice = "  Run: hf auth login     Or: set HF_TOKEN, or pass token="
            if outcome.code == "GatedRepo":
                advice = f"  Ask for access on {page} first.\n{advice}"
        elif cls is NotFoundError:
            advice = f"  Check the name and the revision on {page}"
            if outcome.code == "RevisionNotFound":
                text = f"has no revision {self.revision or self._name}"
            elif outcome.code == "RepoNotFound":
                kind = self.what.partition("s/")[0]
                text += f": there is no such {kind}, or the token does not show it"
        elif cls is OfflineError:
            raise self._offline(text, [])
        elif cls is StorageError:
            advice = "  Free space, or move the downloads by HF_LEROBOT_HOME; check permissions"
        raise self._error(cls, text, advice, status=outcome.status)

    def _error(
        self, cls: type[BaseException], text: str, advice: str = "", **coords: Any
    ) -> BaseException:
        message = f"{self._origin}, {self.what}: {text}"
        if self.folder is not None and not (self.folder / INFO_FILE).is_file():
            message = f"no dataset in {self.folder}, and from {message}"
        if isinstance(self._token, str):
            message = message.replace(self._token, "***")
        return make_error(
            cls, f"{message}\n{advice}".rstrip(), dataset=self.repo_id, revision=self.revision,
            **coords,
        )  # fmt: skip

    def other_bytes(self, rel: str, commit: str) -> BaseException:
        """That a file came, again and again, with other bytes than its commit lists."""
        return self._error(
            RemoteError, f"{rel} came with other bytes than commit {commit[:12]} lists",
            "  A proxy or a mirror changes files: check HF_ENDPOINT and HTTPS_PROXY", file=rel,
        )  # fmt: skip

    def _disk(self, error: OSError) -> BaseException:
        what = f"{error.filename or self.cache}: {error.strerror or error}"
        return make_error(
            StorageError, f"{what}\n  Check it, or set HF_LEROBOT_HOME (downloads) and "
            "REELPOOL_CACHE (locks)", dataset=self.repo_id, status=error.errno,
        )  # fmt: skip

    def _offline(self, text: str, missing: Sequence[str]) -> BaseException:
        place = f"--cache-dir {self.cache}"
        if self.folder is not None:
            place = f"--local-dir {self.folder}"
        at = f" --revision {self.revision}" if self.revision else ""
        which = "" if len(missing) != 1 else f" {missing[0]}"
        return make_error(
            OfflineError,
            f"{text}, and the network is switched off (HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE or "
            "storage_options)\n"
            f"  Run: HF_HUB_OFFLINE=0 hf download --repo-type dataset{at} {place} {self.repo_id}"
            f"{which}",
            dataset=self.repo_id, revision=self.revision,
            file=missing[0] if missing else None,
        )  # fmt: skip
