"""What a shard's parent and its ranks say to each other, one pipe a rank, one song a message."""

from dataclasses import dataclass
from pathlib import Path

from levo.errors import LevoError
from levo.node.devices import Place
from levo.node.slurm_job import SlurmJob
from levo.node.tally import Tally
from levo.settings import Settings
from levo.songs.song import Song


@dataclass(frozen=True)
class RankOrder:
    """All that a rank is told when it is started.

    maker: dotted path "module:function" of what loads the model and makes engines (levo.node.making).  job: the Slurm
    job around it, if there is one.
    """

    run_dir: Path
    shard: int
    attempt: int
    rank: int
    place: Place
    maker: str
    settings: Settings
    parent_pid: int
    job: SlurmJob | None = None

    @property
    def device(self) -> str:
        """cpu, or cuda: the one GPU that the rank sees."""
        return "cpu" if self.place.gpu is None else "cuda"


# Parent to rank


@dataclass(frozen=True)
class Make:
    """Make this song."""

    song: Song


@dataclass(frozen=True)
class Record:
    """Write a row for a song that is given up, without making it."""

    song: Song
    error: str


@dataclass(frozen=True)
class Finish:
    """Drop what the engine holds, commit what has left it, and end."""


# Rank to parent


@dataclass(frozen=True)
class Ready:
    """The model is loaded. gpu_uuid: null on a CPU."""

    gpu_uuid: str | None


@dataclass(frozen=True)
class Want:
    """The engine would like n more songs, on top of those asked for before."""

    n: int


@dataclass(frozen=True)
class Left:
    """A song has left the engine; its audio is not on disk yet."""

    song_id: str


@dataclass(frozen=True)
class Committed:
    """A part is on disk: song id and outcome of each of its rows, and their tally."""

    outcomes: tuple[tuple[str, str], ...]
    tally: Tally


@dataclass(frozen=True)
class Returned:
    """The engine ran out of memory and was made anew; these songs were in it."""

    song_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Broken:
    """The rank ends because of this error, which a user can mend."""

    error: LevoError


@dataclass(frozen=True)
class Bye:
    """Everything is committed; the rank ends."""


ToRank = Make | Record | Finish
FromRank = Ready | Want | Left | Committed | Returned | Broken | Bye
