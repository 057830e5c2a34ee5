"""reports: cost, QA and the page, from finished shards. Knows no GPU.

Where to look:

* before a run: estimate
* during a run: status, status_text, shard_state (how one shard stands)
* after a run: report (the order of things), cost, summary, calibrate, qa (measures the files)
* the page: page, plots, players, tables, words
* Slurm: slurm (which jobs a RUN had), sacct, accounting, accounting_text
* for all of them: formulas (of the money), gather, sealed (tables of sealed shards)
"""
