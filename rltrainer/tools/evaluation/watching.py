"""A window in which a policy plays."""

from collections.abc import Callable
from typing import Any

from rltrainer.algorithms.meant_policy import Player, policy_of
from rltrainer.collect import CollectStats
from rltrainer.envs.agents.parallel_env import ParallelEnv
from rltrainer.errors import EnvError, ParamsError
from rltrainer.tools.evaluation.frames import has_display
from rltrainer.tools.evaluation.playing import Env, play, vector_of


def watch(
    policy: Player,
    env: Env | ParallelEnv | str | Callable[[], Env | ParallelEnv],
    *,
    episodes: int = 1,
    max_episode_steps: int | None = None,
    seed: int | None = None,
    explore: bool = False,
) -> CollectStats:
    """Show whole episodes of a policy in a window, as fast as the env's own `"human"` rendering does.

    Args:
        policy: a policy, an algorithm, or the path of a file, of a checkpoint, or of a run's folder: its best.
        env: a gymnasium id; or a factory of an env, or an env, made with `render_mode="human"`. An env stays open.
            Of a PettingZoo parallel env the agents share the policy, as in `rl.record`.
        episodes: how many.
        max_episode_steps: cuts an episode that would be longer; None waits for its end.
        seed: of the episodes; with one, each call plays the same.
        explore: whether the policy explores.

    Returns:
        what the episodes came to.

    Raises:
        ParamsError: an argument breaks its rule, or the env has no window.
        EnvError: there is no display, or the env failed.
    """
    owner = "watch"
    player = policy_of(owner, policy)
    if not has_display():
        text = "watch: there is no display for a window (neither DISPLAY nor WAYLAND_DISPLAY is set)"
        raise EnvError(f"{text}. rl.record(policy, env, path) writes a video without one.")

    def shown(made: Any) -> Any:
        if made.render_mode != "human":
            hint = 'Make it with render_mode="human", or pass the id: it is made so.'
            raise ParamsError(f"watch.env: must show a window; got render_mode={made.render_mode!r}. {hint}")
        return made

    with vector_of(owner, env, player, wrappers=[shown], render_mode="human") as envs:
        return play(owner, player, envs, episodes, seed, explore, max_episode_steps, envs.num_envs)
