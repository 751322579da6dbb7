"""Pictures that are small enough for a page: figures of `rl.plots`, and what a program printed."""

import io
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

LINE, MARGIN = 19, 12
"""Pixels."""


def save(figure: Figure, path: Path, size: tuple[float, float] = (4.4, 2.9)) -> None:
    """Write a figure of some inches as a PNG of 64 colours, which takes a third of the bytes."""
    figure.set_size_inches(*size)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    save_few_colors(Image.open(drawn), path)


def save_few_colors(image: Image.Image, path: Path, num_colors: int = 64) -> None:
    """Write a PNG of so many colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.convert("RGB").quantize(num_colors).save(path, optimize=True)


def save_text(text: str, path: Path, most: int = 78) -> None:
    """Write lines of text as a picture of a terminal; longer ones are cut."""
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf", 14)
    lines = [line if len(line) <= most else f"{line[: most - 3]}..." for line in text.strip().splitlines()]
    width = int(max(font.getlength(line) for line in lines)) + 2 * MARGIN
    image = Image.new("RGB", (width, LINE * len(lines) + 2 * MARGIN), "#1e1e1e")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + LINE * number), line, font=font, fill="#e4e4e4")
    save_few_colors(image, path)
