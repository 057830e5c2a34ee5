"""`levo bench load`: how long a model takes from the page cache to the device, against torch.load + load_state_dict.

Both read the same weights in the same run: ours from a converted model directory, the reference from the checkpoint
that it was converted from. The reference is given its module without initialisation, which upstream pays on top.
"""

import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file

from levo.model import checkpoint
from levo.model.flow import Flow
from levo.model.identity import FLOW_FILE, VAE_FILE, read_identity
from levo.model.inventory import table
from levo.model.known_files import file_sha256
from levo.model.lm import LM, LYRIC_TABLE, STRUCTURE_TABLE, STYLE_TABLE
from levo.model.upstream import FLOW, PREFIX, VAE_WEIGHTS
from levo.model.vae import VAE

SAMPLE_S = 0.02


@dataclass(frozen=True)
class Loading:
    """One way to load. host_bytes: most private host memory that it needed (mapped files are not counted)."""

    what: str
    seconds: float
    host_bytes: int


@dataclass(frozen=True)
class LoadReport:
    """Both ways, and their parts."""

    device: str
    n_bytes: int
    loadings: list[Loading]

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("from page cache to " + self.device, "s", "GB/s", "host GiB")]
        for one in self.loadings:
            speed = f"{self.n_bytes / 1e9 / one.seconds:.2f}" if one.what.startswith("all") else ""
            rows.append((one.what, f"{one.seconds:.2f}", speed, f"{one.host_bytes / 2**30:.2f}"))
        last = json.dumps(
            {"device": self.device, "n_bytes": self.n_bytes, "loadings": list(map(asdict, self.loadings))}
        )
        return "\n".join([*table(rows), last])


def bench_load(model_dir: Path, source: Path, runtime: Path) -> LoadReport:
    """Load both ways, each after its files were read once. source: the checkpoint's folder."""
    identity = read_identity(model_dir)
    dtype = getattr(torch, str(identity.origin.get("dtype", "float16")))
    ours = [model_dir / name for name in identity.tensors]
    theirs = [source / "model.pt", runtime / FLOW, runtime / VAE_WEIGHTS]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.zeros(1, device=device)  # the device's context is no part of either
    loadings: list[Loading] = []

    def measure(what: str, files: list[Path], load: Callable[[], object]) -> None:
        for path in files:
            file_sha256(path)
        with _host_memory() as peak:
            started = time.monotonic()
            loaded = load()
            if device != "cpu":
                torch.cuda.synchronize()
            loadings.append(Loading(what, time.monotonic() - started, 0))
        loadings[-1] = Loading(what, loadings[-1].seconds, peak[0])
        del loaded
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()

    measure("all: levo, hashes checked", ours, lambda: checkpoint.load(model_dir, device, dtype))
    codec = [model_dir / FLOW_FILE, model_dir / VAE_FILE]
    measure("  of it the codec", codec, lambda: checkpoint.load(model_dir, device, dtype, language=False))
    reference = _Reference(model_dir, source, runtime, device, dtype)
    measure("all: torch.load, load_state_dict", theirs, reference.load)
    measure("  of it the language model", theirs[:1], reference.language_model)
    return LoadReport(device, sum(path.stat().st_size for path in ours), loadings)


class _Reference:
    """As upstream loads: the whole pickle into memory, copied into a module, cast, then moved."""

    def __init__(self, model_dir: Path, source: Path, runtime: Path, device: str, dtype: torch.dtype) -> None:
        self.config = checkpoint.read_config(model_dir, read_identity(model_dir))
        self.source, self.runtime, self.device, self.dtype = source, runtime, device, dtype

    def load(self) -> object:
        return self.language_model(), self.codec()

    def language_model(self) -> LM:
        stored = torch.load(self.source / "model.pt", map_location="cpu", weights_only=True)
        state = {name.removeprefix(PREFIX): tensor for name, tensor in stored.items()}
        with torch.device("meta"):
            lm = LM(self.config.lm, *(len(state[name]) for name in (LYRIC_TABLE, STYLE_TABLE, STRUCTURE_TABLE)))
        lm.to_empty(device="cpu").load_state_dict(state, strict=False)
        return lm.to(self.dtype).to(self.device)

    def codec(self) -> object:
        flow = Flow.from_state(self.config.codec, load_file(self.runtime / FLOW), self.dtype).to(self.device)
        stored = torch.load(self.runtime / VAE_WEIGHTS, map_location="cpu", weights_only=True)["state_dict"]
        return flow, VAE.from_state(self.config.codec.vae, stored).to(self.device)


@contextmanager
def _host_memory() -> Iterator[list[int]]:
    """The most private memory of this process above what it had, sampled; in the list after the block."""
    before, peak, ended = _private_bytes(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(SAMPLE_S):
            peak[0] = max(peak[0], _private_bytes() - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _private_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
