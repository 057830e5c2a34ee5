"""What the GPU computes, against the golden tokens in float32 and against float32 logits in fp16."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import golden

from levo.bench.sizes import PAD_ID, random_lm, v2_large
from levo.bench.steady import Songs
from levo.engine import kernels, twins
from levo.engine.build import make_setup
from levo.engine.decoder import EMPTY
from levo.engine.main_phase import MainPhase
from levo.engine.memory import MemoryPlan
from levo.engine.pages import PAGE
from levo.engine.request import Sampling
from levo.model import oracle
from levo.model.prefix import prefix

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
# Relative RMS of fp16 logits against float32 at full size. The public port's gate is 1e-2 (known-checkpoints.md).
FP16_BOUND = 1e-2


@pytest.mark.parametrize(("slots", "sync_ticks"), [(1, 1), (4, 1), (6, 8)])
def test_golden_tokens_in_float32(slots, sync_ticks):
    lm, items = golden.golden_lm().to("cuda"), golden.golden_items()
    requests = [golden.golden_request(item, j) for j, item in enumerate(items)]
    greedy = Sampling(temperature=0, window=6)
    found = golden.decode(lm, requests, slots, greedy, sync_ticks=sync_ticks, ops=kernels)
    for j, item in enumerate(items):
        wanted = item["greedy_tokens_cut"][0].numpy()
        assert found[j].error == EMPTY if wanted.shape[1] == 0 else np.array_equal(found[j].tokens, wanted)


def test_sampled_tokens_equal_the_cpus():
    """Counter-based draws: the same seeds give the same songs on both, in float32."""
    items = golden.golden_items()
    sampled = Sampling(temperature=1.0, top_k=20, window=6)
    requests = [
        replace(golden.golden_request(items[j % len(items)], j, seed=100 + j), max_frames=20 + j) for j in range(16)
    ]
    gpu = golden.decode(golden.golden_lm().to("cuda"), requests, 8, sampled, sync_ticks=4, ops=kernels)
    cpu = golden.decode(golden.golden_lm(), requests, 8, sampled, ops=twins)
    for key, done in cpu.items():
        assert gpu[key].error == done.error
        assert done.error or np.array_equal(gpu[key].tokens, done.tokens)


@torch.inference_mode()
def test_fp16_logits_are_close_to_float32(capsys):
    """A song of 100 frames through passes and ticks in fp16, then the same codes through the float32 oracle."""
    config, device = v2_large(), torch.device("cuda")
    lm = random_lm(config, device, torch.float16, endless=True)
    phase = MainPhase(make_setup(lm, PAD_ID, 128, Sampling(), MemoryPlan(300, 300)), 2)
    song = Songs(100, 100).next()
    phase.enter(song, 0)
    phase.run(104)
    (slot,), _ = phase.ended()
    draft = phase.finish(slot)
    held, n = draft.hidden[0], config.prefix_len + 100
    pages = torch.tensor(held.shared + held.own, device=device).flatten()
    hidden = phase.hidden.pool.data[pages].flatten(0, 1)[:n]
    found = lm.head0(hidden).float()
    wide = lm.float()
    ids = np.full((3, 101), config.special)
    ids[0, 1:] = draft.codes0
    exact = oracle.teacher_forced(wide, prefix(wide, song.conditioning.cond, None, PAD_ID), ids[:, :100])
    wanted = wide.head0(exact.main_hidden)
    deviations = {
        name: float((found[part] - wanted[part]).norm() / wanted[part].norm())
        for name, part in (("prefix", slice(0, config.prefix_len)), ("ticks", slice(config.prefix_len, n)))
    }
    with capsys.disabled():
        print(f"\nfp16 against float32 logits, relative RMS: {deviations} (bound {FP16_BOUND}); page {PAGE}")
    assert max(deviations.values()) < FP16_BOUND
