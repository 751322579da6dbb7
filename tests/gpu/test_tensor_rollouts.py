"""On a CUDA device: rollouts of envs of tensors and the updates from them as graphs, as on the second device."""

from typing import Any

import pytest

from tests.devices import test_tensor_rollouts as rollouts
from tests.devices.test_tensor_rollouts import (  # noqa: F401  # pytest runs them here, too
    replays,
    test_a_replay_does_not_wait,
    test_a_run_has_the_bits_of_one_without_graphs,
    test_an_update_that_is_one_graph_does_not_wait,
    test_rollouts_have_the_bits_of_those_without_graphs,
    test_the_envs_may_be_moved_in_between,
)
from tests.gpu.test_cuda import ON_A_GPU

pytestmark = ON_A_GPU


@pytest.mark.parametrize(("policy_class", "reason"), [(rollouts.Looks, ""), (rollouts.Counts, "attributes")])
def test_a_policy_that_cannot_be_recorded_runs_without(policy_class: Any, reason: str) -> None:
    rollouts.test_a_policy_that_cannot_be_recorded_runs_without(policy_class, reason)
