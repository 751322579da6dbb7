"""The hindsight replay buffer (Andrychowicz et al. 2017, Hindsight experience replay)."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, Unpack, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.data.ended_trajectories import EndedTrajectories, ReturnsToGo
from rltrainer.data.replay_buffer import BufferOptions, ReplayBuffer
from rltrainer.data.ring import Ring, n_step_windows
from rltrainer.data.storage import Array
from rltrainer.errors import ParamsError, ReplayBufferError, SpaceError
from rltrainer.tree import map_tree, to_array
from rltrainer.types import Sequences, Transitions
from rltrainer.validation.field_rules import PositiveInt, a_callable, checked

GOALS = ("achieved_goal", "desired_goal")
OfGoals = Callable[[Any, Any, dict[str, Any]], Any]
"""Takes achieved goals [M, ...], desired goals [M, ...] and an empty `info`, arrays, and returns [M] values."""
AnyOfGoals = Annotated[OfGoals, a_callable("(achieved_goal, desired_goal, info)")]
Strategy = Literal["future", "final", "episode"]


class HindsightReplayBuffer(ReplayBuffer):
    """Replaces goals that were not reached by goals that were, when it samples.

    Observations are a Dict with the leaves `achieved_goal` and `desired_goal`, of one shape, as in gymnasium's robots.
    Among `num_goals` + 1 transitions, `num_goals` get another `desired_goal`, the achieved goal of a transition of the
    same trajectory, and the reward of that goal. All rewards of n steps have the same goal. No `info` is stored: the
    functions get an empty one.

    Args:
        capacity, observation_space, action_space, num_envs, options: see `ReplayBuffer`, for errors too.
        compute_reward: from achieved and desired goals [M, ...] and info to rewards [M], in one call per sample. The
            successors hold the achieved goals.
        compute_terminated: the same for the ends of episodes, for envs that end one by success; None keeps the ends.
            A window of n steps ends there too.
        num_goals: goals in hindsight for each true one; k in the paper.
        strategy: which transition's achieved goal becomes the goal: "future" draws the transition itself or a later
            one, "episode" any of the trajectory, "final" takes the last.

    Raises:
        SpaceError: the observations have no goals.
    """

    sampler_nbytes = 8  # the numbers of transitions before and after each

    def __init__(
        self,
        capacity: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        num_envs: int = 1,
        *,
        compute_reward: OfGoals,
        compute_terminated: OfGoals | None = None,
        num_goals: int = 4,
        strategy: Strategy = "future",
        **options: Unpack[BufferOptions],
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
            raise SpaceError.about(owner, "observation_space", rule, observation_space)
        super().__init__(capacity, observation_space, action_space, num_envs, **options)
        self._bounds = TrajectoryBounds()

    @classmethod
    def for_env(cls, env: gym.Env[Any, Any], capacity: int, num_envs: int = 1, **options: Any) -> Self:
        """Return a buffer with a single env's spaces, and its `compute_reward` and `compute_terminated`.

        The env has the wrappers of the training; `options` are further arguments of the class. An env without
        `compute_reward`, or no env, is a `ParamsError`.
        """
        if not isinstance(env, gym.Env) or not ("compute_reward" in options or env.has_wrapper_attr("compute_reward")):
            rule, hint = "must be a single gymnasium.Env with a `compute_reward`", "Or pass compute_reward=... too."
            raise ParamsError.about("HindsightReplayBuffer.for_env", "env", rule, env, hint)
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
        """Read any replay buffer's file; `options` are this class's, as a file holds no functions."""
        return cls._load(path, device, capacity, num_envs, **options)

    def sample_sequences(self, *args: Any, **options: Any) -> Sequences:
        """Refuse by a `ReplayBufferError`: goals of sequences are not replaced."""
        raise ReplayBufferError("HindsightReplayBuffer.sample_sequences: goals in hindsight are for `sample` alone")

    def _returns_to_go(self, gamma: float) -> ReturnsToGo:
        raise ReplayBufferError("HindsightReplayBuffer.sample: returns to go are of the goals that were stored")

    def _transitions(self, slots: Tensor, n_step: int, gamma: float) -> Transitions:
        batch = super()._transitions(slots, n_step, gamma)
        # k of k + 1 transitions are relabelled. They are chosen when sampled, so the buffer stores each step once.
        chance = torch.rand(len(slots), generator=self.generator, device=self.device)
        rows = (chance < self.num_goals / (self.num_goals + 1)).nonzero().squeeze(1)
        if len(rows):
            slots = slots[rows]
            before, after = map(self._ring.on_device, self._bounds.of(self._ring, to_array(slots)))
            first = -before if self.strategy == "episode" else torch.zeros_like(after)
            share = torch.rand(len(rows), dtype=torch.float64, generator=self.generator, device=self.device)
            ahead = after if self.strategy == "final" else first + (share * (after - first + 1)).long()
            goals = self._achieved((slots + ahead * self.num_envs) % self.num_slots)
            self._replace_goals(batch, rows, goals, n_step, gamma)
        return batch

    def _achieved(self, slots: Tensor) -> Tensor:
        # The goal that a transition achieves is its successor's.
        return cast(Tensor, self._ring.successors(slots)["achieved_goal"])

    def _replace_goals(self, batch: Transitions, rows: Tensor, goal: Tensor, n_step: int, gamma: float) -> None:
        """Replace the goals of some rows [M] of a batch by others [M, ...], and rewards and ends to match."""
        ring, columns, slots = self._ring, self._ring.columns, batch.index[rows]
        path, inside = ring.path(slots, min(n_step, ring.env_capacity))
        achieved, shape = self._achieved(path.flatten()), path.shape
        goals = goal.expand(shape[0], *goal.shape).flatten(0, 1)
        reward = self._ask("compute_reward", achieved, goals).float().view(shape)
        terminated = was_terminated = columns["terminated"].gather(path.flatten()).view(shape)
        if self.compute_terminated is not None:
            terminated = self._ask("compute_terminated", achieved, goals).bool().view(shape)
            inside[1:] &= (terminated[:-1] & inside[:-1]).cumsum(0) == 0
        last, reward, discount = n_step_windows(path, inside, reward, gamma)
        at_last = (inside.sum(0) - 1).unsqueeze(0)
        ends, was_end = (x.gather(0, at_last).squeeze(0) for x in (terminated, was_terminated))
        batch.reward[rows], batch.terminated[rows] = reward, ends
        batch.discount[rows] = discount.masked_fill(ends, 0.0)
        # An episode that ended at its goal was, with another goal, truncated.
        batch.truncated[rows] = columns["truncated"].gather(last) | (was_end & ~ends)
        for old, new in ((batch.obs, {}), (batch.next_obs, ring.successors(last))):
            for name, leaf in (new | {"desired_goal": goal}).items():
                map_tree(lambda x, y: x.index_copy_(0, rows, y.to(x.dtype)), old[name], leaf)

    def _ask(self, name: str, achieved: Tensor, goal: Tensor) -> Tensor:
        """Return the values [M] of a function of goals [M, ...]; a `ReplayBufferError` if it returns something else."""
        ask, goals = getattr(self, name), to_array(goal)
        found = np.asarray(ask(to_array(achieved), goals, {}))
        # The robots' returns one False for all goals. Another flag for all is of none of them: a distance to the batch.
        if found.shape == () and name == "compute_terminated" and not found and not np.any(ask(goals, goals, {})):
            found = np.full(len(goal), found)
        if found.shape != (len(goal),) or found.dtype.kind not in "fiub" or not np.isfinite(found).all():
            rule = f"must return one finite number per goal, of shape {(len(goal),)}"
            text = f"{rule}; got shape {found.shape} of {found.dtype}. It gets many goals in one call, and no info."
            raise ReplayBufferError(f"HindsightReplayBuffer.{name}: {text}")
        return torch.as_tensor(found, device=self.device)


class TrajectoryBounds:
    """Counts the transitions of a trajectory before and after each slot."""

    def __init__(self) -> None:
        self._trajectories = EndedTrajectories()
        # Counts for ended trajectories; running ones are counted from the newest transition.
        self._before = self._after = np.zeros(0, np.int32)

    def of(self, ring: Ring, slots: Array) -> tuple[Array, Array]:
        """Return how many stored transitions lie before and after slots [M] in their trajectories, int64 each."""
        if len(self._before) != ring.num_slots:
            self._before, self._after = np.zeros((2, ring.num_slots), np.int32)
        for found in self._trajectories.find(ring):
            self._before[found] = count = np.arange(len(found))
            self._after[found] = count[::-1]
        # Each env numbers its transitions from the first that it ever stored.
        env, written, begin = slots % ring.num_envs, ring.written, self._trajectories.begin
        age = ((written - 1)[env] - slots // ring.num_envs) % ring.num_rows
        number = written[env] - 1 - age
        has_ended = number < begin[env]
        before = np.where(has_ended, self._before[slots], number - begin[env])
        oldest = (written - ring.sizes())[env]
        return np.minimum(before, number - oldest), np.where(has_ended, self._after[slots], age)
