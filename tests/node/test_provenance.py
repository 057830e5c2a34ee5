"""The tables' schemas and hashes, and how tables are written and read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.made import made, song

from levo.errors import NodeError
from levo.node.provenance import (
    AUDIO_SCHEMA,
    COLUMNS,
    PART_SCHEMA,
    PROVENANCE_SCHEMA,
    SEALED,
    TOKENS_SCHEMA,
    VOLATILE,
    columns_markdown,
    row_sha256,
    tokens_sha256,
)
from levo.node.tables import read_table, to_table, write_table
from levo.songs.song import SONG_SCHEMA


def part_row(outcome: str = "ok", **more: Any) -> dict[str, Any]:
    row, _ = made(song(1), outcome, **more)
    row["files"] = [dict(file, tar="a.tar") for file in row["files"]]
    row["tokens"] = list(row["tokens"]) if "tokens" in row else None
    return row


def sealed_row(**more: Any) -> dict[str, Any]:
    row = part_row() | {name: 0.5 for name in SEALED} | {"row_sha256": "", **more}
    del row["tokens"]
    return to_table([row], PROVENANCE_SCHEMA).to_pylist()[0]


def test_page_of_columns_is_current(root: Path) -> None:
    assert (root / "docs/provenance.md").read_text(encoding="utf-8") == columns_markdown()


def test_every_column_has_a_meaning_and_one_name() -> None:
    for columns in COLUMNS.values():
        assert all(column.meaning for column in columns)
        assert len({column.name for column in columns}) == len(columns)


def test_a_song_is_in_its_row_under_the_plans_names() -> None:
    for field in SONG_SCHEMA:
        assert PROVENANCE_SCHEMA.field(field.name).equals(field)


def test_schemas_carry_name_and_version() -> None:
    for schema, name in ((PROVENANCE_SCHEMA, b"provenance"), (AUDIO_SCHEMA, b"audio"), (TOKENS_SCHEMA, b"tokens")):
        assert schema.metadata == {b"levo.schema": name, b"levo.schema_version": b"3"}


def test_cost_and_place_are_volatile_and_what_was_made_is_not() -> None:
    assert {"host", "attempt", "rank", "main_slot", "tar", "gpu_seconds", "main_s", "row_sha256"} <= VOLATILE
    steady = {
        "song_id",
        "lyrics",
        "seed",
        "tokens_sha256",
        "pcm_sha256",
        "flac_sha256",
        "outcome",
        "frames",
        "gemm_rows",
    }
    assert not steady & VOLATILE


def test_columns_that_are_all_null_keep_their_type(tmp_path: Path) -> None:
    rows = [part_row("failed"), part_row("failed")]
    write_table(rows, PART_SCHEMA, tmp_path / "null.parquet")
    write_table([part_row(description="calm", prompt=[[1], [2], [3]])], PART_SCHEMA, tmp_path / "set.parquet")
    null, full = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("null", "set"))
    assert null.schema.equals(full.schema) and null.schema.equals(PART_SCHEMA)
    both = pa.concat_tables([null, full])
    assert both["prompt"].to_pylist() == [None, None, [[1], [2], [3]]]
    assert both["stop_reason"].to_pylist() == [None, None, "eos"]


def test_empty_tables_have_the_schema(tmp_path: Path) -> None:
    write_table([], AUDIO_SCHEMA, tmp_path / "none.parquet")
    assert read_table(tmp_path / "none.parquet", AUDIO_SCHEMA).num_rows == 0


def test_a_column_is_never_dropped_in_silence() -> None:
    with pytest.raises(ValueError, match="mood"):
        to_table([part_row(), part_row(mood="calm")], PART_SCHEMA)


def test_null_where_it_is_forbidden_is_refused() -> None:
    with pytest.raises(ValueError, match="seed"):
        to_table([part_row(seed=None)], PART_SCHEMA)


def test_tokens_may_be_arrays_or_lists(tmp_path: Path) -> None:
    row = part_row()
    lists = dict(row, tokens=[codes.tolist() for codes in row["tokens"]])
    assert to_table([row], PART_SCHEMA).equals(to_table([lists], PART_SCHEMA))


def test_row_hash_survives_parquet_and_sees_every_column(tmp_path: Path) -> None:
    row = sealed_row(gpu_seconds=1 / 3, lyrics="[verse] é 絆")
    digest = row_sha256(row)
    write_table([row | {"row_sha256": digest}], PROVENANCE_SCHEMA, tmp_path / "p.parquet")
    (read,) = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert row_sha256(read) == read["row_sha256"] == digest
    for name in PROVENANCE_SCHEMA.names:
        changed = {**read, name: "other"}
        assert (row_sha256(changed) == digest) == (name == "row_sha256"), name
    deep = json.loads(json.dumps(read))
    deep["files"][0]["gain"] = 0.999
    assert row_sha256(deep) != digest


def test_token_hash_is_of_values() -> None:
    tokens = np.arange(60, dtype=np.int32).reshape(3, 20)
    assert tokens_sha256(tokens) == tokens_sha256(np.asfortranarray(tokens))
    assert tokens_sha256(tokens) != tokens_sha256(tokens[::-1])
    with pytest.raises(ValueError, match="int32"):
        tokens_sha256(tokens.astype(np.int64))


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    write_table([part_row() for _ in range(4)], PART_SCHEMA, tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_a_table_cut_short_is_an_error_in_words(table_file: Path) -> None:
    whole = table_file.read_bytes()
    for size in (len(whole) - 100, len(whole) - 1, len(whole) // 2, 4, 0):
        table_file.write_bytes(whole[:size])
        with pytest.raises(NodeError, match="not readable as Parquet"):
            read_table(table_file, PART_SCHEMA)


def test_flipped_bits_in_a_table_never_give_other_rows(table_file: Path) -> None:
    whole, table = table_file.read_bytes(), read_table(table_file, PART_SCHEMA)
    n_noticed = 0
    for place in range(4, len(whole), len(whole) // 150):
        damaged = bytearray(whole)
        damaged[place] ^= 16
        table_file.write_bytes(damaged)
        try:
            assert read_table(table_file, PART_SCHEMA).equals(table), place
        except NodeError:
            n_noticed += 1
    assert n_noticed > 50


def test_a_table_of_another_kind_names_the_columns(table_file: Path) -> None:
    with pytest.raises(NodeError, match="tokens"):
        read_table(table_file, PROVENANCE_SCHEMA)


def test_a_failed_write_leaves_the_former_file(table_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = table_file.read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_table([part_row()], PART_SCHEMA, table_file)
    assert table_file.read_bytes() == before
    assert [path.name for path in table_file.parent.iterdir()] == [table_file.name]
