"""Envs as batched collection needs them: each steps, and begins its episodes, by itself, as soon as it can."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rltrainer.errors import SpaceError
from rltrainer.tree import Tree

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class Answers:
    """The envs that have done what they were told.

    Args:
        stepped: whose step is done, those that failed in it too.
        restarted: that failed in their step and were made anew: no transition took place.
        begun: that have begun an episode.
    """

    stepped: list[int]
    restarted: list[int]
    begun: list[int]


class EnvStreams(Protocol):
    """N envs that are told what to do and asked later; an env is told nothing before it has answered.

    Attributes:
        obs: tree [N, ...].
        reward: [N].
        terminated, truncated: [N] bool. All four hold what each env's last answer brought, until it is told something
            else.
    """

    obs: Tree
    reward: Array
    terminated: Array
    truncated: Array

    def step(self, envs: list[int], actions: Array, numbers: list[int]) -> None:
        """Let envs take a step with actions [K, ...]; the numbers of these steps are for errors."""

    def reset(self, env: int, seed: int | None, number: int) -> None:
        """Let an env begin an episode, after so many steps."""

    def receive(self, timeout: float | None, max_steps: int) -> Answers:
        """Hear who has answered, but of steps only so many; where nobody has, wait for the first.

        Args:
            timeout: seconds to wait at most; None waits as long as it takes.
            max_steps: what is beyond is heard the next time.

        Raises:
            EnvError: an env failed.
            SpaceError: an env returned what does not fit its spaces, or the rewards of several agents.
        """

    def last_info(self, env: int) -> tuple[dict[str, Any], int]:
        """Return the infos that an env's last step came with, gathered as gymnasium does, and its row there."""

    def drain(self) -> None:
        """Wait until all have answered, and forget it; errors are those of `receive`."""


def several_agents(env: int, shape: tuple[int, ...]) -> SpaceError:
    """Return the error of an env that rewards several agents."""
    return SpaceError(
        f"env {env} reward: shape {shape} is several agents'; no algorithm trains on them. Reduce them to one reward "
        "in a wrapper, or test with a Collector."
    )
