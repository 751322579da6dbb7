"""Films of envs: what they render, streamed into files."""
