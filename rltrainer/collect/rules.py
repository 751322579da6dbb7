"""The rules of a collection: how much is collected, into which buffer, and what a transform may return."""

from typing import Annotated, Any

from rltrainer.collect.data_source import Process
from rltrainer.data import ReplayBuffer, RolloutBuffer
from rltrainer.errors import NonFiniteError, ParamsError, ReturnedError, SpaceError
from rltrainer.nets import Policy
from rltrainer.spaces import spaces_mismatch
from rltrainer.types import Rollout
from rltrainer.validation.field_rules import PositiveInt, checked, instance_of

AnyBuffer = Annotated[
    ReplayBuffer | RolloutBuffer,
    instance_of(ReplayBuffer, RolloutBuffer, hint="Write rl.ReplayBuffer(capacity, *spaces)."),
]


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


def require_same_spaces(part: str, owner: Any, adapter: Any) -> None:
    """Raise a `SpaceError` unless a policy or buffer is made for the spaces of the envs of an adapter or collector."""
    if text := spaces_mismatch(f"Collector.{part}", adapter, owner):
        raise SpaceError(f"{text}. Build the {part} for the spaces of these envs.")


def require_buffer(owner: str, policy: Policy, source: Any, buffer: Any, whose: str = "") -> None:
    """Raise a `SpaceError` or `ParamsError` unless a collector, or its adapter, can write into a buffer."""
    checked(owner, "buffer", buffer, AnyBuffer)
    require_same_spaces("buffer", buffer, source)
    if buffer.num_envs != (count := source.num_envs):
        rule, hint = f"must be made for num_envs={count}{whose}", f"Write ReplayBuffer(..., num_envs={count})."
        raise ParamsError.about(owner, "buffer.num_envs", rule, buffer.num_envs, hint)
    known = policy.columns if buffer.extra else {}
    for name, spec in buffer.extra.items():
        if known.get(name) != spec:
            rule = f"must be a column that the policy fills; {type(policy).__name__} fills {dict(known)}"
            raise ParamsError.about("Collector", f"buffer.extra[{name!r}]", rule, spec)


def require_one_agent(reward: Any) -> None:
    """Raise a `SpaceError` for rewards [N, A] of several agents."""
    if reward.ndim > 1:
        text = f"Collector: rewards of shape {tuple(reward.shape)} are several agents'; no algorithm trains on them."
        raise SpaceError(f"{text} Reduce them to one reward per env in a wrapper.")


def processed(process: Process, rollout: Rollout) -> Rollout:
    """Return the rollout [T, N] that a transform makes of one.

    Raises:
        ReturnedError: it is no rollout of the same shape.
        NonFiniteError: a reward is not finite.
    """
    result, shape = process(rollout), tuple(rollout.reward.shape)
    if not isinstance(result, Rollout) or result.reward.shape != shape:
        found = tuple(result.reward.shape) if isinstance(result, Rollout) else result
        raise ReturnedError.about("Collector.collect", "process", f"must return a Rollout of {shape}", found)
    if not result.reward.isfinite().all():
        raise NonFiniteError("Collector.collect: process returned rewards that are not finite; nothing was stored")
    return result
