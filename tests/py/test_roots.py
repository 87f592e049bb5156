"""From a repo id or root to files: places, remote roots, templates, links."""

import os
from pathlib import Path

import pytest
from reelpool.errors import FormatError, NotFoundError, OfflineError, UnsupportedMediaError
from reelpool.metadata import LeRobotDatasetMetadata
from reelpool.roots import LocalRoot, PathTemplate, parse_hub_url, resolve_root
from written_datasets import write_v30


def test_templates_render_as_str_format_does():
    text = "d%s/{video_key}/{a:03d}-{b}-{a:d}%d{b:2d}{b:02}"
    template = PathTemplate(text, "f", ("a", "b"), video_key="cam%s")
    for a, b in ((0, 0), (7, 12345), (123456, 1)):
        want = text.format(video_key="cam%s", a=a, b=b)
        assert template.format(a=a, b=b) == want == template.format_many(a=[a], b=[b])[0]
    assert PathTemplate("one", "f", ("a",)).format_many(a=[1, 2]) == ["one", "one"]


def test_root_is_found_in_its_places(tmp_path, monkeypatch):
    home, hub = tmp_path / "lerobot", tmp_path / "hub"
    monkeypatch.setenv("HF_LEROBOT_HOME", str(home))
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError, match="no copy of o/n") as caught:
        resolve_root("o/n")
    assert "hf download" in str(caught.value) and caught.value.dataset == "o/n"

    sha, other = "a" * 40, "b" * 40
    cache = hub / "datasets--o--n"
    write_v30(cache / "snapshots" / sha)
    with pytest.raises(OfflineError):
        resolve_root("o/n")  # no branch leads there
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text(sha)
    assert resolve_root("o/n")[:3] == (cache / "snapshots" / sha, sha, "o/n")
    assert resolve_root("o/n", revision=sha).path == cache / "snapshots" / sha
    write_v30(home / "hub/datasets--o--n/snapshots" / other)
    (home / "hub/datasets--o--n/refs").mkdir()
    (home / "hub/datasets--o--n/refs/v3.0").write_text(other)
    assert resolve_root("o/n").revision == other
    assert resolve_root("o/n", revision="main").revision == sha

    write_v30(home / "o/n")
    assert resolve_root("o/n").path == home / "o/n"
    (home / "o/n/.cache/huggingface/download").mkdir(parents=True)
    assert resolve_root("o/n").revision == other
    assert LeRobotDatasetMetadata("o/n").total_frames == 12


def test_root_spellings(tmp_path):
    root = write_v30(tmp_path / "a set")
    assert resolve_root("x/y", str(root)).path == root
    assert resolve_root("x/y", f"file://{tmp_path}/a%20set").path == root
    assert resolve_root(f"file://{root}").path == root
    assert LeRobotDatasetMetadata("anything at all", root).total_episodes == 3
    with pytest.raises(ValueError, match="file:///"):
        resolve_root("x/y", f"file://host{root}")
    with pytest.raises(NotFoundError, match="no dataset in"):
        resolve_root("x/y", tmp_path)  # somebody's folder: nothing is downloaded into it


@pytest.mark.parametrize(
    "location, wanted",
    [
        ("hf://datasets/o/n", ("o/n", None)),
        ("HF://datasets/o/n/", ("o/n", None)),
        ("hf://datasets/o/n@v3.0", ("o/n", "v3.0")),
        ("hf://datasets/o/n@a%2Fb", ("o/n", "a/b")),
        ("hf://datasets/o/n@refs/pr/3", ("o/n", "refs/pr/3")),
        ("hf://buckets/o/n", None),
        ("/a/b", None),
    ],
)
def test_hub_urls(location, wanted):
    assert parse_hub_url(location) == wanted


@pytest.mark.parametrize(
    "location",
    ["hf://datasets/o", "hf://datasets/o/n?x=1", "hf://datasets/o/n@", "hf://datasets//n"],
)
def test_malformed_hub_urls(location):
    with pytest.raises(ValueError, match="hf://datasets/OWNER/NAME"):
        parse_hub_url(location)


def test_hub_urls_are_repo_ids(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_v30(tmp_path / "o/n")
    for arguments in (("hf://datasets/o/n",), ("x", "hf://datasets/o/n@main")):
        meta = LeRobotDatasetMetadata(*arguments)
        assert (meta.repo_id, meta.root) == ("o/n", tmp_path / "o/n")
    assert meta.revision == "main"
    with pytest.raises(TypeError, match="differ"):
        resolve_root("hf://datasets/o/n@main", revision="v3.0")
    with pytest.raises(UnsupportedMediaError, match="a folder of"):
        resolve_root("hf://datasets/o/n@main/sub")
    for revision in ("a..b", "a b", "/a", "a?b", ""):
        with pytest.raises(ValueError, match="revision"):
            resolve_root("o/n", revision=revision)


def test_storage_options_are_checked(tmp_path):
    root = write_v30(tmp_path / "set")
    with pytest.raises(TypeError, match="'colour'"):
        LeRobotDatasetMetadata("a/b", root, storage_options={"colour": 1})
    for timeout in (0, -1, "5", True):
        with pytest.raises(ValueError, match="network_timeout"):
            LeRobotDatasetMetadata("a/b", root, storage_options={"network_timeout": timeout})


@pytest.mark.parametrize("root", ["gs://b/x", "az://h/x?token=abc", "hf://datasets/a/b/folder"])
def test_remote_roots_say_what_to_do(root):
    for arguments in ((root,), ("a/b", root)):
        with pytest.raises(UnsupportedMediaError, match="root=DIR") as caught:
            resolve_root(*arguments)
        assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    "root",
    [
        "https://h/x?token=abc",
        "https://abc:abc@h/x",
        "https://h/x#abc",
        "https:///x",
        "https://h/a b",
        "https://h/../x",
        "hf://buckets/a",
        "hf://buckets/a/b/../c",
        "hf://buckets/a/b?token=abc",
    ],
)
def test_malformed_roots(root):
    with pytest.raises(ValueError, match="use h") as caught:
        resolve_root("a/b", root)
    assert "abc" not in str(caught.value)
    with pytest.raises(ValueError, match="have no revisions"):
        resolve_root("a/b", "https://h/x", "v3.0")


@pytest.mark.parametrize(
    "repo_id", ["", "../x", "a/b/c", "a b/c", "a--b/c", "/abs", "a/" + "x" * 97]
)
def test_malformed_repo_id(repo_id):
    with pytest.raises(ValueError, match="repo_id"):
        resolve_root(repo_id)


def test_links_stay_below_the_root(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("x")
    base = tmp_path / "set"
    (base / "in").mkdir(parents=True)
    (base / "in/f").write_text("y")
    (base / "good").symlink_to("in/f")
    (base / "goodfolder").symlink_to("in")
    (base / "bad").symlink_to(outside / "f")
    (base / "badfolder").symlink_to(outside)
    (base / "dangling").symlink_to("nowhere")
    (tmp_path / "set2").mkdir()
    (tmp_path / "set2/f").write_text("z")
    (base / "sibling").symlink_to("../set2/f")
    root = LocalRoot(base)
    assert [root.read_bytes(rel) for rel in ("good", "goodfolder/f", "in/f")] == [b"y"] * 3
    for rel in ("bad", "badfolder/f", "sibling"):
        with pytest.raises(FormatError, match="leads out"):
            root.resolve(rel)
    for rel in ("../outside/f", "/etc/hostname", "in/../../outside/f"):
        with pytest.raises(FormatError):
            root.resolve(rel)
    for rel in ("dangling", "in/none", "in/f/x"):
        with pytest.raises(NotFoundError) as caught:
            root.resolve(rel)
        assert caught.value.file == rel and not root.exists(rel)
    with pytest.raises(FormatError, match="regular"):
        root.resolve("in")


def test_links_of_a_hub_cache(tmp_path):
    cache = tmp_path / "datasets--o--n"
    (cache / "blobs").mkdir(parents=True)
    (cache / "blobs/1").write_text("blob")
    base = cache / "snapshots" / ("a" * 40)
    (base / "data").mkdir(parents=True)
    (base / "data/f").symlink_to("../../../blobs/1")
    (tmp_path / "secret").write_text("s")
    (base / "data/g").symlink_to(tmp_path / "secret")
    (base / "data/g.mp4").symlink_to(tmp_path / "secret")
    root = LocalRoot(base)
    assert root.read_bytes("data/f") == b"blob"
    for rel in ("data/g", "data/g.mp4"):
        with pytest.raises(FormatError, match="leads out"):
            root.resolve(rel)


@pytest.mark.parametrize("repo_id", [None, Path("/data/set"), 7, b"a/b"])
def test_a_repo_id_is_text(repo_id, tmp_path):
    for root in (None, write_v30(tmp_path / "set")):
        with pytest.raises(TypeError, match="repo_id must be text") as caught:
            resolve_root(repo_id, root)
        assert "root=" in str(caught.value)


@pytest.mark.parametrize(
    "rest", ["", "/", "/tree/main", "/viewer/default/train", "/blob/main/README.md"]
)
def test_the_hubs_web_page_is_no_root(rest, monkeypatch):
    for endpoint in ("https://huggingface.co", "https://hub.example.org"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        for arguments in (
            (f"{endpoint}/datasets/o/n{rest}",),
            ("a/b", f"{endpoint}/datasets/o/n{rest}"),
        ):
            with pytest.raises(ValueError, match="a web page of the Hub: use 'o/n'"):
                resolve_root(*arguments)


def test_files_on_another_disk(tmp_path):
    """Moved there, and a link left in their place: videos and tables, nothing else."""
    root, rel = write_v30(tmp_path / "set"), "data/chunk-000/file-000.parquet"
    want = (root / rel).read_bytes()
    (root / "data").rename(tmp_path / "elsewhere")
    (root / "data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "one.mp4").write_bytes(b"video")
    (root / "one.mp4").symlink_to(tmp_path / "one.mp4")
    (tmp_path / "elsewhere/notes.json").write_text("{}")
    files = LocalRoot(root)
    assert files.read_bytes(rel) == want and files.read_bytes("one.mp4") == b"video"
    with pytest.raises(FormatError, match="leads out of the dataset") as caught:
        files.resolve("data/notes.json")
    assert f"to {tmp_path}/elsewhere" in str(caught.value) and "cp -L" in str(caught.value)
    os.remove(root / "one.mp4")
    (root / "one.mp4").symlink_to(tmp_path)
    with pytest.raises(FormatError, match="regular"):
        LocalRoot(root).resolve("one.mp4")
    (root / "gone").symlink_to(tmp_path / "nothing")
    with pytest.raises(NotFoundError, match=r"a link to .*nothing, which is not there"):
        LocalRoot(root).resolve("gone")
