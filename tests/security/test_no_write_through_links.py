"""The folder of a run may come from elsewhere: a link in it must not make a run write what lies somewhere else."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError
from rltrainer.loggers.run_folder import WRITTEN
from rltrainer.tools.cli.pictures import film
from rltrainer.tools.recipes.cookbook import write_recipe
from tests.resume.runs import build
from tests.unit.tools.sweeps.sweep_programs import score

LOGS = ("logs/log.jsonl", "logs/log-2.csv", "logs/events.out.tfevents.1")


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def write_to(folder: rl.RunFolder) -> Any:
    return build("ppo", run_folder=folder).run()


WRITERS: list[Callable[[rl.RunFolder], Any]] = [
    write_to, lambda folder: folder.logger("csv"), lambda folder: folder.save_best(build("ppo").algorithm),
    lambda folder: write_recipe(rl.recipes.get("ppo/CartPole-v1"), folder), lambda folder: rl.plots.page(folder.path),
    lambda folder: film(folder.path, "CartPole-v1"),
]  # fmt: skip


@pytest.mark.parametrize("writer", range(len(WRITERS)))
@pytest.mark.parametrize("is_dangling", [False, True])
@pytest.mark.parametrize("name", ["best.safetensors", "logs/log.jsonl", "checkpoints", "recipe.json"])
def test_no_writer_follows_a_link(name: str, is_dangling: bool, writer: int, tmp_path: Path) -> None:
    folder, precious = rl.RunFolder(tmp_path / "run"), tmp_path / "precious"
    link = folder.path / name
    link.parent.mkdir(parents=True)
    folder.logs.mkdir(exist_ok=True)
    precious.mkdir()
    target = precious / link.name
    if not is_dangling:
        target.mkdir() if name == "checkpoints" else target.write_text("mine")
    link.symlink_to(target)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=rf"^{link}: is a link, and nothing is written through a link here"):
        WRITERS[writer](folder)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", [*WRITTEN, *LOGS])
def test_each_name_that_is_written_must_be_no_link(name: str, tmp_path: Path) -> None:
    folder = rl.RunFolder(tmp_path / "run")
    (folder.path / name).parent.mkdir(parents=True)
    folder.refuse_links()
    (folder.path / name).symlink_to("elsewhere")
    with pytest.raises(CheckpointError, match=f"^{folder.path / name}: is a link"):
        folder.refuse_links()


def test_a_folder_that_is_reached_by_a_link_and_links_of_a_users_own_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "data").symlink_to("elsewhere")
    rl.RunFolder(tmp_path / "link").refuse_links()


def test_a_resumed_run_writes_beside_checkpoints_that_are_links(tmp_path: Path) -> None:
    folder = rl.RunFolder(tmp_path / "run")
    write_to(folder)
    shutil.copytree(folder.path, tmp_path / "copy")
    for checkpoint in (tmp_path / "copy" / "checkpoints").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
        checkpoint.symlink_to(folder.checkpoints / checkpoint.name)
    before = contents(folder.path)
    build("ppo", max_epochs=4, run_folder=rl.RunFolder(tmp_path / "copy")).run()
    assert contents(folder.path) == before


@pytest.mark.parametrize("name", ["study.log", "sweep.json", "sweep.png", "trial-000"])
def test_no_sweep_follows_a_link(name: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    link = tmp_path / "sweep" / name
    link.parent.mkdir()
    link.symlink_to(tmp_path / "precious")
    with pytest.raises(CheckpointError, match=f"^{link}: is a link, and nothing is written through a link here"):
        rl.sweep(score, {"height": [1.0, 2.0]}, folder=tmp_path / "sweep", num_trials=1, show_progress=False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [*sorted([name, "sweep"])]
