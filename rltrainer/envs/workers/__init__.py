"""Vector envs that step in worker processes."""
