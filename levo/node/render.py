"""Audio from stored tokens, without the language model (`levo render TOKENS.parquet --out DIR`)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from levo.disk import write_whole
from levo.engine.request import Finished, Request, Sampling, no_book
from levo.errors import ModelError, NodeError
from levo.node.audio import encode_flac, member_name, pcm_sha256
from levo.node.machine import best_device
from levo.node.making import GEMM_ROWS_CPU, REAL, Making, Recipe, find_maker, need_model
from levo.node.provenance import TOKENS_SCHEMA, tokens_sha256
from levo.songs.text import Conditioning, TextIds

NO_TEXT = TextIds((), (), ())
Row = dict[str, Any]


@dataclass
class Rendered:
    """files: song id, path and PCM hash of each. failed: a sentence each."""

    files: list[tuple[str, Path, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{path}  {song_id!r}, PCM sha256 {digest[:16]}" for song_id, path, digest in self.files]
        lines += [f"FAILED  {sentence}" for sentence in self.failed]
        return "\n".join([*lines, f"{len(self.files)} audio files, {len(self.failed)} songs failed"])


def render(tokens: Path, out: Path, model_dir: Path | None, song_ids: list[str] | None, maker: str = REAL) -> Rendered:
    """Render songs of a shard's tokens.parquet to FLAC files in `out`. song_ids: None renders all.

    The model must be the one that made the tokens: model_dir, or else the one recorded. Raises ModelError or NodeError.
    """
    rows = _chosen(tokens, song_ids)
    device = best_device()
    rendered = Rendered()
    groups: dict[Recipe, list[Row]] = {}
    for row in rows:
        groups.setdefault(_recipe(row, need_model(model_dir, row["model_dir"], tokens), device), []).append(row)
    for recipe, group in groups.items():
        making = find_maker(maker)(recipe, no_book)
        for row, done in _make(making, group, recipe.model_dir):
            if done.error is not None:
                rendered.failed.append(f"song {row['song_id']!r}: {done.error}")
            for audio in done.audio:
                path = out / member_name(row["song_id"], audio.rendition, audio.stem)
                write_whole(path, encode_flac(audio.pcm, making.rate))
                rendered.files.append((row["song_id"], path, pcm_sha256(audio.pcm)))
    return rendered


def _chosen(tokens: Path, song_ids: list[str] | None) -> list[Row]:
    try:
        table = pq.read_table(tokens)
    except (OSError, pa.ArrowException) as error:
        raise NodeError(f"not a readable table: {error}", where=str(tokens), fix="give a tokens.parquet") from None
    if not table.schema.equals(TOKENS_SCHEMA):
        raise NodeError(
            "its columns are not those of table tokens", where=str(tokens), fix="give the tokens.parquet of a shard"
        )
    rows = {row["song_id"]: row for row in table.to_pylist()}
    missing = sorted(set(song_ids or []) - rows.keys())
    if missing:
        raise NodeError(
            f"no song {missing[0]!r} among {len(rows)}", where=str(tokens), fix="give the id as in the manifest"
        )
    return [rows[song_id] for song_id in (song_ids or rows)]


def _recipe(row: Row, model_dir: Path, device: str) -> Recipe:
    return Recipe(
        model_dir=model_dir,
        device=device,
        dtype=row["dtype"],
        slots=1,
        gemm_rows=GEMM_ROWS_CPU,
        sampling=Sampling(),
        codec_steps=row["codec_steps"],
        codec_guidance=row["codec_guidance"],
        language=False,
    )


def _make(making: Making, rows: list[Row], model_dir: Path) -> Iterator[tuple[Row, Finished]]:
    """One song after the other. Raises ModelError for another model, NodeError for changed tokens."""
    engine = making.new_engine()
    for key, row in enumerate(rows):
        if row["model_digest"] != making.model_digest:
            raise ModelError(
                f"the tokens are of model {row['model_name']} ({row['model_digest'][:12]}), and this is another one "
                f"({making.model_digest[:12]})",
                where=str(model_dir),
                fix="give the model that made the tokens with --model DIR",
            )
        values = np.array(row["tokens"], dtype=np.int32)
        if tokens_sha256(values) != row["tokens_sha256"]:
            raise NodeError(
                "its tokens were changed (tokens_sha256)",
                where=f"song {row['song_id']!r}",
                fix="copy tokens.parquet again, or seal the shard again",
            )
        engine.submit(_request(row, key, values))
        while engine.live:
            for done in engine.step():
                yield row, done


def _request(row: Row, key: int, tokens: np.ndarray) -> Request:
    return Request(
        key=key,
        conditioning=Conditioning(NO_TEXT, NO_TEXT),
        seed=row["seed"],
        max_frames=tokens.shape[1],
        predicted_frames=tokens.shape[1],
        gen_type=row["gen_type"],
        renditions=row["renditions"],
        tokens=tokens,
    )
