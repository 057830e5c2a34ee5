"""Rows of a manifest file, one by one: JSONL, CSV or Parquet, plain or .gz. Knows no songs and no lyrics.

Text files are UTF-8, with or without a byte order mark, with LF or CRLF; blank lines are no rows. In CSV an empty
cell and in Parquet a null is a field that the row does not have. What concerns one row only is a Refused in that row;
what makes the file unreadable as a whole raises ManifestError.
"""

import csv
import gzip
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from levo.errors import ManifestError
from levo.songs.fields import check_names, kind_of, numbers_from_text
from levo.songs.reasons import Refused

FORMATS = (".jsonl", ".csv", ".parquet")
MAX_ROW_BYTES = 1 << 20  # far above any song; keeps a file without line ends from filling the memory
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Row:
    """line: of the file, from 1; in Parquet the row's number.  raw: the row as text, to show in rejected.parquet."""

    line: int
    raw: str
    fields: dict[str, Any] | Refused


def read_rows(path: Path) -> Iterator[Row]:
    """All rows of a manifest, in bounded memory."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    kind = suffixes[-2 if zipped else -1] if len(suffixes) > zipped else ""
    if kind not in FORMATS:
        raise ManifestError(
            f"a manifest is JSONL, CSV or Parquet, and this file's name ends in {''.join(suffixes[-2:]) or 'nothing'}",
            where=str(path),
            fix=f"name it *{', *'.join(FORMATS)}, or the same with .gz",
        )
    try:
        with gzip.open(path) if zipped else path.open("rb") as file:
            yield from {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}[kind](file, path)  # type: ignore[arg-type]
    except FileNotFoundError:
        raise ManifestError("no such manifest", where=str(path), fix="set `manifest` to an existing file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ManifestError(f"damaged .gz: {error}", where=str(path), fix="copy or pack the file again") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise ManifestError(f"not readable as {kind[1:]}: {error}", where=str(path), fix="write it again") from None
    except OSError as error:
        raise ManifestError(f"cannot be read: {error}", where=str(path), fix="check the path and its rights") from None


def _text_lines(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """Lines without their ends and without the byte order mark; too long ones arrive in pieces of MAX_ROW_BYTES."""
    first = True
    while line := file.readline(MAX_ROW_BYTES):
        if first and line.startswith(_UTF16):
            raise ManifestError("this file is UTF-16", where=str(path), fix="save it as UTF-8")
        yield line.removeprefix(_BOM) if first else line
        first = False


def _jsonl(file: IO[bytes], path: Path) -> Iterator[Row]:
    number, inside = 1, False  # inside: in the rest of a line that was too long
    for line in _text_lines(file, path):
        whole = line.endswith(b"\n")
        too_long = len(line) >= MAX_ROW_BYTES and not whole
        if not inside and line.strip():
            raw = line.decode("utf-8", errors="replace").rstrip("\r\n")
            why = f"it is longer than {MAX_ROW_BYTES} bytes"
            yield Row(number, raw, Refused("unreadable_row", why=why) if too_long else _json_fields(line))
        inside = too_long or (inside and not whole)
        number += not inside


def _json_fields(line: bytes) -> dict[str, Any] | Refused:
    try:
        found = json.loads(line.decode("utf-8").rstrip("\r\n"), object_pairs_hook=_once, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return Refused("bad_encoding", field="the row", why=f"byte {error.object[error.start]:#04x} is not UTF-8")
    except Refused as refused:
        return refused
    except RecursionError:
        return Refused("unreadable_row", why="its brackets are nested too deeply")
    except json.JSONDecodeError as error:
        return Refused("unreadable_row", why=f"it is not JSON: {error.msg.lower()} at character {error.pos + 1}")
    except ValueError as error:  # a number of thousands of digits, NaN
        return Refused("unreadable_row", why=f"it is not JSON: {error}")
    return found if isinstance(found, dict) else Refused("not_an_object", kind=kind_of(found))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Refused("conflicting_fields", fields=f"two fields `{twice}`")
    return dict(pairs)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON value")


def _csv(file: IO[bytes], path: Path) -> Iterator[Row]:
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in _text_lines(file, path):
            taken.append(line.decode("utf-8", errors="surrogateescape"))  # shown as bad_encoding in its own row
            yield taken[-1]

    cells = csv.reader(lines(), strict=True)
    header: list[str] | None = None
    number = 1
    while True:
        taken.clear()
        values: list[str] | Refused | None
        try:
            values = next(cells, None)
        except csv.Error as error:
            values = Refused("unreadable_row", why=f"it is not CSV: {error}")
        if values is None:
            break
        raw = "".join(taken)
        if isinstance(values, Refused):
            yield Row(number, _shown(raw), values)
        elif values and header is None:
            header = values
            check_names(header, path)
        elif values and header is not None:
            yield Row(number, _shown(raw), _csv_fields(header, values))
        number += len(taken)


def _csv_fields(header: list[str], values: list[str]) -> dict[str, Any] | Refused:
    if len(values) != len(header):
        return Refused("unreadable_row", why=f"it has {len(values)} cells, and the header has {len(header)}")
    for value in values:
        bad = next((character for character in value if "\udc80" <= character <= "\udcff"), None)
        if bad is not None:
            return Refused("bad_encoding", field="the row", why=f"byte {ord(bad) - 0xDC00:#04x} is not UTF-8")
    return numbers_from_text({name: value for name, value in zip(header, values, strict=True) if value != ""})


def _shown(raw: str) -> str:
    return raw.rstrip("\r\n").encode("utf-8", errors="replace").decode("utf-8")


def _parquet(file: IO[bytes], path: Path) -> Iterator[Row]:
    with tempfile.TemporaryFile() as plain:
        source: IO[bytes] = file
        if isinstance(file, gzip.GzipFile):  # Parquet is read from its end, and gzip cannot seek backwards
            shutil.copyfileobj(file, plain)
            source = plain
        table = pq.ParquetFile(source)
        check_names(table.schema_arrow.names, path)
        number = 1
        for batch in table.iter_batches(batch_size=1000):
            for row in batch.to_pylist():
                fields = {name: value for name, value in row.items() if value is not None}
                yield Row(number, json.dumps(fields, ensure_ascii=False, default=repr), fields)
                number += 1
