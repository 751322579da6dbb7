"""The interface of an env's rules as functions of tensors."""

from abc import ABC, abstractmethod

import gymnasium as gym
from torch import Tensor

from rltrainer.tree import Tree


class TensorEnv(ABC):
    """The rules of an env as pure functions of tensors, for N copies at once; a `TensorVectorEnv` steps them.

    ```
    class Walk(rl.TensorEnv):  # from the middle of a line to one of its ends
        observation_space = gym.spaces.Box(-10.0, 10.0, (1,))
        action_space = gym.spaces.Discrete(2)
        max_episode_steps = 100
        num_first_uniforms = 1

        def first_state(self, uniform):
            return 2.0 * uniform - 1.0

        def transition(self, state, action, uniform):
            position = state + torch.where(action[:, None] == 1, 1.0, -1.0)
            is_at_end = position.abs().squeeze(-1) >= 10.0
            return position.clamp(-10.0, 10.0), is_at_end.float(), is_at_end

    envs = rl.make_vec(Walk, num_envs=4096, backend="tensor", device="cuda")
    ```

    The functions become parts of compiled graphs: they choose with `torch.where` and not with `if`, change no argument
    in place, and draw no random numbers but take them as an argument. They make constants on the device of their
    arguments, or use Python's numbers. A state is a tensor [N, ...], or a tree of such tensors; its shapes and dtypes
    never change.
    """

    observation_space: gym.Space[object]
    """The space of one env; so is `action_space`."""
    action_space: gym.Space[object]
    max_episode_steps: int | None = None
    """The number of steps after which an episode is truncated; the rules do not count them."""
    num_first_uniforms: int
    """Number of uniform random numbers in [0, 1) that the first state of an episode takes."""
    num_step_uniforms: int = 0
    """Number of uniform random numbers in [0, 1) that a transition takes."""

    @abstractmethod
    def first_state(self, uniform: Tensor) -> Tree:
        """Return first states, a tree [N, ...], from random numbers [N, num_first_uniforms]."""

    def observe(self, state: Tree) -> Tree:
        """Return the observations of states, a tree [N, ...] of the space's dtypes: the states, if not overridden."""
        return state

    @abstractmethod
    def transition(self, state: Tree, action: Tensor, uniform: Tensor) -> tuple[Tree, Tensor, Tensor]:
        """Return the next states, the rewards [N] float32, and whether the episode terminated [N] bool.

        `action` [N, ...] has the dtype of the action space, and `uniform` is [N, num_step_uniforms]. An episode that
        ends is not reset here.
        """
