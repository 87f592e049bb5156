"""Arrow columns as NumPy arrays, against pyarrow's own conversion."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from demo_sets import DEMO
from reelpool.tables_arrow import flat_numbers, list_items

KINDS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", "float", "double"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_values_are_pyarrows(kind, count):
    numbers = np.random.default_rng(1).integers(0, 2 if kind == "bool" else 100, count)
    array = pa.array(numbers).cast(pa.type_for_alias(kind))
    for part in (array, array[3:], array[1:-1], array.slice(count // 2, 5)):
        mine = flat_numbers(part)
        right = part.to_numpy(zero_copy_only=False)
        assert mine.dtype == right.dtype and np.array_equal(mine, right)
        for chunks in ([], [part], [part, array], [array[:0], part, part]):
            column = pa.chunked_array(chunks, type=array.type)
            assert np.array_equal(flat_numbers(column), column.to_numpy())
            assert flat_numbers(column).dtype == column.to_numpy().dtype


def test_half_floats():
    array = pa.array(np.array([0.5, 1.5, -2], np.float16))
    assert np.array_equal(flat_numbers(array[1:]), np.array([1.5, -2], np.float16))


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 3)])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_items_of_lists_are_pyarrows(make, rows):
    lists = pa.array(np.arange(rows * 3).reshape(rows, 3).tolist(), make(pa.int64()))
    nested = pa.array([[row, row] for row in lists.to_pylist()], pa.list_(make(pa.int64()), 2))
    for part in (lists, lists[1:], lists[1:-1], lists[:0], lists.slice(rows // 2, 2), nested[1:]):
        assert list_items(part).equals(part.flatten())


def test_a_dataset_loads_no_pandas():
    code = (
        "import sys, reelpool\n"
        "dataset = reelpool.LeRobotDataset('x', root=sys.argv[1])\n"
        "next(iter(reelpool.Loader(dataset, 4, output='numpy')))\n"
        "assert 'pyarrow' in sys.modules\n"
        "sys.exit('pandas' in sys.modules or 'pyarrow.compute' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(DEMO / "dataset")], check=True, timeout=60)
