"""Audio prompts: what is taken from a file or drawn from the model, what is refused, and that nothing is run."""

import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fakes.upstream import TINY_CODEC, hold_tiny
from safetensors.numpy import save_file

from levo.engine.philox import PURPOSE_NOISE, PURPOSE_TOKEN, philox
from levo.errors import LevoError, ManifestError
from levo.model.convert import convert
from levo.settings import Settings
from levo.songs.manifest import check
from levo.songs.prompts import PURPOSE_PROMPT, Prompt, PromptBook, philox4x32, prompt_language, tokens_sha256
from levo.songs.text import TextEncoder

FRAMES, CODES, ABSENT = 25, 256, 257
GOOD = np.arange(3 * FRAMES, dtype=np.int64).reshape(3, FRAMES)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted model: it has automatic prompts."""
    folder = tmp_path_factory.mktemp("prompts")
    held = hold_tiny(folder)
    convert(held.checkpoint, held.runtime, folder / "model", torch.float32, TINY_CODEC)
    return folder / "model"


@pytest.fixture
def book(model: Path) -> PromptBook:
    return PromptBook(model, TextEncoder(model).limits)


@pytest.fixture
def songs(model: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Checks rows; gives songs and refused rows, in order."""

    def run(*rows: dict[str, Any]) -> list[dict[str, Any]]:
        lines = [json.dumps({"song_id": str(n), "lyrics": "[verse] Salt.", **row}) for n, row in enumerate(rows)]
        (tmp_path / "songs.jsonl").write_text("\n".join(lines))
        check(tmp_path / "songs.jsonl", tmp_path / "out", TextEncoder(model), Settings())
        found = [*read(tmp_path / "out/songs.parquet"), *read(tmp_path / "out/rejected.parquet")]
        return sorted(found, key=lambda row: int(row["song_id"]))

    return run


def read(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def save_forms(folder: Path, tokens: np.ndarray) -> list[Path]:
    forms = [folder / name for name in ("a.npy", "b.safetensors", "c.pt", "d.pt", "e.pt")]
    np.save(forms[0], tokens)
    save_file({"tokens": tokens.astype(np.int32)}, forms[1])
    torch.save(torch.from_numpy(tokens)[None], forms[2])
    torch.save(torch.from_numpy(np.ascontiguousarray(tokens.T)).T, forms[3])  # strided
    torch.save(torch.cat([torch.zeros(2, tokens.shape[1], dtype=torch.int16), torch.from_numpy(tokens)])[2:], forms[4])
    return forms


def test_every_form_of_a_file_gives_the_same_tokens(
    songs: Callable[..., list[dict[str, Any]]], book: PromptBook, tmp_path: Path
) -> None:
    tokens = GOOD.copy()
    tokens[2] = ABSENT
    tokens[:2, 20:] = ABSENT
    forms = save_forms(tmp_path, tokens)
    found = songs(*({"prompt_tokens": path.name} for path in forms), {"prompt_tokens": str(forms[0])})
    assert {song["prompt_sha256"] for song in found} == {tokens_sha256(tokens)}
    assert [song["prompt_source"] for song in found[:5]] == [f"file:{path}" for path in forms]
    assert np.array_equal(book.read(found[2]["prompt_source"]), tokens)


def edit(change: Callable[[np.ndarray], Any]) -> np.ndarray:
    tokens = GOOD.copy()
    change(tokens)
    return tokens


def put(rows: Any, columns: Any, value: int) -> Callable[[np.ndarray], None]:
    return lambda tokens: tokens.__setitem__((rows, columns), value)


BAD: dict[str, tuple[np.ndarray, str]] = {
    "too long": (np.zeros((3, FRAMES + 1), int), "has 26 frames, and this model takes 1 to 25"),
    "empty": (np.zeros((3, 0), int), "has 0 frames"),
    "two codebooks": (np.zeros((2, 5), int), r"shape \[2, 5\]"),
    "batch of two": (np.zeros((2, 3, 5), int), r"shape \[2, 3, 5\]"),
    "fractions": (np.zeros((3, 5)), "is float64, not integers"),
    "end id": (edit(put(0, 3, CODES)), "has ids from 0 to 256"),
    "negative": (edit(put(1, 3, -1)), "has ids from -1"),
    "a gap": (edit(put(1, 3, ABSENT)), "a code behind an absent frame"),
    "nothing": (np.full((3, 5), ABSENT), "absent in all three codebooks"),
}


@pytest.mark.parametrize("kind", BAD)
def test_tokens_that_are_no_prompt_are_refused(
    kind: str, songs: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    np.save(tmp_path / "p.npy", BAD[kind][0])
    (row,) = songs({"prompt_tokens": "p.npy"})
    assert row["reason"] == "bad_prompt" and "p.npy" in row["sentence"]
    assert re.search(BAD[kind][1], row["sentence"])


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_files_that_are_no_prompts_are_refused_and_nothing_in_them_is_run(
    songs: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    torch.save(Harmful(tmp_path / "HARM"), tmp_path / "code.pt")
    np.save(tmp_path / "code.npy", np.array([Harmful(tmp_path / "HARM")]), allow_pickle=True)
    torch.save({"tokens": torch.ones(3, 5)}, tmp_path / "dict.pt")
    torch.save(torch.zeros(1, dtype=torch.int64).expand(3, 1 << 30), tmp_path / "huge.pt")
    save_file({"a": GOOD, "b": GOOD}, tmp_path / "two.safetensors")
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "half.npy").write_bytes(save_forms(tmp_path, GOOD)[0].read_bytes()[:60])
    (tmp_path / "big.npy").write_bytes(bytes(2 << 20))
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02(")
    names = ["code.pt", "code.npy", "dict.pt", "huge.pt", "two.safetensors", "text.pt", "half.npy", "big.npy", "zip.pt"]
    rows = songs(*({"prompt_tokens": name} for name in [*names, "none.npy", "a.wav", "."]))
    assert [row.get("reason") for row in rows] == ["bad_prompt"] * len(rows)
    assert not (tmp_path / "HARM").exists()
    assert "posix.mkdir" in rows[0]["sentence"] and "relative paths" in rows[-3]["fix"]


def test_an_automatic_prompt_is_drawn_from_the_songs_own_seed(
    songs: Callable[..., list[dict[str, Any]]], book: PromptBook
) -> None:
    rows = [{"auto_prompt_audio_type": "Rock", "seed": seed} for seed in range(40)]
    found = songs(*rows)
    assert [song["prompt_source"] for song in songs(*rows)] == [song["prompt_source"] for song in found]
    sources = {song["prompt_source"] for song in found}
    assert sources == {f"auto:Rock/en/{n}" for n in range(8)}, "all eight are drawn"
    assert all(book.checked(Prompt(s["prompt_source"], s["prompt_sha256"])).shape == (3, FRAMES) for s in found)
    alone = songs(rows[7])
    assert alone[0]["prompt_source"] == found[7]["prompt_source"], "neighbours do not matter"


def test_language_of_an_automatic_prompt_follows_upstreams_rule(
    songs: Callable[..., list[dict[str, Any]]],
) -> None:
    auto = {"auto_prompt_audio_type": "R&B/Soul"}
    rows = [
        {"lyrics": "[verse] 潮水带走", **auto},
        {"lyrics": "[verse] 潮水", **auto},
        {"lyrics": "[verse] 潮", **auto},
        {"lyrics": "潮水潮水潮水潮水", "gen_type": "bgm", **auto},
        {"lyrics": None, "gen_type": "bgm", **auto},
    ]
    languages = [song["prompt_source"].split("/")[-2] for song in songs(*rows)]
    assert languages == ["zh", "zh", "en", "zh", "en"]
    assert prompt_language("潮" + "x" * 4) == "zh" and prompt_language("潮" + "x" * 5) == "en"


def test_two_prompts_an_unknown_genre_and_a_recording_are_refused(
    songs: Callable[..., list[dict[str, Any]]], model: Path, tmp_path: Path
) -> None:
    rows = songs(
        {"auto_prompt_audio_type": "Pop", "prompt_tokens": "a.npy"},
        {"auto_prompt_audio_type": "Pop", "prompt_audio_path": "a.wav"},
        {"prompt_audio_path": "a.wav"},
        {"auto_prompt_audio_type": "Polka"},
        {"auto_prompt_audio_type": 3},
    )
    reasons = ["conflicting_fields", "conflicting_fields", "prompt_recording", "bad_auto_prompt", "bad_type"]
    assert [row["reason"] for row in rows] == reasons
    assert "`prompt_tokens`" in rows[2]["fix"] and "Hip-Hop" in rows[3]["fix"]


def test_a_model_without_automatic_prompts_says_so(tiny_dir: Path) -> None:
    assert PromptBook(tiny_dir, TextEncoder(tiny_dir).limits).draw("Pop", "en", 1) is None


def test_a_prompt_that_was_changed_since_the_check_is_noticed(book: PromptBook, tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", GOOD)
    prompt = book.of_file(str(tmp_path / "p.npy"))
    np.save(tmp_path / "p.npy", GOOD + 1)
    with pytest.raises(ManifestError, match="changed since the manifest was checked"):
        book.checked(prompt)
    with pytest.raises(LevoError, match="no automatic prompt"):
        book.read("auto:Pop/en/8")


def test_words_are_those_of_the_engines_generator() -> None:
    counter, key = (3, 1 << 31, PURPOSE_PROMPT << 16, 7), (0xDEADBEEF, 5)
    one = philox(tuple(torch.tensor(c) for c in counter), tuple(torch.tensor(k) for k in key))  # type: ignore[arg-type]
    assert tuple(one.tolist()) == philox4x32(counter, key)
    assert PURPOSE_PROMPT not in (PURPOSE_TOKEN, PURPOSE_NOISE)
