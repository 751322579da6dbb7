"""What stands between a vector env and everything else."""
