"""Bringing envs back to where they were: by their own states, or by the seeds and actions of their episodes."""
