"""Policies that are asked or changed in ways they do not follow: an error that says what to do instead."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
PARTS = gym.spaces.Dict(a=OBS, b=gym.spaces.Tuple((gym.spaces.Discrete(2), OBS)))
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


def make(space: gym.Space[Any] = OBS) -> rl.ActorCritic:
    return rl.ActorCritic.for_spaces(space, BOX, hidden_sizes=(4,))


@pytest.mark.parametrize(
    ("space", "obs", "text"),
    [
        (
            OBS,
            np.zeros((1, 3), np.float32),
            r"obs: expected a tensor \('N', 3\), got array\(.*\. policy\.predict\(obs\) t",
        ),
        (OBS, [0.0, 0.0, 0.0], r"obs: expected a tensor \('N', 3\), got \[0\.0, 0\.0, 0\.0\]\. policy\.predict"),
        (
            OBS,
            torch.zeros(2, 4),
            r"obs: expected shape \('N', 3\), got \(2, 4\)\. The policy was made for these spaces\.",
        ),
        (OBS, torch.zeros(3), r"obs: expected shape \('N', 3\), got \(3,\)\. Give it an axis in front: obs\.unsq"),
        (OBS, torch.zeros(()), r"obs: expected shape \('N', 3\), got \(\)\."),
        (PARTS, torch.zeros(2, 3), r"obs: expected a dict with the keys \['a', 'b'\], got tensor"),
        (PARTS, {"a": torch.zeros(1, 3), "b": torch.zeros(1)}, r'obs\["b"\]: expected a tuple of 2, got tensor'),
        (
            PARTS,
            {"a": torch.zeros(1, 3), "b": (torch.zeros(1), torch.zeros(1, 2))},
            r'obs\["b"\]\[1\]: expected shape \(\'N\', 3\), got \(1, 2\)',
        ),
    ],
)
def test_act_and_call_want_tensors_of_the_space(space: Any, obs: Any, text: str) -> None:
    policy = make(space)
    for ask in (policy.act, policy):
        with pytest.raises(SpaceError, match=rf"^ActorCritic\.act: {text}"):
            ask(obs)


def test_what_only_the_critic_sees_may_be_missing() -> None:
    policy = rl.ActorCritic.for_spaces(PARTS, BOX, rl.NetParams(keys=["a"], hidden_sizes=(4,)))
    assert policy.act({"a": torch.zeros(5, 3)}).shape == (5, 2)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda p: p.double(), "float64"), (lambda p: p.half(), "float16"), (lambda p: p.bfloat16(), "bfloat16"),
        (lambda p: p.to(torch.float64), "float64"), (lambda p: p.type(torch.float64), "float64"),
    ],
)  # fmt: skip
def test_a_number_format_is_set_by_its_own_method(change: Any, name: str) -> None:
    policy = make()
    text = rf"^ActorCritic: must keep its number format, .*; got {name}\. Write policy\.set_weight_dtype\(torch\.float"
    with pytest.raises(ParamsError, match=text):
        change(policy)
    assert all(p.dtype == torch.float32 for p in policy.parameters())
    policy.float().to("cpu").to(torch.float32)
    policy.set_weight_dtype(torch.float64)
    policy.double()
    with pytest.raises(ParamsError, match="got float32"):
        policy.float()


@pytest.mark.parametrize("ask", ["attach", "update"])
def test_an_algorithms_policy_is_not_replaced(ask: str) -> None:
    policy = rl.QNetwork.for_spaces(OBS, gym.spaces.Discrete(2), hidden_sizes=(4,))
    algorithm = rl.DQN(policy)
    algorithm.policy = rl.QNetwork.for_spaces(OBS, gym.spaces.Discrete(2), hidden_sizes=(4,))
    given: Any = rl.UpdatePlan() if ask == "attach" else None
    text = r"^DQN\.policy: must stay the one that the algorithm was built with; got another QNetwork\. Copy weights in"
    with pytest.raises(ParamsError, match=text):
        getattr(algorithm, ask)(given)
    algorithm.policy = policy
    algorithm.attach(rl.UpdatePlan())
