"""One window solved: conditioning, first call, trajectory and latents against upstream's, float32."""

import pytest
import torch
from golden.codec_golden import case, flow, read_json
from golden.compare import EXACT, Deviation, largest, n_different
from torch import Tensor

from levo.model.flow import WindowInputs, integrate, restore, solve, window_inputs

CASES = read_json("meta.json")["solve_cases"]


def context(name: str, wanted: dict[str, Tensor]) -> Tensor | None:
    """Context [B, L, latent] that counts: none in s6, whose scenario ignores it."""
    n_context = CASES[name]["incontext_used"]
    return wanted["context"][:, :n_context] if n_context else None


def inputs(name: str, wanted: dict[str, Tensor]) -> WindowInputs:
    vocal, bgm = wanted["codes_vocal"][:, 0].long(), wanted["codes_bgm"][:, 0].long()
    return window_inputs(flow(), vocal, bgm, context(name, wanted), CASES[name]["valid_length"])


def watched(
    window: WindowInputs, noise: Tensor, steps: int, guidance: float
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """The solver's result, and inputs, outputs and times of every estimator call."""
    fed: list[Tensor] = []
    given: list[Tensor] = []
    times: list[Tensor] = []

    def watch(_: object, args: tuple[Tensor, ...], out: Tensor) -> None:
        fed.append(args[0].clone())
        times.append(args[1][0])
        given.append(out)

    hook = flow().estimator.register_forward_hook(watch)
    result = integrate(flow(), window, noise, steps, guidance)
    hook.remove()
    return result, fed, given, times


@pytest.mark.parametrize("name", CASES)
def test_conditioning_of_a_window(name: str, deviation: Deviation) -> None:
    wanted = case("solve", name)
    window = inputs(name, wanted)
    deviation(f"codec.solve.{name}.mu", largest(window.mu, wanted["mu"]))
    deviation(f"codec.solve.{name}.mask_emb", largest(window.mask_emb, wanted["mask_emb"]))
    deviation(f"codec.solve.{name}.incontext", largest(window.context, wanted["incontext"]))
    if "attention_mask" in wanted:
        assert window.attention_mask is not None
        deviation("codec.solve.s5.attention_mask", n_different(window.attention_mask == 0, wanted["attention_mask"]), 0)
    else:
        assert window.attention_mask is None


@pytest.mark.parametrize("name", CASES)
def test_trajectory_and_latents(name: str, deviation: Deviation) -> None:
    wanted, settings = case("solve", name), CASES[name]
    window = inputs(name, wanted)
    result, fed, given, times = watched(window, wanted["noise"], settings["steps"], settings["guidance"])
    latent, n_items = flow().config.latent_dim, settings["batch"]
    trajectory = torch.stack([*(x[:n_items, :, -latent:] for x in fed), result])
    deviation(f"codec.solve.{name}.t", largest(torch.stack(times), wanted["t"][:-1]))
    deviation(f"codec.solve.{name}.first_input", largest(fed[0], wanted["first_input"]))
    deviation(f"codec.solve.{name}.first_out", largest(given[0], wanted["first_out"]))
    deviation(f"codec.solve.{name}.traj", largest(trajectory, wanted["traj"]))
    deviation(f"codec.solve.{name}.latents", largest(restore(flow(), window, result), wanted["latents"]))


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]["batch"] == 1])
def test_solve_is_the_same_without_a_batch(name: str, deviation: Deviation) -> None:
    wanted, settings = case("solve", name), CASES[name]
    given = context(name, wanted)
    latents = solve(
        flow(),
        wanted["codes_vocal"][0, 0].long(),
        wanted["codes_bgm"][0, 0].long(),
        None if given is None else given[0],
        wanted["noise"][0],
        settings["steps"],
        settings["guidance"],
    )
    deviation(f"codec.solve.{name}.latents of solve()", largest(latents, wanted["latents"][0]))


def test_frames_behind_the_context_do_not_matter(deviation: Deviation) -> None:
    wanted = case("solve", "s2")
    window = inputs("s2", wanted)
    tail = window.context[:, window.n_context :]
    deviation("codec.solve.s2.context behind L", largest(tail, torch.zeros_like(tail)), EXACT)
