"""How many frames an env step takes, as envs of every kind say it, and what logs make of it."""

from functools import partial
from typing import Any

import gymnasium as gym
import pytest

import rltrainer as rl
from rltrainer.errors import ParamsError
from tests.fakes import CountingEnv
from tests.unit.trainers.test_run_log import Rows


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


def preprocessed() -> Any:
    """Skip frames as `AtariPreprocessing` does, which asks for OpenCV: over an env that skips none."""
    return SkipsMore(gym.make("ale_py:ALE/Pong-v5", frameskip=1))


def at_most_of_two() -> Any:
    return gym.wrappers.MaxAndSkipObservation(gym.make("ale_py:ALE/Pong-v5", frameskip=3), skip=2)


CASES: dict[str, tuple[Any, int]] = {
    "says nothing": (CountingEnv, 1),
    "an attribute": (Skips, 4),
    "MuJoCo": ("HalfCheetah-v5", 5),
    "ALE": ("ALE/Pong-v5", 4),
    "as AtariPreprocessing": (preprocessed, 3),
    "MaxAndSkipObservation": (at_most_of_two, 6),
    "a random number": ("ale_py:Pong-v4", 1),
    "the outermost counts": (lambda: SkipsMore(Skips()), 3),
    "unequal": (Unequal(), 1),
    "no number": (partial(Skips, "four"), 1),
    "nothing": (partial(Skips, 0), 1),
    "a flag": (partial(Skips, True), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_what_envs_say(case: str) -> None:
    made, expected = CASES[case]
    envs = rl.make_vec(made, 2, backend="sync")
    assert rl.frame_skip(envs) == expected
    envs.close()


@pytest.mark.parametrize("made", [Skips, CountingEnv])
def test_envs_in_other_processes(made: Any) -> None:
    expected = 4 if made is Skips else 1
    for envs in (rl.make_vec(made, 2, backend="workers"), gym.vector.AsyncVectorEnv([made] * 2)):
        try:
            assert rl.frame_skip(envs) == expected
        finally:
            envs.close()


def test_vector_envs_without_single_envs() -> None:
    for skip in (4, 2):
        envs = rl.make_vec("ALE/Pong-v5", 2, backend="native", frameskip=skip)
        assert rl.frame_skip(envs) == skip
        envs.close()
    assert rl.frame_skip(rl.make_vec("CartPole-v1", 2, backend="native")) == 1
    envs = gym.vector.SyncVectorEnv([Skips] * 2)
    assert rl.frame_skip(gym.wrappers.vector.RecordEpisodeStatistics(envs)) == 4


def test_envpool() -> None:
    pytest.importorskip("envpool")
    for name, skip in (("Pong-v5", 4), ("CartPole-v1", 1)):
        envs = rl.make_vec(name, 2, backend="envpool")
        assert rl.frame_skip(envs) == skip
        envs.close()


@pytest.mark.parametrize("envs", ["CartPole-v1", None, CountingEnv()])
def test_no_vector_env_is_an_error(envs: Any) -> None:
    with pytest.raises(ParamsError, match=r"^frame_skip.envs: must be a gymnasium VectorEnv; got "):
        rl.frame_skip(envs)


@pytest.mark.parametrize(("skip", "frames"), [(4, [40, 80]), (1, [None, None])])
def test_frames_in_the_log(skip: int, frames: list[int | None]) -> None:
    envs, logger = rl.make_vec(partial(Skips, skip), 2, seed=1), Rows(training_interval=1)
    params = rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(rl.ActorCritic.for_envs(envs, hidden_sizes=(8,)), envs),
        max_epochs=1, epoch_num_steps=20, collection_step_num_env_steps=10, logger=logger,
        verbose=False, show_progress=False, runtime=rl.RuntimeParams(compile=False),
    )  # fmt: skip
    rl.PPO(params.training_collector.policy).run_training(params)
    assert [step for step, _ in logger.of("training")] == [10, 20]
    assert [values.get("frames") for _, values in logger.of("training")] == frames
