"""A learner agent of a few lines: the daemon's tests need its files and exit codes, nothing else."""
