"""`levo shard` on 2 or 4 GPUs of one node, random weights at full size: a rank a GPU, alike in speed and in bits, one
killed, one busy. Six starts of `levo shard` on 2 GPUs, under four minutes.

Figures are printed as JSON (pytest -s), and written to the file that LEVO_FIGURES names.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from fakes.full_size import MAKER, TINY
from fakes.shards import lasting, make_run, song, start

from levo.errors import EXIT_FAILED
from levo.node.binding import NODES, compress, expand
from levo.node.journal import Event, History
from levo.node.ledger import read_ledgers
from levo.node.nvml import nvml
from levo.node.paths import ShardPaths
from levo.node.seal import read_bill
from levo.settings import Settings
from levo.songs.song import Song

N = 4 if torch.cuda.device_count() >= 4 else 2
AT_LEAST = {2: 1.9, 4: 3.7}
SLOTS, FRAMES, SHORT, STEP = (4, 50, 20, 5) if TINY else (32, 750, 150, 25)
A_GPU, SHORT_A_GPU, N_SAME = 2 * SLOTS, (16 if TINY else 24), 16
TIMEOUT_S = 200
FIGURES: dict[str, Any] = {}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
# Holds 2 GiB of its GPU, says which one that is, and waits for its end of the pipe to be closed.
HOLD = """
import sys, torch
held = torch.zeros(2 << 30, dtype=torch.uint8, device="cuda")
print(torch.cuda.get_device_properties(0).uuid, flush=True)
sys.stdin.read()
"""


def of_length(number: int, frames: int) -> Song:
    seconds = (frames + 0.5) / 25  # half a frame, lest rounding make it one short
    return song(number, gen_type="mixed", renditions=1, max_seconds=seconds, predicted_frames=frames)


LONG = [of_length(number, FRAMES) for number in range(A_GPU * N)]
MIXED = [of_length(number, SHORT + STEP * (number % 8)) for number in range(SHORT_A_GPU * N)]


def note(name: str, figures: dict[str, Any]) -> None:
    """Keep figures, so that those of the steps before a failure are known, too."""
    FIGURES[name] = figures
    print(f"\n{name}: {json.dumps(figures)}", flush=True)
    if path := os.environ.get("LEVO_FIGURES"):
        Path(path).write_text(json.dumps(FIGURES) + "\n", encoding="utf-8")


def settings(ranks: int) -> Settings:
    return Settings.model_validate(
        {
            "model": "random",
            "engine": {"slots": SLOTS},
            "node": {"device": "cuda", "ranks": ranks, "part_songs": 2 if TINY else 4, "lease_wait_s": 1},
        }
    )


@pytest.fixture(scope="module", autouse=True)
def untouched() -> Iterator[None]:
    """All GPUs are visible and idle: a context of this process would be somebody's work to a shard."""
    assert not torch.cuda.is_initialized(), "run these tests first, or alone"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield
    print(f"\n{json.dumps(FIGURES)}", flush=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code, and what was printed."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, out + err


def made(paths: ShardPaths, **environment: str) -> ShardPaths:
    """The shard, sealed in one go."""
    begin = time.monotonic()
    return sealed(paths, start(paths.run_dir, MAKER, **environment), begin)


def sealed(paths: ShardPaths, process: subprocess.Popen[str], begin_s: float) -> ShardPaths:
    code, said = ended(process)
    logs = "".join(f"\n{log.name}:\n{log.read_text()}" for log in sorted(paths.work.glob("log-a*-r*.txt")))
    assert code == 0, said + logs
    assert {row["outcome"] for row in rows_of(paths)} == {"ok"}, said + logs
    load_s = {ledger.rank: round(ledger.nobody["load"], 1) for ledger in read_ledgers(paths)}
    wall_s = round(time.monotonic() - begin_s, 1)
    note(f"run {paths.run_dir.name}", {"wall_s": wall_s, "load_s": load_s, "songs": len(rows_of(paths))})
    return paths


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> ShardPaths:
    """One GPU's share of the long songs, on GPU 0, nothing else running."""
    return made(make_run(tmp_path_factory.mktemp("single"), LONG[:A_GPU], settings(1)), CUDA_VISIBLE_DEVICES="0")


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> ShardPaths:
    """All long songs on all GPUs, named in reverse."""
    names = ",".join(map(str, reversed(range(N))))
    return made(make_run(tmp_path_factory.mktemp("every"), LONG, settings(N)), CUDA_VISIBLE_DEVICES=names)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> ShardPaths:
    """Songs of several lengths on all GPUs, which nobody has named; the first rank at its third part dies."""
    paths = make_run(tmp_path_factory.mktemp("killed"), MIXED, settings(N))
    return made(paths, LEVO_FAULT="part.write:3:kill", LEVO_FAULT_ONCE=str(paths.run_dir / "once"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[ShardPaths]:
    """The same songs on each GPU, in a shard of its own, at the same time."""
    shards = [make_run(tmp_path_factory.mktemp(f"alone-{gpu}"), MIXED[:N_SAME], settings(1)) for gpu in range(N)]
    begin = time.monotonic()
    processes = [start(paths.run_dir, MAKER, CUDA_VISIBLE_DEVICES=str(gpu)) for gpu, paths in enumerate(shards)]
    try:
        return [sealed(paths, process, begin) for paths, process in zip(shards, processes, strict=True)]
    finally:
        for process in processes:
            process.kill()


def rows_of(paths: ShardPaths) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(paths.provenance).to_pylist()
    return rows


def events(paths: ShardPaths, name: str) -> list[Event]:
    return [event for event in History.read(paths).events if event.name == name]


def gpu_of(paths: ShardPaths) -> dict[int, str]:
    """Rank -> the one GPU in the rows of its songs."""
    found = {(row["rank"], row["gpu_uuid"]) for row in rows_of(paths)}
    assert len(found) == len(dict(found)), f"a rank on two GPUs: {found}"
    return dict(found)


def songs_a_second(paths: ShardPaths) -> float:
    """Of all ranks together, each from its first song (loading left out) to the last commit of the shard."""
    first_s: dict[int, float] = {}
    for event in events(paths, "give"):
        first_s.setdefault(event.fields["rank"], event.time_s)
    end_s = max(event.time_s for event in events(paths, "commit"))
    n_songs = Counter(row["rank"] for row in rows_of(paths))
    return sum(n_songs[rank] / (end_s - begin_s) for rank, begin_s in first_s.items())


def test_the_gpus_of_a_node_are_as_fast_as_so_many_single_ones(single: ShardPaths, every: ShardPaths) -> None:
    one, all_of_them = songs_a_second(single), songs_a_second(every)
    given, committed = events(every, "give"), events(every, "commit")
    wall = len(LONG) / (committed[-1].time_s - given[0].time_s)
    note(
        "speed",
        {
            "gpus": N, "songs_a_second_of_one": one, "songs_a_second_of_all": all_of_them,
            "ratio": all_of_them / one, "ratio_with_uneven_loading": wall / one,
            "songs_of_ranks": Counter(row["rank"] for row in rows_of(every)),
        },
    )  # fmt: skip
    assert all_of_them / one >= AT_LEAST[N]


def test_ranks_finish_within_a_song_of_each_other(every: ShardPaths) -> None:
    last_s: dict[int, float] = {}
    for row in rows_of(every):
        last_s[row["rank"]] = max(last_s.get(row["rank"], 0.0), row["done_unix_s"])
    apart_s, song_s = max(last_s.values()) - min(last_s.values()), min(row["latency_s"] for row in rows_of(every))
    note("evenness", {"ranks": len(last_s), "ends_apart_s": apart_s, "shortest_song_s": song_s})
    assert len(last_s) == N
    assert apart_s <= song_s


def test_a_rank_has_a_gpu_of_its_own_whatever_names_them(every: ShardPaths, killed: ShardPaths) -> None:
    reversed_gpus, gpus = gpu_of(every), gpu_of(killed)
    note("gpus", {"reversed": reversed_gpus, "unset": gpus})
    assert set(gpus) == set(reversed_gpus) == set(range(N))
    assert len(set(gpus.values())) == N
    assert reversed_gpus == {rank: gpus[N - 1 - rank] for rank in range(N)}
    number = uuid_by_index()
    for row in rows_of(every) + rows_of(killed):
        assert number[row["device_index"]] == row["gpu_uuid"]


def uuid_by_index() -> dict[int, str]:
    """As the driver counts its GPUs: the other way round than a shard asks."""
    import pynvml

    with nvml() as library:
        assert not isinstance(library, str), library
        return {n: pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(N)}


@pytest.mark.parametrize("shard", ["every", "killed"])
def test_a_rank_has_cores_and_memory_beside_its_gpu(request: pytest.FixtureRequest, shard: str) -> None:
    paths: ShardPaths = request.getfixturevalue(shard)
    places = {(row["rank"], row["gpu_uuid"], row["rank_cores"], row["memory_node"]) for row in rows_of(paths)}
    assert len(places) == N
    bound = {}
    given = os.sched_getaffinity(0)
    with nvml() as library:
        assert not isinstance(library, str), library
        near = {uuid: library.cores(uuid) & given or given for _, uuid, _, _ in places}
    for rank, uuid, text, node in sorted(places):
        cores, log = set(expand(text)), paths.log(1, rank).read_text()
        bound[rank] = next(line for line in log.splitlines() if line.startswith(f"rank {rank} of process"))
        around = [int(path.parent.name[4:]) for path in NODES.glob("node[0-9]*/cpulist") if cores <= on(path)]
        assert cores and cores <= near[uuid]
        assert f"GPU {uuid}, cores {compress(cores)}" in bound[rank], "the kernel says otherwise"
        assert node == (around[0] if around else None), "null only when its cores lie on several nodes"
        assert node is None or f"node {node}" in bound[rank], "bound, or why not"
    note(f"places of {shard}", {"affinity": compress(given), "ranks": bound})
    n_cores = sum(len(expand(text)) for _, _, text, _ in places)
    assert n_cores == len({core for _, _, text, _ in places for core in expand(text)}), "cores of two ranks"


def on(path: Path) -> set[int]:
    return set(expand(path.read_text(encoding="utf-8")))


def test_the_others_make_a_killed_ranks_songs_once_and_the_bill_closes(killed: ShardPaths) -> None:
    (lost,) = events(killed, "lost")
    rank, suspects = lost.fields["rank"], set(lost.fields["songs"])
    commits = events(killed, "commit")
    times = Counter(song_id for event in commits for song_id in event.fields["songs"])
    made_by = {row["song_id"]: row["rank"] for row in rows_of(killed)}
    bill = read_bill(killed.provenance)
    note(
        "killed",
        {
            "rank": rank, "how": lost.fields["how"], "in_engine": len(suspects),
            "made_by": Counter(made_by.values()), "bill": json.loads(bill.as_json()),
        },
    )  # fmt: skip
    assert lost.fields["how"] == "killed by SIGKILL" and suspects
    assert set(made_by) == {song.song_id for song in MIXED} and set(times.values()) == {1}
    assert len(made_by) == len(rows_of(killed)) == times.total()
    assert rank not in {made_by[song_id] for song_id in suspects} and rank in made_by.values()
    assert max(event.time_s for event in commits if event.fields["rank"] == rank) <= lost.time_s
    assert [attempt["ranks"] for attempt in bill.attempts] == [N] and bill.lost_s > 0
    assert bill.songs_s + bill.load_s + bill.idle_s + bill.lost_s == pytest.approx(bill.wall_s, rel=0.01)
    assert sum(row["gpu_seconds"] for row in rows_of(killed)) == pytest.approx(bill.songs_s, rel=0.01)


def test_the_same_songs_have_equal_bits_on_every_gpu(alone: list[ShardPaths], killed: ShardPaths) -> None:
    songs = [lasting(paths) for paths in alone]
    gpus = [gpu_of(paths)[0] for paths in alone]
    hashes = [file["pcm_sha256"] for row in songs[0].values() for file in row["files"]]
    note("equal on each GPU", {"gpus": gpus, "songs": len(songs[0]), "different_audio": len(set(hashes))})
    assert len(set(gpus)) == N and len(songs[0]) == len(set(hashes)) == N_SAME
    for other in songs[1:]:
        assert other == songs[0]
    among_others = lasting(killed)
    assert {song_id: among_others[song_id] for song_id in songs[0]} == songs[0]


def test_songs_made_beside_others_on_another_gpu_have_equal_bits(single: ShardPaths, every: ShardPaths) -> None:
    here, there = lasting(single), lasting(every)
    elsewhere = [row for row in rows_of(every) if row["song_id"] in here and row["gpu_uuid"] != gpu_of(single)[0]]
    note("equal in company", {"songs": len(here), "on_another_gpu": len(elsewhere)})
    assert len(elsewhere) >= len(here) // 4
    assert {song_id: there[song_id] for song_id in here} == here


def test_a_gpu_that_another_process_uses_is_refused_by_name(tmp_path: Path) -> None:
    paths = make_run(tmp_path, MIXED, settings(N))
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with holding:
        assert holding.stdout is not None
        uuid = holding.stdout.readline().strip().removeprefix("GPU-")
        assert uuid, "no GPU is held"
        begin = time.monotonic()
        code, said = ended(start(tmp_path, MAKER))
        took_s = round(time.monotonic() - begin, 1)
    note("busy", {"held": uuid, "exit_code": code, "said": said.strip().splitlines(), "took_s": took_s})
    assert code == EXIT_FAILED and f"GPU GPU-{uuid} is busy" in said
    assert not list(paths.work.glob("ledger-*")), "no rank was started"
