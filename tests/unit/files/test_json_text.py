"""JSON from elsewhere: what is refused, and that what we write comes back."""

import json
import math
import time
from typing import Any

import pytest

from rltrainer.files.json_text import MAX_DEPTH, check_depth, read_json, read_strict_json, to_strict_json


def nested(depth: int) -> Any:
    """Return a list or dict with so many in each other."""
    value: Any = []
    for i in range(depth - 1):
        value = [value] if i % 2 else {"a": value}
    return value


@pytest.mark.parametrize(("text", "rule"), [
    ('{"a": 1, "b": 2, "a": 3}', "names 'a' twice"), ('[{"x": {"y": 1, "y": 1}}]', "names 'y' twice"),
    ("NaN", "holds NaN, which is no number"), ('{"a": [Infinity]}', "holds Infinity, which is no number"),
    ("-Infinity", "holds -Infinity, which is no number"), ("1e999", "holds 1e999, which is no number"),
    ("[" * 10**6, f"is nested deeper than {MAX_DEPTH}"),
    (json.dumps(nested(MAX_DEPTH + 1)), f"is nested deeper than {MAX_DEPTH}"), ("{]", "Expecting property name"),
    ("", "Expecting value"), ("9" * 5000, "Exceeds the limit"),
])  # fmt: skip
def test_what_is_refused(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        read_json(text)


@pytest.mark.parametrize("text", [b"\xff", b"\xff\xfe\x00", '"\ud800'])
def test_what_is_no_text(text: Any) -> None:
    with pytest.raises(ValueError, match="decode|Unterminated"):
        read_json(text)


def test_depth_up_to_the_limit_is_read() -> None:
    assert read_json(json.dumps(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    check_depth(nested(MAX_DEPTH))
    with pytest.raises(ValueError, match="nested deeper"):
        check_depth(nested(MAX_DEPTH + 1))


def test_rows_of_logs_may_hold_nan() -> None:
    assert math.isnan(read_json('{"a": NaN}', allows_nan=True)["a"])
    assert read_json("1e999", allows_nan=True) == math.inf


@pytest.mark.parametrize("value", [1, 0.1, True, None, "inf", [math.inf, [-math.inf]], {"a": {"b": [1, math.inf]}}])
def test_strict_json_returns_what_it_was_given(value: Any) -> None:
    text = to_strict_json(value)
    assert read_strict_json(text) == value
    json.loads(text, parse_constant=lambda constant: pytest.fail(constant))


def test_nan_comes_back() -> None:
    assert math.isnan(read_strict_json(to_strict_json([math.nan]))[0])


def test_many_names_of_which_one_stands_twice_take_no_longer() -> None:
    text = "{" + ", ".join(f'"{i}": 1' for i in range(200_000)) + ', "0": 1}'
    began = time.perf_counter()
    with pytest.raises(ValueError, match="names '0' twice"):
        read_json(text)
    assert time.perf_counter() - began < 5
