"""Seeds, memory, actions, state and errors of the adapter."""

import contextlib
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import ClipReward

from rltrainer.envs import EnvAdapter, make_vec
from rltrainer.envs.checks import StepCheck
from rltrainer.errors import CheckpointError, EnvError, ParamsError, SpaceError
from rltrainer.seeding import derive_seed
from rltrainer.spaces import leaf_spaces
from tests.unit.envs.scripted import SEED, ScriptedEnv, ScriptedVectorEnv, TensorVectorEnv, expected_cells, record

ZEROS = np.zeros(2, np.int64)


class FakeVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Two envs that return what they are told to.

    Args:
        obs: what reset and step return as observations.
        step: what step returns after them.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  # as in gymnasium

    def __init__(self, obs: Any = None, step: Any = None, space: Any = None, action_space: Any = None) -> None:
        self.num_envs = 2
        self.single_observation_space = space or Box(-1, 1, (3,), np.float32)
        self.single_action_space = action_space or Discrete(2)
        self.obs = np.zeros((2, 3), np.float32) if obs is None else obs
        self.outcome: Any = step or (np.zeros(2), np.zeros(2, np.bool_), np.zeros(2, np.bool_), {})

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.obs, {}

    def step(self, actions: Any) -> Any:
        return self.obs, *self.outcome


def scripted(num_envs: int = 2, seed: int | None = SEED) -> EnvAdapter:
    return EnvAdapter(make_vec(ScriptedEnv, num_envs, backend="sync", seed=seed))


# Seeds


def test_seeds_of_first_observations() -> None:
    def first_obs(seed: int | None) -> Any:
        adapter = EnvAdapter(make_vec("Pendulum-v1", 2))
        torch.manual_seed(5)  # from which the seed is drawn without one
        if seed is not None:
            adapter.seed(seed)
        adapter.reset()
        return adapter.obs.tolist()

    assert first_obs(1) == first_obs(1) != first_obs(2)
    assert first_obs(1)[0] != first_obs(1)[1]
    assert first_obs(None) == first_obs(None)


def test_the_seed_of_make_vec_wins() -> None:
    adapter = EnvAdapter(ClipReward(make_vec(ScriptedEnv, 2, backend="sync", seed=SEED), max_reward=1.0))
    adapter.seed(SEED + 1)
    adapter.reset()
    assert adapter.obs[:, :2].tolist() == [[0, 0], [1, 0]]


def test_a_reset_goes_on_with_the_next_episode_nobody_stepped_in() -> None:
    adapter = scripted()
    adapter.reset()
    adapter.reset()
    assert adapter.obs[:, 1].tolist() == [0, 0]
    record(adapter, 1)  # env 0 ended episode 0, env 1 is in the middle of it
    adapter.reset()
    assert adapter.obs[:, 1].tolist() == [1, 1]
    adapter.reset(first_episode=True)
    first = record(adapter, 9)
    adapter.reset(first_episode=True)
    assert record(adapter, 9) == first == [expected_cells(n, 9) for n in range(2)]


# Memory


def test_obs_and_its_tensor_share_memory_and_dtype_is_the_stored_one() -> None:
    space = Dict({"a": Box(-1, 1, (3,), np.float64), "b": MultiDiscrete([4, 4], dtype=np.int32), "c": MultiBinary(2)})
    obs: dict[str, Any] = {"c": np.ones((2, 2), np.int8), "b": np.full((2, 2), 3, np.int32), "a": np.full((2, 3), 0.5)}
    adapter = EnvAdapter(FakeVectorEnv(obs, space=space))
    adapter.reset()
    assert {key: str(leaf.dtype) for key, leaf in adapter.obs.items()} == {"a": "float32", "b": "int64", "c": "int8"}
    obs["a"][:] = 9.0
    assert adapter.obs["a"].tolist() == [[0.5] * 3] * 2
    for _ in range(2):
        adapter.obs["a"][0, 0] = 0.25
        assert adapter.obs_tensor["a"][0, 0] == 0.25
        adapter.step(ZEROS)
        adapter.advance()


def test_another_device_gets_copies() -> None:
    adapter = EnvAdapter(make_vec(ScriptedEnv, 2, backend="sync", seed=SEED), device="meta")
    adapter.reset()
    adapter.step(ZEROS)
    adapter.advance()
    assert adapter.obs_tensor.device.type == "meta"
    assert isinstance(adapter.obs, np.ndarray)


@pytest.mark.gpu
def test_the_policy_is_on_a_gpu() -> None:
    adapter = EnvAdapter(make_vec(ScriptedEnv, 2, backend="sync", seed=SEED), device="cuda")
    adapter.reset()
    for _ in range(9):
        env_action = adapter.to_env(torch.ones(2, dtype=torch.int64, device="cuda"))
        assert isinstance(env_action, np.ndarray)
        adapter.step(env_action)
        adapter.advance()
        assert adapter.obs_tensor.is_cuda
        assert adapter.obs_tensor.tolist() == adapter.obs.tolist()


@pytest.mark.gpu
def test_an_env_of_tensors_on_a_gpu() -> None:
    envs = TensorVectorEnv(ScriptedVectorEnv(3, AutoresetMode.NEXT_STEP), device="cuda")
    adapter = EnvAdapter(envs, device="cuda")
    adapter.reset()
    assert adapter.obs is adapter.obs_tensor
    for n, cells in enumerate(record(adapter, 20)):
        assert cells == expected_cells(n, len(cells))
    assert adapter.to_env(torch.tensor([0, 1, 2])).is_cuda


# Actions


def to_env(space: gym.Space[Any], action: torch.Tensor) -> Any:
    return EnvAdapter(FakeVectorEnv(action_space=space)).to_env(action)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_box_is_clipped_and_cast(dtype: Any) -> None:
    space = Box(np.array([-0.1, 0.0], dtype), np.array([0.1, np.inf], dtype), dtype=dtype)
    result = to_env(space, torch.tensor([[-2.0, -3.0], [0.05, 7.0]]))
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.array([[-0.1, 0.0], [np.float32(0.05), 7.0]], dtype))
    assert all(space.contains(row) for row in result)


def test_memory_of_actions() -> None:
    action = torch.tensor([[-2e9], [3.0]])
    result = to_env(Box(-np.inf, np.inf, (1,), np.float32), action)
    assert result.tolist() == [[-2e9], [3.0]]
    assert np.shares_memory(result, action.numpy())  # without bounds nothing has to change
    adapter = EnvAdapter(FakeVectorEnv(action_space=Box(-1, 1, (1,), np.float32)))
    last = adapter.to_env(action)
    adapter.to_env(torch.zeros(2, 1))
    assert action.tolist() == [[-2e9], [3.0]]
    assert last.tolist() == [[-1.0], [1.0]]


@pytest.mark.parametrize(
    ("space", "dtype"),
    [(Discrete(3), np.int64), (MultiDiscrete([3, 3]), np.int64), (MultiDiscrete([3, 3], np.int32), np.int32)],
)
def test_choices_keep_their_values_and_get_the_dtype_of_the_space(space: Any, dtype: Any) -> None:
    action = torch.ones(2, *space.shape, dtype=torch.int64)
    result = to_env(space, action)
    assert result.dtype == dtype
    assert np.shares_memory(result, action.numpy()) == (dtype == np.int64)
    assert result.tolist() == action.tolist()


def test_actions_of_a_tensor_env_stay_tensors() -> None:
    envs = FakeVectorEnv(torch.zeros(2, 3), action_space=Box(-1, 1, (2,), np.float64))
    adapter = EnvAdapter(envs)
    adapter.reset()
    result = adapter.to_env(torch.tensor([[-2.0, 0.5], [3.0, 1.0]]))
    assert result.dtype == torch.float64
    assert result.tolist() == [[-1.0, 0.5], [1.0, 1.0]]


@pytest.mark.parametrize("value", [256, -255, 2**40])
def test_a_choice_that_the_env_cannot_be_given(value: int) -> None:
    adapter = EnvAdapter(FakeVectorEnv(action_space=MultiBinary(2)))
    adapter.reset()
    assert adapter.to_env(torch.tensor([[1, 0], [0, 1]])).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(SpaceError) as error:
        adapter.to_env(torch.tensor([[1, 0], [value, 1]]))
    assert str(error.value) == f"the policy's actions: must lie in MultiBinary(2); got {value} (int64)"


# State


def test_a_state_at_the_start_of_episodes_continues_bit_for_bit() -> None:
    whole = scripted()
    whole.reset()
    record(whole, 7)  # env 0: episodes of 1 + 6 steps, env 1: of 4 + 3
    state = whole.state_dict()
    assert state["clock"]["episode"] == [2, 2]
    assert state["clock"]["episode_step"] == [0, 0]
    resumed = scripted(seed=None)
    resumed.load_state_dict(state)
    resumed.resume()
    assert record(resumed, 9) == record(whole, 9)


@pytest.mark.parametrize(("num_steps", "num_resets"), [(None, 0), (0, 0), (1, 1)])
def test_a_native_env_begins_where_no_step_was_taken(num_steps: int | None, num_resets: int) -> None:
    adapter = EnvAdapter(ScriptedVectorEnv(2, AutoresetMode.NEXT_STEP))
    adapter.seed(SEED)
    if num_steps is not None:
        adapter.reset()
    for _ in range(num_steps or 0):
        adapter.step(ZEROS)  # env 0 ended its episode
    envs = ScriptedVectorEnv(2, AutoresetMode.NEXT_STEP)
    resumed = EnvAdapter(envs)
    text = r"envs \[0, 1\] cannot be reset one by one"
    with pytest.warns(UserWarning, match=text) if num_steps else contextlib.nullcontext():
        resumed.load_state_dict(adapter.state_dict())
    assert envs.seeds == []
    resumed.reset() if num_steps is None else resumed.resume()
    assert envs.seeds == [derive_seed(SEED, "reset", num_resets)]


def test_a_state_of_another_number_of_envs() -> None:
    with pytest.raises(CheckpointError, match="the state is of 3 envs, but there are 2"):
        scripted(2).load_state_dict(scripted(3).state_dict())


# Errors


@pytest.mark.parametrize(("envs", "error", "text"), [
    (3, ParamsError, "EnvAdapter.envs: must be a .*VectorEnv; got 3 .* rltrainer.make_vec makes one"),
    (FakeVectorEnv(space=gym.spaces.Text(5)), SpaceError, "unsupported space Text"),
    (FakeVectorEnv(action_space=Dict({"a": Discrete(2)})), SpaceError, "unsupported action space Dict.*must be Box"),
])  # fmt: skip
def test_envs_that_are_not_supported(envs: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        EnvAdapter(envs)


@pytest.mark.parametrize("command", ["step", "advance"])
def test_nothing_before_the_reset(command: str) -> None:
    adapter = EnvAdapter(FakeVectorEnv())
    with pytest.raises(EnvError, match=f"EnvAdapter.{command}: reset must be called first"):
        adapter.step(ZEROS) if command == "step" else adapter.advance()


CAMERA = Dict({"cam": Box(0, 1, (84, 84), np.float32)})


@pytest.mark.parametrize(("obs", "text"), [
    ({"cam": np.zeros((2, 84, 84, 3), np.uint8)}, '["cam"]: expected float32 (2, 84, 84), got uint8 (2, 84, 84, 3)'),
    ({"cam": np.zeros((2, 84, 84))}, '["cam"]: expected float32 (2, 84, 84), got float64 (2, 84, 84) (the dtype'),
    ({"eye": np.zeros(2)}, ": expected a dict with the keys ['cam'], got a dict with the keys ['eye']"),
    (np.zeros((2, 3), np.float32), ": expected a dict with the keys ['cam'], got float32 (2, 3)"),
    ({"cam": [0.0]}, '["cam"]: expected float32 (2, 84, 84), got list [0.0]'),
])  # fmt: skip
def test_observations_that_do_not_fit(obs: Any, text: str) -> None:
    with pytest.raises(SpaceError, match=re.escape(f"vector env obs{text}")):
        EnvAdapter(FakeVectorEnv(obs, space=CAMERA)).reset()


NO_FLAGS, NUMBERS = np.zeros(2, np.bool_), r"expected numbers \(2,\), or \(2, 'num_agents'\), got "


@pytest.mark.parametrize(("place", "value", "text"), [
    (0, np.zeros((2, 1), np.float32), r"obs: expected float32 \(2, 3\), got float32 \(2, 1\)"),
    (0, np.zeros(3, np.float32), r"obs: expected float32 \(2, 3\), got float32 \(3,\)"),
    (0, np.zeros((2, 3)), r"obs: expected float32 \(2, 3\), got float64 \(2, 3\)"),
    (1, np.zeros(3), rf"reward: {NUMBERS}.* \(3,\)"),
    (1, np.array(["a", "b"]), rf"reward: {NUMBERS}<U1 \(2,\)"),
    (1, np.zeros((2, 1, 1)), rf"reward: {NUMBERS}float64 \(2, 1, 1\)"),
    (1, 1.0, f"reward: {NUMBERS}float 1.0"),
    (2, np.zeros(2, int), r"terminated: expected bool \(2,\), got int64 \(2,\)"),
    (2, np.array(["", "yes"]), r"terminated: expected bool \(2,\), got <U3 \(2,\)"),
    (3, np.zeros(3, bool), r"truncated: expected bool \(2,\), got bool \(3,\)"),
    (3, False, r"truncated: expected bool \(2,\), got bool False"),
    (3, [False, False], r"truncated: expected bool \(2,\), got list \[False, False\]"),
    (3, None, r"truncated: expected bool \(2,\), got NoneType None"),
])  # fmt: skip
@pytest.mark.parametrize("num_before", [0, 2])
def test_outcomes_that_do_not_fit(place: int, value: Any, text: str, num_before: int) -> None:
    envs = FakeVectorEnv()
    adapter = EnvAdapter(envs)
    adapter.reset()
    for _ in range(num_before):  # NumPy would broadcast a shape, and take a text for a flag, in any step
        adapter.step(ZEROS)
        adapter.advance()
    outcome = [envs.obs, *envs.outcome]
    outcome[place] = value
    envs.obs, *envs.outcome = outcome
    with pytest.raises(SpaceError, match=f"^vector env {text}"):
        adapter.step(ZEROS)


def test_later_results_are_looked_at() -> None:
    envs = FakeVectorEnv()
    adapter = EnvAdapter(envs)
    adapter.reset()
    adapter.step(ZEROS)
    envs.outcome = (np.ones((2, 3)), NO_FLAGS, NO_FLAGS, {})
    with pytest.raises(SpaceError, match=r"^vector env reward: expected shape \(2,\), got float64 \(2, 3\)"):
        adapter.step(ZEROS)
    envs.obs = np.ones((1, 3), np.float32)
    with pytest.raises(SpaceError, match=r"^vector env obs: expected float32 \(2, 3\), got float32 \(1, 3\)"):
        adapter.reset()


def test_a_step_that_looks_otherwise_and_is_right_is_looked_at_wholly() -> None:
    check, flags = StepCheck(leaf_spaces(Discrete(3)), 2), np.zeros(2, np.bool_)
    for dtype in (np.int64, np.int32, np.uint8):
        check(np.zeros(2, dtype), np.ones(2, dtype), flags, flags, {})
    check(torch.zeros(2, dtype=torch.int64), torch.ones(2), torch.zeros(2).bool(), torch.zeros(2).bool(), {})
    with pytest.raises(SpaceError, match=r"vector env obs: expected int64 \(2,\), got float32 \(2,\)"):
        check(torch.zeros(2), torch.ones(2), flags, flags, {})


@pytest.mark.parametrize(("info", "error", "text"), [
    ({}, EnvError, r'env 1 ended its episode, but info\["final_obs"\] holds no final observation of it'),
    ({"final_obs": np.array([None, None])}, EnvError, r'env 1 ended its episode, but info\["final_obs"\] holds no'),
    ({"final_obs": np.zeros((2, 1))}, SpaceError, r"env 1 final_obs: expected shape \(3,\), got float64 \(1,\)"),
])  # fmt: skip
def test_a_final_observation_that_is_missing_or_does_not_fit(info: Any, error: type[Exception], text: str) -> None:
    envs = FakeVectorEnv(step=(np.zeros(2), np.array([False, True]), NO_FLAGS, info))
    envs.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
    adapter = EnvAdapter(envs)
    adapter.reset()
    with pytest.raises(error, match=text):
        adapter.step(ZEROS)
