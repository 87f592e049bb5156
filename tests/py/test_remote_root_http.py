"""Datasets behind a plain http URL: any server with files, no listing."""

import json
import pickle
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from demo_sets import FRONT, ROOT, STARTS, array, ids, open_demo
from hub_sets import same_items
from reelpool import LeRobotDataset, Loader, StreamingLeRobotDataset, errors, remote_root
from reelpool.remote_files import RemoteFiles
from reelpool.remote_root import RemoteVideo
from test_remote_root_hub import DATA, VIDEOS, ranges, same_stream

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))

from fault_server import FaultServer
from hub_stand_in import files_of

BLOBS = {rel: blob.data() for rel, blob in files_of(ROOT).items()}


@pytest.fixture(name="server")
def server_fixture(tmp_path, monkeypatch):
    """A server with the demo set below /my set."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy",
                 "ALL_PROXY", "all_proxy"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    with FaultServer({f"/my set/{rel}": data for rel, data in BLOBS.items()}) as server:
        yield server


def open_http(server, path="/my%20set", **options):
    options = {"num_threads": 1, "return_uint8": True, **options}
    options.setdefault("storage_options", {"network_timeout": 20})
    return LeRobotDataset("some/set", server.url(path), **options)


def test_files_of_a_server(server):
    dataset = open_http(server)
    assert dataset.repo_id == "some/set" and dataset.reads_ranges
    assert str(dataset.root) == server.url("/my%20set") == dataset.meta._files.url
    for rel in VIDEOS:
        video = dataset.meta._files.video(rel)
        assert video.url == server.url(f"/my%20set/{rel}") and video.size == len(BLOBS[rel])
        assert video.etag and not video.whole and video.key.startswith("loc-")
        assert ranges(dataset, rel) == BLOBS[rel]
    index = dataset.hf_dataset.data.column("index")
    assert index.to_pylist() == list(range(STARTS[-1])) and dataset.meta.stats
    states = [dataset.hf_dataset[i]["observation.state"] for i in (0, STARTS[-1] - 1)]
    local = LeRobotDataset("some/set", ROOT, num_threads=1)
    wanted = [local.hf_dataset[i]["observation.state"] for i in (0, STARTS[-1] - 1)]
    assert np.array_equal(states, wanted)


def test_samples_are_the_local_ones(server):
    url = server.url("/my%20set")
    assert same_stream("x/y", url, storage_options={"disk_cache": False})
    server.mix(5, 0.05, ["s503", "cut", "reset_before", "reset_body", "short"])
    assert same_stream("x/y", url, storage_options={"disk_cache": "1GB"})
    assert same_items(open_http(server), open_demo(), range(0, 184, 7))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_dataloader(server, method):
    torch = pytest.importorskip("torch", reason="needs the extra `torch`")
    dataset = open_http(server, storage_options={"disk_cache": "1GB"})
    index = torch.utils.data.Subset(dataset, range(0, 184, 9))
    loader = torch.utils.data.DataLoader(index, 4, num_workers=2, multiprocessing_context=method)
    wanted = open_demo()
    rows = iter(range(0, 184, 9))
    for batch in loader:
        for picture in batch[FRONT]:
            assert np.array_equal(array(picture), array(wanted[next(rows)][FRONT]))
    assert next(rows, None) is None


def test_only_what_is_needed_is_asked_for(server):
    open_http(server, cameras=[FRONT], episodes=[0])
    asked = {seen.path for seen in server.log if "videos/" in seen.path or "data/" in seen.path}
    assert len(asked) == 2
    before = len(server.log)
    open_http(server, cameras=[FRONT], episodes=[0])
    bytes_asked = [seen for seen in server.log[before:] if seen.headers["Range"] != "bytes=0-0"]
    assert bytes_asked == []  # which versions there are, nothing else


def test_a_second_process_asks_nothing(server):
    dataset = open_http(server)
    data, before = pickle.dumps(dataset), len(server.log)
    copy = pickle.loads(data)
    assert len(copy) == len(dataset) == copy._table.num_rows
    assert copy.meta._files.video(VIDEOS[0]) == dataset.meta._files.video(VIDEOS[0])
    assert [seen.path for seen in server.log[before:]] == [] and len(data) < 65536


def test_data_files_behind_a_url(server, tmp_path):
    shutil.copytree(ROOT / "meta", tmp_path / "local/meta")
    stream = StreamingLeRobotDataset(
        "x/y", tmp_path / "local", num_threads=1, data_files_root=server.url("/my%20set")
    )
    assert not stream.streaming_from_local and ranges(stream, VIDEOS[0]) == BLOBS[VIDEOS[0]]
    assert not [seen for seen in server.log if "/meta/" in seen.path]


def test_metadata_come_at_once(server, monkeypatch):
    """Tasks and episodes are read one after the other, but not fetched so."""
    both, fetch = threading.Barrier(2, timeout=20), RemoteFiles.fetch

    def meet(files, name, entry=None):
        if name.startswith("meta/") and name.endswith(".parquet"):
            both.wait()
        return fetch(files, name, entry)

    monkeypatch.setattr(RemoteFiles, "fetch", meet)
    assert len(open_http(server)) == STARTS[-1]


def test_many_files_of_episodes(server, tmp_path):
    import pyarrow.parquet as pq

    rel = "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(ROOT / rel)
    for number, (chunk, file) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table.slice(number, 1), path)
        name = f"/my set/meta/episodes/chunk-{chunk:03d}/file-{file:03d}.parquet"
        server.files[name] = path.read_bytes()
    dataset = open_http(server)
    assert dataset.num_episodes == 4 and len(dataset) == STARTS[-1]


def test_old_format(server, data_root):
    server.files |= {
        f"/old/{rel}": blob.data() for rel, blob in files_of(data_root / "g1_small_v21").items()
    }
    dataset = open_http(server, "/old")
    local = LeRobotDataset("x/y", data_root / "g1_small_v21", num_threads=1)
    assert len(dataset) == len(local) and dataset.reads_ranges


@pytest.mark.parametrize(
    "path, gone, cls, words",
    [
        ("/absent", None, errors.NotFoundError, "meta/info.json is missing"),
        ("/my%20set", "meta/tasks.parquet", errors.NotFoundError, "meta/tasks.parquet"),
        ("/my%20set", DATA[0], errors.NotFoundError, DATA[0]),
        ("/my%20set", VIDEOS[0], errors.NotFoundError, VIDEOS[0]),
    ],
)
def test_what_is_missing(server, path, gone, cls, words):
    if gone:
        del server.files[f"/my set/{gone}"]
    with pytest.raises(cls, match=words) as caught:
        open_http(server, path)
    said = str(caught.value)
    assert server.url(path) in said and len(said.splitlines()) <= 3
    assert "\n  " in said and (gone is None or "Run: reelpool verify http://" in said)


def test_refusals(server):
    server.fault("s403", None)
    with pytest.raises(errors.AuthError, match="wants credentials") as caught:
        open_http(server)
    assert caught.value.status == 403
    server.fault("s500", None)
    with pytest.raises(errors.RemoteTimeoutError, match="network_timeout"):
        open_http(server, storage_options={"network_timeout": 0.3})


def test_nobody_is_there():
    with FaultServer({}) as server:
        url = server.url("/x")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        with pytest.raises(errors.RemoteTimeoutError):
            LeRobotDataset("x/y", url, storage_options={"network_timeout": 0.3})


def test_a_mistaken_host_is_told_soon(server, monkeypatch):
    server.fault("s503", None)
    monkeypatch.setattr(remote_root, "FIRST_ANSWER_S", 0.3)
    with pytest.raises(errors.RemoteTimeoutError):
        open_http(server, storage_options={"network_timeout": 600})
    server.calm()
    dataset = open_http(server, storage_options={"network_timeout": 600})
    server.fault("s503", 12)  # once it answered, longer waits are meant
    assert ranges(dataset, VIDEOS[0]) == BLOBS[VIDEOS[0]]


def test_a_file_that_changes_in_an_epoch(server):
    dataset = open_http(server, storage_options={"disk_cache": False, "network_timeout": 20})
    dataset[0]
    for rel in VIDEOS:
        server.files[f"/my set/{rel}"] = bytes(len(BLOBS[rel]))
        server.etags[f"/my set/{rel}"] = "two"
    with pytest.raises(errors.DatasetChangedError) as caught:
        dataset[183]
    assert "videos/" in str(caught.value) and len(str(caught.value).splitlines()) <= 3


def test_substitutes_name_the_file(server, tmp_path):
    rel = VIDEOS[0]
    broken = bytearray(BLOBS[rel])
    broken[20_000:30_000] = bytes(10_000)
    server.files[f"/my set/{rel}"] = bytes(broken)
    dataset = open_http(server, on_corrupt="substitute", max_bad_fraction=0.9)
    items = dataset.__getitems__(range(184))
    bad = sum(bool(item["is_substitute"]) for item in items)
    lines = (tmp_path / "cache/ledger.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines if line]
    assert 0 < bad == len(records) and {record["file"] for record in records} == {rel}


@pytest.mark.parametrize("local_first", [True, False])
def test_mixtures_with_local_sets(server, local_first):
    sets = [open_http(server), open_demo()]
    order = {"num_threads": 1, "shuffle": True, "seed": 1}
    with Loader([open_demo(), open_demo()], 8, **order) as loader:
        wanted = ids(loader)
    with Loader(sets[::-1] if local_first else sets, 8, **order) as loader:
        assert ids(loader) == wanted


def test_a_state_of_the_local_set(server):
    options = {"num_threads": 1, "shuffle": True, "seed": 1}
    with Loader(open_demo(), 8, **options) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state, rest = loader.state_dict(), ids(batches)
    with Loader(open_http(server), 8, **options) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == rest


def test_data_that_is_too_large(server):
    limit = len(BLOBS[DATA[0]])
    with pytest.raises(errors.UnsupportedMediaError, match="data_download_limit"):
        open_http(server, storage_options={"data_download_limit": limit})
    open_http(server, storage_options={"data_download_limit": str(limit)}, episodes=[0])


def test_a_server_without_ranges(server):
    server.accept_ranges = False
    dataset = open_http(server)
    video = dataset.meta._files.video(VIDEOS[0])
    assert isinstance(video, RemoteVideo) and video.whole and len(dataset) == STARTS[-1]


def test_a_server_without_versions(server, monkeypatch):
    ask = RemoteFiles.ask
    monkeypatch.setattr(RemoteFiles, "ask", lambda *who: ask(*who)._replace(version=""))
    dataset = open_http(server)
    video = dataset.meta._files.video(VIDEOS[0])
    assert (video.etag, video.last_modified) == (None, None) and dataset.meta.stats
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.meta._files.video(VIDEOS[0]) == video
    server.files["/my set/meta/stats.json"] = server.files["/my set/meta/stats.json"].replace(
        b"0", b"1"
    )
    again = open_http(server)  # copies of unknown version are of one start
    assert str(again.meta.stats) != str(dataset.meta.stats)
    assert again.meta._files.video(VIDEOS[0]).key != video.key


def test_offline(server, monkeypatch):
    for options in ({"offline": True}, {}):
        if not options:
            monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(errors.OfflineError, match="root=DIR") as caught:
            open_http(server, storage_options=options)
        assert caught.value.file == "meta/info.json" and not server.log
    monkeypatch.delenv("HF_HUB_OFFLINE")
    open_http(server)
    before = len(server.log)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert len(open_http(server, cameras=[])) == STARTS[-1]
    with pytest.raises(errors.OfflineError) as caught:
        open_http(server)
    assert caught.value.file in VIDEOS and len(server.log) == before


def test_a_file_that_changes(server):
    dataset = open_http(server)
    video = dataset.meta._files.video(VIDEOS[0])
    server.files[f"/my set/{VIDEOS[0]}"] = bytes(video.size)
    server.etags[f"/my set/{VIDEOS[0]}"] = "two"
    with pytest.raises(errors.DatasetChangedError):
        dataset.meta._files.client().read(video.url, 0, 10, video.size, video.etag)
    assert ranges(open_http(server), VIDEOS[0]) == bytes(video.size)
