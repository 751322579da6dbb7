"""On a CUDA device: rollouts of envs of tensors and the updates from them as graphs, as on the second device."""

from pathlib import Path
from typing import Any

import pytest

from tests.devices import test_tensor_rollouts as rollouts
from tests.gpu.test_cuda import ON_A_GPU

pytestmark = ON_A_GPU
replays = rollouts.replays


@pytest.mark.parametrize("name", rollouts.EXPLORING)
def test_rollouts_have_the_bits_of_those_without_graphs(name: str, replays: rollouts.Replays) -> None:
    rollouts.test_rollouts_have_the_bits_of_those_without_graphs(name, replays)


@pytest.mark.parametrize("name", rollouts.ALGORITHMS)
def test_a_run_has_the_bits_of_one_without_graphs(name: str, replays: rollouts.Replays, tmp_path: Path) -> None:
    rollouts.test_a_run_has_the_bits_of_one_without_graphs(name, replays, tmp_path)


def test_the_envs_may_be_moved_in_between() -> None:
    rollouts.test_the_envs_may_be_moved_in_between()


def test_neither_graph_waits() -> None:
    rollouts.test_a_replay_does_not_wait()
    rollouts.test_an_update_that_is_one_graph_does_not_wait()


@pytest.mark.parametrize(("policy_class", "reason"), [(rollouts.Looks, ""), (rollouts.Counts, "attributes")])
def test_a_policy_that_cannot_be_recorded_runs_without(policy_class: Any, reason: str) -> None:
    rollouts.test_a_policy_that_cannot_be_recorded_runs_without(policy_class, reason)
