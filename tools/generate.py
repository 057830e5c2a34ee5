"""Files that are made from the code and never edited by hand. `make fix` writes them; a test compares them.

Knows where each fact is born; knows nothing of a run.
"""

import importlib.util
import tomllib
from collections.abc import Callable
from pathlib import Path

from levo import settings

ROOT = Path(__file__).resolve().parent.parent


def environment() -> str:
    """workflow/envs/levo.yaml: the same needs as pyproject.toml, for `snakemake --sdm conda`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        "# Generated from pyproject.toml by `make fix`. Only `--sdm conda` reads it; the venv of `make setup` does not.",
        "channels: [conda-forge, nodefaults]",
        "dependencies:",
        f'  - "python{project["requires-python"]}"',
        "  - pip",
        "  - pip:",
        *(f'      - "{need}"' for need in project["dependencies"]),
    ]
    return "\n".join(lines) + "\n"


def columns() -> str:
    """docs/provenance.md: every column with its type, unit and meaning."""
    from levo.node.provenance import columns_markdown

    return columns_markdown()


def files() -> dict[Path, Callable[[], str]]:
    """Every generated file, and what makes its text."""
    made: dict[Path, Callable[[], str]] = {
        ROOT / "config/config.yaml": settings.as_yaml,
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
