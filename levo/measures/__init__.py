"""measures: samples in, numbers out (numpy). Knows nothing else."""
