"""From a manifest to songs.parquet and rejected.parquet. Knows no model but its text encoder, and no shards.

Every row of the manifest ends in exactly one of the two files, in the manifest's order. A refused row costs no other.
Rows are read and written in batches; only a digest of each id stays in memory (about 200 bytes a row).
"""

import functools
import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from levo.disk import whole_file
from levo.errors import ManifestError
from levo.pace import Pace
from levo.settings import Settings
from levo.songs import length
from levo.songs.fields import Asked, id_of, read_fields
from levo.songs.language import NO_LANGUAGE, language_of
from levo.songs.lyrics import check_sung, clean, join, parse
from levo.songs.prompts import GENRES, Prompt, PromptBook, prompt_language
from levo.songs.reasons import Refused
from levo.songs.rows import Row, read_rows
from levo.songs.song import FRAME_RATE, SONG_SCHEMA, Song
from levo.songs.text import BGM_LYRICS, TextEncoder, style_texts

REJECTED_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("song_id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("sentence", pa.string(), nullable=False),
        pa.field("fix", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ],
    metadata={"levo.schema": "rejected", "levo.schema_version": "1"},
)
SHOWN_CHARACTERS = 2000
"""How much of a refused row is kept to look at."""

_BATCH_ROWS = 4096


@dataclass(frozen=True)
class CheckSummary:
    """What a check found. lyrics_ignored: bgm songs whose row has lyrics, which the model does not read."""

    n_songs: int
    n_rejected: int
    by_reason: dict[str, int]
    lyrics_ignored: int
    predicted_hours: float

    @property
    def n_rows(self) -> int:
        """Rows of the manifest."""
        return self.n_songs + self.n_rejected


def check(manifest: Path, out: Path, encoder: TextEncoder, settings: Settings) -> CheckSummary:
    """Write OUT/songs.parquet and OUT/rejected.parquet, both or neither. Raises ManifestError if unreadable."""
    length_file = settings.plan.length_model
    checker = _Checker(manifest, encoder, settings, length.load(Path(length_file) if length_file else None))
    by_reason: Counter[str] = Counter()
    n_songs, frames = 0, 0
    pace = Pace("rows", None)
    with _both(out) as (songs, rejected):
        for row in read_rows(manifest):
            found = checker.song(row)
            if isinstance(found, Song):
                n_songs, frames = n_songs + 1, frames + found.predicted_frames * found.renditions
                songs.add(vars(found))
            else:
                by_reason[found["reason"]] += 1
                rejected.add(found)
            pace.add()
        if not n_songs and not by_reason:
            raise ManifestError("the manifest has no rows", where=str(manifest), fix="write one song a line")
    return CheckSummary(
        n_songs, by_reason.total(), dict(by_reason.most_common()), checker.lyrics_ignored, frames / FRAME_RATE / 3600
    )


def derived_seed(run_seed: int, song_id: str) -> int:
    """The seed of a song that asks for none: 63 bits of BLAKE2b over the run's seed and the id."""
    digest = hashlib.blake2b(f"{run_seed}\0{song_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class _Checker:
    """Turns rows into songs, and remembers their ids."""

    def __init__(self, manifest: Path, encoder: TextEncoder, settings: Settings, model: length.LengthModel) -> None:
        self.file = str(manifest)
        self.encoder = encoder
        self._style_tokens = functools.lru_cache(4096)(lambda text: len(encoder.style_ids(text)))  # styles repeat
        self.run_seed = settings.seed
        self.longest_s = min(settings.limits.max_seconds, encoder.limits.max_seconds)
        self.length = model
        self.lyrics_ignored = 0
        self.prompts = PromptBook(encoder.model_dir, encoder.limits)
        self.prompt_of_file = functools.lru_cache(4096)(self._prompt_of_file)  # files repeat
        self._lines: dict[bytes, int] = {}  # digest of a folded id -> line; digests, since ids may be long

    def song(self, row: Row) -> Song | dict[str, Any]:
        """The song, or the row of rejected.parquet."""
        song_id = None
        try:
            if isinstance(row.fields, Refused):
                raise row.fields
            song_id = id_of(row.fields)
            if song_id is not None:
                self._claim(song_id, row.line)
            return self._song(read_fields(row.fields, self.longest_s), row.line)
        except Refused as refused:
            return {
                "file": self.file,
                "line": row.line,
                "song_id": song_id,
                "reason": refused.code,
                "sentence": _storable(refused.sentence),
                "fix": _storable(refused.fix),
                "row": _storable(row.raw[:SHOWN_CHARACTERS]),
            }

    def _claim(self, song_id: str, line: int) -> None:
        """An id belongs to the first row that carries it, even a refused one: mending that row must not clash later."""
        folded = unicodedata.normalize("NFC", song_id.casefold())
        key = hashlib.blake2b(folded.encode("utf-8", errors="surrogatepass"), digest_size=16).digest()
        first = self._lines.setdefault(key, line)
        if first != line:
            raise Refused("duplicate_id", first=first)

    def _song(self, asked: Asked, line: int) -> Song:
        lyrics, language = self._lyrics(asked)
        description = clean(asked.description or "", "description").replace("\n", " ") or None
        limits = self.encoder.limits
        lyric_tokens = self.encoder.n_lyric_tokens(lyrics)
        if lyric_tokens > limits.lyric_tokens:
            raise Refused("too_many_lyric_tokens", n=lyric_tokens, limit=limits.lyric_tokens)
        styles = style_texts(description, asked.gen_type, limits.version)
        style_tokens = max(map(self._style_tokens, styles))
        if style_tokens > limits.style_tokens:
            raise Refused("too_many_style_tokens", n=style_tokens, limit=limits.style_tokens)
        max_seconds = asked.max_seconds or self.longest_s
        seed = derived_seed(self.run_seed, asked.song_id) if asked.seed is None else asked.seed
        prompt = self._prompt(asked, lyrics, seed)
        return Song(
            song_id=asked.song_id,
            lyrics=lyrics,
            description=description,
            gen_type=asked.gen_type,
            renditions=asked.renditions,
            seed=seed,
            max_seconds=max_seconds,
            language=language,
            lyric_tokens=lyric_tokens,
            style_tokens=style_tokens,
            predicted_frames=self.length.predict(lyrics, language, asked.gen_type, int(max_seconds * FRAME_RATE)),
            file=self.file,
            line=line,
            prompt_source=prompt.source if prompt else None,
            prompt_sha256=prompt.sha256 if prompt else None,
        )

    def _prompt(self, asked: Asked, lyrics: str, seed: int) -> Prompt | None:
        """The song's audio prompt. A bgm song's language is that of the lyrics in its row, as upstream."""
        if asked.prompt_tokens is not None:
            found = self.prompt_of_file(os.path.join(os.path.dirname(os.path.abspath(self.file)), asked.prompt_tokens))
            if isinstance(found, ManifestError):
                raise Refused("bad_prompt", why=f"{found.what} ({found.where})", fix=found.fix)
            return found
        genre = asked.auto_prompt
        if genre is None:
            return None
        if genre not in GENRES and genre not in self.prompts.index:
            raise Refused("bad_auto_prompt", value=repr(genre[:60]), known=", ".join(self.prompts.index or GENRES))
        language = prompt_language((asked.lyrics or "") if asked.gen_type == "bgm" else lyrics)
        prompt = self.prompts.draw(genre, language, seed)
        if prompt is None:
            known = [f"{name} ({', '.join(languages)})" for name, languages in self.prompts.index.items()]
            fix = "convert the model with tools/new_auto_prompt.pt, or remove the field"
            if known:
                fix = f"use one of: {', '.join(known)}"
            raise Refused("no_auto_prompt", kind=f"{genre} in {language}", fix=fix)
        return prompt

    def _prompt_of_file(self, path: str) -> Prompt | ManifestError:
        try:
            return self.prompts.of_file(path)
        except ManifestError as error:
            return error

    def _lyrics(self, asked: Asked) -> tuple[str, str]:
        """Canonical lyrics and their language. A bgm song may have any lyrics or none: what the model reads is "."."""
        if asked.gen_type == "bgm":
            self.lyrics_ignored += (asked.lyrics or "").strip() not in ("", BGM_LYRICS)
            return BGM_LYRICS, NO_LANGUAGE
        text = clean(asked.lyrics or "", "lyrics")
        if not text:
            raise Refused("missing_lyrics")
        sections = parse(text)
        check_sung(sections)
        lyrics = join(sections)
        return lyrics, language_of(lyrics)


def _storable(text: str) -> str:
    """Half surrogate pairs cannot be stored as UTF-8: shown as question marks."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


class _Writer:
    """Rows to one Parquet file, in batches."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows: list[dict[str, Any]] = []
        self.file = pq.ParquetWriter(file, schema, compression="zstd")

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if len(self.rows) == _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self.rows:
            self.file.write_table(pa.Table.from_pylist(self.rows, self.schema))
            self.rows = []


@contextmanager
def _both(out: Path) -> Iterator[tuple[_Writer, _Writer]]:
    """Writers of songs.parquet and rejected.parquet, which are there only after an undisturbed end."""
    with whole_file(out / "songs.parquet") as songs, whole_file(out / "rejected.parquet") as rejected:
        writers = _Writer(songs, SONG_SCHEMA), _Writer(rejected, REJECTED_SCHEMA)
        try:
            yield writers
            for writer in writers:
                writer.flush()
        finally:
            for writer in writers:
                writer.file.close()
