"""Training by a recipe: what is picked, what is overridden, what lies in the folder, how it goes on."""

import dataclasses
import json
import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rltrainer as rl
from rltrainer.errors import CheckpointError, ParamsError, RLTrainerError
from rltrainer.tools.recipes.algorithms import ALGORITHMS, OFFLINE
from rltrainer.tools.recipes.training import choose_recipe, recommended_recipe, rollout_words
from tests.fakes import CountingEnv
from tests.unit.ranks.rank_programs import set_variables
from tests.unit.tools.refusals import error_text, refuses

SHORT: dict[str, Any] = {"num_env_steps": 1024, "max_epochs": 2, "test_step_num_episodes": 2, "show_progress": False}


def test_three_lines_train_and_say_what_they_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], measured_as: Callable[..., None]
) -> None:
    measured_as({"ppo/CartPole-v1": [[500.0]], "dqn/CartPole-v1": [[9.0]]}, 12.0)
    result = rl.train("CartPole-v1", folder=tmp_path, **SHORT)
    first, second = capsys.readouterr().out.splitlines()[:2]
    why = "the quickest within 5 % of the best, out of 2 measured ones: 12 s"
    text = f"rl.train: recipe ppo/CartPole-v1 (RL Zoo), {why}; 1,024 env steps, to {tmp_path / 'ppo_CartPole-v1'}"
    assert first == text
    assert second.startswith("networks on cpu, as ")
    assert (type(result.algorithm), result.info.env_step) == (rl.PPO, 1024)
    assert result.recipe.params == rl.recipes.get("ppo", "CartPole-v1").params
    files = sorted(path.name for path in result.folder.path.iterdir())
    assert files == ["best.safetensors", "checkpoints", "logs", "params.json", "recipe.json"]
    run = rl.open_run(result.folder.path)
    assert run.stop_reason == "max_epochs"
    assert run.rows("test")["score"].max() == result.info.best_score
    assert rl.recipes.recipe_of(run.folder) == result.recipe


def test_the_algorithm_is_the_best_and_a_logger_of_the_users_is_beside_json_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ppo_CartPole-v1").mkdir()
    logger = rl.CSVLogger(tmp_path / "log.csv")
    result = rl.train(
        "CartPole-v1", folder=tmp_path, verbose=False, compute_score_fn=lambda stats: 0.0, logger=logger, **SHORT
    )
    assert "test/score" in logger.path.read_text()
    assert (result.folder.path.name, capsys.readouterr()) == ("ppo_CartPole-v1-2", ("", ""))
    assert rl.open_run(result.folder.path).rows("test")["score"].tolist() == [0.0, 0.0]
    assert result.info.best_epoch == 1  # none is strictly better than the first, which is of a trained network
    best, obs = rl.load(result.folder.best), np.ones((3, 4), np.float32)
    best.policy.eval()
    result.algorithm.policy.eval()
    np.testing.assert_array_equal(result.algorithm.policy.predict(obs), best.policy.predict(obs))
    last = rl.load(next((result.folder.checkpoints / "checkpoint-000000001024").glob("algorithm*")))
    assert any((a != b).any() for a, b in zip(last.policy.parameters(), best.policy.parameters(), strict=True))


BOXES = ("crossq", "ddpg", "flashsac", "redq", "sac", "simbav2", "td3", "tqc", "xqc")


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - OFFLINE.keys()))
def test_each_algorithm_is_given_a_policy_that_it_takes(name: str) -> None:
    env = "Pendulum-v1" if name in BOXES else "CartPole-v1"
    policy = {"v_min": 0.0, "v_max": 100.0} if name == "c51" else {}
    recipe = dataclasses.replace(recommended_recipe(env, name, {}, None), policy=policy)
    assert type(recipe.make_trainer().algorithm) is ALGORITHMS[name]


def test_fields_are_found_by_their_names(tmp_path: Path) -> None:
    seen: list[int] = []
    result = rl.train(
        "CartPole-v1", "dqn", folder=tmp_path, verbose=False, seed=7, lr=1e-4, batch_size=16, hidden_sizes=(8,),
        training_fn=lambda epoch, env_step: seen.append(env_step), **SHORT | {"num_env_steps": 512},
    )  # fmt: skip
    assert isinstance(result.algorithm, rl.DQN)
    recipe = result.recipe
    found = (recipe.seed, result.algorithm.params.lr, recipe.trainer["batch_size"], recipe.policy["hidden_sizes"])
    assert found == (7, 1e-4, 16, (8,))
    assert recipe.params.epsilon == rl.recipes.get("dqn", "CartPole-v1").params.epsilon  # type: ignore[attr-defined]
    assert seen == [0, 256]
    assert rl.open_run(result.folder.path).trainer["seed"] == 7


class Walking(CountingEnv):
    """An env of a user's, with continuous actions."""

    def __init__(self) -> None:
        super().__init__(20, truncates=True, action_space=gym.spaces.Box(-1.0, 1.0, (1,)))


def test_an_env_of_ones_own_gets_recommended_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = SHORT | {"num_env_steps": 2100, "warmup_num_env_steps": 2050}
    result = rl.train(Walking, folder=tmp_path, **short)
    out = capsys.readouterr().out
    text = "rl.train: no recipe for Walking, so the recommended settings of sac, a guess; 2,100 env steps, to "
    assert out.startswith(text + str(tmp_path / "sac_Walking"))
    assert (type(result.algorithm), result.recipe.trainer["batch_size"]) == (rl.SAC, 256)
    discrete = rl.train(CountingEnv, folder=tmp_path, num_envs=80, **SHORT | {"num_env_steps": 5120})
    assert (type(discrete.algorithm), discrete.info.env_step) == (rl.PPO, 5120)
    assert discrete.recipe.trainer.items() >= rl.PPO.recommended(rl.make_vec(CountingEnv, 80)).items()
    text = r"recipe.json: Recipe.env: JSON holds only the name 'Walking'; pass env="
    refuses(CheckpointError, text, rl.recipes.recipe_of, result.folder)
    assert rl.recipes.recipe_of(result.folder, env=Walking) == result.recipe


class Arriving(CountingEnv):
    """Says at the end of an episode whether it was one of the even ones."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "is_success": self.number % 2 == 0}


@pytest.mark.parametrize("keys", ["is_success", ["is_success"], ("is_success",)])
def test_what_envs_tell_is_logged(keys: Any, tmp_path: Path) -> None:
    def success(stats: rl.CollectStats) -> float:
        assert stats.success_rate is not None
        return stats.success_rate

    result = rl.train(Arriving, folder=tmp_path, info_keys=keys, compute_score_fn=success, **SHORT)
    run = rl.open_run(result.folder.path)
    for kind in ("training", "test"):
        assert ((run.rows(kind)["is_success"] >= 0) & (run.rows(kind)["is_success"] <= 1)).all()
    assert run.rows("test")["score"].tolist() == run.rows("test")["is_success"].tolist()
    assert result.recipe.info_keys == ("is_success",)
    assert rl.recipes.recipe_of(result.folder, env=Arriving) == result.recipe


def test_another_version_of_an_env_is_said(measured_as: Callable[..., None]) -> None:
    measured_as({"ppo/CartPole-v1": [[500.0]]})
    recipe, words = choose_recipe("CartPole-v0", None, {})
    assert (recipe.env, recipe.name) == ("CartPole-v0", "ppo/CartPole-v0")
    why = "recipe ppo/CartPole-v1 (RL Zoo), the only one that was measured"
    assert words == f"{why}, as there is none for CartPole-v0"
    recipe, words = choose_recipe("CartPole", None, {})
    assert (recipe.env, words) == ("CartPole-v1", why)  # the newest that there is


@pytest.mark.parametrize(("algorithm", "fields", "num_steps", "words"), [
    ("ppo", {"num_envs": 256}, 8192, ", with rollouts of 32 steps of each env"),
    ("ppo", {"num_envs": 1}, 32, ", with rollouts of 32 steps of each env"),
    ("ppo", {"num_envs": 8}, 256, ""),
    ("ppo", {"num_envs": 64, "collection_step_num_env_steps": 640}, 640, ", with rollouts of 10 steps of each env"),
    ("a2c", {"num_envs": 3}, 15, ", with rollouts of 5 steps of each env"),
    ("dqn", {"num_envs": 64}, 256, ""),
])  # fmt: skip
def test_another_number_of_envs_keeps_the_steps_of_each_env(
    algorithm: str, fields: dict[str, int], num_steps: int, words: str
) -> None:
    found = rl.recipes.get(algorithm, "CartPole-v1")
    made = found.with_fields(**fields)
    assert (made.trainer["collection_step_num_env_steps"], rollout_words(found, made)) == (num_steps, words)
    assert made.trainer["batch_size"] == found.trainer["batch_size"]
    assert rl.Recipe.from_json(made.to_json()) == made  # a run resumes with what it had


@pytest.mark.parametrize("env", ["CartPole-v1", CountingEnv])
def test_ctrl_c_says_what_resumes_the_run(env: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields: dict[str, Any] = SHORT | {"verbose": False, "collection_step_num_env_steps": 256}
    with pytest.raises(KeyboardInterrupt):
        rl.train(env, "ppo", folder=tmp_path, training_fn=interrupt, **fields)
    folder, seen = next(tmp_path.iterdir()), list[int]()
    said = capsys.readouterr().err
    assert said == f"rl.train: saved; resume with: rl.resume({str(folder)!r})\n"
    given = {} if isinstance(env, str) else {"env": env}
    if given:
        refuses(CheckpointError, r"recipe.json: Recipe.env: .* pass env=\.\.\.", rl.resume, folder)
    resumed = rl.resume(folder, training_fn=lambda epoch, env_step: seen.append(env_step), **given)
    whole = rl.train(env, "ppo", folder=tmp_path / "whole", **fields)
    assert (seen, resumed.info.env_step) == ([768], 1024)
    for a, b in zip(resumed.algorithm.policy.parameters(), whole.algorithm.policy.parameters(), strict=True):
        assert (a == b).all()
    assert rl.resume(folder, max_epochs=3, **given).info.env_step == 1536
    shutil.rmtree(folder / "checkpoints")
    refuses(CheckpointError, "its checkpoints are gone", rl.resume, folder, **given)


BOTH, HALF = ("Pendulum-v1", "redq"), {"data": "x.npz", "offline_share": 0.5}
PENDULUM = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)


@pytest.mark.parametrize(("args", "fields", "text"), [
    *((("CartPole-v1",), {"env_kwargs": {name: 1}},
       f"Recipe.env_kwargs: must be arguments of the env, and have no {name!r}; got {{{name!r}: 1}} (dict). "
       f"The recipe has a field for it: {name}=...") for name in ("seed", "backend", "num_envs", "wrappers", "env")),
    (("CartPole-v1",), {"gamma": 2.0}, "PPOParams.gamma: must be "),
    (("CartPole-v1",), {"info_keys": ["return"]}, "Recipe.info_keys: must be none of return, length, "),
    (("CartPole-v1",), {"info_keys": [3]}, "Recipe.info_keys: must be "),
    (("CartPole-v1",), {"num_envs": 0}, "Recipe.num_envs: must be a positive integer; got 0 (int)"),
    ((3,), {}, "train.env: must be a gymnasium id, a factory of envs, or a vector env; got 3 (int)"),
    (("CartPole-v3",), {}, "make_vec.env: "),
    (("CartPole-v1",), {"folder": 3}, "train.folder: must be a path; got 3 (int)"),
    # from data
    ((None, "ppo"), {"data": "x.npz"}, "OfflineRecipe.algorithm: must be one that learns from data; got"),
    (("Pendulum-v1", "iql"), {}, "Recipe.algorithm: must be one that trains in an env; got 'iql'"),
    ((None, "iql"), {"data": 3}, "train.data: must be a file or folder of data, the name of a Minari data"),
    ((None, "iql"), {}, "train.env: must be a gymnasium id, a factory of envs, or a vector env; got None"),
    ((None, "iql"), {"data": "nowhere.npz"}, "from_npz: nowhere.npz: there is no such file"),
    ((None, "iql"), {"data": "x.npz", "num_envs": 3}, "Recipe iql/x: has no field 'num_envs'."),
    ((None, "iql"), {"data": "x.npz", "num_gradient_steps": 0}, "OfflineRecipe.num_gradient_steps: must be a"),
    # in an env and from data
    (BOTH, {"offline_share": 0.5}, "Recipe.data: must be given with offline_share; got None"),
    *((BOTH, HALF | {"offline_share": share}, "Recipe.offline_share: must be a number between 0 and 1 or None; got")
      for share in (1.0, 0)),
    (("Pendulum-v1", "ppo"), HALF, "Recipe.data: must be None on policy; got 'x.npz'"),
    (("Pendulum-v1", "bc"), HALF, "Recipe.algorithm: must be one that trains in an env"),
    ((None, "redq"), HALF, "train.env: must be a gymnasium id"),
    (BOTH, HALF, "from_npz: x.npz: there is no such file"),
    (BOTH, HALF | {"data": rl.ReplayBuffer(4, *PENDULUM[::-1])}, "Recipe.data.observation_space: expected Box"),
    (BOTH, HALF | {"data": rl.ReplayBuffer(4, *PENDULUM)}, "Recipe.data.action_space: expected Box"),
])  # fmt: skip
def test_what_is_wrong_is_named_before_anything_is_made(args: Any, fields: Any, text: str, tmp_path: Path) -> None:
    given = {"folder": tmp_path, "verbose": False} | fields
    assert error_text(RLTrainerError, rl.train, *args, **given).startswith(text)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="recipe.json: is not there, so nothing says how the run was made"):
        rl.recipes.recipe_of(rl.RunFolder(tmp_path))
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(CheckpointError, match="recipe.json: Recipe.from_json: the text is not JSON"):
        rl.recipes.recipe_of(rl.RunFolder(tmp_path))


def test_a_file_cannot_name_a_module_that_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "canary.py").write_text(f"import pathlib; pathlib.Path({str(tmp_path / 'sang')!r}).touch()")
    monkeypatch.syspath_prepend(tmp_path)
    own = rl.recipes.get("ppo/CartPole-v1").with_fields(env="canary:CartPole-v1")
    (tmp_path / "recipe.json").write_text(own.to_json())
    said = error_text(CheckpointError, rl.recipes.recipe_of, rl.RunFolder(tmp_path))
    text = "Recipe.env: must name no module in text that is read; got 'canary:CartPole-v1' (str). Pass it: env=..."
    assert said == f"{tmp_path / 'recipe.json'}: {text}"
    (tmp_path / "params.json").write_text(json.dumps({"env": {"id": "canary:CartPole-v1"}}))
    assert rl.open_run(tmp_path).env_id is None
    assert not (tmp_path / "sang").exists()
    rl.recipes.recipe_of(rl.RunFolder(tmp_path), env="canary:CartPole-v1").make_envs(1).close()
    assert (tmp_path / "sang").exists()  # so it would have


def test_ranks_are_started_with_the_same_arguments_and_the_best_algorithm_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def run_here(owner: str, num_ranks: int, function: Any) -> Any:
        started.append(num_ranks)
        return pickle.loads(pickle.dumps(function))()

    monkeypatch.setattr("rltrainer.tools.recipes.training.run_ranks", run_here)
    result = rl.train("CartPole-v1", folder=tmp_path, num_ranks=2, verbose=False, **SHORT)
    assert (started, result.folder.path, result.info.env_step) == ([2], tmp_path / "ppo_CartPole-v1", 1024)
    assert result.recipe == rl.recipes.recipe_of(result.folder)
    best, obs = rl.load(result.folder.best), np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(result.algorithm.policy.predict(obs), best.policy.predict(obs))


def test_a_rank_starts_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    set_variables(monkeypatch)
    refuses(ParamsError, r"^train\.num_ranks: must be None, or 4 as of torchrun", rl.train, "CartPole-v1", num_ranks=2)
    refuses(ParamsError, r"^train\.num_seeds: must be None with num_ranks and", rl.train, "CartPole-v1", num_seeds=2)


def run_here(make: Any, seeds: Any, *, show_progress: bool, failing: tuple[int, ...] = ()) -> list[rl.SeedRun[Any]]:
    """Do in this process, one seed after the other, what `run_seeds` does in others."""

    def run(seed: int) -> rl.InfoStats:
        trainer = pickle.loads(pickle.dumps(make))(seed)
        object.__setattr__(trainer.params, "verbose", False)
        return trainer.run()

    return [rl.SeedRun(each, None, "Traceback") if each in failing else rl.SeedRun(each, run(each)) for each in seeds]


def interrupt(epoch: int, env_step: int) -> None:
    if env_step == 512:
        os.kill(os.getpid(), signal.SIGINT)


RUN_SEEDS = "rltrainer.tools.recipes.training.run_seeds"


def losses(folder: Path) -> list[float]:
    return rl.open_run(folder).rows("update")["loss"].tolist()


def test_several_seeds_are_each_the_run_alone_and_a_failed_one_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RUN_SEEDS, partial(run_here, failing=(6,)))
    found = rl.train("CartPole-v1", num_seeds=3, seed=4, folder=tmp_path, **SHORT)
    folder, out = tmp_path / "ppo_CartPole-v1", capsys.readouterr().out
    assert out.startswith("rl.train: recipe ppo/CartPole-v1 (RL Zoo), ")
    assert f"; 3 seeds of 1,024 env steps, to {folder}\n" in out
    assert f"\nseed 6: failed, {folder / 'seed-6'}\nIQM of 2 seeds: " in out
    assert [(run.seed, run.error) for run in found.runs] == [(4, None), (5, None), (6, "Traceback")]
    first, second = (run.result for run in found.runs if run.result is not None)
    best = max(first, second, key=lambda each: each.info.best_score or 0.0)
    assert (found.folder.path, found.info, found.recipe) == (folder, best.info, best.recipe)
    assert found.algorithm is best.algorithm
    scores = rl.plots.run_scores({"CartPole-v1": [first.folder.path, second.folder.path]})
    assert found.iqm == rl.scores.interquartile_mean(scores) == scores.mean()  # of two all count
    low, high = found.interval or (0.0, 0.0)
    assert [low, high] == sorted(scores.flatten())
    alone = rl.train("CartPole-v1", seed=5, folder=tmp_path, verbose=False, **SHORT)
    assert losses(alone.folder.path) == losses(second.folder.path)
    monkeypatch.setattr(RUN_SEEDS, run_here)
    resumed = rl.resume(folder)
    assert [run.error for run in resumed.runs] == [None] * 3
    assert losses(second.folder.path) == losses(alone.folder.path)  # it had ended
    text = rl.plots.page(folder).read_text()
    assert all(f"seed-{seed}: best score" in text for seed in (4, 5, 6))
    figure = rl.plots.learning_curves(folder)
    assert [each.get_text() for each in figure.axes[0].get_legend().get_texts()] == ["PPO (3 runs)"]


def test_seeds_that_are_interrupted_are_all_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RUN_SEEDS, run_here)
    fields: dict[str, Any] = SHORT | {"verbose": False, "collection_step_num_env_steps": 256}
    whole = rl.train("CartPole-v1", num_seeds=2, folder=tmp_path / "whole", **fields)
    with pytest.raises(KeyboardInterrupt):
        rl.train("CartPole-v1", num_seeds=2, folder=tmp_path, training_fn=interrupt, **fields)
    folder = tmp_path / "ppo_CartPole-v1"
    assert capsys.readouterr().err == f"rl.train: saved; resume with: rl.resume({str(folder)!r})\n"
    assert sorted(path.name for path in (folder / "seed-1").iterdir()) == ["checkpoints", "recipe.json"]
    resumed = rl.resume(folder)
    for seed in (0, 1):
        assert losses(folder / f"seed-{seed}") == losses(whole.folder.path / f"seed-{seed}")
    assert resumed.iqm == whole.iqm
    assert rl.resume(folder, max_epochs=3).info.env_step == 1536


def test_an_algorithm_continues_with_several_seeds_and_their_folder_may_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUN_SEEDS, run_here)
    fields: dict[str, Any] = {"verbose": False, "folder": tmp_path, **SHORT}
    first = rl.train("CartPole-v1", **fields)
    checkpoint = rl.CheckpointParams(tmp_path / "elsewhere")
    found = rl.train("CartPole-v1", first.algorithm, num_seeds=2, seed=1, checkpoint=checkpoint, **fields)
    assert (tmp_path / "elsewhere" / "seed-2" / "checkpoints" / "checkpoint-000000001024").exists()
    alone = rl.train("CartPole-v1", first.algorithm, seed=2, **fields)
    assert losses(alone.folder.path) == losses(found.folder.path / "seed-2")
    shutil.move(found.folder.path, tmp_path / "moved")
    resumed = rl.resume(tmp_path / "moved", max_epochs=3, checkpoint=checkpoint)
    assert [run.result and run.result.info.env_step for run in resumed.runs] == [1536, 1536]


def test_what_a_cell_of_a_notebook_defines_cannot_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")  # which has no file
    exec("def make(): ...", vars(notebook))
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    text = r"^train\.env: must travel to another process; .*%%writefile my_module\.py, and import it from there"
    refuses(ParamsError, text, rl.train, vars(notebook)["make"], num_seeds=2)
