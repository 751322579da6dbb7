"""What the tests of checkpoints share."""

import gc
import warnings
from collections.abc import Iterator

import pytest

from rltrainer.data import buffer_state


@pytest.fixture
def collected() -> Iterator[None]:
    """Let go of files that an exception at some line left open, here and not in the middle of another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file of rows few of them, so that a small buffer takes many files."""
    monkeypatch.setattr(buffer_state, "MIN_NBYTES", 100)
    monkeypatch.setattr(buffer_state, "MAX_NBYTES", 200)
