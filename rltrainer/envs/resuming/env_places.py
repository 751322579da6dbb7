"""The places of envs within their episodes: what is kept of them, and how envs are brought back there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rltrainer.envs.adapter.episode_seeds import EpisodeClock, Rows
from rltrainer.envs.adapter.observation_memory import ObsMemory
from rltrainer.envs.episodes.recorder import EpisodeRecorder
from rltrainer.envs.resuming.action_trail import ActionTrail, as_array
from rltrainer.envs.resuming.adapter_state import NO_ROWS, AdapterState, warn_of_lost
from rltrainer.envs.resuming.repeat import differing, repeat_episodes
from rltrainer.envs.resuming.saving import find_saveable, load_of
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.field_rules import AnyPath, checked
from rltrainer.tree import Tree, leaves, rebuild
from rltrainer.types import Load


@dataclass(slots=True)
class Place:
    """A place of all envs that was loaded, while they are not there yet.

    Args:
        state: what was loaded.
        lost: the envs that cannot go there, and start a new episode.
        load: loads the envs' own state; None if they have none.
    """

    state: AdapterState
    lost: Rows
    load: Load | None


class EnvPlaces:
    """Knows how the envs of a vector env come to where they were.

    Args:
        envs: all of them.
        can_repeat: whether an env's episode comes from its seed and actions.
        trail: keeps the actions that can be repeated.

    Attributes:
        trail: None where the envs save their own state, or nothing helps.
    """

    def __init__(self, envs: gym.vector.VectorEnv[Any, Any, Any], can_repeat: bool, trail: ActionTrail) -> None:
        self._envs, self._can_repeat = envs, can_repeat
        self._saveable = find_saveable(envs)
        self.trail = trail if can_repeat and self._saveable is None else None

    def record(self, folder: str | Path, first_env: int) -> EpisodeRecorder:
        """Return what records episodes that end.

        Args:
            folder: where their files are written.
            first_env: the index of the first env, where the envs of several adapters are recorded.

        Raises:
            ParamsError: no episode of these envs follows from its seed and actions alone, or `folder` is no path.
        """
        folder = Path(checked("Collector.record_episodes", "folder", folder, AnyPath))
        if self.trail is None:
            rule = "must be False for envs whose episodes do not follow from their seeds and actions alone"
            hint = 'Use rl.make_vec(..., backend="sync"), and no SaveableEnv.'
            raise ParamsError(field_error_text("CheckpointParams", "record_episodes", rule, True, hint))
        return EpisodeRecorder(folder, self.trail, first_env)

    def save(self, state: AdapterState, obs: Tree, resetting: Rows | None) -> None:
        """Add to a state what brings the envs to where they are."""
        if self._saveable is not None:
            state.envs = self._saveable.state_dict()
            state.resetting = [] if resetting is None else resetting.tolist()
        elif self.trail is not None:
            state.actions = np.concatenate([self.trail.of(n, count) for n, count in enumerate(state.num_kept.tolist())])
        if state.envs is not None or state.actions is not None:
            state.obs = [as_array(leaf).copy() for leaf in leaves(obs)]

    def check(self, state: AdapterState, is_masked: bool) -> Place:
        """Check what brings envs to their places, and warn of those that cannot go there; `is_masked`: one by one."""
        saveable = None if state.envs is None else self._saveable
        lost = state.lost(self._can_repeat, saveable is not None, is_masked)
        return Place(state, lost, None if saveable is None else load_of(saveable, state.envs or {}))

    def bring(
        self, place: Place, clock: EpisodeClock, memory: ObsMemory, env_device: torch.device | None, returns: Any
    ) -> Rows:
        """Bring envs, which were just reset, to a place; return those that did not come there [K].

        Args:
            place: what `check` returned.
            clock: where each env is.
            memory: for the observations of there.
            env_device: of envs that take tensors.
            returns: of the running episodes [N] or [N, A]; None is not compared.
        """
        state, trail = place.state, self.trail
        if place.load is not None:
            place.load()
            memory.write(rebuild(memory.obs, state.obs or []))
        if place.load is not None or state.actions is None or not self._can_repeat:
            return NO_ROWS
        table, num_steps = state.table(), state.num_kept
        seeds = clock.episode_seeds(np.arange(len(num_steps)))
        repeated = repeat_episodes(self._envs, seeds, table, num_steps, memory, env_device)
        if trail is not None:
            trail.restore(table, num_steps)
        failed = repeated.failed | differing(state.obs or [], memory.obs)
        if returns is not None and repeated.returns is not None:
            is_same = repeated.returns == returns if repeated.returns.shape == returns.shape else np.zeros(len(failed))
            failed |= ~is_same.reshape(len(failed), -1).astype(np.bool_).all(1)
        failed &= num_steps > 0
        if failed.any():
            why = "did not come back to where they were when the actions of their episode were repeated"
            warn_of_lost(np.flatnonzero(failed), why)
        return np.flatnonzero(failed)
