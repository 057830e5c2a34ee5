"""What fits on a GPU: bytes of a song in flight, and slots, by the reckoning of design.md (The engine, 2).

Songs are admitted one after the other, so at any moment they are spread evenly over their lengths, and on average half
done. This is a reckoning for choosing settings; the engine measures what is free and plans its pages itself.
"""

from dataclasses import dataclass

from levo.model.config import LMConfig

PAGE = 128  # positions
ROWS = 2  # conditional and unconditional
WORKSPACE_BYTES = 4 << 30  # codec, one window at a time (measured on an H200)
CONTEXT_BYTES = 1717986918  # 1.6 GiB: CUDA context, graphs, buffers of a tick (measured)
USABLE = 0.9  # of what is left: the forecast of pages has peaks above its mean
MAX_SLOTS = 64


@dataclass(frozen=True)
class SongBytes:
    """Bytes of one song, on average over its time in each phase."""

    main: float
    sub: float
    hidden: float

    @property
    def total(self) -> float:
        """One song in the main phase and one in the sub phase: an iteration ticks both."""
        return self.main + self.sub + self.hidden


def song_bytes(config: LMConfig, frames: int, value_bytes: int = 2) -> SongBytes:
    """Keys, values and main hidden states of songs of `frames` frames. The unconditional prefix's pages are shared."""
    position = 2 * config.dim * value_bytes  # a key and a value, one layer
    vector = config.dim * value_bytes
    shared = config.prefix_len // PAGE * PAGE
    half_done = config.prefix_len + frames / 2

    def cache(positions: float, layers: int) -> float:
        lost = ROWS * PAGE / 2  # the last page of a row is half full
        return (ROWS * positions - shared + lost) * layers * position

    return SongBytes(
        main=cache(half_done, config.num_layers),
        sub=cache(half_done + config.max_delay, config.num_layers_sub),
        hidden=ROWS * vector * (half_done + config.prefix_len + frames + config.max_delay),
    )


def slots(config: LMConfig, frames: int, memory_bytes: float, weight_bytes: float, value_bytes: int = 2) -> int:
    """Main slots (and as many sub slots) for songs of `frames` frames; 0 if not even one song fits."""
    left = memory_bytes - weight_bytes - WORKSPACE_BYTES - CONTEXT_BYTES
    return max(0, min(MAX_SLOTS, int(USABLE * left / song_bytes(config, frames, value_bytes).total)))
