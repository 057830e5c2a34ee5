"""Every formula of the money, in one place, for the estimate before a run and the bill after it. Knows no files.

x realtime is seconds of audio made in one GPU-second. A node is billed whole: all its GPUs and all its cores, while
a job holds it.
"""

from dataclasses import asdict, dataclass

HOUR_S = 3600.0
MILLION_SONGS_S = 1_000_000 * 180.0
"""Seconds of audio in the unit that costs are compared in: a million songs of three minutes."""


def gpu_hours(audio_s: float, x_realtime: float) -> float:
    """GPU-hours that make so many seconds of audio."""
    return audio_s / x_realtime / HOUR_S


def node_hours(gpu_hours: float, gpus_per_node: int) -> float:
    """Node-hours of so many GPU-hours, with every GPU of the node at work."""
    return gpu_hours / gpus_per_node


def core_hours(node_hours: float, cores_per_node: int) -> float:
    """Billed core-hours of so many node-hours."""
    return node_hours * cores_per_node


def x_realtime(audio_s: float, gpu_s: float) -> float | None:
    """Seconds of audio in one GPU-second; None when there was none."""
    return audio_s / gpu_s if gpu_s > 0 else None


def ratio(before: float, after: float) -> float | None:
    """How many times less it became; None when nothing is left to compare with."""
    return before / after if after > 0 else None


@dataclass(frozen=True)
class Node:
    """What is billed."""

    gpus: int
    cores: int


@dataclass(frozen=True)
class Hours:
    """One cost in the three units that budgets are written in."""

    gpu_hours: float
    node_hours: float
    core_hours: float

    @staticmethod
    def of_gpu_seconds(gpu_s: float, node: Node) -> "Hours":
        """The cost of so many GPU-seconds on whole nodes."""
        nodes = node_hours(gpu_s / HOUR_S, node.gpus)
        return Hours(gpu_s / HOUR_S, nodes, core_hours(nodes, node.cores))

    @staticmethod
    def of_audio(audio_s: float, speed: float, node: Node) -> "Hours":
        """The cost of so many seconds of audio at `speed` times realtime."""
        return Hours.of_gpu_seconds(audio_s / speed, node)

    def minus(self, other: "Hours") -> "Hours":
        """What is saved by the other."""
        return Hours(
            self.gpu_hours - other.gpu_hours, self.node_hours - other.node_hours, self.core_hours - other.core_hours
        )

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)
