"""node: one shard on one node: ranks, parts, audio, provenance. Knows no logits.

Where to look, from the outside in:

* the shard's process: shard (the order of things), attempt, dispatch, fleet, messages, progress, deadline, stopping
* a rank: rank, making (model and engine), rows, writing, audio, machine, kernel_cache
* GPUs, cores and memory of the ranks: devices (who gets what), driver, nvml, binding
* the work folder: paths (all names), parts, journal, tally, ledger, lease, standing, tables
* sealing: seal, provenance (all columns), retry
* Slurm: slurm (its commands), slurm_job (the job around this process), profile (what a profile asks for), site (whether
  the cluster has it), ended_jobs (what the plugin does not see)
* verbs without a shard: verify, remake, render, sing, doctor (a folder)
* for tests: faults (break a process at a named moment)
"""
