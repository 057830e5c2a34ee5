"""What a figure was measured on, and how a bench speaks: a table for people, then one line of JSON."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table

from levo.node.machine import driver_version


def card() -> dict[str, Any]:
    """GPU, driver-side versions, host CPU; null where there is no GPU."""
    import torch  # late: a sweep is gathered where no GPU is, and torch takes seconds

    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "gpu": gpu.name if gpu else None,
        "gpu_gib": round(gpu.total_memory / 2**30, 1) if gpu else None,
        "driver": driver_version() if gpu else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": version("triton") if gpu else None,
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
    }


def cpu_name() -> str:
    """Model of the host's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def show(title: str, rows: list[dict[str, Any]], result: dict[str, Any]) -> None:
    """Print a table of the rows, then one JSON line with everything."""
    print_table(title, rows)
    print(json.dumps({"bench": title, "card": card(), "rows": rows, **result}), flush=True)


def print_table(title: str, rows: Sequence[Mapping[str, Any]], width: int = 140) -> None:
    """A column for each name of the fullest row, in its order, that any row has a value for."""
    names = [name for name in max(rows, key=len) if any(row.get(name) not in (None, "") for row in rows)]
    table = Table(title=title)
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in names))
    Console(width=width).print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)
