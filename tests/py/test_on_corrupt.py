"""on_corrupt="substitute": which sample comes instead, the count, the cap, the ledger."""

import json
import logging
import os
import stat
import threading

import numpy as np
import pytest
from demo_sets import FRONT, WRIST, copy_demo, open_demo
from reelpool import corruption, env
from reelpool.corruption import Substitutions, append_ledger, check_on_corrupt, ledger_path
from reelpool.engine import Entry
from reelpool.errors import ReelpoolError, TooManyBadSamplesError
from reelpool.mixture import Mixture


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of this test's own."""
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ledger():
    return [json.loads(line) for line in ledger_path().read_text().splitlines() if line]


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
    error = f"bad\n data of {WRIST} at https://user:pw@host/a.mp4?token=SECRET"
    counted.note([(3, 50, 51, error), (5, 91, 90, error)])
    counted.note([(0, 183, 0, f"no picture for {FRONT}")])
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
    found = [(0, 10, 11, f"bad {FRONT}")]
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
        counted.note([(0, 10, 11, f"bad {FRONT}")])
    with pytest.raises(TooManyBadSamplesError, match="2 of 100"):
        counted.note([(0, 12, 13, f"bad {FRONT}")])


def test_sets_of_a_mixture_are_named(tmp_path):
    mixed = Mixture([open_demo(), open_demo(copy_demo(tmp_path / "copy"), episodes=[1, 3])])
    Substitutions(mixed.layout, 1, 100).note([(0, 184 + 44, 184 + 45, f"bad {WRIST}")])
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
    Substitutions(open_demo()._layout, 1, 100).note([(0, 1, 2, "bad")])


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


def test_nothing_good_left(tmp_path):
    layout = open_demo()._layout

    class Bad:
        entries = (Entry("cam", "image"),)
        part_of = staticmethod(layout.part_of)

        @staticmethod
        def images(entry, rows):
            raise corruption.DecodeError("all are bad")

    with pytest.raises(ReelpoolError, match="all are bad"):
        corruption.sound_pictures(Bad, np.array([3]), [], [], None)
