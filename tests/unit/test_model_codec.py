"""Windows, stems, joining and exact lengths of the codec driver."""

import pytest
import torch
from golden.codec_golden import flow, vae

from levo.errors import ModelError
from levo.model.codec import join, render, stem_codes, window_codes, window_latents, window_starts

WINDOW, OVERLAP, RATE = 40, 10, 48


def tokens(n_frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 64, (3, n_frames), generator=torch.Generator().manual_seed(seed))


def noise(index: int) -> torch.Tensor:
    return torch.randn(WINDOW, 10, generator=torch.Generator().manual_seed(100 + index))


@pytest.mark.parametrize(
    ("n_frames", "n_windows"),
    [(1, 1), (1000, 1), (1001, 2), (1500, 2), (1750, 2), (1751, 3), (3000, 4), (3750, 5), (6000, 8), (6750, 9)],
)
def test_number_of_windows(n_frames: int, n_windows: int) -> None:
    starts = window_starts(n_frames, 1000)
    assert starts == [750 * i for i in range(n_windows)]


def test_windows_cover_every_frame_and_none_is_needless() -> None:
    for n_frames in range(1, 300):
        starts = window_starts(n_frames, WINDOW)
        assert starts[-1] + WINDOW >= n_frames
        assert len(starts) == 1 or starts[-2] + WINDOW < n_frames


def test_short_songs_repeat_inside_a_window() -> None:
    codes = torch.tensor([5, 6, 7])
    assert window_codes(codes, 0, 8).tolist() == [5, 6, 7, 5, 6, 7, 5, 6]
    assert window_codes(codes, 2, 4).tolist() == [7, 5, 6, 7]


@pytest.mark.parametrize("stem", ["mixed", "vocal", "bgm"])
def test_absent_stem_is_silence_and_mixed_tokens_are_not_read(stem: str) -> None:
    given = tokens(7)
    vocal, bgm = stem_codes(flow().config, given.numpy(), stem)  # type: ignore[arg-type]
    assert vocal.tolist() == (given[1].tolist() if stem != "bgm" else [31] * 7)
    assert bgm.tolist() == (given[2].tolist() if stem != "vocal" else [47] * 7)
    given[0] = 10**6
    assert stem_codes(flow().config, given, "mixed")[0].tolist() == given[1].tolist()


def test_special_ids_and_empty_songs_are_refused_with_a_remedy() -> None:
    given = tokens(5)
    given[2, 3] = 64
    with pytest.raises(ModelError, match="codebook of 64") as caught:
        stem_codes(flow().config, given, "mixed")
    assert "end-of-song" in caught.value.fix
    with pytest.raises(ModelError, match="cannot be rendered"):
        stem_codes(flow().config, tokens(0), "mixed")


@pytest.mark.parametrize("n_frames", [1, 29, 40, 57, 71])
def test_length_is_exact(n_frames: int) -> None:
    wave = render(flow(), vae(), tokens(n_frames), "mixed", noise, 1, 1.5)
    assert wave.shape == (2, n_frames * RATE)


def test_later_windows_begin_with_the_latents_before_them() -> None:
    codes = stem_codes(flow().config, tokens(71), "mixed")
    windows = [*window_latents(flow(), codes, noise, 2, 1.5)]
    assert len(windows) == 3
    for earlier, later in zip(windows, windows[1:], strict=False):
        torch.testing.assert_close(later[:, :OVERLAP], earlier[:, -OVERLAP:], atol=1e-6, rtol=0)


def test_windows_can_be_solved_one_at_a_time() -> None:
    """The engine makes latents and samples in turns, and must get what a straight run gets."""
    given = tokens(71)
    wave = None
    for latents in window_latents(flow(), stem_codes(flow().config, given, "mixed"), noise, 2, 1.5):
        wave = join(wave, vae().decode(latents), OVERLAP * RATE)
    assert wave is not None
    assert torch.equal(wave[:, : 71 * RATE], render(flow(), vae().decode, given, "mixed", noise, 2, 1.5))


def test_fade_is_linear_with_both_ends_included() -> None:
    old, new = torch.zeros(2, 10), torch.ones(2, 8)
    wave = join(old, new, 5)
    assert wave.shape == (2, 13)
    assert wave[0].tolist() == [0.0] * 5 + [0.0, 0.25, 0.5, 0.75, 1.0] + [1.0] * 3


def test_equal_overlaps_stay_equally_loud() -> None:
    wave = torch.randn(2, 60, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(join(wave[:, :40], wave[:, 20:], 20), wave, atol=1e-7, rtol=0)
