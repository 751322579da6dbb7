"""Trainings by one word on a CUDA device, without a word of warning."""

from pathlib import Path
from typing import Any

import pytest

import rltrainer as rl
from rltrainer.tools.recipes import recipe_of, run_recipe
from tests.gpu.test_cuda import ON_A_GPU

pytestmark = ON_A_GPU
SHORT: dict[str, Any] = {
    "num_env_steps": 512, "max_epochs": 2, "test_step_num_episodes": 2, "collection_step_num_env_steps": 64,
    "show_progress": False,
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("compile", [False, True])
def test_a_training(algorithm: str, compile: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiler = rl.ProfilerParams(folder=str(tmp_path / "profile"), wait=1, warmup=1, active=1)
    fields = SHORT | {"runtime": rl.RuntimeParams(compile=compile, profiler=profiler)}
    if algorithm == "dqn":
        fields |= {"warmup_num_env_steps": 64, "capacity": 1000}
    result = rl.train("CartPole-v1", algorithm, folder=tmp_path, device="cuda", **fields)
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].startswith("networks on cuda:0")
    assert shown.err == ""
    assert {p.device.type for p in result.algorithm.policy.parameters()} == {"cuda"}
    assert (tmp_path / "profile" / "trace.json").exists()
    resumed = run_recipe(recipe_of(result.folder).with_fields(device="cpu", max_epochs=3), result.folder)
    assert resumed.algorithm.device.type == "cpu"
    assert resumed.info.epoch == 3


def test_auto_is_the_rule() -> None:
    small, large = ({"hidden_sizes": (size, size)} for size in (8, 256))
    recipe = rl.recipes.get("ppo/CartPole-v1")
    for fields, place in ((small, "cpu"), (large, "cuda"), (small | {"backend": "tensor"}, "cuda")):
        assert recipe.with_fields(**fields).make_trainer().algorithm.device.type == place
