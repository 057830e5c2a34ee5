"""Embedding tables that are to be loaded, and not drawn first."""

import torch
from torch import nn


def empty_table(rows: int, dim: int) -> nn.Embedding:
    """An nn.Embedding [rows, dim] without values.

    nn.Embedding draws them, on the meta device too, where that imports torch._dynamo: 1.5 s at the start of a rank.
    """
    return nn.Embedding.from_pretrained(torch.empty(rows, dim), freeze=False)
