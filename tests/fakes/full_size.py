"""A maker of the released v2-large with random weights, drawn on the rank's own device: no checkpoint is read.

Every GPU of a model draws the same weights, and every song ends at its cap. LEVO_TEST_SIZE=tiny draws the tiny model's
shapes instead, so that a test of the full size can be tried on a CPU.
"""

import os

from levo.engine.request import Book
from levo.node.making import Making, Recipe, making_of

MAKER = "fakes.full_size:load"
TINY = os.environ.get("LEVO_TEST_SIZE") == "tiny"


def load(recipe: Recipe, book: Book) -> Making:
    import torch

    from levo.bench.song_model import random_model, random_model_of
    from levo.model import tiny
    from levo.model.codec_config import VAEConfig
    from levo.model.config import LMConfig

    device, dtype = torch.device(recipe.device), getattr(torch, recipe.dtype)
    if TINY:
        torch.set_num_threads(1)
        codec = tiny.codec_config(VAEConfig.from_upstream(tiny.VAE_CONFIG))
        model, encoder = random_model_of(LMConfig.from_upstream(tiny.CONFIG), codec, device, dtype)
    else:
        model, encoder = random_model(device, dtype)
    return making_of(model, encoder, recipe, book)
