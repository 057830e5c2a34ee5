"""The row and the files of a finished song, as its rank writes them (PART_SCHEMA). Fills in no cost: sealing does."""

import hashlib
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from levo.engine.request import Audio, Finished
from levo.node.audio import encode_flac, member_name, pcm_sha256
from levo.node.binding import compress
from levo.node.machine import Machine
from levo.node.making import Making, Recipe
from levo.node.messages import RankOrder
from levo.node.provenance import tokens_sha256
from levo.node.writing import Encoded
from levo.songs.song import FRAME_RATE, Song


@dataclass
class Taken:
    """When a rank took a song from the queue: since 1970, and on the clock that never jumps. And its audio prompt."""

    unix_s: float = field(default_factory=time.time)
    clock_s: float = field(default_factory=time.monotonic)
    prompt: np.ndarray | None = None


class RowMaker:
    """Makes rows for one rank. Used by several threads at once: it keeps nothing between songs."""

    def __init__(self, order: RankOrder, recipe: Recipe, making: Making, machine: Machine) -> None:
        self.rate = making.rate
        self.rank = {
            **asdict(recipe.sampling),
            **asdict(machine),
            "shard": order.shard,
            "attempt": order.attempt,
            "rank": order.rank,
            "device_index": order.place.device_index,
            "rank_cores": compress(order.place.cores),
            "memory_node": order.place.memory_node,
            "slurm_job_id": order.job.job_id if order.job else None,
            "slurm_restarts": order.job.restarts if order.job else None,
            "slurm_tasks": order.job.tasks if order.job else None,
            "slurm_cores": order.job.cores if order.job else None,
            "codec_steps": recipe.codec_steps,
            "codec_guidance": recipe.codec_guidance,
            "model_name": making.model_name,
            "model_digest": making.model_digest,
            "model_dir": str(recipe.model_dir.absolute()),
            "dtype": recipe.dtype,
            "gemm_rows": recipe.gemm_rows,
            "batch_size": recipe.slots,
        }

    def encoder(self, song: Song, done: Finished, taken: Taken, peak_memory: int | None) -> Callable[[], Encoded]:
        """What turns a song that is ok into its row and files, to be called in a thread."""

        def encode() -> Encoded:
            try:
                return self._with_audio(song, done, taken, peak_memory)
            except Exception as error:  # whatever is wrong with this song must not cost its neighbours
                traceback.print_exc()
                return self._without_audio(song, "failed", f"its audio could not be encoded: {error!r}", taken)

        return encode

    def without_audio(self, song: Song, outcome: str, error: str, taken: Taken | None) -> Callable[[], Encoded]:
        """The same for a song that is rejected or failed."""
        return lambda: self._without_audio(song, outcome, error, taken)

    def _with_audio(self, song: Song, done: Finished, taken: Taken, peak_memory: int | None) -> Encoded:
        assert done.tokens is not None
        members = [(member_name(song.song_id, a.rendition, a.stem), encode_flac(a.pcm, self.rate)) for a in done.audio]
        files = [self._file(audio, *member) for audio, member in zip(done.audio, members, strict=True)]
        n_frames = done.tokens.shape[1]
        row = {
            **self._base(song, "ok", taken),
            "error": None,
            "stop_reason": done.stop_reason,
            "frames": n_frames,
            "seconds": n_frames / FRAME_RATE,
            "tokens_sha256": tokens_sha256(done.tokens),
            "main_slot": done.main_slot,
            "sub_slot": done.sub_slot,
            "files": files,
            "peak_memory_bytes": peak_memory,
            "tokens": done.tokens.tolist(),
        }
        return Encoded(song.song_id, row, members, n_frames / FRAME_RATE)

    def _without_audio(self, song: Song, outcome: str, error: str, taken: Taken | None) -> Encoded:
        nothing = ("stop_reason", "frames", "seconds", "tokens_sha256", "main_slot", "sub_slot", "peak_memory_bytes")
        row = {
            **self._base(song, outcome, taken),
            "error": error,
            **dict.fromkeys(nothing),
            "files": [],
            "tokens": None,
        }
        return Encoded(song.song_id, row, [], 0.0)

    def _base(self, song: Song, outcome: str, taken: Taken | None) -> dict[str, Any]:
        """Who, how and when."""
        return {
            **asdict(song),
            **self.rank,
            "max_frames": song.max_frames,
            "prompt": taken.prompt.tolist() if taken and taken.prompt is not None else None,
            "outcome": outcome,
            "queued_unix_s": taken.unix_s if taken else None,
            "done_unix_s": time.time(),
            "latency_s": time.monotonic() - taken.clock_s if taken else None,
        }

    def _file(self, audio: Audio, member: str, flac: bytes) -> dict[str, Any]:
        return {
            "rendition": audio.rendition,
            "stem": audio.stem,
            "member": member,
            "bytes": len(flac),
            "samples": len(audio.pcm),
            "sample_rate": self.rate,
            "gain": audio.gain,
            "peak": audio.peak,
            "clipped_share": audio.clipped_share,
            "vae_dtype": audio.vae_dtype,
            "pcm_sha256": pcm_sha256(audio.pcm),
            "flac_sha256": hashlib.sha256(flac).hexdigest(),
        }
