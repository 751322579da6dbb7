"""The docs in Chromium, opened from disk without a network: a word finds its page, and code fits on each page."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(params=["index.html", "guides/recipes.html"], ids=["first page", "page in a folder"])
def tab(browser: Any, site: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 800}, offline=True)
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("requestfailed", lambda failed: page.complaints.append(failed.url))
    page.goto((site / request.param).as_uri())
    yield page
    context.close()


def search(tab: Any, words: str) -> str:
    """Type words into the field, and return what is said of the results."""
    tab.locator("input.md-search__input").click()
    tab.keyboard.type(words)
    told = tab.locator(".md-search-result__meta")
    tab.wait_for_function(
        "told => /^(No|\\d+) matching/.test(told.innerText)", arg=told.element_handle(), timeout=30_000
    )
    return str(told.inner_text())


def test_a_word_finds_its_page(tab: Any, site: Path) -> None:
    assert search(tab, "hindsight")[0].isdigit()
    first = tab.locator(".md-search-result__link").first
    first.click()
    tab.wait_for_load_state()
    assert tab.url.startswith((site / "guides" / "off_policy.html").as_uri())
    assert "Goals in hindsight" in tab.locator("main").inner_text()
    assert tab.complaints == []


def test_a_word_that_is_nowhere_finds_nothing(tab: Any) -> None:
    assert search(tab, "xylophone") == "No matching documents"


WIDER = """
[...document.querySelectorAll("pre > code")]
    .filter(code => code.scrollWidth > code.clientWidth + 1)
    .map(code => code.innerText.slice(0, 100))
"""
"""The blocks of code that do not fit where they stand."""


def test_code_fits_on_every_page(browser: Any, site: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    wide = {}
    for path in sorted(site.rglob("*.html")):
        if path.name not in ("api.html", "404.html"):  # signatures are as long as they are
            page.goto(path.as_uri(), wait_until="domcontentloaded")
            wide[path.name] = page.evaluate(WIDER)
    page.close()
    assert len(wide) > 30
    assert {name: found for name, found in wide.items() if found} == {}


def test_code_that_does_not_fit_is_found(browser: Any, site: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site / "index.html").as_uri())
    page.evaluate("document.querySelector('pre > code').append('x'.repeat(120))")
    assert len(page.evaluate(WIDER)) == 1
    page.close()
