"""A sweep read back from its folder: the same as was returned; while it runs; and what is said of other folders."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.errors import CheckpointError, MissingExtraError, ParamsError, RLTrainerError
from tests.unit.tools.recipes.any_recipes import logged
from tests.unit.tools.refusals import error_text, refuses
from tests.unit.tools.sweeps.sweep_programs import score

optuna = pytest.importorskip("optuna")
RECIPE = rl.recipes.get("ppo/CartPole-v1").with_fields(num_env_steps=256, max_epochs=1, test_step_num_episodes=1)
Capture = pytest.CaptureFixture[str]


def run(path: Path, make: Any = score, **arguments: Any) -> rl.SweepResult:
    arguments = {"space": {"height": rl.Uniform(5.0, 9.0)}, "num_trials": 2, **arguments}
    return rl.sweep(make, folder=path, num_processes=1, show_progress=False, **arguments)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> rl.SweepResult:
    """Return a sweep of one trial."""
    return run(tmp_path_factory.mktemp("once"), space=lambda trial: {"height": 7.0, "cls": score}, num_trials=1)


@pytest.fixture
def folder(once: rl.SweepResult, tmp_path: Path) -> Path:
    """Return a copy of its folder."""
    return Path(shutil.copytree(once.folder, tmp_path / "first"))


def files(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_what_is_read_back_is_what_was_returned(tmp_path: Path, capfd: Capture) -> None:
    space = {"lr": rl.LogUniform(1e-5, 1e-2), "hidden_sizes": [(8,), (16, 16)], "num_envs": range(2, 4),
             "activation": [torch.nn.ReLU, torch.nn.Tanh]}  # fmt: skip
    expected = run(tmp_path / "a", RECIPE, space=space, num_seeds=2, seed=3)
    before = files(tmp_path)
    found = rl.open_sweep(str(tmp_path / "a"))
    assert found == expected
    assert found.recipe == expected.recipe != RECIPE
    assert list(found.best.folders) == [3, 4]
    assert files(tmp_path) == before
    assert capfd.readouterr() == ("", "")


def test_a_sweep_of_offline_training_is_read_back_too(tmp_path: Path) -> None:
    logged("CartPole-v1").save(tmp_path / "log.safetensors")
    recipe = rl.OfflineRecipe(
        algorithm="discrete_cql", env="CartPole-v1", data=tmp_path / "log.safetensors", params=rl.DiscreteCQLParams(),
        num_gradient_steps=4, max_epochs=1, test_step_num_episodes=1, trainer={"batch_size": 8},
    )  # fmt: skip
    expected = run(tmp_path / "a", recipe, space={"conservative_coef": [0.5, 1.0]})
    assert rl.open_sweep(tmp_path / "a") == expected
    assert isinstance(expected.recipe, rl.OfflineRecipe)
    assert expected.recipe.params.conservative_coef == expected.best.fields["conservative_coef"]  # type: ignore[attr-defined]  # has it


def test_fields_are_those_that_a_function_returned_and_not_what_it_drew(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        height = 9 - trial.suggest_float("9-height", 0.0, 1.0) if trial.number else 1.0  # at which `score` fails
        return {"height": height, "sizes": (3, 3), "made_by": [torch.nn.ReLU, score, rl.PPO][trial.number]}

    expected = run(tmp_path, space=space, num_trials=3)
    found = rl.open_sweep(tmp_path)
    assert [trial.state for trial in found.trials] == ["failed", "complete", "complete"]
    assert [trial.error for trial in found.trials] == [trial.error for trial in expected.trials]
    for trial, other in zip(found.trials, expected.trials, strict=True):
        assert {**trial.fields, "made_by": 0} == {**other.fields, "made_by": 0}
    assert [trial.fields["made_by"] for trial in found.trials] == [torch.nn.ReLU, "score", "PPO"]
    assert found.swept is None
    text = "^SweepResult.recipe: a function made the trainers, or .* Call your func"
    refuses(ParamsError, text, lambda: found.recipe)
    text = f"SweepResult.best: of 0 trials that are over none came to its end, in {tmp_path}. What failed"
    refuses(RLTrainerError, f"^{re.escape(text)}", lambda: rl.SweepResult(tmp_path, ()).best)


def test_a_sweep_is_read_while_it_runs(folder: Path) -> None:
    from rltrainer.checkpoint.folder_lock import FolderLock

    lock = FolderLock(folder)
    lock.acquire()  # as the sweep holds it
    with open(folder / "study.log", "a") as file:  # a trial that began, and half a line
        file.write('{"op_code":4,"worker_id":"a","study_id":0,"datetime_start":"2026-01-01T00:00:00.000000"}\n{"op_co')
    before = files(folder)
    assert [(trial.number, trial.score) for trial in rl.open_sweep(folder).trials] == [(0, 7.0)]
    assert files(folder) == before
    lock.release()


def make_env() -> Any:
    raise AssertionError("an env was made")


def test_no_module_that_a_file_names_is_imported(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in the recipe's env, as gymnasium would import it, and among a trial's fields."""
    (tmp_path / "planted_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    make = RECIPE.to_plain()["fields"] | {"env": "planted_module:Env-v0"}
    (folder / "sweep.json").write_text(json.dumps({"make": make, "seed": 0, "num_seeds": 1}))
    log = (folder / "study.log").read_text()
    assert '{"live":"score"}' in log
    (folder / "study.log").write_text(log.replace('"score"', '"planted_module.x"'))
    found = rl.open_sweep(folder)
    assert (found.swept, found.trials[0].fields["cls"]) == (None, "planted_module.x")
    assert "planted_module" not in sys.modules
    described = {"make": RECIPE.with_fields(env=make_env).to_plain()["fields"], "seed": 0, "num_seeds": 1}
    (folder / "sweep.json").write_text(json.dumps(described))
    found = rl.open_sweep(folder)
    assert (found.swept, len(found.trials)) == (None, 1)


def test_a_folder_that_is_no_sweeps_is_named(folder: Path, tmp_path: Path) -> None:
    expected, wrong = "expected the folder of a sweep, as rl.sweep makes it; it", tmp_path / "frist"
    text = f"{wrong}: {expected} is no folder. Did you mean '{folder}'"
    refuses(CheckpointError, f"^{re.escape(text)}", rl.open_sweep, wrong)
    for name in ("study.log", "sweep.json"):
        os.rename(folder / name, tmp_path / name)
        refuses(CheckpointError, rf"first: {expected} holds no {name}$", rl.open_sweep, folder)
        os.mkfifo(folder / name)
        refuses(CheckpointError, f"first/{name}: is a pipe, no regular file", rl.open_sweep, folder)
        os.replace(tmp_path / name, folder / name)
    refuses(ParamsError, r"^open_sweep.folder: must be a path; got 3 \(int\)", rl.open_sweep, 3)


@pytest.mark.parametrize(("name", "text", "message"), [
    ("sweep.json", "no JSON", "expected what a sweep varies, as JSON (Expecting value"),
    ("sweep.json", "[1]", "expected what a sweep varies, found [1]"),
    ("sweep.json", '{"make": {}, "seed": 0}', "expected what a sweep varies, found {'make': {}, 'seed': 0}"),
    ("sweep.json", '{"make": {}, "seed": 0, "num_seeds": 1000000000}', "expected what a sweep varies, found"),
    ("study.log", "", "expected a study of Optuna's; reading it failed (KeyError"),
    ("study.log", "no JSON\n[1]\n", "expected a study of Optuna's; reading it failed (JSONDecodeError"),
    ("study.log", '{"op_code": 77}\n', "expected a study of Optuna's; reading it failed ("),
])  # fmt: skip
def test_damage_is_named(name: str, text: str, message: str, folder: Path) -> None:
    (folder / name).write_text(text)
    refuses(CheckpointError, f"^{re.escape(f'{folder / name}: {message}')}", rl.open_sweep, folder)


NOTED = '{"dict":{"height":7.0,"cls":{"live":"score"}}}'
VALUES, FIELDS = '"values":[7.0]', "the fields of trial 0: "
MAXIMIZED = '"directions":[2]'


@pytest.mark.parametrize(("noted", "damaged", "message"), [
    (VALUES, '"values":[1.0,2.0]', "trial 0: expected one score, found [1.0, 2.0]"),
    (VALUES, '"values":[]', "trial 0: expected one score, found []"),
    (VALUES, '"values":["high"]', "trial 0: expected one score, found ['high']"),
    (VALUES, '"values":[NaN]', "trial 0: expected one score, found [nan]"),
    (VALUES, '"values":null', "trial 0: expected a score, found none"),
    (MAXIMIZED, '"directions":[2,2]', "expected a study that maximizes one score, found ['MAXIMIZE', 'MAXIMIZE']"),
    (MAXIMIZED, '"directions":[1]', "expected a study that maximizes one score, found ['MINIMIZE']"),
    (NOTED, "[1]", f"{FIELDS}expected values by name, found [1]"),
    (NOTED, '{"what":1}', "{'what': 1} is nothing that rltrainer writes"),
    (NOTED, '{"dict":{"a":{"params":"PPO","fields":{}}}}', "'PPO' are no params"),
    (NOTED, '{"dict":{"a":{"params":"Mine","fields":{}}}}', "'Mine' is none of rltrainer's"),
    (NOTED, "[" * 200 + "]" * 200, "is nested deeper than 100"),
    (NOTED, '{"space":"Box","shape":[1000000000,1000]}', "a Box of shape (1000000000, 1000) in the file"),
])  # fmt: skip
def test_a_study_of_other_contents_is_named(noted: str, damaged: str, message: str, folder: Path) -> None:
    path = folder / "study.log"
    log = path.read_text()
    assert noted in log
    path.write_text(log.replace(noted, damaged, 1))
    said = error_text(CheckpointError, rl.open_sweep, folder)
    assert said.startswith(f"{path}: {FIELDS if noted == NOTED else ''}")
    assert message in said


@pytest.mark.parametrize("score", ['"high"', "null", "NaN"])
def test_a_study_of_other_test_scores_is_named(score: str, folder: Path) -> None:
    lines = (folder / "study.log").read_text().splitlines(keepends=True)
    end = next(number for number, line in enumerate(lines) if json.loads(line)["op_code"] == 6)
    named = {name: value for name, value in json.loads(lines[end]).items() if name in ("worker_id", "trial_id")}
    report = json.dumps({"op_code": 7, **named, "step": 1, "intermediate_value": "?"}).replace('"?"', score)
    (folder / "study.log").write_text("".join([*lines[:end], f"{report}\n", *lines[end:]]))
    text = r"trial 0: expected scores of test steps by their numbers, found \{1: ('high'|None|nan)\}"
    refuses(CheckpointError, f"{text}$", rl.open_sweep, folder)


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    text = r' needs a package .* Run: pip install "rltrainer\[sweep\]"$'
    refuses(MissingExtraError, f"^rl.open_sweep{text}", rl.open_sweep, tmp_path)
    refuses(MissingExtraError, f"^rl.sweep{text}", rl.sweep, "ppo/CartPole-v1", folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()
