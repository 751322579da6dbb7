"""Frames of a step, names of failing envs, and shared envs, of vector envs of every kind."""

import functools
import signal
import sys
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import rltrainer as rl
from rltrainer.envs.backends.sync import SyncVectorEnv
from rltrainer.envs.vector_env import share_an_env
from rltrainer.errors import EnvError
from tests.fakes import CountingEnv, counting_envs, tiny_actor_critic
from tests.unit.loggers.rows import ListLogger as Rows

# Frames of a step


class Skips(CountingEnv):
    def __init__(self, skip: Any = 4) -> None:
        super().__init__()
        self.frame_skip = skip


class SkipsMore(gym.Wrapper[Any, Any, Any, Any]):
    frame_skip = 3


class Unequal:
    """Makes envs that skip 2, 3, ... frames."""

    def __init__(self) -> None:
        self.count = 1

    def __call__(self) -> Any:
        self.count += 1
        return Skips(self.count)


def pong(frameskip: int) -> Any:
    return gym.make("ale_py:ALE/Pong-v5", frameskip=frameskip)


CASES: dict[str, tuple[Any, int]] = {
    "says nothing": (CountingEnv, 1),
    "an attribute": (Skips, 4),
    "MuJoCo": ("HalfCheetah-v5", 5),
    "ALE": ("ALE/Pong-v5", 4),
    "as AtariPreprocessing, which needs OpenCV": (lambda: SkipsMore(pong(1)), 3),
    "MaxAndSkipObservation": (lambda: gym.wrappers.MaxAndSkipObservation(pong(3), skip=2), 6),
    "a random number": ("ale_py:Pong-v4", 1),
    "the outermost counts": (lambda: SkipsMore(Skips()), 3),
    "unequal": (Unequal(), 1),
    "no number": (partial(Skips, "four"), 1),
    "nothing": (partial(Skips, 0), 1),
    "a flag": (partial(Skips, True), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_frames_of_single_envs(case: str) -> None:
    made, expected = CASES[case]
    envs = rl.make_vec(made, 2, backend="sync")
    assert rl.frame_skip(envs) == expected
    envs.close()


@pytest.mark.parametrize(("made", "expected"), [(Skips, 4), (CountingEnv, 1)])
def test_frames_of_envs_in_other_processes(made: Any, expected: int) -> None:
    for envs in (rl.make_vec(made, 2, backend="workers"), gym.vector.AsyncVectorEnv([made] * 2)):
        with closing(envs):
            assert rl.frame_skip(envs) == expected


def test_frames_of_vector_envs_without_single_envs() -> None:
    for skip in (4, 2):
        envs = rl.make_vec("ALE/Pong-v5", 2, backend="native", frameskip=skip)
        assert rl.frame_skip(envs) == skip
        envs.close()
    assert rl.frame_skip(rl.make_vec("CartPole-v1", 2, backend="native")) == 1
    assert rl.frame_skip(RecordEpisodeStatistics(gym.vector.SyncVectorEnv([Skips] * 2))) == 4


def test_frames_of_envpool() -> None:
    pytest.importorskip("envpool")
    for name, skip in (("Pong-v5", 4), ("CartPole-v1", 1)):
        envs = rl.make_vec(name, 2, backend="envpool")
        assert rl.frame_skip(envs) == skip
        envs.close()


@pytest.mark.parametrize(("skip", "frames"), [(4, [40, 80]), (1, [None, None])])
def test_frames_in_the_log(skip: int, frames: list[int | None]) -> None:
    envs, logger = rl.make_vec(partial(Skips, skip), 2, seed=1), Rows(training_interval=1)
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,)), envs),
        max_epochs=1, epoch_num_steps=20, collection_step_num_env_steps=10, logger=logger,
        verbose=False, show_progress=False, runtime=rl.RuntimeParams(compile=False),
    )  # fmt: skip
    rl.PPO(params.training_collector.policy).run_training(params)
    assert [(step, values.get("frames")) for step, values in logger.of("training")] == list(
        zip([10, 20], frames, strict=True)
    )


# Envs that fail within gymnasium's vector envs, which do not name them


class Faulty(CountingEnv):
    """Ends after two steps; fails in a step of this number, or in a reset of this number, counted from 1."""

    def __init__(self, step: int = 0, reset: int = 0, result: Any = None) -> None:
        super().__init__(length=2)
        self.failing_step, self.failing_reset, self.result = step, reset, result

    def reset(self, **options: Any) -> Any:
        if self.num_resets + 1 == self.failing_reset:
            raise KeyError("no level")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        result = super().step(action)
        if self.num_steps == self.failing_step:
            if self.result is not None:
                return self.result
            raise ZeroDivisionError("by hand")
        return result


def failure(cls: Any = gym.vector.SyncVectorEnv, mode: Any = AutoresetMode.NEXT_STEP, **faults: Any) -> EnvError:
    """Return the error of a collection in three envs of which the second one fails."""
    envs = cls([Faulty, partial(Faulty, **faults), Faulty], autoreset_mode=mode)
    collector = rl.Collector(tiny_actor_critic(envs), envs)
    collector.seed(1)
    with pytest.raises(EnvError) as caught:
        collector.collect(num_steps=3 * 8)
    collector.close()
    return caught.value


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_failing_env_is_named_with_its_step(mode: AutoresetMode) -> None:
    error = failure(mode=mode, step=4)
    assert str(error) == "env 1 failed during step 4: ZeroDivisionError: by hand"
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert str(failure(mode=mode, reset=1)) == "env 1 failed during reset after 0 steps: KeyError: 'no level'"
    when = "step 2" if mode is AutoresetMode.SAME_STEP else "reset after 2 steps"
    assert str(failure(mode=mode, reset=2)) == f"env 1 failed during {when}: KeyError: 'no level'"


def test_a_step_of_four_values_gets_a_hint() -> None:
    error = failure(step=1, result=(np.zeros(2, np.float32), 1.0, False, {}))
    assert str(error).startswith("env 1 failed during step 1: ValueError: not enough values to unpack (expected 5")
    assert "step returns (obs, reward, terminated, truncated, info) since gymnasium 0.26" in str(error)
    deep = (np.zeros(2, np.float32), 1.0, False, False, functools.reduce(lambda info, _: {"": info}, range(5000), {}))
    assert str(failure(step=1, result=deep)).startswith("env 1 failed during step 1: RecursionError")


@pytest.mark.parametrize("cls", [gym.vector.SyncVectorEnv, SyncVectorEnv])
@pytest.mark.parametrize(("number", "error"), [(None, EnvError), (signal.SIGUSR1, SystemExit)])
def test_only_a_signal_ends_the_program(cls: Any, number: Any, error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountingEnv, "step", lambda *_: sys.exit() if number is None else signal.raise_signal(number))
    envs, before = cls([CountingEnv] * 2), signal.signal(signal.SIGUSR1, lambda *_: sys.exit())
    try:
        with pytest.raises(error, match="env 0 failed during step 1: SystemExit" if number is None else None):
            rl.Collector(tiny_actor_critic(envs), envs).collect(num_steps=2)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.filterwarnings("ignore:.*ERROR", "ignore:.*WARN")  # gymnasium's log
def test_workers_of_gymnasium_are_named_too() -> None:
    error = failure(gym.vector.AsyncVectorEnv, step=3)
    assert str(error) == "env 1 failed during step 3: ZeroDivisionError: by hand"


def test_a_failure_of_all_envs_together_stays_as_it_is() -> None:
    """Observations of another shape fail where gymnasium stacks them, and not in an env."""
    wrong = (np.zeros(3, np.float32), 1.0, False, False, {})
    envs = gym.vector.SyncVectorEnv([partial(Faulty, step=1, result=wrong), Faulty])
    with pytest.raises(ValueError, match="shape"):
        rl.Collector(tiny_actor_critic(envs), envs).collect(num_steps=2)


# Shared envs


class Holder(gym.vector.VectorEnv[Any, Any, Any]):
    """Wraps a vector env without being one of gymnasium's wrappers."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.num_envs, self.metadata = inner, inner.num_envs, inner.metadata
        self.single_observation_space, self.single_action_space = (
            inner.single_observation_space, inner.single_action_space
        )  # fmt: skip


def same(envs: Any) -> Any:
    return envs


def wrapped(env: Any) -> Any:
    return gym.wrappers.TimeLimit(env, 5)


def vector(backend: str, *envs: Any) -> Any:
    todo = iter(envs)
    if backend == "gymnasium":
        return gym.vector.SyncVectorEnv([lambda env=env: env for env in envs])
    return rl.make_vec(lambda: next(todo), len(envs), backend="sync")


@pytest.mark.parametrize("one", [same, RecordEpisodeStatistics, Holder, lambda x: Holder(RecordEpisodeStatistics(x))])
@pytest.mark.parametrize("other", [same, RecordEpisodeStatistics, Holder])
def test_wrappers_share_a_vector_env(one: Any, other: Any) -> None:
    envs = counting_envs()
    assert share_an_env(one(envs), other(envs))
    assert not share_an_env(one(envs), other(counting_envs()))


@pytest.mark.parametrize("backend", ["ours", "gymnasium"])
@pytest.mark.parametrize("wrap", [same, wrapped])
def test_vectors_share_a_single_env(backend: str, wrap: Any) -> None:
    env = CountingEnv()
    mine = vector("ours", CountingEnv(), env)
    assert share_an_env(mine, vector(backend, wrap(env), CountingEnv()))
    assert share_an_env(vector(backend, wrap(env), CountingEnv()), mine)
    assert not share_an_env(mine, vector(backend, CountingEnv(), CountingEnv()))
