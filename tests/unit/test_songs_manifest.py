"""levo check: every row of a manifest ends in exactly one of two files, with a reason that helps."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fakes.vocabulary import write_text_files

from levo.errors import ManifestError
from levo.settings import LimitSettings, Settings
from levo.songs.manifest import REJECTED_SCHEMA, CheckSummary, check, derived_seed
from levo.songs.reasons import REASONS
from levo.songs.song import SONG_SCHEMA
from levo.songs.text import STRUCTURE_TAGS, TextEncoder

CONFIG = Path(__file__).parents[2] / "config"
GOOD: dict[str, Any] = {"song_id": "a", "lyrics": "[verse] la la", "description": "Pop, female"}

Table = list[dict[str, Any]]
Checked = tuple[Table, Table, CheckSummary]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> TextEncoder:
    return TextEncoder(write_text_files(tmp_path_factory.mktemp("model")))


@pytest.fixture
def run(tmp_path: Path, encoder: TextEncoder) -> Callable[..., Checked]:
    """Check a manifest (a path, or the bytes of a JSONL file): songs, rejected rows, summary."""

    def run_check(manifest: Path | bytes, settings: Settings | None = None) -> Checked:
        if isinstance(manifest, bytes):
            (tmp_path / "m.jsonl").write_bytes(manifest)
            manifest = tmp_path / "m.jsonl"
        out = tmp_path / "out"
        summary = check(manifest, out, encoder, settings or Settings())
        songs, rejected = pq.read_table(out / "songs.parquet"), pq.read_table(out / "rejected.parquet")
        assert songs.schema.equals(SONG_SCHEMA, check_metadata=True)
        assert rejected.schema.equals(REJECTED_SCHEMA, check_metadata=True)
        assert [path.name for path in sorted(out.iterdir())] == ["rejected.parquet", "songs.parquet"]
        return songs.to_pylist(), rejected.to_pylist(), summary

    return run_check


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def reason(run: Callable[..., Checked], **fields: object) -> str | None:
    """The reason code of the good row with other fields; None when it is a song."""
    _, rejected, _ = run(lines({**GOOD, **fields}))
    return rejected[0]["reason"] if rejected else None


def test_example_manifest_is_all_songs_and_shows_everything(run: Callable[..., Checked]) -> None:
    songs, rejected, summary = run(CONFIG / "songs.example.jsonl")
    assert rejected == [] and summary.n_rejected == 0
    assert summary.n_songs == len(songs) >= 40
    for language in ("en", "zh", "es", "ja"):
        assert sum(song["song_id"].startswith(language) for song in songs) >= 10
    sung = [song for song in songs if song["gen_type"] != "bgm"]
    assert all(song["language"] == song["song_id"][:2] for song in sung)
    used = {tag for tag in STRUCTURE_TAGS for song in songs if tag in song["lyrics"]}
    assert used == set(STRUCTURE_TAGS)
    assert {song["gen_type"] for song in songs} == {"mixed", "vocal", "bgm", "separate"}
    assert {song["renditions"] for song in songs} == {1, 2}
    assert all(song["lyric_tokens"] <= 450 for song in songs)
    assert all(0 < song["predicted_frames"] <= song["max_seconds"] * 25 for song in songs)


def test_broken_manifest_shows_every_reason_once_and_keeps_its_good_rows(run: Callable[..., Checked]) -> None:
    manifest = CONFIG / "songs.broken.jsonl"
    songs, rejected, summary = run(manifest)
    assert sorted(row["reason"] for row in rejected) == sorted(REASONS)
    assert summary.by_reason == dict.fromkeys(REASONS, 1)
    assert [song["song_id"] for song in songs] == ["good-1", "good-2", "good-3"]
    text = manifest.read_text(encoding="utf-8").splitlines()
    assert sorted(row["line"] for row in [*songs, *rejected]) == list(range(1, len(text) + 1))
    for row in rejected:
        assert row["file"] == str(manifest)
        assert row["row"] == text[row["line"] - 1][:2000]
        assert row["sentence"] and row["fix"] and "{" not in row["sentence"]
        assert (row["song_id"] is None) == (
            row["reason"] in ("unreadable_row", "not_an_object", "missing_id", "bad_id")
        )


def test_same_songs_from_every_format(run: Callable[..., Checked], tmp_path: Path) -> None:
    rows = [
        {"idx": "a,1", "gt_lyric": '[verse] la "la" ; [chorus] é', "descriptions": "pop, soft", "seed": 5},
        {"idx": "b", "gt_lyric": "[verse] 雪花", "renditions": 2, "max_seconds": 12.5, "gen_type": "separate"},
    ]
    names = ["idx", "gt_lyric", "descriptions", "seed", "renditions", "max_seconds", "gen_type"]
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, names)
    writer.writeheader()
    writer.writerows(rows)
    texts = {"m.jsonl": lines(*rows), "m.csv": buffer.getvalue().encode()}
    pq.write_table(
        pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), tmp_path / "m.parquet"
    )
    texts["m.parquet"] = (tmp_path / "m.parquet").read_bytes()
    found = []
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        found += [run(tmp_path / name)[0], run(tmp_path / f"{name}.gz")[0]]
    for songs in found:
        assert len(songs) == 2
        assert [{**song, "file": "", "line": 0} for song in songs] == [
            {**song, "file": "", "line": 0} for song in found[0]
        ]
    assert found[0][0]["seed"] == 5 and found[0][0]["song_id"] == "a,1" and found[0][1]["max_seconds"] == 12.5


def test_byte_order_mark_crlf_and_blank_lines_are_no_trouble(run: Callable[..., Checked], tmp_path: Path) -> None:
    rows = [{**GOOD, "song_id": name} for name in "ab"]
    body = lines(*rows).replace(b"\n", b"\r\n\r\n")
    songs, rejected, _ = run(b"\xef\xbb\xbf" + body)
    assert [(song["song_id"], song["line"]) for song in songs] == [("a", 1), ("b", 3)] and not rejected
    (tmp_path / "m.csv").write_bytes(b"\xef\xbb\xbfsong_id,lyrics\r\n\r\na,[verse] x\r\nb,[verse] y")
    songs, rejected, _ = run(tmp_path / "m.csv")
    assert [(song["song_id"], song["line"]) for song in songs] == [("a", 3), ("b", 4)] and not rejected


def test_text_is_stored_in_composed_form(run: Callable[..., Checked]) -> None:
    songs, _, _ = run(lines({"song_id": "cafe\u0301", "lyrics": "[verse] cafe\u0301", "description": "cafe\u0301"}))
    assert [songs[0][name] for name in ("song_id", "lyrics", "description")] == ["café", "[verse] café", "café"]


@pytest.mark.parametrize("second", ["Caf\u00e9", "caf\u00e9", "cafe\u0301", "CAFE\u0301"])
def test_ids_that_differ_only_in_case_or_unicode_form_are_duplicates(run: Callable[..., Checked], second: str) -> None:
    songs, rejected, _ = run(lines({**GOOD, "song_id": "Caf\u00e9"}, {**GOOD, "song_id": second}))
    assert len(songs) == 1
    assert rejected[0]["reason"] == "duplicate_id" and "line 1" in rejected[0]["sentence"]


def test_a_refused_row_keeps_its_id(run: Callable[..., Checked]) -> None:
    songs, rejected, _ = run(lines({**GOOD, "seed": -1}, GOOD))
    assert not songs and [row["reason"] for row in rejected] == ["bad_seed", "duplicate_id"]


def test_ids_are_data(run: Callable[..., Checked]) -> None:
    for song_id in ("../../etc/passwd", "04 絆ふぉーえばー", "a/b", "x" * 300, "dot.", 17):
        assert reason(run, song_id=song_id) is None
    for song_id in ("x" * 513, "a\nb", "a\ud83d", " a", 1.5, True, ["a"]):
        assert reason(run, song_id=song_id) == "bad_id"
    assert reason(run, song_id=None, idx="b") is None
    assert reason(run, song_id="") == "missing_id"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"seed": 0}, None),
        ({"seed": 2**63 - 1}, None),
        ({"seed": 2**63}, "bad_seed"),
        ({"seed": "7"}, "bad_seed"),
        ({"seed": 7.0}, "bad_seed"),
        ({"seed": True}, "bad_seed"),
        ({"renditions": 101}, "bad_renditions"),
        ({"max_seconds": 30}, None),
        ({"max_seconds": 30.1}, "bad_max_seconds"),
        ({"max_seconds": 0.5}, "bad_max_seconds"),
        ({"gen_type": "Mixed"}, "bad_gen_type"),
        ({"lyrics": "  "}, "missing_lyrics"),
        ({"lyrics": 5}, "bad_type"),
        ({"description": ""}, None),
        ({"description": "女声，流行"}, "fullwidth_punctuation"),
        ({"prompt_audio_path": None, "auto_prompt_audio_type": None}, None),
        ({"Lyrics": "[verse] la"}, "unknown_field"),
    ],
)
def test_fields_are_held_to_their_ranges(
    run: Callable[..., Checked], fields: dict[str, object], code: str | None
) -> None:
    assert reason(run, **fields) == code


def test_longest_song_is_the_smaller_of_run_and_model(run: Callable[..., Checked]) -> None:
    assert run(lines(GOOD))[0][0]["max_seconds"] == 30  # the model's
    settings = Settings(limits=LimitSettings(max_seconds=20))
    assert run(lines(GOOD), settings)[0][0]["max_seconds"] == 20
    assert run(lines({**GOOD, "max_seconds": 25}), settings)[1][0]["reason"] == "bad_max_seconds"


def test_bgm_songs_may_have_any_lyrics_and_are_stored_as_the_model_reads_them(run: Callable[..., Checked]) -> None:
    texts = [None, ".", "no tag at all", "[inst-long]", "[verse] la"]
    rows = [{"song_id": str(i), "lyrics": text, "gen_type": "bgm"} for i, text in enumerate(texts)]
    songs, rejected, summary = run(lines(*rows))
    assert not rejected
    assert {song["lyrics"] for song in songs} == {"."} and {song["language"] for song in songs} == {"none"}
    assert summary.lyrics_ignored == 3


def test_nothing_is_cut_at_the_token_limits(run: Callable[..., Checked]) -> None:
    for n, code in ((596, None), (597, None), (598, "too_many_lyric_tokens")):  # + start token, tag, space
        songs, rejected, _ = run(lines({**GOOD, "lyrics": "[verse] " + "a" * n}))
        assert (rejected[0]["reason"] if rejected else None) == code
        assert code or songs[0]["lyric_tokens"] == n + 3
    songs, rejected, _ = run(lines({**GOOD, "description": "a" * 96}))  # + start token, tag, ", "
    assert songs[0]["style_tokens"] == 100
    assert reason(run, description="a" * 97) == "too_many_style_tokens"


def test_seed_comes_from_run_seed_and_id_alone(run: Callable[..., Checked]) -> None:
    first = run(lines(GOOD, {**GOOD, "song_id": "b"}))[0]
    again = run(lines({**GOOD, "song_id": "b"}))[0]
    assert first[1]["seed"] == again[0]["seed"] == derived_seed(0, "b") != first[0]["seed"]
    assert run(lines(GOOD), Settings(seed=1))[0][0]["seed"] != first[0]["seed"]
    assert 0 <= derived_seed(2**63 - 1, "雪") < 2**63


def test_an_unreadable_manifest_leaves_the_old_files_and_no_others(run: Callable[..., Checked], tmp_path: Path) -> None:
    before = run(lines(GOOD))[0]
    for content in (b"", b"\n\n", gzip.compress(lines(GOOD) * 5000)[:-30]):
        broken = tmp_path / ("m.jsonl.gz" if content.startswith(b"\x1f") else "m.jsonl")
        broken.write_bytes(content)
        with pytest.raises(ManifestError):
            run(broken)
        assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["rejected.parquet", "songs.parquet"]
        assert pq.read_table(tmp_path / "out" / "songs.parquet").to_pylist() == before


def test_a_long_check_says_how_far_it_is(
    run: Callable[..., Checked], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("levo.pace.EVERY_S", 0.0)
    run(lines({"song_id": "a", "lyrics": "[verse] Sea"}, {"song_id": "b"}))
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and said[-1].startswith("2 rows, "), "refused rows count too"


def test_documentation_has_the_table_of_reasons() -> None:
    page = (CONFIG.parent / "docs" / "manifest.md").read_text(encoding="utf-8")
    rows = [f"| `{code}` | {reason.sentence} | {reason.fix} |" for code, reason in REASONS.items()]
    table = page[page.index("## Reasons") :].splitlines()[6:]
    assert table == [row.replace("{{", "{").replace("}}", "}") for row in rows]
