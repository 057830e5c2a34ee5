"""One song from the command line to FLAC: no manifest, no shard, no Snakemake (`levo sing`)."""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from levo.disk import write_text, write_whole
from levo.engine.request import Audio, Finished, no_book
from levo.errors import ManifestError, NodeError
from levo.node.audio import encode_flac, pcm_sha256
from levo.node.machine import best_device
from levo.node.making import REAL, find_maker, need_model, recipe_of, request_of
from levo.settings import LimitSettings, Settings
from levo.songs.song import FRAME_RATE, Song

SONG_ID = "sing"


@dataclass(frozen=True)
class Sung:
    """What `levo sing` made; prints as its report."""

    song: Song
    seconds: float
    stop_reason: str
    took_s: float
    files: dict[Path, Audio]

    def __str__(self) -> str:
        ended = "ended by itself" if self.stop_reason == "eos" else f"cut at {self.song.max_seconds:g} s"
        speed = self.seconds / self.took_s
        lines = [
            f"{self.seconds:.1f} s of song, {ended}; seed {self.song.seed}; {self.took_s:.1f} s ({speed:.1f}x realtime)"
        ]
        for path, audio in self.files.items():
            lines.append(f"{path}  {audio.stem}, peak {audio.peak:.2f}, PCM sha256 {pcm_sha256(audio.pcm)[:16]}")
        return "\n".join(lines)


def sing(
    lyrics: str,
    description: str | None,
    gen_type: str,
    model_dir: Path,
    seed: int,
    out: Path,
    max_seconds: float,
) -> Sung:
    """Make one song. gen_type separate gives three files: OUT, OUT-vocal and OUT-bgm (before the suffix).

    Raises ManifestError with reason and remedy when the lyrics are refused, NodeError when the song fails.
    """
    need_model(model_dir, None, model_dir)
    settings = Settings(model=str(model_dir), limits=LimitSettings(max_seconds=max_seconds))
    device = best_device()
    song = _checked({"lyrics": lyrics, "description": description, "gen_type": gen_type, "seed": seed}, settings)
    making = find_maker(REAL)(recipe_of(settings, device), no_book)
    started = time.monotonic()
    engine = making.new_engine()
    engine.submit(request_of(song, 0, making.encoder))
    done: list[Finished] = []
    while engine.live:
        done += engine.step()
    took_s = time.monotonic() - started
    if done[0].error is not None or done[0].tokens is None:
        raise NodeError(f"the song failed: {done[0].error}", where=str(model_dir), fix="try another seed")
    files = {_path(out, audio.stem, audio is done[0].audio[0]): audio for audio in done[0].audio}
    for path, audio in files.items():
        write_whole(path, encode_flac(audio.pcm, making.rate))
    seconds = done[0].tokens.shape[1] / FRAME_RATE
    return Sung(song, seconds, done[0].stop_reason or "", took_s, files)


def _checked(fields: dict[str, str | int | None], settings: Settings) -> Song:
    """The song in canonical form, by the same check as a manifest's rows."""
    from levo.songs.manifest import check
    from levo.songs.text import TextEncoder

    row = {"song_id": SONG_ID, **{name: value for name, value in fields.items() if value is not None}}
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "song.jsonl"
        write_text(manifest, json.dumps(row) + "\n")
        check(manifest, Path(folder), TextEncoder(Path(settings.model)), settings)
        refused = pq.read_table(Path(folder) / "rejected.parquet").to_pylist()
        songs = pq.read_table(Path(folder) / "songs.parquet").to_pylist()
    if refused:
        raise ManifestError(refused[0]["sentence"], where="the song asked for", fix=refused[0]["fix"])
    return Song(**songs[0])


def _path(out: Path, stem: str, is_first: bool) -> Path:
    return out if is_first else out.with_name(f"{out.stem}-{stem}{out.suffix}")
