"""Embedding tables that do not wait for the compiler."""

import torch
from torch import nn


def embedding_table(rows: int, dim: int) -> nn.Embedding:
    """nn.Embedding(rows, dim), but drawn only where there is memory to draw into.

    On the meta device nn.Embedding draws too, and that imports torch._dynamo: 1.5 s at the start of every rank.
    """
    table = nn.Embedding.from_pretrained(torch.empty(rows, dim), freeze=False)
    if not table.weight.is_meta:
        table.reset_parameters()
    return table
