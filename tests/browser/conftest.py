"""A browser for the tests of what people look at in one."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""What distributions call it; Debian's packages are `chromium-headless-shell` and `chromium`."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"needs a browser: one of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as driver:
        # As root, and in most containers, Chromium has no sandbox; what it is shown here is ours.
        running = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()
