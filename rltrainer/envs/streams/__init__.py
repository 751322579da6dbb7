"""Single envs that are stepped each by itself: nobody waits for the slowest."""
