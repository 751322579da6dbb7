"""The gallery shows every example with a picture of its own run; the page is what the program writes."""

from pathlib import Path

import pytest
from PIL import Image

from pictures import gallery

LARGEST = 300_000
"""Bytes of a picture."""
NAMES = sorted(path.stem for path in gallery.EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_every_example_has_one_small_picture(name: str) -> None:
    found = list(gallery.IMAGES.glob(f"{name}.*"))
    assert len(found) == 1, f"make its picture: python -m pictures.gallery {name}"
    assert found[0].stat().st_size < LARGEST
    with Image.open(found[0]) as image:
        assert image.width <= 700
        assert len(image.convert("RGB").getcolors(1 << 24)) > 1, "blank"


def test_the_page_is_of_these_examples() -> None:
    text = gallery.PAGE.read_text()
    assert text == gallery.page(), "write the page: python -m pictures.gallery --page"
    assert [name for name in NAMES if f"images/gallery/{name}." not in text] == []
    assert len(NAMES) >= 18
    assert {path.stem for path in gallery.IMAGES.iterdir()} == set(NAMES)


def test_an_example_without_a_group_is_shown_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "new.py").write_text('"""A new one.\n\nMore of it.\n"""\n')
    monkeypatch.setattr(gallery, "EXAMPLES", tmp_path)
    assert gallery.page().endswith("\n## More\n\n### `new.py`\n\nA new one.\n")


def test_every_picture_of_the_docs_is_on_a_page() -> None:
    docs = gallery.PAGE.parent
    text = "".join(page.read_text() for page in docs.rglob("*.md"))
    shown = [path for path in (docs / "images").rglob("*") if path.suffix in (".png", ".gif")]
    assert [path.name for path in shown if path.relative_to(docs / "images").as_posix() not in text] == []
    assert len(shown) > 30
