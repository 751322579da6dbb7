"""On a CUDA device: acting as a graph, and beside the last update, as on the second device."""

from pathlib import Path

import pytest

from rltrainer.execution.policy_execution import PolicyExecution
from tests.devices import test_acting as acting
from tests.devices import test_overlap as overlap
from tests.devices.test_acting import (  # noqa: F401  # pytest runs them here, too
    test_a_recorder_records_after_all_of_its_graphs_are_gone,
    test_a_run_is_resumed_bit_for_bit,
    test_masks_and_dicts,
    test_the_generator_of_a_capture_that_failed_still_draws,
)
from tests.devices.test_overlap import test_weights_are_one_update_old  # noqa: F401
from tests.gpu.test_cuda import ON_A_GPU

pytestmark = ON_A_GPU
replays = acting.replays


@pytest.mark.parametrize("num_envs", [1, 64])
@pytest.mark.parametrize("name", [*acting.FAST, *acting.FULL])
def test_a_run_is_the_same_bit_for_bit(name: str, num_envs: int, replays: list[PolicyExecution]) -> None:
    acting.test_a_run_is_the_same_bit_for_bit(name, num_envs, replays)


@pytest.mark.parametrize("cls", [acting.Looks, acting.Counts])
def test_a_policy_that_cannot_be_recorded_acts_without_a_graph(
    cls: type, replays: list[PolicyExecution], caplog: pytest.LogCaptureFixture
) -> None:
    acting.test_a_policy_that_cannot_be_recorded_acts_without_a_graph(cls, {}, "", replays, caplog)


def test_an_overlapping_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    overlap.test_a_run_is_resumed_bit_for_bit("sac_midway", tmp_path)
