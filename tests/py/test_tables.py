"""Parquet files to flat columns: values of real data, and every odd layout."""

import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from expected_items import ALIASES, DATA
from reelpool.errors import FormatError, NotFoundError
from reelpool.metadata import LeRobotDatasetMetadata
from reelpool.tables import load_table
from written_datasets import NUMBERS, STATE, rows, write_v2, write_v30

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no test data in {DATA}")


def table_of(root, episodes=None):
    return load_table(LeRobotDatasetMetadata("t/t", root), episodes)


def feature(dtype, *shape):
    return {"dtype": dtype, "shape": list(shape), "names": None}


def with_column(tmp_path, dtype, shape, column, lengths=(2, 3), **options):
    """A dataset with the column "x" beside the usual ones."""
    features = {"x": feature(dtype, *shape), **NUMBERS}
    columns = {"x": column, **rows(lengths, state=False)}
    return write_v30(tmp_path / "set", lengths, features=features, columns=columns, **options)


@needs_data
@pytest.mark.parametrize("stem, root", [(s, r) for s, roots in ALIASES.items() for r in roots])
def test_values_are_those_that_lerobot_gave(stem, root):
    table = table_of(DATA / root)
    checked = 0
    for entry in json.loads((DATA / "expected" / f"{stem}_plain.json").read_text())["items"]:
        for key, want in entry["item"].items():
            if key in table.columns:
                got = table.columns[key][entry["i"]]
                assert str(got.dtype) == want["dtype"] and list(got.shape) == want["shape"]
                assert got.tolist() == want["value"]
                checked += 1
    assert checked > 50


@needs_data
@pytest.mark.parametrize("root", ["g1_small_v30", "g1_small_v21", "cam3"])
@pytest.mark.parametrize("episodes", [[0], [3], [8], [1, 2], [0, 2, 5, 8]])
def test_a_selection_is_a_cut_of_the_whole(root, episodes):
    whole, part = table_of(DATA / root), table_of(DATA / root, episodes)
    assert part.episodes.tolist() == episodes
    keep = np.isin(whole.episode_index, episodes)
    assert part.num_rows == keep.sum() == len(part)
    for key, column in whole.columns.items():
        np.testing.assert_array_equal(part.columns[key], column[keep])
    for i, episode in enumerate(episodes):
        stop = part.starts[i] + part.lengths[i]
        assert set(part.episode_index[part.starts[i] : stop].tolist()) == {episode}
        assert (part.row_episode[part.starts[i] : stop] == i).all()


@needs_data
def test_v21_equals_its_converted_v30():
    old, new = table_of(DATA / "g1_small_v21"), table_of(DATA / "g1_small_v30")
    assert old.keys == new.keys
    for key in old.columns:
        np.testing.assert_array_equal(old.columns[key], new.columns[key])


@pytest.mark.parametrize("files", [[0, 0, 0], [0, 1, 1], [0, 1, 2]])
@pytest.mark.parametrize("row_group_size", [None, 1, 5])
@pytest.mark.parametrize("episodes", [None, [1], [0, 2], []])
def test_any_file_and_row_group_layout(tmp_path, files, row_group_size, episodes):
    root = write_v30(tmp_path / "set", files=files, row_group_size=row_group_size)
    table = table_of(root, episodes)
    want = np.arange(24, dtype=np.float32).reshape(12, 2)
    chosen = [0, 1, 2] if episodes is None else episodes
    keep = np.isin(np.repeat([0, 1, 2], [3, 4, 5]), chosen)
    np.testing.assert_array_equal(table.columns["state"], want[keep])
    np.testing.assert_array_equal(table.index, np.flatnonzero(keep))


def test_arrays_are_flat_contiguous_read_only_and_in_declared_order(tmp_path):
    table = table_of(write_v30(tmp_path / "set", row_group_size=4))
    assert table.keys == ["state", *NUMBERS]
    for key, array in table.columns.items():
        assert array.flags.c_contiguous and not array.flags.writeable, key
        assert array.shape == ((12, 2) if key == "state" else (12,))
        assert array.dtype == (np.float32 if key in ("state", "timestamp") else np.int64)


def test_one_row_group_is_not_copied(tmp_path):
    table = table_of(write_v30(tmp_path / "set"))
    assert table.columns["state"].base is not None  # a view of Arrow's buffer
    assert not table.columns["state"].flags.owndata


def test_only_the_files_of_the_selection_are_opened(tmp_path):
    root = write_v30(tmp_path / "set", files=[0, 1, 2])
    (root / "data/chunk-000/file-001.parquet").unlink()
    assert table_of(root, [0, 2]).num_rows == 8
    with pytest.raises(NotFoundError, match=r"file-001\.parquet") as caught:
        table_of(root)
    assert caught.value.file == "data/chunk-000/file-001.parquet"


LIST = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
CUBE = np.arange(30).reshape(5, 2, 3)


@pytest.mark.parametrize(
    "dtype, shape, column, want",
    [
        ("float32", (2,), pa.array(LIST, pa.list_(pa.float32())), np.float32(LIST)),
        ("float32", (2,), pa.array(LIST, pa.large_list(pa.float32())), np.float32(LIST)),
        ("float32", (2,), pa.array(LIST, pa.list_(pa.float64(), 2)), np.float32(LIST)),
        ("float64", (2,), pa.array(LIST, pa.list_(pa.float64())), np.float32(LIST)),
        ("float32", (1,), pa.array([0.1] * 5, pa.float64()), np.float32([0.1] * 5)),
        ("float32", (1,), pa.array([[0.5]] * 5), np.float32([0.5] * 5)),
        ("float32", (), pa.array([0.5] * 5), np.float32([0.5] * 5)),
        ("float16", (1,), pa.array([0.1] * 5), np.float32(np.float16([0.1] * 5))),
        ("float32", (1,), pa.array([1, 2, 3, 4, 5]), np.float32([1, 2, 3, 4, 5])),
        ("int32", (1,), pa.array([1, 2, 3, 4, 5], pa.uint8()), np.int64([1, 2, 3, 4, 5])),
        ("int64", (1,), pa.array([1.0, 2, 3, 4, 5]), np.int64([1, 2, 3, 4, 5])),
        ("bool", (1,), pa.array([True, False] * 2 + [True]), np.array([1, 0, 1, 0, 1], bool)),
        ("bool", (1,), pa.array([1, 0, 1, 0, 1]), np.array([1, 0, 1, 0, 1], bool)),
        ("int64", (2, 3), pa.array(CUBE.tolist()), CUBE),
        ("float32", (2, 3), pa.array(CUBE.tolist(), pa.list_(pa.list_(pa.float32(), 3), 2)), CUBE),
        ("float32", (5, 0), pa.array([[[]] * 5] * 5, pa.list_(pa.list_(pa.float32()))), None),
    ],
)
@pytest.mark.parametrize("row_group_size", [None, 2])
def test_accepted_columns(tmp_path, dtype, shape, column, want, row_group_size):
    root = with_column(tmp_path, dtype, shape, column, row_group_size=row_group_size)
    want = np.zeros((5, 5, 0), np.float32) if want is None else want
    for episodes, cut in ((None, slice(0, 5)), ([1], slice(2, 5))):
        got = table_of(root, episodes).columns["x"]
        assert got.dtype == {"f": np.float32, "i": np.int64, "b": bool}[np.dtype(dtype).kind]
        np.testing.assert_array_equal(got, want[cut])


@pytest.mark.parametrize(
    "dtype, shape, column, what",
    [
        ("float32", (1,), pa.array([1.0, None, 3, 4, 5]), "null"),
        ("float32", (2,), pa.array([*LIST[:4], None], pa.list_(pa.float32())), "null"),
        ("float32", (2,), pa.array([*LIST[:4], [1, None]], pa.list_(pa.float32())), "null"),
        ("float32", (2,), pa.array([*LIST[:4], [1]], pa.list_(pa.float32())), "another size"),
        ("float32", (3,), pa.array(LIST, pa.list_(pa.float32(), 2)), "another size"),
        ("float32", (2,), pa.array([1.0] * 5), "0 dimensions"),
        ("float32", (2,), pa.array([[[1.0], [2.0]]] * 5), "nested deeper"),
        ("float32", (2, 1), pa.array(LIST, pa.list_(pa.float32())), "1 dimensions"),
        ("float32", (1,), pa.array(["a"] * 5), "type string"),
        ("int64", (1,), pa.array([1.5] * 5), "fractions"),
        ("int64", (1,), pa.array([float("nan")] * 5), "fractions"),
        ("int64", (1,), pa.array([2**63] * 5, pa.uint64()), "beyond int64"),
        ("bool", (1,), pa.array([2] * 5), "other numbers"),
    ],
)
def test_refused_columns_name_file_and_column(tmp_path, dtype, shape, column, what):
    root = with_column(tmp_path, dtype, shape, column)
    with pytest.raises(FormatError, match=what) as caught:
        table_of(root)
    assert "'x'" in str(caught.value) and "data/chunk-000/file-000.parquet" in str(caught.value)
    assert caught.value.file == "data/chunk-000/file-000.parquet"


def test_nulls_outside_the_selection_do_not_matter(tmp_path):
    column = pa.array([None, None, 3.0, 4, 5])
    root = with_column(tmp_path, "float32", (1,), column)
    assert table_of(root, [1]).columns["x"].tolist() == [3, 4, 5]


def test_declared_column_that_is_missing(tmp_path):
    features = {"state": STATE, "gone": feature("float32", 1), **NUMBERS}
    root = write_v30(tmp_path / "set", features=features)
    with pytest.raises(
        FormatError, match=r"file-000\.parquet: column 'gone' is declared but missing"
    ):
        table_of(root)


def test_a_column_the_reader_needs_is_required_even_undeclared(tmp_path):
    columns = {k: v for k, v in rows((3, 4, 5)).items() if k != "task_index"}
    features = {"state": STATE, **{k: v for k, v in NUMBERS.items() if k != "task_index"}}
    root = write_v30(tmp_path / "set", features=features, columns=columns)
    with pytest.raises(FormatError, match="task_index"):
        table_of(root)


def test_undeclared_columns_are_dropped_with_one_line(tmp_path, caplog):
    columns = {"more": pa.array([0] * 12), **rows((3, 4, 5)), "extra": pa.array(["x"] * 12)}
    root = write_v30(tmp_path / "set", columns=columns, files=[0, 1, 2])
    with caplog.at_level(logging.INFO, "reelpool"):
        table = table_of(root)
    lines = [r.message for r in caplog.records if "undeclared" in r.message]
    assert lines == ["t/t: undeclared columns are dropped: extra, more"]
    assert "extra" not in table.keys and "extra" not in table.cells


def test_unknown_dtype(tmp_path):
    root = with_column(tmp_path, "complex64", (1,), pa.array([1.0] * 5))
    with pytest.raises(FormatError, match="unknown dtype 'complex64'"):
        table_of(root)


def test_declared_size_is_not_allocated(tmp_path):
    root = with_column(tmp_path, "float32", (2**20, 2**20), pa.array([1.0] * 5))
    with pytest.raises(FormatError, match="too large"):
        table_of(root)


@pytest.mark.parametrize("name", ["index", "episode_index"])
@pytest.mark.parametrize("write", [write_v30, write_v2])
def test_rows_of_another_episode_are_found(tmp_path, name, write):
    columns = rows((3, 4, 5))
    values = columns[name].to_numpy().copy()
    values[5] += 1
    columns[name] = pa.array(values)
    root = write(tmp_path / "set", columns=columns)
    with pytest.raises(FormatError, match=f"{name} is") as caught:
        table_of(root)
    assert caught.value.episode == 1
    assert table_of(root, [0, 2]).num_rows == 8


def test_a_file_with_other_rows_than_its_episodes(tmp_path):
    root = write_v2(tmp_path / "set")
    path = root / "data/chunk-000/episode_000001.parquet"
    pq.write_table(pq.read_table(path).slice(0, 3), path)
    with pytest.raises(FormatError, match="has 3 rows, its episodes have 4"):
        table_of(root)


@pytest.mark.parametrize("content", [b"", b"not parquet", b"PAR1" + bytes(200) + b"PAR1"])
def test_damaged_parquet(tmp_path, content):
    root = write_v30(tmp_path / "set")
    (root / "data/chunk-000/file-000.parquet").write_bytes(content)
    with pytest.raises(FormatError, match=r"file-000\.parquet is not a readable Parquet file"):
        table_of(root)


def test_truncated_parquet_body(tmp_path):
    root = write_v30(tmp_path / "set")
    path = root / "data/chunk-000/file-000.parquet"
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    with pytest.raises(FormatError, match="readable Parquet"):
        table_of(root)


def test_string_cells(tmp_path):
    texts = pa.array(["a", "b", "c", "d", "e"])
    for shape, column in (((1,), texts), ((1,), pa.array([[t] for t in "abcde"]))):
        root = with_column(tmp_path / str(column.type), "string", shape, column, row_group_size=2)
        table = table_of(root, [1])
        assert table.keys[0] == "x" and len(table.cells["x"]) == 3
        assert [table.cells["x"].cell(i) for i in range(3)] == ["c", "d", "e"]
        for row in (-1, 3):
            with pytest.raises(IndexError):
                table.cells["x"].cell(row)


def test_language_cells(tmp_path):
    call = {"name": "say", "arguments": {"text": "hi"}}
    row = {"role": "user", "content": "pick", "style": "subtask", "timestamp": 0.5, "camera": None}
    kind = pa.list_(
        pa.struct(
            [
                ("role", pa.string()),
                ("content", pa.string()),
                ("style", pa.string()),
                ("timestamp", pa.float32()),
                ("camera", pa.string()),
                ("tool_calls", pa.list_(pa.string())),
            ]
        )
    )
    stored = [[{**row, "tool_calls": [json.dumps(call)]}], [], None, [row, row], []]
    features = {**NUMBERS, "language_persistent": feature("language", 1)}
    columns = {**rows((2, 3), state=False), "language_persistent": pa.array(stored, kind)}
    root = write_v30(tmp_path / "set", (2, 3), features=features, columns=columns)
    cells = table_of(root).cells["language_persistent"]
    assert cells.cell(0) == [{**row, "tool_calls": [call]}]
    assert cells.cell(1) == cells.cell(2) == []
    assert cells.cell(3) == [{**row, "tool_calls": None}] * 2


@pytest.mark.parametrize("episodes", [[1, 0], [1, 1], [-1], [3]])
def test_wrong_selection_is_a_programming_error(tmp_path, episodes):
    with pytest.raises(ValueError, match="ascending"):
        table_of(write_v30(tmp_path / "set"), episodes)
