"""Every Python block of README and docs runs, as the page shows it.

The blocks of a page run in order, in one namespace and an empty folder; a warning is an error. A block with
`if __name__ == "__main__":` runs as a program of its own, since worker processes import the file they come from.
Pages show the numbers that train; here every trainer is told to stop early (`shortened`).
"""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.state import registry

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if path.name != "gallery.md" and path.parent.name != "measurements"
}
"""The pages that people write; others are written by programs, and the programs of the gallery run as examples."""

LANGUAGES = {"python", "sh", "text"}
"""What a block may say it is; commands are run by `test_commands.py`, formulas and output are not run."""

WIDEST = 88
"""Columns of code, as docs/ruff.toml formats it."""

SIMULATORS = "docs/guides/gpu_simulators.md"
NOT_RUN = {
    ("docs/guides/off_policy.md", "import gymnasium as gym"): "needs gymnasium-robotics, which is no extra",
    (SIMULATORS, "from mjlab.envs import ManagerBasedRlEnv"): "needs mjlab and a GPU",
    (SIMULATORS, "from isaaclab.app import AppLauncher"): "needs Isaac Lab and a GPU",
    (SIMULATORS, "import gymnasium as gym"): "needs ManiSkill and a GPU",
    ("docs/guides/scaling.md", "import functools"): "starts Ray, as tests/unit/collect/test_ray_cluster.py does",
    (SIMULATORS, "import gymnax"): "needs JAX; benchmarks/jax_envs.py trains in these envs",
}
"""Python blocks that cannot run here, by page and first line, with the reason."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block; `line` is the number of its first line of code."""

    language: str
    line: int
    code: str


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, those within lists too.

    Raises:
        ValueError: a fence is not closed.
    """
    fence: re.Match[str] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if fence is None:
            fence = re.match(r"( *)(```+|~~~+) *(.*)", line)
            first, code = number + 1, []
        elif line.strip() == fence[2]:
            yield Block(fence[3].strip(), first, "\n".join(code))
            fence = None
        else:
            code.append(line.removeprefix(fence[1]))
    if fence is not None:
        raise ValueError(f"the fence before line {first} is not closed")


PYTHON = {name: [b for b in blocks(path.read_text()) if b.language == "python"] for name, path in PAGES.items()}


def shortened(params: Any) -> Any:
    """Return trainer params with at most 3 epochs of 10 steps: a small collection online, 10 gradient steps offline."""
    if not isinstance(params, rl.TrainerParams):
        return params
    few = {
        "max_epochs": 3, "epoch_num_steps": 10, "warmup_num_env_steps": 20, "collection_step_num_env_steps": 1024,
        "update_step_num_repetitions": 1, "update_step_num_gradient_steps_per_sample": 0.25,
        "test_step_num_episodes": 2,
    }  # fmt: skip
    if not isinstance(params, rl.OnPolicyTrainerParams):  # a smaller batch is more gradient steps there
        few["batch_size"] = 64
    changes = {name: min(most, vars(params)[name]) for name, most in few.items() if vars(params).get(name) is not None}
    # Compiled steps, which take half a minute to compile, have tests of their own.
    runtime = dataclasses.replace(params.runtime, compile=False)
    return dataclasses.replace(params, runtime=runtime, **changes)


@pytest.fixture
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    init = rl.Trainer.__init__
    monkeypatch.setattr(
        rl.Trainer, "__init__", lambda trainer, algorithm, params: init(trainer, algorithm, shortened(params))
    )


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("page", [name for name, found in PYTHON.items() if found])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    monkeypatch.setattr(registry, "_users", {})
    with torch.random.fork_rng():
        for block in PYTHON[page]:
            if (page, block.code.partition("\n")[0]) in NOT_RUN:
                continue
            elif "__main__" in block.code:
                program = tmp_path / f"line_{block.line}.py"
                program.write_text(block.code)
                run = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
                assert run.returncode == 0, f"{page}, line {block.line}:\n{run.stderr}"
            else:  # the empty lines make the line numbers of a traceback those of the page
                exec(compile("\n" * (block.line - 1) + block.code, str(PAGES[page]), "exec"), vars(module))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is_and_is_as_narrow_as_a_page(page: str) -> None:
    text = PAGES[page].read_text()
    found = list(blocks(text))
    assert [block for block in found if block.language not in LANGUAGES] == []
    assert 2 * len(found) == sum(line.lstrip().startswith(("```", "~~~")) for line in text.splitlines())
    for block in found:
        assert block.language == "python" or "import rltrainer" not in block.code, "Python that is not run"
    assert too_wide(text) == []


def too_wide(page: str) -> list[str]:
    """Return the lines of code that a page has no room for."""
    return [line for block in blocks(page) for line in block.code.splitlines() if len(line) > WIDEST]


def test_an_image_in_a_dict_takes_as_many_lines_as_the_page_says() -> None:
    program = PYTHON["docs/guides/own_encoder.md"][1].code
    assert "From the env to a trained agent in twelve lines" in PAGES["docs/guides/own_encoder.md"].read_text()
    assert "run_training" in program
    assert len([line for line in program.splitlines() if line]) == 12


def test_blocks_are_found_with_their_lines_and_without_their_indent() -> None:
    text = "text\n```python\na = 1\n```\n- a list\n  ```sh\n  make\n    all\n  ```\n~~~\n```\n~~~"
    assert list(blocks(text)) == [Block("python", 3, "a = 1"), Block("sh", 7, "make\n  all"), Block("", 11, "```")]
    with pytest.raises(ValueError, match="the fence before line 3 is not closed"):
        list(blocks("text\n```python\na = 1"))
    wide = "x = 1  # " + "very " * 16
    assert too_wide(f"{wide}\n```python\n{wide[:WIDEST]}\n{wide}\n```") == [wide]
    first_lines = {(page, block.code.partition("\n")[0]) for page, found in PYTHON.items() for block in found}
    assert set(NOT_RUN) <= first_lines
