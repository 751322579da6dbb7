"""Arguments of a collector: what it can be given, and what it cannot."""

from typing import Any

import gymnasium as gym

from rltrainer.collect.data_source import Process
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.data.columns import Extra
from rltrainer.envs import AgentsAsEnvs, EnvAdapter
from rltrainer.errors import NonFiniteError, ParamsError, SpaceError, field_error_text
from rltrainer.nets import Policy
from rltrainer.spaces import describe_mismatch
from rltrainer.types import Rollout
from rltrainer.validation.field_rules import PositiveInt, checked


def check_counts(num_steps: int | None, num_episodes: int | None) -> tuple[int | None, int | None]:
    """Return the two counts of a collection as Python's integers; a `ParamsError` unless one is given, and positive."""
    if type(num_steps) is int and num_steps > 0 and num_episodes is None:  # as most often
        return num_steps, None
    if (num_steps is None) == (num_episodes is None):
        got = f"num_steps={num_steps!r}, num_episodes={num_episodes!r}"
        rule, hint = "exactly one of num_steps and num_episodes must be given", "Write collect(num_steps=1000)."
        raise ParamsError(f"Collector.collect: {rule}; got {got}. {hint}")
    if num_steps is not None:
        return checked("Collector.collect", "num_steps", num_steps, PositiveInt), None
    return None, checked("Collector.collect", "num_episodes", num_episodes, PositiveInt)


def require_envs(envs: object) -> None:
    """Raise a `ParamsError` unless it is a vector env."""
    if not isinstance(envs, gym.vector.VectorEnv):
        hint = "Make one with rl.make_vec(env_id, num_envs=1)."
        hint = "The policy comes first: Collector(policy, envs)." if isinstance(envs, Policy) else hint
        raise ParamsError(field_error_text("Collector", "envs", "must be a gymnasium VectorEnv", envs, hint))


def require_policy(owner: str, policy: object) -> None:
    """Raise a `ParamsError` unless it is a policy."""
    if not isinstance(policy, Policy):
        hint = "Pass algorithm.policy." if hasattr(policy, "policy") else "Build one: ActorCritic.for_envs(envs)."
        raise ParamsError(field_error_text(owner, "policy", "must be a Policy", policy, hint))


def required_limit(adapter: EnvAdapter, max_episode_steps: int | None, num_episodes: int | None) -> int | None:
    """Return the steps after which a collection truncates an episode; None if it need not, as teams do so themselves.

    Raises:
        ParamsError: an env whose episode was truncated would have to begin another, and cannot be reset by itself.
    """
    envs, is_limited = adapter.envs.unwrapped, num_episodes is not None and max_episode_steps is not None
    if isinstance(envs, AgentsAsEnvs):
        envs.max_episode_steps = max_episode_steps if is_limited else None
        return None
    if is_limited and (num_episodes or 0) > adapter.num_envs and not adapter.can_reset_one:
        rule = f"must be None for {num_episodes} episodes in {adapter.num_envs} envs that cannot be reset one by one"
        hint = 'Use rl.make_vec(..., backend="sync"), as many envs as episodes, or a time limit in the env.'
        raise ParamsError(field_error_text("Collector", "max_episode_steps", rule, max_episode_steps, hint))
    return max_episode_steps if is_limited else None


def require_same_spaces(what: str, owner: Any, adapter: Any) -> None:
    """Raise a `SpaceError` unless a policy or buffer is made for the spaces of the envs of an adapter or collector."""
    for name in ("observation_space", "action_space"):
        found = getattr(owner, name)
        where, expected = f"Collector.{what}.{name}", getattr(adapter, name)
        mismatch = describe_mismatch(where, expected, found, with_bounds=name == "action_space")
        if mismatch:
            raise SpaceError(f"{mismatch}. Build the {what} for the spaces of these envs.")


def require_buffer(owner: str, policy: Policy, source: Any, buffer: object, whose: str = "") -> None:
    """Check what a collector, or its adapter, is to write into.

    Args:
        owner: the collector's class.
        policy: what fills the buffer's columns.
        source: has the envs' spaces, and their number.
        buffer: what is checked.
        whose: says of what the envs are all.

    Raises:
        SpaceError: it holds other spaces than the envs'.
        ParamsError: it is no buffer, made for another number of envs, or declares extras that nobody would fill.
    """
    if not isinstance(buffer, ReplayBuffer | RolloutBuffer):
        raise ParamsError(
            field_error_text(
                owner, "buffer", "must be a ReplayBuffer or None", buffer, "Write rl.ReplayBuffer(capacity, *spaces)."
            )
        )
    require_same_spaces("buffer", buffer, source)
    if buffer.num_envs != source.num_envs:
        rule = f"must be made for num_envs={source.num_envs}{whose}"
        raise ParamsError(
            field_error_text(
                owner, "buffer.num_envs", rule, buffer.num_envs, f"Write ReplayBuffer(..., num_envs={source.num_envs})."
            )
        )
    require_columns(policy, buffer.extra)


def require_columns(policy: Policy, declared: Extra) -> None:
    """Raise a `ParamsError` if a buffer declares a column beside its own that the policy cannot fill."""
    known = policy.columns if declared else {}
    for name, spec in declared.items():
        if known.get(name) != spec:
            rule = f"must be a column that somebody fills; {type(policy).__name__} fills {dict(known)}"
            raise ParamsError(field_error_text("Collector", f"buffer.extra[{name!r}]", rule, spec))


def processed(process: Process, rollout: Rollout) -> Rollout:
    """Return what a collection was made into, before it is stored.

    Raises:
        TypeError: that is no `Rollout` of the same shape.
        NonFiniteError: its rewards are not all finite.
    """
    result, shape = process(rollout), tuple(rollout.reward.shape)
    if not isinstance(result, Rollout) or result.reward.shape != shape:
        found = tuple(result.reward.shape) if isinstance(result, Rollout) else result
        raise TypeError(field_error_text("Collector.collect", "process", f"must return a Rollout of {shape}", found))
    if not result.reward.isfinite().all():
        raise NonFiniteError("Collector.collect: process returned rewards that are not finite; nothing was stored")
    return result
