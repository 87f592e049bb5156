"""The first start of a dataset of the Hub: what is asked, what at once, what is checked, what is
found afterwards, and who is asked when the short way fails."""

import subprocess
import sys
import threading

import huggingface_hub
import pytest
from demo_sets import ROOT, open_demo
from hub_sets import CANARY, FILES, hub_fixture, open_hub, same_items  # noqa: F401
from hub_stand_in import files_of
from reelpool import LeRobotDataset, LeRobotDatasetMetadata, hub_calls, hub_cold
from reelpool.errors import RemoteError
from reelpool.hub_place import stored_token

META = [rel for rel in files_of(ROOT) if rel.startswith("meta/")]
DATA = [rel for rel in FILES if rel.startswith("data/")]
VIDEOS = [rel for rel in FILES if rel.startswith("videos/")]


@pytest.fixture(name="one_page")
def one_page_fixture(hub, monkeypatch):
    """The stand-in with lists of one page, as those of most datasets are."""
    hub.page = 1000
    monkeypatch.setattr(hub_calls, "BACKOFF_MAX_S", 0.1)
    return hub


def stay(**options):
    return open_hub(download_videos=False, **options)


def test_what_is_asked(one_page):
    hub = one_page
    sha = hub.repos["o/n"].branches["main"]
    dataset = stay()
    asked = hub.requests()
    api, files = f"GET api /api/datasets/o/n/tree/{sha}", f"GET api /datasets/o/n/resolve/{sha}/"
    assert sorted(asked[:2]) == [
        "GET api /api/datasets/o/n/refs", "GET api /api/datasets/o/n/revision/v3.0"
    ]  # fmt: skip
    assert asked.count(api) == 1 and not [a for a in asked if a.startswith("HEAD")]
    assert sorted(a for a in asked if a.startswith(files)) == sorted(
        files + rel for rel in META + DATA + VIDEOS
    )
    contents = [a for a in asked if "/files/" in a or "/resolve-cache/" in a]
    assert len(contents) == len(META + DATA + VIDEOS)
    assert len(asked) == 3 + 2 * len(META + DATA + VIDEOS) and not hub.leaks
    assert same_items(dataset, open_demo(), [0, 47, 48, 183])
    again = [a for a in hub.requests() if a.startswith(files)]  # no file is looked up twice
    assert len(again) == len(set(again))


def test_what_is_asked_at_once(one_page):
    def meet(count, *patterns):
        barrier = threading.Barrier(count)
        for pattern in patterns:
            one_page.fault(pattern, "call", lambda: barrier.wait(30), times=1)

    meet(2, "/refs", "/revision/")
    meet(1 + len(META), "/tree/", *[f"/resolve/.*{rel}" for rel in META])
    meet(len(DATA + VIDEOS), *[f"/resolve/.*{rel}" for rel in DATA + VIDEOS])
    assert stay().reads_ranges


def test_other_modules_stay_out(one_page):
    script = (
        "import sys\nfrom reelpool import LeRobotDataset\n"
        "dataset = LeRobotDataset('o/n', download_videos=False, num_threads=1)\ndataset[0]\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('httpx', 'httpx2', 'requests')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n" and done.returncode == 0, done.stderr


def test_others_find_what_came(one_page, tmp_path):
    sha = stay().revision
    cache = tmp_path / "lerobot/hub"
    place = cache / "datasets--o--n/snapshots" / sha
    assert sorted(files_of(place)) == sorted(META + DATA)
    blobs = files_of(ROOT)
    for rel in META + DATA:
        assert (place / rel).read_bytes() == blobs[rel].data()
        assert (place / rel).readlink().parts[-2] == "blobs"
        assert (place / rel).stat().st_mode & 0o777 == place.joinpath(
            META[0]
        ).stat().st_mode & 0o777
    assert not [p for p in cache.rglob("*") if p.name.endswith(".part")]
    common = {"repo_type": "dataset", "cache_dir": cache, "endpoint": one_page.endpoint}
    path = huggingface_hub.snapshot_download(
        "o/n", revision="v3.0", local_files_only=True, **common
    )
    assert path == str(place)
    before = len(one_page.requests("GET cdn|GET api .*resolve"))
    path = huggingface_hub.snapshot_download(
        "o/n", revision="v3.0", allow_patterns=["meta/*", "data/*"], **common
    )
    assert path == str(place)
    assert len(one_page.requests("GET cdn|GET api .*resolve")) == before


def test_a_dataset_with_more_files_of_metadata(one_page):
    repo = one_page.repos["o/n"]
    files = repo.commits[repo.branches["main"]]
    more = {f"meta/more/{n}.json": files["meta/info.json"] for n in range(40)}
    repo.tags["v3.0"] = repo.commit({**files, **more})
    meta = LeRobotDatasetMetadata("o/n")
    assert all((meta.root / rel).is_file() for rel in [*META, *more])
    assert not one_page.requests("HEAD")


def test_names_that_are_quoted(one_page):
    repo = one_page.repos["o/n"]
    files = repo.commits[repo.branches["main"]]
    odd = "meta/a b%20#?é.json"
    repo.tags["v3.0"] = repo.commit({**files, odd: files["meta/info.json"]})
    assert (LeRobotDatasetMetadata("o/n").root / odd).is_file() and not one_page.requests("HEAD")


@pytest.mark.parametrize(
    "pattern, file",
    [("resolve-cache/.*info.json", "meta/info.json"), ("GET cdn", "meta/"), ("GET cdn", "data/")],
)
def test_other_bytes_are_noticed(one_page, tmp_path, pattern, file):
    if file == "data/":
        LeRobotDatasetMetadata("o/n")
    fault = one_page.fault(pattern, "flip", times=1)
    assert same_items(stay(), open_demo(), [0, 100, 183]) and fault.times == 0
    other = one_page.add("o/m", ROOT)
    other.tags["v3.0"] = other.branches["main"]
    if file == "data/":
        LeRobotDatasetMetadata("o/m")
    one_page.fault(pattern, "flip")
    with pytest.raises(RemoteError, match=f"{file}.* came with other bytes") as caught:
        stay(repo_id="o/m")
    assert caught.value.file.startswith(file) and caught.value.dataset == "o/m"
    held = [p.name for p in tmp_path.glob("lerobot/hub/datasets--o--m/snapshots/*/*/*.*")]
    assert sorted(held) == (["info.json", "stats.json", "tasks.parquet"] if file == "data/" else [])


@pytest.mark.parametrize(
    "pattern", ["/refs", "/revision/", "/tree/", "/resolve/.*tasks", "/resolve/.*data/"]
)
def test_what_fails_is_left_to_huggingface_hub(one_page, monkeypatch, pattern):
    monkeypatch.setattr(hub_cold, "QUIET_S", 0.5)
    fault = one_page.fault(pattern, "silent", 30, times=1)
    assert same_items(stay(), open_demo(), [0, 183]) and fault.times == 0
    assert one_page.requests("HEAD|refs|revision|tree")


def test_an_answer_of_another_kind_is_left_to_huggingface_hub(one_page):
    fault = one_page.fault("/tree/", "page", times=3)
    assert same_items(stay(), open_demo(), [0, 183]) and fault.times == 0


def test_a_full_disk_is_said(one_page, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device", "/x")

    monkeypatch.setattr(hub_cold.Place, "put", fail)
    assert LeRobotDatasetMetadata("o/n").total_episodes  # the long way had space
    assert one_page.requests("HEAD")


def test_a_renamed_dataset(one_page, caplog):
    one_page.renamed["old/name"] = "o/n"
    assert same_items(stay(repo_id="old/name"), open_demo(), [0, 183])
    assert "old/name is called o/n now" in caplog.text and not one_page.requests("HEAD")


def test_a_private_dataset(one_page):
    one_page.add("o/p", ROOT, private=True, readers={CANARY})
    stay(repo_id="o/p", revision="main", token=CANARY)
    assert not one_page.requests("HEAD") and not one_page.leaks
    assert all(e["token"] for e in one_page.log if e["origin"] == "api")


def test_ranks_start_once(one_page):
    one_page.delay = 0.02
    script = (
        "from reelpool import LeRobotDataset\n"
        "print(LeRobotDataset('o/n', download_videos=False, num_threads=1).revision)"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) for _ in range(3)
    ]
    assert len({rank.communicate(timeout=60)[0] for rank in ranks}) == 1
    asked = one_page.requests("api")
    assert len(asked) == len(set(asked))


def test_the_stored_token(hub, tmp_path, monkeypatch):
    def both():
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "huggingface_hub.utils")
            short = stored_token()
        return short, huggingface_hub.get_token()

    assert both() == (None, None)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text(" hf_file\r\n")
    assert both() == ("hf_file", "hf_file")
    for text, wanted in (("", "hf_file"), ("hf_environment\n", "hf_environment"), (" \n", None)):
        monkeypatch.setenv("HF_TOKEN", text)
        assert both()[1] in (wanted, "hf_file") and both()[0] == both()[1]
    (tmp_path / "home/tokens").write_text("[one]\nhf_token = hf_x\nrefresh_token = y\n")
    monkeypatch.delenv("HF_TOKEN")
    assert both()[0] == both()[1]


def test_downloads_go_the_long_way_for_videos(one_page):
    assert same_items(
        LeRobotDataset("o/n", return_uint8=True, num_threads=1), open_demo(), [0, 183]
    )
    assert [a for a in one_page.requests("HEAD") if a.endswith(VIDEOS[0])]
