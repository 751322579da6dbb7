"""Checks of the parts that an algorithm is made of and trains on: classes of policy and params, columns of a buffer."""

from collections.abc import Collection
from typing import Any

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.state.params import Params
from rltrainer.validation.hints import ARGUMENTS


def argument_hint(algorithm_class: Any, name: str) -> str:
    """Return the hint that a name is a field of the algorithm's params, or ""."""
    fields, params = algorithm_class.params_class.__dataclass_fields__, algorithm_class.params_class.__name__
    is_one = next((ours for ours in (name, *ARGUMENTS.get(name, ())) if ours in fields), None)
    return f" {is_one!r} is a field of {params}: write {params}({is_one}=...)." if is_one else ""


def require_columns(algorithm: Any, owner: str, extra: Collection[str], has_stale_data: bool = False) -> None:
    """Check that a buffer declares the columns that an algorithm's updates read.

    Args:
        algorithm: the algorithm.
        owner: the field with the buffer, for the error's text.
        extra: the names of its columns.
        has_stale_data: whether older weights than the policy's may have acted.

    Raises:
        ParamsError: a column is missing.
    """
    for name in algorithm.columns_read(has_stale_data):
        if name not in extra:
            spec = algorithm.policy.columns.get(name, "(shape, dtype)")
            text = f"{owner}: must have the column {name!r}, which {type(algorithm).__name__} reads; got {list(extra)}"
            raise ParamsError(f"{text}. Make the buffer with extra={{{name!r}: {spec}}}.")


def check_construction(algorithm_class: Any, policy: Any, params: object) -> None:
    """Raise a `ParamsError` unless an algorithm can be made of a policy and params of these classes."""
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
        rule = f"must have no memory, as {name} updates from single cells; got {type(policy).__name__}"
        raise ParamsError(f"{name}.policy: {rule}. RecurrentPPO trains policies with memory.")
    if not isinstance(params, cls.params_class):
        hint = f"Write {params_class}(lr=..., ...)."
        if hasattr(params, "create_trainer"):
            hint = f"Trainer params go to algorithm.run_training; write {params_class}(lr=..., ...) here."
        raise ParamsError(field_error_text(name, "params", f"must be of class {params_class}", params, hint))


def check_same_policy(policy: object, built_for: object, name: str) -> None:
    """Raise a `ParamsError` if another policy took the place of the one that optimizers and targets follow."""
    if policy is not built_for:
        rule, hint = "must stay the one that the algorithm was built with", f"Copy weights into it, or build a {name}."
        raise ParamsError(f"{name}.policy: {rule}; got another {type(policy).__name__}. {hint}")
