"""Autoreset, truncation, final observations, seeds, states and errors of vector envs of tensors."""

import copy
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

import rltrainer as rl
from rltrainer.envs.tensors import TENSOR_ENVS
from rltrainer.envs.tensors.tensor_vector_env import TensorEnvState
from rltrainer.errors import CheckpointError, SpaceError
from rltrainer.tree import Tree, leaves, map_tree


class Count(rl.TensorEnv):
    """Counts up by the action from a number that is drawn, and terminates at 5; the observation is a Dict."""

    observation_space = gym.spaces.Dict({"number": gym.spaces.Box(0.0, 9.0, (1,)), "half": gym.spaces.Box(0, 9, (1,))})
    action_space = gym.spaces.Discrete(3)
    max_episode_steps = 3
    num_first_uniforms = 1

    def first_state(self, uniform: Tensor) -> Tree:
        return (uniform,)

    def observe(self, state: Tree) -> Tree:
        return {"number": state[0], "half": state[0] / 2}

    def transition(self, state: Tree, action: Tensor, uniform: Tensor) -> tuple[Tree, Tensor, Tensor]:
        number = state[0] + action[:, None]
        return (number,), number.squeeze(-1), number.squeeze(-1) >= 5.0


def state_of(*numbers: float, num_steps: int = 0) -> TensorEnvState:
    steps = torch.full((len(numbers),), num_steps, dtype=torch.int32)
    return TensorEnvState((torch.tensor(numbers)[:, None],), steps)


def test_a_step_that_ends_episodes() -> None:
    envs = rl.TensorVectorEnv(Count(), 4)
    # The second env terminates, the third does so in the step in which it is truncated, the fourth is truncated.
    state = state_of(1.0, 3.5, 3.5, 2.0)
    state.num_steps[2:] = 2
    uniform = torch.tensor([[0.1], [0.2], [0.3], [0.4]])
    after, step = envs.advance(state, torch.tensor([1, 2, 2, 1]), uniform)
    assert step.terminated.tolist() == [False, True, True, False]
    assert step.truncated.tolist() == [False, False, True, True]
    torch.testing.assert_close(step.reward, torch.tensor([2.0, 5.5, 5.5, 3.0]))
    torch.testing.assert_close(step.final_obs["number"], torch.tensor([[2.0], [5.5], [5.5], [3.0]]))
    torch.testing.assert_close(step.final_obs["half"], torch.tensor([[1.0], [2.75], [2.75], [1.5]]))
    torch.testing.assert_close(step.obs["number"], torch.tensor([[2.0], [0.2], [0.3], [0.4]]))
    assert list(step.obs) == list(step.final_obs) == ["half", "number"]  # in the order of the space
    torch.testing.assert_close(step.obs["half"], torch.tensor([[1.0], [0.1], [0.15], [0.2]]))
    torch.testing.assert_close(after.state[0], step.obs["number"])
    assert after.num_steps.tolist() == [1, 0, 0, 0]
    assert after.num_steps.dtype == torch.int32


def test_step_is_advance_with_the_numbers_of_the_generator() -> None:
    envs = rl.TensorVectorEnv(Count(), 3, seed=1)
    obs, info = envs.reset(seed=5)
    assert info == {}
    uniforms = torch.rand(4, 3, 1, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(obs["number"], uniforms[0], rtol=0, atol=0)
    state = TensorEnvState((uniforms[0],), torch.zeros(3, dtype=torch.int32))
    for uniform in uniforms[1:]:
        state, expected = envs.advance(state, torch.ones(3, dtype=torch.int64), uniform)
        obs, reward, terminated, truncated, info = envs.step(torch.ones(3, dtype=torch.int64))
        torch.testing.assert_close(obs, expected.obs, rtol=0, atol=0)
        torch.testing.assert_close(reward, expected.reward, rtol=0, atol=0)
        assert torch.equal(terminated, expected.terminated)
        assert torch.equal(truncated, expected.truncated)
        torch.testing.assert_close(info["final_obs"], expected.final_obs, rtol=0, atol=0)
        assert torch.equal(info["_final_obs"], terminated | truncated)
    assert truncated.all()


def test_sample_uniforms_has_leading_axes() -> None:
    envs = rl.TensorVectorEnv(Count(), 3, seed=1)
    assert envs.num_uniforms == 1
    state = envs.generator.get_state()
    table = envs.sample_uniforms(7)
    assert table.shape == (7, 3, 1)
    assert table.dtype == torch.float32
    envs.generator.set_state(state)
    assert not torch.equal(table[0], table[1])
    assert envs.sample_uniforms().shape == (3, 1)


def copied(state: TensorEnvState) -> TensorEnvState:
    return TensorEnvState(map_tree(torch.clone, state.state), state.num_steps.clone())


DEAR = {"Pendulum-v1", "Acrobot-v1"}


@pytest.mark.parametrize(
    "env_id", [None, *(pytest.param(name, marks=[pytest.mark.full] * (name in DEAR)) for name in TENSOR_ENVS)]
)
def test_advance_is_pure_and_one_graph(env_id: str | None) -> None:
    rules = Count() if env_id is None else TENSOR_ENVS[env_id]()
    envs = rl.TensorVectorEnv(rules, 6, seed=1)
    action = torch.as_tensor(envs.action_space.sample())
    state, uniform = envs.current, envs.sample_uniforms()
    before, numbers, actions = copied(state), uniform.clone(), action.clone()
    after, step = envs.advance(state, action, uniform)
    compiled: Any = torch.compile(envs.advance, fullgraph=True, backend="eager")
    again, step_again = compiled(state, action, uniform)
    for one, other in ((before, state), (numbers, uniform), (actions, action), (after, again), (step, step_again)):
        assert_equal(one, other)
    assert envs.current is state


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    else:
        for name in one.__slots__:
            for here, there in zip(leaves(getattr(one, name)), leaves(getattr(other, name)), strict=True):
                torch.testing.assert_close(here, there, rtol=0, atol=0)


def steps(envs: rl.TensorVectorEnv, count: int) -> list[Tensor]:
    return [envs.step(torch.tensor([0, 1, 2]))[0]["number"] for _ in range(count)]


def test_seeds() -> None:
    first, same, other, without = (rl.TensorVectorEnv(Count(), 3, seed=seed) for seed in (1, 1, 2, None))
    assert [first.base_seed, without.base_seed] == [1, None]
    assert_same = torch.testing.assert_close
    assert_same(first.reset()[0], same.reset()[0], rtol=0, atol=0)
    assert_same(steps(first, 5), steps(same, 5), rtol=0, atol=0)
    assert not torch.equal(first.reset()[0]["number"], other.reset()[0]["number"])
    assert_same(first.reset(seed=3)[0], without.reset(seed=3)[0], rtol=0, atol=0)


def test_a_state_continues() -> None:
    envs = rl.TensorVectorEnv(Count(), 3, seed=1)
    envs.reset()
    steps(envs, 2)
    state, saved, copied = envs.state(), envs.state_dict(), copy.deepcopy(envs)
    expected = steps(envs, 5)
    other = rl.TensorVectorEnv(Count(), 3, seed=2)
    for _ in range(2):  # what was loaded is not changed by steps
        other.set_state(state)
        torch.testing.assert_close(steps(other, 5), expected, rtol=0, atol=0)
        other.load_state_dict(saved)
        torch.testing.assert_close(steps(other, 5), expected, rtol=0, atol=0)
    torch.testing.assert_close(steps(copied, 5), expected, rtol=0, atol=0)


def test_a_state_shares_no_memory_with_the_envs() -> None:
    envs = rl.TensorVectorEnv(Count(), 3, seed=1)
    state, expected = envs.state(), envs.current.state[0].clone()
    envs.current.state[0].zero_()
    torch.testing.assert_close(state.leaves[0], expected)
    envs.set_state(state)
    envs.current.state[0].zero_()
    torch.testing.assert_close(state.leaves[0], expected)


def test_what_was_returned_is_no_memory_of_the_envs() -> None:
    envs = rl.make_vec("CartPole-v1", 3, backend="tensor", seed=1)
    action = torch.zeros(3, dtype=torch.int64)
    for call in (lambda: envs.reset(seed=1)[0], lambda: envs.step(action)[0]):
        obs = call()
        expected = obs.clone()
        obs.zero_()
        torch.testing.assert_close(envs.current.state, expected)  # type: ignore[attr-defined]  # of tensors


def test_states_of_other_envs_are_refused() -> None:
    envs = rl.TensorVectorEnv(Count(), 3)
    before = envs.current
    state = rl.TensorVectorEnv(Count(), 4).state()
    hint = "It is the state of other envs."
    with pytest.raises(CheckpointError, match=r"^adapter.envs.state\[0\]: expected shape \(3, 1\), found \(4, 1\)"):
        envs.set_state(state)
    with pytest.raises(CheckpointError, match=rf"^adapter.envs.leaves: expected 1, found 0. {hint}$"):
        envs.load_state_dict({**envs.state_dict(), "leaves": []})
    with pytest.raises(CheckpointError, match=r"^adapter.envs.num_steps: is negative$"):
        envs.load_state_dict({**envs.state_dict(), "num_steps": torch.full((3,), -1, dtype=torch.int32)})
    with pytest.raises(CheckpointError, match=r"^adapter.envs.generator: expected the state of a generator"):
        envs.load_state_dict({**envs.state_dict(), "generator": 1})
    assert envs.current is before


def changed(state: Tree, action: Tensor) -> Tree:
    return map_tree(lambda x: x.add_(action[:, None] + 1), state)


WRONG_RULES: dict[str, tuple[dict[str, Any], str]] = {
    "obs": ({"observe": lambda self, state: state[0]}, "Wrong.observe: expected a dict with the keys ['half', "),
    "obs dtype": (
        {"observe": lambda self, state: {"number": state[0].double(), "half": state[0]}},
        'Wrong.observe["number"]: expected float32 (2, 1), got float64 (2, 1)',
    ),
    "a part of the state": (
        {"transition": lambda self, state, action, uniform: ((), action.float(), action == 1)},
        "Wrong.transition: state[0]: expected float32 (2, 1), got nothing",
    ),
    "reward": (
        {"transition": lambda self, state, action, uniform: (state, action, action == 1)},
        "Wrong.transition: reward: expected float32 (2,), got int64 (2,)",
    ),
    "terminated": (
        {"transition": lambda self, state, action, uniform: (state, action.float(), state[0] > 1)},
        "Wrong.transition: terminated: expected bool (2,), got bool (2, 1)",
    ),
    "state": (
        {"transition": lambda self, state, action, uniform: ((state[0].double(),), action.float(), action == 1)},
        "Wrong.transition: state[0]: expected float32 (2, 1), got float64 (2, 1)",
    ),
    "changed in place": (
        {"transition": lambda self, state, action, uniform: (changed(state, action), action.float(), action == 1)},
        "Wrong.transition: must return new tensors, but it changed the state in place",
    ),
    "two values": ({"transition": lambda *args: args[:2]}, "Wrong.transition: must return (state, reward, termin"),
    "four values": ({"transition": lambda *args: args[:4]}, "Wrong.transition: must return (state, reward, termin"),
    "actions": (
        {"action_space": gym.spaces.Dict({"a": gym.spaces.Discrete(2)})},
        "Wrong.action_space: must be no Dict or Tuple; got Dict('a': Discrete(2)) (Dict)",
    ),
    "spaces": ({"observation_space": "Box"}, "unsupported space 'Box': must be Box, Discrete, "),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_RULES)
def test_rules_that_return_what_they_must_not(name: str) -> None:
    methods, text = WRONG_RULES[name]
    with pytest.raises(SpaceError) as caught:
        rl.TensorVectorEnv(type("Wrong", (Count,), methods)(), 2)
    assert str(caught.value).startswith(text)
