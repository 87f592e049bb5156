"""What errors of remote roots say is to be done, and how they name files."""

import shutil

import pytest
from demo_sets import ROOT
from hub_sets import hub_fixture, open_hub  # noqa: F401
from reelpool import LeRobotDataset, Loader
from reelpool.errors import AuthError, ReelpoolError, from_core
from reelpool.remote_options import Options
from reelpool.remote_root_http import HttpRoot
from reelpool.remote_root_s3 import S3Root
from remote_things import OPTIONS, bare, serve, storage

ODD = "a b é%20"  # a folder's name


@pytest.fixture(name="odd")
def odd_fixture(tmp_path, monkeypatch):
    """The demo set on a server, its data and videos in folders that URLs must encode."""
    bare(monkeypatch.setenv, lambda name: monkeypatch.delenv(name, raising=False), tmp_path)
    root = tmp_path / "set"
    shutil.copytree(ROOT, root)
    text = (root / "meta/info.json").read_text()
    for name in ("data/", "videos/{video_key}/"):
        text = text.replace(f'"{name}', f'"{name}{ODD}/')
    (root / "meta/info.json").write_text(text)
    for base in (root / "data", *(root / "videos").iterdir()):
        (base / ODD).mkdir()
        for folder in base.glob("chunk-*"):
            folder.rename(base / ODD / folder.name)
    with serve(root) as server:
        yield server


def open_odd(server, **options):
    return LeRobotDataset(server.url("/set"), storage_options=storage(), **OPTIONS, **options)


def errors_of(function):
    with pytest.raises(ReelpoolError) as caught:
        function()
    assert "%20%C3" not in str(caught.value) and "%20%C3" not in str(caught.value.file)
    return caught.value


def test_names_are_plain(odd):
    dataset = open_odd(odd)
    both = [dataset, open_odd(odd)]
    odd.fault("s403", None)
    for function in (
        lambda: dataset[100],
        lambda: next(iter(Loader(dataset, 4, num_threads=1))),
        lambda: next(iter(Loader(both, 4, num_threads=1))),
    ):
        error = errors_of(function)
        assert type(error) is AuthError and f"/{ODD}/chunk-000/file-00" in error.file
        assert f"/{ODD}/chunk-000/file-00" in str(error)
        assert "hf auth login" not in str(error) and "No credentials are sent" in str(error)
    dataset.close()


def test_names_of_tables_are_plain(odd, tmp_path):
    first = open_odd(odd)
    shutil.rmtree(tmp_path / "cache/http")
    odd.fault("s403", None)
    rel = first.meta._columns.data_files[0]
    error = errors_of(lambda: first.meta._files.resolve(rel))
    assert error.file == rel and f"/{rel}" in str(error) and "hf auth" not in str(error)
    assert "No credentials are sent" in str(error)


def test_who_is_advised_what():
    def advice(url):
        return str(from_core("AUTH", "HTTP 403", {"file": url}))

    for url in (
        "https://huggingface.co/datasets/o/n/resolve/main/x.mp4",
        "https://hub.example/deep/buckets/o/n/resolve/x.mp4",
        "http://127.0.0.1:1/api/datasets/o/n", "/data/x.mp4",
    ):  # fmt: skip
        assert "hf auth login" in advice(url)
    assert "AWS_ACCESS_KEY_ID" in advice("https://b.s3.eu-west-1.amazonaws.com/x.mp4")
    for url in ("https://host.example/set/x.mp4", "http://127.0.0.1:1/datasets/x.mp4"):
        assert "No credentials are sent" in advice(url)
    for text in (advice("https://b.s3.eu-west-1.amazonaws.com/x"), advice("https://h.example/x")):
        assert "hf auth" not in text


def test_roots_know_their_kind():
    own = Options(endpoint_url="http://127.0.0.1:9", anonymous=True)
    s3, http = S3Root("bucket", "a b", own), HttpRoot("http://127.0.0.1:9/x", Options())
    for root, wanted in ((s3, "AWS_ACCESS_KEY_ID"), (http, "No credentials are sent")):
        url = root._file_url("videos/ü/x.mp4")
        error = root.named(from_core("AUTH", f"HTTP 403 of {url}", {"file": url}), "videos/ü/x.mp4")
        assert wanted in str(error) and "hf auth" not in str(error)
        assert error.file == "videos/ü/x.mp4" and "videos/ü/x.mp4" in str(error)
        assert "%C3" not in str(error) and error.dataset == root.url
        assert type(root.path / "x") is type(root.path)


def test_the_hub_keeps_its_advice(hub):
    dataset = open_hub(download_videos=False)
    hub.fault("resolve/.*mp4", "status", 403)
    hub.fault("GET cdn", "status", 403)
    with pytest.raises(AuthError, match="hf auth login"):
        dataset[100]
