"""Every command of README and docs: ours run as the page shows them, in order and with few steps; others exist."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest

from rltrainer.tools.cli import main
from tests.docs.test_code_blocks import PAGES, ROOT, blocks, short_runs
from tests.unit.tools.recipes.any_recipes import logged

__all__ = ["short_runs"]

FEW = "--max-epochs 2 --test-step-num-episodes 2 --show-progress false --runtime.compile false"
SHORT = {"train": f"{FEW} --num-env-steps 600", "sweep": f"{FEW} --num-env-steps 600 --trials 2"}
"""Added to our commands: what is given last counts."""
SHORT_OFFLINE = f"{FEW} --num-gradient-steps 20"
OTHERS = {"minari": "downloads", "curl": "asks the server of the line before", ".": "of the shell", "cd": "the same"}
"""Programs that are not run, and why."""
PPO, SAC = "runs/ppo_CartPole-v1", "runs/sac_Pendulum-v1"
LEAVES = {
    "train --env CartPole-v1 --plot --record": [
        f"{PPO}/learning_curve.png", f"{PPO}/page.html", f"{PPO}/videos/best.mp4", f"{PPO}/best.safetensors"
    ],
    "train ppo --env CartPole-v1 --lr 1e-3 --seed 1..3": [f"{PPO}-2/seed-{i}/best.safetensors" for i in (1, 2, 3)],
    "train --recipe sac/Pendulum-v1": [f"{SAC}/best.safetensors"],
    "train sac --env Pendulum-v1 --start runs/sac_Pendulum-v1": [f"{SAC}-2/best.safetensors"],
    "record runs/sac_Pendulum-v1": [f"{SAC}/videos/best.mp4"],
    "plot runs/ppo_CartPole-v1-2": [f"{PPO}-2/learning_curve.png"],
    "plot runs": ["curves.png"],
    "export runs/sac_Pendulum-v1": [f"{SAC}/best.onnx"],
}  # fmt: skip
"""Files of some size after commands of the page of the command line."""


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a page."""
    for block in blocks(text):
        if block.language == "sh":
            for line in re.sub(r"\\\n", " ", block.code).splitlines():
                for command in line.split("&&"):
                    if words := shlex.split(command, comments=True):
                        yield words


COMMANDS = {page: list(commands(path.read_text())) for page, path in PAGES.items()}
OURS = {page: [words[1:] for words in found if words[0] == "rltrainer"] for page, found in COMMANDS.items()}


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("page", [page for page, found in OURS.items() if found])
def test_our_commands_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # `watch` needs a display
    for name, *words in OURS[page]:
        arguments = [part for word in words for part in sorted(glob(word)) or [word]]  # as a shell does
        if "--data" in words:
            data = Path(words[words.index("--data") + 1])  # of which a page has told before
            data.parent.mkdir(exist_ok=True)
            logged(num_steps=300).save(data)
        short = SHORT_OFFLINE if {"--data", "--offline-share"} & set(words) == {"--data"} else SHORT.get(name, "")
        assert main([name, *arguments, *shlex.split(short)]) == 0, (name, words, capfd.readouterr())
        for path in LEAVES.get(shlex.join([name, *words]), ()):
            assert Path(path).stat().st_size > 1000
            assert not path.endswith(".html") or "best.mp4" in Path(path).read_text()


def test_what_other_commands_name_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page, found in COMMANDS.items():
        for words in found:
            match words:
                case ["rltrainer", *_]:
                    pass
                case ["pip", "install", what, *_]:
                    named = re.fullmatch(r"(\.|rltrainer)(\[(.+)\])?|torch", what)
                    assert named is not None, (page, words)
                    assert set((named[3] or "cli").split(",")) <= set(extras), (page, words)
                case ["python", "-m", "venv", *_] | ["python", "cleanrl/ppo.py", *_]:
                    pass
                case ["python", file, *_]:
                    assert (ROOT / file).is_file(), (page, words)
                case ["git", "clone", address]:
                    assert address == project["urls"]["Repository"], page
                case ["make", target, *_]:
                    assert target in targets, (page, words)
                case [program, *_]:
                    assert program in OTHERS, (page, words)


def test_commands_are_found() -> None:
    text = "```sh\nmake all  # of it\n\npip install a && rltrainer train \\\n  --lr 1\n```\n```text\nno\n```\n"
    assert list(commands(text)) == [["make", "all"], ["pip", "install", "a"], ["rltrainer", "train", "--lr", "1"]]
    assert sum(map(len, OURS.values())) > 30
    assert set(LEAVES) <= set(map(shlex.join, OURS["docs/guides/command_line.md"]))
