"""Text front end on the smallest vocabulary; the real one is in tests/golden/test_tokenizer.py."""

import json
from pathlib import Path

import pytest
from fakes.vocabulary import byte_symbols, write_text_files

from levo.errors import ModelError
from levo.songs.text import STRUCTURE_TAGS, TextEncoder, style_texts

PAD, START, FIRST_TAG = 256, 257, 259


def test_a_vocabulary_of_bytes_alone_works(tmp_path: Path) -> None:
    encoder = TextEncoder(write_text_files(tmp_path))
    ids, structure = encoder.lyric_ids("[intro-short] ; [chorus] né.")
    chorus, intro = FIRST_TAG + STRUCTURE_TAGS.index("[chorus]"), FIRST_TAG + STRUCTURE_TAGS.index("[intro-short]")
    assert encoder.pad_id == PAD
    assert ids == (START, intro, *b" ; ", chorus, *" né.".encode())
    assert structure == (0, *[4] * 4, *[2] * 6)


def test_decomposed_text_has_the_ids_of_composed_text(tmp_path: Path) -> None:
    encoder = TextEncoder(write_text_files(tmp_path))
    assert encoder.lyric_ids("[verse] cafe\u0301") == encoder.lyric_ids("[verse] caf\u00e9")


@pytest.mark.parametrize("text", ["", ".", "[verse] né ; [chorus] 歌", "[intro-short] ; [verse] la. la"])
def test_ids_are_counted_as_they_are_given(tmp_path: Path, text: str) -> None:
    encoder = TextEncoder(write_text_files(tmp_path))
    assert encoder.n_lyric_tokens(text) == len(encoder.lyric_ids(text)[0])


def test_unconditional_row_depends_on_no_song(tmp_path: Path) -> None:
    encoder = TextEncoder(write_text_files(tmp_path))
    made = [encoder.prepare("[verse] a", "Pop", "mixed"), encoder.prepare("[chorus] b", None, "separate")]
    made.append(encoder.prepare("[verse] c", "rock", "bgm"))
    assert len({conditioning.uncond for conditioning in made}) == 1
    assert made[0].uncond.lyric_ids == (START,)


def test_bgm_has_a_dot_as_lyrics(tmp_path: Path) -> None:
    encoder = TextEncoder(write_text_files(tmp_path))
    assert encoder.prepare("[verse] la la", "pop", "bgm").cond.lyric_ids == (START, ord("."))


@pytest.mark.parametrize(
    ("description", "gen_type", "version", "texts"),
    [
        ("Female, Pop", "mixed", "v1", ("female, pop", None)),
        (None, "mixed", "v1", (None, None)),
        ("Female, Pop", "vocal", "v2", ("[Musicality-very-high], female, pop", "[Musicality-very-low], .")),
        (None, "mixed", "v2", ("[Musicality-very-high], .", "[Musicality-very-low], .")),
        ("Rock", "bgm", "v2", ("[Musicality-very-high], [Pure-Music], rock", "[Musicality-very-low], .")),
        (None, "bgm", "v2", ("[Musicality-very-high], [Pure-Music], .", "[Musicality-very-low], .")),
    ],
)
def test_style_texts_carry_the_versions_tags(
    description: str | None, gen_type: str, version: str, texts: tuple[str | None, str | None]
) -> None:
    assert style_texts(description, gen_type, version) == texts


def test_a_broken_model_directory_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.json"):
        TextEncoder(tmp_path / "nowhere")
    model = write_text_files(tmp_path, version="v9")
    with pytest.raises(ModelError, match="v9"):
        TextEncoder(model)
    write_text_files(tmp_path)
    (tmp_path / "tokenizer" / "merges.txt").unlink()
    with pytest.raises(ModelError, match="vocabulary not readable"):
        TextEncoder(model)
    (tmp_path / "model.json").write_text(json.dumps({"text": {"version": "v2"}}))
    with pytest.raises(ModelError, match="lyric_tokens"):
        TextEncoder(model)


def test_a_vocabulary_with_gaps_or_with_special_tokens_is_refused(tmp_path: Path) -> None:
    symbols = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    for wrong in ({**symbols, "<|im_start|>": 256}, {**symbols, "aa": 300, "bb": 257}):
        with pytest.raises(ModelError, match="gaps"):
            TextEncoder(write_text_files(tmp_path, vocab=wrong))
