"""The collector: the only place that steps envs."""

import copy
import logging
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltrainer.collect.episodes import EpisodeCounter
from rltrainer.collect.finite import check_finite, check_obs_finite
from rltrainer.collect.random_action import random_action
from rltrainer.collect.stats import CollectStats
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.envs import EnvAdapter
from rltrainer.errors import NonFiniteError, ParamsError, SpaceError, field_error_text
from rltrainer.nets import Exploration, Policy
from rltrainer.nets.modes import switch_to_eval
from rltrainer.seeding import derive_seed, make_generator
from rltrainer.spaces import describe_mismatch
from rltrainer.types import Rollout, State

LONG_EPISODE = 100_000
"""Steps after which an episode that others wait for is worth a word."""


class Collector:
    """Steps a policy in a vector env and writes what happens into a buffer.

    A collection goes into a rollout first; a `ReplayBuffer` receives it at the end, once it is known to be finite. So
    a faulty env leaves nothing of its collection behind, and off-policy data has the same form as on-policy data.

    While envs are stepped, the policy is in eval mode: dropout is off, and batch norms take their running statistics.

    Args:
        policy: chooses the actions.
        envs: any gymnasium vector env, in any autoreset mode.
        buffer: a `ReplayBuffer` or `RolloutBuffer`; None stores nothing.
        exploration: replaces the policy's own exploration.
        max_episode_steps: `collect(num_episodes=)` truncates an episode that gets as long as this, so that one without
            an end cannot hold it up; None waits.

    Raises:
        SpaceError: the envs' spaces are not the policy's or the buffer's.
        ParamsError: an argument is of another kind.
    """

    def __init__(
        self,
        policy: Policy,
        envs: gym.vector.VectorEnv[Any, Any, Any],
        buffer: ReplayBuffer | RolloutBuffer | None = None,
        exploration: Exploration | None = None,
        max_episode_steps: int | None = None,
    ) -> None:
        if not isinstance(envs, gym.vector.VectorEnv):
            hint = "Make one with rl.make_vec(env_id, num_envs=1)."
            raise ParamsError(field_error_text("Collector", "envs", "must be a gymnasium VectorEnv", envs, hint))
        if not isinstance(policy, Policy):
            raise ParamsError(field_error_text("Collector", "policy", "must be a Policy", policy))
        if max_episode_steps is not None:
            _check_count("Collector", "max_episode_steps", max_episode_steps)
        self.policy, self.envs, self.exploration = policy, envs, exploration
        self.max_episode_steps = max_episode_steps
        self.adapter = EnvAdapter(envs, policy.device)
        self.num_envs = self.adapter.num_envs
        _require_same_spaces("policy", policy, self.adapter)
        self.buffer: ReplayBuffer | RolloutBuffer | None = None
        self.rollout_buffer: RolloutBuffer | None = None
        if buffer is not None:
            self.attach_buffer(buffer)
        self.generator = make_generator(None, policy.device)
        self.num_rows = 0
        self._episodes = EpisodeCounter(self.num_envs)
        self._needs_reset = True
        self._has_warned = False

    def attach_buffer(self, buffer: ReplayBuffer | RolloutBuffer) -> None:
        """Write into this buffer from now on.

        Raises:
            SpaceError: it holds other spaces than the envs'.
            ParamsError: it is no buffer, or made for another number of envs.
        """
        if not isinstance(buffer, ReplayBuffer | RolloutBuffer):
            raise ParamsError(field_error_text("Collector", "buffer", "must be a ReplayBuffer or None", buffer))
        _require_same_spaces("buffer", buffer, self.adapter)
        if buffer.num_envs != self.num_envs:
            rule = f"must be made for num_envs={self.num_envs}"
            raise ParamsError(field_error_text("Collector", "buffer.num_envs", rule, buffer.num_envs))
        self.buffer = buffer
        if isinstance(buffer, RolloutBuffer):
            self.rollout_buffer = buffer
        else:
            spaces = (self.adapter.observation_space, self.adapter.action_space)
            self.rollout_buffer = RolloutBuffer(1, self.num_envs, *spaces, extra=buffer.extra)

    def seed(self, seed: int) -> None:
        """Seed actions, and the envs that carry no seed of their own."""
        self.generator.manual_seed(derive_seed(seed, "action"))
        self.adapter.seed(derive_seed(seed, "env"))

    def reset(self, reset_buffer: bool = False, first_episode: bool = False) -> None:
        """Start all envs anew.

        Args:
            reset_buffer: also empty the buffer.
            first_episode: start from the very first episodes' seeds again, as every test step does.
        """
        self.adapter.reset(first_episode=first_episode)
        self._episodes.restart()
        self._needs_reset = False
        if isinstance(self.buffer, ReplayBuffer):
            self.buffer.cut()
        if self.rollout_buffer is not None:
            self.rollout_buffer.restart()
        if reset_buffer and self.buffer is not None:
            self.buffer.clear()

    def collect(
        self, num_steps: int | None = None, num_episodes: int | None = None, random: bool = False, explore: bool = True
    ) -> CollectStats:
        """Step the envs and store what happened; exactly one of the two counts is given.

        Args:
            num_steps: env steps; rounded up to a multiple of the number of envs.
            num_episodes: whole episodes, shared among the envs; all envs start anew, and exactly this many are
                counted and stored, so that which ones are does not depend on their lengths. No env is reset after its
                last one, if it can be left out of steps; it starts anew with the next collection.
            random: act uniformly at random instead of asking the policy.
            explore: whether the policy explores.

        Returns:
            statistics of the collection.

        Raises:
            ParamsError: both or neither count, or one that is not positive; or `max_episode_steps` cannot be kept.
            NonFiniteError: an env returned NaN or infinity; nothing of the collection was stored.
        """
        _check_counts(num_steps, num_episodes)
        if num_episodes is not None and self.max_episode_steps is not None:
            self._check_limit(num_episodes)
        started = time.perf_counter()
        if self._needs_reset or (num_episodes is not None and not self.adapter.is_fresh):
            self.reset()
        self._episodes.start(num_episodes)
        if self.rollout_buffer is not None:
            self.rollout_buffer.clear()
        switched = switch_to_eval(self.policy)
        try:
            num_rows = self._step_envs(num_steps, random, explore)
            self._store()
        except BaseException:
            # Whatever broke off half-way must not be continued by the next collection.
            self._needs_reset = True
            raise
        finally:
            for module in switched:
                module.training = True
        # Envs past their quota are in the middle of episodes that nobody counts.
        self._needs_reset = num_episodes is not None
        num_valid = self._episodes.num_valid
        return CollectStats(
            num_collected_steps=num_valid,
            num_env_steps=num_valid if num_episodes is not None else num_rows * self.num_envs,
            returns=self._episodes.returns,
            lengths=self._episodes.lengths,
            collect_time=time.perf_counter() - started,
        )

    def look_aside(self, num_rows: int) -> Rollout:
        """Return what random actions lead to, before the first collection [T, N]; nothing is counted or stored.

        Actions and episodes have random streams of their own, and the envs start anew afterwards, where they would have
        started without.
        """
        seed = derive_seed(self.generator.initial_seed(), "aside")  # drawn from nothing that others draw from
        other = copy.copy(self)
        spaces = (self.adapter.observation_space, self.adapter.action_space)
        buffer = RolloutBuffer(num_rows, self.num_envs, *spaces, device=self.policy.device)
        other.buffer = other.rollout_buffer = buffer
        other.generator = make_generator(derive_seed(seed, "action"), self.generator.device)
        other._episodes, other._needs_reset = EpisodeCounter(self.num_envs), True
        self._needs_reset = True
        with self.adapter.aside(derive_seed(seed, "env")):
            other.collect(num_steps=num_rows * self.num_envs, random=True)
        return buffer.rollout()

    @property
    def starts_anew(self) -> bool:
        """Whether the next collection begins with a reset of all envs."""
        return self._needs_reset

    def rollout(self) -> Rollout:
        """Return what the last collection stored [T, N].

        Raises:
            ParamsError: the collector has no buffer.
        """
        if self.rollout_buffer is None:
            raise ParamsError(field_error_text("Collector", "buffer", "must be given to look at what was stored", None))
        return self.rollout_buffer.rollout()

    def state_dict(self) -> State:
        """Return the state of generator, envs and counters; the buffer has its own."""
        # Envs that the next collection starts anew need no place in an episode, only the numbers of their episodes.
        restarts = {"is_started": False} if self._needs_reset else {}
        return {
            "generator": self.generator.get_state(),
            "adapter": self.adapter.state_dict() | restarts,
            "num_rows": self.num_rows,
            "needs_reset": self._needs_reset,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; envs in the middle of an episode start a new one, with a warning."""
        self.generator.set_state(state["generator"].cpu())
        self.num_rows = state["num_rows"]
        self._needs_reset = state["needs_reset"]
        self._episodes.restart()
        if self.rollout_buffer is not None:
            self.rollout_buffer.restart()
        self.adapter.load_state_dict(state["adapter"])

    def close(self) -> None:
        """Close the envs; never raises."""
        self.adapter.close()

    @torch.no_grad()
    def _step_envs(self, num_steps: int | None, random: bool, explore: bool) -> int:
        """Step until the count is reached; return the number of rows, one step of all envs each."""
        adapter, episodes, buffer = self.adapter, self._episodes, self.rollout_buffer
        stores_env_action = isinstance(self.buffer, ReplayBuffer) or not adapter.changes_actions
        max_rows = None if num_steps is None else -(-num_steps // self.num_envs)
        limit = self.max_episode_steps if num_steps is None else None
        row = 0
        while not episodes.is_complete if max_rows is None else row < max_rows:
            try:
                action = self._choose(random, explore)
            except NonFiniteError as error:
                check_obs_finite(adapter.obs_tensor, self.num_rows + row)
                raise NonFiniteError(f"{type(self.policy).__name__}, step {self.num_rows + row}: {error}") from error
            env_action = adapter.to_env(action)
            step = adapter.step(env_action, limit)
            counted = episodes.add(_as_array(step.reward), step.finished, step.valid)
            if buffer is not None:
                if step.reward.ndim > 1:
                    raise SpaceError(
                        f"Collector: rewards of shape {tuple(step.reward.shape)} are several agents'; no algorithm "
                        "trains on them. Reduce them to one reward per env in a wrapper."
                    )
                # An array costs the buffer a tenth of what a tensor does.
                stored = env_action if stores_env_action else _as_array(action)
                buffer.add(adapter.obs, stored, step.reward, step.next_obs, step.terminated, step.truncated, counted)
            adapter.advance(episodes.open)
            row += 1
            if max_rows is None and row % LONG_EPISODE == 0:
                self._warn_of_long_episode()
        self.num_rows += row
        return row

    def _warn_of_long_episode(self) -> None:
        """Say once that an episode may never end."""
        env, num_steps = self._episodes.longest()
        if num_steps < LONG_EPISODE or self._has_warned:
            return
        self._has_warned = True
        text = "Collector.collect(num_episodes=...): env %d is %d steps into an episode and still waits for its end. "
        hint = "Give it a time limit (gymnasium.wrappers.TimeLimit), or Collector(..., max_episode_steps=...)."
        logging.getLogger("rltrainer").warning(text + hint, env, num_steps)

    def _check_limit(self, num_episodes: int) -> None:
        """Check that an env whose episode was truncated need not begin another, if it cannot be reset by itself."""
        if num_episodes > self.num_envs and not self.adapter.can_reset_one:
            rule = f"must be None for {num_episodes} episodes in {self.num_envs} envs that cannot be reset one by one"
            hint = 'Use rl.make_vec(..., backend="sync"), as many envs as episodes, or a time limit in the env.'
            raise ParamsError(field_error_text("Collector", "max_episode_steps", rule, self.max_episode_steps, hint))

    def _choose(self, random: bool, explore: bool) -> Tensor:
        if random:
            return random_action(self.adapter.action_space, self.num_envs, self.generator)
        if self.exploration is None or not explore:
            return self.policy.decide(self.adapter.obs_tensor, explore=explore, generator=self.generator)
        greedy = self.policy.decide(self.adapter.obs_tensor, explore=False, generator=self.generator)
        return self.exploration(greedy, self.adapter.action_space, self.policy.progress(), self.generator)

    def _store(self) -> None:
        returns = self._episodes.returns
        if len(returns) and not np.isfinite(returns).all():
            episode = int(np.argwhere(~np.isfinite(returns))[0][0])
            raise NonFiniteError(f"episode {episode} of this collection: return = {returns[episode]}")
        if self.rollout_buffer is None:
            return
        if not self.rollout_buffer.is_finite():
            try:
                check_finite(self.rollout_buffer.rollout(), self.num_rows)
            except NonFiniteError:
                self.rollout_buffer.clear()
                raise
        if isinstance(self.buffer, ReplayBuffer):
            row = self.rollout_buffer.single_row()
            if row is not None:
                self.buffer.add(*row)
            else:
                self.buffer.add_rollout(self.rollout_buffer.rollout())


def _check_counts(num_steps: int | None, num_episodes: int | None) -> None:
    if (num_steps is None) == (num_episodes is None):
        got = f"num_steps={num_steps!r}, num_episodes={num_episodes!r}"
        raise ParamsError(f"Collector.collect: exactly one of num_steps and num_episodes must be given; got {got}")
    for name, value in (("num_steps", num_steps), ("num_episodes", num_episodes)):
        if value is not None:
            _check_count("Collector.collect", name, value)


def _check_count(owner: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ParamsError(field_error_text(owner, name, "must be a positive integer", value))


def _require_same_spaces(what: str, owner: Any, adapter: EnvAdapter) -> None:
    for name in ("observation_space", "action_space"):
        mismatch = describe_mismatch(f"Collector.{what}.{name}", getattr(adapter, name), getattr(owner, name))
        if mismatch:
            raise SpaceError(f"{mismatch}. Build the {what} for the spaces of these envs.")


def _as_array(values: Any) -> np.ndarray[Any, Any]:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
