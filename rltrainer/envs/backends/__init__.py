"""Vector envs that step in this process."""
