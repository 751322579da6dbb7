"""REDQ: a random few of its critics make the target, all of them train the actor, and that not at each step."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.state.state_file import write_state
from tests.contract.test_all_algorithms import assert_same_state
from tests.fakes import OBS_SPACE, POLICY_OPTIONS
from tests.unit.algorithms.actor_critic.by_hand import FixedCritic, FixedDistribution, batch
from tests.unit.collect.test_collector import BOX


def make(num_critics: int = 3, **params: int) -> Any:
    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,), num_critics=num_critics)
    return rl.REDQ(policy, rl.REDQParams(temperature=0.2, **params))


def test_target_and_actor_value() -> None:
    algorithm, data = make(), batch([1.0], [0.99])
    noise = algorithm.sample_noise(data)
    noise.members = torch.tensor([0, 2])
    q = torch.tensor([[4.0], [1.0], [3.0]])
    algorithm.target_critic = FixedCritic(q)
    algorithm.policy.distribution = lambda obs: FixedDistribution(-1.5)
    # 1 + 0.99 (min(4, 3) + 0.2 * 1.5); the critic that says 1 was not drawn.
    assert algorithm.critic_target(data, noise).tolist() == pytest.approx([4.267])
    algorithm.params = dataclasses.replace(algorithm.params, entropy_in_target=False)
    assert algorithm.critic_target(data, noise).tolist() == pytest.approx([3.97])  # 1 + 0.99 * 3, RLPD's other form
    assert algorithm.actor_value(q).tolist() == pytest.approx([8 / 3])
    algorithm.critic = FixedCritic(q)
    assert float(algorithm.critic_loss(data, torch.tensor([2.0]), noise)[0]) == 4.0 + 1.0 + 1.0  # a sum over critics


def test_members_are_drawn_anew_for_each_step_and_without_repetition() -> None:
    algorithm, data = make(num_critics=5), batch([1.0, 1.0], [0.9, 0.9])
    algorithm.seed(0)
    drawn = [tuple(sorted(algorithm.sample_noise(data).members.tolist())) for _ in range(100)]
    assert len(set(drawn)) == 10  # all pairs of five
    assert all(len(set(pair)) == 2 for pair in drawn)


@pytest.mark.parametrize("algorithm_class", [rl.REDQ, rl.SAC, rl.TQC])
def test_the_actor_is_trained_at_each_gth_step(algorithm_class: Any) -> None:
    data, options = batch([1.0, 1.0], [0.9, 0.9]), {"hidden_sizes": (8,), **POLICY_OPTIONS.get(algorithm_class, {})}
    policy = rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, **options)
    algorithm = algorithm_class(policy, algorithm_class.params_class(actor_update_interval=3))
    assert ["actor_loss" in algorithm.update(data).metrics for _ in range(6)] == [False, False, True] * 2


def test_files_of_sac_from_before_the_interval_are_read(tmp_path: Path) -> None:
    def forget(plain: Any) -> Any:
        """Leave the fields out that SAC got later."""
        if isinstance(plain, dict):
            later = ("actor_update_interval", "adam_betas", "weight_decay")
            return {key: forget(value) for key, value in plain.items() if key not in later}
        return list(map(forget, plain)) if isinstance(plain, list) else plain

    algorithm = rl.SAC(rl.SquashedActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,)), rl.SACParams(tau=0.1))
    state = algorithm.state_dict()
    assert "num_critic_steps" not in state  # as in a file of before
    write_state(tmp_path / "old.safetensors", "algorithm", state | {"construction": forget(state["construction"])})
    loaded: Any = rl.load(tmp_path / "old.safetensors")
    assert loaded.params == algorithm.params
    assert_same_state(loaded, algorithm)
