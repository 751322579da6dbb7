"""All agents as one env: what each observes and does has its place in one observation and one action."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rltrainer as rl
from rltrainer.errors import ParamsError, SpaceError
from tests.unit.envs.agents.teams import BOX, Visitors


class Unequal(Visitors):
    """Agents of several kinds; remembers what each of them did.

    Args:
        actions: the space of each agent's actions.
    """

    def __init__(self, actions: dict[str, Any]) -> None:
        super().__init__({name: (0, 2) for name in actions})
        self.actions = actions
        self.done: dict[str, Any] = {}

    def action_space(self, agent: str) -> Any:
        return self.actions[agent]

    def step(self, actions: dict[str, Any]) -> Any:
        self.done = actions
        assert all(action in self.actions[name] for name, action in actions.items())
        return super().step(dict.fromkeys(actions, 0))


def test_gymnasium_finds_nothing_to_say() -> None:
    check_env(rl.JointEnv(Visitors()), skip_render_check=True)


def test_what_all_observe_and_do() -> None:
    env = rl.JointEnv(Visitors())  # agent a leaves after 3 steps, b after 5
    assert env.observation_space == gym.spaces.Dict({"a": BOX, "b": BOX})
    assert env.action_space == gym.spaces.MultiDiscrete([2, 2])
    obs, _ = env.reset(seed=1)
    rewards, seen = [], []
    for _ in range(5):
        obs, reward, terminated, truncated, info = env.step(np.array([1, 0]))
        rewards.append(reward)
        seen.append(obs["a"].tolist()[1])
        assert not truncated
    assert rewards == [1 * 2 + 2 * 1.0] * 3 + [2 * 1.0] * 2  # (number + 1) * (1 + action)
    assert seen == [1, 2, 3, 0, 0]  # its final observation, then nothing
    assert terminated
    assert info == {"b": {"count": 5}}
    assert int(env.render()[0, 0, 0]) == 5
    mean = rl.JointEnv(Visitors(), reward="mean")  # over all agents that there may be
    mean.reset(seed=1)
    assert [mean.step(np.array([0, 0]))[1] for _ in range(5)] == [1.5, 1.5, 1.5, 1.0, 1.0]


@pytest.mark.parametrize(("truncated", "end"), [((), (True, False)), (("a",), (True, False)), (("b",), (False, True))])
@pytest.mark.parametrize("lingers", [False, True])
def test_the_last_ones_decide_how_it_ends(lingers: bool, truncated: Any, end: tuple[bool, bool]) -> None:
    env = rl.JointEnv(Visitors(truncated=truncated, lingers=lingers))
    env.reset(seed=1)
    ends = [env.step(np.array([0, 0]))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [end]


def test_masks_are_one() -> None:
    env = rl.JointEnv(Visitors(is_masked=True))
    parts = {name: gym.spaces.Dict({"observation": BOX}) for name in "ab"}
    assert env.observation_space == gym.spaces.Dict({**parts, "action_mask": gym.spaces.MultiBinary(4)})
    obs, _ = env.reset(seed=1)
    assert obs in env.observation_space
    masks = [env.step(np.array([0, 0]))[0]["action_mask"].tolist() for _ in range(5)]
    assert masks == [[1, 1, 1, 1]] * 5  # nothing is asked of who is gone
    envs = rl.make_vec(lambda: rl.JointEnv(Visitors(is_masked=True)), 2)
    assert rl.Collector(rl.ActorCritic.for_envs(envs), envs).collect(num_episodes=4).lengths.tolist() == [5] * 4


@pytest.mark.parametrize(("actions", "joint", "action", "done"), [
    ({"x": gym.spaces.Discrete(3, start=1), "y": gym.spaces.MultiDiscrete([2, 4])},
     gym.spaces.MultiDiscrete([3, 2, 4], start=[1, 0, 0]), [3, 1, 2], {"x": 3, "y": [1, 2]}),
    ({"x": gym.spaces.MultiBinary((2, 2)), "y": gym.spaces.Discrete(3, start=1)},
     gym.spaces.MultiDiscrete([2, 2, 2, 2, 3], start=[0, 0, 0, 0, 1]), [0, 1, 1, 0, 3],
     {"x": [[0, 1], [1, 0]], "y": 3}),
    ({"x": gym.spaces.Box(-1.0, 1.0, (2,)), "y": gym.spaces.Box(0.0, 3.0, (1, 1), np.float64)},
     gym.spaces.Box(np.array([-1.0, -1.0, 0.0]), np.array([1.0, 1.0, 3.0]), dtype=np.float64), [0.5, -0.5, 2.0],
     {"x": [0.5, -0.5], "y": [[2.0]]}),
])  # fmt: skip
def test_agents_that_differ(actions: dict[str, Any], joint: Any, action: list[float], done: dict[str, Any]) -> None:
    parallel = Unequal(actions)
    env = rl.JointEnv(parallel)
    assert env.action_space == joint
    env.reset(seed=1)
    env.step(np.array(action, joint.dtype))
    assert {name: np.asarray(value).tolist() for name, value in parallel.done.items()} == done


class ThreeChoices(Visitors):
    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(3)


MIXED = {"x": gym.spaces.Discrete(3), "y": gym.spaces.Box(-1.0, 1.0, (2,))}


@pytest.mark.parametrize(("env", "reward", "text"), [
    (Unequal(MIXED), "sum", "env: actions must be Discrete, MultiDiscrete or MultiBinary of all agents, or Box of "
     "all; got 'x' Discrete(3), 'y' Box(-1.0, 1.0, (2,), float32)"),
    (ThreeChoices(is_masked=True), "sum",
     "env: the action_mask of 'a' must be one flag for each of its 3 choices; got MultiBinary(2)"),
    (Visitors(), "max", "reward: must be one of 'sum', 'mean'; got 'max' (str)"),
])  # fmt: skip
def test_what_is_no_joint_env(env: Any, reward: Any, text: str) -> None:
    with pytest.raises((SpaceError, ParamsError)) as caught:
        rl.JointEnv(env, reward)
    assert str(caught.value) == f"JointEnv.{text}"
