"""The built pages: strict, complete when opened from disk, search included, and loading nothing from elsewhere."""

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import rltrainer as rl
from rltrainer import functional, nets

ROOT = Path(__file__).parents[2]

NOT_EXPLAINED = {
    "rltrainer.functional.means": "means of logged numbers",
    "rltrainer.nets.target.Accumulation": "shared by optimizers and target networks",
    "rltrainer.nets.exploration.remembers": "a question that collectors ask",
    "rltrainer.nets.policy.no_progress": "a default",
    **{f"rltrainer.nets.actor_critic.{name}": "shared by policies with a distribution" for name in (
        "checked_sde", "decide_by_distribution", "initial_sde_state"
    )},
    **{f"rltrainer.nets.q_network.{name}": "shared by policies with categorical critics" for name in (
        "make_support", "mean_of_atoms", "other_atoms",
    )},
    "rltrainer.nets.q_network.require_discrete": "shared by Q-networks with and without memory",
}  # fmt: skip
"""Parts of networks that have no place on the API page, and why."""


class Loaded(HTMLParser):
    """Collects what a browser loads with a page, without a click."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        url = named.get("href" if tag == "link" and named.get("rel") != "canonical" else "src")
        if url is not None:
            self.urls.append(url)


def missing(site: Path) -> Iterator[str]:
    """Yield what pages and style sheets load that is not a file of the site."""
    for page in site.rglob("*.html"):
        loaded = Loaded(page.read_text()).urls
        if page.name == "404.html":  # its addresses are those of a server's root
            loaded = [url.removeprefix("/") for url in loaded]
        yield from (f"{page.name}: {url}" for url in loaded if not is_file(page.parent, url))
    for sheet in site.rglob("*.css"):
        loaded = re.findall(r"url\(\"?'?([^\"')]+)", sheet.read_text())
        yield from (f"{sheet.name}: {url}" for url in loaded if not url.startswith(("data:", "#")))


def is_file(folder: Path, url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme:
        return parts.scheme == "data"
    return (folder / unquote(parts.path)).is_file()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert list(missing(site)) == []


def test_what_is_missing_is_found(tmp_path: Path) -> None:
    page = '<link href="a.css"><script src="//b.org/c.js"></script><a href="https://d.org">'
    (tmp_path / "page.html").write_text(page)
    (tmp_path / "a.css").write_text("@font-face { src: url('https://e.org/f.woff2'), url(data:font) }")
    assert list(missing(tmp_path)) == ["page.html: //b.org/c.js", "a.css: https://e.org/f.woff2"]


class Documented(HTMLParser):
    """Collects the names in the headings of the API page, with the first paragraph below each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.paragraphs: dict[str, str] = {}
        self.name = self.tag = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = dict(attrs).get("class") or ""
        if "doc-heading" in classes:
            self.tag, self.name = tag, ""
        elif tag == "p" and "doc" not in classes and self.name not in self.paragraphs:
            self.tag, self.paragraphs[self.name] = tag, ""

    def handle_endtag(self, tag: str) -> None:
        self.tag = "" if tag == self.tag else self.tag

    def handle_data(self, data: str) -> None:
        if self.tag == "p":
            self.paragraphs[self.name] += data
        elif self.tag and not self.name:
            self.name = data.strip()


def test_every_public_name_is_explained(site: Path) -> None:
    documented = Documented((site / "api.html").read_text()).paragraphs
    wrong = {}
    for name in rl.__all__:
        expected = (inspect.getdoc(getattr(rl, name)) or "").partition("\n\n")[0].replace("`", "").split()
        found = (documented.get(f"rltrainer.{name}") or documented.get(f"rltrainer.tools.{name}", "")).split()
        if found != expected:
            wrong[name] = " ".join(found)
    assert wrong == {}


def test_what_a_room_offers_is_explained_and_the_parts_of_networks_are() -> None:
    entries = set(re.findall(r"^::: (\S+)", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    explained, missing = entries | {f"rltrainer.{name}" for name in rl.__all__}, []
    for room in [info.name for info in pkgutil.iter_modules(rl.__path__, "rltrainer.") if info.ispkg]:
        for name in getattr(importlib.import_module(room), "__all__", []):
            if not {f"{room}.{name}", f"rltrainer.{name}"} & explained:
                missing.append(f"{room}.{name}")
    for package in (nets, functional):
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                is_public = inspect.isclass(value) or inspect.isfunction(value)
                is_public = is_public and not name.startswith("_") and value.__module__ == info.name
                names = {info.name, f"{info.name}.{name}", f"rltrainer.{name}"}
                if is_public and not names & (entries | NOT_EXPLAINED.keys()):
                    missing.append(f"{info.name}.{name}")
    assert missing == []


def test_search_needs_no_server(site: Path) -> None:
    # Pages from disk may read scripts, but no JSON, and start no workers: see docs/javascripts/iframe-worker.js.
    index = (site / "search" / "search_index.js").read_text()
    entries = json.loads(index.removeprefix("var __index = "))["docs"]
    assert any("terminated" in entry["text"] for entry in entries)
    for page in site.rglob("*.html"):
        scripts = [url for url in Loaded(page.read_text()).urls if url.endswith(".js")]
        names = [Path(url).name.partition(".")[0] for url in scripts]
        assert names == ["iframe-worker", "bundle"]
