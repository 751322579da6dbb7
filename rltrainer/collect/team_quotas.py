"""Episodes of agents, shared among those that appear; and what is told of their teams when these are done."""

from typing import Any

import numpy as np

from rltrainer.collect.episode_infos import InfoReader
from rltrainer.envs.agents.agents_as_envs import TEAM_RETURN, AgentsAsEnvs

Array = np.ndarray[Any, Any]


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
