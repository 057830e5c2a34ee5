"""Files that are made from the code and never edited by hand. `make fix` writes them; a test compares them.

Knows where each fact is born; knows nothing of a run.
"""

import importlib.util
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from levo import settings

ROOT = Path(__file__).resolve().parent.parent

SETTINGS_HEAD = """\
# What is made

Generated from `levo/settings.py` by `make fix`.

`config.yaml` holds every setting with its default. Your own values go on the command line (`--config run=mine seed=1`,
a section as `--config plan='{{n_shards: 8}}'`) or in a file of your own (`--configfile mine.yaml`), which needs only
what differs. A wrong name is refused with the nearest right one. Where it runs is said by a
[profile](../profiles/README.md).

These shape the songs and cannot change once a RUN has shards: {shaping}.

| file here | what it is |
|---|---|
| `config.yaml` | every setting |
| `songs.example.jsonl` | songs of `make demo` |
| `songs.broken.jsonl` | one row for each reason to refuse a row |
| `calibration.brief.json` | speeds that estimates rest on until this machine is measured |
| `calibration.h200.json` | speeds of one H200, measured (docs/benchmarks/song.md) |

| setting | default | allowed | meaning |
|---|---|---|---|"""


def environment() -> str:
    """workflow/envs/levo.yaml: the same needs as pyproject.toml, for `snakemake --sdm conda`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        "# Generated from pyproject.toml by `make fix`. Only `--sdm conda` reads it; `make setup` does not.",
        "channels: [conda-forge, nodefaults]",
        "dependencies:",
        f'  - "python{project["requires-python"]}"',
        "  - pip",
        "  - pip:",
        *(f'      - "{need}"' for need in project["dependencies"]),
    ]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """config/README.md: every setting with its default, range and meaning."""
    lines = [SETTINGS_HEAD.format(shaping=", ".join(f"`{key}`" for key in settings.SHAPING))]
    schema = settings.Settings.model_json_schema()
    for name, entry in schema["properties"].items():
        if "$ref" in entry:
            section = schema["$defs"][entry["$ref"].rsplit("/", 1)[-1]]
            lines.append(f"| **{name}** | | | {section['description']} |")
            lines += [_setting(f"{name}.{key}", inner) for key, inner in section["properties"].items()]
        else:
            lines.append(_setting(name, entry))
    return "\n".join(lines) + "\n"


def _setting(name: str, entry: dict[str, Any]) -> str:
    bounds = {"minimum": ">= ", "exclusiveMinimum": "> ", "maximum": "<= ", "exclusiveMaximum": "< "}
    options = entry.get("anyOf", [entry])
    allowed = [sign + f"{option[bound]}" for option in options for bound, sign in bounds.items() if bound in option]
    allowed += [f"`{value}`" for option in options for value in option.get("enum", [])]
    allowed += ["null" for option in options if option["type"] == "null"]
    kind = next(option["type"] for option in options if option["type"] != "null")
    return f"| `{name}` | `{json.dumps(entry['default'])}` | {', '.join([kind, *allowed])} | {entry['description']} |"


def columns() -> str:
    """docs/provenance.md: every column with its type, unit and meaning."""
    from levo.node.provenance import columns_markdown

    return columns_markdown()


def files() -> dict[Path, Callable[[], str]]:
    """Every generated file, and what makes its text."""
    made: dict[Path, Callable[[], str]] = {
        ROOT / "config/config.yaml": settings.as_yaml,
        ROOT / "config/README.md": settings_page,
        ROOT / "workflow/schemas/config.schema.yaml": settings.as_schema,
        ROOT / "workflow/envs/levo.yaml": environment,
    }
    if importlib.util.find_spec("levo.node.provenance"):
        made[ROOT / "docs/provenance.md"] = columns
    return made


def main() -> None:
    """Write what differs."""
    for path, text in files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(), encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
