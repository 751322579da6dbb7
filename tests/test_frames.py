"""The calls between a user's `run()` and an env, a gradient, and an exchange of ranks: frames of the library."""

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.ranks.ranks import Ranks
from rltrainer.trainers import shards
from tests.fakes import CountingEnv

PACKAGE = str(Path(rl.__file__).parent)


def own_frames() -> list[str]:
    """Return the functions of the library on the stack, outermost first."""
    return [frame.name for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)]


def trainer(seen: list[list[str]]) -> rl.OnPolicyTrainer:
    class Watched(CountingEnv):
        def step(self, action: Any) -> Any:
            seen.append(own_frames())
            return super().step(action)

    envs = rl.make_vec(Watched, 2, seed=1)
    algorithm = rl.PPO(rl.ActorCritic.for_envs(envs), rl.PPOParams())
    collector = rl.Collector(algorithm.policy, envs)
    params = rl.OnPolicyTrainerParams(
        training_collector=collector, max_epochs=1, epoch_num_steps=8, collection_step_num_env_steps=8, batch_size=8,
        runtime=rl.RuntimeParams(compile=False), verbose=False, show_progress=False,
    )  # fmt: skip
    return rl.OnPolicyTrainer(algorithm, params)


def test_frames_to_an_env() -> None:
    seen: list[list[str]] = []
    trainer(seen).run()
    assert len(seen[0]) <= 7, seen[0]
    assert seen[0][-2:] == ["step", "step"]  # of the adapter and of the vector env


def test_frames_to_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    grad = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *args, **kwargs: (seen.append(own_frames()), grad(*args, **kwargs))[1]
    )
    trainer([]).run()
    assert len(seen[0]) <= 8, seen[0]


class Two(Ranks):
    """The first of two processes, which trains alone as the second one does."""

    def _gather(self, x: torch.Tensor, is_equal: bool) -> list[torch.Tensor]:
        return [x, x]


def test_frames_to_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    mean = Two.mean
    monkeypatch.setattr(shards, "process_ranks", lambda *_: Two(0, 2))
    monkeypatch.setattr(Two, "mean", lambda self, x: (seen.append([*own_frames(), "mean"]), mean(self, x))[1])
    trainer([]).run()
    assert len(next(names for names in seen if "gradient_step" in names)) <= 12, seen
