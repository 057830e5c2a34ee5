"""Published sizes and hashes of upstream's files, and public greedy fixtures. Facts only (docs/checkpoint.md).

From the public notes of a C++ port that opened the released files. Some hashes were published in part: (start, end).
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

_READ_BYTES = 8 << 20


@dataclass(frozen=True)
class KnownFile:
    """A published file. sha256 is "start...end" where only these were published."""

    name: str
    n_bytes: int
    sha256: str

    def matches(self, content: str) -> bool:
        """Whether a whole hash agrees with what is published of this one."""
        start, _, end = self.sha256.partition("...")
        return content.startswith(start) and content.endswith(end)


KNOWN_FILES = (
    KnownFile(
        "SongGeneration-v2-large model.pt (revision 1158053)",
        12_899_965_446,
        "dc763aa9a76a22a87597c2faf9a51c24d13349ac754699b37e9068b483639def",
    ),
    KnownFile(
        "SongGeneration-v2-large config.yaml (revision 1158053)",
        3352,
        "14a991bd7342b9dde348e6324afd44b5c6ecb1db8d0ed4d2dbe666b220b04c59",
    ),
    KnownFile("Runtime model_septoken/model_2.safetensors", 4_808_167_708, "430b7c1c...4fc6f"),
    KnownFile("Runtime vae/autoencoder_music_1320k.ckpt", 674_920_616, "10ccb6c8...eb4cd3"),
    KnownFile("Runtime vae/stable_audio_1920_vae.json", 3613, "5cd2859e...538b"),
)


@dataclass(frozen=True)
class GreedyFixture:
    """Greedy tokens of a published checkpoint: sha256 of int32 [3, frames], row by row, little-endian."""

    size: str
    lyrics: str
    description: str
    frames: int
    sha256: str


GREEDY_FIXTURES = tuple(
    GreedyFixture("v2-medium", "[verse] Hello world.", "female, pop", frames, content)
    for frames, content in (
        (50, "f57268812d4befe556a2b8ee54afae70b657c997616f3b959d7fc5add7ef737a"),
        (252, "6f83f15e1ad5815ff215e00ef7c016bf858432a681127f0b9ee28178848dfc98"),
        (750, "95adbd38aeee3188f9a2bd1a770eba3587af7af2ef7fbc7103644a53dda466b0"),
    )
)
"""Equal between upstream's code (torch 2.6) and the port."""


def known_as(n_bytes: int, content: str) -> str | None:
    """Name of the published file with this size and sha256."""
    return next((known.name for known in KNOWN_FILES if known.n_bytes == n_bytes and known.matches(content)), None)


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file, read in pieces."""
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        while content := file.read(_READ_BYTES):
            hashed.update(content)
    return hashed.hexdigest()
