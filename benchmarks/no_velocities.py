"""CartPole whose observation lacks both velocities: one step does not tell which way it moves, so memory is needed."""

from typing import Any

import gymnasium as gym
import numpy as np
from torch import Tensor

from rltrainer.envs.tensors.classic_control import CartPole


class NoVelocities(gym.ObservationWrapper[Any, Any, Any]):
    """Shows the position of the cart and the angle of the pole."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        space = self.env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[::2], space.high[::2], dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[::2]


class InGroups(gym.ObservationWrapper[Any, Any, Any]):
    """Shows all, as a Dict of places and velocities: a student may see the places, and its teacher both."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        space = self.env.observation_space
        assert isinstance(space, gym.spaces.Box)
        places, velocities = (gym.spaces.Box(space.low[k::2], space.high[k::2], dtype=np.float32) for k in (0, 1))
        self.observation_space = gym.spaces.Dict(places=places, velocities=velocities)

    def observation(self, observation: Any) -> Any:
        return {"places": observation[::2], "velocities": observation[1::2]}


class TensorNoVelocities(CartPole):
    """The same as functions of tensors."""

    observation_space = NoVelocities().observation_space

    def observe(self, state: Tensor) -> Tensor:
        return state[:, ::2]
