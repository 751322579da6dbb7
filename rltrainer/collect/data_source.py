"""The questions of a trainer to the source of its data, wherever the envs are."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from rltrainer.collect.collect_stats import CollectStats
from rltrainer.collect.weight_sync import Counts
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.nets import Exploration, Policy
from rltrainer.types import Load, Rollout, State

# A rollout transform: changes a collection after it was checked, and before it is stored.
Process = Callable[[Rollout], Rollout]


class EpisodeWriter(Protocol):
    """Writes episodes that were recorded."""

    def flush(self) -> None:
        """Write the episodes that ended since the last time; a `CheckpointError` if that fails."""

    def close(self) -> None:
        """Write them, and record no more."""


@runtime_checkable
class DataSource(Protocol):
    """Collects for a trainer, from envs of this process or of others; a `Collector` is one, and explains the names.

    Its `policy` is the algorithm's, `buffer` holds the data, `frame_skip` is its envs' (`rl.frame_skip`).
    `varies_in_length` is True if collections of as many env steps may have different numbers of rows.
    """

    varies_in_length: ClassVar[bool]
    policy: Policy
    num_envs: int
    frame_skip: int
    buffer: ReplayBuffer | RolloutBuffer | None
    exploration: Exploration | None

    def attach_buffer(self, buffer: ReplayBuffer | RolloutBuffer) -> None:
        """Write into this buffer from now on."""

    def seed(self, seed: int) -> None:
        """Seed actions and envs."""

    def reset(self, reset_buffer: bool = False, first_episode: bool = False) -> None:
        """Reset all envs."""

    @property
    def needs_reset(self) -> bool:
        """Return whether the next collection starts with a reset of all envs."""

    def sync(self, counts: Counts | None = None) -> None:
        """Act with the policy's present weights from now on, or as often as `sync_every` says by `counts`."""

    @property
    def has_stale_data(self) -> bool:
        """Return whether a copy of the policy acts; its weights may be older than the policy's."""

    def collect_random(self, num_rows: int) -> Rollout:
        """Return a rollout [num_rows, N] of random actions; nothing is counted or stored."""

    def collect(
        self,
        num_steps: int | None = None,
        num_episodes: int | None = None,
        random: bool = False,
        explore: bool = True,
        process: Process | None = None,
    ) -> CollectStats:
        """Step the envs and store the data."""

    def rollout(self) -> Rollout:
        """Return the data of the last collection [T, N]."""

    def settings(self) -> dict[str, float]:
        """Return further values for rows of training."""

    @property
    def num_env_restarts(self) -> int:
        """The envs that failed so far and were replaced."""

    def record_episodes(self, folder: str | Path) -> EpisodeWriter:
        """Record all episodes that end from now on into files of a folder, for `rltrainer.replay_episode`."""

    def shares_an_env(self, other: "DataSource") -> bool:
        """Return whether a step or reset of the one would move the other."""

    def state_dict(self) -> State:
        """Return the state for a checkpoint; the buffer has its own."""

    def prepare_load(self, state: State) -> Load:
        """Check a whole state, and return a function that loads it."""

    def close(self) -> None:
        """Close the envs; never raises."""
