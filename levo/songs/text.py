"""Lyrics and style text to token ids and structure ids (facts/lm.md section 6). Knows no tensors and no manifest.

The vocabulary is Qwen2's, read from a model directory: DIR/tokenizer/{vocab.json,merges.txt}. Text is NFC; ids are
neither padded nor cut here. Lyrics and style have two tokenizers whose added ids overlap, as their tables do.
QUIRK kept on purpose: version v2 makes "." a token of its own that never merges ("know.It" is three tokens there).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from levo.errors import ModelError

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
BASE_SPECIALS = (PAD, START, END)
"""They get the three ids after the BPE vocabulary, in this order."""

STRUCTURE_TAGS = (
    "[verse]",
    "[chorus]",
    "[bridge]",
    "[intro-short]",
    "[intro-medium]",
    "[intro-long]",
    "[outro-short]",
    "[outro-medium]",
    "[outro-long]",
    "[inst-short]",
    "[inst-medium]",
    "[inst-long]",
    "[silence]",
)
"""Added to the lyric tokenizer in this order; structure ids 1..13 follow it, 0 means "before the first tag"."""

VERY_HIGH, VERY_LOW, PURE_MUSIC = "[Musicality-very-high]", "[Musicality-very-low]", "[Pure-Music]"
STYLE_TAGS = (VERY_HIGH, "[Musicality-high]", "[Musicality-medium]", "[Musicality-low]", VERY_LOW, PURE_MUSIC)
"""Added to the style tokenizer in this order, v2 only."""

BGM_LYRICS = "."
"""What the model reads as lyrics of an instrumental (gen_type bgm), whatever the manifest says."""

# Qwen2's word pattern: contractions, words with at most one leading mark, single digits, marks, line ends, spaces.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TextIds:
    """Token ids with the start token, unpadded and uncut; structure ids belong to the lyric ids, one each."""

    lyric_ids: tuple[int, ...]
    structure_ids: tuple[int, ...]
    style_ids: tuple[int, ...]


@dataclass(frozen=True)
class Conditioning:
    """The two rows of a song under guidance."""

    cond: TextIds
    uncond: TextIds


@dataclass(frozen=True)
class TextLimits:
    """What a model takes: read from model.json["text"]. Token counts include the start token."""

    version: str  # "v1" or "v2"
    lyric_tokens: int  # 600
    style_tokens: int  # 100
    max_seconds: float  # 270
    prompt_frames: int = 250  # longest audio prompt
    audio_codes: int = 16384  # ids of a codebook; the id two beyond the last marks an absent frame

    @property
    def absent(self) -> int:
        """Id of a prompt's frames that are not there (SPECIAL)."""
        return self.audio_codes + 1


def style_texts(description: str | None, gen_type: str, version: str) -> tuple[str | None, str | None]:
    """Style text of the conditional and of the unconditional row; None is the start token alone.

    v1 steers against no style; v2 puts musicality tags in front and steers against very low musicality.
    bgm adds [Pure-Music] in v2. Unlike upstream, a bgm song without a description keeps its tags: upstream's bare "."
    there comes from operator precedence and drops the request for an instrumental.
    """
    style = description.lower() if description else None
    if version == "v1":
        return style, None
    pure = f"{PURE_MUSIC}, " if gen_type == "bgm" else ""
    return f"{VERY_HIGH}, {pure}{style or '.'}", f"{VERY_LOW}, ."


class TextEncoder:
    """Both tokenizers of a model directory. Raises ModelError when its text files are missing or damaged."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir: Path = model_dir
        self._build(model_dir / "tokenizer", _limits(model_dir))

    @classmethod
    def of_files(cls, folder: Path, limits: TextLimits) -> "TextEncoder":
        """An encoder from a folder with vocab.json and merges.txt, before there is a model directory."""
        encoder = cls.__new__(cls)
        encoder.model_dir = folder.parent
        encoder._build(folder, limits)
        return encoder

    def _build(self, folder: Path, limits: TextLimits) -> None:
        self.limits: TextLimits = limits
        dot = limits.version != "v1"
        self._lyrics, n_words = _tokenizer(folder, STRUCTURE_TAGS, dot)
        self._style, _ = _tokenizer(folder, STYLE_TAGS if dot else (), dot)
        self.pad_id: int = n_words
        self._before_tags = n_words + len(BASE_SPECIALS) - 1  # a structure tag's id minus this is its structure id

    def lyric_ids(self, text: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids and structure ids of lyrics, start token first; None is the start token alone.

        A structure id is the number of the latest structure tag at or before the position.
        """
        ids: list[int] = self._lyrics.encode(START + (text or ""), add_special_tokens=False).ids
        structure, latest = [], 0
        for token in ids:
            latest = token - self._before_tags if token > self._before_tags else latest
            structure.append(latest)
        return tuple(ids), tuple(structure)

    def n_lyric_tokens(self, text: str) -> int:
        """How many ids lyric_ids gives, without them."""
        return len(self._lyrics.encode(START + text, add_special_tokens=False))

    def style_ids(self, text: str | None) -> tuple[int, ...]:
        """Ids of a style text (see style_texts), start token first; None is the start token alone."""
        return tuple(self._style.encode(START + (text or ""), add_special_tokens=False).ids)

    def prepare(self, lyrics: str, description: str | None, gen_type: str) -> Conditioning:
        """The ids of a song's two rows. The unconditional row has no lyrics and depends on no song."""
        cond_style, uncond_style = style_texts(description, gen_type, self.limits.version)
        ids, structure = self.lyric_ids(BGM_LYRICS if gen_type == "bgm" else lyrics)
        no_ids, no_structure = self.lyric_ids(None)
        return Conditioning(
            cond=TextIds(ids, structure, self.style_ids(cond_style)),
            uncond=TextIds(no_ids, no_structure, self.style_ids(uncond_style)),
        )


def _limits(model_dir: Path) -> TextLimits:
    path = model_dir / "model.json"
    fix = "make the model directory again (`levo model convert`, or `levo model tiny DIR`)"
    try:
        text: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["text"]
        limits = TextLimits(
            version=text["version"],
            lyric_tokens=int(text["lyric_tokens"]),
            style_tokens=int(text["style_tokens"]),
            max_seconds=float(text["max_seconds"]),
            **{name: int(text[name]) for name in ("prompt_frames", "audio_codes") if name in text},
        )
    except FileNotFoundError:
        raise ModelError("not a model directory: it has no model.json", where=str(model_dir), fix=fix) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"no readable `text` section: {error!r}", where=str(path), fix=fix) from None
    if limits.version not in ("v1", "v2"):
        raise ModelError(f"unknown text version {limits.version!r}", where=str(path), fix="use v1 or v2")
    return limits


def _tokenizer(folder: Path, tags: tuple[str, ...], dot: bool) -> tuple[Tokenizer, int]:
    """One tokenizer, and the size of its BPE vocabulary. `dot`: "." never merges and keeps its id."""
    try:
        bpe = BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    except Exception as error:  # `tokenizers` raises plain Exception for a missing and for a damaged file
        raise ModelError(
            f"vocabulary not readable: {error}", where=str(folder), fix="put Qwen2's vocab.json and merges.txt there"
        ) from None
    tokenizer = Tokenizer(bpe)
    n_words: int = tokenizer.get_vocab_size()
    bpe_ids = tokenizer.get_vocab(with_added_tokens=False).values()
    tokenizer.normalizer = NFC()
    tokenizer.pre_tokenizer = Sequence(
        [Split(Regex(_WORDS), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    added = [*BASE_SPECIALS, *tags]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    ids = [tokenizer.token_to_id(token) for token in added]
    if ids != list(range(n_words, n_words + len(added))) or max(bpe_ids, default=-1) != n_words - 1:
        raise ModelError(
            "the vocabulary has gaps, or holds the special tokens already",
            where=str(folder / "vocab.json"),
            fix="use the BPE entries alone, with ids 0..n-1; special tokens are added after them",
        )
    if dot:
        if tokenizer.token_to_id(".") is None:
            raise ModelError("the vocabulary has no '.'", where=str(folder / "vocab.json"), fix="add the single bytes")
        tokenizer.add_special_tokens([AddedToken(".", special=True, normalized=False)])
    return tokenizer, n_words
