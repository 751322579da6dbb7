"""Selection of what an update is given of the data: keys of Dict observations, columns of `extra`."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from gymnasium import spaces
from torch import nn

from rltrainer.algorithms import Algorithm, OnPolicyAlgorithm
from rltrainer.errors import ParamsError, field_error_text
from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.nets.encoder import Encoder
from rltrainer.spaces import ACTION_MASK
from rltrainer.types import Rollout, Transitions
from rltrainer.validation.field_rules import Rule, checked
from rltrainer.validation.suggestions import did_you_mean


def _are_names(value: object) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return is_list and all(isinstance(name, str) for name in value)  # type: ignore[attr-defined]  # a sequence


OBSERVATIONS = {"obs", "next_obs", "last_obs", "final_obs"}
Names = Annotated[Sequence[str], Rule("a sequence of names", _are_names)]


class SelectKeys(TrainerHook):
    """Keeps only some keys of Dict observations, and some columns of `extra`, in what an update learns from.

    All other fields stay. What collectors act on and buffers store is not changed: an update carries less through
    its minibatches. On policy and offline the hooks after this one see the selection too, at every point.

    Args:
        obs: the keys of the observation that are kept, in its own order; None keeps all.
        extra: the columns of `extra` that are kept; None keeps all.

    Raises:
        ParamsError: neither is given; or, in the run, a key is missing, or one that networks read is not kept.
    """

    NOT_ON_POLICY = ("process_optim_batch",)

    def __init__(self, obs: Sequence[str] | None = None, extra: Sequence[str] | None = None) -> None:
        self.obs = checked("SelectKeys", "obs", obs, Names | None)
        self.extra = checked("SelectKeys", "extra", extra, Names | None)
        if obs is None and extra is None:
            raise ParamsError(field_error_text("SelectKeys", "obs", "must be given, or extra", obs))
        if obs is not None and not obs:
            raise ParamsError(field_error_text("SelectKeys", "obs", "must name a key", obs, "None keeps all."))

    def setup(self, ctx: TrainerContext) -> None:
        """Check the keys against the observations, the networks, and what the algorithm reads of `extra`."""
        if self.obs is not None:
            space = ctx.algorithm.policy.observation_space
            if not isinstance(space, spaces.Dict):
                rule = "must be None where observations are no Dict"
                raise ParamsError(field_error_text("SelectKeys", "obs", rule, self.obs))
            _require("obs", self.obs, space.spaces)
            _require_kept("obs", self.obs, _seen(ctx.algorithm, space), "networks read")
        if self.extra is not None:
            source = getattr(ctx.params, "training_collector", None)
            read = ctx.algorithm.columns_read(has_stale_data=source is not None and source.has_stale_data)
            _require_kept("extra", self.extra, read, "its updates read")

    def batch_process(self, ctx: TrainerContext, batch: Rollout | Transitions) -> Any:
        """Return the selection of what the update is given; off policy that is sampled later."""
        is_given = isinstance(ctx.algorithm, OnPolicyAlgorithm) or isinstance(batch, Transitions)
        return self._select(batch) if is_given else None

    def process_optim_batch(self, ctx: TrainerContext, minibatch: Any) -> Any:
        """Return the selection of a minibatch; on policy it was made of the whole rollout."""
        return self._select(minibatch)

    def _select(self, batch: Any) -> Any:
        changes: dict[str, Any] = {}
        if self.extra is not None:
            _require("extra", self.extra, batch.extra)
            changes["extra"] = {name: column for name, column in batch.extra.items() if name in self.extra}
        if self.obs is not None:
            for name in {field.name for field in dataclasses.fields(batch)} & OBSERVATIONS:
                changes[name] = {key: part for key, part in getattr(batch, name).items() if key in self.obs}
        return dataclasses.replace(batch, **changes)


def _seen(algorithm: Algorithm, space: spaces.Dict) -> list[str]:
    """Return the keys of the observation that an update cannot do without, as far as our networks say."""
    if algorithm.policy.obs_normalizer is not None:
        return list(space.spaces)
    networks = [value for value in vars(algorithm).values() if isinstance(value, nn.Module)]
    encoders = [part for network in networks for part in network.modules() if isinstance(part, Encoder)]
    seen = {ACTION_MASK}.union(*(encoder.structure for encoder in encoders))
    return [key for key in space.spaces if key in seen]


def _require(field: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            rule = f"{name!r} is missing; there are {', '.join(known) or 'none'}"
            raise ParamsError(f"SelectKeys.{field}: {rule}.{did_you_mean(name, known)}")


def _require_kept(field: str, names: Sequence[str], read: Collection[str], who: str) -> None:
    for name in read:
        if name not in names:
            raise ParamsError(f"SelectKeys.{field}: must keep {name!r}, which {who}; got {list(names)}")
