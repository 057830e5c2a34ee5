# Manifest to plan: songs or a reason for every row, then shards, then what they will cost.
# `update`: when one of these fails, the former files stay.


rule check:
    input:
        manifest=settings.manifest,
        model=MODEL / "model.json",
        lengths=settings.plan.length_model or [],
    output:
        songs=update(RUN / "manifest/songs.parquet"),
        rejected=update(RUN / "manifest/rejected.parquet"),
    log:
        RUN / "logs/check.log",
    benchmark:
        RUN / "benchmarks/check.tsv"
    # Not for the manifest, which stays as bad as it is: for a job that Slurm refuses once.
    retries: 2
    conda:
        "../envs/levo.yaml"
    resources:
        mem_mb=8000,
        runtime=120,
    params:
        out=RUN / "manifest",
    message:
        "checking {input.manifest}"
    shell:
        "exec python -m levo check {input.manifest:q} --out {params.out} 2>&1 | tee {log}"


rule plan:
    input:
        songs=RUN / "manifest/songs.parquet",
        # Another calibration balances new plans better; it is no reason to make a plan again.
        speed=ancient(settings.cost.calibration),
    output:
        update(RUN / "plan/shards.parquet"),
    log:
        RUN / "logs/plan.log",
    benchmark:
        RUN / "benchmarks/plan.tsv"
    retries: 0
    conda:
        "../envs/levo.yaml"
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        run=RUN,
    message:
        "planning the shards of {params.run}"
    shell:
        "exec python -m levo plan {params.run} > {log} 2>&1"


rule estimate:
    input:
        plan=RUN / "plan/shards.parquet",
        speed=settings.cost.calibration,
    output:
        RUN / "plan/estimate.json",
    log:
        RUN / "logs/estimate.log",
    benchmark:
        RUN / "benchmarks/estimate.tsv"
    retries: 0
    conda:
        "../envs/levo.yaml"
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        run=RUN,
    message:
        "estimating the cost of {params.run}: {output}"
    shell:
        "exec python -m levo estimate {params.run} 2>&1 | tee {log}"
