"""The same song gives the same bits on a GPU, at full size, in fp16: alone, in any company, in any slot, preempted,
captured or not, in two processes, after longer songs, beside poisoned memory. Lengths are forced: 128 to 256 frames.
"""

import gc
import hashlib
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from levo.bench.sizes import PAD_ID
from levo.bench.steady import Songs
from levo.engine import kernels
from levo.engine.build import make_setup
from levo.engine.decoder import Decoder
from levo.engine.memory import MemoryPlan
from levo.engine.request import Request, Sampling, no_book

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


def songs(n: int) -> list[Request]:
    """Songs of 128 to 256 frames, with different lyrics and seeds."""
    supply = Songs(128, 256, seed=7)
    made = [supply.next() for _ in range(n)]
    for i, song in enumerate(made):
        cond = song.conditioning.cond
        lyric_ids = tuple((token + 37 * i) % 150000 for token in cond.lyric_ids)
        made[i] = replace(song, conditioning=replace(song.conditioning, cond=replace(cond, lyric_ids=lyric_ids)))
    return made


def decoder(lm, slots: int, *, n_units: int = 3500, captured: bool = True, sync_ticks: int = 8) -> Decoder:
    plan = MemoryPlan(n_units, n_units)
    setup = replace(make_setup(lm, PAD_ID, 128, Sampling(), plan), captured=captured)
    return Decoder(setup, slots, sync_ticks, no_book)


def run(machine: Decoder, requests: list[Request], between=lambda machine: None) -> dict[int, np.ndarray]:
    """Tokens by key; `between` is called between steps."""
    machine.queue.extend(requests)
    found = {}
    with torch.inference_mode():
        while machine.live:
            for _, done in machine.step():
                assert done.error is None
                found[done.key] = done.tokens
            between(machine)
    return found


class Alone:
    """Each song's tokens when it is the only one in one slot; made once, when first asked for."""

    def __init__(self, lm) -> None:
        self.machine, self.tokens = decoder(lm, 1, n_units=200), {}

    def check(self, requests: list[Request], found: dict[int, np.ndarray]) -> None:
        different = []
        for request in requests:
            if request.key not in self.tokens:
                self.tokens |= run(self.machine, [request])
            if not np.array_equal(self.tokens[request.key], found[request.key]):
                different.append(request.key)
        assert not different, f"{len(different)} of {len(requests)} songs differ: {different[:10]}"


@pytest.fixture(scope="module")
def alone(full_size_lm):
    with torch.inference_mode():
        return Alone(full_size_lm)


@pytest.fixture(autouse=True)
def free_memory():
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("slots", [2, 7, 16, 32])
def test_any_number_of_slots(full_size_lm, alone, slots):
    requests = songs(24)
    shuffled = random.Random(slots).sample(requests, len(requests))
    with torch.inference_mode():
        alone.check(requests, run(decoder(full_size_lm, slots), shuffled))


def test_beside_longer_songs_and_after_them(full_size_lm, alone):
    """Neighbours of 600 frames start and end at other ticks; then a short batch runs in what they leave behind."""
    requests = songs(12)
    supply = Songs(400, 600, seed=9)
    long = [replace(supply.next(), key=1000 + i) for i in range(6)]
    with torch.inference_mode():
        machine = decoder(full_size_lm, 8)
        mixed = [song for pair in zip(long, requests[:6], strict=True) for song in pair]
        alone.check(requests[:6], run(machine, mixed))
        alone.check(requests[6:], run(machine, requests[6:]))


def test_memory_that_nobody_owns_may_hold_nan(full_size_lm, alone):
    def poison(machine: Decoder) -> None:
        setup = machine.setup
        setup.kv.data[setup.kv.free[:300]] = torch.nan
        setup.hidden.data[setup.hidden.free[:300]] = torch.nan
        for phase in (machine.main, machine.sub):
            phase.scratch.partial.fill_(torch.nan)
            phase.scratch.peak_mass.fill_(torch.nan)
            for buffer in (phase.prefix_pass.x, phase.chunk_pass.x, phase.chunk_pass.hidden):
                buffer.fill_(torch.nan)

    requests = songs(10)
    with torch.inference_mode():
        alone.check(requests, run(decoder(full_size_lm, 5), requests, poison))


def test_preempted_songs_start_again_with_the_same_bits(full_size_lm, alone, monkeypatch):
    """A pool that holds far fewer songs than the slots, and a forecast that always says yes."""
    requests = songs(12)
    with torch.inference_mode():
        machine = decoder(full_size_lm, 12, n_units=330)
        monkeypatch.setattr(machine, "fits", lambda request: True)
        found = run(machine, requests)
        assert machine.n_preempted > 0, "nothing was preempted, so nothing was tested"
        alone.check(requests, found)
        assert len(machine.setup.kv.free) == 330 - machine.main.n_shared_units - machine.sub.n_shared_units


def test_captured_and_eager_ticks_are_equal(full_size_lm, alone):
    requests = songs(3)
    with torch.inference_mode():
        alone.check(requests, run(decoder(full_size_lm, 3, captured=False), requests))


def test_how_often_the_host_looks_changes_nothing(full_size_lm, alone):
    requests = songs(8)
    with torch.inference_mode():
        alone.check(requests, run(decoder(full_size_lm, 4, sync_ticks=1), requests))


def test_no_allocation_after_warm_up(full_size_lm):
    with torch.inference_mode():
        machine = decoder(full_size_lm, 8)
        run(machine, songs(9))
        before = torch.cuda.memory_stats()["num_device_alloc"]
        run(machine, songs(40)[9:])
        assert torch.cuda.memory_stats()["num_device_alloc"] == before


def digest(found: dict[int, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(found[key].tobytes() for key in sorted(found))).hexdigest()


def test_two_processes_with_empty_caches_agree(full_size_lm, alone, tmp_path):
    """Kernels are compiled anew in each process; four songs."""
    requests = songs(4)
    with torch.inference_mode():
        here = digest(run(decoder(full_size_lm, 4, n_units=400), requests))
    gc.collect()
    torch.cuda.empty_cache()
    for name in ("one", "two"):
        env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path / name), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        done = subprocess.run([sys.executable, __file__], env=env, capture_output=True, text=True, timeout=300)
        assert done.stdout.split()[-1:] == [here], done.stderr[-2000:]


def test_two_hundred_songs_alone_and_in_a_full_batch(full_size_lm, alone):
    requests = songs(200)
    with torch.inference_mode():
        found = run(decoder(full_size_lm, 48), requests)
        alone.check(requests, found)


def test_the_kernels_are_what_runs(full_size_lm):
    with torch.inference_mode():
        assert decoder(full_size_lm, 1).setup.ops is kernels


if __name__ == "__main__":
    from levo.bench.sizes import random_lm, v2_large

    with torch.inference_mode():
        model = random_lm(v2_large(), torch.device("cuda"), torch.float16, endless=True)
        print(digest(run(decoder(model, 4, n_units=400), songs(4))))
