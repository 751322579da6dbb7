"""Parallel envs as PettingZoo has them, whose agents come and go at set steps, and an episode by hand."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

BOX = gym.spaces.Box(-1000.0, 1000.0, (3,), np.float32)
BOTH = {"a": (0, 3), "b": (0, 5)}
"""Agent a leaves after 3 steps, agent b after 5."""

Cell = tuple[list[float], Any, float, list[float], bool, bool]


class Visitors:
    """Each agent observes its number, the step, and its place, which its actions and chance move.

    The reward is `(number + 1) * (1 + action)`.

    Args:
        spans: of each agent the step before which it comes, and the one after which it leaves.
        truncated: who leaves by truncation.
        silent: who leaves without a flag.
        is_masked: whether observations have a mask: all is allowed, and nothing in the last one.
        lingers: whether who has left stays in the list, with the same flags at each step.
    """

    metadata = {"name": "visitors"}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self, spans: Any = None, truncated: Any = (), silent: Any = (), is_masked: bool = False, num_choices: int = 2,
        lingers: bool = False,
    ) -> None:  # fmt: skip
        self.spans, self.truncated, self.silent, self.is_masked = spans or BOTH, truncated, silent, is_masked
        self.lingers = lingers
        self.possible_agents, self.agents = list(self.spans), list[str]()
        self.choices = gym.spaces.Discrete(num_choices)
        self.seeds: list[Any] = []

    def observation_space(self, agent: str) -> Any:
        mask = gym.spaces.Box(0, 1, (int(self.choices.n),), np.int8)
        return gym.spaces.Dict({"observation": BOX, "action_mask": mask}) if self.is_masked else BOX

    def action_space(self, agent: str) -> Any:
        return self.choices

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.random, self.num_steps = np.random.default_rng(seed), 0
        self.place = {name: self.noise() for name in self.spans}
        self.agents = self._present()
        return {name: self._obs(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        acted = self._present()
        assert sorted(actions) == sorted(self.agents), "who is there acts, and nobody else"
        self.num_steps += 1
        for name in acted:
            self.place[name] = 0.5 * self.place[name] + actions[name] + self.noise()
        self.agents = self._present()
        gone = [name for name in acted if name not in self.agents and name not in self.silent]
        if self.lingers:
            gone = [name for name, (_, last) in self.spans.items() if last <= self.num_steps]
            self.agents += gone
        obs = {name: self._obs(name) for name in {*acted, *self.agents}}
        rewards = {name: (self.possible_agents.index(name) + 1.0) * (1 + actions[name]) for name in acted}
        terminations = {name: name in gone and name not in self.truncated for name in [*acted, *gone]}
        truncations = {name: name in gone and name in self.truncated for name in [*acted, *gone]}
        infos: dict[str, Any] = {name: {"count": self.num_steps} if name in gone else {} for name in acted}
        return obs, rewards, terminations, truncations, infos

    def noise(self) -> float:
        return float(self.random.normal())

    def render(self) -> Any:
        return np.full((4, 4, 3), self.num_steps, np.uint8)

    def close(self) -> None:
        pass

    def _present(self) -> list[str]:
        return [name for name, (first, last) in self.spans.items() if first <= self.num_steps < last]

    def _obs(self, name: str) -> Any:
        obs = np.array([self.possible_agents.index(name), self.num_steps, self.place[name]], np.float32)
        mask = np.full(int(self.choices.n), self.num_steps < self.spans[name][1], np.int8)
        return {"observation": obs, "action_mask": mask} if self.is_masked else obs


class Strangers(Visitors):
    """Takes numbers from where nobody can take them again, while `is_strange`."""

    is_strange = True

    def noise(self) -> float:
        return float(os.urandom(1)[0]) if self.is_strange else super().noise()


class Failing(Visitors):
    """Raises in the second step of its first episode, if it is the first to make the file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def step(self, actions: dict[str, Any]) -> Any:
        if self.num_steps == 1 and not self.path.exists():
            self.path.touch()
            raise RuntimeError("broken")
        return super().step(actions)


def choice(obs: Any) -> int:
    """Return what an agent does: it depends on all that it observes."""
    return int(abs(obs[2]) * 10 + obs[0] + obs[1]) % 2


def episode(env: Any, seed: int) -> dict[str, list[Cell]]:
    """Play an episode by hand, and return what each agent went through."""
    obs, _ = env.reset(seed=seed)
    cells: dict[str, list[Cell]] = {name: [] for name in env.possible_agents}
    while env.agents:
        actions = {name: choice(obs[name]) for name in env.agents}
        new, rewards, terminations, truncations, _ = env.step(actions)
        for name, action in actions.items():
            cut = truncations[name] or (name not in env.agents and not terminations[name])
            end = terminations[name], cut
            cells[name].append((obs[name].tolist(), action, rewards[name], new[name].tolist(), *end))
        obs = new
    return cells


def joined(episodes: Iterator[dict[str, list[Cell]]], name: str, num_cells: int) -> list[Cell]:
    """Return the first cells of an agent in many episodes."""
    cells: list[Cell] = []
    for each in episodes:
        cells += each[name]
        if len(cells) >= num_cells:
            break
    return cells[:num_cells]
