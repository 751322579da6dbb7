"""Logging of one number."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.hooks import LogScalar
from rltrainer.hooks.log_scalar import MAX_NUMBERS, MAX_PARTS
from tests.fakes import counting_envs
from tests.unit.hooks.fake_run import FakeRun, rollout, transitions

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
BATCH = rollout([[1.0, 2.0], [3.0, 10.0]])


def logged(hook: LogScalar, batch: Any = BATCH) -> dict[str, float]:
    run = FakeRun()
    run.advance()
    found = hook.post_steps_log(run, batch)
    assert found is not None
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize(("reduction", "value"), [("mean", 4.0), ("sum", 16.0), ("min", 1.0), ("max", 10.0)])
def test_a_field_of_the_batch(reduction: Any, value: float, every: int | None) -> None:
    assert logged(LogScalar("reward", reduction, every=every)) == {f"reward_{reduction}": value}
    on_the_bar = logged(LogScalar("reward", reduction, every=every, log_pbar=True))
    assert on_the_bar == {f"reward_{reduction}": value, "log_pbar": True}


@pytest.mark.parametrize("every", [None, 1])
def test_the_deviation_is_the_populations(every: int | None) -> None:
    # mean 4, squares 9 + 4 + 1 + 36 = 50, of 4
    found = logged(LogScalar("reward", std=True, every=every))
    assert found == {"reward_mean": 4.0, "reward_std": pytest.approx(math.sqrt(12.5))}


@pytest.mark.parametrize("every", [None, 1])
def test_invalid_steps_do_not_count(every: int | None) -> None:
    valid = torch.tensor([[True, True], [True, False]])
    assert logged(LogScalar("reward", every=every), rollout([[1.0, 2.0], [3.0, 10.0]], valid=valid)) == {
        "reward_mean": 2.0
    }


def test_parts_of_trees_columns_integers_and_flags() -> None:
    batch = transitions(
        [1.0, 2.0],
        obs={"position": torch.tensor([[1.0, 3.0], [5.0, 7.0]]), "pair": (torch.zeros(2), torch.ones(2))},
        terminated=torch.tensor([True, False]),
        extra={"log_prob": torch.tensor([-1.0, -2.0])},
    )
    assert logged(LogScalar("obs.position", "max"), batch) == {"obs.position_max": 7.0}
    assert logged(LogScalar("obs.pair.1"), batch) == {"obs.pair.1_mean": 1.0}
    assert logged(LogScalar("log_prob", "sum"), batch) == {"log_prob_sum": -3.0}
    assert logged(LogScalar("extra.log_prob", "min"), batch) == {"extra.log_prob_min": -2.0}
    assert logged(LogScalar("terminated"), batch) == {"terminated_mean": 0.5}
    assert logged(LogScalar("action", log_as="chosen"), batch) == {"chosen_mean": 0.5}


def test_an_interval_takes_in_all_since_the_last_time() -> None:
    hook, run, found = LogScalar("reward", "max", every=rl.Every(1000, "env_step")), FakeRun(), []
    for i in range(14):
        run.advance(env_step=300)
        values = hook.post_steps_log(run, rollout([[float(-i)]]))
        found += [] if values is None else [(run.env_step, values["reward_max"])]
    # the steps from 0, 4, 7, 10 on
    assert found == [(1200, 0.0), (2100, -4.0), (3000, -7.0), (4200, -10.0)]


@pytest.mark.parametrize("every", [None, 1])
def test_numbers_of_updates_count_once_each(every: int | None) -> None:
    hook, run = LogScalar("critic_loss", every=every), FakeRun()
    run.advance()
    assert hook.post_steps_log(run, BATCH) is None
    run.update(critic_loss=3.0)
    assert hook.post_steps_log(run, BATCH) == {"critic_loss_mean": 3.0}
    run.advance()
    assert hook.post_steps_log(run, BATCH) is None


def test_a_field_goes_before_a_column_and_that_before_an_update() -> None:
    run = FakeRun()
    run.update(reward=7.0, weight=8.0)
    batch = rollout([[1.0]], extra={"reward": torch.tensor([[2.0]]), "weight": torch.tensor([[3.0]])})
    assert LogScalar("reward").post_steps_log(run, batch) == {"reward_mean": 1.0}
    assert LogScalar("weight").post_steps_log(run, batch) == {"weight_mean": 3.0}


@pytest.mark.parametrize(("run", "name", "text"), [
    (FakeRun, "actor_los", r"LogScalar.key: must be one of obs, action, .*, actor_loss; got 'actor_los' .* Did you me"),
    (lambda: with_td3(), "actor_los", r"critic_loss, actor_loss; got 'actor_los' \(str\)"),
    (lambda: with_td3(), "actor_grad_norm", r"critic_loss, actor_loss; got 'actor_grad_norm' \(str\)"),
])  # fmt: skip
def test_an_unknown_key_is_an_error_with_all_there_are_or_may_come(run: Any, name: str, text: str) -> None:
    hook, run = LogScalar(name), run()
    metrics = {"critic_loss": 1.0} if isinstance(run.algorithm, rl.TD3) else {"actor_loss": 1.0}
    for _ in range(9):  # a delayed actor has no loss in each update
        run.update(**metrics)
        assert hook.post_steps_log(run, BATCH) is None
    run.update(**metrics)
    with pytest.raises(ParamsError, match=text):
        hook.post_steps_log(run, BATCH)


def with_td3(update: rl.UpdateParams | None = None) -> FakeRun:
    algorithm = rl.TD3(rl.DeterministicActorCritic.for_envs(counting_envs(action_space=BOX)))
    algorithm.attach(rl.UpdatePlan(update=update or rl.UpdateParams()))
    return FakeRun(algorithm)


def test_what_an_algorithm_says_that_it_may_report_is_waited_for() -> None:
    hook, run = LogScalar("actor_loss"), with_td3()
    for _ in range(30):
        run.update(critic_loss=1.0)
        assert hook.post_steps_log(run, BATCH) is None
    run.update(critic_loss=1.0, actor_loss=2.0)
    assert hook.post_steps_log(run, BATCH) == {"actor_loss_mean": 2.0}
    norms = LogScalar("actor_grad_norm"), with_td3(rl.UpdateParams(max_grad_norm=1.0))
    for _ in range(12):
        norms[1].update(critic_loss=1.0)
        assert norms[0].post_steps_log(norms[1], BATCH) is None


def test_an_update_without_a_gradient_step_misses_nothing() -> None:
    """PPO's `target_kl` may end an update before its first step."""
    hook, run = LogScalar("approx_kl"), FakeRun()
    for _ in range(12):
        run.update()
        run.result = rl.UpdateResult(num_gradient_steps=0)
        assert hook.post_steps_log(run, BATCH) is None


def test_a_tree_is_no_number() -> None:
    with pytest.raises(ParamsError, match=r"LogScalar.key: must name a tensor; got 'obs' \(str\). It has parts: x, y."):
        logged(LogScalar("obs"), transitions([1.0], obs={"x": torch.zeros(1), "y": torch.zeros(1)}))


def test_a_state_continues_within_an_interval() -> None:
    one, other, fresh, run = (*(LogScalar("reward", every=2) for _ in range(3)), FakeRun())
    run.advance()
    for hook in (one, other, fresh):
        assert hook.post_steps_log(run, BATCH) is None
    other.prepare_load(one.state_dict())()  # what it had gathered before is forgotten
    fresh.reset()
    run.advance()
    found = [hook.post_steps_log(run, rollout([[9.0]])) for hook in (one, other, fresh)]
    assert found == [{"reward_mean": 5.0}, {"reward_mean": 5.0}, {"reward_mean": 9.0}]


def gathered(*parts: torch.Tensor, reduction: Any = "mean") -> dict[str, float]:
    """Return the log of an interval with one of these parts in each training step."""
    hook, run = LogScalar("reward", reduction, every=len(parts), std=True), FakeRun()
    found: Any = None
    for part in parts:
        run.advance()
        found = hook.post_steps_log(run, transitions_of(part))
    return {name.removeprefix("reward_"): value for name, value in found.items()}


def transitions_of(reward: torch.Tensor) -> rl.Transitions:
    batch = transitions([0.0])
    batch.reward = reward
    return batch


def test_parts_of_different_shapes() -> None:
    # mean 9 / 3, squares (-2)^2 + (-1)^2 + 3^2 = 14, of 3
    parts = torch.tensor([1.0, 2.0]), torch.tensor(6.0)
    assert gathered(*parts) == {"mean": 3.0, "std": pytest.approx(math.sqrt(14 / 3))}
    assert [gathered(*parts, reduction=name)[name] for name in ("sum", "min", "max")] == [9.0, 1.0, 6.0]
    assert gathered(torch.tensor([[2.0, 3.0]]), torch.tensor([4]))["mean"] == 3.0
    assert gathered(torch.zeros(0), torch.tensor([4.0]))["mean"] == 4.0


def test_parts_agree_with_numpy_on_all_numbers() -> None:
    numbers = np.random.default_rng(0).normal(1e4, 1e-2, 4 * MAX_PARTS)
    found = gathered(*torch.from_numpy(numbers).split(2))
    assert math.isclose(found["mean"], numbers.mean(), rel_tol=1e-12)
    assert math.isclose(found["std"], numbers.std(), rel_tol=1e-6)


def test_a_limited_number_of_parts_waits() -> None:
    hook, run = LogScalar("reward", every=10**6), FakeRun()
    for _ in range(2 * MAX_PARTS):
        run.advance()
        hook.post_steps_log(run, BATCH)
        assert len(hook._waiting) < MAX_PARTS
    hook.post_steps_log(run, transitions_of(torch.ones(MAX_NUMBERS)))
    assert hook._waiting == []


@pytest.mark.parametrize("reduction", ["mean", "sum", "min", "max"])
@pytest.mark.parametrize("every", [None, 1])
def test_one_step_is_its_own_summary(reduction: Any, every: int | None) -> None:
    hook = LogScalar("action", reduction, std=True, every=every)
    batch = rollout([[5.0]], action=torch.tensor([[3]]))
    run = FakeRun()
    run.advance()
    found = hook.post_steps_log(run, batch)
    batch.action.fill_(7)  # as the next collection does
    assert {name: float(value) for name, value in found.items()} == {f"action_{reduction}": 3.0, "action_std": 0.0}
    assert hook.post_steps_log(run, rollout([[5.0]], valid=torch.tensor([[False]]))) is None
