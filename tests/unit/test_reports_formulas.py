"""The brief's cost table comes out of the brief's inputs."""

import math

import pytest

from levo.reports.formulas import MILLION_SONGS_S, Hours, Node, core_hours, gpu_hours, node_hours, ratio, x_realtime

GH200 = Node(gpus=4, cores=288)
BASELINE, BATCHED, RECOMMENDED = (Hours.of_audio(MILLION_SONGS_S, speed, GH200) for speed in (0.673, 5.00, 8.52))
SAVED = BASELINE.minus(RECOMMENDED)

# Our figure, the brief's, and what is exact where the brief rounds in chain.
TABLE = {
    "baseline GPU-hours": (BASELINE.gpu_hours, 74_300, None),
    "baseline node-hours": (BASELINE.node_hours, 18_580, 18_574),
    "baseline core-hours": (BASELINE.core_hours, 5.35e6, None),
    "baseline GPU-s a song": (BASELINE.gpu_hours * 3600 / 1e6, 267.5, None),
    "batched GPU-hours": (BATCHED.gpu_hours, 10_000, None),
    "batched node-hours": (BATCHED.node_hours, 2_500, None),
    "batched core-hours": (BATCHED.core_hours, 720e3, None),
    "batched GPU-s a song": (BATCHED.gpu_hours * 3600 / 1e6, 36.0, None),
    "recommended GPU-hours": (RECOMMENDED.gpu_hours, 5_870, None),
    "recommended node-hours": (RECOMMENDED.node_hours, 1_470, 1_467),
    "recommended core-hours": (RECOMMENDED.core_hours, 423e3, 422_535),
    "recommended GPU-s a song": (RECOMMENDED.gpu_hours * 3600 / 1e6, 21.1, 21.127),
    "saved GPU-hours": (SAVED.gpu_hours, 68_400, None),
    "saved core-hours": (SAVED.core_hours, 4.9e6, 4.9268e6),
    "times less": (ratio(BASELINE.gpu_hours, RECOMMENDED.gpu_hours), 12.7, 12.6597),
}


def significant(value: float, digits: int) -> float:
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


@pytest.mark.parametrize("name", TABLE)
def test_brief_table_to_a_thousandth(name: str) -> None:
    ours, brief, exact = TABLE[name]
    assert ours == pytest.approx(exact or brief, rel=1e-3)


@pytest.mark.parametrize("name", TABLE)
def test_brief_figures_are_ours_rounded(name: str) -> None:
    """18,580 alone is not: it is 74,300 / 4 rounded again."""
    ours, brief, _ = TABLE[name]
    digits = len(f"{brief:.10g}".replace(".", "").rstrip("0"))
    assert significant(ours, digits) == pytest.approx(brief, rel=6e-4)


def test_the_briefs_speed_is_its_audio_over_its_time() -> None:
    assert x_realtime(1302.5, 152.9) == pytest.approx(8.52, rel=1e-3)


def test_formulas_agree_with_one_another() -> None:
    hours = gpu_hours(MILLION_SONGS_S, 8.52)
    assert Hours.of_audio(MILLION_SONGS_S, 8.52, GH200) == Hours(
        hours, node_hours(hours, 4), core_hours(node_hours(hours, 4), 288)
    )


def test_nothing_made_has_no_speed_and_no_ratio() -> None:
    assert x_realtime(0.0, 0.0) is None
    assert ratio(1.0, 0.0) is None
