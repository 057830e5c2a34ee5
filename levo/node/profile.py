"""What a profile asks Slurm for: of each rule, for the doctor; of a node job, for jobs beside Snakemake's.

Read from profiles/NAME/config.yaml, as Snakemake reads it: `default-resources`, then `set-resources: generate`, as
mappings or as lists of "name=value"; a string may carry quotes of its own. Submits nothing.
"""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from levo.errors import ConfigError

RULE, DEFAULT_RULE = "generate", "check"
"""The rule of a node job, and one that a profile leaves to its defaults."""

Options = dict[str, str | bool]
_SBATCH = {
    "slurm_account": "account",
    "slurm_partition": "partition",
    "qos": "qos",
    "constraint": "constraint",
    "gres": "gres",
    "cpus_per_task": "cpus-per-task",
}
"""Snakemake's resource -> sbatch's option."""

_MINUTES = {"s": 1 / 60, "m": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60}
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])[a-z]*")
WHOLE_NODE = ("exclusive", "cpus-per-task", "mem")


@dataclass(frozen=True)
class Profile:
    """path: of its config.yaml.  rules: what each rule asks for, by Snakemake's names.

    options: of a node job, sbatch's long options without their dashes; True for one without a value.
    is_requeued: whether Slurm shall start it again after the loss of its node.
    """

    path: Path
    rules: Mapping[str, Mapping[str, Any]]
    options: Options
    is_requeued: bool = False


def read_profile(name: str) -> Profile:
    """Raises ConfigError when it cannot be read."""
    path = _find(name)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        default = dict(_pairs(content.get("default-resources")))
        own = {rule: dict(_pairs(asked)) for rule, asked in (content.get("set-resources") or {}).items()}
    except (OSError, yaml.YAMLError, UnicodeDecodeError, AttributeError, TypeError, ValueError) as error:
        fix = "mend it; profiles/README.md shows the form"
        raise ConfigError(f"no readable profile: {error}", where=str(path), fix=fix) from None
    rules = {rule: default | own.get(rule, {}) for rule in (DEFAULT_RULE, RULE, *own)}
    for rule, asked in rules.items():
        if asked.get("runtime") is not None and minutes(asked["runtime"]) is None:
            fix = "write minutes as a number, or e.g. 12h"
            raise ConfigError(f"runtime {asked['runtime']!r} is no time", where=f"{path}, rule {rule}", fix=fix)
    return Profile(path, rules, _options(rules[RULE]), content.get("slurm-requeue") is True)


def minutes(runtime: object) -> float | None:
    """Minutes of 90, "90" or "12h", as Snakemake understands them; None when it is no time."""
    text = str(runtime).strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    found = _NUMBER_AND_UNIT.fullmatch(text)
    return float(found[1]) * _MINUTES[found[2]] if found else None


def _options(asked: Mapping[str, Any]) -> Options:
    options: Options = {ours: str(asked[name]) for name, ours in _SBATCH.items() if asked.get(name) not in (None, "")}
    if str(asked.get("mem_mb") or 0) != "0":  # as for Snakemake: 0 asks for none
        options["mem"] = f"{asked['mem_mb']}M"
    # submitit sends a signal of its own before the end.
    extra = dict(_flags(str(asked.get("slurm_extra") or "")))
    return options | {flag: value for flag, value in extra.items() if flag != "signal"}


def part_of_node(options: Options, gres: str) -> Options:
    """The same job with other GPUs. Fewer than before get their share of cores and memory, and the node is shared."""
    before, now = (_n_gpus(str(text)) for text in (options.get("gres", ""), gres))
    changed: Options = {**options, "gres": gres}
    if not now or now >= before:
        return changed
    for name in WHOLE_NODE:
        value = changed.pop(name, None)
        number = re.fullmatch(r"(\d+)([A-Z]?)", str(value))
        if number:
            changed[name] = f"{max(1, int(number[1]) * now // before)}{number[2]}"
    return changed


def with_options(profile: Profile | None, given: Sequence[str]) -> Options:
    """A profile's options with a user's own NAME=VALUE (or NAME) put over them."""
    options: Options = dict(profile.options) if profile else {}
    for flag, value in _flags(" ".join(f"--{shlex.quote(text)}" for text in given)):
        if flag == "time":
            raise ConfigError("the time limit has an option of its own", where="--sbatch", fix="use --minutes")
        options = part_of_node(options, str(value)) if flag == "gres" else {**options, flag: value}
    return options


def _find(name: str) -> Path:
    """As Snakemake: a folder or link of that name here, else in profiles/."""
    candidates = [Path(name), Path("profiles") / name]
    for path in candidates:
        if (path / "config.yaml").is_file():
            return path / "config.yaml"
    places = " and ".join(f"{path}/config.yaml" for path in candidates)
    raise ConfigError(f"no profile {name!r}", where=places, fix="name a folder of profiles/, e.g. --profile gh200")


def _pairs(resources: Mapping[str, Any] | list[str] | None) -> Iterator[tuple[str, Any]]:
    if isinstance(resources, list):
        pairs = [tuple(text.split("=", 1)) for text in resources]
        resources = {name: value for name, value in pairs}
    for name, value in (resources or {}).items():
        yield name, _unquoted(value) if isinstance(value, str) else value


def _unquoted(text: str) -> str:
    """Snakemake evaluates a string as Python: "'gpu:4'" is gpu:4. What is no literal stays as it is."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _flags(text: str) -> Iterator[tuple[str, str | bool]]:
    """Of "--exclusive --mail-type=END": ("exclusive", True), ("mail-type", "END")."""
    for word in shlex.split(text):
        flag, has_value, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not flag:
            raise ConfigError(
                f"{word!r} is not --NAME or --NAME=VALUE", where="slurm_extra or --sbatch", fix="write it so"
            )
        yield flag, value if has_value else True


def _n_gpus(gres: str) -> int:
    """GPUs of "gpu:4", "gpu:gh200:4" or "gpu"; 0 if it names none."""
    counts = [int(n or 1) for n in re.findall(r"(?:^|,)gpu(?::[a-z][\w-]*)?(?::(\d+))?(?=,|$)", gres)]
    return sum(counts)
