# Finished shards to numbers and one page.


rule qa:
    input:
        tokens=RUN / "shards/{shard}/tokens.parquet",
        audio=RUN / "shards/{shard}/audio.parquet",
        provenance=RUN / "shards/{shard}/provenance.parquet",
    output:
        RUN / "qa/{shard}.parquet",
    log:
        RUN / "logs/qa/{shard}.log",
    benchmark:
        RUN / "benchmarks/qa/{shard}.tsv"
    retries: tries(1)
    conda:
        "../envs/levo.yaml"
    # Files at once. 3 minutes of sound take 1.5 s: 2.6 hours for the 97,000 songs that four H200s make in a day.
    threads: 16
    resources:
        mem_mb=16000,
        disk_mb=1000,
        runtime=240,
    params:
        run=RUN,
    message:
        "measuring the audio of shard {wildcards.shard}"
    shell:
        "exec python -m levo qa {params.run} {wildcards.shard} --processes {threads} > {log} 2>&1"


rule report:
    input:
        estimate=RUN / "plan/estimate.json",
        rejected=RUN / "manifest/rejected.parquet",
        provenance=expand(RUN / "shards/{shard}/provenance.parquet", shard=SHARDS),
        qa=expand(RUN / "qa/{shard}.parquet", shard=SHARDS),
    output:
        page=report(
            RUN / "reports/report.html", caption="../report/page.rst", category="Run"
        ),
        cost=report(
            RUN / "reports/cost.json", caption="../report/cost.rst", category="Run"
        ),
        qa=report(RUN / "reports/qa.json", caption="../report/qa.rst", category="Run"),
    log:
        RUN / "logs/report.log",
    benchmark:
        RUN / "benchmarks/report.tsv"
    retries: tries(1)
    conda:
        "../envs/levo.yaml"
    resources:
        mem_mb=8000,
        runtime=120,
    params:
        run=RUN,
    message:
        "writing the page {output.page}"
    shell:
        "exec python -m levo report {params.run} > {log} 2>&1"
