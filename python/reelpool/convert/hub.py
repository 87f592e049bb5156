"""Datasets of the Hub: fetched before, pushed after a conversion. Needs huggingface_hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import AuthError, NotFoundError, RemoteError, make_error
from .durable import file_digest

V21, V30 = "v2.1", "v3.0"
_OLD = ("meta/episodes.jsonl", "meta/episodes_stats.jsonl", "meta/tasks.jsonl")


def fetch(repo_id: str, root: Path, force: bool) -> bool:
    """Download a dataset to `root`, which does not exist: v3.0 if the Hub has it (False returned),
    unless `force`; else v2.1 (True).

    An unfinished download stays beside `root` and is resumed. Raises what huggingface_hub raises.
    """
    import huggingface_hub

    names = set() if force else _revisions(huggingface_hub.HfApi(), repo_id)
    revision = V30 if V30 in names else V21
    part = root.with_name(f"{root.name}_{revision}.download")
    huggingface_hub.snapshot_download(
        repo_id, repo_type="dataset", revision=revision, local_dir=part
    )
    os.rename(part, root)
    return revision == V21


def _revisions(api: Any, repo_id: str) -> set[str]:
    refs = api.list_repo_refs(repo_id, repo_type="dataset")
    return {ref.name for ref in (*refs.tags, *refs.branches)}


def check_access(repo_id: str, api: Any = None) -> None:
    """See that a push can work before hours are spent. Raises AuthError, NotFoundError."""
    import huggingface_hub

    api = api or huggingface_hub.HfApi()
    try:
        user = api.whoami()
    except Exception as error:
        text = f"pushing {repo_id} needs a token of the Hub\n  Run: hf auth login"
        raise make_error(AuthError, text, dataset=repo_id) from error
    owner = repo_id.split("/")[0]
    owners = {user.get("name"), *(org.get("name") for org in user.get("orgs") or [])}
    if owner not in owners:
        text = f"the token of {user.get('name')} cannot write to {repo_id}"
        raise make_error(AuthError, text, dataset=repo_id)
    if not api.repo_exists(repo_id, repo_type="dataset"):
        text = f"{repo_id} is not on the Hub\n  Run: hf repo create --repo-type dataset {repo_id}"
        raise make_error(NotFoundError, text, dataset=repo_id)


def push(repo_id: str, root: Path, branch: str | None = None, api: Any = None) -> str:
    """Upload the dataset as one commit, compare, then tag it v3.0; the commit's id.

    The commit also takes the v2 layout's files off the branch, because readers of v3.0 take every
    Parquet file below data/ for theirs; the tag v2.1 is made first where there is none, so that
    they stay reachable. Nothing is deleted before the commit, and a tag moves only after the
    comparison. Raises RemoteError if the Hub holds something else, else what huggingface_hub
    raises.
    """
    import huggingface_hub as hub

    api = api or hub.HfApi()
    revision = branch or "main"
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    there = set(api.list_repo_files(repo_id, revision=revision, repo_type="dataset"))
    old = sorted(name for name in there - set(files) if _is_old(name))
    names = _revisions(api, repo_id)
    if old and V21 not in names:
        api.create_tag(repo_id, tag=V21, revision=revision, repo_type="dataset")
    operations: list[Any] = [
        hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=root / name) for name in files
    ]
    operations += [hub.CommitOperationDelete(path_in_repo=name) for name in old]
    commit = api.create_commit(
        repo_id, operations, commit_message="Convert to v3.0 with reelpool",
        repo_type="dataset", revision=revision,
    )  # fmt: skip
    _compare(api, repo_id, root, files, commit.oid)
    if V30 in names:
        api.delete_tag(repo_id, tag=V30, repo_type="dataset")
    api.create_tag(repo_id, tag=V30, revision=commit.oid, repo_type="dataset")
    return commit.oid


def _is_old(name: str) -> bool:
    parts = name.split("/")
    episode = parts[-1].startswith("episode_")
    return name in _OLD or (episode and parts[0] in ("data", "videos"))


def _compare(api: Any, repo_id: str, root: Path, files: list[str], revision: str) -> None:
    """What the Hub lists after the commit must be what lies here."""
    listed = api.list_repo_tree(repo_id, recursive=True, revision=revision, repo_type="dataset")
    found = {entry.path: entry for entry in listed if getattr(entry, "size", None) is not None}
    wrong = []
    for name in files:
        entry, path = found.get(name), root / name
        same = entry is not None and entry.size == path.stat().st_size
        if same and entry.lfs is not None:  # small files have no SHA-256 there
            same = entry.lfs.sha256 == file_digest(path)[1]
        if not same:
            wrong.append(name)
    if wrong:
        text = f"{repo_id}: the Hub holds other bytes of {', '.join(wrong[:5])}; no tag was set"
        raise make_error(RemoteError, text, dataset=repo_id, file=wrong[0])
