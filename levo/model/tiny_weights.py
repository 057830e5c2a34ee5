"""Weights of the tiny random model, as functions of (seed, tensor name). Knows no files.

Raw words of numpy's Philox bit generator are summed as integers, so that the bytes are the same on every machine.

How songs end. Three channels of both transformers are reserved: random weights never write to them.
    MARKS     is in the embeddings of the main one: 1 for a generated frame, LYRIC_MARK for a lyric token, else 0
    ONE       is 1 in every embedding
    COUNT     is 0 in the embeddings; layer 0 writes the mean of MARKS over all positions so far to it: its first head
              has queries and keys of 0, so it attends to all positions alike, and its first value reads MARKS
The mean grows with the frames, and starts lower with more lyrics: songs get longer with their lyrics, as real ones do.
The EOS row of codebook 0 reads GAIN (COUNT - END ONE). Once that comes into the top-k, the song ends at a random frame
soon after. Codebooks 1 and 2 never end a song: their EOS rows read -NEVER ONE.
"""

import hashlib
import math

import numpy as np
import torch
from torch import Tensor, nn

from levo.model.codec_config import BGM, VOCAL, CodecConfig, VAEConfig
from levo.model.config import LMConfig
from levo.model.flow import Flow
from levo.model.lm import LM, LYRIC_TABLE, STRUCTURE_TABLE, unused_tensors
from levo.model.vae import VAE

MARKS, ONE, COUNT = 0, 1, 2
RESERVED = 3

# Found by making songs (tests/unit/test_model_tiny.py holds the result).
LYRIC_MARK = -0.26
COUNT_VALUE = 4.0
END = 0.44
GAIN = 45.0
NEVER = 30.0
CODE_LOGITS = 2.5
SNAKE_ALPHA, SNAKE_BETA = -2.0, 0.0  # logarithms
FIRST_GAIN, BRANCH_GAIN, LAST_GAIN = 0.4, 0.3, 0.1
SMOOTH = 1.5  # what all taps of an upsampling kernel share, against 1 of each tap's own: less treble

State = dict[str, Tensor]


def normal(seed: int, name: str, shape: tuple[int, ...], std: float) -> Tensor:
    """Nearly normal float32 numbers: sums of twelve 16-bit integers, scaled. Exact on every machine."""
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:16], "little")
    count = math.prod(shape)
    words = np.random.Philox(key=key).random_raw(3 * count).reshape(3, count)
    total = np.full(count, -6 * 0xFFFF, dtype=np.int64)
    for shift in (0, 16, 32, 48):
        total += ((words >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64).sum(axis=0)
    return torch.from_numpy((total * (std / 65536.0)).astype(np.float32).reshape(shape))


def language_model(config: LMConfig, lyric_rows: int, style_rows: int, n_bytes: int, seed: int) -> State:
    """Tensors of the language model, the unused ones too. Ids from n_bytes on are special tokens, then tags."""
    with torch.device("meta"):
        lm = LM(config, lyric_rows, style_rows)
    shapes = {name: tuple(t.shape) for name, t in lm.state_dict().items()} | unused_tensors(config)
    state = {name: normal(seed, f"lm {name}", shape, _lm_std(name, shape)) for name, shape in shapes.items()}
    for name, tensor in state.items():
        if "norm" in name:
            tensor.fill_(float(name.endswith("weight")))
        elif name.endswith(("o_proj.weight", "down_proj.weight")) or name in ("mlp.2.weight", "mlp.2.bias"):
            tensor[:RESERVED] = 0
        elif "emb" in name or name == LYRIC_TABLE:
            tensor[:, :RESERVED] = 0
    _write_marks(state, config, n_bytes)
    _count_marks(state, config)
    _end_songs(state, config)
    return state


def _lm_std(name: str, shape: tuple[int, ...]) -> float:
    """Keeps what a layer gives near 1; attention and the MLPs add about half of the residual's size each."""
    fan_in = shape[-1]
    if "lm_head" in name or name.startswith("linears"):
        return CODE_LOGITS / math.sqrt(fan_in)
    if name == STRUCTURE_TABLE:
        return 0.3
    if name.endswith("bias"):
        return 0.1
    if "layers." in name or name.startswith("mlp."):
        return 1.3 / math.sqrt(fan_in)
    return 1.0


def _write_marks(state: State, config: LMConfig, n_bytes: int) -> None:
    for name, table in state.items():
        if name.startswith(("emb.", "condition_provider")) and name != STRUCTURE_TABLE:
            table[:, :RESERVED] = 0
            table[:, ONE] = 1
    state["emb.0.weight"][: config.code_size, MARKS] = 1
    lyric = state[LYRIC_TABLE]
    lyric[:n_bytes, MARKS] = LYRIC_MARK
    state["mlp.2.bias"][ONE] = 1  # every input of the sub transformer


def _count_marks(state: State, config: LMConfig) -> None:
    layer = "transformer.model.layers.0.self_attn"
    state[f"{layer}.q_proj.weight"][: config.head_dim] = 0
    state[f"{layer}.k_proj.weight"][: config.head_dim] = 0
    state[f"{layer}.v_proj.weight"][0] = 0
    state[f"{layer}.v_proj.weight"][0, MARKS] = COUNT_VALUE
    state[f"{layer}.o_proj.weight"][:, 0] = 0
    state[f"{layer}.o_proj.weight"][COUNT, 0] = 1


def _end_songs(state: State, config: LMConfig) -> None:
    for name in ("transformer.lm_head.weight", "linears.0.weight", "linears.1.weight"):
        head = state[name]
        head[:, :RESERVED] = 0
        head[config.eos] = 0
        head[config.eos, ONE] = -NEVER
    state["transformer.lm_head.weight"][config.eos, ONE] = -GAIN * END
    state["transformer.lm_head.weight"][config.eos, COUNT] = GAIN


def flow(config: CodecConfig, seed: int) -> State:
    """Tensors of the flow model under upstream's names, weight norm not folded. Latents have mean 0, deviation 1."""
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in Flow(config).state_dict().items()}
    state = {}
    for name, shape in shapes.items():
        if name in (f"{VOCAL}.out_proj.weight", f"{BGM}.out_proj.weight"):
            state[f"{name}_v"] = normal(seed, f"flow {name}", (*shape, 1), 1.0)
            state[f"{name}_g"] = torch.ones(shape[0], 1, 1)
        else:
            state[name] = normal(seed, f"flow {name}", shape, _flow_std(name, shape))
    for name, tensor in state.items():
        if ".ln_" in name:
            tensor.fill_(float(name.endswith("weight")))
    state["normfeat.counts"].fill_(200000)
    state["normfeat.sum_x"].fill_(0)
    state["normfeat.sum_x2"].fill_(200000)
    return state


def _flow_std(name: str, shape: tuple[int, ...]) -> float:
    if name.endswith("bias") or "table" in name or "wpe" in name:
        return 0.1
    if name.endswith("codebook.weight") or "emb" in name.split(".")[0]:
        return 1.0
    fan_in = shape[0] if ".h." in name else shape[-1]
    return 1.0 / math.sqrt(fan_in)


def vae(config: VAEConfig, seed: int) -> State:
    """Tensors of the VAE decoder under upstream's names, weight norm not folded.

    The kernels of the first upsampling are odd, so that they pass no constant: the samples have no DC.
    """
    with torch.device("meta"):
        decoder = VAE(config)
    state = {}
    for path, part in decoder.named_modules():
        if isinstance(part, nn.Conv1d | nn.ConvTranspose1d):
            shape = tuple(part.weight.shape)
            taps = normal(seed, f"vae {path}", shape, 1.0)
            if isinstance(part, nn.ConvTranspose1d):
                taps = taps + normal(seed, f"vae {path} smooth", (*shape[:2], 1), SMOOTH)
            state[f"{path}.weight_v"] = taps
            state[f"{path}.weight_g"] = torch.full((shape[0], 1, 1), _vae_gain(part))
            if part.bias is not None:
                state[f"{path}.bias"] = normal(seed, f"vae {path} bias", tuple(part.bias.shape), 0.01)
    for name, tensor in decoder.state_dict().items():
        if name.endswith(("alpha", "beta")):
            middle = SNAKE_ALPHA if name.endswith("alpha") else SNAKE_BETA
            state[name] = normal(seed, f"vae {name}", tuple(tensor.shape), 0.1) + middle
    first = "decoder.layers.1.layers.1.weight_v"
    state[first] = state[first] - state[first].flip(-1)
    return state


def _vae_gain(part: nn.Conv1d | nn.ConvTranspose1d) -> float:
    """Length of a kernel. The first and the last layer set the level; an upsampling keeps the variance."""
    if isinstance(part, nn.ConvTranspose1d):
        return math.sqrt(part.stride[0] * part.out_channels / part.in_channels)
    if part.kernel_size[0] == 1:
        return BRANCH_GAIN
    if part.bias is None:
        return LAST_GAIN
    return FIRST_GAIN if part.dilation[0] == 1 and part.in_channels != part.out_channels else 1.0
