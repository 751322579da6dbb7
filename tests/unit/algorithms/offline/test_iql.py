"""IQL: three learning rates, and the actor's cosine."""

from typing import Any

import pytest

import rltrainer as rl
from tests.fakes import OBS_SPACE
from tests.unit.collect.test_collector import BOX


def rates(progress: float, **params: Any) -> list[float]:
    """Return the learning rates of actor, critics and value network."""
    policy = rl.GaussianActorCritic.for_spaces(OBS_SPACE, BOX, hidden_sizes=(8,))
    algorithm = rl.IQL(policy, rl.IQLParams(**params))
    algorithm.attach(rl.UpdatePlan(progress=lambda: progress))
    algorithm._begin_update()
    return [
        optimizer.method.lr
        for optimizer in (algorithm.actor_optimizer, algorithm.critic_optimizer, algorithm.value_optimizer)
    ]


def test_lr_is_for_all_three_the_actors_along_a_cosine_and_each_can_have_its_own() -> None:
    # cos(pi / 3) = 1 / 2: three quarters are left.
    assert rates(1 / 3) == pytest.approx([0.75 * 3e-4, 3e-4, 3e-4])
    assert rates(0.5, lr=1.0, actor_lr=0.1, critic_lr=0.2, value_lr=0.3) == [0.1, 0.2, 0.3]
    assert rates(0.5, lr=rl.LinearSchedule(1.0, 0.5)) == [0.75] * 3
    assert rates(0.5, lr=rl.LinearSchedule(1.0, 0.5), actor_lr=rl.CosineSchedule(4.0)) == [2.0, 0.75, 0.75]
