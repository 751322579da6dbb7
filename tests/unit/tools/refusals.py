"""Calls that must be refused, and the texts of their errors."""

import re
from collections.abc import Callable
from typing import Any

import pytest


def error_text(error: type[BaseException], call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Return the text of the error that a call must raise."""
    with pytest.raises(error) as raised:
        call(*args, **options)
    return str(raised.value)


def refuses(error: type[BaseException], pattern: str, call: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Assert that a call raises an error with a text that holds a pattern; return the text."""
    text = error_text(error, call, *args, **options)
    assert re.search(pattern, text), text
    return text
