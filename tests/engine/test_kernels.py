"""Every kernel against its torch twin and against float64: on the GPU, and in Triton's interpreter without one."""

import math
import os

import pytest
import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from levo.engine import kernels, twins  # noqa: E402
from levo.engine.pages import PAGE, Pool, Table  # noqa: E402
from levo.engine.request import Sampling  # noqa: E402
from levo.engine.slots import Slots  # noqa: E402
from levo.model.config import LMConfig  # noqa: E402

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
DTYPES = [torch.float32, torch.float16] if ON_GPU else [torch.float32]
# Error against float64, relative to the result's norm: rounding of inputs and output in each dtype, with room.
BOUND = {torch.float32: 2e-6, torch.float16: 2e-3}
loops_to_a_computed_bound = pytest.mark.skipif(
    not ON_GPU and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 6),
    reason="the interpreter of Triton before 3.6 (torch before 2.10) cannot do it beside NumPy 2",
)
HEADS, HEAD_DIM, CODES = 2, 16, 64
SLOTS, GROUPS = 3, 4


def config(max_seconds: float = 80.0) -> LMConfig:
    """Two main layers and one sub layer; P = 30, D = 5, 25 frames a second."""
    return LMConfig(
        dim=HEADS * HEAD_DIM, intermediate_size=48, num_heads=HEADS, head_dim=HEAD_DIM, num_layers=2,
        num_layers_sub=1, code_size=CODES, code_depth=3, rope_theta=1e4, rope_theta_sub=1e4, delays=(0, 5, 5),
        cfg_coef=1.5, lyric_len=20, prompt_len=5, style_len=5, frame_rate=25, max_seconds=max_seconds,
    )  # fmt: skip


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Distance over norm, in float64. NaN where something was not written."""
    found, exact = found.double(), exact.double()
    return float((found - exact).norm() / exact.norm())


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.mark.parametrize("width", [32, 48])
@pytest.mark.parametrize("with_delta", [True, False])
def test_add_norm(dtype, width, with_delta):
    residual, delta = random(6, width, dtype=dtype), random(6, width, dtype=dtype, seed=1) if with_delta else None
    weight = random(width, dtype=dtype, seed=2)
    mine, twin = residual.clone(), residual.clone()
    found, wanted = (ops.add_norm(r, delta, weight, 1e-5, 6) for ops, r in ((kernels, mine), (twins, twin)))
    assert torch.equal(mine, twin), "both add in the dtype, so the sums are the same bits"
    total = mine.double()
    exact = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.double()
    assert error(found, exact) < BOUND[dtype] and error(found, wanted) < BOUND[dtype]


def test_gate(dtype):
    gate_up = random(5, 2 * 1100, dtype=dtype)
    first, second = gate_up.double().chunk(2, dim=-1)
    exact = first * torch.sigmoid(first) * second
    assert error(kernels.gate(gate_up, 5), exact) < BOUND[dtype]
    assert error(twins.gate(gate_up, 5), exact) < BOUND[dtype]


class Standing:
    """Three slots at different lengths, one of them dead, with random pages; poison: unread places hold NaN."""

    def __init__(self, dtype: torch.dtype, counts: tuple[int, ...], live: tuple[int, ...]) -> None:
        self.config = config()
        like = torch.empty(1, dtype=dtype, device=DEVICE)
        shape = (1, 2, HEADS, PAGE, HEAD_DIM)
        self.pool = Pool(160, shape, like)
        self.pool.data.copy_(random(160, *shape, dtype=dtype, seed=3))
        n_pages = -(-(30 + 2000 + 6) // PAGE)
        self.table = Table(self.pool, 2 * GROUPS, n_pages, 2)
        self.slots = Slots.empty(self.config, GROUPS, SLOTS, 1, 30, 6, DEVICE)
        for slot, (count, alive) in enumerate(zip(counts, live, strict=True)):
            for row in (2 * slot, 2 * slot + 1):
                self.table.grow(row, 30 + count + 1)
            self.slots.count[slot] = count
            self.slots.live[slot] = alive
        self.table.upload()
        angle = torch.arange(30 + 2000 + 6)[:, None] / 1e4 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angle = torch.cat((angle, angle), dim=-1)
        self.rope = angle.cos().to(DEVICE, dtype), angle.sin().to(DEVICE, dtype)


@loops_to_a_computed_bound
@pytest.mark.parametrize("counts", [(0, 97, 5), (98, 482, 700), (1200, 993, 994)])
def test_attend(dtype, counts):
    """Lengths below, at and above the ends of blocks, pages and splits; the second slot is dead."""
    found = {}
    for name, ops in (("kernel", kernels), ("twin", twins), ("exact", twins)):
        kind = torch.float64 if name == "exact" else dtype
        here = Standing(dtype, counts, (1, 0, 1))
        qkv = random(2 * GROUPS, 3, HEADS, HEAD_DIM, dtype=dtype, seed=4)
        if name == "exact":
            here.pool.data, here.rope = here.pool.data.double(), tuple(t.double() for t in here.rope)
            qkv = qkv.double()
        scratch = ops.scratch(SLOTS, 2 * GROUPS, HEADS, HEAD_DIM, 2036, qkv.new_zeros(1))
        out = ops.attend(qkv, here.table, 1, here.slots, here.rope, scratch)
        found[name] = out, here.pool.data.clone()
        assert out.dtype == kind
    assert not found["kernel"][0][2:4].any(), "a dead slot's rows are zero"
    assert error(found["kernel"][0], found["exact"][0]) < BOUND[dtype]
    assert error(found["kernel"][0], found["twin"][0]) < 2 * BOUND[dtype]
    assert error(found["kernel"][1], found["exact"][1]) < BOUND[dtype], "the new key and value are in their page"


@loops_to_a_computed_bound
def test_attend_reads_filled_positions_only(dtype):
    here = Standing(dtype, (40, 97, 5), (1, 1, 1))
    clean, poisoned = here.pool.data.clone(), here.pool.data.clone()
    for slot, count in enumerate((40, 97, 5)):
        for row in (2 * slot, 2 * slot + 1):
            filled = 30 + count
            last = here.table.owned[row][filled // PAGE]
            poisoned[last, :, :, :, filled % PAGE :] = math.nan
    qkv = random(2 * GROUPS, 3, HEADS, HEAD_DIM, dtype=dtype, seed=4)
    qkv[2 * SLOTS :] = math.nan
    results = []
    for data in (clean, poisoned):
        here.pool.data = data
        scratch = kernels.scratch(SLOTS, 2 * GROUPS, HEADS, HEAD_DIM, 2036, qkv)
        results.append(kernels.attend(qkv, here.table, 0, here.slots, here.rope, scratch).clone())
    assert torch.equal(results[0], results[1]) and torch.isfinite(results[0]).all()


@loops_to_a_computed_bound
@pytest.mark.parametrize("start", [0, 30, 127, 300])
def test_attend_pass(dtype, start):
    n = 70
    found = {}
    for name, ops in (("kernel", kernels), ("twin", twins), ("exact", twins)):
        here = Standing(dtype, (600, 600, 0), (1, 1, 1))
        pool, rope = here.pool.data, here.rope
        qkv = random(2, n, 3, HEADS, HEAD_DIM, dtype=dtype, seed=5)
        if name == "exact":
            pool, rope, qkv = pool.double(), tuple(t.double() for t in rope), qkv.double()
        starts = torch.full((2,), start, dtype=torch.int32, device=DEVICE)
        out = ops.attend_pass(qkv, pool, here.table.device[:2], 1, starts, rope)
        found[name] = out, pool
    for i, what in enumerate(("values", "pages")):
        assert error(found["kernel"][i], found["exact"][i]) < BOUND[dtype], what
        assert error(found["twin"][i], found["exact"][i]) < BOUND[dtype], what


def test_hidden_states_go_to_their_page_and_come_back(dtype):
    here = Standing(dtype, (40, 97, 140), (1, 0, 1))
    width = here.config.dim
    hidden = random(2 * GROUPS, width, dtype=dtype, seed=6)
    embeddings = random(CODES + 2, width, dtype=dtype, seed=7), random(CODES + 2, width, dtype=dtype, seed=8)
    states = []
    for ops in (kernels, twins):
        pool = Pool(40, (PAGE, width), hidden)
        table = Table(pool, 2 * GROUPS, here.table.host.shape[1], 1)
        for slot, count in enumerate((40, 97, 140)):
            for row in (2 * slot, 2 * slot + 1):
                table.grow(row, 30 + count + 1)
        table.upload()
        ops.store_hidden(hidden, table, here.slots)
        slots = Slots.empty(here.config, GROUPS, SLOTS, 2, 30, 6, DEVICE)
        slots.live[:], slots.count[:] = here.slots.live, here.slots.count
        slots.inputs[:] = torch.tensor([[1, 2], [3, 4], [64, 65], [0, 0]], device=DEVICE)
        states.append((pool.data, ops.gather_sub_input(slots, *embeddings, table)))
    assert torch.equal(states[0][0], states[1][0])
    assert torch.equal(states[0][1][: 2 * SLOTS], states[1][1][: 2 * SLOTS])
    assert torch.equal(states[0][1][0, width:], hidden[0]), "a live row gets back what it stored"


def drawn_slots(books: int, seed: int) -> Slots:
    slots = Slots.empty(config(), GROUPS, SLOTS, books, 30, 6, DEVICE)
    generator = torch.Generator().manual_seed(seed)
    slots.live[:SLOTS] = 1
    slots.cap[:] = 1000
    slots.count[:] = torch.randint(0, 900, (GROUPS,), generator=generator).to(DEVICE)
    slots.keys[:] = torch.randint(0, 2**32, (GROUPS, 2), generator=generator).to(DEVICE)
    slots.banned[:, :5] = 1
    return slots


@pytest.mark.parametrize(
    "sampling", [Sampling(window=6, top_k=5), Sampling(window=6, top_k=5000), Sampling(0, 5, window=6)]
)
def test_sample_main_chooses_the_twins_ids_and_keeps_its_books(dtype, sampling):
    """Twelve ticks: ids, ring, counts of the ring and states are the twin's. Ties are made by rounding the logits."""
    mine, twin = drawn_slots(1, 1), drawn_slots(1, 1)
    for tick in range(12):
        logits = (random(2 * GROUPS, 128, dtype=dtype, seed=tick) * 8).round() / 8
        kernels.sample_main(logits, mine, sampling)
        twins.sample_main(logits, twin, sampling)
        assert torch.equal(mine.state[:, :SLOTS], twin.state[:, :SLOTS]), tick
        for name in ("inputs", "history", "seen", "codes"):
            assert torch.equal(getattr(mine, name)[:SLOTS], getattr(twin, name)[:SLOTS]), (tick, name)
    assert int(mine.seen[:SLOTS].sum()) == SLOTS * 6, "the ring holds six ids of every slot"


def test_sample_sub_chooses_the_twins_ids_and_keeps_its_books(dtype):
    mine, twin = drawn_slots(2, 2), drawn_slots(2, 2)
    for tick in range(12):
        logits = (random(2 * GROUPS, 2, 128, dtype=dtype, seed=tick) * 8).round() / 8
        logits[:, :, CODES] -= 3 if tick < 9 else -9  # EOS comes in the tenth tick
        kernels.sample_sub(logits, mine, Sampling(window=6))
        twins.sample_sub(logits, twin, Sampling(window=6))
        for name in ("inputs", "history", "seen", "codes"):
            assert torch.equal(getattr(mine, name)[:SLOTS], getattr(twin, name)[:SLOTS]), (tick, name)
        assert torch.equal(mine.state[:, :SLOTS], twin.state[:, :SLOTS]), tick
    assert not mine.live.any()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
def test_a_nan_or_infinite_logit_ends_its_slot_as_failed(dtype):
    for ops in (kernels, twins):
        slots = drawn_slots(1, 3)
        logits = random(2 * GROUPS, 128, dtype=dtype)
        logits[0, 7], logits[3, 9] = math.nan, math.inf
        ops.sample_main(logits, slots, Sampling(window=6))
        assert slots.failed[:SLOTS].tolist() == [1, 1, 0] and slots.live[:SLOTS].tolist() == [0, 0, 1]


def test_the_cap_ends_a_slot():
    for ops in (kernels, twins):
        slots = drawn_slots(1, 4)
        slots.banned[:, CODES] = 1
        slots.cap[1] = slots.count[1] + 1
        ops.sample_main(random(2 * GROUPS, 128), slots, Sampling(window=6))
        assert slots.live[:SLOTS].tolist() == [1, 0, 1] and not slots.failed.any()
