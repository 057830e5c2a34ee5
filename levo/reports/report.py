"""`levo report`: the bill, the QA summary, the run's own calibration and the page, from the sealed shards of a RUN."""

from pathlib import Path

from levo.node.paths import RunPaths
from levo.reports.calibrate import calibrate
from levo.reports.cost import account
from levo.reports.estimate import read_estimate
from levo.reports.files import write_json, write_text
from levo.reports.gather import Run
from levo.reports.page import render
from levo.reports.summary import summarise


def report_run(run_dir: Path) -> Path:
    """Write RUN/reports; returns the page, which is written last.

    Raises ConfigError when this is no planned RUN, NodeError when no shard is finished or measured.
    """
    paths = RunPaths(run_dir)
    estimate = read_estimate(paths.estimate)
    run = Run.read(run_dir)
    cost, qa = account(run, estimate), summarise(run)
    speeds = calibrate(run, estimate)
    write_json(paths.reports / "cost.json", cost)
    write_json(paths.reports / "qa.json", qa)
    if speeds is not None:
        write_json(paths.reports / "calibration.json", speeds.model_dump())
    page = paths.reports / "report.html"
    write_text(page, render(run, cost, qa, estimate))
    return page
