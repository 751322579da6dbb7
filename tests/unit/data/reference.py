"""A replay buffer written for clarity: a list of transitions per env, and a window that walks along it step by step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rltrainer.data import ReplayBuffer
from rltrainer.types import Rollout, Transitions

OBS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTION = gym.spaces.Discrete(5)


@contextmanager
def raises(error: type[Exception], text: str) -> Iterator[None]:
    """Expect an error whose text contains this."""
    with pytest.raises(error) as found:
        yield
    assert text in str(found.value)


def make_buffer(capacity: int, num_envs: int = 1, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, OBS, ACTION, num_envs, **{"seed": 0, **options})


@dataclass
class Cell:
    """One transition; observations are unique numbers, so that each can be traced."""

    obs: int
    action: int
    reward: float
    next_obs: int
    terminated: bool
    truncated: bool
    broken: bool = False


def cell(obs: int, reward: float = 1.0, after: int | None = None, end: str = "", action: int = 0) -> Cell:
    """Return a transition, by default to the next number; `end`: "t", "u" or "b" for terminated, truncated, both."""
    return Cell(obs, action, reward, obs + 1 if after is None else after, end in ("t", "b"), end in ("u", "b"))


@dataclass
class Reference:
    """What a replay buffer with this many cells per env holds."""

    cells_per_env: int
    num_envs: int
    streams: list[list[Cell]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = [[] for _ in range(self.num_envs)]

    def add(self, env: int, cell: Cell) -> None:
        self.streams[env] = [*self.streams[env], cell][-self.cells_per_env :]

    def end_trajectory(self, env: int) -> None:
        if self.streams[env]:
            self.streams[env][-1].broken = True

    def spans(self) -> Iterator[tuple[list[Cell], int, int, int]]:
        """Yield for each transition its stream, its place there, and where its trajectory begins and ends."""
        for stream in self.streams:
            begins = [0] + [i + 1 for i, c in enumerate(stream) if c.terminated or c.truncated or c.broken]
            for i in range(len(stream)):
                end = min([b for b in begins if b > i], default=len(stream)) - 1
                yield stream, i, max(b for b in begins if b <= i), end

    def expected(self, n_step: int, gamma: float) -> dict[int, tuple[float, ...]]:
        """Return by first observation: action, reward, next_obs, terminated, truncated, discount."""
        return {c.obs: window(cells[i : i + n_step], gamma) for cells in self.streams for i, c in enumerate(cells)}


def window(cells: list[Cell], gamma: float) -> tuple[float, ...]:
    reward, discount = 0.0, 1.0
    for cell in cells:
        reward, discount, last = reward + discount * cell.reward, discount * gamma, cell
        if cell.terminated or cell.truncated or cell.broken:
            break
    discount = 0.0 if last.terminated else discount
    return (cells[0].action, reward, last.next_obs, last.terminated, last.truncated, discount)


def found(batch: Transitions) -> dict[int, tuple[float, ...]]:
    """Arrange a batch as `Reference.expected` does."""
    assert torch.equal(batch.obs[:, 1], -batch.obs[:, 0])
    assert torch.equal(batch.next_obs[:, 1], -batch.next_obs[:, 0])
    columns = (batch.action, batch.reward, batch.next_obs[:, 0], batch.terminated, batch.truncated, batch.discount)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(map(int, batch.obs[:, 0].tolist()), rows, strict=True))


def assert_holds(buffer: ReplayBuffer, reference: Reference, n_step: int = 1, gamma: float = 0.9) -> None:
    """Assert that the buffer samples exactly the reference's transitions."""
    expected = reference.expected(n_step, gamma)
    assert len(buffer) == len(expected)
    sampled = found(buffer.sample(60 * len(expected), n_step=n_step, gamma=gamma))
    assert sampled.keys() == expected.keys()
    for obs, values in expected.items():
        np.testing.assert_allclose(sampled[obs], values, rtol=1e-6)


def as_obs(numbers: Any) -> np.ndarray[Any, Any]:
    """Return the observation (number, -number) of each number [...]."""
    numbers = np.asarray(numbers, np.float32)
    return np.stack([numbers, -numbers], -1)


class World:
    """N envs whose episodes end at random; steps feed a buffer and a reference alike.

    Args:
        seed: of everything that is random.
        num_envs: N.
        p_invalid: how often a cell after an episode's end is spent on a reset.
    """

    def __init__(self, seed: int, num_envs: int, p_invalid: float = 0.0) -> None:
        self.rng, self.num_envs, self.p_invalid = np.random.default_rng(seed), num_envs, p_invalid
        self.number = 0
        self.obs = [self.fresh() for _ in range(num_envs)]
        self.was_done = [False] * num_envs

    def fresh(self) -> int:
        self.number += 1
        return self.number

    def step(self) -> tuple[list[Cell], list[bool]]:
        """Return a cell of every env, and which are valid."""
        cells, valid = [], []
        for env in range(self.num_envs):
            terminated, truncated = self.rng.random(2) < 0.15
            action, reward = int(self.rng.integers(5)), float(self.rng.integers(10))
            cell = Cell(self.obs[env], action, reward, self.fresh(), bool(terminated), bool(truncated))
            is_valid = not (self.was_done[env] and self.rng.random() < self.p_invalid)
            if not is_valid:
                cell.terminated = cell.truncated = False
            self.was_done[env] = cell.terminated or cell.truncated
            # An invalid cell is a reset: what follows has nothing to do with it.
            self.obs[env] = self.fresh() if self.was_done[env] or not is_valid else cell.next_obs
            cells.append(cell)
            valid.append(is_valid)
        return cells, valid

    def restart(self) -> None:
        self.obs = [self.fresh() for _ in range(self.num_envs)]
        self.was_done = [False] * self.num_envs


def columns(cells: list[Cell]) -> tuple[Any, ...]:
    """Return a step of as many envs: obs, action, reward, next_obs, terminated, truncated."""
    rows = ((c.obs, c.action, c.reward, c.next_obs, c.terminated, c.truncated) for c in cells)
    obs, action, reward, next_obs, *flags = map(np.array, zip(*rows, strict=True))
    return as_obs(obs), action, reward, as_obs(next_obs), *flags


def add_step(buffer: ReplayBuffer, reference: Reference | None, cells: list[Cell]) -> None:
    buffer.add(*columns(cells))
    for env, cell in enumerate(cells):
        if reference is not None:
            reference.add(env, cell)


def fill(buffer: Any, *cells: Cell) -> Any:
    """Add the steps of one env; return the buffer."""
    for each in cells:
        add_step(buffer, None, [each])
    return buffer


def roam(buffer: ReplayBuffer, reference: Reference | None, world: "World", num_steps: int) -> None:
    """Add random steps to a buffer and a reference."""
    for _ in range(num_steps):
        add_step(buffer, reference, world.step()[0])


def add_rows(buffer: ReplayBuffer, reference: Reference, rows: list[tuple[list[Cell], list[bool]]]) -> None:
    """Add T steps as a rollout."""
    buffer.add_rollout(make_rollout(rows))
    for cells, valid in rows:
        for env in np.flatnonzero(valid):
            reference.add(env, cells[env])


def played(buffer: ReplayBuffer, reference: Reference, seed: int, num_steps: int) -> Iterator[int]:
    """Add random steps, between which trajectories are ended from outside; yield the number of each."""
    world, rng = World(seed, reference.num_envs), np.random.default_rng(seed)
    for step in range(num_steps):
        if rng.random() < 0.1:
            ended = rng.random(reference.num_envs) < 0.5
            buffer.end_trajectory(ended)
            for env in np.flatnonzero(ended):
                reference.end_trajectory(env)
        add_step(buffer, reference, world.step()[0])
        yield step


def make_rollout(rows: list[tuple[list[Cell], list[bool]]]) -> Rollout:
    """Arrange T steps as a rollout."""

    def grid(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[getattr(cell, name) for cell in cells] for cells, _ in rows], dtype=dtype)

    terminated, truncated = grid("terminated", torch.bool), grid("truncated", torch.bool)
    next_obs = torch.from_numpy(as_obs(grid("next_obs", torch.float32)))
    done = (terminated | truncated).flatten().nonzero().squeeze(1)
    return Rollout(
        obs=torch.from_numpy(as_obs(grid("obs", torch.float32))),
        action=grid("action", torch.int64),
        reward=grid("reward", torch.float32),
        terminated=terminated,
        truncated=truncated,
        valid=torch.tensor([valid for _, valid in rows]),
        last_obs=next_obs[-1],
        final_obs=next_obs.flatten(0, 1)[done],
        final_index=done,
        starts=torch.zeros(terminated.shape[1], dtype=torch.bool),
    )
