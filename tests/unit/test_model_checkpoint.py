"""Model directories: what is written comes back; every kind of damage is named; the digest covers what shapes songs."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from levo.errors import ModelError
from levo.model import tiny
from levo.model.checkpoint import load, write
from levo.model.identity import read_identity
from levo.model.lm import LYRIC_TABLE


@pytest.fixture
def model_dir(tiny_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_dir, tmp_path / "model"))


def load_all(folder: Path) -> Any:
    return load(folder, "cpu", torch.float32)


def test_written_tensors_come_back_bit_for_bit(tiny_dir: Path) -> None:
    contents, model = tiny.contents(), load_all(tiny_dir)
    assert model.lm is not None
    state = model.lm.state_dict()
    assert all(torch.equal(state[name], contents.lm[name]) for name in state)
    assert torch.equal(model.flow.state_dict()["mask_emb.weight"], contents.flow["mask_emb.weight"])
    assert (model.name, model.pad_id) == ("tiny", 256)
    assert (model.config.codec.silence_vocal, model.config.codec.silence_bgm) == (31, 47)
    assert read_identity(tiny_dir).digest == model.digest


def test_half_precision_keeps_a_float32_vae(tiny_dir: Path) -> None:
    model = load(tiny_dir, "cpu", torch.float16)
    assert model.lm is not None
    assert {p.dtype for p in model.lm.parameters()} == {torch.float16}
    assert {p.dtype for p in model.vae.parameters()} == {torch.float32}
    assert model.flow.estimator.proj_out.weight.dtype == torch.float16


def test_rendering_needs_no_language_model_file(model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    assert load(model_dir, "cpu", torch.float32, language=False).lm is None
    with pytest.raises(ModelError, match="file of the model is missing"):
        load_all(model_dir)


def edit_mark(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        mark = json.loads((folder / "model.json").read_text())
        change(mark)
        (folder / "model.json").write_text(json.dumps(mark))

    return damage


def edit_tensors(file: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        state = load_file(folder / file)
        change(state)
        save_file(state, folder / file)

    return damage


def flip(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(state: dict[str, torch.Tensor]) -> None:
        state[name].view(torch.int32).view(-1)[7] ^= 1

    return change


def truncate(folder: Path) -> None:
    path = folder / "codec" / "vae.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


SNAKE = "decoder.layers.6.alpha"
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no mark": (lambda d: (d / "model.json").unlink(), "has no model.json"),
    "not json": (lambda d: (d / "model.json").write_text("{"), "model.json is damaged"),
    "key lost": (edit_mark(lambda m: m.pop("silence")), "model.json is damaged.*silence"),
    "other format": (edit_mark(lambda m: m.update(format=9)), "format 9"),
    "edited mark": (edit_mark(lambda m: m["silence"].update(bgm=3)), "does.* not give its digest"),
    "edited text": (lambda d: (d / "config.yaml").write_text("max_dur: 3\n"), "config.yaml was changed"),
    "no tokenizer": (lambda d: shutil.rmtree(d / "tokenizer"), "tokenizer/merges.txt cannot be read"),
    "truncated": (truncate, "not a whole safetensors file"),
    "no file": (lambda d: (d / "codec" / "flow.safetensors").unlink(), "file of the model is missing"),
    "flipped bit": (edit_tensors("model.safetensors", flip("mlp.0.weight")), "tensor mlp.0.weight .* was changed"),
    "lost tensor": (edit_tensors("model.safetensors", lambda s: s.pop("mlp.0.bias")), "1 missing: mlp.0.bias"),
    "new tensor": (
        edit_tensors("codec/vae.safetensors", lambda s: s.update(more=torch.ones(2))),
        "1 unknown: more",
    ),
    "other dtype": (
        edit_tensors("codec/vae.safetensors", lambda s: s.update({SNAKE: s[SNAKE].half()})),
        f"tensor {SNAKE} .* was changed",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_named(kind: str, model_dir: Path) -> None:
    damage, message = DAMAGES[kind]
    damage(model_dir)
    with pytest.raises(ModelError, match=message):
        load_all(model_dir)


def without(state: Any, name: str) -> dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in state.items() if key != name}


WHOLE = tiny.contents()
MISFITS = {
    "LM tensor missing": (replace(WHOLE, lm=without(WHOLE.lm, "mlp.2.bias")), "1 missing: mlp.2.bias"),
    "LM tensor unknown": (replace(WHOLE, lm={**WHOLE.lm, "odd": torch.ones(1)}), "1 unknown: odd"),
    "LM shape": (
        replace(WHOLE, lm={**WHOLE.lm, "mlp.2.bias": torch.ones(5)}),
        r"1 of another shape: mlp.2.bias \(5,\) instead of \(64,\)",
    ),
    "flow tensor missing": (
        replace(WHOLE, flow=without(WHOLE.flow, "cfm_wrapper.estimator.ln_f.bias")),
        "1 missing: cfm_wrapper.estimator.ln_f.bias",
    ),
    "VAE tensor missing": (replace(WHOLE, vae=without(WHOLE.vae, SNAKE)), f"1 missing: {SNAKE}"),
    "integers": (replace(WHOLE, vae={**WHOLE.vae, SNAKE: torch.ones(4, dtype=torch.int32)}), "not floating point"),
    "table too short": (
        replace(WHOLE, lm={**WHOLE.lm, LYRIC_TABLE: WHOLE.lm[LYRIC_TABLE][:270].clone()}),
        "270 rows, the tokenizer of version v2 needs 272",
    ),
    "other limits": (replace(WHOLE, text=replace(WHOLE.text, lyric_tokens=300)), "600 and 300"),
    "other heads": (replace(WHOLE, codec_heads=5), "5 heads do not divide"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_parts_that_do_not_belong_together_are_named(kind: str, tmp_path: Path) -> None:
    contents, message = MISFITS[kind]
    write(tmp_path / "model", contents)
    with pytest.raises(ModelError, match=message):
        load_all(tmp_path / "model")


def test_tensors_known_to_be_unused_are_left_alone(tmp_path: Path) -> None:
    more = {"normfeat.sum_target_x2": torch.ones(10), "bestrq.some.weight": torch.ones(3, dtype=torch.int64)}
    contents = replace(WHOLE, flow=WHOLE.flow | more, vae=WHOLE.vae | {"encoder.layers.0.bias": torch.ones(3)})
    write(tmp_path / "model", contents)
    load_all(tmp_path / "model")


def test_digest_changes_with_all_that_shapes_songs_and_not_with_the_name(tmp_path: Path) -> None:
    changed = [
        WHOLE,
        replace(WHOLE, silence_bgm=48),
        replace(WHOLE, codec_heads=2),
        replace(WHOLE, text=replace(WHOLE.text, version="v1")),
        replace(WHOLE, config={**WHOLE.config, "min_dur": 4}),
        replace(WHOLE, tokenizer={**WHOLE.tokenizer, "merges.txt": b"#version: 0.2\na b\n"}),
        replace(WHOLE, vae={**WHOLE.vae, SNAKE: WHOLE.vae[SNAKE].half()}),
    ]
    digests = [write(tmp_path / str(n), contents) for n, contents in enumerate(changed)]
    assert len(set(digests)) == len(changed)
    assert write(tmp_path / "renamed", replace(WHOLE, name="other")) == digests[0]


def test_an_older_model_is_replaced_and_nothing_else_is(model_dir: Path, tmp_path: Path) -> None:
    (model_dir / "model.json").unlink()  # Snakemake deletes the output it knows before it runs the rule again
    digest = write(model_dir, WHOLE)
    assert read_identity(model_dir).digest == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    (tmp_path / "music").mkdir()
    (tmp_path / "music" / "song.flac").write_text("mine")
    with pytest.raises(ModelError, match="something else already: song.flac"):
        write(tmp_path / "music", WHOLE)
    assert (tmp_path / "music" / "song.flac").read_text() == "mine"


def test_a_write_that_fails_leaves_no_model(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        write(tmp_path / "model", replace(WHOLE, vae={"bad": None}))  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []


def test_others_may_read_the_weights(tiny_dir: Path) -> None:
    modes = {path.stat().st_mode for path in tiny_dir.rglob("*") if path.is_file()}
    assert len(modes) == 1


def test_loading_does_not_bring_the_compiler(tiny_dir: Path, root: Path) -> None:
    """torch._dynamo takes longer to import than a tiny model to load, in every rank of every shard."""
    code = (
        "import pathlib, sys, torch; from levo.model.checkpoint import load; "
        "load(pathlib.Path(sys.argv[1]), 'cpu', torch.float32); print('torch._dynamo' in sys.modules)"
    )
    said = subprocess.check_output([sys.executable, "-c", code, str(tiny_dir)], cwd=root, text=True)
    assert said.strip() == "False"
