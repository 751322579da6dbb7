"""A page of a run: one HTML file in its folder that opens from disk and loads nothing but the run's own videos.

Logs, params and names of files are shown as text: they are escaped, and the page's own policy forbids scripts.
"""

import base64
import io
import os
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from rltrainer.errors import CheckpointError
from rltrainer.files.atomic_write import replaced_file
from rltrainer.loggers import RunFolder
from rltrainer.state.state_file import read_state
from rltrainer.tools.plots import run_data
from rltrainer.tools.plots.curves import draw_panels, learning_curve, learning_curves
from rltrainer.tools.plots.figures import Figure, drawing
from rltrainer.tools.plots.run_data import AnyRun, curve, step_unit
from rltrainer.tools.recipes.cookbook import seeds_in
from rltrainer.tools.runs import Run
from rltrainer.validation.field_rules import AnyPath, checked, is_finite

# Counters.
SKIPPED_KINDS = {"epoch"}
# Characters of a value among the params.
MAX_TEXT = 2000

_STYLE = """
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #1a1a1a; background: #fff; margin: 2rem auto;
  max-width: 62rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #ddd; }
.status { font-weight: 600; margin: .2rem 0 1rem; } .finished { color: #00664b; } .unfinished { color: #a34700; }
dl.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .6rem; margin: 0; }
dl.facts div { border: 1px solid #ddd; border-radius: 6px; padding: .4rem .7rem; } dl.facts dt { color: #595959; }
dl.facts dd { margin: 0; font-weight: 600; } img.picture { max-width: 100%; height: auto; display: block; }
figure { margin: 0 0 1rem; } figcaption { color: #595959; } video, img.video { max-width: 30rem; width: 100%; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; }
td:first-child, code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .9em; }
tr { border-bottom: 1px solid #eee; } summary { cursor: pointer; font-weight: 600; } code { white-space: pre-wrap; }
"""

# Nothing runs and nothing is fetched, except pictures within the page and the files beside it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data: 'self' file:; media-src 'self' file:"


def page(run: AnyRun, path: str | os.PathLike[str] | None = None) -> Path:
    """Write an HTML page of a run and return its path: curves, videos, params, versions, timing, whether it has ended.

    The page is one file that a browser opens from disk. Videos stay beside it in the run's folder. A page that
    is written again shows the run's newest state.

    Args:
        run: the folder of a run or of several seeds, or what `rl.open_run` returns; it may still be training.
        path: of the page; None is `page.html` in the run's folder.

    Raises:
        CheckpointError: the run cannot be read, or its folder holds links that a write would follow.
        OSError: the page cannot be written.
    """
    seeds = [] if isinstance(run, Run) or not seeds_in(run) else run_data.as_runs(run)
    run = seeds[0] if seeds else run_data.as_run(run)
    folder = RunFolder(run.folder.path.parent) if seeds else run.folder
    if path is None:
        folder.refuse_links()
    path = folder.path / "page.html" if path is None else Path(checked("page", "path", path, AnyPath))
    text = "\n".join(_lines(run, path, seeds))
    with replaced_file(path) as file:
        file.write(text.encode("utf-8", "replace"))
    return path


def head(title: str) -> str:
    """Return the top of a page, with its title."""
    name = escape(title)
    return "\n".join([
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n</head>\n<body>',
        f"<h1>{name}</h1>",
    ])  # fmt: skip


def _lines(run: Run, path: Path, seeds: list[Run]) -> Iterator[str]:
    title = run_data.title_of(run)
    yield head(f"{title.partition(', seed')[0]}, {len(seeds)} seeds" if seeds else title)
    for each in seeds or [run]:
        reason = each.stop_reason
        state, words = ("unfinished", "not finished") if reason is None else ("finished", f"finished: {reason}")
        best = f"{each.name}: best score {dict(_facts(each)).get('best score', 'none')}; " if seeds else ""
        yield f'<p class="status {state}">{escape(best + words)}</p>'
    if drawn := [each for each in seeds if curve(each, "test/return")]:
        yield picture(learning_curves(drawn), "learning curves: mean return of test episodes over steps, all seeds")
    if not seeds:
        yield from _cards(dict(_facts(run)))
        if curve(run, "test/return") or curve(run, "training/return"):
            yield "<h2>Returns</h2>"
            yield picture(learning_curve(run), "learning curve: mean return of test and training episodes over steps")
        yield from _videos(run, path)
        yield from _metrics(run)
        if timing := dict(_timing(run)):
            yield "<h2>Timing</h2>"
            yield from _cards(timing)
    yield "<h2>Params</h2>"
    yield from _table("algorithm", run.algorithm, is_open=True)
    yield from _table("trainer", run.trainer)
    yield from _table("runtime", run.runtime)
    yield "<h2>Program</h2>"
    yield from _table("versions", run.versions, is_open=True)
    yield from _table("git", run.git or {})
    if run.command:
        yield f"<p>command <code>{escape(run.command)}</code></p>"
    yield "</body>\n</html>\n"


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the facts to see at a glance."""
    if algorithm := run_data.algorithm_name(run):
        yield "algorithm", algorithm
    if env := run_data.env_name(run):
        yield "env", env
    epochs = [row.values for row in run.log if row.kind == "epoch"]
    last = epochs[-1] if epochs else {}
    if (best := last.get("best_score")) is not None:
        yield "best score", f"{best:.5g} (epoch {last.get('best_epoch'):g})"
    if run.log:
        yield step_unit(run), f"{max(row.step for row in run.log):,}"
    if last:
        most = run.trainer.get("max_epochs")
        yield "epochs", f"{last.get('epoch'):g}" + (f" of {most}" if isinstance(most, int) else "")
    if (seed := run.trainer.get("seed")) is not None:
        yield "seed", str(seed)
    yield "folder", run.name


def _cards(facts: Mapping[str, str]) -> Iterator[str]:
    yield '<dl class="facts">'
    yield from (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    yield "</dl>"


def _metrics(run: Run) -> Iterator[str]:
    for kind in run.kinds:
        found = {} if kind in SKIPPED_KINDS else run_data.curves(run, kind)
        if kind == "test":  # the first picture has the returns, and the score if it is the return
            score, return_ = found.get("score"), found.get("return")
            is_same = score and return_ and np.array_equal((score.step, score.value), (return_.step, return_.value))
            drawn = {"return", "length"} | ({"score"} if is_same else set())
            found = {name: each for name, each in found.items() if name not in drawn}
        if found:
            yield f"<h2>{escape(kind.capitalize())}</h2>"
            yield picture(draw_panels(found, step_unit(run)), f"{kind}: {', '.join(found)}")


def picture(figure: Figure, words: str) -> str:
    """Return a figure as an image within the page; the words are for who does not see it."""
    # SVG is sharp at any size; as the source of an image it cannot run scripts.
    file = io.BytesIO()
    with drawing():
        figure.savefig(file, format="svg", metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img class="picture" alt="{escape(words[:MAX_TEXT])}" src="data:image/svg+xml;base64,{data}">'


def _videos(run: Run, path: Path) -> Iterator[str]:
    if found := run.videos:
        yield "<h2>Videos</h2>"
    for video in found:
        url = quote(Path(os.path.relpath(video, path.parent)).as_posix())
        name = escape(video.name)
        shown = f'<img class="video" alt="{name}" src="{url}">'
        if video.suffix != ".gif":
            shown = f'<video controls loop muted preload="metadata" src="{url}"></video>'
        yield f"<figure>{shown}<figcaption>{name}</figcaption></figure>"


def _table(title: str, params: Mapping[str, Any], *, is_open: bool = False) -> Iterator[str]:
    if params:
        yield f"<details{' open' * is_open}><summary>{escape(title)}</summary>\n<table>"
        for name, value in _flat(params):
            yield f"<tr><td>{escape(name)}</td><td>{escape(value[:MAX_TEXT])}</td></tr>"
        yield "</table></details>"


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    # Nested params become `update.max_grad_norm`; a live object becomes its class's name.
    for name, value in params.items():
        match value:
            case {"params": str(), "fields": dict(fields)}:
                yield from _flat(fields, f"{prefix}{name}.")
            case {"live": str(text)} | {"not finite": str(text)} if len(value) == 1:
                yield prefix + name, text
            case {"schedule": str(schedule)}:
                options = ", ".join(f"{key}={option!r}" for key, option in value.items() if key != "schedule")
                yield prefix + name, f"{schedule}({options})"
            case _:
                yield prefix + name, value if isinstance(value, str) else repr(value)


def _timing(run: Run) -> Iterator[tuple[str, str]]:
    # The newest checkpoint holds the seconds of each part of the work so far.
    if (checkpoint := run.newest_checkpoint) is not None:
        state = read_state(checkpoint / "trainer.safetensors", "trainer", CheckpointError)
        match state.get("timing"):
            case dict(seconds):
                yield from ((str(name), _duration(value)) for name, value in seconds.items() if is_finite(value))
        unit = step_unit(run)
        match state:  # both count whole epochs: a run that was stopped within one has steps without their time
            case {"timing": {"total": float(total)}, "record": None, "counters": dict(counters)} if total > 0:
                num_steps = counters.get(unit.removesuffix("s").replace(" ", "_"))
                yield from [("all together", f"{num_steps / total:,.0f} {unit}/s")] if is_finite(num_steps) else ()
    if (speed := curve(run, "training/env_steps_per_second")) is not None:
        yield "collection alone", f"{speed.value.mean():,.0f} env steps/s"


def _duration(seconds: float) -> str:
    # As people read them: `3.73 s`, `2 min 5 s`, `27 h 46 min`.
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"
