"""A RUN with one planned shard, and `levo shard` as a process of its own, with the fake engine or the real one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from levo.node.paths import RunPaths, ShardPaths
from levo.node.provenance import VOLATILE
from levo.settings import Settings, freeze
from levo.songs.plan import SHARD_SCHEMA
from levo.songs.song import Song

ROOT = Path(__file__).parents[2]
DRIVE = """
import sys
from pathlib import Path
from levo.errors import LevoError
from levo.node.shard import run_shard
if __name__ == "__main__":
    try:
        sys.exit(run_shard(Path(sys.argv[1]), 0, sys.argv[2]))
    except LevoError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
"""


def song(number: int, **changes) -> Song:
    fields = {
        "song_id": f"song/{number} 歌",
        "lyrics": "[verse] " + "la " * (number % 5 + 1),
        "description": None if number % 2 else "pop, female",
        "gen_type": "separate" if number % 4 == 3 else "mixed",
        "renditions": 2 if number % 4 == 2 else 1,
        "seed": 100 + number,
        "max_seconds": 20.0,
        "language": "en",
        "lyric_tokens": 4,
        "style_tokens": 2,
        "predicted_frames": 400 - number,
        "file": "songs.jsonl",
        "line": number + 1,
    }
    return Song(**{**fields, **changes})


SONGS = [song(number) for number in range(6)]


def settings(model: Path | None = None, ranks: int = 1, slots: int = 2, **limits) -> Settings:
    """Small parts, so that a few songs are several; no waiting for a dead writer's lease."""
    node = {"device": "cpu", "ranks": ranks, "part_songs": 2, "lease_wait_s": 1}
    return Settings.model_validate(
        {
            "model": str(model or "models/fake"),
            "engine": {"slots": slots, "gemm_rows": 16},
            "codec": {"steps": 2},
            "node": {**node, **limits.pop("node", {})},
            "limits": limits,
        }
    )


def make_run(run_dir: Path, songs: list[Song], chosen: Settings) -> ShardPaths:
    """results/RUN as it is after `levo plan`, with all songs in shard 0."""
    freeze(chosen, run_dir)
    rows = [{**vars(song), "shard": 0, "predicted_gpu_seconds": float(song.predicted_frames)} for song in songs]
    plan = RunPaths(run_dir).plan
    plan.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=SHARD_SCHEMA), plan)
    return RunPaths(run_dir).shard(0)


def start(run_dir: Path, maker: str = "fakes.engine:load", **environment: str) -> subprocess.Popen[str]:
    """`levo shard` under way. environment: LEVO_FAULT, FAKE_PLAN and so on."""
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-c", DRIVE, str(run_dir), maker]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(run_dir: Path, maker: str = "fakes.engine:load", **environment: str) -> tuple[int, str]:
    """Exit code, and what was printed."""
    process = start(run_dir, maker, **environment)
    out, err = process.communicate(timeout=100)
    return process.returncode, out + err


def plan(**failures) -> str:
    """A value for FAKE_PLAN."""
    return json.dumps(failures)


def lasting(paths: ShardPaths) -> dict[str, dict]:
    """Song id -> its sealed row without what a rerun may change, with its tokens.

    git_commit is left out: somebody may commit between two runs of a test.
    """
    tokens = {row["song_id"]: row["tokens"] for row in pq.read_table(paths.tokens).to_pylist()}
    rows = {}
    for row in pq.read_table(paths.provenance).to_pylist():
        files = [{k: v for k, v in file.items() if k not in VOLATILE} for file in row["files"]]
        kept = {k: v for k, v in row.items() if k not in VOLATILE | {"git_commit"}}
        rows[row["song_id"]] = {**kept, "files": files, "tokens": tokens.get(row["song_id"])}
    return rows
