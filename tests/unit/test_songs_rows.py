"""Reading of manifest files: line numbers, damaged rows, damaged files."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from levo.errors import ManifestError
from levo.songs.reasons import Refused
from levo.songs.rows import MAX_ROW_BYTES, Row, read_rows


def read(path: Path, content: bytes) -> list[Row]:
    path.write_bytes(content)
    return list(read_rows(path))


def codes(rows: list[Row]) -> list[tuple[int, str | None]]:
    return [(row.line, row.fields.code if isinstance(row.fields, Refused) else None) for row in rows]


def test_a_damaged_json_line_costs_no_other(tmp_path: Path) -> None:
    damaged = [b'{"a": NaN}', b'{"a": 1', b"\xff\xfe", b'"text"', b'{"a": 1, "a": 2}', b"[" * 5000, b"1" * 5000]
    content = b"\n".join([part for line in damaged for part in (line, b'{"song_id": "x"}')])
    rows = read(tmp_path / "m.jsonl", content)
    assert [code for _, code in codes(rows)[::2]] == [
        "unreadable_row",
        "unreadable_row",
        "bad_encoding",
        "not_an_object",
        "conflicting_fields",
        "unreadable_row",
        "unreadable_row",
    ]
    assert [row.fields for row in rows[1::2]] == [{"song_id": "x"}] * 7
    assert [row.line for row in rows] == list(range(1, 15))


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    content = b"{}\n" + b"x" * (2 * MAX_ROW_BYTES + 5) + b"\n{}\n" + b"y" * MAX_ROW_BYTES
    assert codes(read(tmp_path / "m.jsonl", content)) == [
        (1, None),
        (2, "unreadable_row"),
        (3, None),
        (4, "unreadable_row"),
    ]


def test_csv_rows_keep_their_first_line_and_their_raw_text(tmp_path: Path) -> None:
    content = 'song_id,lyrics\na,"[verse] x\ny"\nb\nc,"d"e\nf,\xff\ng,h,i\nj,\n'.encode("latin-1")
    rows = read(tmp_path / "m.csv", content)
    assert codes(rows) == [
        (2, None),
        (4, "unreadable_row"),
        (5, "unreadable_row"),
        (6, "bad_encoding"),
        (7, "unreadable_row"),
        (8, None),
    ]
    assert rows[0].raw == 'a,"[verse] x\ny"' and rows[0].fields == {"song_id": "a", "lyrics": "[verse] x\ny"}
    assert rows[5].fields == {"song_id": "j"}


def test_parquet_rows_are_numbered_and_nulls_are_absent(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    pq.write_table(pa.table({"idx": list(range(2500)), "description": [None, *["pop"] * 2499]}), path)
    rows = list(read_rows(path))
    assert [row.line for row in rows] == list(range(1, 2501))
    assert rows[0].fields == {"idx": 0} and rows[2499].raw == '{"idx": 2499, "description": "pop"}'


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("m.txt", b"{}", "JSONL, CSV or Parquet"),
        ("manifest", b"{}", "ends in nothing"),
        ("m.jsonl", b"\xff\xfe{\x00}\x00", "UTF-16"),
        ("m.jsonl.gz", b"{}", "damaged .gz"),
        ("m.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 9999)[:-20], "damaged .gz"),
        ("m.parquet", b"PAR1 not really", "not readable as parquet"),
        ("m.csv", b"song_id,lyric\na,b\n", "unknown column `lyric`"),
        ("m.csv", b"song_id;lyrics\na;b\n", "unknown column"),
        ("m.csv", b"song_id,song_id\na,b\n", "two columns"),
    ],
)
def test_an_unreadable_file_is_a_manifest_error(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        read(tmp_path / name, content)


def test_a_missing_file_and_a_folder_are_manifest_errors(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no such manifest"):
        list(read_rows(tmp_path / "none.jsonl"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ManifestError, match="cannot be read"):
        list(read_rows(tmp_path / "folder.jsonl"))
