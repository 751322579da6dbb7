"""Counts episodes while envs are stepped: running returns and lengths, quotas, and what has ended."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rltrainer.collect.collect_stats import CollectStats
from rltrainer.collect.episode_infos import InfoReader
from rltrainer.envs import AgentsAsEnvs
from rltrainer.envs.agents.agents_as_envs import TEAM_RETURN
from rltrainer.errors import CheckpointError
from rltrainer.types import Load

Array = np.ndarray[Any, Any]


@dataclass
class RunningEpisodes:
    """Returns [N] or [N, A], float64, and lengths [N], int64, of the episodes that are running."""

    returns: Array
    lengths: Array


class EpisodeCounter:
    """Running return and length of each of N envs, and the episodes that ended since `start`.

    With a quota, an env that has ended its share of episodes is not counted any further.

    Args:
        num_envs: N.
        min_length: steps of the shortest episode that is counted.
        infos: reads what the envs tell at the end of episodes; None if nobody asks.
        agents: the envs, if rows are agents; None if each is an env.

    Attributes:
        num_dropped: how many were shorter, ever.
    """

    def __init__(
        self, num_envs: int, min_length: int = 1, infos: InfoReader | None = None, agents: AgentsAsEnvs | None = None
    ) -> None:
        self.num_envs, self.min_length, self.num_dropped = num_envs, min_length, 0
        self._infos, self._agents = infos, agents
        self.restart()
        self.start(None)

    def restart(self) -> None:
        """Forget the running episodes: all envs were started anew."""
        self._return: Array = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, np.int64)

    @property
    def running_return(self) -> Array:
        """The returns of the running episodes so far [N] or [N, A]."""
        return self._return

    @property
    def running_length(self) -> Array:
        """The steps of the running episodes so far [N]."""
        return self._length

    def running(self) -> RunningEpisodes | None:
        """Return the running episodes; None if none has a step."""
        return RunningEpisodes(self._return.copy(), self._length.copy()) if self._length.any() else None

    def prepare_load(self, running: RunningEpisodes | None) -> Load:
        """Check running episodes that were saved, and return what goes on with them.

        Raises:
            CheckpointError: they are of other envs, or none.
        """
        if running is None:
            return self.restart
        returns, lengths, num_envs = running.returns, running.lengths, self.num_envs
        if returns.dtype != np.float64 or returns.shape[:1] != (num_envs,) or returns.ndim > 2:
            text = f"expected float64 ({num_envs},), found {returns.dtype} {returns.shape}"
            raise CheckpointError(f"collector.episodes.returns: {text}")
        if not np.isfinite(returns).all():
            raise CheckpointError("collector.episodes.returns: holds NaN or infinity")
        if lengths.dtype != np.int64 or lengths.shape != (num_envs,) or (lengths < 0).any():
            text = f"expected non-negative int64 ({num_envs},), found {lengths.dtype} {lengths.shape}"
            raise CheckpointError(f"collector.episodes.lengths: {text}")

        def load() -> None:
            self._return, self._length = returns.copy(), lengths.copy()

        return load

    def forget(self, rows: Array) -> None:
        """Forget the running episodes of some envs [K], which start a new one."""
        self._return[rows], self._length[rows] = 0.0, 0

    def start(self, num_episodes: int | None) -> None:
        """Begin a collection; with `num_episodes`, shared among the envs as evenly as possible."""
        self.num_valid = 0
        self._ended_returns: list[Array] = []
        self._ended_lengths: list[Array] = []
        self._ended_infos: list[Array] = []
        self.open: Array | None = None
        self._teams: TeamQuotas | None = None
        if num_episodes is not None:
            self._teams = None if self._agents is None else TeamQuotas(self._agents, self._infos)
            share, rest = divmod(num_episodes, self.num_envs)
            self._quota = share + (np.arange(self.num_envs) < rest)
            self.open = self._quota > 0

    def add(self, reward: Array, finished: Array | None, valid: Array | None) -> Array | None:
        """Count one step of all envs, with rewards [N] or [N, A]; `finished` and `valid` as in an `EnvStep`.

        Returns:
            which cells count [N], or None if all do: valid, and of an env whose quota is not used up.

        Raises:
            CheckpointError: the running episodes were read from a file, and are of other agents.
        """
        counted = valid if self.open is None else self.open.copy() if valid is None else self.open & valid
        if reward.shape != self._return.shape:
            self._begin_with(reward.shape)
        if counted is None:
            self._return += reward
            self._length += 1
            self.num_valid += self.num_envs
        else:
            self._return[counted] += reward[counted]
            self._length += counted
            self.num_valid += int(counted.sum())
        if self._teams is not None:
            self._teams.add(valid)
        if finished is not None:
            ended = finished if counted is None else finished[counted[finished]]
            if self.min_length > 1:
                ended = self._drop_short(ended)
            num_before = sum(map(len, self._ended_lengths)) if self._teams is not None else 0
            self._ended_returns.append(self._return[ended])
            self._ended_lengths.append(self._length[ended])
            if self._infos is not None:
                self._ended_infos.append(self._infos.of_ended(ended))
            # Also of an episode that a restart broke off: the next one must not inherit from it.
            self._return[finished], self._length[finished] = 0.0, 0
            if self.open is not None:
                self._quota[ended] -= 1
                if self._teams is not None:
                    self._teams.end(finished, ended, num_before, self._quota)
                self.open = self._quota > 0
        return counted

    def _begin_with(self, shape: tuple[int, ...]) -> None:
        """Begin with the first rewards of this shape, which say how many agents there are."""
        if self._length.any():
            text = f"expected those of rewards {shape}, found {self._return.shape}"
            raise CheckpointError(f"collector.episodes.returns: {text}")
        self._return = np.zeros(shape)

    def _drop_short(self, ended: Array) -> Array:
        """Return the envs [K] whose episode was long enough, and count the others."""
        is_short = self._length[ended] < self.min_length
        self.num_dropped += int(is_short.sum())
        self.num_valid -= int(self._length[ended[is_short]].sum())
        return ended[~is_short]

    @property
    def is_complete(self) -> bool:
        """Tell whether every env has used up its quota, and no team's end has anything to tell of one."""
        return self.wanted is not None and not self.wanted.any()

    @property
    def wanted(self) -> Array | None:
        """The envs [N] that must go on to another episode when theirs has ended; None is all."""
        return self.open if self.open is None or self._teams is None else self.open | self._teams.waiting

    @property
    def returns(self) -> Array:
        """Returns of the episodes that ended [E] or [E, A]."""
        none = np.zeros((0, *self._return.shape[1:]))
        return np.concatenate(self._ended_returns) if self._ended_returns else none

    @property
    def lengths(self) -> Array:
        """Lengths of the episodes that ended [E]."""
        return np.concatenate(self._ended_lengths) if self._ended_lengths else np.zeros(0, np.int64)

    def stats(self, num_env_steps: int | None, seconds: float) -> CollectStats:
        """Return the statistics since `start`; without a number of env steps, only those that count were taken."""
        infos = {} if self._infos is None else self._infos.by_key(self._ended_infos)
        if self._teams is not None:
            self._teams.tell(infos)
        return CollectStats(
            num_collected_steps=self.num_valid,
            num_env_steps=self.num_valid if num_env_steps is None else num_env_steps,
            returns=self.returns,
            lengths=self.lengths,
            collect_time=seconds,
            infos=infos,
        )

    def longest(self) -> tuple[int, int]:
        """Return the env of a collection by episodes whose running episode is the longest, and its steps."""
        length = self._length if self.open is None else np.where(self.open, self._length, 0)
        return int(length.argmax()), int(length.max())


class TeamQuotas:
    """The quotas of teams whose agents are the rows of a collection by episodes.

    An agent that took no part in an episode of its team hands its quota to those that did: it may never appear. A
    team's return is known when the team's episode ends. So a collection that is asked for it goes on until then, and
    the last episode that was counted of the team is told it, where that of the row which tells it is not counted.

    Args:
        envs: whose rows are agents.
        infos: reads what they tell; None if nobody asks.
    """

    def __init__(self, envs: AgentsAsEnvs, infos: InfoReader | None) -> None:
        self._size, num_teams = envs.num_agents, envs.num_envs // envs.num_agents
        self._took_part = np.zeros((num_teams, self._size), np.bool_)
        self._reader = infos if infos is not None and TEAM_RETURN in infos.keys else None
        self._to_tell = np.full(num_teams, -1)  # the number of the last counted episode of the running team's
        self._told: dict[int, float] = {}

    @property
    def waiting(self) -> Array:
        """Tell which rows [N] are of a team whose end has something to tell of an episode that was counted."""
        return np.repeat(self._to_tell >= 0, self._size)

    def add(self, valid: Array | None) -> None:
        """Note a step: `valid` says which agents took part in it [N], None that all did."""
        self._took_part |= True if valid is None else valid.reshape(self._took_part.shape)

    def end(self, finished: Array, counted: Array, number: int, quota: Array) -> None:
        """Note the ends of episodes.

        Args:
            finished: all rows whose episode ended with this step [K]; at a team's end these are all its rows.
            counted: those of them that are counted.
            number: of the episodes that were counted before.
            quota: of each row [N], without these; those of agents that did not appear are shared out.
        """
        if self._reader is not None:
            self._to_tell[counted // self._size] = number + np.arange(len(counted))
        num_finished = np.bincount(finished // self._size, minlength=len(self._to_tell))
        for team in np.flatnonzero(num_finished == self._size).tolist():
            rows = np.arange(self._size) + team * self._size
            if self._to_tell[team] >= 0:
                self._tell(team, rows, counted)
            self._share(quota, rows, self._took_part[team])
            self._took_part[team] = False

    def tell(self, infos: dict[str, Array]) -> None:
        """Write the returns of teams into the infos of the episodes that are told them."""
        for number, value in self._told.items():
            infos[TEAM_RETURN][number] = value

    def _tell(self, team: int, rows: Array, counted: Array) -> None:
        assert self._reader is not None, "only then is an episode to be told"
        values = self._reader.of_ended(rows)[:, self._reader.keys.index(TEAM_RETURN)]
        tells = rows[~np.isnan(values)]
        if len(tells) and not np.isin(tells, counted).any():
            self._told[int(self._to_tell[team])] = float(values[~np.isnan(values)][0])
        self._to_tell[team] = -1

    def _share(self, quota: Array, rows: Array, took_part: Array) -> None:
        """Share the quotas of those rows of a team that took no part among the others: to the shortest first."""
        present, absent = rows[took_part], rows[~took_part]
        if not len(present):  # the team was made anew before its first step
            return
        left, quota[absent] = int(quota[absent].sum()), 0
        for _ in range(left):
            quota[present[quota[present].argmin()]] += 1
