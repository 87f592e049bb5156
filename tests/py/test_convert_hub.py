"""Fetching and pushing, with stand-ins for the Hub: nothing goes over a network."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
from convert_sets import tree, write_clips
from reelpool.__main__ import main
from reelpool.convert import hub
from reelpool.errors import AuthError, NotFoundError, RemoteError

REPO = "kim/arm"


class FakeHub:
    """A repository in memory; every call is noted."""

    def __init__(self, files, tags=("v2.1",), user="kim", corrupt=None):
        self.files, self.tags, self.user = dict(files), dict.fromkeys(tags, "old"), user
        self.corrupt = corrupt
        self.calls = []

    def whoami(self):
        if self.user is None:
            raise OSError("no token")
        return {"name": self.user, "orgs": [{"name": "lab"}]}

    def repo_exists(self, repo_id, repo_type):
        return repo_id == REPO

    def list_repo_refs(self, repo_id, repo_type):
        tags = [SimpleNamespace(name=name) for name in self.tags]
        return SimpleNamespace(tags=tags, branches=[SimpleNamespace(name="main")])

    def list_repo_files(self, repo_id, revision, repo_type):
        return list(self.files)

    def create_tag(self, repo_id, tag, revision, repo_type):
        assert tag not in self.tags
        self.calls.append(("tag", tag, revision))
        self.tags[tag] = revision

    def delete_tag(self, repo_id, tag, repo_type):
        self.calls.append(("untag", tag))
        del self.tags[tag]

    def create_commit(self, repo_id, operations, commit_message, repo_type, revision):
        self.calls.append(("commit", revision))
        for operation in operations:
            if isinstance(operation, huggingface_hub.CommitOperationDelete):
                del self.files[operation.path_in_repo]
            else:
                with open(operation.path_or_fileobj, "rb") as stream:
                    self.files[operation.path_in_repo] = stream.read()
        if self.corrupt:
            data = bytearray(self.files[self.corrupt])
            data[-1] ^= 1
            self.files[self.corrupt] = bytes(data)
        return SimpleNamespace(oid="c0ffee")

    def list_repo_tree(self, repo_id, recursive, revision, repo_type):
        import hashlib

        assert revision == "c0ffee"
        yield SimpleNamespace(path="data")  # a folder has no size
        for path, data in self.files.items():
            large = path.endswith((".mp4", ".parquet"))
            lfs = SimpleNamespace(sha256=hashlib.sha256(data).hexdigest()) if large else None
            yield SimpleNamespace(path=path, size=len(data), lfs=lfs)


def content(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@dataclasses.dataclass
class World:
    """A v2.1 dataset on a fake Hub, and an empty home."""

    hub: FakeHub
    source: object
    home: object
    fetched: list


@pytest.fixture
def world(tmp_path, monkeypatch):
    source = write_clips(tmp_path / "source")
    home = tmp_path / "home"
    monkeypatch.setenv("HF_LEROBOT_HOME", str(home))
    fake = FakeHub(content(source) | {"README.md": b"of the arm", "notes.txt": b"kept"})
    made = World(fake, source, home, [])

    def download(repo_id, repo_type, revision, local_dir):
        assert (repo_id, repo_type) == (REPO, "dataset")
        made.fetched.append(revision)
        shutil.copytree(source, local_dir, dirs_exist_ok=True)

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return made


def test_fetch_convert_push(world, capsys):
    """One commit; nothing taken away before it, nothing tagged before the comparison."""
    assert main(["convert", "--repo-id", REPO, "--push-to-hub", "true", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    root = world.home / REPO
    assert document["target"] == str(root) and document["commit"] == "c0ffee"
    assert world.fetched == ["v2.1"]
    assert world.hub.calls == [("commit", "main"), ("tag", "v3.0", "c0ffee")]
    left = set(world.hub.files)
    assert left == set(tree(root)) | {"README.md", "notes.txt"}
    assert all(world.hub.files[name] == data for name, data in content(root).items())


def test_without_a_word_nothing_is_pushed(world):
    for words in ([], ["--no-push"], ["--push-to-hub", "true", "--no-push"]):
        root = world.home / f"kim/set{len(words)}"
        shutil.copytree(world.source, root)
        assert main(["convert", "--repo-id", REPO, "--root", str(root), "-q", *words]) == 0
    assert world.hub.calls == [] and world.fetched == []


def test_a_local_copy_is_not_fetched_again(world):
    shutil.copytree(world.source, world.home / REPO)
    assert main(["convert", REPO, "-q"]) == 0
    assert world.fetched == []


def test_v30_on_the_hub_is_fetched_instead(world, capsys):
    world.hub.tags["v3.0"] = "newer"
    assert main(["convert", "--repo-id", REPO]) == 0
    assert world.fetched == ["v3.0"]
    assert "v3.0 on the Hub" in capsys.readouterr().out
    shutil.rmtree(world.home)
    assert main(["convert", "--repo-id", REPO, "--force-conversion"]) == 0
    assert world.fetched == ["v3.0", "v2.1"]
    assert (world.home / REPO / "meta/tasks.parquet").exists()


def test_an_unfinished_download_is_no_dataset(world, monkeypatch):
    def breaks(repo_id, repo_type, revision, local_dir):
        shutil.copytree(world.source / "meta", local_dir / "meta")
        raise ConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "snapshot_download", breaks)
        assert main(["convert", "--repo-id", REPO]) == 3
    assert not (world.home / REPO).exists()
    assert main(["convert", "--repo-id", REPO]) == 0


def test_an_older_tag_moves_after_the_comparison(world):
    root = world.home / REPO
    shutil.copytree(world.source, root)
    world.hub.tags["v3.0"] = "newer"
    assert main(["convert", "--repo-id", REPO, "--push-to-hub=true", "--branch", "dev"]) == 0
    assert world.hub.calls == [("commit", "dev"), ("untag", "v3.0"), ("tag", "v3.0", "c0ffee")]


def test_without_a_v21_tag_the_old_files_get_one(world):
    world.hub.tags.clear()
    assert main(["convert", "--repo-id", REPO, "--push-to-hub=true"]) == 0
    assert world.hub.calls[0] == ("tag", "v2.1", "main")


@pytest.mark.parametrize("name", ["meta/info.json", "data/chunk-000/file-000.parquet"])
def test_other_bytes_on_the_hub_get_no_tag(world, name):
    """Sizes of all files, check sums of the large ones."""
    root = world.home / REPO
    shutil.copytree(world.source, root)
    assert main(["convert", "--root", str(root), "-q"]) == 0
    if name == "meta/info.json":
        real = world.hub.list_repo_tree
        world.hub.list_repo_tree = lambda *a, **k: (e for e in real(*a, **k) if e.path != name)
    else:
        world.hub.corrupt = name
    with pytest.raises(RemoteError, match=f"{name}; no tag"):
        hub.push(REPO, root)
    assert [call[0] for call in world.hub.calls] == ["commit"]


@pytest.mark.parametrize(
    "repo, user, error", [(REPO, None, AuthError), (REPO, "eve", AuthError),
                          ("lab/none", "kim", NotFoundError)]
)  # fmt: skip
def test_access_is_seen_before_the_work(world, repo, user, error):
    world.hub.user = user
    with pytest.raises(error):
        hub.check_access(repo)
    root = world.home / "there"
    shutil.copytree(world.source, root)
    before = tree(root)
    words = ["convert", "--repo-id", repo, "--root", str(root), "--push-to-hub", "true"]
    assert main(words) == 3
    assert tree(root) == before and world.hub.calls == []


def test_pushing_needs_a_name(world, capsys):
    assert main(["convert", str(world.source), "--push-to-hub", "true"]) == 3
    assert "--repo-id" in capsys.readouterr().err
