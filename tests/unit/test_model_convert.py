"""Conversion: the same numbers come out, twice the same bytes, in bounded memory, and after a kill it goes on."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.upstream import TINY_CODEC, Held, hold_tiny, tiny_layout
from safetensors.torch import save_file

from levo.disk import is_temporary
from levo.errors import ModelError
from levo.model import checkpoint, convert, fused, tensor_writer, tiny
from levo.model.convert import Converted
from levo.model.identity import read_identity
from levo.model.lm import LM, unused_tensors
from levo.model.oracle import generate, greedy
from levo.model.tensor_source import TensorSource
from levo.songs.text import TextEncoder


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    return hold_tiny(tmp_path_factory.mktemp("held"))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "SHARD_BYTES", 300_000)


def run(held: Held, out: Path, dtype: torch.dtype = torch.float32) -> Converted:
    return convert.convert(held.checkpoint, held.runtime, out, dtype, TINY_CODEC)


def test_converted_and_unconverted_weights_give_identical_logits(held: Held, tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.float16):
        run(held, tmp_path / "out", dtype)
        loaded = checkpoint.load(tmp_path / "out", "cpu", dtype)
        assert loaded.lm is not None
        stored = torch.load(held.checkpoint / "model.pt", weights_only=True)
        plain = LM.from_state(loaded.config.lm, {n.removeprefix("audiolm."): t.to(dtype) for n, t in stored.items()})
        conditioning = TextEncoder(tmp_path / "out").prepare("[verse] Salt on the window.", "folk", "mixed")
        one, other = (
            generate(lm, conditioning, None, loaded.pad_id, 20, greedy, record_steps=20) for lm in (loaded.lm, plain)
        )
        assert np.array_equal(one.raw, other.raw)
        pairs = zip(one.logits, other.logits, strict=True)
        assert all(torch.equal(a.cond, b.cond) and torch.equal(a.uncond, b.uncond) for a, b in pairs)
        assert len(one.logits) == 20


def test_every_tensor_comes_through_bit_for_bit_and_the_unused_are_dropped(held: Held, tmp_path: Path) -> None:
    run(held, tmp_path / "out")
    loaded, whole = checkpoint.load(tmp_path / "out", "cpu", torch.float32), tiny.contents()
    assert loaded.lm is not None
    state = loaded.lm.state_dict()
    assert set(state) == set(whole.lm) - set(unused_tensors(loaded.config.lm))
    assert all(torch.equal(tensor, whole.lm[name]) for name, tensor in state.items())
    reference = checkpoint.write(tmp_path / "reference", whole) and checkpoint.load(
        tmp_path / "reference", "cpu", torch.float32
    )
    for part in ("flow", "vae"):
        one, other = getattr(loaded, part).state_dict(), getattr(reference, part).state_dict()
        assert all(torch.equal(one[name], other[name]) for name in other)
    on_disk = set(read_names(tmp_path / "out"))
    assert not on_disk & set(unused_tensors(loaded.config.lm))


def read_names(model_dir: Path) -> list[str]:
    """Tensors of the language model on disk."""
    return [name for file in read_identity(model_dir).lm_files for name in TensorSource(model_dir / file).tensors]


def test_matrices_that_are_used_as_one_lie_as_one_on_disk_and_in_memory(held: Held, tmp_path: Path) -> None:
    run(held, tmp_path / "out")
    names = read_names(tmp_path / "out")
    assert "transformer.model.layers.0.self_attn.qkv_proj.weight" in names
    assert "transformer2.model.layers.1.mlp.gate_up_proj.weight" in names
    assert not [name for name in names if "q_proj" in name or "up_proj" in name.replace("gate_up_proj", "")]
    lm = checkpoint.load(tmp_path / "out", "cpu", torch.float32).lm
    assert lm is not None
    block = lm.main.layers[1]
    q, k, v = (getattr(block.self_attn, f"{part}_proj").weight for part in "qkv")
    assert k.data_ptr() == q.data_ptr() + q.nbytes and v.data_ptr() == k.data_ptr() + k.nbytes
    assert block.mlp.up_proj.weight.data_ptr() == block.mlp.gate_proj.weight.data_ptr() + q.nbytes * 2


def test_fused_names_and_their_parts_are_each_others_inverse() -> None:
    whole = [*tiny.contents().lm]
    plain = [name for stored in fused.fuse_names(whole) for name in fused.parts_of(stored)]
    assert sorted(plain) == sorted(whole)


def test_converting_twice_gives_identical_bytes(held: Held, tmp_path: Path) -> None:
    digests = [run(held, tmp_path / name).digest for name in ("one", "two")]
    assert digests[0] == digests[1]
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len([file for file in files if file.name.startswith("model-")]) > 3, "the test needs several shards"
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_every_form_of_the_weights_gives_the_same_model(held: Held, tmp_path: Path) -> None:
    stored = torch.load(held.checkpoint / "model.pt", weights_only=True)
    forms = {name: tmp_path / name / "songgeneration_v2_tiny" for name in ("one", "shards", "plain", "old", "more")}
    for folder in forms.values():
        folder.mkdir(parents=True)
        shutil.copy(held.checkpoint / "config.yaml", folder)
    save_file(stored, forms["one"] / "model.safetensors")
    names = sorted(stored)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: stored[name] for name in part}, forms["shards"] / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (forms["shards"] / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save({name.removeprefix("audiolm."): t for name, t in stored.items()}, forms["plain"] / "model.pt")
    torch.save(stored, forms["old"] / "model.pt", _use_new_zipfile_serialization=False)
    torch.save({**stored, "trainer.step": torch.ones(1)}, forms["more"] / "model.pt")
    results = {form: run(Held(folder, held.runtime), tmp_path / f"{form}.out") for form, folder in forms.items()}
    assert {result.digest for result in results.values()} == {run(held, tmp_path / "out").digest}
    assert any("1 tensors of model.pt are not the language model's" in note for note in results["more"].notes)


def test_model_says_what_it_was_made_from_and_that_it_is_untested(held: Held, tmp_path: Path) -> None:
    result = run(held, tmp_path / "out")
    assert result.size is None and any(note.startswith("untested") for note in result.notes)
    origin = read_identity(tmp_path / "out").origin
    assert [file["name"] for file in origin["files"]][:2] == ["config.yaml", "model.pt"]
    assert origin["files"][1]["bytes"] == (held.checkpoint / "model.pt").stat().st_size
    assert origin["dtype"] == "float32"


def test_an_older_model_there_is_replaced_and_other_folders_are_left_alone(held: Held, tmp_path: Path) -> None:
    tiny.write_tiny(tmp_path / "out")
    run(held, tmp_path / "out")
    run(held, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "music").mkdir()
    (tmp_path / "music" / "song.flac").write_text("mine")
    with pytest.raises(ModelError, match="something else already: song.flac"):
        run(held, tmp_path / "music")


KILLED = """
import os, signal, sys
sys.path[:0] = {path!r}
from pathlib import Path
import torch
from fakes.upstream import TINY_CODEC
from levo.model import convert, tensor_writer
convert.SHARD_BYTES = 300_000
write, pieces, begun = tensor_writer.write_file, tensor_writer._pieces, []
def counting(path, tensors):
    begun.append(path)
    return write(path, tensors)
def killing(tensor):
    if len(begun) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return pieces(tensor)
tensor_writer.write_file, tensor_writer._pieces = counting, killing
convert.convert(Path({checkpoint!r}), Path({runtime!r}), Path({out!r}), torch.float32, TINY_CODEC)
"""


def killed_half_way(held: Held, out: Path, root: Path) -> None:
    places = {"checkpoint": str(held.checkpoint), "runtime": str(held.runtime), "out": str(out)}
    code = KILLED.format(path=[str(root), str(root / "tests")], **places)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_after_a_kill_finished_files_are_kept_and_the_result_is_the_same(
    held: Held, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "out", tmp_path / "out.converting"
    killed_half_way(held, out, root)
    assert work.exists() and not out.exists() and not (work / "model.json").exists()
    assert [path for path in work.iterdir() if is_temporary(path)], "killed while it wrote a file"
    shard = next(work.glob("model-00001-*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1  # one of the finished files was damaged since
    shard.write_bytes(content)
    made: list[str] = []
    write = tensor_writer.write_file

    def watch(path: Path, tensors: Any) -> dict[str, str]:
        made.append(path.name)
        return write(path, tensors)

    monkeypatch.setattr(tensor_writer, "write_file", watch)
    result = run(held, out)
    assert result.kept == 2 and "flow.safetensors" not in made and shard.name in made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert result.digest == run(held, tmp_path / "other").digest
    assert not [path for path in out.rglob("*") if path.suffix == ".whole" or "tmp" in path.name]
    assert run(held, out).digest == result.digest, "nothing in it keeps it from being replaced"


def test_after_a_kill_nothing_of_other_inputs_is_kept(held: Held, tmp_path: Path, root: Path) -> None:
    killed_half_way(held, tmp_path / "out", root)
    os.utime(held.checkpoint / "model.pt")  # written again
    assert run(held, tmp_path / "out").kept == 0


MEASURED = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
import torch
from fakes.upstream import TINY_CODEC
from levo.model import convert
from levo.model.tensor_source import TensorSource
def held_bytes():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return int(status["VmHWM"].split()[0]) * 1024
convert.convert(Path({small[0]!r}), Path({small[1]!r}), Path({out!r} + ".first"), torch.float16, TINY_CODEC)
open("/proc/self/clear_refs", "w").write("5")
before = held_bytes()
convert.convert(Path({large[0]!r}), Path({large[1]!r}), Path({out!r}), torch.float16, TINY_CODEC)
print(held_bytes() - before)
"""


def test_memory_stays_under_that_of_the_largest_tensors(held: Held, tmp_path: Path, root: Path) -> None:
    """Resident memory, mapped pages counted. 300 MB of weights, whose largest group is 67 MB."""
    lm = dict(tiny.contents().lm)
    layout = tiny_layout()
    config = {**layout.config, "lm": {**layout.config["lm"], "dim": 512, "intermediate_size": 11008, "num_layers": 4}}
    from levo.bench.random_checkpoint import Fill
    from levo.model.config import LMConfig
    from levo.model.upstream_names import lm_shapes

    shapes = lm_shapes(LMConfig.from_upstream(config), {name: tuple(t.shape) for name, t in lm.items()})
    fill = Fill(0)
    weights = {name: fill.tensor(name, shape) for name, shape in shapes.items()}
    largest = 2 * 11008 * 512 * 4  # gate and up in float32
    assert sum(tensor.nbytes for tensor in weights.values()) > 5 * largest
    large = hold_tiny(tmp_path / "large", tiny_layout(config=config, lm=weights))
    del weights
    code = MEASURED.format(
        path=[str(root), str(root / "tests")], small=tuple(map(str, held)), large=tuple(map(str, large)),
        out=str(tmp_path / "out"),
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.3 * largest
