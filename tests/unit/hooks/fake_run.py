"""A run whose hooks are called by hand: what it counts is what a test says."""

import dataclasses
import hashlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import rltrainer as rl
from rltrainer.ranks.ranks import ALONE
from tests import batches
from tests.resume.runs import _feed, build


class FakeRun:
    """A `TrainerContext`; `advance` makes a training step, in which intervals become due.

    Args:
        algorithm: what is trained.
        params: fields of the trainer's params that a hook looks at.
    """

    def __init__(self, algorithm: Any = None, **params: Any) -> None:
        names_nothing = SimpleNamespace(may_report=lambda name: False, occasional_metrics=())
        self.algorithm = names_nothing if algorithm is None else algorithm
        self.params: Any = SimpleNamespace(**({"test_collector": None, "seed": None} | params))
        self.counts = dict.fromkeys(("env_step", "gradient_step", "update_step", "training_step", "epoch", "second"), 0)
        self.before = dict(self.counts)
        self.ranks, self.once, self.losses = ALONE, ALONE.once, dict[str, Any]()
        self.result: rl.UpdateResult | None = None
        self.collect_stats: rl.CollectStats | None = None
        self.test_stats: rl.CollectStats | None = None
        self.score: float | None = None
        self.stop_reason: str | None = None
        self.logged: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return vars(self)["counts"][name]

    def advance(self, **counts: int) -> None:
        """Count a training step, and more if told."""
        self.before, self.result = dict(self.counts), None
        for name, count in ({"training_step": 1} | counts).items():
            self.counts[name] += count

    def update(self, **metrics: float) -> None:
        """Make a training step with an update that measured this."""
        self.advance(update_step=1)
        self.result = rl.UpdateResult({name: torch.tensor(float(value)) for name, value in metrics.items()})

    def collect(self, *returns: float, seconds: float = 0.0) -> None:
        """Collect episodes with these returns."""
        self.collect_stats = episodes(*returns, seconds=seconds)

    def count(self, unit: Any) -> float:
        return self.counts[unit]

    def crossed(self, every: rl.Every) -> bool:
        return every.crossed(self.before[every.unit], self.counts[every.unit])

    def request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or f"hook: {reason}"

    def log(self, values: Any) -> None:
        self.logged.append(dict(values))


def episodes(*returns: float, seconds: float = 0.0) -> rl.CollectStats:
    """Return the statistics of episodes of one step each."""
    num = len(returns)
    return rl.CollectStats(num, num, np.array(returns), np.ones(num, np.int64), seconds)


def rollout(reward: list[list[float]], **fields: Any) -> rl.Rollout:
    """Return a rollout of time rows of rewards; observation and action of each cell are its number t * N + n."""
    rewards = torch.tensor(reward)
    cell = torch.arange(rewards.numel()).view(rewards.shape).float()
    values = {"obs": cell.unsqueeze(-1), "action": cell.long(), "starts": torch.ones(len(rewards[0]), dtype=torch.bool)}
    return batches.rollout(**(values | {"reward": rewards} | fields))


def transitions(reward: list[float], **fields: Any) -> rl.Transitions:
    """Return transitions with these rewards; observation i is i."""
    rewards = torch.tensor(reward)
    index = torch.arange(len(rewards))
    obs = index.float().unsqueeze(-1)
    values = {"obs": obs, "action": index, "reward": rewards, "next_obs": obs + 1, "index": index}
    return batches.transitions(**(values | fields))


def with_hooks(run: str, *hooks: rl.TrainerHook, n_step: int | None = None, **changes: Any) -> Any:
    """Return the trainer of a small run, with hooks."""
    trainer = build(run, changes.pop("max_epochs", 3), changes.pop("logger", None))
    if n_step is not None:
        trainer.algorithm.n_step = n_step
    params = dataclasses.replace(trainer.params, hooks=hooks, **changes)
    return params.create_trainer(trainer.algorithm)


def overriding(**points: Any) -> rl.TrainerHook:
    """Return a hook that overrides these points by functions."""
    made = rl.TrainerHook()
    vars(made).update(points)
    return made


def trained(trainer: Any) -> str:
    """Return a hash of all that the run of a trainer has made of its algorithm."""
    trainer.run()
    hasher = hashlib.sha256()
    _feed(hasher, trainer.algorithm.state_dict())
    return hasher.hexdigest()
