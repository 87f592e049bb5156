"""New Parquet files: one row group per episode, columns as the sources have them."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import FormatError, make_error
from .copies import changed
from .durable import file_digest
from .source import Source, numbers

_START = 4  # bytes of a Parquet file before its first page
_TAIL = 64 << 10  # footers are shorter, mostly
_BLOCK = 1 << 20


def write_data(source: Source, first: int, inputs: list[list], part: Path) -> None:
    """Write the rows of the episodes from `first` on. A table of one row group is copied as it is,
    another one, or one of another schema, is encoded anew: held in memory then.

    `inputs`: [name, bytes, SHA-256] of each one's table, which must still be that. Raises
    FormatError, StorageError, its cause (OSError).
    """
    core: Any = importlib.import_module("reelpool._core")
    schema = describe(source.schema, source.images)
    model = _encoded(schema)
    entries: list[bytes] = []
    block = memoryview(bytearray(_BLOCK))
    with open(part, "wb", buffering=0) as out:
        at = _write(out, model[:_START])
        for episode, (rel, size, digest) in enumerate(inputs, first):
            span = None
            with open(source.locate(rel)[0], "rb", buffering=0) as stream:
                if source.is_whole(episode):
                    tail = _tail(stream.fileno(), size)
                    span = core.parquet_row_group(tail, size, model, at, len(entries))
                if span is not None and _copy(stream, out, *span[:2], block) != digest:
                    raise changed(rel)
            if span is None:
                data = _encoded(schema, _rows(source, episode, rel, digest, schema))
                span = core.parquet_row_group(data, len(data), model, at, len(entries))
                _write(out, memoryview(data)[span[0] : span[1]])
            at += span[1] - span[0]
            entries.append(span[2])
        _write(out, core.parquet_footer(model, entries))


def _rows(source: Source, episode: int, rel: str, digest: str, schema: pa.Schema) -> pa.Table:
    try:
        file, _, found = source.open_table(episode)
        if found != digest:
            raise changed(rel)
        return source.rows_of(file).replace_schema_metadata(schema.metadata)
    except (pa.ArrowException, OSError) as error:  # the latter from pyarrow, too
        if file_digest(source.locate(rel)[0])[1] != digest:
            raise changed(rel) from error
        if isinstance(error, pa.ArrowException):
            text = f"{rel}: {error}"
            raise make_error(FormatError, text, file=rel, episode=episode) from error
        raise


def _encoded(schema: pa.Schema, table: pa.Table | None = None) -> memoryview:
    """A Parquet file of one row group; of none without a table."""
    few = [field.name for field in schema if _repeats(field.type)]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="snappy", use_dictionary=few) as writer:
        if table is not None:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    return memoryview(sink.getvalue())


def _tail(handle: int, size: int) -> bytes:
    """The end of a Parquet file of `size` bytes, with its whole footer if it has one of those."""
    tail = os.pread(handle, _TAIL, max(0, size - _TAIL))
    wanted = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < wanted <= size:
        tail = os.pread(handle, wanted, size - wanted)
    return tail


def _copy(stream: BinaryIO, out: BinaryIO, first: int, end: int, block: memoryview) -> str:
    """Write the bytes [first, end) of a file that is read from its begin, in blocks; SHA-256 of
    all of it.
    """
    digest, at = hashlib.sha256(), 0
    while count := stream.readinto(block):  # type: ignore[attr-defined]
        digest.update(block[:count])
        _write(out, block[max(0, first - at) : max(0, min(count, end - at))])
        at += count
    return digest.hexdigest()


def _write(out: BinaryIO, data: bytes | memoryview) -> int:
    """Write all of it; its bytes."""
    left = memoryview(data)
    while left:
        left = left[out.write(left) :]
    return len(memoryview(data))


def row_times(path: Path) -> np.ndarray:
    """Seconds of all rows of a new data file, float64."""
    with pq.ParquetFile(path) as file:  # read_table would load pyarrow.dataset
        column = file.read(columns=["timestamp"], use_threads=False).column("timestamp")
    return numbers(column).astype(np.float64)


def _repeats(kind: pa.DataType) -> bool:
    """Whether a dictionary of its values may save bytes: one of measurements costs time only."""
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def describe(schema: pa.Schema, images: list[str] | tuple[str, ...] = ()) -> pa.Schema:
    """`schema` with the types as the `datasets` library notes them; unchanged if it has no name
    for one of them.
    """
    features: dict[str, Any] = {}
    for field in schema:
        kind = {"_type": "Image"} if field.name in images else _feature(field.type)
        if kind is None:
            return schema
        features[field.name] = kind
    text = json.dumps({"info": {"features": features}})
    return schema.with_metadata({"huggingface": text})


def _feature(kind: pa.DataType) -> Any:
    """A type as `datasets` writes it, or None if it has no plain name there."""
    types = pa.types
    if types.is_fixed_size_list(kind):
        inner = _feature(kind.value_type)
        return inner and {"feature": inner, "length": kind.list_size, "_type": "List"}
    if types.is_list(kind):
        inner = _feature(kind.value_type)
        return inner and {"feature": inner, "_type": "List"}
    if types.is_struct(kind):
        fields = {kind.field(i).name: _feature(kind.field(i).type) for i in range(kind.num_fields)}
        return None if None in fields.values() else fields
    if types.is_float32(kind) or types.is_float64(kind) or types.is_float16(kind):
        return {"dtype": f"float{kind.bit_width}", "_type": "Value"}
    plain = types.is_integer(kind) or types.is_boolean(kind) or types.is_string(kind)
    if plain or types.is_large_string(kind) or types.is_binary(kind):
        return {"dtype": str(kind), "_type": "Value"}
    return None
