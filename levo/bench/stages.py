"""`levo bench stages`: where one song's time goes, alone on the device, and what songs and renditions share.

The second brief's experiments with LeVo 2: the same lyrics under several caps, a repeat of the first; one rendition and
two; the tokens supplied instead of made; two independent songs one after the other and together. Equal audio is told by
the hash of the samples.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from levo.bench.card import show
from levo.bench.song import SCRATCH, STAGES
from levo.bench.song_line import Line, Load, get_model
from levo.songs.song import FRAME_RATE, Song

SEED, OTHER_SEED = 831001, 831002


@dataclass(frozen=True)
class Take:
    """One experiment: seconds by stage, from lyrics to files on disk. same_audio: as the first take of these songs."""

    what: str
    frames: int
    prefill_s: float
    main_s: float
    sub_s: float
    flow_s: float
    vae_s: float
    encode_s: float
    write_s: float
    rest_s: float
    all_s: float
    x_realtime: float
    same_audio: bool | None


class Stages:
    """Takes one after the other on an idle line."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.first: dict[tuple[int, int], list[str]] = {}
        self.tokens: dict[tuple[int, int], np.ndarray] = {}

    def song(self, frames: int, seed: int = SEED, renditions: int = 1) -> Song:
        """The same lyrics every time."""
        return self.line.supply.song(frames, seed=seed, renditions=renditions)

    def take(self, what: str, songs: Sequence[Song], *, supplied: bool = False) -> Take:
        """Make these songs together and wait until they are on disk; supplied: with the tokens of their first take."""
        line = self.line
        requests = [line.supply.request(song) for song in songs]
        if supplied:
            requests = [replace(r, tokens=self.tokens[_name(s)]) for r, s in zip(requests, songs, strict=True)]
        before, begin = line.ledger.state().by_stage, time.perf_counter()
        encoded, written = len(line.encode_s), line.parts.seconds
        done = sorted(line.make(requests), key=lambda finished: finished.key)
        all_s, after = time.perf_counter() - begin, line.ledger.state().by_stage
        spent = {f"{stage}_s": after.get(stage, 0.0) - before.get(stage, 0.0) for stage in STAGES}
        # On disk they are other threads' work, and the line is idle until they are done.
        spent |= {"encode_s": sum(line.encode_s[encoded:]), "write_s": line.parts.seconds - written}
        for finished, song in zip(done, songs, strict=True):
            assert finished.tokens is not None and finished.key == song.line
            self.tokens.setdefault(_name(song), finished.tokens)
        frames = sum(d.tokens.shape[1] * s.renditions for d, s in zip(done, songs, strict=True) if d.tokens is not None)
        return Take(
            what, frames, **spent, rest_s=all_s - sum(spent.values()), all_s=all_s,
            x_realtime=frames / FRAME_RATE / all_s, same_audio=self._compare(songs),
        )  # fmt: skip

    def _compare(self, songs: Sequence[Song]) -> bool | None:
        """Against the first take of each song, as far as both have the rendition; None when all are first takes."""
        found: list[bool] = []
        for song in songs:
            hashes = self.line.hashes[song.line]
            if _name(song) in self.first:
                known = self.first[_name(song)]
                found.append(all(one == other for one, other in zip(known, hashes, strict=False)))
            self.first.setdefault(_name(song), hashes)
        return all(found) if found else None


def _name(song: Song) -> tuple[int, int]:
    return song.seed, song.max_frames


def run(load: Load, caps: Sequence[int]) -> None:
    """`levo bench stages`. caps: in frames, the shortest first."""
    model, encoder = get_model(load)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder, Line(load, model, encoder, Path(folder)) as line:
        line.make([replace(line.supply.request(line.supply.song(25)), tokens=np.zeros((3, 25), np.int32))])
        takes = experiments(Stages(line), caps)
    rows = [asdict(take) for take in takes]
    unequal = [take.what for take in takes if take.same_audio is False]
    result: dict[str, Any] = {"caps": list(caps), "all_equal": not unequal, "unequal": unequal, **_ratios(takes)}
    show("stages", rows, result)


def experiments(stages: Stages, caps: Sequence[int]) -> list[Take]:
    """All takes, the first one twice."""
    short = caps[0]
    first = stages.song(short)
    return [
        stages.take(f"cap {short / FRAME_RATE:g} s", [first]),
        stages.take(f"cap {short / FRAME_RATE:g} s, again", [stages.song(short)]),
        *(stages.take(f"cap {cap / FRAME_RATE:g} s", [stages.song(cap)]) for cap in caps[1:]),
        stages.take("tokens supplied", [stages.song(short)], supplied=True),
        stages.take("two renditions", [stages.song(short, renditions=2)]),
        stages.take("another song, alone", [stages.song(short, OTHER_SEED)]),
        stages.take("both songs together", [stages.song(short), stages.song(short, OTHER_SEED)]),
    ]


def _ratios(takes: list[Take]) -> dict[str, float]:
    by_name = {take.what: take for take in takes}
    first, other = takes[1], by_name["another song, alone"]
    return {
        "supplied_over_made_s": by_name["tokens supplied"].all_s / first.all_s,
        "two_renditions_over_one_s": by_name["two renditions"].all_s / first.all_s,
        "together_over_one_after_other_s": by_name["both songs together"].all_s / (first.all_s + other.all_s),
    }
