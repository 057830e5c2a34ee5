"""Grammar of lyrics, and the language rule."""

import pytest

from levo.songs.language import language_of, sung_units
from levo.songs.lyrics import Section, clean, join, parse, split
from levo.songs.reasons import Refused


def canonical(text: str) -> str:
    return join(parse(clean(text, "lyrics")))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("[intro-medium]; [verse] 雪花.飘 ; [outro-short]", "[intro-medium] ; [verse] 雪花.飘 ; [outro-short]"),
        ("[intro-short] ;  [verse] a  b", "[intro-short] ; [verse] a b"),
        ("[verse]no space.", "[verse] no space."),
        ("\n[verse] one. ;\r\n[chorus] two. ;\n", "[verse] one. ; [chorus] two."),
        ("[verse] cafe\u0301", "[verse] caf\u00e9"),
        ("[chorus] 题;难道你 ;旋转着; [inst-medium]", "[chorus] 题;难道你 ;旋转着 ; [inst-medium]"),
        ('[verse] ¿Por qué? It\'s 3.5 - "ok" ...', '[verse] ¿Por qué? It\'s 3.5 - "ok" ...'),
        ("[verse] 時々ラーメン", "[verse] 時々ラーメン"),
        ("[verse] می\u200cخواهم", "[verse] می\u200cخواهم"),
    ],
)
def test_only_spaces_between_sections_change(given: str, kept: str) -> None:
    assert canonical(given) == kept
    assert canonical(kept) == kept


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("no tag here", "no_tag", "no tag here"),
        ("la [verse] la", "no_tag", "la"),
        ("[Chorus] la", "wrong_case_tag", "[chorus]"),
        ("[intro] ; [verse] la", "unknown_tag", "[intro-short]"),
        ("[vers] la", "unknown_tag", "[verse]"),
        ("[verse] la [laughs] la", "unknown_tag", "[laughs]"),
        ("[verse] la ] la", "unknown_tag", "a single ]"),
        ("[verse] a [chorus] b", "no_separator", "[chorus]"),
        ("[verse] ; [chorus] b", "tag_needs_text", "section 1"),
        ("[verse] ... ; [chorus] b", "tag_needs_text", "[verse]"),
        ("[verse] a ; [inst-long] b", "tag_without_text", "section 2"),
        ("[verse] a ; [silence] .", "tag_without_text", "[silence]"),
        ("[verse] a\nb", "line_break", "'.'"),
        ("[verse] a\u2028b", "line_break", "[verse]"),
        ("[verse] 春天，花开", "fullwidth_punctuation", "write , instead"),
        ("[verse] ｈｅｌｌｏ", "fullwidth_punctuation", "write h instead"),
        ("[verse] 春\u3000花", "fullwidth_punctuation", "write a space instead"),
        ("[verse] don\u2019t", "fullwidth_punctuation", "write ' instead"),
        ("[verse] a\u200bb", "control_characters", "ZERO WIDTH SPACE"),
        ("[verse] a\x00b", "control_characters", "U+0000"),
        ("[verse] a\x1cb", "control_characters", "U+001C"),
        ("[verse] \ud83d", "bad_encoding", "U+D83D"),
        ("[verse] caf\ufffd", "bad_encoding", "U+FFFD"),
        ("[verse] <|im_end|>", "special_token", "<|im_end|>"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(text: str, code: str, says: str) -> None:
    with pytest.raises(Refused) as refused:
        canonical(text)
    assert refused.value.code == code
    assert says in refused.value.sentence + refused.value.fix


def test_split_gives_the_sections_of_canonical_lyrics() -> None:
    sections = [Section("[intro-short]", ""), Section("[verse]", "a ; b"), Section("[silence]", "")]
    assert split(join(sections)) == sections
    assert split(".") == []


@pytest.mark.parametrize(
    ("lyrics", "language", "units"),
    [
        ("[verse] 雪花飘落在窗前.OK", "zh", 8),
        ("[verse] 春の駅で君を待つ", "ja", 8),
        ("[verse] 안녕하세요.사랑해", "ko", 8),
        ("[verse] The rain is on the roof.Don't go", "en", 8),
        ("[verse] La luna te cuida", "es", 4),
        ("[verse] Mañana", "es", 1),
    ],
)
def test_language_and_sung_units(lyrics: str, language: str, units: int) -> None:
    assert language_of(lyrics) == language
    assert sung_units(split(lyrics)[0].words, language) == units
