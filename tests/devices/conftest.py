"""Every test here runs on the second device."""

from collections.abc import Iterator

import pytest

from tests.devices.second_device import second_device


@pytest.fixture(autouse=True)
def _second_device() -> Iterator[None]:
    with second_device():
        yield
