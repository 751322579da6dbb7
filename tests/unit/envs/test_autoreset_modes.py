"""Every autoreset mode yields the same transitions per env, the shorter list a prefix of the longer."""

from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import ClipReward, NormalizeObservation, NormalizeReward, RecordEpisodeStatistics

from rltrainer.envs import EnvAdapter, make_vec
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.errors import EnvError
from tests.fakes import CountingEnv
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


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("mode", MODES)
def test_gymnasium_sync_with_envs_that_overwrite(mode: AutoresetMode, kind: str) -> None:
    is_lost, text = mode is AutoresetMode.SAME_STEP, "^env 0 wrote the first observation of its next episode into the"
    with pytest.raises(EnvError, match=text) if is_lost else nullcontext():
        check(gym_sync(kind, in_place=True, autoreset_mode=mode, copy=False), cell_is_lost=False)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("in_place", [False, True])
def test_an_async_env_that_overwrites_final_observations_is_warned_of(in_place: bool) -> None:
    envs = gym.vector.AsyncVectorEnv(
        [partial(ScriptedEnv, "box", in_place)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    text = "the final observations of 10 episodes equal the first ones of the next episodes. If the env writes all into"
    with pytest.warns(UserWarning, match=text) if in_place else nullcontext(), closing(envs):
        record(adapter_of(envs), NUM_ROWS)


@pytest.mark.parametrize("kind", ["box", "dict"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("object_info", [False, True])
def test_a_native_env(kind: str, mode: AutoresetMode, object_info: bool) -> None:
    check(ScriptedVectorEnv(3, mode, kind, object_info), cell_is_lost=mode is AutoresetMode.NEXT_STEP)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("mode", "shared_memory", "cell_is_lost"), [
    (AutoresetMode.NEXT_STEP, True, False),
    # gymnasium's worker forgets to take back the autoreset that is due, but the data stays the same.
    (AutoresetMode.NEXT_STEP, False, True),
    (AutoresetMode.SAME_STEP, True, False),
    (AutoresetMode.DISABLED, True, False),
])  # fmt: skip
def test_gymnasium_async(mode: AutoresetMode, shared_memory: bool, cell_is_lost: bool) -> None:
    options: dict[str, Any] = {"autoreset_mode": mode, "shared_memory": shared_memory, "copy": False}
    envs = gym.vector.AsyncVectorEnv([partial(ScriptedEnv, "dict")] * 2, **options)
    with closing(envs):
        check(envs, cell_is_lost)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_masked", [True, False])
def test_a_whole_reset_while_a_workers_autoreset_is_due(is_masked: bool) -> None:
    envs = gym.vector.AsyncVectorEnv([ScriptedEnv] * 2, shared_memory=False)
    vars(envs)["supports_masked_reset"] = is_masked
    adapter = adapter_of(envs)
    with closing(adapter):
        while (finished := adapter.step(np.zeros(2, np.int64)).finished) is None:
            adapter.advance()
        adapter.advance()
        adapter.reset(first_episode=True)
        is_valid = [n not in finished for n in range(2)]
        assert adapter.step(np.zeros(2, np.int64)).valid.tolist() == is_valid
        adapter.advance()
        assert adapter.state_dict()["clock"]["episode_step"] == list(map(int, is_valid))
        adapter.reset(first_episode=True)
        for n, cells in enumerate(record(adapter, 12) if is_masked else []):
            assert cells == expected_cells(n, len(cells))
            assert len(cells) >= 8


class Smoothing:
    """Observes a moving average; if it declares so, it keeps to the mask."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        rows = options["reset_mask"] if options and getattr(self, "supports_masked_reset", False) else ...
        obs, infos = super().reset(seed=seed, options=options)  # type: ignore[misc]  # of a vector env
        self.mean: Any = obs.copy() if rows is ... else self.mean
        self.mean[rows] = obs[rows]
        return self.mean.copy(), infos

    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)  # type: ignore[misc]
        self.mean = (self.mean + obs) / np.float32(2)
        return self.mean.copy(), *rest


class SmoothObservation(gym.vector.VectorObservationWrapper):
    mean: Any = 0.0

    def observations(self, observations: Any) -> Any:
        self.mean = (self.mean + observations) / np.float32(2)
        return self.mean.copy()


Smooth: Any = type("Smooth", (Smoothing, gym.vector.VectorWrapper), {})
SmoothSync: Any = type("SmoothSync", (Smoothing, gym.vector.SyncVectorEnv), {})
Refusing: Any = type("Refusing", (ClipReward,), {"supports_masked_reset": False})
COUNTING = [partial(CountingEnv, length) for length in (4, 7, 5)]
NOTHING = np.zeros(3, np.int64)
STACKS: dict[str, tuple[Callable[..., Any], bool]] = {  # whether single envs can be reset
    "bare": (lambda envs: envs, True),
    "without a reset": (lambda envs: ClipReward(envs, 0, 9), True),
    "declared": (type("Declared", (Smooth,), {"supports_masked_reset": True}), True),
    "refusing": (lambda envs: Refusing(envs, 0, 9), False),
    "wrapper": (lambda envs: ClipReward(Smooth(envs), 0, 9), False),
    "statistics": (RecordEpisodeStatistics, False),
    "rewards": (NormalizeReward, False),
    "normalizer": (NormalizeObservation, False),
    "observations": (SmoothObservation, False),
    "subclass": (lambda envs: SmoothSync(envs.env_fns, autoreset_mode=envs.autoreset_mode), False),
}


def transitions(rows: Any) -> list[list[Any]]:
    """Return each env's transitions, without the steps that it spent on a reset."""
    return [[[float(x[n]) for x in row] for *row, valid in rows if valid[n]] for n in range(3)]


def by_hand(envs: Any, mode: AutoresetMode) -> Any:
    """Step as gymnasium's documentation of the mode says."""
    obs, valid = envs.reset(seed=1)[0].copy(), np.ones(3, np.bool_)
    for _ in range(NUM_ROWS):
        after, reward, done, _, info = envs.step(NOTHING)
        next_obs = after.copy()
        for n in np.flatnonzero(done) if mode is AutoresetMode.SAME_STEP else ():
            next_obs[n] = info["final_obs"][n]
        yield obs[:, 1], next_obs[:, 1], np.float32(reward), done, valid
        obs, valid = after.copy(), ~done if mode is AutoresetMode.NEXT_STEP else valid
        if mode is AutoresetMode.DISABLED and done.any():
            obs[done] = envs.reset(options={"reset_mask": done.copy()})[0][done]


def by_adapter(envs: Any) -> Any:
    adapter = adapter_of(envs)
    for _ in range(NUM_ROWS):
        obs, step = adapter.obs.copy(), adapter.step(NOTHING)
        valid = np.ones(3, np.bool_) if step.valid is None else step.valid
        yield obs[:, 1], step.next_obs[:, 1].copy(), step.reward.copy(), step.terminated.copy(), valid
        adapter.advance()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stack", STACKS)
def test_a_layer_with_a_memory_equals_steps_by_hand(stack: str, mode: AutoresetMode) -> None:
    wrap, is_masked = STACKS[stack]
    impossible = {"normalizer": MODES[1:], "observations": MODES[1:2], "declared": MODES[1:2]}
    if mode in impossible.get(stack, []):
        return  # gymnasium makes no such envs; `Smooth` leaves final observations as they are
    envs = wrap(gym.vector.SyncVectorEnv(COUNTING, autoreset_mode=mode))
    if mode is AutoresetMode.DISABLED and not is_masked:
        with pytest.raises(EnvError, match=r"^\w+\.reset: in autoreset mode DISABLED .*Wrap the single envs"):
            EnvAdapter(envs)
        return
    by_mode = AutoresetMode.DISABLED if is_masked else mode
    other = wrap(gym.vector.SyncVectorEnv(COUNTING, autoreset_mode=by_mode))
    found = transitions(list(by_adapter(envs)))
    assert found == transitions(list(by_hand(other, by_mode)))
    assert all((len(cells) < NUM_ROWS) is (by_mode is AutoresetMode.NEXT_STEP) for cells in found)
    assert getattr(envs, "length_queue", None) == getattr(other, "length_queue", None)


def test_statistics_of_our_envs_keep_to_the_mask() -> None:
    envs = RecordEpisodeStatistics(SyncVectorEnv(COUNTING))
    assert len(list(by_adapter(envs))) == NUM_ROWS
    assert sorted(envs.length_queue) == [4] * 10 + [5] * 8 + [7] * 5
    with pytest.raises(EnvError, match="If it does, write supports_masked_reset = True in the class Smooth"):
        EnvAdapter(Smooth(SyncVectorEnv(COUNTING)))


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
