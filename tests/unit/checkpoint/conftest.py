"""What the tests of checkpoints share."""

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture
def collected() -> Iterator[None]:
    """Let go of files that an exception at some line left open, here and not in the middle of another test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
