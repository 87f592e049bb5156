"""New Parquet files: one row group per episode, columns as the sources have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import FormatError, make_error
from .copies import changed
from .source import Source, numbers


def write_data(source: Source, first: int, inputs: list[list], part: Path) -> None:
    """Write the rows of the episodes from `first` on. Holds one episode in memory.

    `inputs`: [name, bytes, SHA-256] of each one's table, which must still be that. Raises
    FormatError, StorageError, its cause (OSError).
    """
    schema = describe(source.schema, source.images)
    few = [field.name for field in schema if _repeats(field.type)]
    with pq.ParquetWriter(part, schema, compression="snappy", use_dictionary=few) as writer:
        for episode, (rel, _, digest) in enumerate(inputs, first):
            try:
                table = source.take_rows(episode, digest)
                if table is None:
                    file, _, found = source.open_table(episode)
                    if found != digest:
                        raise changed(rel)
                    table = source.rows_of(file)
                table = table.replace_schema_metadata(schema.metadata)
            except pa.ArrowException as error:
                text = f"{rel}: {error}"
                raise make_error(FormatError, text, file=rel, episode=episode) from error
            writer.write_table(table, row_group_size=max(1, table.num_rows))


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
