"""The hindsight replay buffer (Andrychowicz et al. 2017, Hindsight experience replay)."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.columns import Extra
from rltrainer.data.incoming_cells import to_array
from rltrainer.data.n_step import n_step_windows
from rltrainer.data.replay_buffer import ReplayBuffer
from rltrainer.data.ring import Ring
from rltrainer.data.storage import Array
from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError, field_error_text
from rltrainer.tree import map_tree
from rltrainer.types import Sequences, Transitions
from rltrainer.validation.field_rules import PositiveInt, a_callable, checked

GOALS = ("achieved_goal", "desired_goal")
OfGoals = Callable[[Any, Any, dict[str, Any]], Any]
"""Takes achieved goals [M, ...], desired goals [M, ...] and an empty `info`, arrays, and returns [M] values."""
AnyOfGoals = Annotated[OfGoals, a_callable("(achieved_goal, desired_goal, info)")]
Strategy = Literal["future", "final", "episode"]


class HindsightReplayBuffer(ReplayBuffer):
    """Puts goals that were reached in the place of some that were not, when it samples.

    Observations are a Dict with the leaves `achieved_goal` and `desired_goal`, of one shape, as those of gymnasium's
    robots are. Of `num_goals` + 1 transitions, `num_goals` get as `desired_goal` what a transition of the same trace
    achieved, and the reward that belongs to it. All rewards of n steps have the same goal. No `info` is stored: the
    functions are given an empty one.

    Args:
        capacity, observation_space, action_space, num_envs, device, seed, extra: see `ReplayBuffer`, for what is
            raised too.
        compute_reward: from achieved and desired goals [M, ...] and info to rewards [M], in one call per sample. The
            achieved goals are those of the successors.
        compute_terminated: the same for where the env ends an episode, for envs that end it by success; None leaves the
            ends where they were. A window of n steps ends there too.
        num_goals: goals in hindsight for each true one; k in the paper.
        strategy: whose achievement becomes the goal: "future" draws from the transition itself and those after it,
            "episode" from all of the trace, "final" takes the last.

    Raises:
        SpaceError: the observations have no goals.
    """

    sampler_nbytes = 8  # how many cells of its trace lie before and after each

    def __init__(
        self,
        capacity: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        seed: int | None = None,
        extra: Extra | None = None,
        *,
        compute_reward: OfGoals,
        compute_terminated: OfGoals | None = None,
        num_goals: int = 4,
        strategy: Strategy = "future",
    ) -> None:
        owner = "HindsightReplayBuffer"
        self.compute_reward = checked(owner, "compute_reward", compute_reward, AnyOfGoals)
        self.compute_terminated = checked(owner, "compute_terminated", compute_terminated, AnyOfGoals | None)
        self.num_goals = checked(owner, "num_goals", num_goals, PositiveInt)
        self.strategy = checked(owner, "strategy", strategy, Strategy)
        leaves = observation_space.spaces if isinstance(observation_space, gym.spaces.Dict) else {}
        shapes = [leaves[name].shape if name in leaves else None for name in GOALS]
        if None in shapes or shapes[0] != shapes[1]:
            rule = "must be a Dict with the leaves 'achieved_goal' and 'desired_goal' of one shape"
            raise SpaceError(field_error_text(owner, "observation_space", rule, observation_space))
        super().__init__(capacity, observation_space, action_space, num_envs, device, seed, extra)
        self._bounds = TraceBounds(self._ring)

    @classmethod
    def for_env(cls, env: gym.Env[Any, Any], capacity: int, num_envs: int = 1, **options: Any) -> Self:
        """Return a buffer with an env's spaces, and its `compute_reward` and `compute_terminated`.

        Args:
            env: a single env, wrapped as those are that are trained in.
            capacity: transitions in all.
            num_envs: how many streams there are.
            options: further arguments of the class.

        Raises:
            ParamsError: it is no single env, or has no `compute_reward`.
        """
        if not isinstance(env, gym.Env) or not ("compute_reward" in options or env.has_wrapper_attr("compute_reward")):
            rule, hint = "must be a single gymnasium.Env with a `compute_reward`", "Or pass compute_reward=... too."
            raise ParamsError(field_error_text("HindsightReplayBuffer.for_env", "env", rule, env, hint))
        names = [name for name in ("compute_reward", "compute_terminated") if env.has_wrapper_attr(name)]
        functions = {name: env.get_wrapper_attr(name) for name in names}
        return cls(capacity, env.observation_space, env.action_space, num_envs, **functions | options)

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: torch.device | str = "cpu",
        capacity: int | None = None,
        num_envs: int | None = None,
        **options: Any,
    ) -> Self:
        """Read what any replay buffer's `save` wrote; a file holds no functions, so they are given: see the class."""
        return cls._read(path, device, capacity, num_envs, **options)

    def sample_sequences(self, *args: Any, **options: Any) -> Sequences:
        """Refuse: goals of sequences are not replaced."""
        raise ReplayBufferError("HindsightReplayBuffer.sample_sequences: goals in hindsight are for `sample` alone")

    def _transitions(self, cells: Tensor, n_step: int, gamma: float) -> Transitions:
        batch = super()._transitions(cells, n_step, gamma)
        chance = torch.rand(len(cells), generator=self.generator, device=self.device)
        rows = (chance < self.num_goals / (self.num_goals + 1)).nonzero().squeeze(1)
        if len(rows):
            self._replace_goals(batch, rows, self._draw_achieved(cells[rows]), n_step, gamma)
        return batch

    def _draw_achieved(self, cells: Tensor) -> Tensor:
        """Return a goal that the trace of each cell [M] achieved, [M, ...]."""
        before, after = (torch.from_numpy(count).to(self.device) for count in self._bounds.of(to_array(cells)))
        first = -before if self.strategy == "episode" else torch.zeros_like(after)
        share = torch.rand(len(cells), dtype=torch.float64, generator=self.generator, device=self.device)
        ahead = after if self.strategy == "final" else first + (share * (after - first + 1)).long()
        return self._achieved((cells + ahead * self.num_envs) % self._ring.num_cells)

    def _achieved(self, cells: Tensor) -> Tensor:
        """Return the goals that the successors of cells [M] achieved, [M, ...]."""
        return cast(Tensor, self._ring.successors(cells)["achieved_goal"])

    def _replace_goals(self, batch: Transitions, rows: Tensor, goal: Tensor, n_step: int, gamma: float) -> None:
        """Give some rows [M] of a batch other goals [M, ...], and what follows from them."""
        ring, columns, cells = self._ring, self._ring.columns, batch.index[rows]
        path, inside = ring.path(cells, min(n_step, ring.cells_per_env))
        achieved, shape = self._achieved(path.flatten()), path.shape
        goals = goal.expand(shape[0], *goal.shape).flatten(0, 1)
        reward = self._ask("compute_reward", achieved, goals).float().view(shape)
        was_terminated = columns["terminated"].gather(path.flatten()).view(shape)
        terminated = was_terminated
        if self.compute_terminated is not None:
            terminated = self._ask("compute_terminated", achieved, goals).bool().view(shape)
            inside[1:] &= (terminated[:-1] & inside[:-1]).cumsum(0) == 0
        last, reward, discount = n_step_windows(path, inside, reward, gamma)
        at_last = (inside.sum(0) - 1).unsqueeze(0)
        ends, was_end = (x.gather(0, at_last).squeeze(0) for x in (terminated, was_terminated))
        batch.reward[rows], batch.terminated[rows] = reward, ends
        batch.discount[rows] = discount.masked_fill(ends, 0.0)
        # An episode that ended by reaching its goal has, without it, been truncated.
        batch.truncated[rows] = columns["truncated"].gather(last) | (was_end & ~ends)
        for old, new in ((batch.obs, {}), (batch.next_obs, ring.successors(last))):
            for name, leaf in (new | {"desired_goal": goal}).items():
                map_tree(lambda x, y: x.index_copy_(0, rows, y.to(x.dtype)), old[name], leaf)

    def _ask(self, name: str, achieved: Tensor, goal: Tensor) -> Tensor:
        """Return what a function of the env's makes of goals [M, ...], [M].

        Raises:
            ReplayBufferError: it returned something else.
        """
        found = np.asarray(getattr(self, name)(to_array(achieved), to_array(goal), {}))
        if found.shape == () and name == "compute_terminated":  # the robots' says False to whatever it is asked
            found = np.full(len(goal), found)
        if found.shape != (len(goal),) or found.dtype.kind not in "fiub" or not np.isfinite(found).all():
            hint = "It is asked about many goals at once, and is given no info."
            rule = f"must return one finite number per goal, of shape {(len(goal),)}"
            text = f"HindsightReplayBuffer.{name}: {rule}; got shape {found.shape} of {found.dtype}. {hint}"
            raise ReplayBufferError(text)
        return torch.as_tensor(found, device=self.device)


class TraceBounds:
    """Counts the cells of a trace that lie before and after a cell.

    Cells that were stored since the last question are looked at then, each once. A cell's number is how many cells its
    env had ever stored before it.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        # Of the traces that have ended; those that go on are counted from what was written last.
        self._before, self._after = np.zeros((2, ring.num_cells), np.int32)
        self._memory: object | None = None

    def of(self, cells: Array) -> tuple[Array, Array]:
        """Return how many cells that are stored lie before and after cells [M] in their traces, int64 each."""
        self._catch_up()
        ring, env = self._ring, cells % self._ring.num_envs
        written = ring.written
        age = ((written - 1)[env] - cells // ring.num_envs) % ring.num_rows
        number = written[env] - 1 - age
        has_ended = number < self._begin[env]
        before = np.where(has_ended, self._before[cells], number - self._begin[env])
        oldest = (written - ring.sizes())[env]
        return np.minimum(before, number - oldest), np.where(has_ended, self._after[cells], age)

    def _catch_up(self) -> None:
        """Look at what was stored since the last time, and at the newest cell of then, whose trace may be broken."""
        ring = self._ring
        written, oldest = ring.written, ring.written - ring.sizes()
        if self._memory is not ring.memory:
            self._memory, self._seen, self._begin = ring.memory, oldest, oldest.copy()
        first = np.maximum(self._seen - 1, oldest)
        number = first + np.arange(int((written - first).max(initial=0)))[:, None]  # [rows, N]
        cells = number % ring.num_rows * ring.num_envs + np.arange(ring.num_envs)
        ended = (ring.final.slots.reshape(-1)[cells] > 0) & (number < written) & (number >= self._begin)
        for row, env in np.argwhere(ended).tolist():
            end = int(number[row, env])
            trace = np.arange(max(int(self._begin[env]), int(oldest[env])), end + 1)
            at = trace % ring.num_rows * ring.num_envs + env
            self._before[at], self._after[at] = trace - self._begin[env], end - trace
            self._begin[env] = end + 1
        self._seen = written.copy()
