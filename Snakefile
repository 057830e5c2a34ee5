# The front door: settings in, songs and a page out. The rules lie in workflow/rules, one file a stage.
import os
import sys

from snakemake.utils import min_version

min_version("9.16")

# The settings' paths and the profile's name hold at the root of the checkout only.
root = os.path.realpath(workflow.basedir)
if os.path.realpath(os.getcwd()) != root:
    sys.exit(
        f"snakemake works at the root of the checkout only\n  where: {os.getcwd()}\n"
        f"  fix:   cd {root} && snakemake --profile gh200\n"
        "         (for results elsewhere, make results a link to that folder)"
    )


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/model.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/generate.smk"
include: "workflow/rules/report.smk"


# Of a few seconds: no cluster job is worth it.
localrules:
    all,
    tiny_model,
    plan,
    estimate,


rule all:
    input:
        RUN / "plan/estimate.json",
        # Named here too, not only behind qa: a deleted or retried shard is missing although its measures are there.
        expand(RUN / "shards/{shard}/{table}.parquet", shard=SHARDS, table=TABLES),
        expand(RUN / "qa/{shard}.parquet", shard=SHARDS),
        expand(RUN / "reports/{name}", name=["report.html", "cost.json", "qa.json"]),


onstart:
    check_site()
    start_run()


onerror:
    print(HELP_AFTER_FAILURE)
