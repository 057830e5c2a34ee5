"""`levo doctor`: one screen that says whether songs can be made on this machine, and what to mend if not.

Each check is a function that gives findings and never raises; what it looks at is passed in, so that tests can show it
machines that are not here.
"""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from levo.errors import EXIT_FAILED, EXIT_OK, EXIT_USABLE
from levo.node.doctor.cluster import check_slurm
from levo.node.doctor.compute import check_gpus, check_kernels, check_machine, check_torch
from levo.node.doctor.finding import LEVELS, NOTE, PROBLEM, WARNING, Finding
from levo.node.doctor.storage import check_audio, check_model, check_output


@dataclass(frozen=True)
class Diagnosis:
    """All findings, in the order of the checks."""

    findings: list[Finding]

    @property
    def exit_code(self) -> int:
        """0: nothing worse than a note. 6: usable, with warnings. 4: not usable."""
        worst = max((LEVELS.index(finding.level) for finding in self.findings), default=0)
        return {WARNING: EXIT_USABLE, PROBLEM: EXIT_FAILED}.get(LEVELS[worst], EXIT_OK)

    def __str__(self) -> str:
        widths = [max(len(getattr(f, name)) for f in self.findings) for name in ("level", "what")]
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.level:<{widths[0]}}  {finding.what:<{widths[1]}}  {finding.found}")
            if finding.fix:
                lines.append(f"{'':<{sum(widths) + 4}}-> {finding.fix}")
        counts = {level: sum(finding.level == level for finding in self.findings) for level in LEVELS}
        summary = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
        return "\n".join([*lines, f"{summary}; exit code {self.exit_code}"])


def doctor(model_dir: Path | None, out: Path, profile: str | None = None) -> Diagnosis:
    """Look at this machine, and around in the job that this runs in.

    model_dir: the model to be used, if there is one yet.  out: where songs will be written.  profile: as for Snakemake.
    """
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "machine": check_machine,
        "torch": check_torch,
        "GPU": check_gpus,
        "kernels": check_kernels,
        "model": lambda: check_model(model_dir),
        "audio": check_audio,
        "Slurm": lambda: check_slurm(profile),
        "output": lambda: check_output(out),
    }
    return Diagnosis([finding for what, check in checks.items() for finding in _run(what, check)])


def _run(what: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # one broken part of a machine must not hide the others
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        sentence = f"the check itself failed: {type(error).__name__}: {error} ({place})"
        return [Finding(NOTE, what, sentence, "report this line to the project")]
