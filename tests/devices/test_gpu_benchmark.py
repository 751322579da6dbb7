"""Whole runs of the GPU benchmark, made small: a fault of a device would else be found on a GPU that is paid for."""

import dataclasses
from typing import Any

import pytest

import rltrainer as rl
from benchmarks import ours

SMALL = {"chunk": 4, "random_steps": 4, "batch_size": 4}
RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sac": ("auto", SMALL | {"hidden_sizes": (8,)}),
    "dqn": ("auto", SMALL),
    "dqn-images": ("auto", SMALL),
    "ppo-images": ("auto", {"chunk": 16, "num_envs": 2, "batch_size": 8, "repeat": 1}),
    "ppo-256x4": ("tensor", {"chunk": 64, "batch_size": 32}),
}


@pytest.mark.parametrize(("name", "overlap"), [
    ("dqn", False),
    ("dqn", True),
    *(pytest.param(*case, marks=pytest.mark.full) for case in [("sac", True), ("dqn-images", False)]),
    *(pytest.param(name, False, marks=pytest.mark.full) for name in ("ppo-images", "ppo-256x4")),
])  # fmt: skip
def test_a_run_on_a_gpu(name: str, overlap: bool) -> None:
    backend, changes = RUNS[name]
    work = dataclasses.replace(ours.task.WORKS[name], **changes)
    fields = {"max_epochs": 3, "epoch_num_steps": work.chunk, "seed": 1, "show_progress": False, "verbose": False}
    options = ours.run_options("false", None, overlap) | fields
    place: Any = {"device": "cuda"} if backend == "tensor" else {}
    envs = rl.make_vec(work.env_id, num_envs=work.num_envs, backend=backend, seed=1, **place)
    trainer = ours.make_trainer(work, envs, options, "cuda")
    assert ours.training(trainer, work.chunk)(2 * work.chunk) == 2 * work.chunk
    assert trainer.algorithm.device.type == "cuda"
    assert trainer.algorithm.has_cuda_graph
