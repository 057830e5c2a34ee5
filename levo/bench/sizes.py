"""Networks at the released sizes with random weights: what a bench runs, since speed depends on shapes alone."""

import torch

from levo.model.config import LMConfig
from levo.model.lm import LM

LYRIC_ROWS, STYLE_ROWS = 151659, 151652  # facts: v2 tables
PAD_ID = 151643


def v2_large() -> LMConfig:
    """Shapes of songgeneration_v2_large (facts: language model, section 1)."""
    return LMConfig(
        dim=2048,
        intermediate_size=11008,
        num_heads=16,
        head_dim=128,
        num_layers=36,
        num_layers_sub=12,
        code_size=16384,
        code_depth=3,
        rope_theta=500000.0,
        rope_theta_sub=500000.0,
        delays=(0, 250, 250),
        cfg_coef=1.5,
        lyric_len=600,
        prompt_len=252,
        style_len=100,
        frame_rate=25,
        max_seconds=270.0,
    )


def random_lm(
    config: LMConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    endless: bool = False,
    rows: tuple[int, int] = (LYRIC_ROWS, STYLE_ROWS),
) -> LM:
    """The language model with weights N(0, 0.02), norms 1, straight on the device.

    endless: the heads' EOS rows are 0, so no song ends before its cap and lengths can be forced.
    """
    with torch.device("meta"):
        lm = LM(config, *rows)
    lm = lm.to(dtype).to_empty(device=device).requires_grad_(False).eval()
    generator = torch.Generator(device).manual_seed(0)
    for name, tensor in lm.named_parameters():
        if name.endswith(("norm.weight", "layernorm.weight")):
            tensor.fill_(1)
        else:
            tensor.normal_(0, 0.02, generator=generator)
    if endless:
        for head in (lm.transformer.lm_head, *lm.linears):
            head.weight[config.eos] = 0
    return lm
