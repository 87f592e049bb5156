"""Datasets by repo id: what is downloaded, how often, from which commit, to where.

The real huggingface_hub against a stand-in on loopback.
"""

import json
import subprocess
import sys
import time

import huggingface_hub
import pytest
from demo_sets import FRONT, STARTS, open_demo
from hub_sets import FILES, hub_fixture, open_hub, same_items  # noqa: F401
from hub_stand_in import files_of
from reelpool import LeRobotDataset, LeRobotDatasetMetadata, Loader, StreamingLeRobotDataset
from reelpool.__main__ import main
from reelpool.errors import NotFoundError

ROWS = [0, 47, 48, 100, 183]


def fetched(hub, pattern=""):
    """Files of data/ and videos/ that were resolved, by name, each as often as it was."""
    lines = hub.requests(rf"(HEAD|GET) api /datasets/.*/resolve/.*{pattern}")
    paths = [line.partition("/resolve/")[2].partition("/")[2] for line in lines]
    return sorted(path for path in paths if not path.startswith("meta/"))


def test_items_are_those_of_the_local_set(hub, tmp_path, capfd, monkeypatch):
    dataset = open_hub()
    commit = hub.repos["o/n"].branches["main"]
    place = tmp_path / "lerobot/hub/datasets--o--n/snapshots" / commit
    assert (dataset.repo_id, dataset.revision, dataset.root) == ("o/n", commit, place)
    assert dataset.meta.root == place and dataset.meta.revision == commit
    assert same_items(dataset, open_demo(), ROWS)
    assert fetched(hub) == FILES and len(hub.requests("GET cdn")) == len(FILES) + 2
    assert hub.requests("GET api .*revision")[0] == "GET api /api/datasets/o/n/revision/v3.0"
    assert capfd.readouterr().err == ""  # no terminal, no bar

    before = len(hub.log)  # what is here is used, asked or not
    assert same_items(open_hub(), open_demo(), ROWS)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for options in ({}, {"revision": commit}, {"revision": "v3.0"}, {"download_videos": False}):
        assert open_hub(**options).revision == commit
    assert LeRobotDatasetMetadata("hf://datasets/o/n@v3.0").total_frames == STARTS[-1]
    assert len(hub.log) == before


def test_real_set_of_v21(hub, data_root):
    hub.add("unitree/g1", data_root / "g1_small_v21", branch="v2.1")
    hub.repos["unitree/g1"].commit({}, "main")
    hub.page = 1000
    dataset = open_hub("unitree/g1")
    local = LeRobotDataset("x", data_root / "g1_small_v21", return_uint8=True, num_threads=1)
    assert dataset.revision == hub.repos["unitree/g1"].branches["v2.1"]
    assert len(dataset) == len(local) and same_items(dataset, local, [0, len(local) - 1])


def test_only_what_is_selected(hub):
    first = open_hub(episodes=[0], cameras=[FRONT])
    wanted = ["data/chunk-000/file-000.parquet", f"videos/{FRONT}/chunk-000/file-000.mp4"]
    assert fetched(hub) == wanted and len(first) == STARTS[1]
    open_hub(episodes=[0, 1], cameras=[FRONT])  # in the same files
    assert fetched(hub) == wanted
    assert same_items(open_hub(), open_demo(), ROWS)
    assert fetched(hub) == FILES  # the rest, nothing twice


@pytest.mark.parametrize(
    "branches, tags, wanted",
    [
        (["main", "v2.1"], ["v3.0", "v2.0"], "v3.0"),
        (["main", "v2.0", "v2.1"], ["v1.6", "v3.1"], "v2.1"),
        (["main"], ["v2.0"], "v2.0"),
        (["main", "other"], ["v4.0"], "main"),
    ],
)
def test_newest_format_is_taken(hub, caplog, branches, tags, wanted):
    repo = hub.repos["o/n"]
    files = repo.commits.popitem()[1]
    repo.branches.clear(), repo.tags.clear()
    for name in branches + tags:
        repo.commit(files, name)
    for name in tags:
        repo.tags[name] = repo.branches.pop(name)
    meta = LeRobotDatasetMetadata("o/n")
    assert meta.revision == repo.find(wanted)
    assert ("main is read" in caplog.text) == (wanted == "main")


def test_one_commit_for_all_files(hub):
    repo = hub.repos["o/n"]
    old, files = repo.branches["main"], repo.commits[repo.branches["main"]]

    def move():
        repo.commit({path: blob for path, blob in files.items() if path.startswith("meta/")})

    hub.fault(r"GET api .*/tree/.*/meta", "call", move, times=1)  # main is known by now
    dataset = open_hub(revision="main")
    assert dataset.revision == old and same_items(dataset, open_demo(), ROWS)
    assert not hub.requests(rf"api /(api/)?datasets/o/n/(tree|resolve)/(?!{old})")
    assert open_hub(revision="main").revision == old  # by the copy that is here

    new = repo.commit({**files, "README.md": files["meta/info.json"]})
    synced = open_hub(revision="main", force_cache_sync=True)
    assert synced.revision == new != old and same_items(synced, open_demo(), ROWS)
    assert open_hub(revision=old).revision == old


def test_into_a_folder(hub, tmp_path, monkeypatch):
    root, commit = tmp_path / "mine", hub.repos["o/n"].branches["main"]
    dataset = open_hub(root=root, episodes=[3])
    assert dataset.root == root and dataset.revision == commit and len(dataset) == 40
    assert sorted(p for p in files_of(root) if p in FILES) == [f for f in FILES if "001" in f]
    hub.repos["o/n"].commit({})  # the tag stays
    hub.repos["o/n"].tags["v3.0"] = hub.repos["o/n"].branches["main"]
    assert same_items(open_hub(root=root), open_demo(), ROWS)  # filled up at its own commit
    before = len(hub.log)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert open_hub(root=root).revision == commit and len(hub.log) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").touch()
    with pytest.raises(NotFoundError, match="no dataset in"):
        open_hub(root=tmp_path / "other")


def test_a_copy_of_another_cache_is_completed_beside_it(hub, tmp_path, monkeypatch):
    cache = tmp_path / "hub"
    path = huggingface_hub.snapshot_download(
        "o/n", repo_type="dataset", revision="main", endpoint=hub.endpoint, cache_dir=cache,
        allow_patterns=["meta/*", "data/*"],
    )  # fmt: skip
    held = files_of(cache)
    assert str(LeRobotDatasetMetadata("o/n").root) == path
    assert same_items(open_hub(), open_demo(), ROWS)
    assert files_of(cache).keys() == held.keys()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert same_items(open_hub(), open_demo(), ROWS)


def test_a_home_behind_a_link(hub, tmp_path, monkeypatch):
    open_hub()
    plain = len(hub.requests("o/n|cdn"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "link"))
    assert same_items(open_hub(), open_demo(), ROWS)
    assert same_items(open_hub(), open_demo(), ROWS)
    assert len(hub.requests("o/n|cdn")) == 2 * plain


def test_a_copy_without_all_metadata_is_completed(hub, tmp_path):
    open_hub()
    (episodes,) = tmp_path.glob("lerobot/hub/*/snapshots/*/meta/episodes/*/*.parquet")
    episodes.unlink()
    assert same_items(open_hub(), open_demo(), ROWS)


def test_only_videos_stay_on_the_hub(hub):
    dataset = open_hub(download_videos=False)
    assert dataset.reads_ranges and fetched(hub) == [f for f in FILES if f.startswith("data/")]
    stream = StreamingLeRobotDataset("o/n", num_threads=1)
    assert not stream.streaming_from_local and fetched(hub, "mp4") == []
    open_hub()
    count = len(hub.log)
    stream = StreamingLeRobotDataset("o/n", seed=1, num_threads=1, return_uint8=True)
    assert stream.streaming_from_local
    assert sorted(int(item["index"]) for item in stream) == list(range(STARTS[-1]))
    with Loader(open_hub(download_videos=False), 16, num_threads=1) as loader:
        assert sum(len(batch["index"]) for batch in loader) == STARTS[-1]
    assert len(hub.log) == count


def test_another_name(hub, caplog):
    hub.renamed["old/name"] = "o/n"
    assert same_items(open_hub("old/name"), open_demo(), ROWS)
    assert "old/name is called o/n now" in caplog.text
    before = len(hub.log)
    assert len(open_hub("old/name")) == STARTS[-1] and len(hub.log) == before


def test_names_with_marks_of_patterns(hub):
    repo = hub.repos["o/n"]
    files = repo.commits[repo.branches["main"]]
    info = json.loads(files["meta/info.json"].data())
    info["data_path"] = "data/[a-z]*/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    moved = {p.replace("data/", "data/[a-z]*/", 1): blob for p, blob in files.items()}
    moved["meta/info.json"] = type(files["meta/info.json"])(json.dumps(info).encode())
    repo.tags["v3.0"] = repo.commit(moved)
    for episodes in ([0], None):
        assert same_items(open_hub(episodes=episodes), open_demo(), [0, 1])


SCRIPT = """
import sys
from reelpool import LeRobotDataset
dataset = LeRobotDataset("o/n", return_uint8=True, num_threads=1)
print(dataset.revision, len(dataset))
"""


def start(script=SCRIPT):
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


def test_ranks_of_a_node_download_once(hub):
    hub.delay = 0.02
    ranks = [start() for _ in range(2)]
    said = {rank.communicate(timeout=60)[0] for rank in ranks}
    assert said == {f"{hub.repos['o/n'].branches['main']} {STARTS[-1]}\n"}
    assert fetched(hub) == FILES  # each resolved once
    bodies = hub.requests("GET cdn")
    assert len(bodies) == len(set(bodies)) == len(FILES) + 2


def test_a_killed_download_is_no_dataset(hub, tmp_path, monkeypatch):
    fault = hub.fault("GET cdn", "stall", 60)
    process = start()
    deadline = time.monotonic() + 60
    while not hub.requests("GET cdn") and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    hub.faults.remove(fault)
    assert not list(tmp_path.glob("lerobot/hub/*/snapshots/*/meta/info.json"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConnectionError, match="hf download"):
        open_hub()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert same_items(open_hub(), open_demo(), ROWS)


def test_commands(hub, tmp_path, capsys, monkeypatch):
    assert main(["doctor", "o/n", "--network", "--json"]) in (0, 1)
    findings = json.loads(capsys.readouterr().out)["findings"]
    said = {line["text"]: line["status"] for line in findings if line["section"] == "hub"}
    commit = hub.repos["o/n"].branches["main"]
    assert said == {
        f"{hub.endpoint}, token: none": "ok",
        f"answers: o/n at main is commit {commit[:12]}": "ok",
    }
    assert main(["doctor", "--network", "--json"]) in (0, 1)
    assert "the list of datasets" in capsys.readouterr().out
    words = ["inspect", "hf://datasets/o/n", "--json", "--frames", "2", "--out_dir", str(tmp_path)]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == STARTS[-1]
    assert main(["doctor", "x/y", "--network", "--json"]) == 1
    said = capsys.readouterr().out
    assert "AuthError" in said and "hf auth login" in said
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    main(["doctor", "--network", "--json"])
    assert "not asked" in capsys.readouterr().out
