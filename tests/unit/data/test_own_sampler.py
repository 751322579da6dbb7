"""A sampler of the user's beside a buffer, by public names alone."""

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ReplayBufferError
from rltrainer.ranks.ranks import ALONE

SPACES = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32), gym.spaces.Discrete(2)


class Told:
    """Draws the lowest cells that hold something, and remembers what it was told of."""

    def __init__(self, num_cells: int) -> None:
        self.holds = torch.zeros(num_cells, dtype=torch.bool)
        self.errors: list[tuple[list[int], list[float]]] = []
        self.progress = -1.0

    def stored(self, cells: torch.Tensor) -> None:
        self.holds[cells] = True

    def forgotten(self, cells: torch.Tensor) -> None:
        self.holds[cells] = False

    def copied(self, cells: torch.Tensor, other: Any, source: torch.Tensor) -> None:
        assert isinstance(other, Told)
        assert other.holds[source].all()
        assert self.holds[cells].all()

    def draw(
        self, num_drawable: int, shape: tuple[int, ...], progress: float, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert num_drawable == int(self.holds.sum())
        self.progress = progress
        cells = self.holds.nonzero().flatten()[: shape[-1]]
        return cells.expand(shape).contiguous(), torch.full(shape, 0.5)

    def update(self, cells: torch.Tensor, td_error: torch.Tensor) -> None:
        self.errors.append((cells.tolist(), td_error.tolist()))

    def state_dict(self, cells: torch.Tensor) -> dict[str, Any]:
        return {"num_errors": len(self.errors), "holds": self.holds[cells]}

    def check_state(self, state: dict[str, Any], cells: torch.Tensor) -> None:
        if state.get("holds") is None or len(state["holds"]) != len(cells):
            raise ReplayBufferError("holds: not what this was")

    def set_state(self, state: dict[str, Any], cells: torch.Tensor) -> None:
        self.errors.clear()


class Own(rl.ReplayBuffer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.told = Told(self.num_slots)
        self.sampler = self.told


def filled(num_steps: int, cls: Any = Own, capacity: int = 4) -> Any:
    buffer = cls(capacity, *SPACES, num_envs=2)
    for step in range(num_steps):
        obs = np.full((2, 1), step, np.float32)
        buffer.add(obs, np.zeros(2, np.int64), np.ones(2), obs + 1, np.zeros(2, bool), np.zeros(2, bool))
    return buffer


def test_it_draws_and_weighs() -> None:
    buffer = filled(5)
    assert int(buffer.told.holds.sum()) == len(buffer) == 4
    buffer.follow(lambda: 0.25, ALONE)
    batch = buffer.sample(3, num_batches=2)
    lowest = buffer.told.holds.nonzero().flatten()[:3].tolist()
    assert batch.index.tolist() == [lowest, lowest]
    assert batch.weight.tolist() == [[0.5] * 3] * 2
    assert buffer.told.progress == 0.25
    assert buffer.sample_sequences(2, 1).index.shape == (1, 2)
    buffer.clear()
    assert not buffer.told.holds.any()


def test_it_is_told_of_errors_if_there_are_any() -> None:
    buffer = filled(3)
    buffer.update_priorities(
        torch.tensor([[1, 2], [3, 1]]), torch.tensor([[0.5, -1.0], [2.0, 0.0]], requires_grad=True)
    )
    buffer.update_priorities(torch.tensor([1]), None)
    assert buffer.told.errors == [([1, 2], [0.5, -1.0]), ([3, 1], [2.0, 0.0])]  # batch by batch, the newest last
    uniform = filled(3, rl.ReplayBuffer)
    uniform.update_priorities(torch.tensor([1]), torch.tensor([1.0]))  # nobody is told
    assert uniform.sampler is None


def test_it_is_saved_appended_and_mixed(tmp_path: Any) -> None:
    buffer, other = filled(5), filled(1, capacity=8)
    buffer.save(tmp_path / "own.safetensors")
    again = Own.load(tmp_path / "own.safetensors")
    assert torch.equal(again.sample(2).index, buffer.sample(2).index)
    other.extend(buffer)
    assert int(other.told.holds.sum()) == len(other) == 6
    mixed = rl.MixedBuffer(filled(2), buffer)
    mixed.update_priorities(torch.tensor([0, buffer.num_slots + 1]), torch.tensor([3.0, 4.0]))
    assert mixed.online.told.errors == [([0], [3.0])]  # type: ignore[attr-defined]
    assert buffer.told.errors == [([1], [4.0])]
    state = buffer.state_dict()
    del state["sampler"]["holds"]
    with pytest.raises(ReplayBufferError, match=r"ReplayBuffer.load_state_dict: sampler.holds: not what this was$"):
        buffer.load_state_dict(state)


def test_it_comes_before_the_first_transition() -> None:
    buffer = filled(1, rl.ReplayBuffer)
    with pytest.raises(ReplayBufferError) as caught:
        buffer.sampler = Told(buffer.num_slots)
    text = str(caught.value)
    assert text.startswith("ReplayBuffer.sampler: must be set before anything is stored; got ")
    assert text.endswith(" (Told). Set it in the constructor of your buffer.")
    assert buffer.sampler is None


class Doubled(rl.PrioritizedReplayBuffer):
    """Overrides `sample` with its documented arguments."""

    def sample(
        self, batch_size: int, *, n_step: int = 1, gamma: float = 0.99, num_batches: int | None = None
    ) -> rl.Transitions:
        batch = super().sample(batch_size, n_step=n_step, gamma=gamma, num_batches=num_batches)
        batch.reward = 2.0 * batch.reward
        return batch


def test_an_algorithm_samples_from_a_buffer_with_a_sample_of_its_own() -> None:
    buffer = filled(40, partial(Doubled, beta=rl.LinearSchedule(0.4, 1.0)), capacity=64)
    dqn = rl.DQN(rl.QNetwork.for_spaces(*SPACES, hidden_sizes=(8,)))
    dqn.attach(rl.UpdatePlan(lambda: 1.0))
    assert dqn.update_from(buffer, 8, 3).num_gradient_steps == 3
    assert buffer.sampler._beta == 1.0
