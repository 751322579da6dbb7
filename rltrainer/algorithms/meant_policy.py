"""The policy that is meant where one is asked for: an object, or what one was saved to."""

import os
from pathlib import Path

import gymnasium as gym

from rltrainer.algorithms.algorithm import Algorithm
from rltrainer.algorithms.load_file import load_policy
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.nets import Policy

Player = Policy | Algorithm | str | os.PathLike[str]
"""A policy, an algorithm, or what one was saved to: a file, the folder of a run, a checkpoint."""


def policy_of(owner: str, player: Player) -> Policy:
    """Return the policy that is meant; of the folder of a run that of the best algorithm, read from its file.

    Args:
        owner: who asks, for errors.
        player: a policy, an algorithm, or the path of a file, of a checkpoint, or of a run's folder.

    Raises:
        ParamsError: it is none of what a policy is known by.
        CheckpointError: see `rl.load_policy`.
    """
    if isinstance(player, Algorithm):
        return player.policy
    if isinstance(player, Policy):
        return player
    rule = "must be a policy, an algorithm, or the path of a file or folder that one was saved to"
    if not isinstance(player, str | os.PathLike) or not str(player):
        is_env = isinstance(player, gym.Env | gym.vector.VectorEnv)
        hint = f"The policy comes first: {owner}(policy, env)." if is_env else ""
        raise ParamsError(field_error_text(owner, "policy", rule, player, hint))
    path = Path(player)
    if str(player) in gym.registry and not path.exists():
        hint = f"It is the id of an env; the policy comes first: {owner}(policy, env)."
        raise ParamsError(field_error_text(owner, "policy", rule, player, hint))
    return load_policy(path)
