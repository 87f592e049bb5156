"""`spot`: all columns of some episodes, but row numbers, times and tasks of all."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from demo_sets import FRAMES, STARTS, copy_demo
from reelpool import verify, verify_meta
from reelpool.tables import REQUIRED, load_table
from test_verify import DATA, edit_table, only, with_item


@pytest.fixture(name="demo")
def demo_fixture(tmp_path, monkeypatch):
    """A copy of the embedded set that may be broken, and a cache of this test's own."""
    monkeypatch.setenv("REELPOOL_CACHE", str(tmp_path / "cache"))
    return copy_demo(tmp_path / "demo")


def test_all_columns_of_some_episodes_are_read(demo, monkeypatch):
    """Every row is counted once."""
    loaded = []

    def load(meta, part, all_columns):
        table = load_table(meta, part, all_columns)
        loaded.append((part.tolist(), set(table.columns) <= set(REQUIRED)))
        return table

    monkeypatch.setattr(verify_meta, "load_table", load)
    report = verify.check(demo, "meta", spot=2)
    assert report.ok and report.frames == FRAMES and report.episodes == 4
    assert loaded == [([1, 2], True), ([0, 3], False)]
    loaded.clear()
    assert verify.check(demo, "meta").frames == FRAMES
    assert loaded == [([0, 1, 2, 3], False)]


@pytest.mark.parametrize(
    "column, value, what",
    [("frame_index", 900, "frame_index is 900"), ("timestamp", 0.0, "does not rise"),
     ("task_index", 7, "task_index is 7"), ("index", 5, "index is 5"),
     ("episode_index", 0, "episode_index is 0")],
)  # fmt: skip
def test_numbers_of_rows_are_judged_in_all_of_them(demo, column, value, what):
    """Also in episode 2, which is not among the two whose columns are all read."""
    edit_table(demo / DATA, **{column: with_item(STARTS[2] + 3, value)})
    report = verify.check(demo, "meta", spot=2)
    assert any(what in fault.what and fault.episode == 2 for fault in report.faults), report.text()


def test_what_cannot_be_decoded_is_found_in_the_chosen_ones_only(demo):
    """The pages of a column that no row number needs."""
    table = pq.read_table(demo / DATA)
    pq.write_table(table, demo / DATA, row_group_size=STARTS[1], use_dictionary=False)
    meta = pq.read_metadata(demo / DATA)
    groups = np.cumsum([meta.row_group(g).num_rows for g in range(meta.num_row_groups)])
    names = [meta.schema.column(i).path for i in range(meta.num_columns)]
    state = next(i for i, name in enumerate(names) if name.startswith("observation.state"))
    for row, found in ((STARTS[2], False), (0, True)):
        group = int(np.searchsorted(groups, row, side="right"))
        at = meta.row_group(group).column(state).data_page_offset
        with open(demo / DATA, "r+b") as file:
            file.seek(at)
            file.write(b"\xff" * 64)
        report = verify.check(demo, "meta", spot=2)
        assert report.ok is not found, report.text()
    only(report, file=DATA)
    assert not verify.check(demo, "meta").ok
