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
def _guided(logits, row_stride, slot, ids, inside, cfg):
    cond = tl.load(logits + 2 * slot * row_stride + ids, mask=inside, other=0.0).to(tl.float32)
    uncond = tl.load(logits + (2 * slot + 1) * row_stride + ids, mask=inside, other=0.0).to(tl.float32)
    return uncond + (cond - uncond) * cfg


@triton.jit
def _is_broken(values, eos_value):
    # NaN and infinity alike fail value - value == 0.
    return (tl.sum(((values - values) != 0.0).to(tl.int32), 0) > 0) | ((eos_value - eos_value) != 0.0)


@triton.jit
def _penalised(values, ids, inside, seen, penalty):
    times = tl.load(seen + ids, mask=inside, other=0)
    return tl.where(times > 0, values / penalty, values)


@triton.jit
def _remember(history, seen, step, window, code):
    # The ring forgets its oldest id and takes the new one.
    place = history + step % window
    oldest = tl.load(place)
    if oldest != code:
        tl.store(seen + oldest, tl.load(seen + oldest) - 1)
        tl.store(seen + code, tl.load(seen + code) + 1)
        tl.store(place, code)


@triton.jit
def _lowest_of_largest(values, ids, inside, eos_value, eos):
    # EOS is the highest id, so an equal value of another id wins.
    largest = tl.max(tl.where(inside, values, -float("inf")), 0)
    code = tl.min(tl.where((values == largest) & inside, ids, eos), 0)
    return tl.where(eos_value > largest, eos, code)


@triton.jit
def _ordered(values):
    # Unsigned integers in the order of the floats.
    bits = values.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _kth_value(ordered, eos_ordered, k):
    # Largest threshold with at least k values at or above it, two bits at a time from the top: the counts of the three
    # candidates share one 64 bit sum, 21 bits each.
    found = tl.full([1], 0, dtype=tl.uint32)
    for step in tl.static_range(16):
        counts = tl.zeros_like(ordered).to(tl.int64)
        eos_counts = tl.zeros_like(eos_ordered).to(tl.int64)
        for digit in tl.static_range(1, 4):
            threshold = found | (digit << (30 - 2 * step))
            counts += (ordered >= threshold).to(tl.int64) << (21 * (digit - 1))
            eos_counts += (eos_ordered >= threshold).to(tl.int64) << (21 * (digit - 1))
        total = tl.sum(counts, 0) + eos_counts
        digit_found = tl.zeros_like(found)
        for digit in tl.static_range(1, 4):
            digit_found += (((total >> (21 * (digit - 1))) & 0x1FFFFF) >= k).to(tl.uint32)
        found = found | (digit_found << (30 - 2 * step))
    return found


@triton.jit
def _gumbel(word):
    uniform = ((word >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _sample_main(
    logits, live, count, cap, inputs, history, seen, banned, keys, codes, failed,
    n, row_stride, window, cfg, penalty, temperature, k, codes_stride,
    PURPOSE: tl.constexpr, GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    if tl.load(live + slot) == 0:
        return
    step = tl.load(count + slot)
    ids = tl.arange(0, BLOCK)
    eos = tl.full([1], n - 1, dtype=tl.int32)  # apart from the block, which it would double
    inside = ids < n - 1
    values = _guided(logits, row_stride, slot, ids, inside, cfg)
    eos_value = _guided(logits, row_stride, slot, eos, eos >= 0, cfg)
    broken = tl.max(_is_broken(values, eos_value).to(tl.int32), 0) > 0
    ring = history + slot * window
    times = seen + slot * (n + 1)
    values = _penalised(values, ids, inside, times, penalty)
    banned_ids = banned + slot * n
    values = tl.where(tl.load(banned_ids + ids, mask=inside, other=1) != 0, -float("inf"), values)
    eos_value = tl.where(tl.load(banned_ids + eos) != 0, -float("inf"), eos_value)
    if not GREEDY:
        values = values / temperature
        eos_value = eos_value / temperature
        ordered = tl.where(inside, _ordered(values), 0)
        eos_ordered = _ordered(eos_value)
        kth = _kth_value(ordered, eos_ordered, k)
        key0 = tl.load(keys + slot * 2)
        key1 = tl.load(keys + slot * 2 + 1)
        words = _philox_words(tl.arange(0, BLOCK // 4), step, PURPOSE, key0, key1)
        word = tl.interleave(tl.interleave(words[0], words[2]), tl.interleave(words[1], words[3]))
        values = tl.where((ordered >= kth) & inside, values + _gumbel(word), -float("inf"))
        words = _philox_words(eos // 4, step, PURPOSE, key0, key1)
        place = eos % 4
        word = tl.where(place < 2, tl.where(place == 0, words[0], words[1]), tl.where(place == 2, words[2], words[3]))
        eos_value = tl.where(eos_ordered >= kth, eos_value + _gumbel(word), -float("inf"))
    code = tl.min(_lowest_of_largest(values, ids, inside, eos_value, n - 1), 0)
    is_eos = code == n - 1
    if broken:
        tl.store(failed + slot, 1)
        tl.store(live + slot, 0)
    else:
        tl.store(inputs + slot, code.to(tl.int64))
        _remember(ring, times, step, window, code)
        if is_eos:
            tl.store(live + slot, 0)
        else:
            tl.store(codes + slot * codes_stride + step, code)
            tl.store(count + slot, step + 1)
            if step + 1 == tl.load(cap + slot):
                tl.store(live + slot, 0)


@triton.jit
def _sub_code(logits, row_stride, slot, seen, ids, n, cfg, penalty):
    eos = tl.full([1], n - 1, dtype=tl.int32)
    inside = ids < n - 1
    values = _guided(logits, row_stride, slot, ids, inside, cfg)
    eos_value = _guided(logits, row_stride, slot, eos, eos >= 0, cfg)
    broken = tl.max(_is_broken(values, eos_value).to(tl.int32), 0) > 0
    values = _penalised(values, ids, inside, seen, penalty)
    return tl.min(_lowest_of_largest(values, ids, inside, eos_value, n - 1), 0), broken


@triton.jit
def _sample_sub(
    logits, live, count, cap, inputs, history, seen, codes, failed,
    n, row_stride, book_stride, window, cfg, penalty, codes_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    if tl.load(live + slot) == 0:
        return
    step = tl.load(count + slot)
    ids = tl.arange(0, BLOCK)
    ring = history + slot * 2 * window
    times = seen + slot * 2 * (n + 1)
    code1, broken1 = _sub_code(logits, row_stride, slot, times, ids, n, cfg, penalty)
    code2, broken2 = _sub_code(logits + book_stride, row_stride, slot, times + n + 1, ids, n, cfg, penalty)
    if broken1 or broken2:
        tl.store(failed + slot, 1)
        tl.store(live + slot, 0)
    else:
        tl.store(inputs + slot * 2, code1.to(tl.int64))
        tl.store(inputs + slot * 2 + 1, code2.to(tl.int64))
        _remember(ring, times, step, window, code1)
        _remember(ring + window, times + n + 1, step, window, code2)
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
    n = slots.banned.shape[1]
    _sample_main[(slots.n_used,)](
        logits, slots.live, slots.count, slots.cap, slots.inputs, slots.history, slots.seen, slots.banned, slots.keys,
        slots.codes, slots.failed, n, logits.stride(0), sampling.window, sampling.cfg, sampling.penalty,
        sampling.temperature, min(sampling.top_k, n), slots.codes.stride(0),
        PURPOSE=PURPOSE_TOKEN << 16, GREEDY=sampling.temperature == 0,
        BLOCK=triton.next_power_of_2(n - 1), num_warps=32 if n > 4096 else 4, enable_fp_fusion=True,
    )  # fmt: skip


def sample_sub(logits: Tensor, slots: Slots, sampling: Sampling) -> None:
    """See levo.engine.twins.sample_sub."""
    n = slots.banned.shape[1]
    _sample_sub[(slots.n_used,)](
        logits, slots.live, slots.count, slots.cap, slots.inputs, slots.history, slots.seen, slots.codes, slots.failed,
        n, logits.stride(0), logits.stride(1), sampling.window, sampling.cfg, sampling.penalty, slots.codes.stride(1),
        BLOCK=triton.next_power_of_2(n - 1), num_warps=32 if n > 4096 else 4, enable_fp_fusion=True,
    )  # fmt: skip
