"""Counts episodes while envs are stepped: running returns and lengths, quotas, and the episodes that have ended."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rltrainer.collect.collect_stats import CollectStats
from rltrainer.collect.episode_infos import InfoReader
from rltrainer.data.storage import Array
from rltrainer.envs import AgentsAsEnvs
from rltrainer.envs.agents.agents_as_envs import TEAM_RETURN
from rltrainer.errors import CheckpointError


@dataclass
class RunningEpisodes:
    """Returns [N] or [N, A], float64, and lengths [N], int64, of the running episodes."""

    returns: Array
    lengths: Array

    def problem(self) -> str | None:
        """Return the fault of episodes from a file, or None."""
        returns, lengths = self.returns, self.lengths
        if returns.dtype != np.float64 or returns.ndim not in (1, 2) or len(returns) != len(lengths):
            return f"returns: expected float64 ({len(lengths)},), found {returns.dtype} {returns.shape}"
        if not np.isfinite(returns).all():
            return "returns: holds NaN or infinity"
        if lengths.dtype != np.int64 or lengths.ndim != 1 or (lengths < 0).any():
            return f"lengths: expected non-negative int64 ({len(lengths)},), found {lengths.dtype} {lengths.shape}"
        return None


class EpisodeCounter:
    """Running return and length of each of N envs, and the episodes that ended since `start`.

    Episodes shorter than `min_length` are counted in `num_dropped` only; `agents` are the envs where rows are agents.
    """

    def __init__(
        self, num_envs: int, min_length: int = 1, infos: InfoReader | None = None, agents: AgentsAsEnvs | None = None
    ) -> None:
        self.num_envs, self.min_length, self.num_dropped = num_envs, min_length, 0
        self._infos, self._agents = infos, agents
        self.restart()
        self.start(None)

    def restart(self) -> None:
        """Forget the running episodes: all envs were reset."""
        self.running = RunningEpisodes(np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64))

    def get_state(self) -> RunningEpisodes | None:
        """Return the running episodes; None if none has a step."""
        running = self.running
        return RunningEpisodes(running.returns.copy(), running.lengths.copy()) if running.lengths.any() else None

    def check_state(self, state: RunningEpisodes | None) -> None:
        """Raise a `CheckpointError` unless episodes are of as many envs."""
        if state is not None and len(state.lengths) != self.num_envs:
            text = f"expected those of {self.num_envs} envs, found those of {len(state.lengths)}"
            raise CheckpointError(f"collector.episodes: {text}")

    def set_state(self, state: RunningEpisodes | None) -> None:
        """Continue episodes that were checked."""
        if state is None:
            self.restart()
        else:
            self.running = RunningEpisodes(state.returns.copy(), state.lengths.copy())  # a file is mapped read-only

    def forget(self, rows: Array) -> None:
        """Forget the running episodes of some envs [K], which start a new one."""
        self.running.returns[rows], self.running.lengths[rows] = 0.0, 0

    def start(self, num_episodes: int | None) -> None:
        """Start a collection, with `num_episodes` shared among the envs: each is counted up to its quota."""
        self.num_valid = 0
        self._ended: tuple[list[Array], list[Array], list[Array]] = [], [], []  # returns, lengths, infos
        self.open: Array | None = None
        self._teams: TeamQuotas | None = None
        if num_episodes is not None:
            self._teams = None if self._agents is None else TeamQuotas(self._agents, self._infos)
            # Fixed before the first step: with "the first so many that end", short episodes would be preferred.
            share, rest = divmod(num_episodes, self.num_envs)
            self._quota = share + (np.arange(self.num_envs) < rest)
            self.open = self._quota > 0

    def add(self, reward: Array, finished: Array | None, valid: Array | None) -> Array | None:
        """Count one step of all envs, with rewards [N] or [N, A]; `finished` and `valid` as in an `EnvStep`.

        Return which steps count [N], or None if all do: the valid steps of envs with a quota left. Rewards of another
        shape than a loaded state's are a `CheckpointError`.
        """
        counted = valid if self.open is None else self.open.copy() if valid is None else self.open & valid
        if reward.shape != self.running.returns.shape:  # the first rewards tell the number of agents
            if self.running.lengths.any():
                text = f"expected those of rewards {reward.shape}, found {self.running.returns.shape}"
                raise CheckpointError(f"collector.episodes.returns: {text}")
            self.running.returns = np.zeros(reward.shape)
        returns, lengths = self.running.returns, self.running.lengths
        if counted is None:
            returns += reward
            lengths += 1
            self.num_valid += self.num_envs
        else:
            returns[counted] += reward[counted]
            lengths += counted
            self.num_valid += int(counted.sum())
        if self._teams is not None:
            self._teams.add(valid)
        if finished is not None:
            ended = finished if counted is None else finished[counted[finished]]
            if self.min_length > 1:
                is_short = lengths[ended] < self.min_length
                self.num_dropped += int(is_short.sum())
                self.num_valid -= int(lengths[ended[is_short]].sum())
                ended = ended[~is_short]
            num_before = sum(map(len, self._ended[1])) if self._teams is not None else 0
            self._ended[0].append(returns[ended])
            self._ended[1].append(lengths[ended])
            if self._infos is not None:
                self._ended[2].append(self._infos.of_ended(ended))
            # Also of an episode that a restart broke off: the next one must not inherit from it.
            self.forget(finished)
            if self.open is not None:
                self._quota[ended] -= 1
                if self._teams is not None:
                    self._teams.end(finished, ended, num_before, self._quota)
                self.open = self._quota > 0
        return counted

    def add_rows(self, reward: Tensor, done: Tensor) -> tuple[Array, Array]:
        """Count rows [T, N] on any device; return the rows and the envs where episodes ended [E], in time order."""
        num_rows, num_envs = reward.shape
        total = reward.double().cumsum(0)
        place = done.t().nonzero().t()  # by env, then by time
        # One copy from the device: each is a wait for it. A float64 holds these numbers exactly.
        found = torch.cat([*place.double(), total[place[1], place[0]], total[-1]]).cpu().numpy()
        env, row, at_end, at_last = np.split(found, np.arange(1, 4) * place.shape[1])
        env, row = env.astype(np.int64), row.astype(np.int64)
        # What an env had gained and how long it had run when its episode before ended; of its first one, before these
        # rows: a negative number.
        is_first = np.diff(env, prepend=-1) != 0
        gained = np.where(is_first, -self.running.returns[env], np.roll(at_end, 1))
        began = np.where(is_first, -1 - self.running.lengths[env], np.roll(row, 1))
        order = np.lexsort((env, row))
        self._ended[0].append((at_end - gained)[order])
        self._ended[1].append((row - began)[order])
        self.num_valid += num_rows * num_envs
        self.running.returns, self.running.lengths = self.running.returns + at_last, self.running.lengths + num_rows
        self.running.returns[env], self.running.lengths[env] = at_last[env] - at_end, num_rows - 1 - row
        return row[order], env[order]

    @property
    def is_complete(self) -> bool:
        """Return whether a collection by episodes needs no env any more."""
        return self.wanted is not None and not self.wanted.any()

    @property
    def wanted(self) -> Array | None:
        """The envs [N] that start another episode when theirs has ended; None is all."""
        return self.open if self.open is None or self._teams is None else self.open | self._teams.waiting

    @property
    def lengths(self) -> Array:
        """Lengths of the episodes that ended [E]."""
        return np.concatenate([np.zeros(0, np.int64), *self._ended[1]])

    def stats(self, num_env_steps: int | None, seconds: float) -> CollectStats:
        """Return the statistics since `start`; without a number of env steps, only the steps that count were taken."""
        infos = {} if self._infos is None else self._infos.by_key(self._ended[2])
        if self._teams is not None:
            for number, value in self._teams.returns.items():
                infos[TEAM_RETURN][number] = value
        return CollectStats(
            num_collected_steps=self.num_valid,
            num_env_steps=self.num_valid if num_env_steps is None else num_env_steps,
            returns=np.concatenate([np.zeros((0, *self.running.returns.shape[1:])), *self._ended[0]]),
            lengths=self.lengths,
            collect_time=seconds,
            infos=infos,
        )

    def longest(self) -> tuple[int, int]:
        """Return the env with the longest running episode in a collection by episodes, and the episode's steps."""
        lengths = self.running.lengths
        lengths = lengths if self.open is None else np.where(self.open, lengths, 0)
        return int(lengths.argmax()), int(lengths.max())


class TeamQuotas:
    """The quotas of teams, with agents as the rows of a collection by episodes."""

    # An agent that took no part in an episode of its team hands its quota to the others: it may never appear. A team's
    # return is known only when the team's episode ends: the collection waits for it, and writes it to the last counted
    # episode of the team where the row that reports it is not counted.

    def __init__(self, envs: AgentsAsEnvs, infos: InfoReader | None) -> None:
        self._size, num_teams = envs.num_agents, envs.num_envs // envs.num_agents
        self._took_part = np.zeros((num_teams, self._size), np.bool_)
        self._reader = infos if infos is not None and TEAM_RETURN in infos.keys else None
        self._last_counted = np.full(num_teams, -1)  # the number of the running team's last counted episode
        self.returns: dict[int, float] = {}  # by the number of the episode that gets it in its infos

    @property
    def waiting(self) -> Array:
        """Return which rows [N] belong to a team with a counted episode that still waits for its return."""
        return np.repeat(self._last_counted >= 0, self._size)

    def add(self, valid: Array | None) -> None:
        """Take in a step: `valid` says which agents took part in it [N], None that all did."""
        self._took_part |= True if valid is None else valid.reshape(self._took_part.shape)

    def end(self, finished: Array, counted: Array, number: int, quota: Array) -> None:
        """Take in the ends of episodes of rows [K], the counted ones of them, and the number that counted before."""
        if self._reader is not None:
            self._last_counted[counted // self._size] = number + np.arange(len(counted))
        num_finished = np.bincount(finished // self._size, minlength=len(self._last_counted))
        for team in np.flatnonzero(num_finished == self._size).tolist():
            rows = np.arange(self._size) + team * self._size
            if self._reader is not None and self._last_counted[team] >= 0:
                values = self._reader.of_ended(rows)[:, self._reader.keys.index(TEAM_RETURN)]
                has_value = ~np.isnan(values)
                if has_value.any() and not np.isin(rows[has_value], counted).any():
                    self.returns[int(self._last_counted[team])] = float(values[has_value][0])
                self._last_counted[team] = -1
            present, absent = rows[self._took_part[team]], rows[~self._took_part[team]]
            if len(present):  # else the team was restarted before its first step
                left, quota[absent] = int(quota[absent].sum()), 0
                for _ in range(left):
                    quota[present[quota[present].argmin()]] += 1
            self._took_part[team] = False
