"""The same probes with envs of tensors: values and actions are learned from whole rollouts that lie on the device."""

from typing import Any

import pytest
import torch

import rltrainer as rl
from tests.probe import tensor_envs as probes
from tests.probe.test_probes import ALGORITHMS, GAMMA, SIGNS, assert_actions, run, values

pytestmark = pytest.mark.full  # some half a second each

NAMES = [
    name
    for name in ALGORITHMS
    if name.removesuffix("_box") in ("ppo", "a2c", "impala", "trpo", "recurrent_ppo", "reinforce", "dqn", "sac")
]
WITH_VALUES = [name for name in NAMES if ALGORITHMS[name][1] is not None]


def train(name: str, env: type[probes.TensorProbe]) -> Any:
    rl.seed(0)
    make, _, continuous = ALGORITHMS[name]
    envs = rl.make_vec(lambda: env(continuous), 8, backend="tensor", seed=3)
    algorithm = make(envs)
    run(algorithm, envs)
    return algorithm


@pytest.mark.parametrize("name", WITH_VALUES)
def test_constant_reward(name: str) -> None:
    assert values(name, train(name, probes.ConstantReward), [[0.0]]) == pytest.approx([1.0], abs=0.1)


@pytest.mark.parametrize("name", WITH_VALUES)
def test_value_from_obs(name: str) -> None:
    assert values(name, train(name, probes.ValueFromObs), SIGNS) == pytest.approx([-1.0, 1.0], abs=0.15)


@pytest.mark.parametrize("name", WITH_VALUES)
def test_discounting(name: str) -> None:
    assert values(name, train(name, probes.Discounting), [[0.0], [1.0]]) == pytest.approx([GAMMA, 1.0], abs=0.12)


@pytest.mark.parametrize("name", NAMES)
def test_action_from_reward(name: str) -> None:
    assert_actions(train(name, probes.ActionFromReward), torch.zeros(1, 1), [1.0])


@pytest.mark.parametrize("name", NAMES)
def test_action_from_obs(name: str) -> None:
    assert_actions(train(name, probes.ActionFromObs), SIGNS, [-1.0, 1.0])
