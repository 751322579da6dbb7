"""Envs of several agents, as PettingZoo's parallel envs are: each agent as an env, or all of them as one."""
