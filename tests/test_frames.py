"""The calls between a trainer and what it drives: own frames between `execute_epoch` and an env, and a gradient."""

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
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


def from_epoch(names: list[str]) -> list[str]:
    return names[names.index("execute_epoch") :]


def test_frames_to_an_env() -> None:
    seen: list[list[str]] = []
    trainer(seen).execute_epoch()
    assert len(from_epoch(seen[0])) <= 6, seen[0]
    assert seen[0][-2:] == ["step", "step"]  # of the adapter and of the vector env


def test_frames_to_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    grad = torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda *args, **kwargs: (seen.append(own_frames()), grad(*args, **kwargs))[1]
    )
    trainer([]).execute_epoch()
    assert len(from_epoch(seen[0])) <= 7, seen[0]
