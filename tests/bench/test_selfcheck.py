"""`levo model selfcheck` on a random model: its verdict is good, and every kind of trouble turns it."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.upstream import TINY_CODEC, hold_tiny
from safetensors import safe_open
from safetensors.numpy import save_file

from levo.bench import selfcheck as checks
from levo.bench.load import bench_load
from levo.bench.selfcheck import selfcheck
from levo.errors import ModelError
from levo.model import known_files
from levo.model.convert import convert
from levo.model.known_files import GreedyFixture, KnownFile, file_sha256, known_as


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("selfcheck")
    held = hold_tiny(folder)
    convert(held.checkpoint, held.runtime, folder / "model", torch.float32, TINY_CODEC)
    return folder / "model"


@pytest.fixture(scope="module")
def fixture(model: Path) -> Path:
    """This machine's own greedy tokens."""
    path = model.parent / "greedy.safetensors"
    assert str(selfcheck(model, record=path, seconds=2)).endswith("verdict: good")
    return path


def test_a_recorded_fixture_agrees_on_the_same_machine(model: Path, fixture: Path) -> None:
    check = selfcheck(model, fixture=fixture, seconds=1)
    assert not check.against
    page = str(check)
    assert "fixture: all 150 tokens agree" in page and "recorded with cpu, torch.float32" in page
    assert "engine and plain loop, greedy: the first 25 of 25 frames agree, 25 in codebook 0" in page
    assert "equal bit for bit" in page and "VAE in float16 against float32" in page


def change_fixture(fixture: Path, out: Path, **facts: Any) -> Path:
    with safe_open(str(fixture), framework="np") as file:
        tokens, metadata = file.get_tensor("tokens").copy(), file.metadata()["levo.fixture"]
    tokens[0, 30] = (tokens[0, 30] + 1) % 256
    for name, value in facts.items():
        metadata = metadata.replace(torch.__version__ if name == "torch" else "", value, 1)
    save_file({"tokens": tokens}, out, metadata={"levo.fixture": metadata})
    return out


@pytest.fixture
def tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves the engine and the codec out, which take their time."""
    for name in ("_engine", "_vae"):
        monkeypatch.setattr(checks, name, lambda *_: None)


@pytest.mark.usefixtures("tokens_only")
def test_a_token_that_differs_is_located_with_its_margin(model: Path, fixture: Path, tmp_path: Path) -> None:
    check = selfcheck(model, fixture=change_fixture(fixture, tmp_path / "f"), seconds=1)
    assert len(check.against) == 1 and "149 of 150 tokens agree" in check.against[0]
    assert "the first that differs at frame 30, codebook 0, by " in check.against[0]
    gap = float(check.against[0].split(" by ")[1].split()[0])
    assert gap > 0 and str(check).endswith("verdict: BAD, 1 findings")


@pytest.mark.usefixtures("tokens_only")
def test_a_difference_to_another_machine_is_told_and_not_held_against_it(
    model: Path, fixture: Path, tmp_path: Path
) -> None:
    check = selfcheck(model, fixture=change_fixture(fixture, tmp_path / "f", torch="2.6.0"), seconds=1)
    assert not check.against and "149 of 150 tokens agree" in str(check)


@pytest.mark.usefixtures("tokens_only")
def test_fixtures_of_another_model_are_refused(model: Path, tiny_dir: Path, fixture: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the fixture is of model"):
        selfcheck(tiny_dir, fixture=fixture, seconds=1)
    (tmp_path / "no").write_bytes(b"x")
    with pytest.raises(ModelError, match="not a fixture"):
        selfcheck(model, fixture=tmp_path / "no", seconds=1)


@pytest.mark.usefixtures("tokens_only")
def test_published_tokens_are_made_again_and_compared_by_hash(
    model: Path, fixture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with safe_open(str(fixture), framework="np") as file:
        tokens = np.ascontiguousarray(file.get_tensor("tokens"), dtype="<i4")
    lyrics, style = checks.LYRICS, checks.DESCRIPTION
    right = GreedyFixture("mine", lyrics, style, tokens.shape[1], hashlib.sha256(tokens.tobytes()).hexdigest())
    wrong = GreedyFixture("mine", lyrics, style, 20, "0" * 64)
    monkeypatch.setattr(checks, "GREEDY_FIXTURES", (right, wrong))
    identity = checks.read_identity(model)
    monkeypatch.setattr(checks, "read_identity", lambda path: identity)
    monkeypatch.setitem(identity.origin, "size", "mine")
    page = str(selfcheck(model, seconds=1))
    assert "published greedy tokens, 50 frames: equal; closest choice here: margin" in page
    assert "published greedy tokens, 20 frames: not equal" in page


def test_a_song_that_depends_on_its_neighbours_turns_the_verdict(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bits, calls = checks._bits, []

    def differing(song: Any) -> list[str]:
        calls.append(song)
        return [*bits(song), str(len(calls))]

    monkeypatch.setattr(checks, "_bits", differing)
    monkeypatch.setattr(checks, "_vae", lambda *_: None)
    check = selfcheck(model, seconds=1)
    assert [line for line in check.against if "DIFFER" in line] == check.against and check.against


def test_an_imprecise_vae_turns_the_verdict(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LEAST_SNR_DB", 200.0)
    monkeypatch.setattr(checks, "_engine", lambda *_: None)
    assert "at least 200" in selfcheck(model, seconds=1).against[0]


def test_published_files_are_known_by_size_and_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    content = file_sha256(tmp_path / "f")
    known = (KnownFile("whole", 3, content), KnownFile("part", 4, f"{content[:8]}...{content[-5:]}"))
    monkeypatch.setattr(known_files, "KNOWN_FILES", known)
    assert known_as(3, content) == "whole" and known_as(4, content) == "part"
    assert known_as(5, content) is None and known_as(3, "0" * 64) is None


def test_load_bench_loads_both_ways_and_ends_with_json(model: Path) -> None:
    report = bench_load(model, model.parent / "songgeneration_v2_tiny", model.parent / "runtime")
    assert [loading.seconds > 0 for loading in report.loadings] == [True] * 4
    assert json.loads(str(report).splitlines()[-1])["device"] == "cpu"
