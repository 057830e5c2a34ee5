"""`levo model inspect`: what a model directory holds and what fits beside it on a GPU. Reads heads, no weights."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from levo.model import fused, memory, tensor_files
from levo.model.checkpoint import read_config
from levo.model.config import LMConfig
from levo.model.identity import FLOW_FILE, PROMPT_FILES, VAE_FILE, Identity, read_identity
from levo.model.lm import unused_tensors

BYTES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}
DTYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
GIB = 1 << 30
LENGTHS_S = (60, 120, 180, 240, 270)
PARTS = {
    "main transformer": ("transformer.model.",),
    "sub transformer": ("transformer2.model.",),
    "heads and fusion": ("transformer.lm_head", "linears.", "mlp."),
    "tables": ("emb.", "layer2_emb.", "condition_provider."),
}
FRAME_RATE = 25


@dataclass(frozen=True)
class Part:
    """One row of the table."""

    name: str
    tensors: int
    parameters: int
    n_bytes: int
    dtypes: str


@dataclass(frozen=True)
class Inventory:
    """What is in the directory. gpu_bytes: the weights in device memory."""

    path: Path
    identity: Identity
    config: LMConfig
    parts: list[Part]
    value_bytes: int
    gpu_bytes: int

    def slots(self, seconds: float, memory_gib: float) -> int:
        """Songs of that length in flight in each phase."""
        frames = int(seconds * FRAME_RATE)
        return memory.slots(self.config, frames, memory_gib * GIB, self.gpu_bytes, self.value_bytes)


def inspect(model_dir: Path) -> Inventory:
    """Read names, shapes and settings of a model directory. Raises ModelError when it is not one, or not whole."""
    identity = read_identity(model_dir)
    config = read_config(model_dir, identity)
    unused = unused_tensors(config.lm)
    lm = {name: entry for file in identity.lm_files for name, entry in tensor_files.entries(model_dir / file).items()
          if name not in unused}  # fmt: skip
    flow, vae = (tensor_files.entries(model_dir / file) for file in (FLOW_FILE, VAE_FILE))
    parts = [_part(part, {name: entry for name, entry in lm.items() if name.startswith(starts)})
             for part, starts in PARTS.items()]  # fmt: skip
    parts += [_part("codec: flow", flow), _part("codec: VAE decoder", vae)]
    in_lm = sum(part.n_bytes for part in parts[: len(PARTS)])
    # On the device the flow's matrices are halves, and the VAE is there as float32 and as halves.
    in_codec = 2 * parts[-2].parameters + (4 + 2) * parts[-1].parameters
    value_bytes = max((BYTES[dtype] for _, dtype in lm.values()), default=2)
    return Inventory(model_dir, identity, config.lm, parts, value_bytes, in_lm + in_codec)


def _part(name: str, entries: dict[str, tuple[tuple[int, ...], str]]) -> Part:
    sizes = {key: math.prod(shape) for key, (shape, _) in entries.items()}
    n_bytes = sum(count * BYTES.get(entries[key][1], 4) for key, count in sizes.items())
    dtypes = sorted({DTYPES.get(dtype, dtype) for _, dtype in entries.values()})
    tensors = sum(len(fused.parts_of(key)) for key in entries)
    return Part(name, tensors, sum(sizes.values()), n_bytes, ", ".join(dtypes))


def table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Rows as lines of aligned columns: the first to the left, the others to the right."""
    cells = [tuple(row) for row in rows]
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in cells]  # fmt: skip


def describe(inventory: Inventory, memory_gib: float, seconds: float | None = None) -> str:
    """The page that `levo model inspect` prints. seconds: one song length; None gives several."""
    identity, text = inventory.identity, inventory.identity.text
    made = (
        f"converted from {identity.origin['size'] or 'an untested checkpoint'}" if identity.origin else "not converted"
    )
    limits = (
        f"lyrics up to {text.lyric_tokens} tokens, style {text.style_tokens}, prompt {text.prompt_frames} frames; "
        f"songs up to {text.max_seconds:g} s; {_prompts(inventory.path)}"
    )
    blocks = [
        [f"{identity.name}: {made}, text {text.version}", f"digest {identity.digest}"],
        _parts_table(inventory.parts),
        [limits],
        _what_fits(inventory, memory_gib, seconds),
    ]
    files = identity.origin.get("files", [])
    if files:
        rows = [(file["name"], f"{file['bytes']:,}", file["published_as"] or "not known") for file in files]
        blocks.append(table([("made from", "bytes", "published as"), *rows]))
    return "\n\n".join("\n".join(block) for block in blocks)


def _parts_table(parts: list[Part]) -> list[str]:
    together = Part(
        "together", sum(p.tensors for p in parts), sum(p.parameters for p in parts), sum(p.n_bytes for p in parts), ""
    )
    rows = [
        (part.name, str(part.tensors), f"{part.parameters:,}", f"{part.n_bytes / GIB:.2f}", part.dtypes)
        for part in [*parts, together]
    ]
    return table([("part", "tensors", "parameters", "GiB", "precision"), *rows])


def _what_fits(inventory: Inventory, memory_gib: float, seconds: float | None) -> list[str]:
    longest, weights = inventory.identity.text.max_seconds, inventory.gpu_bytes
    lengths = [seconds] if seconds else [length for length in LENGTHS_S if length < longest] + [longest]
    rows: list[tuple[str, ...]] = [("song length", "main MB", "sub MB", "hidden MB", "slots")]
    for length in lengths:
        song = memory.song_bytes(inventory.config, int(length * FRAME_RATE), inventory.value_bytes)
        megabytes = (f"{part / 1e6:.0f}" for part in (song.main, song.sub, song.hidden))
        rows.append((f"{length:g} s", *megabytes, str(inventory.slots(length, memory_gib))))
    fixed = (weights + memory.WORKSPACE_BYTES + memory.CONTEXT_BYTES) / GIB
    head = f"on a GPU with {memory_gib:g} GiB, of which {fixed:.1f} GiB are fixed (weights {weights / GIB:.1f}):"
    return [head, *table(rows)]


def _prompts(model_dir: Path) -> str:
    path = model_dir / PROMPT_FILES[0]
    if not path.exists():
        return "no automatic prompts"
    genres = json.loads(path.read_text(encoding="utf-8"))["genres"]
    count = sum(n for languages in genres.values() for _, n in languages.values())
    return f"{count} automatic prompts in {len(genres)} genres"
