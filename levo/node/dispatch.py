"""Which song goes to which rank, and what becomes of the songs of a rank that is lost. Pure: no process, no file.

A song that was in an engine when its rank died, or ran out of memory, may be the cause, and so may its neighbours.
They are all tried again, last, and in ever smaller company (an eighth of the slots, then a 64th, at least alone), so
that a song which kills its rank is found without costing its neighbours. Only a song lost more often than `retries`,
and at last alone, is given up.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from levo.songs.song import Song

SHRINK = 8


@dataclass
class Holding:
    """The songs of one rank: in its engine, and out of it but not yet committed."""

    engine: dict[str, Song] = field(default_factory=dict)
    leaving: dict[str, Song] = field(default_factory=dict)


class Dispatch:
    """The queue of a shard. Songs come in the order in which they shall be made (longest first)."""

    def __init__(self, songs: Sequence[Song], losses: Mapping[str, int], slots: int, retries: int) -> None:
        self.order = {song.song_id: number for number, song in enumerate(songs)}
        self.losses = {song.song_id: losses.get(song.song_id, 0) for song in songs}
        self.slots = slots
        self.retries = retries
        self.waiting: list[Song] = []
        self.given_up: deque[Song] = deque()
        self.held: dict[int, Holding] = {}
        self._take_back(songs)

    @property
    def open(self) -> int:
        """Songs without a committed row."""
        return len(self.waiting) + len(self.given_up) + self.in_work

    @property
    def in_work(self) -> int:
        """Songs that ranks have."""
        return sum(len(holding.engine) + len(holding.leaving) for holding in self.held.values())

    def join(self, rank: int) -> None:
        """A rank is started; it has its share of the songs from now on."""
        self.held[rank] = Holding()

    def next_song(self, rank: int, fits: Callable[[Song], bool] = lambda song: True) -> Song | None:
        """The next song for a rank that has room, or None if it must wait or nothing waits.

        fits: whether there is time for a song; those for which there is none are passed over.
        """
        holding = self.held[rank]
        song = next(filter(fits, self.waiting), None)
        if song is None:
            return None
        company = min(self._company(other.song_id) for other in [song, *holding.engine.values()])
        company = min(company, self._share())
        # A suspect alone means alone: what has left the engine is committed first, and not lost with it.
        exposed = company == 1 and self.losses[song.song_id] and holding.leaving
        if len(holding.engine) + 1 > company or exposed:
            return None
        self.waiting.remove(song)
        holding.engine[song.song_id] = song
        return song

    def next_given_up(self, rank: int) -> Song | None:
        """A song whose row as failed this rank shall write."""
        if not self.given_up:
            return None
        song = self.given_up.popleft()
        self.held[rank].leaving[song.song_id] = song
        return song

    def left(self, rank: int, song_id: str) -> Song:
        """A song has left the rank's engine."""
        holding = self.held[rank]
        song = holding.engine.pop(song_id)
        holding.leaving[song_id] = song
        return song

    def committed(self, rank: int, song_ids: Iterable[str]) -> None:
        """The rows of these songs are on disk."""
        for song_id in song_ids:
            del self.held[rank].leaving[song_id]

    def returned(self, rank: int, song_ids: Iterable[str]) -> list[str]:
        """The rank lives on, but has lost what was in its engine. Returns the songs that this counts against."""
        return self._count([self.held[rank].engine.pop(song_id) for song_id in song_ids])

    def lost(self, rank: int) -> list[str]:
        """The rank is dead. Returns the songs that this counts against: those that were in its engine."""
        holding = self.held.pop(rank, Holding())
        self._take_back(holding.leaving.values())
        return self._count(holding.engine.values())

    def _count(self, songs: Iterable[Song]) -> list[str]:
        suspects = list(songs)
        for song in suspects:
            self.losses[song.song_id] += 1
        self._take_back(suspects)
        return [song.song_id for song in suspects]

    def _take_back(self, songs: Iterable[Song]) -> None:
        for song in songs:
            (self.given_up if self._is_hopeless(song.song_id) else self.waiting).append(song)
        self.waiting.sort(key=lambda song: (self.losses[song.song_id], self.order[song.song_id]))

    def _share(self) -> int:
        """What a rank may hold when few songs are left: no rank goes empty while another has a full engine."""
        unmade = len(self.waiting) + sum(len(holding.engine) for holding in self.held.values())
        return math.ceil(unmade / len(self.held))

    def _company(self, song_id: str) -> int:
        """How many songs an engine may hold beside and including this one."""
        losses = self.losses[song_id]
        # Slots are two phases' (main and sub), with a few songs between: an untainted engine decides for itself.
        return max(1, self.slots // SHRINK**losses) if losses else 1 << 30

    def _is_hopeless(self, song_id: str) -> bool:
        losses = self.losses[song_id]
        was_alone = losses > 1 and self.slots // SHRINK ** (losses - 1) <= 1
        return losses > self.retries and was_alone
