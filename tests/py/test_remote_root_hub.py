"""Datasets of the Hub whose videos stay there: which files are named how, what is asked how often,
which copies win, what a pickle knows."""

import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from demo_sets import FRONT, ROOT, array, open_demo
from hub_sets import CANARY, FILES, hub_fixture, open_hub, same_items  # noqa: F401
from hub_stand_in import files_of
from reelpool import LeRobotDataset, LeRobotDatasetMetadata, StreamingLeRobotDataset
from reelpool.errors import (
    AuthError,
    NotFoundError,
    OfflineError,
    RemoteError,
    UnsupportedMediaError,
)
from reelpool.remote_root import RemoteVideo


def same_stream(repo_id, root=None, **options):
    """True if a stream's order and pictures are those of the local set."""
    common = {"num_threads": 1, "return_uint8": True, "batch_size": 8, "seed": 3}
    remote = StreamingLeRobotDataset(repo_id, root, **common, **options)
    assert not remote.streaming_from_local
    local = StreamingLeRobotDataset("o/n", ROOT, **common)
    pairs = zip(remote, local, strict=True)
    return all(
        all(a[key] == b[key] if key == "task" else np.array_equal(array(a[key]), array(b[key]))
            for key in b)
        for a, b in pairs
    )  # fmt: skip


VIDEOS = [rel for rel in FILES if rel.startswith("videos/")]
DATA = [rel for rel in FILES if rel.startswith("data/")]


def ranges(dataset, rel):
    """A video file as the engine would read it, in pieces."""
    dataset._table  # noqa: B018  what the engine starts with
    files = dataset.meta._files
    video = files.video(rel)
    assert isinstance(video, RemoteVideo)
    assert files.client().size(video.url)["size"] == video.size
    half = video.size // 2
    return b"".join(
        files.client().read(video.url, at, n, video.size, video.etag, video.last_modified)
        for at, n in ((0, half), (half, video.size - half))
    )


def test_urls_sizes_and_keys(hub):
    dataset = open_hub(download_videos=False)
    blobs, sha = files_of(ROOT), dataset.revision
    for rel in VIDEOS:
        video = dataset.meta._files.video(rel)
        size, _, digest = blobs[rel].facts()
        assert video.url == f"{hub.endpoint}/datasets/o/n/resolve/{sha}/{rel}"
        assert (video.size, video.etag, video.key) == (size, digest, f"sha256-{digest}")
        assert (video.last_modified, video.whole) == (None, False)
        assert ranges(dataset, rel) == blobs[rel].data()
    assert not hub.leaks and not hub.requests("HEAD .*mp4")
    trees = hub.requests("tree/.*/videos")
    assert len({line.split("/tree/")[1] for line in trees}) == 2  # a call per camera


@pytest.mark.parametrize("disk_cache", [False, "1GB"])
def test_samples_are_the_local_ones(hub, disk_cache):
    options = {"storage_options": {"disk_cache": disk_cache}}
    assert same_stream("o/n", **options)
    remote = open_hub(download_videos=False, **options)
    assert same_items(remote, open_demo(), range(0, 184, 7)) and remote.reads_ranges
    assert not hub.leaks


def test_a_second_start_asks_nothing(hub):
    first = open_hub(download_videos=False)
    before = len(hub.log)
    second = open_hub(download_videos=False)
    stream = StreamingLeRobotDataset("o/n", num_threads=1)
    found = [[d.meta._files.video(rel) for rel in VIDEOS] for d in (first, second, stream)]
    assert found[0] == found[1] == found[2] and len(hub.log) == before


def test_copies_win(hub, tmp_path):
    dataset = open_hub(download_videos=False)
    files, sha = dataset.meta._files, dataset.revision
    one, two, three, four = VIDEOS

    def put(base, rel, source=None):
        (base / rel).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / (source or rel), base / rel)
        return str(base / rel)

    cache = tmp_path / "hub/datasets--o--n"
    blob = put(cache / "blobs", "b", one)
    (cache / "snapshots" / sha / one).parent.mkdir(parents=True)
    (cache / "snapshots" / sha / one).symlink_to(blob)
    assert files.video(one) == blob
    own = put(tmp_path / "lerobot/o/n", two)
    assert files.video(two) == own
    put(tmp_path / "lerobot/o/n", three, four)  # of another size
    assert isinstance(files.video(three), RemoteVideo)
    outside = put(tmp_path / "elsewhere", four)
    link = tmp_path / "lerobot/o/n" / four
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    assert isinstance(files.video(four), RemoteVideo)
    shutil.copytree(ROOT, tmp_path / "mine")
    assert not open_hub(root=tmp_path / "mine", download_videos=False).reads_ranges


def test_only_what_is_selected_is_needed(hub):
    repo = hub.repos["o/n"]
    files = dict(repo.commits[repo.branches["main"]])
    gone = next(rel for rel in VIDEOS if FRONT not in rel)
    del files[gone]
    repo.tags["v3.0"] = repo.commit(files)
    assert open_hub(download_videos=False, cameras=[FRONT]).reads_ranges
    with pytest.raises(NotFoundError, match="episodes= leaves episodes out") as caught:
        open_hub(download_videos=False)
    assert caught.value.file == gone and caught.value.dataset == "o/n"


def test_data_files_from_elsewhere(hub, tmp_path):
    shutil.copytree(ROOT / "meta", tmp_path / "local/meta")
    stream = StreamingLeRobotDataset(
        "x/y", tmp_path / "local", num_threads=1, data_files_root="hf://datasets/o/n"
    )
    assert isinstance(stream.meta._files.video(VIDEOS[0]), RemoteVideo)
    assert len(hub.requests("api .*/resolve/.*/data/")) == len(DATA)
    assert ranges(stream, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()


def test_data_that_is_too_large(hub):
    limit = sum((ROOT / rel).stat().st_size for rel in DATA) - 1
    with pytest.raises(UnsupportedMediaError, match="data_download_limit") as caught:
        open_hub(download_videos=False, storage_options={"data_download_limit": limit})
    assert str(limit) in str(caught.value) and not hub.requests("api .*/resolve/.*/data/")
    first = open_hub(
        download_videos=False, storage_options={"data_download_limit": limit}, episodes=[0]
    )
    assert len(hub.requests("api .*/resolve/.*/data/")) == 1 and first.reads_ranges


def test_offline_with_copies_elsewhere(hub, tmp_path, monkeypatch):
    import huggingface_hub

    LeRobotDatasetMetadata("o/n")
    huggingface_hub.snapshot_download(
        "o/n", repo_type="dataset", revision="v3.0", endpoint=hub.endpoint,
        cache_dir=tmp_path / "hub", allow_patterns=["videos/*"],
    )  # fmt: skip
    sha = hub.repos["o/n"].branches["main"]
    home = tmp_path / "lerobot/hub/datasets--o--n/snapshots" / sha
    for rel in DATA:
        (home / rel).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / rel, home / rel)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = len(hub.log)
    dataset = open_hub(download_videos=False)
    assert not dataset.reads_ranges and len(hub.log) == before
    assert str(tmp_path / "hub") in dataset.meta._files.video(VIDEOS[0])


def test_into_a_folder(hub, tmp_path):
    dataset = open_hub(root=tmp_path / "mine", download_videos=False)
    assert dataset.root == tmp_path / "mine" and dataset.reads_ranges
    held = files_of(tmp_path / "mine")
    assert all(rel in held for rel in DATA) and not any(rel in held for rel in VIDEOS)
    assert ranges(dataset, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()
    again = open_hub(root=tmp_path / "mine")  # now whole
    assert not again.reads_ranges and all(rel in files_of(tmp_path / "mine") for rel in VIDEOS)


@pytest.mark.parametrize(
    "repo_id, revision, cls, words",
    [
        ("o/absent", None, AuthError, "hf auth login"),
        ("o/n", "v9", NotFoundError, "has no revision v9"),
        ("o/p", None, AuthError, "hf auth login"),
    ],
)
def test_errors_of_streaming(hub, repo_id, revision, cls, words):
    hub.add("o/p", ROOT, private=True, readers={CANARY})
    with pytest.raises(cls, match=words) as caught:
        StreamingLeRobotDataset(repo_id, revision=revision, num_threads=1)
    assert caught.value.dataset == repo_id and len(str(caught.value).splitlines()) <= 3


def test_a_warm_cache_asks_nothing(hub, monkeypatch):
    options = {"storage_options": {"disk_cache": "1GB"}}
    assert same_stream("o/n", **options)
    before = len(hub.log)
    assert same_stream("o/n", **options) and len(hub.log) == before
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert same_stream("o/n", **options) and len(hub.log) == before


def test_what_is_not_kept_is_an_error_offline(hub, monkeypatch):
    options = {"download_videos": False, "storage_options": {"disk_cache": "1GB"}}
    first = open_hub(**options)
    for row in (0, 48, 96, 180):  # of each file something
        first[row]
    before = len(hub.log)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = open_hub(**options)
    again[0]
    with pytest.raises(OfflineError) as caught:
        again.__getitems__(range(184))
    assert len(hub.log) == before and len(str(caught.value).splitlines()) <= 3


def test_what_the_node_keeps_is_enough_offline(hub, tmp_path, monkeypatch):
    dataset = open_hub(download_videos=False, storage_options={"disk_cache": "1GB"})
    place = dataset.meta._files.remote_options()["cache_dir"]
    for rel in VIDEOS:
        key = dataset.meta._files.video(rel).key
        (tmp_path / place / "v1" / key[-2:] / key).mkdir(parents=True)
    before = len(hub.log)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = open_hub(download_videos=False, storage_options={"disk_cache": "1GB"})
    assert again.reads_ranges and len(hub.log) == before
    assert again.meta._files.remote_options()["offline"]
    with pytest.raises(OfflineError):
        open_hub(download_videos=False, storage_options={"disk_cache": False})


def test_offline(hub, monkeypatch):
    sha = open_hub(download_videos=False).revision
    before = len(hub.log)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError, match="hf download --repo-type dataset") as caught:
        open_hub(download_videos=False)  # known, but neither here nor in the node's cache
    assert caught.value.file == VIDEOS[0] and len(hub.log) == before
    assert LeRobotDatasetMetadata("o/n").revision == sha
    with pytest.raises(OfflineError):
        open_hub(download_videos=False, storage_options={"offline": True})
    assert len(hub.log) == before


def test_pickles_hold_no_token(hub):
    hub.add("o/p", ROOT, private=True, readers={CANARY})
    dataset = open_hub("o/p", revision="main", download_videos=False, token=CANARY)
    rel = VIDEOS[0]
    assert ranges(dataset, rel) == (ROOT / rel).read_bytes() and not hub.leaks
    data = pickle.dumps(dataset)
    assert CANARY.encode() not in data and len(data) < 65536
    assert CANARY not in repr(dataset.meta._files) + repr(vars(dataset.meta._files))
    before = len(hub.log)
    copy = pickle.loads(data)
    assert copy.meta._files.video(rel) == dataset.meta._files.video(rel)
    assert len(copy) == len(dataset) and len(hub.log) == before
    with pytest.raises((AuthError, RemoteError)) as caught:
        copy.meta._files.client().read(copy.meta._files.video(rel).url, 0, 10)
    assert CANARY not in str(caught.value)


def test_token_of_the_other_process(hub, monkeypatch):
    hub.add("o/p", ROOT, private=True, readers={CANARY})
    dataset = open_hub("o/p", revision="main", download_videos=False, token=CANARY)
    data = pickle.dumps(dataset)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    rel = VIDEOS[0]
    assert ranges(pickle.loads(data), rel) == (ROOT / rel).read_bytes() and not hub.leaks


def test_one_client_for_datasets_of_one_hub(hub):
    hub.add("o/m", ROOT)
    one = open_hub(download_videos=False)
    other = open_hub("o/m", revision="main", download_videos=False)
    foreign = open_hub(download_videos=False, storage_options={"network_timeout": 5})
    assert one.meta._files.client() is other.meta._files.client()
    assert one.meta._files.client() is not foreign.meta._files.client()
    assert one.meta._files.video(VIDEOS[0]).key == other.meta._files.video(VIDEOS[0]).key


def test_processes_of_a_node_resolve_a_file_once(hub, tmp_path):
    open_hub(download_videos=False)
    script = (
        "from reelpool import LeRobotDataset\n"
        "dataset = LeRobotDataset('o/n', download_videos=False, num_threads=1,\n"
        "    storage_options={'disk_cache': False})\n"
        "dataset.__getitems__(range(0, 184, 3))\n"
    )
    ranks = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    asked = hub.requests("api .*/resolve/.*mp4")
    assert len(asked) == len(set(asked)) == len(VIDEOS)
    assert (tmp_path / "lerobot/.reelpool/url").is_dir() and not hub.leaks


def test_a_renamed_dataset(hub):
    hub.renamed["old/name"] = "o/n"
    dataset = open_hub("old/name", download_videos=False)
    assert ranges(dataset, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes() and not hub.leaks


def test_force_cache_sync(hub):
    repo = hub.repos["o/n"]
    old = open_hub(revision="main", download_videos=False)
    files = repo.commits[old.revision]
    repo.commit({**files, "README.md": files["meta/info.json"]})
    new = open_hub(revision="main", download_videos=False, force_cache_sync=True)
    assert new.revision == repo.branches["main"] != old.revision
    assert new.meta._files.video(VIDEOS[0]).key == old.meta._files.video(VIDEOS[0]).key
    assert ranges(new, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()


def test_real_set_of_v21(hub, data_root):
    hub.add("unitree/g1", data_root / "g1_small_v21", branch="v2.1")
    hub.page = 1000
    remote = open_hub("unitree/g1", download_videos=False)
    local = LeRobotDataset("x", data_root / "g1_small_v21", return_uint8=True, num_threads=1)
    assert remote.reads_ranges and same_items(remote, local, [0, len(local) // 2, len(local) - 1])
