"""Envs whose rules are functions of tensors: all copies are stepped at once, on the device of the policy."""

from rltrainer.envs.tensors.classic_control import CartPole
from rltrainer.envs.tensors.tensor_env import TensorEnv

TENSOR_ENVS: dict[str, type[TensorEnv]] = {"CartPole-v1": CartPole}
"""The rules of the ids that `make_vec(..., backend="tensor")` knows."""
