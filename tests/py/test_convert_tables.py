"""Tables of a conversion: copied as they are where that can be, else encoded anew; equal rows."""

import errno
import io
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reelpool
from convert_sets import CLIP_FRAMES, options, png, tree, write_clips
from reelpool import _core
from reelpool.convert import data_files, job, source
from reelpool.convert.run import convert
from reelpool.errors import FormatError, StorageError

STATE = "observation.state"
EPISODES = 3


@pytest.fixture
def root(tmp_path):
    return write_clips(tmp_path / "arm", {})


@pytest.fixture
def pictures(tmp_path):
    return write_clips(tmp_path / "arm", {}, images=True)


@pytest.fixture
def encoded(monkeypatch):
    """Numbers of the episodes that were encoded anew, as they come."""
    found, real = [], data_files._rows

    def rows(source, episode, *rest):
        found.append(episode)
        return real(source, episode, *rest)

    monkeypatch.setattr(data_files, "_rows", rows)
    return found


def table_of(root, episode):
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def rewrite(root, episode=1, change=lambda table: table, **how):
    path = table_of(root, episode)
    pq.write_table(change(pq.read_table(path)), path, **how)


def patch(path, old, new):
    data = path.read_bytes()
    assert old in data and len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def new_file(root):
    (path,) = root.glob("data/*/*.parquet")
    return path


def rows_of(*paths):
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def converted(root, threads=2):
    """The new data file: one row group per episode, the rows of the source."""
    names = pq.read_schema(table_of(root, 0)).names
    wanted = rows_of(*(table_of(root, e) for e in range(EPISODES)))
    old = convert(options(root), threads).old
    path = new_file(root)
    with pq.ParquetFile(path) as file:
        meta = file.metadata
        assert file.schema_arrow.names == names
        assert [meta.row_group(i).num_rows for i in range(EPISODES)] == [CLIP_FRAMES] * EPISODES
        assert (meta.num_row_groups, meta.num_rows) == (EPISODES, CLIP_FRAMES * EPISODES)
        for i in range(EPISODES):
            assert file.read_row_group(i).to_pylist() == wanted[CLIP_FRAMES * i :][:CLIP_FRAMES]
    assert rows_of(path) == wanted
    return old, path


def chunks(path, group):
    """{column: (bytes, codec, encodings) of a row group's chunks}."""
    data, meta = path.read_bytes(), pq.read_metadata(path).row_group(group)
    found = {}
    for column in (meta.column(i) for i in range(meta.num_columns)):
        begins = [column.data_page_offset, column.dictionary_page_offset]
        first = min(b for b in begins if b)
        pages = data[first : first + column.total_compressed_size]
        assert len(pages) == column.total_compressed_size > 0
        found[column.path_in_schema] = pages, column.compression, column.encodings
    return found


def same_pages(old, path, episode):
    return chunks(table_of(old, episode), 0) == chunks(path, episode)


# -- copied as they are --


def test_pages_are_copied_as_they_are(root, encoded):
    old, path = converted(root)
    assert encoded == []
    assert all(same_pages(old, path, e) for e in range(EPISODES))
    end = pq.read_metadata(path).serialized_size + 8
    sizes = sum(len(pages) for e in range(EPISODES) for pages, _, _ in chunks(path, e).values())
    assert path.stat().st_size == 4 + sizes + end  # and nothing else


def test_every_reader_sees_equal_values(pictures):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("torch", reason="needs the extra `torch`")
    old, path = converted(pictures)
    frames = [pandas.read_parquet(table_of(old, e)) for e in range(EPISODES)]
    pandas.testing.assert_frame_equal(
        pandas.concat(frames, ignore_index=True), pandas.read_parquet(path)
    )
    ours = reelpool.LeRobotDataset("test/arm", root=pictures, return_uint8=True)
    theirs = reelpool.LeRobotDataset("test/arm", root=old, return_uint8=True)
    assert len(ours) == len(theirs) == CLIP_FRAMES * EPISODES
    for i in range(len(ours)):
        for key, value in theirs[i].items():
            np.testing.assert_array_equal(np.asarray(value), np.asarray(ours[i][key]), key)
    assert ours[9]["index"] == 9 and ours[9]["episode_index"] == 1


COPIED = {
    "zstd": {"compression": "zstd"},
    "not compressed": {"compression": "none"},
    "pages of version 2": {"data_page_version": "2.0"},
    "no dictionaries": {"use_dictionary": False},
    "no statistics": {"write_statistics": False},
    "small pages": {"data_page_size": 16, "write_batch_size": 2},
    "page index": {"write_page_index": True},
    "check sums of pages": {"write_page_checksum": True},
    "sorted": {"sorting_columns": [pq.SortingColumn(1)]},
    "Bloom filter": {"bloom_filter_options": {"index": {"ndv": 100}}},
}


@pytest.mark.parametrize("how", COPIED)
def test_copied_however_its_pages_were_made(root, encoded, how):
    try:
        rewrite(root, **COPIED[how])
    except TypeError as error:
        pytest.skip(str(error))
    old, path = converted(root)
    assert encoded == []
    assert all(same_pages(old, path, e) for e in range(EPISODES))
    meta = pq.read_metadata(path).row_group(1)
    for column in (meta.column(i) for i in range(meta.num_columns)):
        assert not column.has_offset_index and not column.has_column_index  # they lie elsewhere
        assert not getattr(column, "bloom_filter_offset", None)


def test_pictures_inside_are_copied(pictures, encoded):
    old, path = converted(pictures)
    assert encoded == []
    assert all(same_pages(old, path, e) for e in range(EPISODES))


# -- encoded anew --


def two_row_groups(root):
    rewrite(root, row_group_size=5)


def many_row_groups(root):
    rewrite(root, row_group_size=1)


def another_program(root):
    patch(table_of(root, 1), b"parquet-cpp-arrow", b"parquet-cpp-wrong")


def older_element_names(root, episode=1):
    def change(table):
        kind = pa.list_(pa.field("item", pa.float32()), 3)
        index = table.column_names.index(STATE)
        return table.set_column(index, STATE, table[STATE].cast(kind))

    rewrite(root, episode, change, use_compliant_nested_type=False)
    assert pq.read_metadata(table_of(root, episode)).schema.column(0).path == f"{STATE}.list.item"


def other_order(root):
    rewrite(root, change=lambda t: t.select(t.column_names[::-1]))


def castable_types(root):
    def change(table):
        index = table.column_names.index("index")
        table = table.set_column(index, "index", table["index"].cast(pa.int32()))
        index = table.column_names.index(STATE)
        return table.set_column(index, STATE, table[STATE].cast(pa.list_(pa.float64())))

    rewrite(root, change=change)


def without_arrows_types(root):
    rewrite(root, change=lambda t: t.cast(wide(t.schema)))


def wide(schema):
    """The same with lists whose offsets have 64 bits: other types for Arrow alone."""
    kind = pa.large_list(pa.float32())
    return schema.set(schema.get_field_index(STATE), schema.field(STATE).with_type(kind))


ANEW = [two_row_groups, many_row_groups, another_program, older_element_names, other_order]
ANEW += [castable_types]


@pytest.mark.parametrize("fault", ANEW)
def test_encoded_anew(root, encoded, fault):
    fault(root)
    old, path = converted(root)
    assert encoded == [1]
    assert [same_pages(old, path, e) for e in (0, 2)] == [True, True]
    assert not same_pages(old, path, 1) or fault in (another_program, other_order)


def test_other_types_of_arrow_alone(root, encoded):
    """Parquet stores them alike: the pages are the same."""
    without_arrows_types(root)
    old, path = converted(root)
    assert all(same_pages(old, path, e) for e in range(EPISODES))


def test_all_with_older_element_names(root, encoded):
    for episode in range(EPISODES):
        older_element_names(root, episode)
    converted(root)
    assert encoded == [0, 1, 2]


def test_the_first_one_decides_the_types(root, encoded):
    """Others are cast to its types, in its order."""
    rewrite(root, 0, lambda t: t.select([*t.column_names[::-1]]))
    converted(root)
    assert encoded == [1, 2]


# -- files that are not read at once --


@pytest.mark.parametrize("fault", [None, two_row_groups, older_element_names])
def test_large_tables(tmp_path, monkeypatch, encoded, fault):
    """Those that are read in pieces, with long footers, come out the same."""
    root = write_clips(tmp_path / "arm", {}, images=True)
    if fault is not None:
        fault(root)
    small = shutil.copytree(root, tmp_path / "small/arm")
    convert(options(small))
    monkeypatch.setattr(source, "_WHOLE", 100)
    monkeypatch.setattr(source, "_BUFFER", 64)
    monkeypatch.setattr(data_files, "_BLOCK", 333)
    monkeypatch.setattr(data_files, "_TAIL", 100)
    assert pq.read_metadata(table_of(root, 1)).serialized_size > 100
    converted(root)
    assert encoded == ([] if fault is None else [1, 1])
    assert tree(root) == tree(small)


# -- pictures --


def test_pictures_beside_the_table_are_embedded(pictures, encoded):
    (pictures / "images").mkdir()
    wanted = rows_of(*(table_of(pictures, e) for e in range(EPISODES)))
    for frame in (2, 5):
        (pictures / f"images/f{frame}.png").write_bytes(png(1, frame))
        wanted[CLIP_FRAMES + frame]["still"] = {"bytes": png(1, frame), "path": f"f{frame}.png"}

    def change(table):
        index, cells = table.column_names.index("still"), table["still"].to_pylist()
        for frame in (2, 5):
            cells[frame] = {"bytes": None, "path": f"images/f{frame}.png"}
        kind = table.schema.field("still").type
        return table.set_column(index, "still", pa.array(cells, kind))

    rewrite(pictures, change=change)
    old = convert(options(pictures), threads=2).old
    assert rows_of(new_file(pictures)) == wanted
    assert encoded == [1]
    assert same_pages(old, new_file(pictures), 0)


def test_without_statistics_nobody_knows_where_pictures_are(pictures, encoded):
    rewrite(pictures, write_statistics=False)
    converted(pictures)
    assert encoded == [1]


def test_a_picture_that_there_is_not(pictures, encoded):
    def change(table):
        index, cells = table.column_names.index("still"), table["still"].to_pylist()
        kind = table.schema.field("still").type
        return table.set_column(index, "still", pa.array([None, *cells[1:]], kind))

    rewrite(pictures, change=change)
    with pytest.raises(FormatError, match="episode 1, frame 0: the image cell has neither"):
        convert(options(pictures))
    assert encoded == [1]


# -- damage --


def damage(path, name):
    """Bytes in the middle of a column's pages are others."""
    meta = pq.read_metadata(path).row_group(0)
    column = next(
        c for i in range(meta.num_columns) if (c := meta.column(i)).path_in_schema == name
    )
    begins = [column.data_page_offset, column.dictionary_page_offset]
    end = min(b for b in begins if b) + column.total_compressed_size
    data = bytearray(path.read_bytes())
    half = column.total_compressed_size // 2
    data[end - half : end] = b"\xff" * half
    path.write_bytes(data)


@pytest.mark.parametrize("whole", [8 << 20, 0])
@pytest.mark.parametrize("name", [f"{STATE}.list.element", "task_index", "still.bytes"])
def test_a_damaged_page_of_any_column_is_found(pictures, monkeypatch, name, whole):
    """A column that the judge itself does not need, too: it would be copied as it is."""
    monkeypatch.setattr(source, "_WHOLE", whole)
    damage(table_of(pictures, 1), name)
    before = tree(pictures.parent)
    with pytest.raises(FormatError) as caught:
        convert(options(pictures), threads=2)
    assert caught.value.episode == 1
    assert "\n  episode 1: data/chunk-000/episode_000001.parquet: " in str(caught.value)
    assert tree(pictures) == {k[4:]: v for k, v in before.items() if k.startswith("arm/")}
    assert not (pictures.parent / "arm_v30").exists()


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:500])


def longer(path):
    path.write_bytes(path.read_bytes() + b"more")


def emptied(path):
    path.write_bytes(b"")


def no_footer(path):
    path.write_bytes(b"x" * path.stat().st_size)


def broken_footer(path):
    data = path.read_bytes()
    path.write_bytes(data[:-300] + b"\xff" * 292 + data[-8:])


def an_endless_footer(path):
    path.write_bytes(path.read_bytes()[:-8] + b"\xff\xff\xff\xffPAR1")


def another_table(path):
    rewrite(path.parents[2], 1, lambda t: t, compression="none")


CHANGES = [flipped, cut, longer, emptied, no_footer, broken_footer, an_endless_footer]
CHANGES += [another_table]


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_source_that_changes_after_the_plan(tmp_path, monkeypatch, change, images):
    root = write_clips(tmp_path / "arm", {}, images=images)
    real = job.write_data

    def write_data(*args):
        change(table_of(root, 1))
        return real(*args)

    monkeypatch.setattr(job, "write_data", write_data)
    with pytest.raises(StorageError, match=r"episode_000001.parquet has changed") as caught:
        convert(options(root), threads=2)
    assert caught.value.file == "data/chunk-000/episode_000001.parquet"
    assert not list(tmp_path.glob("arm_v30/data/**/*.*"))


# -- the disk --


class Disk:
    """A file that takes 700 bytes at a time, and `room` of these."""

    def __init__(self, raw, room):
        self._raw, self._room = raw, room

    def write(self, data):
        self._room -= 1
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._raw.write(memoryview(data)[:700])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._raw.close()


@pytest.mark.parametrize("fault", [None, two_row_groups])
def test_full_at_each_write(tmp_path, monkeypatch, fault):
    root = write_clips(tmp_path / "arm", {})
    if fault is not None:
        fault(root)
    reference = shutil.copytree(root, tmp_path / "reference/arm")
    convert(options(reference))
    before, wanted, failed = tree(root), tree(reference), 0

    def on_disk(path, mode, buffering):
        raw = io.FileIO(path, mode)  # as without a buffer
        return Disk(raw, failed) if mode == "wb" else raw

    while failed < 100:
        monkeypatch.setattr(data_files, "open", on_disk, raising=False)
        try:
            convert(options(root))
            break
        except StorageError as error:
            assert error.status == errno.ENOSPC and error.file.endswith("file-000.parquet")
        assert tree(root) == before
        assert not list(tmp_path.glob("arm_v30/data/**/*.*"))
        monkeypatch.undo()
        if failed % 4 == 0:  # with space it goes on
            work = [shutil.copytree(tmp_path / n, tmp_path / "again" / n) for n in ("arm", "_work")]
            convert(options(work[0]))
            assert tree(work[0]) == wanted
            shutil.rmtree(tmp_path / "again")
        failed += 1
    assert tree(root) == wanted
    assert failed > 10


def test_what_the_core_says_of_bytes(root):
    data = table_of(root, 0).read_bytes()
    first, end, entry = _core.parquet_row_group(data, len(data), data, 4, 0)
    assert (first, end) == (4, len(data) - pq.read_metadata(table_of(root, 0)).serialized_size - 8)
    whole = data[:end] + _core.parquet_footer(data, [entry])
    assert pq.read_table(pa.BufferReader(whole)).equals(pq.read_table(pa.BufferReader(data)))
    for bad in (b"", b"PAR1", data[:-1], bytes(len(data))):
        assert _core.parquet_row_group(bad, len(bad), data, 4, 0) is None
        with pytest.raises(FormatError):
            _core.parquet_row_group(data, len(data), bad, 4, 0)
        with pytest.raises(FormatError):
            _core.parquet_footer(bad, [entry])
        with pytest.raises(FormatError, match="no row group"):
            _core.parquet_footer(data, [entry, bad])
    with pytest.raises(ValueError, match="at byte 3"):
        _core.parquet_row_group(data, len(data), data, 3, 0)
    for args in ((data, [3]), (data, (entry,)), (3, [entry])):
        with pytest.raises(TypeError):
            _core.parquet_footer(*args)


def test_neither_pandas_nor_datasets_are_loaded(root):
    """However its tables are made; they take a second and much memory."""
    two_row_groups(root)
    script = (
        "import sys; from reelpool.__main__ import main\n"
        f"assert main(['convert', {str(root)!r}, '-q']) == 0\n"
        "print([m for m in ('torch', 'pandas', 'pyarrow.dataset', 'av') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=-1, stderr=-1, text=True)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr
