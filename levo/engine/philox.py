"""Counter-based randomness: Philox 4x32-10 (Salmon et al., SC 2011), the same uniforms on CPU and GPU.

A draw is a function of (song seed, purpose, step or window, codebook or stem, rendition, element) and of nothing
else: no shared stream, so a song's neighbours, slot and history cannot change it.
"""

import math

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
ROUND_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

PURPOSE_TOKEN = 1
PURPOSE_NOISE = 2


def _mulhilo(a: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    # The 64-bit product wraps in int64, but both its halves are right once masked.
    product = a * multiplier
    return (product >> 32) & MASK, product & MASK


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Four 32-bit words for each counter. Words are int64 tensors in 0..2^32-1 that broadcast together.

    Returns int64 [..., 4].
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        hi0, lo0 = _mulhilo(c0, ROUND_MULTIPLIERS[0])
        hi1, lo1 = _mulhilo(c2, ROUND_MULTIPLIERS[1])
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0 = (k0 + KEY_INCREMENTS[0]) & MASK
        k1 = (k1 + KEY_INCREMENTS[1]) & MASK
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=-1)


def _uniform(words: Tensor) -> Tensor:
    # 23 bits and a half: exact in float32, never 0 and never 1.
    return ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23


def split_seed(seed: int) -> tuple[int, int]:
    """The two 32-bit key words of a 64-bit seed, low word first."""
    return seed & MASK, (seed >> 32) & MASK


def token_uniforms(keys: Tensor, steps: Tensor, codebook: int, n_ids: int) -> Tensor:
    """Uniforms for one draw of each slot.

    keys: int64 [S, 2] (split_seed).  steps: int64 [S].  Returns float32 [S, n], n = n_ids rounded up to 64 (a
    whole number of vectors, so that a slot's bits cannot depend on where its row starts).
    """
    blocks = -(-n_ids // 64) * 16
    element = torch.arange(blocks, device=keys.device)[None]  # [1, blocks]
    word2 = torch.full_like(element, codebook | PURPOSE_TOKEN << 16)
    counter = (element, steps[:, None], word2, torch.zeros_like(element))
    words = philox(counter, (keys[:, :1], keys[:, 1:]))  # [S, blocks, 4]
    return _uniform(words).flatten(1)


def normals(seed: int, window: int, rendition: int, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Standard normal noise of one codec window, float32 of `shape`, by Box-Muller on pairs of uniforms."""
    count = math.prod(shape)
    element = torch.arange(-(-count // 64) * 16, device=device)
    like = torch.full_like
    key = split_seed(seed)
    counter = (element, like(element, window), like(element, PURPOSE_NOISE << 16), like(element, rendition))
    uniform = _uniform(philox(counter, (like(element, key[0]), like(element, key[1]))))  # [blocks, 4]
    radius = torch.sqrt(-2.0 * torch.log(uniform[:, 0::2].contiguous()))
    angle = (2.0 * math.pi) * uniform[:, 1::2].contiguous()
    pairs = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), dim=-1)
    return pairs.flatten()[:count].reshape(shape)
