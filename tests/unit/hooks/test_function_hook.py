"""One function at one point."""

from typing import Any

import pytest

from rltrainer.errors import ParamsError
from rltrainer.hooks import FunctionHook
from rltrainer.hooks.hook import POINTS, overrides

BAD_VALUES = [-1, 0, float("inf"), float("nan"), "", None, True, []]


def test_only_the_point_is_overridden() -> None:
    calls: list[Any] = []
    hook = FunctionHook("post_steps", calls.append)
    assert [point for point in POINTS if overrides(hook, point)] == ["post_steps"]
    hook.post_steps("the run")
    assert calls == ["the run"]


def test_what_the_function_returns_is_the_points() -> None:
    hook = FunctionHook("pre_steps_log", lambda ctx, batch: {"sum": sum(batch)})
    assert hook.pre_steps_log(None, [1, 2]) == {"sum": 3}


def test_an_unknown_point_suggests_the_nearest() -> None:
    text = r"FunctionHook.point: must be a point of a hook: setup, batch_process, .*; got 'post_step' \(str\)\. "
    with pytest.raises(ParamsError, match=text + "Did you mean 'post_steps'?"):
        FunctionHook("post_step", print)


@pytest.mark.parametrize("value", BAD_VALUES)
def test_a_point_is_one_of_the_names(value: Any) -> None:
    with pytest.raises(ParamsError, match=r"FunctionHook.point: must be a point of a hook"):
        FunctionHook(value, print)


@pytest.mark.parametrize("value", [*BAD_VALUES, lambda: None, lambda ctx: None])
def test_the_function_takes_what_the_point_is_given(value: Any) -> None:
    with pytest.raises(
        ParamsError, match=r"FunctionHook.fn: must be a callable \(ctx, batch\), as batch_process is given"
    ):
        FunctionHook("batch_process", value)


@pytest.mark.parametrize("value", [v for v in BAD_VALUES if v is not None])
def test_a_name_is_a_text(value: Any) -> None:
    with pytest.raises(ParamsError, match=r"FunctionHook.name: must be a text with something in it or None; got"):
        FunctionHook("setup", print, name=value)
    assert FunctionHook("setup", print, name="printer").name == "printer"
