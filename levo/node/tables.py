"""Parquet tables with an explicit schema: written whole, read back before they count, checked when read.

Knows no column. Pages carry checksums, so a flipped bit is found, too.
"""

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from levo.disk import whole_file
from levo.errors import NodeError


def to_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    """Rows as a table of exactly this schema. An absent nullable column is null.

    Raises ValueError for an unknown column (pyarrow alone would drop it), and for null where the schema forbids it.
    """
    unknown = {name for row in rows for name in row} - set(schema.names)
    if unknown:
        raise ValueError(f"columns that the schema does not have: {', '.join(sorted(unknown))}")
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in rows]
        if not field.nullable and any(value is None for value in values):
            raise ValueError(f"column {field.name} may not be null")
        columns.append(pa.array(values, type=field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def write_table(rows: Sequence[Mapping[str, Any]] | pa.Table, schema: pa.Schema, path: Path) -> None:
    """Write rows as Parquet: whole or not at all, and read back. Raises OSError when the disk does not keep them."""
    table = rows if isinstance(rows, pa.Table) else to_table(rows, schema)
    with whole_file(path) as file:
        pq.write_table(table.cast(schema), file, compression="zstd", write_page_checksum=True)
    try:
        n_rows = read_footer(path).num_rows
    except NodeError as error:
        raise OSError(errno.EIO, f"written and not readable: {error.what}", str(path)) from None
    if n_rows != table.num_rows:
        raise OSError(errno.EIO, f"{table.num_rows} rows written, {n_rows} read back", str(path))


def read_footer(path: Path) -> pq.FileMetaData:
    """A file's footer. Raises NodeError when it is missing or damaged."""
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from None


def read_table(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table, with the file's metadata. Raises NodeError when it is damaged or of another schema.

    columns: only these, in the schema's order.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            found = file.schema_arrow
            if not found.equals(schema):
                raise _other_schema(path, found, schema)
            table: pa.Table = file.read(columns=list(columns) if columns is not None else None)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from None
    if table.num_rows != file.metadata.num_rows:
        raise _damaged(path, f"{file.metadata.num_rows} rows in the footer, {table.num_rows} in the file")
    return table


def metadata(schema: pa.Schema) -> dict[str, str]:
    """A schema's metadata as text."""
    return {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}


def with_metadata(schema: pa.Schema, more: Mapping[str, str]) -> pa.Schema:
    """A schema with further metadata."""
    return schema.with_metadata({**metadata(schema), **more})


def _damaged(path: Path, why: object) -> NodeError:
    text = str(why).strip().splitlines()[0] if str(why).strip() else "empty"
    return NodeError(
        f"not readable as Parquet: {text}", where=str(path), fix="it is damaged or cut short: make it again"
    )


def _other_schema(path: Path, found: pa.Schema, schema: pa.Schema) -> NodeError:
    odd = sorted(set(found.names) ^ set(schema.names)) or [
        field.name for field in schema if not found.field(field.name).equals(field)
    ]
    name = metadata(schema).get("levo.schema", "this kind")
    return NodeError(
        f"not a table of {name} as this version writes it; differing columns: {', '.join(odd) or 'their order'}",
        where=str(path),
        fix="give a file of a RUN that this version made",
    )
