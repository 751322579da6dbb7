"""Wrappers of single envs, for `make_vec(..., wrappers=...)`."""
