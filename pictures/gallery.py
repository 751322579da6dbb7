"""The gallery: every example of the folder `examples` is run as it stands, and its picture is made of what it did.

    python -m pictures.gallery             all of them; some minutes
    python -m pictures.gallery NAME ...    those that are named, such as `ppo_cartpole`
    python -m pictures.gallery --page      writes the page only

Writes docs/images/gallery/*, and docs/gallery.md from the examples' first lines.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from PIL import Image

import rltrainer as rl
from pictures.figures import save, save_few_colors, save_text
from pictures.films import film, write

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "gallery.md"
IMAGES = ROOT / "docs" / "images" / "gallery"
PROGRAM = """<details markdown="1"><summary>The program</summary>

```python
--8<-- "examples/{}.py"
```

</details>
"""
"""A fold that the site fills with the file."""
WIDEST = 640
"""Pixels of a picture that an example draws itself."""


@dataclasses.dataclass
class Trained:
    """A trainer of an example, and the folder with a log of its run."""

    trainer: rl.Trainer[Any, Any]
    folder: Path


def curve(name: str, *arguments: list[str]) -> Path:
    """Draw the learning curve of the last run of an example."""
    *_, last = trained(name, *arguments)
    return drawn(rl.plots.learning_curve(last.folder), name)


def curves(name: str, *titles: str | None) -> Path:
    """Draw the test returns of an example's runs together, but for those without a title."""
    runs = {title: each.folder for title, each in zip(titles, trained(name), strict=True) if title}
    return drawn(rl.plots.learning_curves(runs), name)


def played(name: str, env: str, **options: Any) -> Path:
    """Film what an example has trained."""
    *_, last = trained(name)
    film(last.trainer.algorithm, env, IMAGES / f"{name}.gif", seed=1, **options)
    return IMAGES / f"{name}.gif"


def team(name: str) -> Path:
    """Film how agents that share a policy cover their landmarks."""
    from mpe2 import simple_spread_v3

    *_, last = trained(name)
    env, frames = simple_spread_v3.parallel_env(max_cycles=25, render_mode="rgb_array"), []
    for seed in range(3):
        observations, _ = env.reset(seed=seed)
        while env.agents:
            frames.append(Image.fromarray(env.render()).resize((300, 300)))
            policy = last.trainer.algorithm.policy
            observations, *_ = env.step({agent: policy.predict(observations[agent]) for agent in env.agents})
    write(IMAGES / f"{name}.gif", frames, 120)
    return IMAGES / f"{name}.gif"


def own(name: str, picture: str, *arguments: str) -> Path:
    """Take a picture that an example writes."""
    printed(name, *arguments)
    path = IMAGES / f"{name}{Path(picture).suffix}"
    if path.suffix == ".gif":
        path.write_bytes(Path(picture).read_bytes())
        return path
    with Image.open(picture) as image:
        image.thumbnail((WIDEST, WIDEST))
        save_few_colors(image, path)
    return path


def terminal(name: str, *arguments: str) -> Path:
    """Show what an example prints."""
    path = IMAGES / f"{name}.png"
    save_text(f"$ python examples/{name}.py {' '.join(arguments)}\n{printed(name, *arguments)}", path)
    return path


GROUPS: dict[str, dict[str, Callable[[str], Path]]] = {
    "Online": {
        "ppo_cartpole": curve,
        "dqn_cartpole": functools.partial(played, env="CartPole-v1", max_episode_steps=100),
        "sac_pendulum": functools.partial(played, env="Pendulum-v1", max_episode_steps=100),
        "ppo_mujoco": curve,
        "recurrent_ppo": curve,
        "distillation": lambda name: curves(name, "the teacher", "its student"),
        "sparse_rewards": lambda name: curves(name, "without a bonus", "with one"),
        "custom_env": curve,
        "many_workers": curve,
        "multi_agent": team,
        "robots_flashsac": curve,
    },
    "Runs": {
        "callbacks": curve,
        "hooks": curve,
        "curriculum": lambda name: curves(name, "without a curriculum", "with one"),
        "kill_and_resume": terminal,
        "record_video": functools.partial(own, picture="runs/record_video/videos/trained.gif"),
        "compare_algorithms": functools.partial(own, picture="runs/compare/CartPole-v1.png"),
    },
    "From data": {
        "offline_from_buffer": lambda name: curve(name, ["collect"], ["train"]),
        "offline_from_dataset": functools.partial(own, picture="runs/offline_from_dataset/data.png"),
        "offline_to_online": lambda name: curves(name, "RLPD", None, "Cal-QL"),
    },
    "Extending and deploying": {"custom_algorithm": curve, "serve_policy": lambda name: terminal(name, "--short")},
}
"""What the picture of each example is; one that is not named is drawn as a curve."""


def trained(name: str, *arguments: list[str]) -> list[Trained]:
    """Run an example in this process, once for each list of arguments; return its trainers, each with a log."""
    found: list[Trained] = []
    init = rl.Trainer.__init__

    def with_log(trainer: Any, algorithm: Any, params: Any) -> None:
        folder = Path("logs") / str(len(found)) / name
        log = rl.RunFolder(folder).logger("jsonl")
        logger = log if params.logger is None else rl.MultiLogger(params.logger, log)
        init(trainer, algorithm, dataclasses.replace(params, logger=logger))
        found.append(Trained(trainer, folder.resolve()))

    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    for each in arguments or ([],):
        with mock.patch.object(rl.Trainer, "__init__", with_log), mock.patch.object(sys, "argv", [name, *each]):
            module.main()
    return found


def printed(name: str, *arguments: str) -> str:
    """Run an example as a program, and return what it printed."""
    command = [sys.executable, EXAMPLES / f"{name}.py", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def drawn(figure: Any, name: str) -> Path:
    save(figure, IMAGES / f"{name}.png")
    return IMAGES / f"{name}.png"


def groups() -> Iterator[tuple[str, list[str]]]:
    """Yield the examples by group; those that have none last."""
    rest = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    for title, of_group in GROUPS.items():
        yield title, [name for name in of_group if name in rest]
    others = [name for name in rest if not any(name in of_group for of_group in GROUPS.values())]
    if others:
        yield "More", others


def page() -> str:
    """Return the text of the page."""
    text = """# Gallery

Whole programs, each with a picture from its own run. With `--short` each runs for a few seconds only. In a clone they
are the folder `examples`; `make examples` runs them all, and `python -m pictures.gallery` writes this page.
"""
    for title, names in groups():
        text += f"\n## {title}\n"
        for name in names:
            first = (ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or "").partition("\n")[0]
            pictures = sorted(path.name for path in IMAGES.glob(f"{name}.*"))
            shown = "".join(f"\n![{name}](images/gallery/{picture})\n" for picture in pictures)
            text += f"\n### `{name}.py`\n\n{first}\n{shown}\n{PROGRAM.format(name)}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of examples, without .py")
    parser.add_argument("--page", action="store_true", help="write the page only")
    args = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    how = {name: make for of_group in GROUPS.values() for name, make in of_group.items()}
    every = [name for _, names in groups() for name in names]
    for name in [] if args.page else args.names or every:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["MINARI_DATASETS_PATH"] = folder
            for old in IMAGES.glob(f"{name}.*"):
                old.unlink()
            path = how.get(name, curve)(name)
            print(f"{name}: {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes", flush=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
