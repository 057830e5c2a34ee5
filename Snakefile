# The front door: settings in, songs and a page out. The rules lie in workflow/rules, one file a stage.
from snakemake.utils import min_version

min_version("9.16")


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
    check_cluster()
    start_run()


onerror:
    print(HELP_AFTER_FAILURE)
