"""The grammar of lyrics: sections `[tag] words` joined by " ; ". Knows no tokens, no manifest and no model.

Canonical form, and all that it changes: NFC; a run of spaces becomes one; " ; " between sections (upstream's own files
have "[intro-medium]; [verse]"), none at the end; one space after a tag. Words and punctuation inside a section are
never touched: what does not fit is refused (reasons.py). A ";" that no tag follows belongs to the words.
Conventions that are not enforced: English sections end with ".", Chinese ones do not.
"""

import difflib
import re
import unicodedata
from typing import NamedTuple

from levo.songs.reasons import Refused
from levo.songs.text import BASE_SPECIALS, STRUCTURE_TAGS

SUNG = ("[verse]", "[chorus]", "[bridge]")
"""Sections that must have words; all others must have none."""

_BRACKETS = re.compile(r"\[[^\[\]]*\]|[\[\]]")
_SPACES = re.compile(r"[^\S\n]+")
_LINE_ENDS = ("\r\n", "\r", "\u2028", "\u2029")
_ALLOWED = "\n\t\u200c\u200d"  # the last two are zero-width, but part of words in several scripts

# What to write instead of punctuation that the model never saw. U+FF01..U+FF5E are ASCII, shifted.
_HALF_WIDTH = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {
    "、": ",", "。": ".", "・": " ", "〜": "~", "｡": ".", "､": ",", "･": " ", "—": "-", "–": "-", "…": "...", "‥": "..",
    "“": '"', "”": '"', "‘": "'", "’": "'", "「": '"', "」": '"', "『": '"', "』": '"', "｢": '"', "｣": '"',
    "《": '"', "》": '"', "〈": '"', "〉": '"', "【": '"', "】": '"', "〔": "(", "〕": ")", "\u3000": " ",
}  # fmt: skip
_FULL_WIDTH = re.compile("[" + "".join(map(re.escape, _HALF_WIDTH)) + "]")


class Section(NamedTuple):
    """One section; words are "" where the tag takes none."""

    tag: str
    words: str


def clean(text: str, field: str) -> str:
    """NFC text with single spaces; line breaks stay. Raises Refused for characters that no model text may hold."""
    if text.isascii() and text.isprintable():
        text = _SPACES.sub(" ", text).strip()
    else:
        text = _clean_unicode(text, field)
    for token in BASE_SPECIALS:
        if token in text:
            raise Refused("special_token", field=field, token=token)
    return text


def _clean_unicode(text: str, field: str) -> str:
    text = unicodedata.normalize("NFC", text)
    for line_end in _LINE_ENDS:
        text = text.replace(line_end, "\n")
    if not text.isprintable():
        _check_invisible(text, field)
    if "\ufffd" in text:
        raise Refused(
            "bad_encoding", field=field, why="it holds U+FFFD, the sign of text that was decoded wrongly before"
        )
    found = _FULL_WIDTH.search(text)
    if found:
        half = _HALF_WIDTH[found[0]]
        write = "write a space instead" if half == " " else f"write {half} instead"
        shown = f"U+{ord(found[0]):04X}" if found[0].isspace() else found[0]
        raise Refused("fullwidth_punctuation", field=field, found=shown, write=write)
    return _SPACES.sub(" ", text).strip()


def _check_invisible(text: str, field: str) -> None:
    for character in text:
        if character.isprintable() or character in _ALLOWED:
            continue
        kind = unicodedata.category(character)
        if kind == "Cs":
            raise Refused("bad_encoding", field=field, why=f"half a surrogate pair, U+{ord(character):04X}")
        if kind in ("Cc", "Cf", "Co", "Cn"):
            name = unicodedata.name(character, "without a name")
            raise Refused("control_characters", field=field, name=f"U+{ord(character):04X} ({name})")


def parse(text: str) -> list[Section]:
    """Sections of lyrics that went through `clean`. Raises Refused at the first break of the grammar."""
    marks = list(_BRACKETS.finditer(text))
    if not marks or text[: marks[0].start()].strip(" \n;"):
        head = text[: marks[0].start()] if marks else text
        raise Refused("no_tag", found=_start(head.strip()))
    sections: list[Section] = []
    for i, mark in enumerate(marks):
        tag = _known(mark[0])
        last = i + 1 == len(marks)
        words = text[mark.end() : len(text) if last else marks[i + 1].start()].strip()
        if words.endswith(";"):
            words = words[:-1].rstrip()
        elif not last:
            raise Refused("no_separator", tag=_known(marks[i + 1][0]))
        sections.append(_section(tag, words, i + 1))
    return sections


def check_sung(sections: list[Section]) -> None:
    """Raises Refused when nobody would sing."""
    if not any(section.tag in SUNG for section in sections):
        raise Refused("no_vocal_section")


def join(sections: list[Section]) -> str:
    """Canonical lyrics."""
    return " ; ".join([f"{tag} {words}" if words else tag for tag, words in sections])


def split(lyrics: str) -> list[Section]:
    """Sections of canonical lyrics, as `join` made them; text before the first tag (bgm's ".") is no section."""
    marks = list(_BRACKETS.finditer(lyrics))
    ends = [*[mark.start() for mark in marks[1:]], len(lyrics)]
    words = [lyrics[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=False)]
    return [Section(mark[0], text.removesuffix(";").rstrip()) for mark, text in zip(marks, words, strict=True)]


def _section(tag: str, words: str, number: int) -> Section:
    if "\n" in words:
        raise Refused("line_break", tag=tag)
    has_words = any(map(str.isalnum, words))
    if tag in SUNG and not has_words:
        raise Refused("tag_needs_text", tag=tag, number=number)
    if tag not in SUNG and words:
        raise Refused("tag_without_text", tag=tag, number=number)
    return Section(tag, words)


def _known(found: str) -> str:
    if found in STRUCTURE_TAGS:
        return found
    if found.lower() in STRUCTURE_TAGS:
        raise Refused("wrong_case_tag", found=found, right=found.lower())
    if found in "[]":
        raise Refused("unknown_tag", found=f"a single {found}", near="brackets are for structure tags only: remove it")
    if f"{found[:-1].lower()}-short]" in STRUCTURE_TAGS:
        raise Refused("unknown_tag", found=found, near=f"say how long: {found[:-1].lower()}-short], -medium] or -long]")
    near = difflib.get_close_matches(found.lower(), STRUCTURE_TAGS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "known tags: " + " ".join(STRUCTURE_TAGS)
    raise Refused("unknown_tag", found=_start(found), near=hint)


def _start(text: str, length: int = 40) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
