"""Envs with functions of tensors as rules: all copies are stepped at once, on the device of the policy."""

from rltrainer.envs.tensors.breakout import Breakout
from rltrainer.envs.tensors.classic_control import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum
from rltrainer.envs.tensors.tensor_env import TensorEnv

TENSOR_ENVS: dict[str, type[TensorEnv]] = {
    "CartPole-v1": CartPole,
    "Pendulum-v1": Pendulum,
    "Acrobot-v1": Acrobot,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "MinAtar/Breakout-v1": Breakout,
}
"""The rules of the ids that `make_vec(..., backend="tensor")` knows."""
