"""The language model: two Llama transformers, their tables and heads, with upstream's state-dict names.

Pure mathematics (facts/lm.md sections 2 and 4): no cache, no batch, no positions of its own. Whoever runs it gives the
attention as a function, so that the same weights serve a plain loop and a batched engine. Every matrix product is a
linear layer on a 2-D input [N, d]; the caller alone decides the row count N.

Letters: N rows (songs of a tick, or positions of one sequence), d width, H heads, hd head size, C audio codes,
P prefix positions, S sequence steps.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from levo.errors import ModelError
from levo.model.config import LMConfig
from levo.model.table import embedding_table

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q, k, v) -> attended values; all [N, H, hd], q and k already rotated."""

LYRIC_TABLE = "condition_provider.conditioners.description.output_proj.weight"
STRUCTURE_TABLE = "condition_provider.conditioners.description.structure_emb.weight"
STYLE_TABLE = "condition_provider.conditioners.type_info.output_proj.weight"


class RMSNorm(nn.Module):
    """x / rms(x) in float32, rounded to the dtype of x, then times the weight (the order matters in fp16)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return wide.to(x.dtype) * self.weight


def rope_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, hd] of positions [N], computed in float32, then rounded to dtype (as upstream)."""
    even = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device)
    angles = positions.float()[:, None] * (1.0 / theta ** (even / head_dim))  # [N, hd/2]
    angles = torch.cat([angles, angles], dim=-1)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [N, H, hd]: the first half of a head is paired with its second half."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def causal_attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain causal attention of one sequence; softmax in float32.

    q [n, H, hd] are the last n of the m positions of k and v [m, H, hd]; gives [n, H, hd].
    """
    n, m = q.shape[0], k.shape[0]
    scores = torch.einsum("nhd,mhd->hnm", q, k) * q.shape[-1] ** -0.5
    future = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(m - n + 1)
    weights = scores.float().masked_fill(future, float("-inf")).softmax(-1).to(v.dtype)
    return torch.einsum("hnm,mhd->nhd", weights, v)


class SelfAttention(nn.Module):
    """Projections around the attention that the caller supplies."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.heads = (config.num_heads, config.head_dim)
        self.q_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.k_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.dim, bias=False)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], layer: int, attend: Attend) -> Tensor:
        q = rotate(self.q_proj(x).unflatten(-1, self.heads), *rope)  # [N, H, hd]
        k = rotate(self.k_proj(x).unflatten(-1, self.heads), *rope)
        v = self.v_proj(x).unflatten(-1, self.heads)
        out: Tensor = self.o_proj(attend(layer, q, k, v).flatten(-2))
        return out


class GatedMLP(nn.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One pre-norm Llama block."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(config.dim, config.eps)
        self.post_attention_layernorm = RMSNorm(config.dim, config.eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], layer: int, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, layer, attend)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Transformer(nn.Module):
    """A stack of blocks and the final norm."""

    def __init__(self, config: LMConfig, num_layers: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = config.head_dim, theta
        self.layers = nn.ModuleList(Block(config) for _ in range(num_layers))
        self.norm = RMSNorm(config.dim, config.eps)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Inputs x [N, d] at positions [N] (int64; 0..P-1 prefix, P+s step s) -> hidden after the final norm [N, d]."""
        rope = rope_tables(positions, self.head_dim, self.theta, x.dtype)
        for layer, block in enumerate(self.layers):
            x = block(x, rope, layer, attend)
        hidden: Tensor = self.norm(x)
        return hidden


class _Stage(nn.Module):
    """Holds `model` and, for the main one, `lm_head`: upstream's names."""

    def __init__(self, model: Transformer, head: nn.Linear | None = None) -> None:
        super().__init__()
        self.model = model
        if head is not None:
            self.lm_head = head


class LyricTables(nn.Module):
    """Lyric tokens and structure tags. `output_proj` is a table, whatever its name says."""

    def __init__(self, rows: int, structure_rows: int, dim: int) -> None:
        super().__init__()
        self.output_proj = embedding_table(rows, dim)
        self.structure_emb = embedding_table(structure_rows, dim)


class StyleTable(nn.Module):
    """Style tokens."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.output_proj = embedding_table(rows, dim)


class PromptTables(nn.Module):
    """Audio prompt: one table a codebook and one learned first vector a stream."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.emb = nn.ModuleList(embedding_table(config.code_size + 2, config.dim) for _ in range(config.code_depth))
        self.EOT_emb = nn.Parameter(torch.zeros(1, config.dim))
        self.layer2_EOT_emb = nn.Parameter(torch.zeros(1, config.dim))


class Conditioners(nn.Module):
    """Tables of the three conditions under upstream's names: description = lyrics, type_info = style."""

    def __init__(self, description: LyricTables, prompt_audio: PromptTables, type_info: StyleTable) -> None:
        super().__init__()
        self.description, self.prompt_audio, self.type_info = description, prompt_audio, type_info


class _ConditionProvider(nn.Module):
    def __init__(self, conditioners: Conditioners) -> None:
        super().__init__()
        self.conditioners = conditioners


class LM(nn.Module):
    """Main and sub transformer, tables and heads. Row counts of the text tables come from the weights."""

    def __init__(self, config: LMConfig, lyric_rows: int, style_rows: int, structure_rows: int = 200) -> None:
        super().__init__()
        d, codes = config.dim, config.code_size
        self.config = config
        self.emb = nn.ModuleList([embedding_table(codes + 2, d)])
        self.layer2_emb = nn.ModuleDict({"1": embedding_table(codes + 2, d), "2": embedding_table(codes + 2, d)})
        main = Transformer(config, config.num_layers, config.rope_theta)
        self.transformer = _Stage(main, nn.Linear(d, codes + 1, bias=False))
        self.transformer2 = _Stage(Transformer(config, config.num_layers_sub, config.rope_theta_sub))
        self.mlp = nn.Sequential(nn.Linear(2 * d, d), nn.GELU(), nn.Linear(d, d))
        self.linears = nn.ModuleList(nn.Linear(d, codes + 1, bias=False) for _ in range(2))
        self.condition_provider = _ConditionProvider(
            Conditioners(LyricTables(lyric_rows, structure_rows, d), PromptTables(config), StyleTable(style_rows, d))
        )

    @classmethod
    def from_state(cls, config: LMConfig, state: Mapping[str, Tensor]) -> "LM":
        """Model that takes over the tensors of `state` (no copy). Raises ModelError as `check_state` does."""
        rows = [len(state[name]) if name in state else 0 for name in (LYRIC_TABLE, STYLE_TABLE, STRUCTURE_TABLE)]
        with torch.device("meta"):
            lm = cls(config, *rows)
        check_state(lm, state)
        unused = unused_tensors(config)
        lm.load_state_dict({name: t for name, t in state.items() if name not in unused}, strict=True, assign=True)
        return lm.requires_grad_(False).eval()

    @property
    def main(self) -> Transformer:
        """Reads codebook 0 only."""
        return self.transformer.model

    @property
    def sub(self) -> Transformer:
        """Reads codebooks 1 and 2 and the main hidden states."""
        return self.transformer2.model

    def main_input(self, ids0: Tensor) -> Tensor:
        """Ids of codebook 0 [N] -> input of the main transformer [N, d]."""
        x: Tensor = self.emb[0](ids0)
        return x

    def sub_embed(self, ids1: Tensor, ids2: Tensor) -> Tensor:
        """Ids of codebooks 1 and 2 [N] -> their summed embeddings x2 [N, d]."""
        x: Tensor = self.layer2_emb["1"](ids1) + self.layer2_emb["2"](ids2)
        return x

    def fuse(self, x2: Tensor, main_hidden: Tensor) -> Tensor:
        """x2 [N, d] (embeddings, or the sub prefix) and main hidden [N, d] -> input of the sub transformer [N, d]."""
        y: Tensor = self.mlp(torch.cat([x2, main_hidden], dim=-1))
        return y

    def sub_input(self, ids1: Tensor, ids2: Tensor, main_hidden: Tensor) -> Tensor:
        """Ids [N] of a step and main hidden [N, d] of the same step -> input of the sub transformer [N, d]."""
        return self.fuse(self.sub_embed(ids1, ids2), main_hidden)

    def head0(self, hidden: Tensor) -> Tensor:
        """Main hidden [N, d] -> logits of codebook 0 at the next step [N, C+1], in the weights' dtype."""
        logits: Tensor = self.transformer.lm_head(hidden)
        return logits

    def heads12(self, hidden: Tensor) -> Tensor:
        """Sub hidden [N, d] -> logits of codebooks 1 and 2 at the next step [N, 2, C+1], in the weights' dtype."""
        return torch.stack([self.linears[0](hidden), self.linears[1](hidden)], dim=-2)


def unused_tensors(config: LMConfig) -> dict[str, tuple[int, ...]]:
    """Tensors that upstream's checkpoints hold and inference never reads (facts/lm.md section 2.3), with shapes."""
    d, codes = config.dim, config.code_size
    return {
        "layer2_emb.0.weight": (codes + 2, d),
        "transformer.model.embed_tokens.weight": (codes + 1, d),
        "transformer2.model.embed_tokens.weight": (codes + 1, d),
        "transformer2.lm_head.weight": (codes + 1, d),
        "out_norm.weight": (d,),
        "out_norm.bias": (d,),
    }


def check_state(lm: LM, state: Mapping[str, Tensor]) -> None:
    """Raises ModelError that names the missing, extra and wrongly shaped tensors; the six unused ones may be there."""
    wanted = {name: tuple(t.shape) for name, t in lm.state_dict().items()}
    allowed = wanted | unused_tensors(lm.config)
    missing = sorted(set(wanted) - set(state))
    extra = sorted(set(state) - set(allowed))
    shapes = [f"{n} {tuple(t.shape)} instead of {allowed[n]}" for n, t in sorted(state.items())
              if n in allowed and tuple(t.shape) != allowed[n]]  # fmt: skip
    trouble = [f"{len(names)} {kind}: {', '.join(names[:5])}" for kind, names in
               (("missing", missing), ("unknown", extra), ("of another shape", shapes)) if names]  # fmt: skip
    if trouble:
        raise ModelError(
            "the language model's tensors do not fit its config: " + "; ".join(trouble),
            where="model.safetensors and config.yaml",
            fix="use the weights and the config.yaml of the same checkpoint",
        )
