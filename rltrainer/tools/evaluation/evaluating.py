"""Evaluation of a policy: whole episodes of it, and their statistics."""

from collections.abc import Callable, Sequence

import gymnasium as gym

from rltrainer.algorithms.meant_policy import Player, policy_of
from rltrainer.collect import CollectStats
from rltrainer.collect.episode_infos import checked_keys, with_success
from rltrainer.envs import AgentsAsEnvs
from rltrainer.envs.agents.parallel_env import ParallelEnv
from rltrainer.tools.evaluation.playing import Env, VectorEnv, play, vector_of

MOST_ENVS = 10


def evaluate_policy(
    policy: Player,
    envs: VectorEnv | Env | ParallelEnv | str | Callable[[], Env | ParallelEnv],
    episodes: int = 10,
    *,
    seed: int | None = None,
    info_keys: Sequence[str] = (),
    explore: bool = False,
    max_episode_steps: int | None = None,
) -> CollectStats:
    """Play whole episodes, and return what they came to: `returns`, `lengths`, summaries of both, `success_rate`.

    Each env plays its share of the episodes, so that short ones are not favoured. The policy does not learn anything
    from them, its normalisers neither.

    Args:
        policy: a policy, an algorithm, or the path of a file, of a checkpoint, or of a run's folder: its best.
        envs: a vector env in any autoreset mode; or a gymnasium id or a factory, of which as many envs as episodes are
            made, ten at most; or an env. Of a PettingZoo parallel env the agents share the policy, and each of them
            plays so many episodes; an `AgentsAsEnvs` is a vector env, whose episodes are those of single agents.
        episodes: how many.
        seed: of the episodes, where the envs have none of their own (`make_vec(seed=)`); with one of the two, each call
            plays the same ones, and without others each time, as `rl.seed` says.
        info_keys: of further numbers in the infos with which episodes end, for `infos` and `info_means`. What
            `success_rate` is made of is read anyway: `is_success`, or else `success`.
        explore: whether the policy explores.
        max_episode_steps: truncates an episode that gets as long as this; None waits for its end.

    Returns:
        the statistics of exactly these episodes.

    Raises:
        ParamsError: an argument breaks its rule.
        SpaceError: the policy was made for other spaces.
        EnvError, NonFiniteError: an env failed.
        CheckpointError: see `rl.load_policy`.
    """
    owner = "evaluate_policy"
    player, keys = policy_of(owner, policy), checked_keys(owner, info_keys)

    def played(vector: VectorEnv, per_env: int = 1) -> CollectStats:
        return play(owner, player, with_success(vector, keys), episodes, seed, explore, max_episode_steps, per_env)

    if isinstance(envs, gym.vector.VectorEnv):
        return played(envs)
    num_envs = min(episodes, MOST_ENVS) if isinstance(episodes, int) and episodes > 0 else 1
    with vector_of(owner, envs, player, num_envs) as vector:
        return played(vector, vector.num_agents if isinstance(vector, AgentsAsEnvs) else 1)
