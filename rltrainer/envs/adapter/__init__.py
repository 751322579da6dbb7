"""The adapter: it stands between a vector env and everything else."""
