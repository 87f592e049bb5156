"""on_corrupt="substitute": which sample comes instead, the count, the cap, the ledger."""

import json
import logging
import os
import stat
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import reelpool
from demo_sets import (
    FRAMES,
    FRONT,
    ROOT,
    STARTS,
    WRIST,
    array,
    check_pixels,
    copy_demo,
    loader_of,
    open_demo,
    truth,
    video,
)
from reelpool import corruption, env
from reelpool.corruption import Substitutions, append_ledger, check_on_corrupt, ledger_path
from reelpool.engine import Entry
from reelpool.errors import (
    DecodeError,
    NotFoundError,
    ReelpoolError,
    TooManyBadSamplesError,
    make_error,
)
from reelpool.mixture import Mixture

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
import make_damaged


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of this test's own."""
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ledger():
    return [json.loads(line) for line in ledger_path().read_text().splitlines() if line]


def bad_picture(camera):
    return make_error(DecodeError, "no picture", camera=camera)


# -- accounting --


def test_cache_folder(monkeypatch, tmp_path):
    assert env.cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("REELPOOL_CACHE")
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "lerobot"))
    assert env.cache_dir() == tmp_path / "lerobot/.reelpool"


def test_arguments():
    assert check_on_corrupt("substitute", 0.01) and not check_on_corrupt("raise", 1e-3)
    for wrong in ("skip", None, True):
        with pytest.raises(ValueError, match="on_corrupt"):
            check_on_corrupt(wrong, 1e-3)
    for wrong in (-0.1, 1.5, "1", float("nan"), True):
        with pytest.raises(ValueError, match="max_bad_fraction"):
            check_on_corrupt("substitute", wrong)


def test_a_line_per_substitution(caplog):
    counted = Substitutions(open_demo()._layout, 1.0, 100)
    text = f"bad\n data of {WRIST} at https://user:pw@host/a.mp4?token=SECRET\n  Run: something"
    error = make_error(DecodeError, "x", camera=WRIST)
    error.args = (text,)
    counted.note([(3, 50, 51, error), (5, 91, 90, error)])
    counted.note([(0, 183, 0, bad_picture(FRONT))])
    counted.note([])
    one, two, three = ledger()
    assert set(one) == {"time", "dataset", "revision", "file", "camera", "episode", "frame",
                        "replaced_by", "error"}  # fmt: skip
    assert (one["dataset"], one["camera"], one["episode"], one["frame"]) == (
        "reelpool/demo", WRIST, 1, 2,
    )  # fmt: skip
    assert one["file"] == f"videos/{WRIST}/chunk-000/file-000.mp4"
    assert one["replaced_by"] == {"episode": 1, "frame": 3}
    assert one["error"] == f"bad data of {WRIST} at https://host/a.mp4"
    assert two["replaced_by"] == {"episode": 1, "frame": 42}
    assert three["file"] == f"videos/{FRONT}/chunk-000/file-001.mp4"
    assert three["replaced_by"] == {"episode": 0, "frame": 0}
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 2  # one per file
    assert one["file"] in warnings[0] and str(ledger_path()) in warnings[0]
    assert "SECRET" not in ledger_path().read_text() + caplog.text
    assert counted.total == 3


def test_cap_is_of_the_epochs_samples():
    counted = Substitutions(open_demo()._layout, 0.02, 100)
    found = [(0, 10, 11, bad_picture(FRONT))]
    counted.note(found)
    counted.note(found)
    with pytest.raises(TooManyBadSamplesError, match=r"3 of 100 .*max_bad_fraction=0.02") as raised:
        counted.note(found)
    assert (raised.value.episode, raised.value.frame, raised.value.camera) == (0, 10, FRONT)
    assert len(ledger()) == 3  # what was too much is recorded as well
    counted.begin(100)
    counted.note(found)
    assert counted.total == 4
    strict = Substitutions(open_demo()._layout, 0, 100)
    with pytest.raises(TooManyBadSamplesError, match="1 of 100"):
        strict.note(found)


def test_distinct_rows_are_counted_once():
    counted = Substitutions(open_demo()._layout, 0.01, 100, distinct=True)
    for _ in range(5):
        counted.note([(0, 10, 11, bad_picture(FRONT))])
    with pytest.raises(TooManyBadSamplesError, match="2 of 100"):
        counted.note([(0, 12, 13, bad_picture(FRONT))])


def test_sets_of_a_mixture_are_named(tmp_path):
    mixed = Mixture([open_demo(), open_demo(copy_demo(tmp_path / "copy"), episodes=[1, 3])])
    Substitutions(mixed.layout, 1, 100).note([(0, 184 + 44, 184 + 45, bad_picture(WRIST))])
    (line,) = ledger()
    assert (line["episode"], line["frame"]) == (3, 0)
    assert line["file"] == f"videos/{WRIST}/chunk-000/file-001.mp4"
    assert line["replaced_by"] == {"episode": 3, "frame": 1}


# -- the ledger's file --


def test_ledger_is_private_and_appended(cache):
    assert append_ledger([{"a": 1}]) and append_ledger([{"a": 2}, {"a": 3}])
    assert [line["a"] for line in ledger()] == [1, 2, 3]
    assert stat.S_IMODE(os.stat(cache).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(ledger_path()).st_mode) == 0o600


def test_a_torn_line_does_not_eat_the_next(cache):
    append_ledger([{"a": 1}])
    with open(ledger_path(), "a") as stream:
        stream.write('{"a": 2, "err')
    append_ledger([{"a": 3}])
    lines = ledger_path().read_text().splitlines()
    assert json.loads(lines[0]) == {"a": 1} and json.loads(lines[2]) == {"a": 3}


def test_a_ledger_that_cannot_be_written_stops_nothing(cache, caplog, monkeypatch):
    def refused(reason):
        caplog.clear()
        assert not append_ledger([{"a": 1}])
        (record,) = caplog.records
        assert reason in record.getMessage() and str(ledger_path()) in record.getMessage()

    cache.mkdir(mode=0o700)
    (cache / "target").write_text("")
    ledger_path().symlink_to(cache / "target")
    refused("symbolic link")
    ledger_path().unlink()
    cache.chmod(0o777)
    refused("others")
    cache.chmod(0o700)
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) // 2)
    refused("only a part")
    monkeypatch.undo()
    assert (cache / "target").read_text() == ""
    Substitutions(open_demo()._layout, 1, 100).note([(0, 1, 2, bad_picture(FRONT))])


def test_lines_of_many_writers_stay_whole():
    def write(number):
        for i in range(50):
            append_ledger([{"writer": number, "i": i, "pad": "x" * 2000}])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = ledger()
    assert len(lines) == 400
    for number in range(8):
        assert [line["i"] for line in lines if line["writer"] == number] == list(range(50))


# -- which row comes instead --


def test_rows_that_may_come_instead():
    layout = open_demo()._layout
    found = list(corruption.substitute_rows(layout, 90))  # episode 1: rows 48..91
    assert found[:3] == [91, 89, 88] and found[42:45] == [48, 92, 93]
    assert sorted([*found, 90]) == list(range(184))
    last = list(corruption.substitute_rows(layout, 150))
    assert last[39:41] == [0, 1]  # after the last episode, the first
    mixed = Mixture([open_demo(), open_demo(episodes=[1, 3])]).layout
    own = list(corruption.substitute_rows(mixed, 184 + 43))  # the last of its episode
    assert own[:2] == [184 + 42, 184 + 41] and own[43] == 184 + 44
    assert min(own) == 184 and len(own) == 83  # never from another set


def test_other_episodes_are_searched_to_a_limit(monkeypatch):
    monkeypatch.setattr(corruption, "_FURTHER", 60)
    found = list(corruption.substitute_rows(open_demo()._layout, 90))
    assert found[43:] == [*range(92, 144), *range(144, 152)]


def test_nothing_good_left():
    layout = open_demo()._layout

    class Bad:
        entries = (Entry("cam", "image"),)
        part_of = staticmethod(layout.part_of)

        @staticmethod
        def images(entry, rows):
            raise corruption.DecodeError("all are bad")

    with pytest.raises(ReelpoolError, match="all are bad"):
        corruption.sound_pictures(Bad, np.array([3]), [], [], None)


# -- damaged files --

BAD_FRONT = range(48, 92)  # the whole of episode 1
BAD_WRIST = (10, 46, 47, 150)  # key frame of a GOP; the end of episode 0; in episode 3


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """A copy of the demo set in which some coded pictures are zeros."""
    root = copy_demo(tmp_path_factory.mktemp("damaged") / "set")
    for camera, file, first, rows in (
        (FRONT, 0, 0, BAD_FRONT), (WRIST, 0, 0, BAD_WRIST[:3]), (WRIST, 1, 144, BAD_WRIST[3:]),
    ):  # fmt: skip
        path = video(root, camera, file)
        data = bytearray(path.read_bytes())
        places = make_damaged.samples(bytes(data))
        for row in rows:
            offset, size = places[row - first]
            data[offset : offset + size] = bytes(size)
        path.write_bytes(data)
    return root


def bad_rows(root, **options):
    """Rows whose item raises, one by one."""
    bad = set()
    with closing(open_demo(root, **options)) as dataset:
        for row in range(FRAMES):
            try:
                dataset[row]
            except DecodeError:
                bad.add(row)
    return bad


def replacement(row, bad):
    """What comes in place of `row`, by the rule of the documentation."""
    episode = np.searchsorted(STARTS, row, side="right") - 1
    first, end = STARTS[episode], STARTS[episode + 1]
    order = [*range(row, end), *range(row - 1, first - 1, -1), *range(end, FRAMES), *range(first)]
    return next(candidate for candidate in order if candidate not in bad)


@pytest.fixture(scope="module")
def bad(damaged):
    found = bad_rows(damaged)
    assert set(BAD_FRONT) | set(BAD_WRIST) <= found and len(found) < 60
    return found


def open_damaged(root, **options):
    options = {"on_corrupt": "substitute", "max_bad_fraction": 1.0, **options}
    return open_demo(root, **options)


def check_substituted(batch, wanted, bad):
    """Every sample is the wanted one, or its replacement, whole and marked."""
    marks = array(batch["is_substitute"]).tolist()
    assert marks == [row in bad for row in wanted]
    assert array(batch["index"]).tolist() == [replacement(row, bad) for row in wanted]
    check_pixels(batch)
    episodes = [int(np.searchsorted(STARTS, i, side="right")) - 1 for i in array(batch["index"])]
    assert array(batch["episode_index"]).tolist() == episodes
    assert [open_demo().meta.episodes[e]["tasks"][0] for e in episodes] == list(batch["task"])


def test_items_by_index(damaged, bad):
    dataset = open_damaged(damaged)
    for row in range(FRAMES):
        item = dataset[row]
        assert list(item)[-1] == "is_substitute"
        assert array(item["is_substitute"]).dtype == bool and item["is_substitute"].ndim == 0
        assert bool(item["is_substitute"]) == (row in bad)
        at = replacement(row, bad)
        assert int(item["index"]) == at
        for camera in (FRONT, WRIST):
            assert np.array_equal(array(item[camera]), truth()[camera][at])
    assert dataset.stats()["substituted"] == len(bad) == len(ledger())
    assert "is_substitute" not in open_demo(damaged)[0]


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "seed": 3}], ids=["in order", "shuffled"]
)
def test_batches_keep_their_shapes_and_the_others_their_samples(damaged, bad, threads, options):
    wanted = [array(b["index"]).tolist() for b in loader_of(open_demo(cameras=[]), 10, **options)]
    with loader_of(open_damaged(damaged), 10, **{**options, "num_threads": threads}) as batches:
        count = 0
        for batch, rows in zip(batches, wanted, strict=True):
            check_substituted(batch, rows, bad)
            count += int(array(batch["is_substitute"]).sum())
        assert count == len(bad) == batches.stats()["substituted"]
    lines = ledger()
    assert len(lines) == len(bad)
    assert {(line["camera"], line["file"]) for line in lines} == {
        (FRONT, f"videos/{FRONT}/chunk-000/file-000.mp4"),
        (WRIST, f"videos/{WRIST}/chunk-000/file-000.mp4"),
        (WRIST, f"videos/{WRIST}/chunk-000/file-001.mp4"),
    }


def test_a_window_counts_as_one_sample(damaged):
    deltas = {"delta_timestamps": {WRIST: [-0.2, 0.0], FRONT: [0.0]}}
    bad = bad_rows(damaged, **deltas)
    assert {12, 13} <= bad  # they look back at 10 and 11
    with loader_of(open_damaged(damaged, **deltas), 8) as batches:
        for batch in batches:
            for index, windows in zip(array(batch["index"]), array(batch[WRIST])):
                start = max(s for s in STARTS if s <= index)
                assert index not in bad
                assert np.array_equal(windows[0], truth()[WRIST][max(start, index - 2)])
                assert np.array_equal(windows[1], truth()[WRIST][index])


def test_workers_and_ranks(damaged, bad):
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    data = DataLoader(open_damaged(damaged), batch_size=10, num_workers=2)
    for n, batch in enumerate(data):
        check_substituted(batch, list(range(10 * n, min(10 * n + 10, FRAMES))), bad)
    steps = []
    for rank in (0, 1):
        options = {"rank": rank, "world_size": 2, "shuffle": True, "seed": 3}
        with loader_of(open_damaged(damaged), 10, **options) as batches:
            steps.append([array(b["index"]).tolist() for b in batches])
    whole = [array(b["index"]).tolist() for b in
             loader_of(open_demo(cameras=[]), 20, shuffle=True, seed=3)]  # fmt: skip
    assert [[replacement(i, bad) for i in batch] for batch in whole] == [
        a + b for a, b in zip(*steps)
    ]


def test_streams(damaged, bad):
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    options = {"root": damaged, "return_uint8": True, "window": 40, "unit": 8, "batch_size": 8,
               "on_corrupt": "substitute", "max_bad_fraction": 1.0, "num_threads": 1}  # fmt: skip
    clean = reelpool.StreamingLeRobotDataset(
        "reelpool/demo", **{**options, "root": ROOT, "on_corrupt": "raise", "cameras": []}
    )
    wanted = [int(item["index"]) for item in clean]
    stream = reelpool.StreamingLeRobotDataset("reelpool/demo", **options)
    for row, item in zip(wanted, stream, strict=True):
        assert (int(item["index"]), bool(item["is_substitute"])) == (
            replacement(row, bad), row in bad,
        )  # fmt: skip
    assert stream.stats()["substituted"] == len(bad) == len(ledger())
    for n, batch in enumerate(DataLoader(stream_again(options), batch_size=8, num_workers=2)):
        check_substituted(batch, wanted[8 * n : 8 * n + 8], bad)


def stream_again(options):
    return reelpool.StreamingLeRobotDataset("reelpool/demo", **options)


def test_a_mixture_substitutes_within_its_sets(damaged, bad):
    sets = [open_damaged(damaged), open_damaged(damaged, episodes=[1, 3])]
    with loader_of(sets, 8, shuffle=True, seed=1, weights=[1, 1]) as batches:
        found = [
            (int(d), int(i), bool(m))
            for batch in batches
            for d, i, m in zip(batch["dataset_index"], batch["index"], batch["is_substitute"])
        ]
    assert {i for _, i, _ in found}.isdisjoint(bad)
    # All of episode 1 is bad: its place takes the first good frame of the set's next episode.
    assert {i for d, i, marked in found if marked and d == 1} == {144, 152}
    assert {i for d, i, marked in found if marked and d == 0} <= {12, 45, 92, 152}
    with pytest.raises(ValueError, match="on_corrupt differs"):
        Mixture([open_damaged(damaged), open_demo()])


def test_too_many(damaged, bad):
    with loader_of(open_damaged(damaged, max_bad_fraction=2.5 / FRAMES), 4) as batches:
        found = []
        with pytest.raises(TooManyBadSamplesError, match="max_bad_fraction") as raised:
            for batch in batches:
                found.append(batch)
        assert len(found) == 11  # the third bad row is 46, in batch 11
        assert raised.value.dataset == "reelpool/demo" and raised.value.camera == WRIST
        assert len(ledger()) == 4  # 10, 11; then 46 and 47 in one batch


def test_only_content_is_substituted(damaged, tmp_path):
    root = copy_demo(tmp_path / "gone")
    video(root, WRIST).unlink()
    with pytest.raises(NotFoundError):
        open_damaged(root)[0]


def test_image_columns(tmp_path):
    pytest.importorskip("PIL.Image")
    from test_mixture import image_set

    root = image_set(tmp_path / "set", broken=[2, 5, 6, 10])
    options = {"root": root, "on_corrupt": "substitute", "max_bad_fraction": 1.0}
    dataset = reelpool.LeRobotDataset("a/b", **options)
    want = [0, 1, 1, 3, 4, 4, 4, 7, 8, 9, 11, 11]  # 3 + 4 + 5 frames
    with loader_of(dataset, 5) as batches:
        for n, batch in enumerate(batches):
            part = want[5 * n : 5 * n + 5]
            assert array(batch["index"]).tolist() == part
            pictures = np.rint(array(batch["cam"])[:, 0, 0, 0] * 255 / 20).astype(int)
            assert pictures.tolist() == part
            assert array(batch["state"])[:, 0].tolist() == [2.0 * row for row in part]
    assert sorted((line["episode"], line["frame"]) for line in ledger()) == [
        (0, 2), (1, 2), (1, 3), (2, 3),
    ]  # fmt: skip
    assert {line["file"] for line in ledger()} == {"data/chunk-000/file-000.parquet"}
    assert int(dataset[5]["index"]) == 4
    with pytest.raises(DecodeError):
        reelpool.LeRobotDataset("a/b", root=root)[5]
