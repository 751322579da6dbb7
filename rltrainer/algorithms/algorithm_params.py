"""The hyperparameters that all algorithms have, and the checks of an algorithm's policy, params and buffer."""

import dataclasses
from collections.abc import Collection
from typing import Annotated, Any

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.state.params import Params
from rltrainer.updates.optimizer import OptimizerFactory
from rltrainer.validation.field_rules import PositiveFloat, Rule, Scheduled, UnitFloat
from rltrainer.validation.hints import ARGUMENTS

_HOW = "Pass a class such as torch.optim.RMSprop, or a function from parameters to an optimizer."


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AlgorithmParams(Params):
    """Hyperparameters that all algorithms have."""

    gamma: UnitFloat = 0.99
    """Discount factor per env step."""
    lr: PositiveFloat | Scheduled = 3e-4
    """Learning rate, or a schedule of it over progress."""
    max_grad_norm: PositiveFloat | None = None
    """Gradients are scaled down to this global L2 norm, per optimizer; None does not clip."""
    adam_eps: PositiveFloat = 1e-8
    """Epsilon of Adam."""
    optimizer: (
        Annotated[OptimizerFactory, Rule("a callable (parameters) -> torch.optim.Optimizer", callable, _HOW)] | None
    ) = dataclasses.field(default=None, compare=False)
    """Makes the optimizer; None is Adam. `lr` overwrites its learning rate."""

    def _must_be_left_out(self, *fields: str, why: str) -> None:
        """Refuse values of inherited fields that this algorithm would ignore."""
        for field in fields:
            if getattr(self, field) != getattr(type(self), field):
                self.raise_invalid(field, "must be left out", why)


def argument_hint(algorithm_class: Any, name: str) -> str:
    """Return the hint that a name is a field of the algorithm's params, or ""."""
    fields, params = algorithm_class.params_class.__dataclass_fields__, algorithm_class.params_class.__name__
    is_one = next((ours for ours in (name, *ARGUMENTS.get(name, ())) if ours in fields), None)
    return f" {is_one!r} is a field of {params}: write {params}({is_one}=...)." if is_one else ""


def require_columns(algorithm: Any, owner: str, extra: Collection[str], has_stale_data: bool = False) -> None:
    """Raise a `ParamsError` about the field `owner` unless its buffer has the columns that an algorithm reads.

    More of them are read if older weights than the policy's may have acted (`has_stale_data`).
    """
    for name in algorithm.columns_read(has_stale_data):
        if name not in extra:
            spec = algorithm.policy.columns.get(name, "(shape, dtype)")
            text = f"{owner}: must have the column {name!r}, which {type(algorithm).__name__} reads; got {list(extra)}"
            raise ParamsError(f"{text}. Make the buffer with extra={{{name!r}: {spec}}}.")


def check_construction(algorithm_class: Any, policy: Any, params: object) -> None:
    """Raise a `ParamsError` unless a policy and params are of the classes that an algorithm is made of."""
    cls = algorithm_class
    name, policy_class, params_class = cls.__name__, cls.policy_class.__name__, cls.params_class.__name__
    if not isinstance(policy, cls.policy_class):
        hint = f"Build it with {policy_class}.for_envs(envs)."
        if isinstance(policy, Params):
            hint = f"The policy comes first: {name}(policy, params)."
        found = f"the class {policy.__name__}" if isinstance(policy, type) else type(policy).__name__
        found = f"{policy!r} (str)" if isinstance(policy, str) else found
        raise ParamsError(f"{name}.policy: must be of class {policy_class}; got {found}. {hint}")
    if policy.is_recurrent and not cls.trains_recurrent:
        rule = f"must have no memory, as {name} updates from single steps; got {type(policy).__name__}"
        raise ParamsError(f"{name}.policy: {rule}. RecurrentPPO trains policies with memory.")
    if not isinstance(params, cls.params_class):
        hint = f"Write {params_class}(lr=..., ...)."
        if hasattr(params, "create_trainer"):
            hint = f"Trainer params go to algorithm.run_training; write {params_class}(lr=..., ...) here."
        raise ParamsError(field_error_text(name, "params", f"must be of class {params_class}", params, hint))
