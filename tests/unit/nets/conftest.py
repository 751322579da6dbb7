"""Networks start from the same weights in every test."""

import pytest

from rltrainer.seeding import seed


@pytest.fixture(autouse=True)
def _fixed_weights() -> None:
    seed(0)
