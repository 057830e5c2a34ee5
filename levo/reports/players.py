"""Songs to listen to in the page itself: a few files as data: URIs, flagged ones first. Writes nothing to disk.

Ogg/Opus where libsndfile has it for the file's rate, else FLAC as it lies in the tar; long songs are cut.
"""

import base64
import io
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
import soundfile

from levo.errors import LevoError
from levo.node.audio import decode_flac, encode_flac, read_member
from levo.node.paths import RunPaths
from levo.reports.gather import Run, numbers
from levo.reports.sealed import Row
from levo.reports.summary import worst_first

N_FLAGGED, N_TYPICAL = 4, 4
EXCERPT_S = 60
OPUS_RATES_HZ = (8000, 12000, 16000, 24000, 48000)
OPUS_QUALITY = 0.85
"""libsndfile's compression level: 0 is 256 kbit/s, 1 is 6 kbit/s. This is about 80 kbit/s in stereo."""


@dataclass(frozen=True)
class Player:
    """A file to listen to. file: its QA row; why: what it is shown for; uri: the audio itself."""

    file: Row
    why: str
    uri: str
    kind: str
    shown_s: float

    @property
    def is_cut(self) -> bool:
        """Whether the player ends before the song."""
        return self.shown_s < self.file["seconds"]


def choose(run: Run) -> list[tuple[int, str]]:
    """Row numbers of run.files to listen to, and why: the worst flags, each kind once, then songs of every length."""
    chosen: list[tuple[int, str]] = []
    seen: set[str] = set()
    for row in worst_first(run.files):
        flags = run.files["flags"][row].as_py()
        if flags[0] not in seen and "unreadable" not in flags and len(chosen) < N_FLAGGED:
            seen.add(flags[0])
            chosen.append((row, "flagged"))
    first_files: dict[str, int] = {}
    for row, song_id in enumerate(run.files["song_id"].to_pylist()):
        first_files.setdefault(song_id, row)
    lengths = numbers(run.files, "seconds")
    is_fine = pc.equal(pc.list_value_length(run.files["flags"]), 0).to_numpy()
    ordered = sorted((row for row in first_files.values() if is_fine[row]), key=lambda row: (lengths[row], row))
    picks = sorted({round(i * (len(ordered) - 1) / (N_TYPICAL - 1)) for i in range(N_TYPICAL)}) if ordered else []
    return chosen + [(ordered[pick], why) for pick, why in zip(picks, _length_words(len(picks)), strict=True)]


def _length_words(n: int) -> list[str]:
    return ["shortest", *["in between"] * (n - 2), "longest"] if n > 1 else ["typical"] * n


def players(run: Run) -> list[Player]:
    """What choose() chose, as audio. A file that can no longer be read is left out; `levo qa` would flag it now."""
    made = []
    for row, why in choose(run):
        file: Row = run.files.slice(row, 1).to_pylist()[0]
        try:
            tar = RunPaths(run.run_dir).shard(file["shard"]).out / file["tar"]
            pcm, rate = decode_flac(read_member(tar, file["member"]))
        except LevoError:
            continue
        shown = pcm[: EXCERPT_S * rate]
        content, kind = encode(shown, rate)
        mime = "audio/ogg;codecs=opus" if kind == "Opus" else "audio/flac"
        uri = f"data:{mime};base64,{base64.b64encode(content).decode()}"
        made.append(Player(file, why, uri, kind, len(shown) / rate))
    return made


def encode(pcm: np.ndarray, rate: int) -> tuple[bytes, str]:
    """int16 [n, channels] as (file, "Opus" or "FLAC")."""
    if rate not in OPUS_RATES_HZ or "OPUS" not in soundfile.available_subtypes("OGG"):
        return encode_flac(pcm, rate), "FLAC"
    sink = io.BytesIO()
    n_channels = pcm.shape[1]
    with soundfile.SoundFile(
        sink, "w", rate, n_channels, format="OGG", subtype="OPUS", compression_level=OPUS_QUALITY
    ) as file:
        for start in range(0, len(pcm), rate):  # a second at a time: libsndfile's encoder works on its stack
            file.write(pcm[start : start + rate])
    return sink.getvalue(), "Opus"
