"""Songs as a rank would hand them to a PartWriter: whole rows and real FLAC, from small noise."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from levo.node.audio import encode_flac, member_name, pcm_sha256
from levo.node.parts import PartWriter
from levo.node.paths import RunPaths, ShardPaths
from levo.node.provenance import tokens_sha256
from levo.songs.song import STEMS, Song

RATE = 48000
HOW = {
    "temperature": 0.9, "top_k": 50, "cfg": 1.5, "penalty": 1.1, "window": 50, "codec_steps": 10, "codec_guidance": 1.5,
    "model_name": "fake", "model_digest": "f" * 64, "model_dir": "models/fake", "dtype": "float32", "device": "cpu",
    "gemm_rows": 16, "batch_size": 8, "levo_version": "0", "git_commit": "unknown", "python_version": "3",
    "numpy_version": "2", "torch_version": "2", "host": "here",
}  # fmt: skip


def song(number: int, gen_type: str = "mixed") -> Song:
    return Song(
        f"song {number}/é", "[verse] la", None, gen_type, 1, 100 + number, 20.0, "en", 3, 1, 50, "songs.jsonl", number
    )  # fmt: skip


def made(song: Song, outcome: str = "ok", **more: Any) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """Row and files. The same song always has the same tokens and samples."""
    draw = np.random.default_rng(song.seed)
    row = {
        **{name: getattr(song, name) for name in song.__dataclass_fields__},
        **HOW,
        "shard": 0, "attempt": 1, "rank": 0, "rank_cores": "", "max_frames": song.max_frames, "outcome": outcome,
    }  # fmt: skip
    if outcome != "ok":
        return {**row, "error": "planned", "files": [], **more}, []
    tokens = draw.integers(0, 16384, (3, 20), dtype=np.int32)
    files, members = [], []
    for stem in STEMS[song.gen_type]:
        pcm = draw.integers(-9000, 9000, (960, 2), dtype=np.int16)
        flac = encode_flac(pcm, RATE)
        members.append((member_name(song.song_id, 0, stem), flac))
        files.append({
            "rendition": 0, "stem": stem, "tar": None, "member": members[-1][0], "bytes": len(flac),
            "samples": len(pcm), "sample_rate": RATE, "gain": 1.0, "peak": 0.27, "clipped_share": 0.0,
            "vae_dtype": "float32", "pcm_sha256": pcm_sha256(pcm), "flac_sha256": hashlib.sha256(flac).hexdigest(),
        })  # fmt: skip
    row |= {
        "stop_reason": "eos", "frames": 20, "seconds": 0.8, "tokens_sha256": tokens_sha256(tokens), "tokens": tokens,
        "main_slot": 0, "sub_slot": 0, "files": files,
    }  # fmt: skip
    return {**row, **more}, members


def shard(run: Path) -> ShardPaths:
    return RunPaths(run).shard(0)


def commit(
    paths: ShardPaths,
    *songs: Song,
    attempt: int = 1,
    rank: int = 0,
    outcome: str = "ok",
    writer: PartWriter | None = None,
) -> PartWriter:
    """One part of these songs."""
    writer = writer or PartWriter(paths, attempt, rank)
    for each in songs:
        writer.add(*made(each, outcome, attempt=attempt, rank=rank))
    assert writer.commit() == len(songs)
    return writer
