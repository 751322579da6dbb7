"""Collection and sweeps in processes of a real Ray cluster, one for this module."""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import rltrainer as rl
from tests.unit.collect.async_parts import pendulums
from tests.unit.collect.test_async_collector import assert_collects_as_collectors, parts_of

ray: Any = pytest.importorskip("ray")
pytestmark = [pytest.mark.full, pytest.mark.timeout(300), pytest.mark.xdist_group("ray")]

QUIET: dict[str, Any] = {"verbose": False, "show_progress": False}
OPTIONS: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
MEMORY = 100 * 2**20
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TQDM_PATCH_PRINT": "0"}
"""Ray replaces the built-in `print` when it first shows what a worker printed: later tests would find the other one."""


def descendants() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def is_of_ray(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline())
        is_ours = "multiprocessing" in words  # the fork server, whose arguments name all paths of packages
        return process.status() != psutil.STATUS_ZOMBIE and not is_ours and bool(re.search("ray::|/ray/", words))
    return False


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """A folder with a path short enough for the sockets that Ray makes in it."""
    path = tempfile.mkdtemp(prefix="ray", dir="/tmp" if os.path.isdir("/tmp") else None)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(folder: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        before = descendants()
        ray.init(num_cpus=2, object_store_memory=MEMORY, _temp_dir=folder, **OPTIONS)
        yield
        started = [psutil.Process(pid) for pid in descendants() - before]
        ray.shutdown()
        psutil.wait_procs(filter(is_of_ray, started), timeout=20)
        assert not [process for process in started if is_of_ray(process)]
        assert print.__module__ == "builtins"


@pytest.fixture
def make(cluster: None) -> Iterator[Any]:
    """Return what makes collectors that are closed in the end."""
    with contextlib.ExitStack() as made:
        yield lambda *args, **options: made.enter_context(contextlib.closing(rl.RayCollector(*args, **options)))


def test_actors_collect_what_collectors_do(make: Any) -> None:
    for kind in ("dict_and_mask", "columns"):
        make_envs, policy, buffer = parts_of(kind, 2)
        collector = make(policy, make_envs, 2, buffer(4))
        assert_collects_as_collectors(collector, make_envs, buffer, (1, 5, 20))
        collector.close()


def test_a_killed_actor_is_replaced_and_counted(make: Any) -> None:
    _, policy, buffer = parts_of("actor_critic", 2)
    collector = make(policy, partial(pendulums, 2), 2, buffer(4))
    collector.collect(num_steps=40)
    ray.kill(collector._team.workers[1].actor)
    for _ in range(3):
        collector.sync()
        stats = collector.collect(num_steps=40)
        assert stats.num_env_steps == 40
        assert collector.rollout().valid.all()
    assert collector.settings()["actor_restarts"] == 1
    assert collector.num_env_restarts == 2


def train(kind: str, make: Any) -> rl.InfoStats:
    """Train a few steps with two actors."""
    make_envs = partial(rl.make_vec, "Pendulum-v1", num_envs=2)
    envs = make_envs()
    spaces = envs.single_observation_space, envs.single_action_space
    torch.manual_seed(1)
    if kind == "impala":
        policy: Any = rl.ActorCritic.for_envs(envs, hidden_sizes=(8,))
        algorithm: Any = rl.IMPALA(policy)
        collector = make(policy, make_envs, 2)
        params: Any = rl.OnPolicyTrainerParams(
            training_collector=collector, max_epochs=1, epoch_num_steps=192, collection_step_num_env_steps=64,
            batch_size=32, seed=1, **QUIET,
        )  # fmt: skip
    else:
        policy = rl.SquashedActorCritic.for_envs(envs, hidden_sizes=(8,))
        algorithm = rl.SAC(policy)
        buffer = rl.ReplayBuffer(1000, *spaces, num_envs=4)
        collector = make(policy, make_envs, 2, buffer, max_version_lag=16)
        params = rl.OffPolicyTrainerParams(
            training_collector=collector, max_epochs=1, epoch_num_steps=80, collection_step_num_env_steps=4,
            warmup_num_env_steps=40, batch_size=8, seed=1, **QUIET,
        )  # fmt: skip
    before = [p.clone() for p in policy.parameters()]
    info = algorithm.run_training(params)
    assert any(not torch.equal(p, old) for p, old in zip(policy.parameters(), before, strict=True))
    settings = collector.settings()
    assert settings["policy_version"] > 0
    assert settings["refused_env_steps"] == settings["actor_restarts"] == 0
    return info


@pytest.mark.parametrize("kind", ["impala", "sac"])
def test_algorithms_train_on_actors(make: Any, kind: str) -> None:
    info = train(kind, make)
    assert info.gradient_step > 0
    assert info.env_step == (192 if kind == "impala" else 80)


def test_a_sweep_runs_its_trials_in_the_cluster(cluster: None, tmp_path: Path) -> None:
    recipe = rl.recipes.get("ppo/CartPole-v1").with_fields(num_env_steps=1024, max_epochs=2, hidden_sizes=(4,))
    space = {"lr": rl.LogUniform(1e-4, 1e-2)}
    options: dict[str, Any] = {"num_trials": 3, "num_processes": 1, "show_progress": False}
    found = rl.sweep(recipe, space, folder=tmp_path / "ray", executor="ray", **options)
    assert [trial.state for trial in found.trials] == ["complete"] * 3
    expected = rl.sweep(recipe, space, folder=tmp_path / "processes", **options)
    assert [trial.fields for trial in found.trials] == [trial.fields for trial in expected.trials]
    assert [trial.scores for trial in found.trials] == [trial.scores for trial in expected.trials]


def scored(seed: int, number: int) -> float:
    if number == 2:
        os._exit(1)
    return float(number)


def numbered(trial: Any) -> dict[str, Any]:
    return {"number": trial.number}


def test_trials_are_pruned_and_fail_in_the_cluster_as_elsewhere(
    cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    optuna = pytest.importorskip("optuna")
    pruner = optuna.pruners.ThresholdPruner(lower=0.5)
    options: dict[str, Any] = {"num_trials": 3, "num_seeds": 2, "pruner": pruner, "show_progress": False}
    monkeypatch.chdir(tmp_path)
    found = rl.sweep(scored, numbered, folder="here", executor="ray", **options)
    assert [trial.state for trial in found.trials] == ["pruned", "complete", "failed"]
    assert [trial.score for trial in found.trials] == [0.0, 1.0, None]
    assert "Error" in (found.trials[2].error or "")
    assert "sweep: trial 2 failed (number=2)" in capsys.readouterr().err
    assert found.folder == tmp_path / "here"
