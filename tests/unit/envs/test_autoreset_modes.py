"""Every autoreset mode yields the same transitions per env, the shorter list a prefix of the longer."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import ClipReward, NormalizeObservation, RecordEpisodeStatistics

from rltrainer.envs import EnvAdapter, make_vec
from rltrainer.errors import EnvError
from tests.unit.envs.scripted import SEED, ScriptedEnv, ScriptedVectorEnv, TensorVectorEnv, expected_cells, record

MODES = list(AutoresetMode)
NUM_ROWS = 40


def adapter_of(envs: Any) -> EnvAdapter:
    adapter = EnvAdapter(envs)
    adapter.seed(SEED)
    adapter.reset()
    return adapter


def gym_sync(kind: str = "box", num_envs: int = 3, in_place: bool = False, **options: Any) -> gym.vector.SyncVectorEnv:
    return gym.vector.SyncVectorEnv([partial(ScriptedEnv, kind, in_place)] * num_envs, **options)


def check(envs: Any, cell_is_lost: bool) -> None:
    for n, cells in enumerate(record(adapter_of(envs), NUM_ROWS)):
        assert cells == expected_cells(n, len(cells))
        if cell_is_lost:  # one per episode that ended, but for an end in the very last row
            num_ends = sum(terminated or truncated for *_, terminated, truncated in cells)
            assert NUM_ROWS - len(cells) in (num_ends, num_ends - 1)
        else:
            assert len(cells) == NUM_ROWS


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("in_place", [False, True])
def test_our_sync(kind: str, in_place: bool) -> None:
    check(make_vec(lambda: ScriptedEnv(kind, in_place), 3, backend="sync"), cell_is_lost=False)


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copy", [False, True])
def test_gymnasium_sync(kind: str, mode: AutoresetMode, copy: bool) -> None:
    check(gym_sync(kind, autoreset_mode=mode, copy=copy), cell_is_lost=False)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_gymnasium_sync_with_envs_that_overwrite(mode: AutoresetMode) -> None:
    check(gym_sync("dict", in_place=True, autoreset_mode=mode, copy=False), cell_is_lost=False)


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("object_info", [False, True])
def test_a_native_env(kind: str, mode: AutoresetMode, object_info: bool) -> None:
    check(ScriptedVectorEnv(3, mode, kind, object_info), cell_is_lost=mode is AutoresetMode.NEXT_STEP)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("mode", "shared_memory", "cell_is_lost"),
    [
        (AutoresetMode.NEXT_STEP, True, False),
        # gymnasium's worker forgets to take back the autoreset that is due, but the data stays the same.
        (AutoresetMode.NEXT_STEP, False, True),
        (AutoresetMode.SAME_STEP, True, False),
        (AutoresetMode.DISABLED, True, False),
    ],
)
def test_gymnasium_async(mode: AutoresetMode, shared_memory: bool, cell_is_lost: bool) -> None:
    options: dict[str, Any] = {"autoreset_mode": mode, "shared_memory": shared_memory, "copy": False}
    envs = gym.vector.AsyncVectorEnv([partial(ScriptedEnv, "dict")] * 2, **options)
    with closing(envs):
        check(envs, cell_is_lost)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_whole_reset_while_a_workers_autoreset_is_due() -> None:
    envs = gym.vector.AsyncVectorEnv([ScriptedEnv] * 2, shared_memory=False)
    adapter = adapter_of(envs)
    with closing(adapter):
        adapter.step(np.zeros(2, np.int64))  # env 0's first episode has one step
        adapter.advance()
        adapter.reset(first_episode=True)
        step = adapter.step(np.zeros(2, np.int64))
        assert step.valid.tolist() == [False, True]
        adapter.advance()
        assert adapter.state_dict()["clock"]["episode_step"] == [0, 1]
        adapter.reset(first_episode=True)
        for n, cells in enumerate(record(adapter, 12)):
            assert cells == expected_cells(n, len(cells))
            assert len(cells) >= 8


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrap", [RecordEpisodeStatistics, partial(ClipReward, max_reward=100.0)])
def test_masked_resets_go_through_vector_wrappers(wrap: Callable[..., Any], mode: AutoresetMode) -> None:
    check(wrap(gym_sync(autoreset_mode=mode)), cell_is_lost=False)


def test_a_wrapper_that_refuses_masked_resets_costs_cells() -> None:
    adapter = adapter_of(NormalizeObservation(gym_sync()))
    invalid = []
    for _ in range(7):
        step = adapter.step(np.zeros(3, np.int64))
        invalid.append([] if step.valid is None else np.flatnonzero(~step.valid).tolist())
        adapter.advance()
    # Without seeds of the tree every episode is the stranger's, of five steps.
    assert invalid == [[], [], [], [], [], [0, 1, 2], []]


@pytest.mark.parametrize("mode", MODES)
def test_tensor_envs(mode: AutoresetMode) -> None:
    if mode is AutoresetMode.SAME_STEP:
        envs: Any = TensorVectorEnv(ScriptedVectorEnv(3, mode), device="cpu")
    else:
        envs = TensorVectorEnv(gym_sync(autoreset_mode=mode), device="cpu")
    adapter = adapter_of(envs)
    assert isinstance(adapter.obs, torch.Tensor)
    assert adapter.obs is adapter.obs_tensor
    step = adapter.step(adapter.to_env(torch.tensor([0, 1, 2])))
    assert [type(x) for x in (step.next_obs, step.reward, step.terminated)] == [torch.Tensor] * 3
    assert step.reward.dtype == torch.float32
    adapter.reset(first_episode=True)
    for n, cells in enumerate(record(adapter, NUM_ROWS)):
        assert cells == expected_cells(n, NUM_ROWS)


def test_a_native_tensor_env_in_next_step_mode() -> None:
    check(TensorVectorEnv(ScriptedVectorEnv(3, AutoresetMode.NEXT_STEP, "dict"), device="cpu"), cell_is_lost=True)


def test_the_cell_of_a_reset() -> None:
    adapter = adapter_of(ScriptedVectorEnv(2, AutoresetMode.NEXT_STEP))
    adapter.step(np.array([1, 1]))
    adapter.advance()
    step = adapter.step(np.array([1, 1]))  # the env itself claims a reward of 99
    assert step.valid.tolist() == [False, True]
    assert step.next_obs[0].tolist() == [0, 1, 0, 0]
    assert step.reward.tolist() == [0.0, 1.5]
    assert not (step.terminated | step.truncated)[0]
    assert adapter.state_dict()["clock"]["episode_step"] == [0, 2]  # it is no step of the episode
    adapter.advance()
    adapter.step(np.array([1, 1]))
    assert adapter.state_dict()["clock"]["episode_step"] == [1, 3]


def test_metadata_without_a_mode_warns_once() -> None:
    with pytest.warns(UserWarning, match="does not say how it resets") as warned:
        check(ScriptedVectorEnv(3, None), cell_is_lost=True)
    assert len(warned) == 1


def test_a_mode_that_is_a_text() -> None:
    check(ScriptedVectorEnv(3, "NextStep"), cell_is_lost=True)


def test_an_unknown_mode() -> None:
    with pytest.raises(EnvError, match=r"metadata\['autoreset_mode'\] must be a .*AutoresetMode; got 'sometimes'"):
        EnvAdapter(ScriptedVectorEnv(3, "sometimes"))
