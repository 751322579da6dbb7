"""Actions of integers at the ends of their types: they reach envs and buffers as they are, or are named."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import SpaceError
from tests.fakes import OBS_SPACE, CountingEnv

LAST = 2**63 - 1  # of int64


class Fixed(rl.Policy):
    """Always does the same."""

    def __init__(self, action_space: Any, action: torch.Tensor) -> None:
        super().__init__(OBS_SPACE, action_space)
        self.weight, self.action = torch.nn.Parameter(torch.zeros(1)), action

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
        return rl.Decision(self.action.expand(len(obs), *self.action.shape))


class Keeping(CountingEnv):
    """Keeps the actions that it receives, all of which its space holds."""

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.actions = [*getattr(self, "actions", []), np.array(action).tolist()]
        return super().step(action)


def collected(space: Any, action: Any = None, env: Any = Keeping) -> tuple[list[Any], list[Any]]:
    """Return what env 0 received, and what the buffer holds of it; actions are random without one."""
    envs = rl.make_vec(lambda: env(action_space=space), 2, backend="sync", seed=1)
    policy = Fixed(space, torch.zeros(space.shape) if action is None else action)
    collector = rl.Collector(policy, envs, rl.ReplayBuffer(20, OBS_SPACE, space, num_envs=2))
    collector.seed(1)
    collector.collect(num_steps=6, random=action is None)  # more than one row: the buffer takes a rollout
    assert collector.buffer is not None
    batch: Any = collector.buffer.sample(400)
    stored = {int(index): value for index, value in zip(batch.index, batch.action.tolist(), strict=True)}
    return envs.unwrapped.envs[0].actions, [stored[index] for index in (0, 2, 4)]  # type: ignore[attr-defined]  # a SyncVectorEnv


CHOICES: dict[str, Any] = {
    "the last of int64": gym.spaces.Discrete(3, start=LAST - 2),
    "all of int64": gym.spaces.Discrete(LAST),
    "MultiDiscrete of uint64": gym.spaces.MultiDiscrete([3, 2], dtype=np.uint64),
    "MultiDiscrete of uint32": gym.spaces.MultiDiscrete([3, 2], dtype=np.uint32),
    "Box of uint16": gym.spaces.Box(0, 2**16 - 1, (2,), np.uint16),
    "Box of uint32": gym.spaces.Box(0, 2**32 - 1, (2,), np.uint32),
    "Box of int64": gym.spaces.Box(0, LAST, (2,), np.int64),
}


@pytest.mark.parametrize("name", CHOICES)
def test_random_actions_are_received_and_stored(name: str) -> None:
    received, stored = collected(CHOICES[name])
    assert received == stored


@pytest.mark.parametrize(("space", "action", "expected"), [
    (gym.spaces.Discrete(3, start=LAST - 2), torch.tensor(LAST), LAST),
    (gym.spaces.Box(0, LAST, (1,), np.int64), torch.tensor([LAST]), [LAST]),
    (gym.spaces.Box(0, LAST, (1,), np.int64), torch.tensor([2.0**63]), [2**63 - 1024]),  # the last float64 below it
    (gym.spaces.Box(-LAST - 1, LAST, (1,), np.int64), torch.tensor([-(2.0**70)]), [-LAST - 1]),
    (gym.spaces.Box(0, 2**16 - 1, (1,), np.uint16), torch.tensor([65535.0]), [65535]),
    (gym.spaces.MultiDiscrete([3, 2], dtype=np.uint64), torch.tensor([2, 1], dtype=torch.uint64), [2, 1]),
])  # fmt: skip
def test_a_choice_at_the_end_is_received_and_stored(space: Any, action: Any, expected: Any) -> None:
    assert collected(space, action) == ([expected] * 3, [expected] * 3)


def test_a_choice_that_does_not_exist_and_a_box_of_uint64_are_named() -> None:
    for action, found in ((torch.tensor(LAST), LAST), (torch.tensor(2**64 - 1, dtype=torch.uint64), -1)):
        with pytest.raises(SpaceError) as caught:
            collected(gym.spaces.Discrete(3), action, CountingEnv)
        text = f"env 0, step 1: action = {found}, which must lie in Discrete(3); nothing of this collection was stored"
        assert str(caught.value) == text
    with pytest.raises(SpaceError) as caught:
        collected(gym.spaces.Box(0, 2**64 - 1, (1,), np.uint64), torch.tensor([1]))
    text = "unsupported space Box(0, 18446744073709551615, (1,), uint64): must not be a Box of uint64. Give the env "
    assert str(caught.value) == f"{text}another dtype in a wrapper: int64, or float32."


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_logged_actions_of_unsigned_integers(dtype: Any) -> None:
    def logged(value: int) -> rl.ReplayBuffer:
        return rl.ReplayBuffer.from_arrays(
            observations=np.zeros((2, 2), np.float32), actions=np.array([value, 1], dtype), rewards=np.zeros(2),
            terminations=np.array([False, True]), truncations=np.zeros(2, np.bool_), observation_space=OBS_SPACE,
            action_space=gym.spaces.Discrete(3),
        )  # fmt: skip

    assert set(logged(2).sample(50).action.tolist()) == {1, 2}
    last = np.iinfo(dtype).max
    with pytest.raises(SpaceError, match=rf"actions: must lie in Discrete\(3\); row 0 is {last}"):
        logged(last)
