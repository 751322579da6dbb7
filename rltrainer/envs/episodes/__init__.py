"""Episodes of a run on disk, by the seeds and actions that made them, and repeated from there."""
