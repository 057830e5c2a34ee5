"""The VAE decoder, layer by layer, whole and in tiles, against upstream's, float32."""

from itertools import pairwise

import pytest
import torch
from golden.codec_golden import read_json, tensors, vae
from golden.compare import Deviation, largest
from torch import Tensor

from levo.model.vae import tile_starts

CHUNKS = read_json("meta.json")["vae_chunk_cases"]


def golden(name: str) -> Tensor:
    return tensors("vae")[name]


def test_every_layer_of_a_small_decode(deviation: Deviation) -> None:
    x = golden("stages.z")
    for index, layer in enumerate(vae().decoder.layers):
        x = layer(x)
        deviation(f"codec.vae.after_{index}", largest(x, golden(f"stages.after_{index}")))
    deviation("codec.vae.stages.wave", largest(vae().decode(golden("stages.z")[0]), golden("stages.wave")[0]))


@pytest.mark.parametrize("item", [0, 1])
def test_decode_in_one_piece(item: int, deviation: Deviation) -> None:
    deviation(f"codec.vae.wave.item{item}", largest(vae().decode(golden("z")[item]), golden("wave")[item]))


@pytest.mark.parametrize("chunk", CHUNKS, ids=lambda chunk: f"{chunk['chunk_size']}-{chunk['overlap']}")
def test_decode_in_tiles_pastes_as_upstream(chunk: dict[str, int], deviation: Deviation) -> None:
    size, overlap = chunk["chunk_size"], chunk["overlap"]
    assert tile_starts(golden("z").shape[-1], size, overlap) == chunk["starts"]
    found = torch.stack([vae().decode_tiled(z, size, overlap) for z in golden("z")])
    deviation(f"codec.vae.tiles {size}/{overlap}", largest(found, golden(f"wave_chunk{size}_overlap{overlap}")))


def test_tiles_without_enough_overlap_leave_seams() -> None:
    """So the tile cases above cannot pass by decoding in one piece."""
    found = vae().decode_tiled(golden("z")[0], 16, 8)
    assert largest(found, golden("wave")[0]) > 0.01


def test_tile_starts_advance_and_reach_the_end() -> None:
    for n_frames in range(128, 400):
        starts = tile_starts(n_frames, 128, 32)
        assert starts[0] == 0 and starts[-1] + 128 == n_frames
        assert all(0 < later - earlier <= 96 for earlier, later in pairwise(starts))
