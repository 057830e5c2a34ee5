# One job = one shard = one node. Work in progress lies in RUN/work/NNNNN, which is no declared output, so Snakemake
# never deletes it; each attempt's own log lies there too, because Snakemake deletes `log` before a retry.


rule generate:
    input:
        # ancient: a touched manifest plans anew, and must not make a month of songs again.
        plan=ancient(RUN / "plan/shards.parquet"),
        model=ancient(MODEL / "model.json"),
    output:
        tokens=RUN / "shards/{shard}/tokens.parquet",
        audio=RUN / "shards/{shard}/audio.parquet",
        provenance=RUN / "shards/{shard}/provenance.parquet",
    log:
        RUN / "logs/generate/{shard}.log",
    benchmark:
        RUN / "benchmarks/generate/{shard}.tsv"
    # Exit 75 means "more to do": the time limit came first. levo itself ends a shard that makes no headway.
    retries: 10
    conda:
        "../envs/levo.yaml"
    threads: settings.node.ranks or 1
    resources:
        mem_mb=8000,
        # A number: Snakemake's default looks at the size of every input, twice as slow to plan.
        disk_mb=1000,
        runtime=1440,
    params:
        run=RUN,
    message:
        "making the songs of shard {wildcards.shard}"
    shell:
        "exec python -m levo shard {params.run} {wildcards.shard} > {log} 2>&1"
