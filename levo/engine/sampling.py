"""From the logits of a tick to token ids, per slot (facts/lm.md section 4; design: Gumbel-max, ties kept, no sort).

Every function works row by row on fixed shapes; a slot's ids depend on its own row only.
"""

import torch
from torch import Tensor

from levo.engine.philox import token_uniforms


def guide(logits: Tensor, coefficient: float) -> Tensor:
    """Classifier-free guidance. logits [2S, ..., n], rows cond, uncond, cond, ... Returns float32 [S, ..., n]."""
    pairs = logits.float().unflatten(0, (-1, 2))
    cond, uncond = pairs[:, 0], pairs[:, 1]
    return uncond + (cond - uncond) * coefficient


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide the logit of every distinct code in the window once. logits [S, n]; seen bool [S, n].

    QUIRK kept from upstream: the division is unconditional, so negative logits rise. EOS, the last id, is never
    penalised, whether it was seen or not.
    """
    codes = torch.arange(logits.shape[1], device=logits.device) < logits.shape[1] - 1
    return torch.where(seen & codes, logits / penalty, logits)


def draw(logits: Tensor, temperature: float, top_k: int, keys: Tensor, steps: Tensor) -> Tensor:
    """One id a slot out of those at or above the k-th value (ties kept), by Gumbel-max. logits [S, n] -> int64 [S].

    temperature 0 is greedy; equal values go to the lowest id.
    """
    if temperature == 0:
        return greedy(logits)
    scaled = logits / temperature
    kth = scaled.topk(min(top_k, scaled.shape[1]), dim=1).values[:, -1:]
    uniform = token_uniforms(keys, steps, 0, scaled.shape[1])
    gumbel = -torch.log(-torch.log(uniform))
    noisy = scaled + gumbel[:, : scaled.shape[1]]
    return greedy(noisy.masked_fill(scaled < kth, -torch.inf))


def greedy(logits: Tensor) -> Tensor:
    """The largest value's id, the lowest one of equals. [..., n] -> int64 [...]."""
    largest = logits.amax(dim=-1, keepdim=True)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(logits == largest, ids, logits.shape[-1]).amin(dim=-1)
