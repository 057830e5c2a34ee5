# The tiny random model of the demo. A real model directory comes from the user and is made by no rule.


rule tiny_model:
    output:
        TINY_MODEL / "model.json",
    log:
        "models/tiny.log",
    benchmark:
        "models/tiny.benchmark.tsv"
    retries: 0
    conda:
        "../envs/levo.yaml"
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        model=TINY_MODEL,
    message:
        "writing a tiny random model to {params.model}"
    shell:
        "exec python -m levo model tiny {params.model:q} > {log} 2>&1"
