"""Upstream's config.yaml to plain values. Knows which keys there are, not what they mean, and no tensors.

The file is OmegaConf's YAML with four resolvers of upstream's own. It is read with a safe loader; `${...}` is resolved
here and nothing is evaluated as Python:
    ${a.b}  ${.b}  ${..b}    another key: from the top, beside this one, one mapping further out
    ${eval:...}              arithmetic on numbers, walked as a syntax tree
    ${load_yaml:FILE}        the list in a YAML file below the root (upstream: below the working directory)
    ${concat:A,B}            lists, joined
    ${get_fname:}            the config's file name without its suffix
Keys are resolved one by one, when asked for: a config may name files of a training machine that nobody needs.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from levo.errors import ModelError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
LARGEST = 1e15  # no size, rate or position is beyond it; keeps arithmetic short
FIX = "use the config.yaml that came with the checkpoint"

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}

KEYS = (
    *("max_dur", "min_dur", "prompt_len", "sample_rate", "audio_tokenizer_frame_rate"),
    *("lm.lm_type", "lm.dim", "lm.intermediate_size", "lm.num_heads", "lm.num_layers", "lm.num_layers_sub"),
    *("lm.code_depth", "lm.code_size", "lm.max_position_embeddings", "lm.max_position_embeddings_sub"),
    *("lm.rope_theta", "lm.rope_theta_sub"),
    *("codebooks_pattern.modeling", "codebooks_pattern.delay.delays"),
    *("codebooks_pattern.delay.flatten_first", "codebooks_pattern.delay.empty_initial"),
    *("classifier_free_guidance.inference_coef", "fuser.sum", "fuser.prepend"),
    "conditioners.description.QwTokenizer.max_len",
    "conditioners.prompt_audio.qt_embedding.max_len",
    "conditioners.type_info.QwTextTokenizer.max_len",
)
"""What is kept of a config: all that shapes a song or says what the model is."""

_NESTED_IN_A_FORK = {key: f"lyric_processor.{key}" for key in ("max_dur", "min_dur", "prompt_len")}


class UpstreamConfig:
    """One config.yaml. root: the folder that its relative files lie in. Raises ModelError if it is not readable."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self.tree = _read(path)
        if not isinstance(self.tree, dict):
            raise ModelError("the config is not a mapping of names to values", where=str(path), fix=FIX)

    def get(self, key: str) -> Any:
        """The resolved value at a dotted path; None where there is none. Raises ModelError if it cannot be resolved."""
        parts = key.split(".")
        return self._resolve(self._look(parts), parts, key, 0)

    def plain(self) -> dict[str, Any]:
        """KEYS with their values, as a tree. Missing keys are left out."""
        out: dict[str, Any] = {}
        for key in KEYS:
            value = self.get(key)
            if value is None and key in _NESTED_IN_A_FORK:
                value = self.get(_NESTED_IN_A_FORK[key])
            if value is None:
                continue
            *outer, last = key.split(".")
            into = out
            for name in outer:
                into = into.setdefault(name, {})
            into[last] = value
        return out

    def _look(self, parts: list[str]) -> Any:
        value: Any = self.tree
        for part in parts:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def _resolve(self, value: Any, path: list[str], key: str, depth: int) -> Any:
        """path: where the value stands; the items of a list stand where the list does."""
        if depth > MAX_DEPTH:
            raise self._error(key, "refers to itself")
        if isinstance(value, Mapping):
            return {name: self._resolve(inner, [*path, str(name)], key, depth + 1) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._resolve(inner, path, key, depth + 1) for inner in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        pieces = [
            self._interpolate(piece, path, key, depth + 1) if is_inside else piece
            for piece, is_inside in self._split(value, key)
        ]
        return pieces[0] if len(pieces) == 1 else "".join(map(str, pieces))

    def _split(self, text: str, key: str) -> list[tuple[str, bool]]:
        """The pieces of a text: plain ones, and the insides of outermost ${...}."""
        pieces: list[tuple[str, bool]] = []
        while (start := text.find("${")) >= 0:
            level, end = 1, start + 2
            while level and end < len(text):
                level += {"{": 1, "}": -1}.get(text[end], 0)
                end += 1
            if level:
                raise self._error(key, f"has a bracket that is never closed: {text}")
            if start:
                pieces.append((text[:start], False))
            pieces.append((text[start + 2 : end - 1], True))
            text = text[end:]
        return [*pieces, (text, False)] if text else pieces

    def _interpolate(self, inside: str, place: list[str], key: str, depth: int) -> Any:
        name, colon, rest = inside.partition(":")
        if not colon or "$" in name:
            return self._refer(inside.strip(), place[:-1], key, depth)
        if name == "get_fname":
            return self.path.stem
        arguments = [self._resolve(part.strip(), place, key, depth) for part in _arguments(rest)]
        if name == "concat":
            return [item for part in arguments for item in part]
        one = ",".join(map(str, arguments))
        if name == "eval":
            return self._arithmetic(one, key)
        if name == "load_yaml":
            return self._load(one.strip("'\""), key)
        raise self._error(key, f"uses the unknown resolver {name!r}")

    def _refer(self, reference: str, scope: list[str], key: str, depth: int) -> Any:
        path = reference.lstrip(".")
        up = len(reference) - len(path)  # one dot: beside this key
        start = scope[: len(scope) - up + 1] if up else []
        parts = [*start, *path.split(".")]
        value = self._look(parts)
        if value is None:
            raise self._error(key, f"refers to {reference}, which has no value")
        return self._resolve(value, parts, key, depth)

    def _arithmetic(self, text: str, key: str) -> int | float:
        try:
            return _number(ast.parse(text.strip().strip("'\""), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
            raise self._error(key, f"is not arithmetic on numbers, and was not evaluated: {text[:80]}") from None

    def _load(self, name: str, key: str) -> list[Any]:
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise self._error(key, f"names a file outside {self.root}: {name}")
        loaded = _read(path)
        return list(loaded) if isinstance(loaded, list | dict) else [loaded]

    def _error(self, key: str, what: str) -> ModelError:
        return ModelError(f"key {key} {what}", where=str(self.path), fix=FIX)


def _arguments(text: str) -> list[str]:
    """Parts at the commas outside of brackets."""
    parts, level = [""], 0
    for character in text:
        level += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and not level:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _number(node: ast.AST) -> int | float:
    """Value of a syntax tree of numbers and + - * / // %. Raises ValueError for anything else."""
    found: int | float
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        found = node.value
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        found = _OPERATORS[type(node.op)](_number(node.left), _number(node.right))
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        found = _OPERATORS[type(node.op)](_number(node.operand))
    else:
        raise ValueError(type(node).__name__)
    if not abs(found) <= LARGEST:
        raise ValueError("too large")
    return found


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ModelError(f"larger than {MAX_BYTES} bytes: not a config", where=str(path), fix=FIX)
        return yaml.safe_load(content.decode("utf-8"))
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", where=str(path), fix=FIX) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"not readable as plain YAML: {error}", where=str(path), fix=FIX) from None
