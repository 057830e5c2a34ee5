"""The end of a tick: logits to ids, and the slot's bookkeeping, one program a slot.

Guidance, penalty, ban, top-k with ties, Gumbel-max by Philox, EOS and cap, all without the host. The k-th value is
found by radix selection on the ordered bits of the logits: exact, no sort.
"""

import triton
import triton.language as tl
from torch import Tensor

from levo.engine.philox import PURPOSE_TOKEN
from levo.engine.request import Sampling
from levo.engine.slots import Slots

M0: tl.constexpr = tl.constexpr(0xD2511F53)
M1: tl.constexpr = tl.constexpr(0xCD9E8D57)
K0: tl.constexpr = tl.constexpr(0x9E3779B9)
K1: tl.constexpr = tl.constexpr(0xBB67AE85)


@triton.jit
def _philox_words(element, word1, word2, key0, key1):
    c0 = element.to(tl.uint32)
    c1 = tl.zeros_like(c0) + word1.to(tl.uint32)
    c2 = tl.zeros_like(c0) + word2
    c3 = tl.zeros_like(c0)
    k0 = tl.zeros_like(c0) + key0.to(tl.uint32)
    k1 = tl.zeros_like(c0) + key1.to(tl.uint32)
    for _ in tl.static_range(10):
        p0 = c0.to(tl.uint64) * M0
        p1 = c2.to(tl.uint64) * M1
        hi0 = (p0 >> 32).to(tl.uint32)
        lo0 = p0.to(tl.uint32)
        hi1 = (p1 >> 32).to(tl.uint32)
        lo1 = p1.to(tl.uint32)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0 = k0 + K0
        k1 = k1 + K1
    return c0, c1, c2, c3


@triton.jit
def _guided(logits, row_stride, slot, ids, n, cfg):
    cond = tl.load(logits + 2 * slot * row_stride + ids, mask=ids < n, other=0.0).to(tl.float32)
    uncond = tl.load(logits + (2 * slot + 1) * row_stride + ids, mask=ids < n, other=0.0).to(tl.float32)
    return uncond + (cond - uncond) * cfg


@triton.jit
def _penalised(values, ids, history, window, penalty, n_codes):
    seen = ids < 0
    for w in range(window):
        seen = seen | (ids == tl.load(history + w))
    return tl.where(seen & (ids < n_codes), values / penalty, values)


@triton.jit
def _lowest_of_largest(values, ids, n):
    largest = tl.max(tl.where(ids < n, values, -float("inf")), 0)
    return tl.min(tl.where((values == largest) & (ids < n), ids, n), 0)


@triton.jit
def _kth_value(ordered, k):
    # Largest threshold with at least k values at or above it, bit by bit from the top.
    found = tl.zeros([1], dtype=tl.uint32)
    for bit in tl.static_range(32):
        candidate = found | (1 << (31 - bit))
        enough = tl.sum((ordered >= candidate).to(tl.int32), 0) >= k
        found = tl.where(enough, candidate, found)
    return found


@triton.jit
def _sample_main(
    logits, live, count, cap, inputs, history, banned, keys, codes, failed,
    n, window, cfg, penalty, temperature, k, codes_stride, history_stride, banned_stride,
    PURPOSE: tl.constexpr, GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    if tl.load(live + slot) == 0:
        return
    step = tl.load(count + slot)
    ids = tl.arange(0, BLOCK)
    inside = ids < n
    values = _guided(logits, n, slot, ids, n, cfg)
    # NaN and infinity alike fail value - value == 0.
    broken = tl.sum(((values - values) != 0.0).to(tl.int32), 0) > 0
    values = _penalised(values, ids, history + slot * history_stride, window, penalty, n - 1)
    is_banned = tl.load(banned + slot * banned_stride + ids, mask=inside, other=1) != 0
    values = tl.where(is_banned, -float("inf"), values)
    if not GREEDY:
        values = values / temperature
        bits = values.to(tl.int32, bitcast=True)
        ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000
        ordered = tl.where(inside, ordered, 0)
        kept = (ordered >= _kth_value(ordered, k)) & inside
        words = _philox_words(
            tl.arange(0, BLOCK // 4), step, PURPOSE, tl.load(keys + slot * 2), tl.load(keys + slot * 2 + 1)
        )
        word = tl.interleave(tl.interleave(words[0], words[2]), tl.interleave(words[1], words[3]))
        uniform = ((word >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
        values = tl.where(kept, values - tl.log(-tl.log(uniform)), -float("inf"))
    code = _lowest_of_largest(values, ids, n)
    is_eos = code == n - 1
    if broken:
        tl.store(failed + slot, 1)
        tl.store(live + slot, 0)
    else:
        tl.store(inputs + slot, code.to(tl.int64))
        tl.store(history + slot * history_stride + step % window, code)
        if is_eos:
            tl.store(live + slot, 0)
        else:
            tl.store(codes + slot * codes_stride + step, code)
            tl.store(count + slot, step + 1)
            if step + 1 == tl.load(cap + slot):
                tl.store(live + slot, 0)


@triton.jit
def _sub_code(logits, slot, history, ids, n, window, cfg, penalty):
    values = _guided(logits, n, slot, ids, n, cfg)
    broken = tl.sum(((values - values) != 0.0).to(tl.int32), 0) > 0
    values = _penalised(values, ids, history, window, penalty, n - 1)
    return _lowest_of_largest(values, ids, n), broken


@triton.jit
def _sample_sub(
    logits1, logits2, live, count, cap, inputs, history, codes, failed,
    n, window, cfg, penalty, codes_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    if tl.load(live + slot) == 0:
        return
    step = tl.load(count + slot)
    ids = tl.arange(0, BLOCK)
    ring = history + slot * 2 * window
    code1, broken1 = _sub_code(logits1, slot, ring, ids, n, window, cfg, penalty)
    code2, broken2 = _sub_code(logits2, slot, ring + window, ids, n, window, cfg, penalty)
    if broken1 or broken2:
        tl.store(failed + slot, 1)
        tl.store(live + slot, 0)
    else:
        tl.store(inputs + slot * 2, code1.to(tl.int64))
        tl.store(inputs + slot * 2 + 1, code2.to(tl.int64))
        tl.store(ring + step % window, code1)
        tl.store(ring + window + step % window, code2)
        is_eos = (code1 == n - 1) or (code2 == n - 1)
        if is_eos:
            tl.store(live + slot, 0)
        else:
            tl.store(codes + slot * 2 * codes_stride + step, code1)
            tl.store(codes + slot * 2 * codes_stride + codes_stride + step, code2)
            tl.store(count + slot, step + 1)
            if step + 1 == tl.load(cap + slot):
                tl.store(live + slot, 0)


def sample_main(logits: Tensor, slots: Slots, sampling: Sampling) -> None:
    """See levo.engine.twins.sample_main."""
    n = logits.shape[1]
    _sample_main[(len(slots.live),)](
        logits, slots.live, slots.count, slots.cap, slots.inputs, slots.history, slots.banned, slots.keys,
        slots.codes, slots.failed, n, sampling.window, sampling.cfg, sampling.penalty, sampling.temperature,
        min(sampling.top_k, n), slots.codes.stride(0), slots.history.stride(0), slots.banned.stride(0),
        PURPOSE=PURPOSE_TOKEN << 16, GREEDY=sampling.temperature == 0,
        BLOCK=triton.next_power_of_2(n), num_warps=32 if n > 4096 else 4,
    )  # fmt: skip


def sample_sub(logits1: Tensor, logits2: Tensor, slots: Slots, sampling: Sampling) -> None:
    """See levo.engine.twins.sample_sub."""
    n = logits1.shape[1]
    _sample_sub[(len(slots.live),)](
        logits1, logits2, slots.live, slots.count, slots.cap, slots.inputs, slots.history, slots.codes, slots.failed,
        n, sampling.window, sampling.cfg, sampling.penalty, slots.codes.stride(1),
        BLOCK=triton.next_power_of_2(n), num_warps=32 if n > 4096 else 4,
    )  # fmt: skip
