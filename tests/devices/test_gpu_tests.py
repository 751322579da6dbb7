"""The tests of `tests/gpu` on the second device, as far as it goes: most machines never run them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import test_cuda as gpu
from tests.unit.algorithms import test_load_file
from tests.unit.data import test_replay_buffer
from tests.unit.envs.adapter import test_adapter

FAST = ["ppo", "recurrent_ppo", "ddpg", "tqc"]
FULL = [name for name in gpu.MAKERS if name not in FAST]


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.full) for name in FULL)])
def test_every_algorithm_is_made_and_updated(name: str) -> None:
    algorithm = gpu.make(name, "eager")
    assert gpu.update(algorithm, 0).floats()
    assert {p.device.type for p in algorithm.policy.parameters()} == {"cuda"}


@pytest.mark.parametrize(
    "name", ["bc", *(pytest.param(name, marks=pytest.mark.full) for name in gpu.OFF_POLICY if name != "bc")]
)
def test_an_off_policy_update_waits_for_nothing(name: str) -> None:
    gpu.test_an_off_policy_update_waits_for_nothing(name, "eager")


GRAPHED = ("dqn", "td3", "sac", "redq", "crossq", "cql", "iql")
"""One of each kind of off-policy step: `tests/compile/test_same_weights.py` has the graphs of all."""
UPDATED = [
    name if name in ("dqn", "td3") else pytest.param(name, marks=pytest.mark.full)
    for name in (*GRAPHED, "ppo", "recurrent_ppo")
]  # fmt: skip


@pytest.mark.parametrize("name", UPDATED)
def test_updates_as_graphs(name: str) -> None:
    gpu.test_updates_are_the_eager_ones(name, "eager, graph")


DRAWS = [each for each in gpu.DRAWS if each[0] in GRAPHED]


@pytest.mark.parametrize(
    ("name", "kind"), [DRAWS[-1], *(pytest.param(*each, marks=pytest.mark.full) for each in DRAWS[:-1])]
)
def test_a_graph_that_holds_the_sampling_draws_the_same(name: str, kind: Any) -> None:
    gpu.test_a_graph_that_holds_the_sampling_draws_the_same(name, kind)


@pytest.mark.full
@pytest.mark.parametrize("name", GRAPHED)
def test_a_graph_waits_for_nothing(name: str) -> None:
    gpu.test_an_off_policy_update_waits_for_nothing(name, "eager, graph")


@pytest.mark.full
@pytest.mark.parametrize("amp", [None, "fp16"])
@pytest.mark.parametrize("name", ["ppo", "dqn", "td3", "sac"])
def test_gathered_limited_and_scaled_steps_as_graphs(name: str, amp: str | None) -> None:
    gpu.test_gathered_limited_and_scaled_steps_are_the_eager_ones(name, "eager, graph", amp)


def test_waiting_is_allowed_again() -> None:
    with pytest.raises(RuntimeError, match="the host would wait"), gpu.without_waiting():
        gpu.make("bc", "eager")
    gpu.make("bc", "eager")


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_replay_buffer_samples_where_it_lives(n_step: int) -> None:
    gpu.test_a_replay_buffer_samples_where_it_lives(n_step)


@pytest.mark.parametrize("mode", ["eager", "eager, graph"])
def test_a_bad_gradient_is_left_out_and_named_a_little_later(mode: str) -> None:
    gpu.test_a_bad_gradient_is_left_out_and_named_a_little_later(mode)


@pytest.mark.parametrize("test", [
    gpu.test_a_copy_trains_itself, test_replay_buffer.test_a_buffer_on_cuda_holds_the_same,
    test_adapter.test_the_policy_is_on_a_gpu, test_adapter.test_an_env_of_tensors_on_a_gpu,
], ids=lambda test: test.__name__)  # fmt: skip
def test_what_needs_nothing_more(test: Callable[[], None]) -> None:
    test()


def test_an_algorithm_is_loaded(tmp_path: Path) -> None:
    test_load_file.test_a_cuda_device(tmp_path)
