"""The plain generation of one song: one loop over steps in upstream's order (facts/lm.md section 4).

It is what the engine is compared with, so it shares nothing with it but the networks: no phases, no slots, no pages.
Keys and values are kept by concatenation, both rows run one after the other, and the choice of ids is a function of
the caller. Slow on purpose.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from levo.model import pattern
from levo.model.lm import LM, causal_attend
from levo.model.prefix import PromptTokens, prefix
from levo.songs.text import Conditioning

Choose = Callable[[Tensor, int], Tensor]
"""(final logits float32 [3, C+1], decode step i) -> ids [3] for sequence step i + 1."""


@dataclass(frozen=True)
class Rules:
    """What is done to the logits before the choice. window 0: the penalty looks at the whole history."""

    cfg: float = 1.5
    penalty: float = 1.1
    window: int = 50


@dataclass
class StepLogits:
    """float32 [3, C+1] each: the two rows, their guided mix, and what the choice saw."""

    cond: Tensor
    uncond: Tensor
    cfg: Tensor
    final: Tensor


@dataclass
class Generated:
    """A song's ids, int64. N is the number of decode steps.

    fed [3, N]: the delayed sequence, steps 0..N-1.  sampled [3, N]: what was chosen, before any overwriting.
    raw [3, T]: the un-delayed result, SPECIAL after EOS and where nothing was generated.
    cut [3, e]: raw up to the earliest EOS frame of any codebook (all T frames without one).
    logits: those of the first steps, as many as were asked for.
    """

    fed: np.ndarray
    sampled: np.ndarray
    raw: np.ndarray
    cut: np.ndarray
    logits: list[StepLogits] = field(default_factory=list)


@dataclass(frozen=True)
class Forward:
    """One whole, non-cached pass of one row over prefix and sequence; float tensors [P+n, d] and logits [3, n, C+1]."""

    main_hidden: Tensor
    sub_input: Tensor
    sub_hidden: Tensor
    logits: Tensor


class _Attention:
    """Causal attention of one row that remembers its keys and values."""

    def __init__(self) -> None:
        self.past: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self.past:
            k, v = torch.cat([self.past[layer][0], k]), torch.cat([self.past[layer][1], v])
        self.past[layer] = k, v
        return causal_attend(q, k, v)


class _Row:
    """One row (conditional or unconditional) in the loop: its prefix until it was consumed, its two caches."""

    def __init__(self, lm: LM, main_prefix: Tensor, sub_prefix: Tensor) -> None:
        self.lm, self.prefixes, self.seen = lm, (main_prefix, sub_prefix), 0
        self.main_attention, self.sub_attention = _Attention(), _Attention()

    def forward(self, ids: Tensor) -> Forward:
        """Ids [3, n] of the next n steps. The first call takes the prefix along: P + n positions."""
        lm = self.lm
        x1, x2 = lm.main_input(ids[0]), lm.sub_embed(ids[1], ids[2])
        if not self.seen:
            x1, x2 = torch.cat([self.prefixes[0], x1]), torch.cat([self.prefixes[1], x2])
        positions = torch.arange(self.seen, self.seen + len(x1), device=x1.device)
        self.seen += len(x1)
        hidden = lm.main(x1, positions, self.main_attention)
        y = lm.fuse(x2, hidden)
        z = lm.sub(y, positions, self.sub_attention)
        n = ids.shape[1]
        logits = torch.cat([lm.head0(hidden[-n:])[:, None], lm.heads12(z[-n:])], dim=1)
        return Forward(hidden, y, z, logits.float().transpose(0, 1))


@torch.inference_mode()
def teacher_forced(lm: LM, prefixes: tuple[Tensor, Tensor], sequence: np.ndarray) -> Forward:
    """Whole forward of one row over its (main, sub) prefix and a delayed sequence of ids [3, n]."""
    ids = torch.as_tensor(sequence, dtype=torch.int64, device=prefixes[0].device)
    return _Row(lm, *prefixes).forward(ids)


def guided(cond: Tensor, uncond: Tensor, cfg: float) -> Tensor:
    """Classifier-free guidance on logits of any shape."""
    return uncond + (cond - uncond) * cfg


def penalized(logits: Tensor, history: np.ndarray, rules: Rules, code_size: int) -> Tensor:
    """Repetition penalty on [3, C+1] by the written ids [3, n] of all steps so far.

    Each distinct audio code of the window is divided once, whatever its count and sign. QUIRK: negative logits rise.
    """
    out = logits.clone()
    window = history[:, -rules.window :] if rules.window else history
    for k in range(len(out)):
        ids = np.unique(window[k])
        out[k, torch.as_tensor(ids[ids < code_size], device=out.device)] /= rules.penalty
    return out


def banned(prompt: PromptTokens | None, code_size: int) -> Tensor:
    """Codes of the audio prompt's codebook 0: never chosen in codebook 0 of its song."""
    if prompt is None:
        return torch.empty(0, dtype=torch.int64)
    ids = torch.as_tensor(prompt, dtype=torch.int64, device="cpu")[0].unique()
    return ids[ids < code_size]


@torch.inference_mode()
def generate(
    lm: LM,
    conditioning: Conditioning,
    prompt: PromptTokens | None,
    pad_id: int,
    max_frames: int,
    choose: Choose,
    rules: Rules = Rules(),  # noqa: B008  frozen
    record_steps: int = 0,
) -> Generated:
    """Tokens of one song by one loop over all three codebooks; keeps the logits of the first `record_steps` steps."""
    config = lm.config
    rows = [
        _Row(lm, *prefix(lm, conditioning.cond, prompt, pad_id)),
        _Row(lm, *prefix(lm, conditioning.uncond, None, pad_id)),
    ]
    device = rows[0].prefixes[0].device
    filled = pattern.step_frames(max_frames, config.delays) >= 0  # [3, S]
    ban = banned(prompt, config.code_size).to(device)
    sequence = np.full(filled.shape, config.special, dtype=np.int64)
    sampled: list[np.ndarray] = []
    logits: list[StepLogits] = []
    ended = np.zeros(config.code_depth, dtype=bool)
    while len(sampled) < filled.shape[1] - 1 and not ended.all():
        i = len(sampled)
        ids = torch.as_tensor(sequence[:, i : i + 1], device=device)
        cond, uncond = (row.forward(ids).logits[:, 0] for row in rows)
        mixed = guided(cond, uncond, rules.cfg)
        final = penalized(mixed, sequence[:, 1 : i + 1], rules, config.code_size)
        final[0, ban] = float("-inf")
        if i < record_steps:
            logits.append(StepLogits(cond, uncond, mixed, final.clone()))
        sampled.append(choose(final, i).cpu().numpy().astype(np.int64))
        sequence[:, i + 1] = np.where(filled[:, i + 1] & ~ended, sampled[-1], config.special)
        ended |= sequence[:, i + 1] == config.eos
    raw, _ = pattern.revert(sequence, max_frames, config.delays, config.special)
    fed, chosen = sequence[:, : len(sampled)], np.stack(sampled, axis=1)
    return Generated(fed, chosen, raw, cut_at_eos(raw, config.eos), logits)


def cut_at_eos(raw: np.ndarray, eos: int) -> np.ndarray:
    """Tokens [3, T] up to the earliest EOS frame of any codebook, which may be frame 0."""
    ends = np.flatnonzero((raw == eos).any(axis=0))
    return raw[:, : ends[0]] if len(ends) else raw


def greedy(logits: Tensor, step: int) -> Tensor:
    """The highest logit of every codebook; the lowest id among equals."""
    return logits.argmax(dim=-1)


def kept_probabilities(logits_over_temperature: Tensor, top_k: int) -> Tensor:
    """Probabilities [..., C+1] after top-k: ids at least as likely as the k-th, ties kept, renormalised."""
    p = logits_over_temperature.softmax(-1)
    kth = p.topk(min(top_k, p.shape[-1]), dim=-1).values[..., -1:]
    p = torch.where(p >= kth, p, 0)
    return p / p.sum(-1, keepdim=True)


def drawn(temperature: float, top_k: int, generator: torch.Generator) -> Choose:
    """Upstream's kind of choice: codebook 0 by a draw within top-k, codebooks 1 and 2 the most likely id."""

    def choose(logits: Tensor, step: int) -> Tensor:
        ids = logits.argmax(dim=-1)
        ids[0] = torch.multinomial(kept_probabilities(logits[0] / temperature, top_k), 1, generator=generator)[0]
        return ids

    return choose
