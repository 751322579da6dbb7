"""Worker processes: one kind for envs, for collectors and for runs."""
