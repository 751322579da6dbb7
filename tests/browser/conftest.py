"""A browser for the tests of what people look at in one."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""What distributions call it; Debian's packages are `chromium-headless-shell` and `chromium`."""


@pytest.fixture(scope="module")  # at the end of a session it once did not close
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


class Tab:
    """A page in a browser without a network, with what it asked for and complained of."""

    def __init__(self, browser: Any, path: Path, width: int) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, offline=True)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda request: self.complaints.append(f"{request.url} {request.failure}"))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(path.as_uri())
        self.page.wait_for_load_state("load")
