"""`levo report`: the bill, the QA summary, the run's own calibration and the page, from the sealed shards of a RUN.

Slurm's second opinion is asked for where a shard was a Slurm job; that it cannot be had costs nothing but its lines.
"""

from pathlib import Path
from typing import Any

from levo.disk import write_json, write_text
from levo.node.paths import RunPaths
from levo.reports.accounting import compare
from levo.reports.calibrate import calibrate
from levo.reports.cost import account
from levo.reports.estimate import read_estimate
from levo.reports.gather import Run
from levo.reports.page import render
from levo.reports.slurm import gather
from levo.reports.status import read_status
from levo.reports.summary import summarise
from levo.settings import of_run


def account_slurm(run_dir: Path) -> dict[str, Any] | None:
    """Slurm's view of a RUN beside its own ledgers; None when no attempt was a Slurm job. Keeps Slurm's rows.

    Raises ConfigError when this is no RUN.
    """
    settings = of_run(run_dir)
    gathered = gather(run_dir, settings.plan.n_shards)
    if gathered is None:
        return None
    bills = {shard.number: shard.bill for shard in read_status(run_dir).shards}
    return compare(gathered, bills, settings.cost.gpus_per_node)


def report_run(run_dir: Path) -> Path:
    """Write RUN/reports; returns the page, which is written last.

    Raises ConfigError when this is no planned RUN, NodeError when no shard is finished or measured.
    """
    paths = RunPaths(run_dir)
    estimate = read_estimate(paths.estimate)
    run = Run.read(run_dir)
    cost, qa = {**account(run, estimate), "slurm": account_slurm(run_dir)}, summarise(run)
    speeds = calibrate(run, estimate)
    write_json(paths.reports / "cost.json", cost)
    write_json(paths.reports / "qa.json", qa)
    if speeds is not None:
        write_json(paths.reports / "calibration.json", speeds.model_dump())
    page = paths.reports / "report.html"
    write_text(page, render(run, cost, qa, estimate))
    return page
