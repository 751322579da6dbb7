"""The docs in Chromium, opened from disk without a network: a word finds its page, and code fits on each page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Tab


@pytest.fixture
def tab(browser: Any, site: Path, page: str) -> Iterator[Tab]:
    opened = Tab(browser, site / page, 1200)
    yield opened
    opened.context.close()


def search(page: Any, words: str) -> str:
    """Type words into the field, and return what is said of the results."""
    page.locator("input.md-search__input").click()
    page.keyboard.type(words)
    told = page.locator(".md-search-result__meta")
    is_said = "told => /^(No|\\d+) matching/.test(told.innerText)"
    page.wait_for_function(is_said, arg=told.element_handle(), timeout=30_000)
    return str(told.inner_text())


@pytest.mark.parametrize("page", ["guides/recipes.html"])
def test_a_word_finds_its_page(tab: Tab, site: Path) -> None:
    assert search(tab.page, "hindsight")[0].isdigit()
    tab.page.locator(".md-search-result__link").first.click()
    tab.page.wait_for_load_state()
    assert tab.page.url.startswith((site / "guides" / "off_policy.html").as_uri())
    assert "Hindsight replay" in tab.page.locator("main").inner_text()
    assert tab.complaints == []


@pytest.mark.parametrize("page", ["index.html"])
def test_a_word_that_is_nowhere_finds_nothing(tab: Tab) -> None:
    assert search(tab.page, "xylophone") == "No matching documents"


WIDER = """
[...document.querySelectorAll("pre > code")]
    .filter(code => code.scrollWidth > code.clientWidth + 1)
    .map(code => code.innerText.slice(0, 100))
"""
"""The blocks of code that do not fit where they stand."""


def test_code_fits_on_every_page(browser: Any, site: Path) -> None:
    # The scripts of a page change no width, and take longer than its layout.
    page = browser.new_page(viewport={"width": 1280, "height": 800}, java_script_enabled=False)
    wide = {}
    for path in sorted(site.rglob("*.html")):
        if path.name not in ("api.html", "404.html"):  # signatures are as long as they are
            page.goto(path.as_uri(), wait_until="domcontentloaded")
            wide[path.relative_to(site)] = page.evaluate(WIDER)  # two pages may have one name
    assert len(wide) > 30
    assert {name: found for name, found in wide.items() if found} == {}
    page.goto((site / "index.html").as_uri())  # code that does not fit would be found
    page.evaluate("document.querySelector('pre > code').append('x'.repeat(120))")
    assert len(page.evaluate(WIDER)) == 1
    page.close()
