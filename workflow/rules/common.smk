# Settings, names and paths. Reads the settings only: never the manifest, so that a million songs parse as fast as ten.
import gc
import os
import sys
from pathlib import Path

import levo.node.ended_jobs
import levo.node.site
import levo.settings
from levo.errors import LevoError

# A graph of thousands of jobs is all live objects: looking through them less often plans it a sixth faster.
gc.set_threshold(200_000)

# `python -m levo` in a rule is this checkout's code under the interpreter that runs Snakemake, on a node too.
os.environ.update(
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    ),
    PYTHONPATH=os.pathsep.join(
        filter(None, [workflow.basedir, os.environ.get("PYTHONPATH")])
    ),
)


# With `software-deployment-method: apptainer` in the profile, rules run in this image: a path or an address.
IMAGE = os.environ.get("LEVO_IMAGE")


container: IMAGE


def friendly(call, *arguments, **named):
    """Call and return; what a user can mend is said in three lines, without a traceback."""
    try:
        return call(*arguments, **named)
    except LevoError as error:
        sys.exit(f"{error}")


settings = friendly(
    levo.settings.load, config, where="config/config.yaml, --configfile or --config"
)

RUN = Path("results") / settings.run
SHARDS = [f"{number:05d}" for number in range(settings.plan.n_shards)]
TABLES = ["tokens", "audio", "provenance"]
MODEL = Path(settings.model)
TINY_MODEL = Path("models/tiny")

# Said at parsing, so that a dry run says it too, and "Nothing to be done" never hides an ignored change.
friendly(levo.settings.refuse_change, settings, RUN)

HELP_AFTER_FAILURE = f"""
What was made is kept. Mend the cause, then run the same command again: only what is missing is made.
  what happened   {RUN}/logs, and each attempt of a shard in {RUN}/work/NNNNN
  locked?         add --unlock once, if no other snakemake works in this folder
"""


def tries(number):
    """Retries of a rule. Counted by the Snakemake in front only: each job is two more, one inside the other, and a shard
    whose time is up would be begun again and again within the same job."""
    return number if workflow.is_main_process else 0


def check_site():
    """Before the first job: an image, if the profile wants one, and on Slurm all that it asks for."""
    methods = workflow.deployment_settings.deployment_method
    if any(method.name == "APPTAINER" for method in methods) and not IMAGE:
        sys.exit(
            "the profile wants containers, but no image is named\n  where: environment variable LEVO_IMAGE\n"
            "  fix:   export LEVO_IMAGE=/path/of/levo.sif"
        )
    if workflow.executor_plugin.name != "slurm":
        return
    from snakemake.cli import get_profile_dir, get_argument_parser

    jobs = {
        job.rule.name: job for job in workflow.dag.needrun_jobs() if not job.is_local
    }
    orders = [
        levo.node.site.Order(name, dict(job.resources.items()))
        for name, job in jobs.items()
    ]
    given = get_argument_parser().parse_known_args(sys.argv[1:])[0]
    profiles = [get_profile_dir(name)[1] for name in given.profile or []]
    for warning in friendly(
        levo.node.site.check_site, orders, profiles, settings.cost.gpus_per_node
    ):
        print(f"note: {warning}", file=sys.stderr)
    levo.node.ended_jobs.mend_status_answers()


def start_run():
    """The RUN keeps the settings that it is made with."""
    friendly(levo.settings.freeze, settings, RUN)


wildcard_constraints:
    shard=r"\d{5}",
