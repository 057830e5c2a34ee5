"""Wrong inputs to a conversion: each is refused with a clear error, and nothing is left behind."""

import errno
import json
import os
import pickle
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.upstream import TINY_CODEC, Held, hold_tiny, tiny_layout
from safetensors.torch import save_file

from levo.errors import EXIT_MODEL, ModelError
from levo.model import checkpoint, convert, tiny, upstream
from levo.model.lm import LYRIC_TABLE, STYLE_TABLE

LM = tiny.contents().lm
V1 = {"lm": {**LM, STYLE_TABLE: LM[STYLE_TABLE][: tiny.FIRST_TAG].clone()}}
V1_CONFIG: dict[str, Any] = json.loads(json.dumps(tiny.CONFIG))
V1_CONFIG["conditioners"]["description"]["QwTokenizer"]["max_len"] = 300
V1_CONFIG["conditioners"]["type_info"]["QwTextTokenizer"]["max_len"] = 50


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return hold_tiny(tmp_path / "held")


def run(held: Held, out: Path) -> convert.Converted:
    return convert.convert(held.checkpoint, held.runtime, out, torch.float32, TINY_CODEC)


class Harmful:
    """Unpickled as usual, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def save_pickle(held: Held) -> None:
    torch.save({"audiolm.x": torch.ones(1), "more": Harmful(held.checkpoint / "HARM")}, held.checkpoint / "model.pt")


def save_plain_pickle(held: Held) -> None:
    (held.checkpoint / "model.pt").write_bytes(pickle.dumps(Harmful(held.checkpoint / "HARM")))


def truncate(name: str) -> Callable[[Held], None]:
    def damage(held: Held) -> None:
        path = next(folder / name for folder in held if (folder / name).exists())
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])

    return damage


def edit_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Held], None]:
    def damage(held: Held) -> None:
        state = torch.load(held.checkpoint / "model.pt", weights_only=True)
        change(state)
        torch.save(state, held.checkpoint / "model.pt")

    return damage


def edit_config(change: Callable[[dict[str, Any]], Any]) -> Callable[[Held], None]:
    def damage(held: Held) -> None:
        path = held.checkpoint / "config.yaml"
        config = yaml.safe_load(path.read_text())
        change(config)
        path.write_text(yaml.safe_dump(config))

    return damage


def lose_shard(held: Held) -> None:
    state = torch.load(held.checkpoint / "model.pt", weights_only=True)
    (held.checkpoint / "model.pt").unlink()
    save_file(state, held.checkpoint / "model-00001-of-00002.safetensors")
    shards = {name: f"model-0000{1 + n % 2}-of-00002.safetensors" for n, name in enumerate(state)}
    (held.checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def other_vocabulary(held: Held) -> None:
    path = held.runtime / upstream.VOCABULARY
    vocabulary = json.loads(path.read_text())
    path.write_text(json.dumps({**vocabulary, "ab": len(vocabulary)}))
    path.with_name("merges.txt").write_text("#version: 0.2\na b\n")


def pointer(held: Held) -> None:
    (held.runtime / upstream.PROMPTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n")


WEIGHT = "audiolm.mlp.0.weight"
FLOW = upstream.FLOW
DAMAGES: dict[str, tuple[Callable[[Held], Any], str]] = {
    "missing shard": (lose_shard, "1 of 2 files missing: model-00002-of-00002.safetensors"),
    "no weights": (lambda h: (h.checkpoint / "model.pt").unlink(), "no weights: none of model.pt"),
    "two weights": (
        lambda h: shutil.copy(h.runtime / FLOW, h.checkpoint / "model.safetensors"),
        "two sets of weights: model.pt, model.safetensors",
    ),
    "no config": (lambda h: (h.checkpoint / "config.yaml").unlink(), "config.yaml is missing"),
    "no flow": (lambda h: (h.runtime / FLOW).unlink(), "model_2.safetensors is missing"),
    "truncated weights": (truncate("model.pt"), "not a whole torch file"),
    "truncated flow": (truncate(FLOW), "not a whole tensor file"),
    "truncated VAE": (truncate(upstream.VAE_WEIGHTS), "not a whole torch file"),
    "empty weights": (lambda h: (h.checkpoint / "model.pt").write_bytes(b""), "not a whole tensor file"),
    "pickle with code": (save_pickle, "asks for more than tensors, and was not run.*mkdir"),
    "bare pickle with code": (save_plain_pickle, "asks for more than tensors, and was not run"),
    "not a mapping": (lambda h: torch.save([torch.ones(2)], h.checkpoint / "model.pt"), "no mapping of names"),
    "wrong shape": (
        edit_weights(lambda s: s.update({WEIGHT: torch.ones(64, 64)})),
        r"1 of another shape: mlp.0.weight \[64, 64\] instead of \[64, 128\]",
    ),
    "missing tensor": (edit_weights(lambda s: s.pop(WEIGHT)), "1 missing: mlp.0.weight"),
    "unknown tensor": (edit_weights(lambda s: s.update({"audiolm.odd": torch.ones(1)})), "1 unknown: odd"),
    "no table": (edit_weights(lambda s: s.pop(f"audiolm.{LYRIC_TABLE}")), f"1 missing: {LYRIC_TABLE}"),
    "integers": (edit_weights(lambda s: s.update({WEIGHT: s[WEIGHT].int()})), "mlp.0.weight is not floating point"),
    "not finite": (edit_weights(lambda s: s[WEIGHT].view(-1)[3].fill_(float("nan"))), "mlp.0.weight holds values"),
    "other layer count": (edit_config(lambda c: c["lm"].update(num_layers=4)), "missing: transformer.model.layers.3"),
    "config key lost": (edit_config(lambda c: c["lm"].pop("rope_theta")), "key lm.rope_theta is missing"),
    "other network": (edit_config(lambda c: c["lm"].update(lm_type="GPT")), "lm.lm_type is 'GPT'"),
    "code in the config": (
        edit_config(lambda c: c.update(max_dur="${eval:__import__('os').getpid()}")),
        "max_dur is not arithmetic on numbers, and was not evaluated",
    ),
    "other vocabulary": (other_vocabulary, "another vocabulary: 257 entries; the lyric table has rows for 256"),
    "other tags": (
        lambda h: (h.runtime / upstream.TAGS).write_text("['[verse]', '[drop]']"),
        r"other structure tags: \[verse\], \[drop\]",
    ),
    "LFS pointer": (pointer, "a Git LFS pointer, not the file itself"),
    "prompts of another kind": (
        lambda h: torch.save({"Pop": {"fr": [torch.zeros(1, 3, 5).int()]}}, h.runtime / upstream.PROMPTS),
        "genre Pop has the languages fr",
    ),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_wrong_input_is_named_and_nothing_is_left(kind: str, held: Held, tmp_path: Path) -> None:
    damage, message = DAMAGES[kind]
    damage(held)
    with pytest.raises(ModelError, match=f"(?s){message}") as caught:
        run(held, tmp_path / "models" / "out")
    assert caught.value.fix and caught.value.exit_code == EXIT_MODEL
    assert not list(tmp_path.glob("models/*")) and not list(tmp_path.rglob("HARM"))


def test_values_beyond_half_precision_are_refused(held: Held, tmp_path: Path) -> None:
    edit_weights(lambda s: s[WEIGHT].view(-1)[3].fill_(1e6))(held)
    assert run(held, tmp_path / "wide").digest
    with pytest.raises(ModelError, match="mlp.0.weight holds values that are not finite as float16"):
        convert.convert(held.checkpoint, held.runtime, tmp_path / "out", torch.float16, TINY_CODEC)
    assert not list(tmp_path.glob("out*"))


VERSIONS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "v1 named v1": ("SongGeneration-base", {**V1, "config": V1_CONFIG}, "v1"),
    "v2 named v2": ("songgeneration_v2_large", {}, "v2"),
    "v2 named anything": ("mine", {}, "v2"),
    "v1 named anything": ("mine", {**V1, "config": V1_CONFIG}, "v1"),
    "v1 named like v2": ("songgeneration_v2_large", {**V1, "config": V1_CONFIG}, None),
    "v1 with the config of v2": ("mine", V1, None),
    "v2 named like v1": ("songgeneration_base_new", {}, None),
    "v2 with the config of v1": ("mine", {"config": V1_CONFIG}, None),
}


@pytest.mark.parametrize("kind", VERSIONS)
def test_version_follows_from_the_weights_and_every_other_sign_must_agree(kind: str, tmp_path: Path) -> None:
    name, changes, version = VERSIONS[kind]
    held = hold_tiny(tmp_path / "held", tiny_layout(name, **changes))
    if version is not None:
        assert run(held, tmp_path / "out").version == version
        checkpoint.load(tmp_path / "out", "cpu", torch.float32)
        return
    with pytest.raises(ModelError, match=r"the weights are v\d .by the rows of the style table., but .* says v\d"):
        run(held, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_a_beta_with_five_style_tags_is_refused(tmp_path: Path) -> None:
    lm = {**LM, STYLE_TABLE: LM[STYLE_TABLE][:-1].clone()}
    with pytest.raises(ModelError, match="rows for 5 tags; v1 has none and v2 6"):
        run(hold_tiny(tmp_path / "held", tiny_layout(lm=lm)), tmp_path / "out")


def test_too_little_space_is_noticed_before_anything_is_written(
    held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))
    with pytest.raises(ModelError, match="needs 0.06 GiB, and 0.00 GiB are free"):
        run(held, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["held"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_half_way_leaves_nothing(
    held: Held, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "_check_space", lambda work, missing: None)  # as where a quota hides what is free
    with pytest.raises(ModelError, match="could not be written: No space left on device") as caught:
        run(held, small_disk / "out")
    assert "free space" in caught.value.fix
    assert list(small_disk.iterdir()) == []


def test_an_error_of_the_disk_keeps_the_older_model(
    held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = run(held, tmp_path / "out").digest

    def fail(path: Path, tensors: Any) -> dict[str, str]:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(convert.tensor_writer, "write_file", fail)
    with pytest.raises(ModelError, match="Disk quota exceeded"):
        run(held, tmp_path / "out")
    monkeypatch.undo()
    assert checkpoint.load(tmp_path / "out", "cpu", torch.float32).digest == digest


def test_a_shard_that_is_missing_from_our_own_model_is_named(held: Held, tmp_path: Path) -> None:
    run(held, tmp_path / "out")
    next((tmp_path / "out").glob("model-*.safetensors")).unlink()
    with pytest.raises(ModelError, match="a file of the model is missing"):
        checkpoint.load(tmp_path / "out", "cpu", torch.float32)
