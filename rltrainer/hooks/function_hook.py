"""A hook from one function."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from rltrainer.errors import ParamsError, field_error_text
from rltrainer.hooks.hook import POINTS, TrainerHook
from rltrainer.validation.field_rules import Rule, a_callable, checked
from rltrainer.validation.suggestions import did_you_mean

Name = Annotated[str, Rule("a text with something in it", lambda v: isinstance(v, str) and bool(v))]


class FunctionHook(TrainerHook):
    """Calls a function at one point of a run, with what `TrainerHook` gives that point.

    Args:
        point: the point, such as `"post_steps"`.
        fn: the function; what it may return is the point's.
        name: distinguishes several of them in a checkpoint.

    Raises:
        ParamsError: there is no such point, or the function does not take what it is given there.
    """

    def __init__(self, point: str, fn: Callable[..., Any], name: str | None = None) -> None:
        if point not in POINTS:
            hint = did_you_mean(str(point), POINTS).strip()
            rule = f"must be a point of a hook: {', '.join(POINTS)}"
            raise ParamsError(field_error_text("FunctionHook", "point", rule, point, hint))
        signature = f"({', '.join([*inspect.signature(getattr(TrainerHook, point)).parameters][1:])})"
        takes = a_callable(signature)
        if not takes.accepts(fn):
            raise ParamsError(field_error_text("FunctionHook", "fn", f"must be {takes.text}, as {point} is given", fn))
        self.name = checked("FunctionHook", "name", name, Name | None)
        setattr(self, point, fn)
