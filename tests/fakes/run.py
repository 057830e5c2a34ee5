"""A finished RUN without a model: tones as songs, through the real parts, ledgers and seal. Its times are planned.

Song 0 is silent, song 1 fails, song 2 runs into its cap, song 3 is `separate` with two renditions, song 4 has an id and
lyrics full of markup. The others are tones of rising length.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from levo.engine.request import Audio, Finished, Sampling
from levo.node.devices import Place
from levo.node.journal import claim_attempt
from levo.node.ledger import Ledger
from levo.node.machine import Machine
from levo.node.making import Making, Recipe
from levo.node.messages import RankOrder
from levo.node.parts import PartWriter
from levo.node.paths import RunPaths, ShardPaths
from levo.node.rows import RowMaker, Taken
from levo.node.seal import seal
from levo.reports.estimate import estimate_run
from levo.reports.qa import qa_shard
from levo.settings import CostSettings, LimitSettings, PlanSettings, Settings, freeze
from levo.songs.manifest import REJECTED_SCHEMA
from levo.songs.plan import plan_run, read_shard
from levo.songs.song import FRAME_RATE, SONG_SCHEMA, STEMS, Song

RATE = 48000
BRIEF = Path(__file__).resolve().parents[2] / "config" / "calibration.brief.json"
HOSTILE = "<script>fetch('http://evil.invalid/id')</script>"
MARKUP = '[verse] </pre></details><img src="http://evil.invalid/lyrics.png" onerror="alert(1)"> & "quotes" \'too\''
SILENT, FAILS, CAPPED, RICH, ODD = range(5)
STAGE_S = {"prefill": 0.5, "main": 4.0, "sub": 1.5, "flow": 1.0, "vae": 0.5, "encode": 0.25, "write": 0.25}
"""Planned seconds of each song by stage: 8 s a song."""
LOAD_S, IDLE_S = 3.0, 1.0


class Clock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class _NoModel:
    """Where a rank keeps its model. None here."""


def make_run(run_dir: Path, n_songs: int = 8, n_shards: int = 2, gpu: str | None = None) -> Path:
    """Everything of a RUN up to `levo qa`. gpu: the GPU's name; None: CPU ranks."""
    chosen = Settings(
        run=run_dir.name,
        plan=PlanSettings(n_shards=n_shards),
        limits=LimitSettings(failed_share=0.5),
        cost=CostSettings(calibration=str(BRIEF)),
    )
    freeze(chosen, run_dir)
    write_manifest(run_dir, [song(n) for n in range(n_songs)])
    plan_run(run_dir)
    estimate_run(run_dir)
    for shard in range(n_shards):
        make_shard(run_dir, shard, chosen, gpu)
        qa_shard(run_dir, shard)
    return run_dir


def song(number: int) -> Song:
    """See the top."""
    song_id = HOSTILE if number == ODD else f"song {number:02d}"
    lyrics = MARKUP if number == ODD else "[intro-short] ; [verse] Salt on the window. ; [outro-short]"
    kind, renditions = ("separate", 2) if number == RICH else ("mixed", 1)
    frames = 25 * (3 + number % 7)
    return Song(
        song_id, lyrics, "folk, calm", kind, renditions, number, 30.0, "en", 12, 4, frames, "songs.jsonl", number + 1
    )


def write_manifest(run_dir: Path, songs: list[Song]) -> None:
    """songs.parquet, and rejected.parquet with two refused rows."""
    (run_dir / "manifest").mkdir()
    pq.write_table(pa.Table.from_pylist([vars(s) for s in songs], SONG_SCHEMA), run_dir / "manifest/songs.parquet")
    refused = [
        ("no lyrics", "missing_lyrics", "the row has no lyrics", "write [verse] and what is sung"),
        ("<b>bold</b>", "unknown_tag", "<i>tag</i> is unknown", "use one of: [verse], [chorus]"),
    ]
    rows = [
        {"file": "songs.jsonl", "line": 90 + n, "song_id": i, "reason": reason, "sentence": s, "fix": fix, "row": "{}"}
        for n, (i, reason, s, fix) in enumerate(refused)
    ]
    pq.write_table(pa.Table.from_pylist(rows, REJECTED_SCHEMA), run_dir / "manifest/rejected.parquet")


def make_shard(run_dir: Path, shard: int, settings: Settings, gpu: str | None = None) -> None:
    """One attempt with one rank: load, songs one after the other, idle; then sealed."""
    paths = RunPaths(run_dir).shard(shard)
    songs = read_shard(RunPaths(run_dir).plan, shard)
    attempt = claim_attempt(paths)
    clock = Clock()
    ledger = Ledger(paths, attempt, 0, age_s=0, clock=clock)
    clock.pass_s(LOAD_S)
    ledger.book("load", [])
    _make_songs(_row_maker(paths, attempt, settings, gpu), PartWriter(paths, attempt, 0), songs, ledger, clock)
    clock.pass_s(IDLE_S)
    ledger.book("idle", [])
    ledger.close()
    seal(paths, songs, settings, attempt)


def _make_songs(rows: RowMaker, writer: PartWriter, songs: list[Song], ledger: Ledger, clock: Clock) -> None:
    for key, asked in enumerate(songs):
        ledger.name(key, asked.song_id)
        for stage, seconds in STAGE_S.items():
            clock.pass_s(seconds)
            ledger.book(stage, [key])
        if asked.seed == FAILS:
            encode = rows.without_audio(asked, "failed", "the audio is not finite <nan>", Taken())
        else:
            encode = rows.encoder(asked, _finished(key, asked), Taken(), None)
        encoded = encode()
        writer.add(encoded.row, encoded.files)
    writer.commit()


def _row_maker(paths: ShardPaths, attempt: int, settings: Settings, gpu: str | None) -> RowMaker:
    order = RankOrder(paths.run_dir, paths.number, attempt, 0, Place(), "fakes:none", settings, 1)
    recipe = Recipe(Path("models/fake"), "cpu", "float32", 8, 16, Sampling(), 10, 1.5)
    making = Making(_NoModel(), _NoModel, RATE, "fake", "f" * 64)  # type: ignore[arg-type]
    versions = dict.fromkeys(Machine.__dataclass_fields__)
    known = {name: "1.0" for name in versions if name.endswith("version")}
    place = {"git_commit": "c0ffee", "device": "cuda" if gpu else "cpu", "gpu_name": gpu, "host": "node0"}
    machine = Machine(**{**versions, **known, **place})  # type: ignore[arg-type]
    return RowMaker(order, recipe, making, machine)


def _finished(key: int, asked: Song) -> Finished:
    """A tone, a little longer than predicted."""
    frames = asked.predicted_frames + 10
    tokens = np.full((3, frames), asked.seed, dtype=np.int32)
    stop = "cap" if asked.seed == CAPPED else "eos"
    audio = [
        Audio(r, stem, tone(asked.seed, frames, r), gain=1.0, peak=0.5, clipped_share=0.0, vae_dtype="float32")
        for r in range(asked.renditions)
        for stem in STEMS[asked.gen_type]
    ]
    return Finished(key, None, tokens, stop, 0, 0, audio)


def tone(number: int, frames: int, rendition: int = 0) -> np.ndarray:
    """int16 [frames * 1920, 2]: another pitch and level a song, a slow beat; song SILENT is silent."""
    t = np.arange(frames * RATE // FRAME_RATE) / RATE
    amplitude = 0.0 if number == SILENT else 0.05 + 0.05 * (number % 6)
    left = amplitude * np.sin(2 * np.pi * 110 * 2 ** (number / 12) * t) * (0.75 + 0.25 * np.sin(2 * np.pi * t))
    right = amplitude * np.sin(2 * np.pi * 165 * 2 ** ((number + rendition) / 12) * t)
    return np.round(np.stack([left, right], axis=1) * 32767).astype(np.int16)
