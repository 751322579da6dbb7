"""What an env returns is looked at in every step: NumPy would broadcast a shape, and take a text for a flag."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.envs.checks import StepCheck
from rltrainer.errors import SpaceError
from rltrainer.spaces import leaf_spaces
from tests.faults.envs import OddEnv

BOX = gym.spaces.Box(-10, 10, (2,), np.float32)
DICT = gym.spaces.Dict({"place": BOX, "kinds": gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)])})
GOOD_DICT = {"place": np.ones(2, np.float32), "kinds": (np.int64(1), np.zeros(2, np.int8))}

ODD: list[tuple[str, Any, str]] = [
    ("obs", np.ones(1, np.float32), r"obs: expected float32 \(2,\), got float32 \(1,\)"),
    ("obs", np.float32(1), r"obs: expected float32 \(2,\), got float32 \(\)"),
    ("obs", np.ones((1, 2), np.float32), r"obs: expected float32 \(2,\), got float32 \(1, 2\)"),
    ("obs", np.ones(2, np.float64), r"obs: expected float32 \(2,\), got float64 \(2,\) \(the dtype differs"),
    ("obs", np.array(["1", "2"]), r"obs: expected float32 \(2,\), got <U1 \(2,\)"),
    ("obs", [1.0, 2.0], r"obs: expected float32 \(2,\), got list \[1.0, 2.0\]"),
    ("reward", "1.5", "reward: expected a number, or one per agent, got str '1.5'"),
    ("reward", None, "reward: expected a number, or one per agent, got NoneType None"),
    ("reward", np.ones(1), r"reward: expected shape \(\), as env \d has, got float64 \(1,\)"),
    ("terminated", "no", "terminated: expected bool, got str 'no'"),
    ("terminated", 0.5, "terminated: expected bool, got float 0.5"),
    ("truncated", np.float64(0), r"truncated: expected bool, got float64 \(\)"),
    ("truncated", 1, "truncated: expected bool, got int 1"),
    ("truncated", None, "truncated: expected bool, got NoneType None"),
    ("info", None, "info: expected a dict, got NoneType None"),
]
IDS = [f"{what} {value!r}" for what, value, _ in ODD]


def envs_of(odd: OddEnv, backend: str, num_envs: int = 2) -> Any:
    """Return envs of which the last one is odd."""
    if backend == "sync":
        made = iter([*[OddEnv(None, None, odd.observation_space, odd.good)] * (num_envs > 1), odd])
        return rl.make_vec(lambda: next(made), num_envs, backend="sync")
    make = partial(OddEnv, odd.what, odd.value, odd.observation_space, odd.good)
    return rl.make_vec(make, 1, backend="workers", num_workers=1)


def collector_of(cls: Any, envs: Any) -> Any:
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer = rl.ReplayBuffer(100, *spaces, num_envs=envs.num_envs)
    return cls(rl.ActorCritic.for_envs(envs, hidden_sizes=(4,)), envs, buffer)


@pytest.mark.parametrize(("what", "value", "text"), ODD, ids=IDS)
def test_later_steps_are_looked_at(what: str, value: Any, text: str) -> None:
    one = collector_of(rl.Collector, envs_of(OddEnv(what, value), "sync"))
    one.collect(num_steps=4)
    with pytest.raises(SpaceError, match=f"^env 1 {text}"):
        one.collect(num_steps=4)
    assert len(one.buffer) == 4  # nothing of the collection that failed


@pytest.mark.parametrize("cls", [rl.Collector, rl.BatchedCollector])
def test_later_steps_are_looked_at_in_workers(cls: Any) -> None:
    one = collector_of(cls, envs_of(OddEnv(*ODD[0][:2]), "workers"))
    with pytest.raises(SpaceError, match=rf"^env 0 {ODD[0][2]}"):
        one.collect(num_steps=4)
    one.close()


PLACE = {"place": np.ones(1, np.float32), "kinds": GOOD_DICT["kinds"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (PLACE, r'\["place"\]: expected float32 \(2,\), got float32 \(1,\)'),
        ({**GOOD_DICT, "kinds": (1.0, GOOD_DICT["kinds"][1])}, r'\["kinds"\]\[0\]: expected int64 \(\), got float 1.0'),
        ({**GOOD_DICT, "kinds": (1, np.zeros(1, np.int8))}, r'\["kinds"\]\[1\]: expected int8 \(2,\), got int8 \(1,\)'),
        ({**GOOD_DICT, "more": 1}, r": expected a dict with the keys \['kinds', 'place'\], got a dict with the keys"),
        (np.ones(2, np.float32), r": expected a dict with the keys \['kinds', 'place'\], got float32 \(2,\)"),
    ],
)
def test_leaves_of_later_steps_are_named(value: Any, text: str) -> None:
    one = collector_of(rl.Collector, envs_of(OddEnv("obs", value, DICT, GOOD_DICT), "sync"))
    one.collect(num_steps=4)
    with pytest.raises(SpaceError, match=f"^env 1 obs{text}"):
        one.collect(num_steps=4)


@pytest.mark.parametrize("good", [GOOD_DICT, {**GOOD_DICT, "kinds": (2, np.ones(2, np.int8))}])
def test_what_fits_in_other_ways_passes(good: Any) -> None:
    one = collector_of(rl.Collector, envs_of(OddEnv("reward", np.int32(2), DICT, good), "sync"))
    assert one.collect(num_steps=12).num_collected_steps == 12


class OddVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Two envs of arrays; from the third step on, or from the second reset on, one of them is odd."""

    metadata: dict[str, Any] = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012  # as in gymnasium

    def __init__(self, what: str, value: Any) -> None:
        self.num_envs, self.single_observation_space = 2, BOX
        self.single_action_space = gym.spaces.Discrete(2)
        self.what, self.value, self.num_steps, self.num_resets = what, value, 0, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.num_resets += 1
        return self.value if self.what == "reset" and self.num_resets > 1 else np.ones((2, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.num_steps += 1
        flags = np.zeros(2, np.bool_)
        outcome = {"obs": np.ones((2, 2), np.float32), "reward": np.ones(2), "terminated": flags, "truncated": flags}
        if self.num_steps >= 3 and self.what in outcome:
            outcome[self.what] = self.value
        return *outcome.values(), {}


ODD_VECTORS: list[tuple[str, Any, str]] = [
    ("obs", np.ones((1, 2), np.float32), r"obs: expected float32 \(2, 2\), got float32 \(1, 2\)"),
    ("obs", np.ones(2, np.float32), r"obs: expected float32 \(2, 2\), got float32 \(2,\)"),
    ("obs", np.ones((2, 2), np.float64), r"obs: expected float32 \(2, 2\), got float64 \(2, 2\)"),
    ("reward", np.ones(1), r"reward: expected numbers \(2,\), or \(2, 'num_agents'\), got float64 \(1,\)"),
    ("reward", np.ones((2, 3)), r"reward: expected shape \(2,\), got float64 \(2, 3\)"),
    ("reward", 1.0, r"reward: expected numbers \(2,\), or \(2, 'num_agents'\), got float 1.0"),
    ("reward", np.array(["1", "2"]), r"reward: expected numbers \(2,\), or \(2, 'num_agents'\), got <U1 \(2,\)"),
    ("terminated", np.zeros(2), r"terminated: expected bool \(2,\), got float64 \(2,\)"),
    ("terminated", np.array(["", "yes"]), r"terminated: expected bool \(2,\), got <U3 \(2,\)"),
    ("truncated", False, r"truncated: expected bool \(2,\), got bool False"),
    ("truncated", [False, False], r"truncated: expected bool \(2,\), got list \[False, False\]"),
]


@pytest.mark.parametrize(("what", "value", "text"), ODD_VECTORS, ids=[f"{a} {b!r}" for a, b, _ in ODD_VECTORS])
def test_later_steps_of_any_vector_env_are_looked_at(what: str, value: Any, text: str) -> None:
    one = collector_of(rl.Collector, OddVectorEnv(what, value))
    one.collect(num_steps=4)
    with pytest.raises(SpaceError, match=f"^vector env {text}"):
        one.collect(num_steps=4)
    assert len(one.buffer) == 4


def test_later_resets_of_any_vector_env_are_looked_at() -> None:
    one = collector_of(rl.Collector, OddVectorEnv("reset", np.ones((1, 2), np.float32)))
    one.collect(num_steps=4)
    with pytest.raises(SpaceError, match=r"^vector env obs: expected float32 \(2, 2\), got float32 \(1, 2\)"):
        one.reset()


def test_a_step_that_looks_otherwise_and_is_right_is_looked_at_wholly() -> None:
    check = StepCheck(leaf_spaces(gym.spaces.Discrete(3)), 2)
    flags = np.zeros(2, np.bool_)
    for dtype in (np.int64, np.int32, np.uint8):
        check(np.zeros(2, dtype), np.ones(2, dtype), flags, flags)
    check(torch.zeros(2, dtype=torch.int64), torch.ones(2), torch.zeros(2).bool(), torch.zeros(2).bool())
    with pytest.raises(SpaceError, match=r"vector env obs: expected int64 \(2,\), got float32 \(2,\)"):
        check(torch.zeros(2), torch.ones(2), flags, flags)
