"""The plots of the page as inline SVG. Colours are names of the page's style sheet, so they follow light and dark.

matplotlib draws with a stand-in for each colour; the stand-ins are then replaced by `var(--name)`. Text stays text, in
the page's own font. Knows no files.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, LINE, MAIN, SECOND, THIRD, BAD = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606", "#070707"
_VARIABLES = {
    INK: "--ink", MUTED: "--muted", LINE: "--line", MAIN: "--main", SECOND: "--second", THIRD: "--third", BAD: "--bad",
}  # fmt: skip
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "levo",
    "font.size": 10,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
MOST_POINTS = 3000
"""A scatter of more songs shows this many, evenly spaced in the table."""

LEAST_SHARE = 0.0005
"""A stage below this share of the time has no bar."""


@dataclass(frozen=True)
class Plot:
    """svg: ready for the page.  alt: the same in words, for who cannot see it."""

    svg: str
    alt: str


@contextmanager
def _canvas(name: str, width: float, height: float) -> Iterator[tuple["Axes", list[str]]]:
    """Axes to draw on; afterwards the list holds the SVG."""
    import matplotlib as mpl  # late: slow to import, and only the report needs it
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    made: list[str] = []
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure.add_subplot(), made
        sink = io.StringIO()
        figure.savefig(sink, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        made.append(_tidy(sink.getvalue(), name))


def _tidy(svg: str, name: str) -> str:
    """Inline SVG: no prologue, no metadata, ids only where something refers to them, and of this plot alone."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{name}-", svg)
    svg = re.sub(r' xmlns(:\w+)?="[^"]+"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # it would style the whole page
    svg = re.sub(r"font-family: [^;]*; ", "", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, f"var({variable})")
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true" focusable="false">', svg)
    return re.sub(r"\n\s*", "\n", svg).strip()


def lengths(predicted_s: np.ndarray, real_s: np.ndarray, at_cap: np.ndarray) -> Plot:
    """Predicted against real length of each song; at_cap: which ended at their cap."""
    n_songs = len(real_s)
    if n_songs > MOST_POINTS:
        pick = np.linspace(0, n_songs - 1, MOST_POINTS).astype(int)
        predicted_s, real_s, at_cap = predicted_s[pick], real_s[pick], at_cap[pick]
    most = 1.08 * max(float(predicted_s.max(initial=1)), float(real_s.max(initial=1)))
    with _canvas("lengths", 5.2, 3.7) as (axes, made):
        axes.plot([0, most], [0, most], color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
        size = 34 if len(real_s) <= 100 else 12
        for chosen, colour in ((~at_cap, MAIN), (at_cap, SECOND)):
            axes.scatter(predicted_s[chosen], real_s[chosen], s=size, color=colour, alpha=0.75, linewidths=0)
        axes.set(xlim=(0, most), ylim=(0, most), xlabel="predicted, s", ylabel="real, s")
        axes.grid(True)
    over = int(np.count_nonzero(real_s > predicted_s))
    alt = f"Scatter of {len(real_s)} songs, predicted against real length: {over} are longer than predicted."
    return Plot(made[0], alt)


def stages(seconds: Mapping[str, float], unit: str) -> Plot:
    """Time by what it was spent on, in the order given. Load, idle and lost work stand apart."""
    total = sum(seconds.values())
    names = [name for name, value in seconds.items() if value > LEAST_SHARE * total]
    values = [seconds[name] for name in names]
    colours = {"load": THIRD, "idle": THIRD, "lost": BAD, "encode": SECOND, "write": SECOND}
    with _canvas("stages", 5.2, max(2.0, 0.36 * len(names) + 0.6)) as (axes, made):
        bars = axes.barh(range(len(names)), values, height=0.68, color=[colours.get(name, MAIN) for name in names])
        axes.bar_label(bars, [f"{v / total:.1%}" for v in values], padding=5, color=INK, fontsize=9)
        axes.set_yticks(range(len(names)), names, color=INK)
        axes.invert_yaxis()
        axes.set(xlim=(0, 1.16 * max(values, default=1)), xlabel=f"{unit}-seconds")
        axes.spines["left"].set_visible(False)
        axes.grid(True, axis="x")
    words = ", ".join(f"{name} {value / total:.1%}" for name, value in zip(names, values, strict=True))
    return Plot(made[0], f"Bars of {unit} time by stage: {words}.")


def allocated(allocated_s: Sequence[float], attributed_s: Sequence[float]) -> Plot:
    """Of each shard, GPU-seconds that Slurm allocated against those that its ranks' ledgers account for."""
    most = 1.08 * max([*allocated_s, *attributed_s, 1.0])
    scale, unit = (3600, "GPU-hours") if most >= 7200 else (1, "GPU-seconds")
    with _canvas("allocated", 5.2, 3.7) as (axes, made):
        axes.plot([0, most / scale], [0, most / scale], color=MUTED, linewidth=1, linestyle=(0, (4, 4)))
        x, y = (np.asarray(values) / scale for values in (allocated_s, attributed_s))
        axes.scatter(x, y, s=34 if len(x) <= 100 else 12, color=MAIN, alpha=0.75, linewidths=0)
        ends = (0, most / scale)
        axes.set(xlim=ends, ylim=ends, xlabel=f"allocated, {unit}", ylabel=f"attributed, {unit}")
        axes.grid(True)
    shares = f"{sum(attributed_s) / sum(allocated_s):.1%}" if sum(allocated_s) else "none"
    return Plot(made[0], f"Scatter of {len(x)} shards: the ranks' ledgers account for {shares} of what was allocated.")


def loudness(lufs: np.ndarray, bounds: Sequence[float]) -> Plot:
    """How loud the files are. bounds: below the first and above the second a file is flagged."""
    from matplotlib.ticker import MaxNLocator

    known = lufs[~np.isnan(lufs)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (-30.0, -10.0)
    low, high = min(low, high - 6) - 1, max(high, low + 6) + 1
    with _canvas("loudness", 5.2, 3.7) as (axes, made):
        n_bins = int(np.clip(np.sqrt(len(known)) * 2, 12, 60))
        axes.hist(known, bins=n_bins, range=(low, high), color=MAIN, rwidth=0.88)
        shown = [bound for bound in bounds if low <= bound <= high]
        for bound in shown:
            axes.axvline(bound, color=BAD, linewidth=1, linestyle=(0, (4, 4)))
        axes.set(xlim=(low, high), xlabel="integrated loudness, LUFS", ylabel="files")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.grid(True, axis="y")
    silent = f"; {len(lufs) - len(known)} have none" if len(known) < len(lufs) else ""
    middle = f", median {np.median(known):.1f} LUFS" if len(known) else ""
    return Plot(made[0], f"Histogram of the loudness of {len(known)} files{middle}{silent}.")
