"""`levo model convert`: upstream's checkpoint and runtime into our model directory (layout: levo/model/identity.py).

Everything is checked before anything is written. Tensors are then cast and written piece by piece, file by file, into
OUT.converting, which holds no model.json. A file that is finished is kept by a later run with the same inputs; an error
removes the folder, a kill leaves it to be continued. The mark is written last, and the folder renamed to OUT.
"""

import errno
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from levo.disk import is_temporary, sync_folder, write_bytes
from levo.errors import ModelError
from levo.model import fused, tensor_writer
from levo.model import identity as ids
from levo.model import upstream_names as names
from levo.model.auto_prompts import read_auto_prompts
from levo.model.folder import put_in_place, refuse_foreign
from levo.model.known_files import file_sha256, known_as
from levo.model.tensor_source import TensorSource
from levo.model.tensor_writer import Planned
from levo.model.upstream import UPSTREAM_CODEC, CodecConstants, Upstream, open_upstream

SHARD_BYTES = 2 << 30
SPARE_BYTES = 64 << 20
WORK_SUFFIX = ".converting"
PLAN = "plan.json"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Converted:
    """What a conversion made. size: one of the tested checkpoints, or None.  kept: files of an interrupted run."""

    out: Path
    digest: str
    size: str | None
    version: str
    n_bytes: int
    kept: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        known = f"{self.size} (tested)" if self.size else "untested"
        lines = [f"{self.out}/model.json: {known}, text {self.version}, {self.n_bytes / 2**30:.2f} GiB"]
        lines += [f"digest {self.digest}", *(f"note: {note}" for note in self.notes)]
        if self.kept:
            lines.insert(1, f"{self.kept} files of an interrupted run were whole and are kept")
        return "\n".join(lines)


def convert(
    checkpoint: Path,
    runtime: Path,
    out: Path,
    dtype: torch.dtype = torch.float16,
    codec: CodecConstants = UPSTREAM_CODEC,
) -> Converted:
    """Write the model directory `out`; the language model in dtype, the codec in float32.

    Raises ModelError for anything that does not fit, and when the disk does not take it.
    """
    refuse_foreign(out)
    upstream = open_upstream(checkpoint, runtime, codec)
    plain = _plain_files(upstream)
    files = _plan(upstream, dtype)
    work = out.with_name(out.name + WORK_SUFFIX)
    with _writing(work, upstream, dtype):
        found = {name: tensor_writer.whole(work / name, planned) for name, planned in files.items()}
        found = {name: tensor_writer.whole(work / name, planned) for name, planned in files.items()}
        kept = {name: noted for name, noted in found.items() if noted is not None}
        _check_space(work, {name: planned for name, planned in files.items() if name not in kept})
        hashes = {}
        for name, planned in files.items():
            hashes[name] = kept[name] if name in kept else tensor_writer.write_file(work / name, planned)
        for name, content in plain.items():
            write_bytes(work / name, content)
        mark = _mark(upstream, codec, plain, hashes, dtype)
        for name in files:
            tensor_writer.note_of(work / name).unlink()
        (work / PLAN).unlink()
        write_bytes(work / ids.MARK, (json.dumps(mark, indent=1, sort_keys=True) + "\n").encode())
        sync_folder(work)
        put_in_place(work, out)
    n_bytes = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return Converted(out, mark["digest"], upstream.size, upstream.text.version, n_bytes, len(kept), upstream.notes)


def _plan(upstream: Upstream, dtype: torch.dtype) -> dict[str, list[Planned]]:
    """Files and their tensors: the codec, then the language model in the order of its use, in shards."""
    wanted = names.lm_shapes(upstream.lm_config, upstream.lm.shapes)
    lm = []
    for name in fused.fuse_names(wanted):
        parts = fused.parts_of(name)
        rows, *rest = wanted[parts[0]]
        shape = (sum(wanted[part][0] for part in parts), *rest) if len(parts) > 1 else (rows, *rest)
        lm.append(Planned(name, dtype, shape, tuple((upstream.lm, part) for part in parts)))
    shards: list[list[Planned]] = [[]]
    for tensor in lm:
        if shards[-1] and sum(planned.n_bytes for planned in shards[-1]) + tensor.n_bytes > SHARD_BYTES:
            shards.append([])
        shards[-1].append(tensor)
    files = {
        ids.FLOW_FILE: _as_float32(upstream.flow, names.flow_shapes(upstream.codec)),
        ids.VAE_FILE: _as_float32(upstream.vae, names.vae_shapes(upstream.codec.vae)),
    }
    count = len(shards)
    return files | {f"model-{n:05d}-of-{count:05d}.safetensors": shard for n, shard in enumerate(shards, 1)}


def _as_float32(source: TensorSource, wanted: dict[str, names.Shape]) -> list[Planned]:
    return [Planned(name, torch.float32, shape, ((source, name),)) for name, shape in wanted.items()]


def _plain_files(upstream: Upstream) -> dict[str, bytes]:
    plain = {
        ids.CONFIG_FILE: yaml.safe_dump(upstream.config, sort_keys=False).encode(),
        ids.VAE_CONFIG_FILE: (json.dumps(upstream.vae_config, indent=1) + "\n").encode(),
        **{f"tokenizer/{name}": path.read_bytes() for name, path in upstream.tokenizer.items()},
    }
    if upstream.prompts is not None:
        plain |= read_auto_prompts(upstream.prompts, upstream.text)
    return plain


def _mark(
    upstream: Upstream,
    codec: CodecConstants,
    plain: dict[str, bytes],
    hashes: dict[str, dict[str, str]],
    dtype: torch.dtype,
) -> dict[str, Any]:
    """model.json. Its origin says which files it was made from, under the name that they are published as."""
    origin = {
        "size": upstream.size,
        "dtype": str(dtype).removeprefix("torch."),
        "files": [_origin_of(path) for path in upstream.files],
    }
    mark: dict[str, Any] = {
        "format": ids.FORMAT,
        "name": upstream.name,
        "text": asdict(upstream.text),
        "silence": {"vocal": codec.silence_vocal, "bgm": codec.silence_bgm},
        "codec_heads": codec.heads,
        "files": {name: ids.bytes_sha256(content) for name, content in plain.items()},
        "tensors": hashes,
        "origin": origin,
    }
    return mark | {"digest": ids.digest_of(mark)}


def _origin_of(path: Path) -> dict[str, Any]:
    size, content = path.stat().st_size, file_sha256(path)
    return {"name": path.name, "bytes": size, "sha256": content, "published_as": known_as(size, content)}


@contextmanager
def _writing(work: Path, upstream: Upstream, dtype: torch.dtype) -> Iterator[None]:
    """The working folder: continued if it was made from the same files, removed after an error."""
    plan = {
        "dtype": str(dtype),
        "shard_bytes": SHARD_BYTES,
        "files": [[os.path.abspath(path), path.stat().st_size, path.stat().st_mtime_ns] for path in upstream.files],
    }
    try:
        if not (work / PLAN).exists() or json.loads((work / PLAN).read_bytes()) != plan:
            shutil.rmtree(work, ignore_errors=True)
            write_bytes(work / PLAN, json.dumps(plan).encode())
        for path in [path for path in work.rglob("*") if is_temporary(path)]:
            path.unlink()  # of a killed conversion; the finished model would keep it
        yield
    except OSError as error:
        shutil.rmtree(work, ignore_errors=True)
        full = error.errno in DISK_FULL
        raise ModelError(
            f"the model could not be written: {error.strerror or error}",
            where=str(work.parent),
            fix="free space (or quota) there, or give --out on another file system" if full else "mend that; try again",
        ) from error
    except Exception:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _check_space(work: Path, missing: dict[str, list[Planned]]) -> None:
    needed = SPARE_BYTES * bool(missing) + sum(tensor.n_bytes for planned in missing.values() for tensor in planned)
    free = shutil.disk_usage(work).free
    if free < needed:
        raise ModelError(
            f"the model needs {needed / 2**30:.2f} GiB, and {math.floor(free / 2**30 * 100) / 100:.2f} GiB are free",
            where=str(work.parent),
            fix="free space there, or give --out on another file system",
        )
