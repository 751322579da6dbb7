"""A recipe of each algorithm, whatever it learns from."""

from typing import Any

import rltrainer as rl
from rltrainer.tools.recipes import AnyRecipe
from rltrainer.tools.recipes.algorithms import ALGORITHMS, OFFLINE


def any_recipe(algorithm: str) -> AnyRecipe:
    """Return the shortest recipe of an algorithm, by its name: in CartPole, or from a file that is not there."""
    fields: dict[str, Any] = {"algorithm": algorithm, "params": ALGORITHMS[algorithm].params_class()}
    if algorithm in OFFLINE:
        return rl.OfflineRecipe(**fields, data="nowhere.npz")
    return rl.Recipe(**fields, env="CartPole-v1", num_env_steps=1)


def logged(env: str = "Pendulum-v1", num_steps: int = 60) -> rl.ReplayBuffer:
    """Return random transitions of two envs, whose episodes have at most 20 steps."""
    envs = rl.make_vec(env, num_envs=2, seed=1, max_episode_steps=20)
    log = rl.ReplayBuffer(num_steps, envs.single_observation_space, envs.single_action_space, num_envs=2, seed=1)
    policy: Any = rl.QNetwork if env == "CartPole-v1" else rl.SquashedActorCritic
    rl.Collector(policy.for_envs(envs), envs, log).collect(num_steps=num_steps, random=True)
    envs.close()
    return log
