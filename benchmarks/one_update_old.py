"""A collector whose data is one update old, as from workers that collect while the learner updates; reproducible."""

import copy
from typing import Any

import rltrainer as rl


class OneUpdateOld(rl.Collector):
    """Acts with a copy of the policy, whose weights are those from before the last update step."""

    def __init__(self, policy: rl.Policy, envs: Any, buffer: Any = None) -> None:
        self.actor = copy.deepcopy(policy)
        super().__init__(self.actor, envs, buffer)
        self.policy = policy  # the trainer asks whose it is; the copy acts
        self._newest = copy.deepcopy(policy.state_dict())

    @property
    def has_stale_data(self) -> bool:
        """Return True: the copy's weights are one update old."""
        return True

    def sync(self, counts: Any = None) -> None:
        """Take over what was the newest before the last update; the trainer calls it before it collects."""
        self.actor.load_state_dict(self._newest)
        self._newest = copy.deepcopy(self.policy.state_dict())
        self.actor.version += 1
