"""Datasets in buckets of the Hub: read where they are, and only as they were when opened."""

import pickle

import pytest
from demo_sets import ROOT, STARTS, open_demo
from hub_sets import CANARY, FILES, hub_fixture, same_items  # noqa: F401
from hub_stand_in import Blob, files_of
from reelpool import LeRobotDataset, StreamingLeRobotDataset
from reelpool.errors import (
    AuthError,
    DatasetChangedError,
    NotFoundError,
    OfflineError,
    RemoteError,
)
from reelpool.hub import Hub
from test_remote_root_hub import VIDEOS, ranges, same_stream


@pytest.fixture(name="bucket")
def bucket_fixture(hub):
    """The demo set below some/where in the bucket o/b, beside other things."""
    bucket = hub.add_bucket("o/b", ROOT, "some/where/")
    bucket.files |= {"some/whereabouts/meta/info.json": Blob(b"{}"), "other": Blob(b"x" * 100)}
    return bucket


def open_bucket(url="hf://buckets/o/b/some/where", **options):
    options = {"num_threads": 1, "return_uint8": True, **options}
    return LeRobotDataset(url, **options)


def test_files_of_a_bucket(hub, bucket):
    dataset = open_bucket()
    assert len(dataset) == STARTS[-1] and dataset.reads_ranges and dataset.revision is None
    assert str(dataset.root) == f"{hub.endpoint}/buckets/o/b/resolve/some/where"
    blobs = files_of(ROOT)
    for rel in VIDEOS:
        video = dataset.meta._files.video(rel)
        size, _, digest = blobs[rel].facts()
        assert video.url == f"{dataset.root}/{rel}" and video.key == f"xet-{digest}"
        assert (video.size, video.etag, video.whole) == (size, digest, False)
        assert ranges(dataset, rel) == blobs[rel].data()
    assert not hub.leaks
    rows = dataset.hf_dataset.data.column("index").to_pylist()
    assert rows == list(range(STARTS[-1])) and dataset.meta.stats
    bodies = hub.requests("GET cdn")
    again = open_bucket()
    assert again.meta.stats and hub.requests("GET cdn") == bodies  # copied once


def test_samples_are_the_local_ones(hub, bucket):
    assert same_stream("hf://buckets/o/b/some/where", storage_options={"disk_cache": "1GB"})
    assert same_items(open_bucket(), open_demo(), range(0, 184, 7)) and not hub.leaks


def test_by_repo_type(hub):
    hub.add_bucket("o/b", ROOT)
    stream = StreamingLeRobotDataset("o/b", repo_type="bucket", num_threads=1)
    assert not stream.streaming_from_local and stream.num_frames == STARTS[-1]
    assert ranges(stream, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()


def test_data_files_in_a_bucket(bucket):
    stream = StreamingLeRobotDataset(
        "x/y", ROOT, num_threads=1, data_files_root="hf://buckets/o/b/some/where"
    )
    assert ranges(stream, VIDEOS[0]) == (ROOT / VIDEOS[0]).read_bytes()
    assert ranges(pickle.loads(pickle.dumps(stream)), VIDEOS[0])
    with pytest.raises(NotFoundError, match="data/chunk-000"):
        StreamingLeRobotDataset("x/y", ROOT, data_files_root="hf://buckets/o/b/nowhere")


def test_a_changed_file_is_an_error(bucket):
    dataset = open_bucket(storage_options={"network_timeout": 20})
    rel = VIDEOS[0]
    bucket.files[f"some/where/{rel}"] = Blob(b"x" * (ROOT / rel).stat().st_size)
    video = dataset.meta._files.video(rel)
    with pytest.raises(DatasetChangedError):
        dataset.meta._files.client().read(video.url, 0, 10, video.size, video.etag)
    assert ranges(open_bucket(), rel) == b"x" * video.size


def test_another_process_reads_what_was_opened(hub, bucket, tmp_path):
    dataset = open_bucket()
    data = pickle.dumps(dataset)
    before = len(hub.log)
    copy = pickle.loads(data)
    rel = VIDEOS[0]
    assert copy.meta._files.video(rel) == dataset.meta._files.video(rel)
    assert len(copy) == len(dataset) and len(hub.log) == before and len(data) < 65536
    bucket.files["some/where/meta/info.json"] = Blob(b"{}")
    assert len(pickle.loads(data)) == len(dataset)  # of the list that is kept
    for kept in (tmp_path / "lerobot/.reelpool/manifest").rglob("*.json"):
        kept.unlink()
    with pytest.raises(DatasetChangedError, match="Open the dataset again"):
        len(pickle.loads(data).meta.episodes)


def test_a_list_of_too_much(bucket, monkeypatch):
    listed = Hub.bucket_files
    monkeypatch.setattr(Hub, "bucket_files", lambda self, prefix: listed(self, ""))
    files = open_bucket().meta._files
    assert sorted(files._listed("meta")) == [r for r in files_of(ROOT) if r.startswith("meta/")]
    assert not files.exists("other") and not files.exists("meta/whereabouts")


def test_tokens(hub, monkeypatch):
    hub.add_bucket("o/p", ROOT, private=True, readers={CANARY})
    with pytest.raises(AuthError, match="hf auth login") as caught:
        open_bucket("hf://buckets/o/p")
    assert "buckets/o/p" in str(caught.value)
    dataset = open_bucket("hf://buckets/o/p", token=CANARY)
    assert ranges(dataset, VIDEOS[0]) and not hub.leaks
    assert CANARY.encode() not in pickle.dumps(dataset)
    copy = pickle.loads(pickle.dumps(dataset))
    video = copy.meta._files.video(VIDEOS[0])
    with pytest.raises((AuthError, RemoteError)) as caught:
        copy.meta._files.client().read(video.url, 0, 10)
    assert CANARY not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    assert ranges(pickle.loads(pickle.dumps(dataset)), VIDEOS[0])


@pytest.mark.parametrize("url", ["hf://buckets/o/absent", "hf://buckets/o/b/some"])
def test_no_dataset(bucket, url):
    with pytest.raises((AuthError, NotFoundError)) as caught:
        open_bucket(url)
    assert len(str(caught.value).splitlines()) <= 3


def test_a_missing_video(bucket):
    del bucket.files[f"some/where/{VIDEOS[0]}"]
    with pytest.raises(NotFoundError, match=r"some/where") as caught:
        open_bucket()
    assert caught.value.file == VIDEOS[0]


def test_offline(hub, bucket):
    offline = {"offline": True}
    with pytest.raises(OfflineError, match="hf buckets sync hf://buckets/o/b/some/where"):
        open_bucket(storage_options=offline)
    open_bucket()
    before = len(hub.log)
    assert len(open_bucket(storage_options=offline, cameras=[])) == STARTS[-1]
    with pytest.raises(OfflineError) as caught:
        open_bucket(storage_options=offline)
    assert caught.value.file in FILES and len(hub.log) == before


def test_old_client(hub, bucket, monkeypatch):
    import huggingface_hub

    monkeypatch.delattr(huggingface_hub.HfApi, "list_bucket_tree")
    with pytest.raises(ImportError, match=r"huggingface_hub>=1\.6"):
        open_bucket()
