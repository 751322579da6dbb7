"""Collection by workers: the data of a collector's, in any portions; versions of weights; bounds on being ahead."""

import contextlib
import copy
import dataclasses
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.collect.async_rows import from_arrays, join_envs, to_arrays
from rltrainer.collect.async_worker import Request
from rltrainer.errors import CheckpointError, EnvError, ParamsError, SpaceError
from rltrainer.seeding import derive_seed
from rltrainer.tree import leaves
from tests.fakes import ScriptedOffPolicy
from tests.unit.collect.async_parts import (
    BOX,
    Constant,
    Refusing,
    TargetNoise,
    counting,
    gated,
    pendulums,
    seven_training_steps,
    wide,
)
from tests.unit.collect.test_masks import Strict
from tests.unit.collect.test_memory import Counts

VERSION: Any = {"version": ((), torch.int64)}
QUIET: dict[str, Any] = {"verbose": False, "show_progress": False}
REQUEST = Request(None, None, random=False, explore=True)
Make = Callable[..., rl.AsyncCollector]


@pytest.fixture
def make() -> Iterator[Make]:
    """Return what makes collectors that are closed in the end."""
    with contextlib.ExitStack() as made:
        yield lambda *args, **options: made.enter_context(contextlib.closing(rl.AsyncCollector(*args, **options)))


def masked(num_envs: int = 2) -> Any:
    return rl.make_vec(Strict, num_envs, backend="sync")


KINDS: dict[str, tuple[Any, Any, Any]] = {
    "actor_critic": (partial(pendulums, 2), rl.ActorCritic, rl.RolloutBuffer),
    "dict_and_mask": (masked, rl.ActorCritic, rl.RolloutBuffer),
    "recurrent": (partial(counting, 2, length=4), rl.RecurrentActorCritic, rl.RolloutBuffer),
    "replay": (partial(counting, 2, length=4, action_space=BOX), rl.SquashedActorCritic, rl.ReplayBuffer),
    "columns": (partial(counting, 2, length=4), Counts, rl.ReplayBuffer),
}


def parts_of(kind: str, num_workers: int, seed: int = 3) -> tuple[Any, rl.Policy, Callable[[int], Any]]:
    """Return what makes envs, a policy for them, and what makes buffers for so many envs."""
    make_envs, policy_class, buffer_class = KINDS[kind]
    torch.manual_seed(seed)
    envs = make_envs()
    policy = policy_class.for_envs(envs)
    extra = {name: spec for name, spec in policy.columns.items() if name != "log_prob" or kind == "actor_critic"}

    def buffer(num_envs: int) -> Any:
        size = (1,) if buffer_class is rl.RolloutBuffer else (400,)
        return buffer_class(*size, num_envs=num_envs, extra=extra, observation_space=envs.single_observation_space,
                            action_space=envs.single_action_space)  # fmt: skip

    return make_envs, policy, buffer


def assert_same(one: rl.Rollout, other: rl.Rollout) -> None:
    for field in dataclasses.fields(rl.Rollout):
        if field.name == "last_obs":  # of an episode's end, the successor is in `final_obs`
            continue
        for a, b in zip(leaves(getattr(one, field.name)), leaves(getattr(other, field.name)), strict=True):
            assert torch.equal(a, b), field.name
    for a, b in zip(leaves(one.next_obs), leaves(other.next_obs), strict=True):
        assert torch.equal(a, b)


def assert_collects_as_collectors(
    collector: Any, make_envs: Any, buffer: Any, rows: tuple[int, ...] = (1, 5, 2, 20, 1, 1, 7)
) -> list[rl.Collector]:
    """Check that rows are those of a collector for each worker, and return these."""
    num_workers = collector.num_envs // 2
    collector.seed(7)
    plain = [rl.Collector(collector.policy, make_envs(), buffer(2)) for _ in range(num_workers)]
    for number, one in enumerate(plain):
        one.seed(derive_seed(7, "worker", number))
    for num_rows in rows:
        stats = collector.collect(num_steps=num_rows * 2 * num_workers)
        expected = [one.collect(num_steps=2 * num_rows) for one in plain]
        assert_same(collector.rollout(), from_arrays(join_envs([to_arrays(one.rollout()) for one in plain])))
        assert stats.num_env_steps == stats.num_collected_steps == num_rows * 2 * num_workers
        assert stats.returns.tolist() == [r for each in expected for r in each.returns.tolist()]
        assert stats.lengths.tolist() == [r for each in expected for r in each.lengths.tolist()]
    return plain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("num_workers", "max_ahead", "dtype"), [(1, 0, "float64"), (2, None, "float32"), (2, 3, "float32")]
)
def test_workers_collect_what_collectors_do(
    make: Make, kind: str, num_workers: int, max_ahead: int | None, dtype: str
) -> None:
    """Rows come in other portions than they were made in."""
    make_envs, policy, buffer = parts_of(kind, num_workers)
    collector = make(policy, make_envs, num_workers, buffer(2 * num_workers), max_ahead=max_ahead)
    policy.set_weight_dtype(getattr(torch, dtype))
    plain = assert_collects_as_collectors(collector, make_envs, buffer)
    assert collector.rollout().reward.dtype == torch.float32
    if num_workers == 1 and isinstance(collector.buffer, rl.ReplayBuffer):
        assert isinstance(plain[0].buffer, rl.ReplayBuffer)
        mine, other = collector.buffer.state_dict(), plain[0].buffer.state_dict()
        assert str({k: v for k, v in mine.items() if "generator" not in k}) == str(
            {k: v for k, v in other.items() if "generator" not in k}
        )


def test_episodes_are_shared_among_all_envs_and_without_a_buffer_only_statistics_come(make: Make) -> None:
    make_envs, policy, buffer = parts_of("recurrent", 2)
    collector = make(policy, make_envs, 2)
    assert collector.collect(num_steps=20).num_collected_episodes == 4
    assert collector.collect(num_episodes=1, explore=False).lengths.tolist() == [4]
    with pytest.raises(ParamsError, match="AsyncCollector.buffer: must be given, and something collected"):
        collector.rollout()
    collector.attach_buffer(buffer(4))
    stats = collector.collect(num_episodes=7)
    assert stats.num_collected_episodes == 7
    assert stats.num_env_steps == int(collector.rollout().valid.sum()) == 28
    assert collector.rollout().valid.sum(0).tolist() == [8, 8, 8, 4]
    assert collector.needs_reset
    with pytest.raises(ParamsError, match="collect.num_episodes: must give each of 2 workers an episode; got 1"):
        collector.collect(num_episodes=1)


def test_random_actions_end_exactly_where_they_are_due(make: Make) -> None:
    """Workers do not run ahead with random actions; traces go on when the policy takes over."""
    policy = Constant.for_envs(wide())
    policy.set(4.0)
    buffer = rl.ReplayBuffer(100, policy.observation_space, policy.action_space)
    collector = make(policy, wide, 1, buffer)
    collector.collect(num_steps=5, random=True)
    for _ in range(5):
        collector.collect(num_steps=1, random=True)
    collector.collect(num_steps=20)
    rows = buffer._ring.columns["action"].leaves[0].tensor[:30, 0]
    assert (rows[10:] == torch.tensor([4.0, 4.0, 1.0])).all()
    assert not (rows[:10, 0] == 4.0).any()
    assert buffer._ring.final.index.sum() == 0  # no trace was broken


def test_workers_stop_when_they_are_ahead(make: Make) -> None:
    """A learner that takes its time gets no more env steps than it asked for, and `max_ahead` more."""
    policy = Constant.for_envs(wide())
    buffer = rl.ReplayBuffer(1000, policy.observation_space, policy.action_space, num_envs=2)
    collector = make(policy, wide, 2, buffer, max_ahead=10)
    collector.reset()
    for step in range(1, 8):
        collector.collect(num_steps=6)
        collector._team.settle(keeps=True)  # the learner sleeps: workers end what they are at
        collector._team._ask(REQUEST, 0, 10)
        collector._team.settle(keeps=True)
        taken = np.array([state["num_rows"] for state in collector._team.call_all("its state", "call", "state_dict")])
        assert (taken <= 3 * step + 10).all()
        assert (taken > 3 * step).all()


def test_the_learner_waits_for_a_slow_env(make: Make, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    policy = rl.QNetwork.for_envs(counting())
    buffer = rl.ReplayBuffer(100, policy.observation_space, policy.action_space)
    collector = make(policy, partial(gated, str(gate)), 1, buffer)
    params = rl.OffPolicyTrainerParams(
        training_collector=collector, max_epochs=1, epoch_num_steps=20, collection_step_num_env_steps=4, batch_size=2,
        update_step_num_gradient_steps_per_sample=0.5, **QUIET,
    )  # fmt: skip
    trainer = rl.OffPolicyTrainer(ScriptedOffPolicy(policy), params)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert trainer.gradient_step == 0
    gate.touch()
    thread.join(60)
    assert (trainer.env_step, trainer.gradient_step) == (20, 10)
    assert collector.settings()["utd_ratio"] == 0.5


def versions(rollout: rl.Rollout) -> list[int]:
    return sorted(set(rollout.extra["version"].flatten().tolist()))


def test_versions_of_seven_training_steps(make: Make) -> None:
    """Published after steps 3 and 6: steps 1 to 3 carry 0, steps 4 to 6 carry 1, step 7 carries 2."""
    policy = Constant.for_envs(wide())
    buffer = rl.RolloutBuffer(4, 2, policy.observation_space, policy.action_space, extra=VERSION)
    collector = make(policy, wide, 2, buffer, max_ahead=0, sync_every=rl.Every(3, "training_step"))
    seen = seven_training_steps(policy, collector)
    assert seen.versions == [{0}] * 3 + [{1}] * 3 + [{2}]
    assert seen.actions == [{0.0}] * 3 + [{3.0}] * 3 + [{6.0}]
    assert collector.settings()["version_lag"] == 0.0


@pytest.mark.parametrize("resets", [True, False])
def test_a_second_run_acts_with_its_own_weights(make: Make, resets: bool) -> None:
    """The counter of epochs has not moved, and the worker is ahead with rows of the first run."""
    policy = Constant.for_envs(wide(2))
    buffer = rl.RolloutBuffer(4, 2, policy.observation_space, policy.action_space, extra=VERSION)
    collector = make(policy, partial(wide, 2), 1, buffer, max_ahead=4, sync_every=rl.Every(1, "epoch"))
    for first in (0.0, 7.0):
        seen = seven_training_steps(policy, collector, reset_collectors=resets)
        assert seen.versions == [{0}] * 7
        assert seen.actions == [{first}] * 7
    assert collector.settings()["version_lag"] == 0.0


def test_workers_that_are_ahead_are_one_version_behind(make: Make) -> None:
    policy = Constant.for_envs(wide())
    buffer = rl.RolloutBuffer(4, 1, policy.observation_space, policy.action_space, extra=VERSION)
    collector = make(policy, wide, 1, buffer, max_ahead=4)
    for step in range(6):
        policy.set(step)
        collector.sync()
        collector.collect(num_steps=4)
        collector._team.settle(keeps=True)
        collector._team._ask(REQUEST, 0, 4)
        collector._team.settle(keeps=True)  # the worker is as far ahead as it may be
        assert versions(collector.rollout()) == [max(step - 1, 0)]
        assert collector.rollout().action[..., 0].unique().tolist() == versions(collector.rollout())
        assert collector.settings() == {"policy_version": step, "version_lag": min(step, 1)}


def test_no_worker_acts_with_half_of_two_versions(make: Make) -> None:
    """The policy acts by the least and the greatest of its weights, which are all equal in each version."""
    policy = Constant.for_envs(wide(), size=200_000)
    buffer = rl.ReplayBuffer(4000, policy.observation_space, policy.action_space, num_envs=2, extra=VERSION)
    collector = make(policy, wide, 2, buffer, max_ahead=2)
    value = 0
    for _ in range(60):
        collector.collect(num_steps=4)
        for _ in range(4):  # while workers collect
            value += 1
            policy.set(value)
            collector.sync()
        action, version = collector.rollout().action, collector.rollout().extra["version"]
        assert (action[..., 2] == 1).all()
        assert (action[..., 0] == action[..., 1]).all()
        assert (action[..., 0] == version).all()
    assert version.max() > 100


def test_other_modules_are_brought_too(make: Make) -> None:
    policy, stand_in, noise = Constant.for_envs(wide()), Constant.for_envs(wide()), TargetNoise()
    buffer = rl.RolloutBuffer(4, 1, policy.observation_space, policy.action_space)
    modules = {"exploration.target": noise.target, "policy": stand_in}
    collector = make(policy, wide, 1, buffer, noise, modules=modules, max_ahead=0)
    for value in (2.0, 3.0):
        stand_in.set(value)
        with torch.no_grad():
            noise.target.bias.fill_(10 * value)
        policy.progress = lambda value=value: value / 4  # type: ignore[misc]  # a trainer's
        collector.sync()
        collector.collect(num_steps=4)
        assert collector.rollout().action[0, 0].tolist() == [value, value, pytest.approx(10 * value + value / 4)]


def test_exploration_and_normalisers_that_are_set_later_reach_the_workers(make: Make) -> None:
    policy = rl.QNetwork.for_envs(counting(), normalize_obs=True)
    buffer = rl.ReplayBuffer(200, policy.observation_space, policy.action_space)
    collector = make(policy, counting, 1, buffer, max_ahead=0)
    assert policy.obs_normalizer is not None
    policy.obs_normalizer.update(collector.collect_random(50).obs.flatten(0, 1))
    collector.sync()
    collector.collect(num_steps=8, explore=False)
    rollout = collector.rollout()
    assert torch.equal(rollout.action[:, 0], policy.select_action(rollout.obs[:, 0]).action)
    rl.DQN(policy, rl.DQNParams(epsilon=1.0))
    collector.collect(num_steps=40)
    assert 5 < int(collector.rollout().action.sum()) < 35


def test_workers_have_seeds_of_their_own(make: Make) -> None:
    def first_obs(seed: int | None, trainer_seed: int | None) -> Any:
        rl.seed(5)
        collector = make(policy, partial(pendulums, 2, seed), 2, copy.deepcopy(buffer))
        if trainer_seed is not None:
            collector.seed(trainer_seed)
        collector.collect(num_steps=4, random=True)
        return collector.rollout().obs[0]

    policy = rl.ActorCritic.for_envs(pendulums())
    buffer = rl.RolloutBuffer(1, 4, policy.observation_space, policy.action_space)
    found = {key: first_obs(*key) for key in [(None, None), (1, None), (None, 2), (1, 2)]}
    for obs in found.values():
        assert len(obs.unique(dim=0)) == 4
    assert torch.equal(found[1, None], found[1, 2])  # an explicit seed wins
    assert torch.equal(first_obs(None, 2), found[None, 2])
    assert torch.equal(first_obs(None, None), found[None, None])  # `rl.seed` reaches the workers
    assert not torch.equal(found[None, None], found[None, 2])


def test_a_transform_of_a_collection_is_stored(make: Make) -> None:
    policy = Constant.for_envs(wide())
    buffer = rl.ReplayBuffer(100, policy.observation_space, policy.action_space, num_envs=2)
    collector = make(policy, wide, 2, buffer)
    shapes = []

    def seven(rollout: rl.Rollout) -> rl.Rollout:
        shapes.append(tuple(rollout.reward.shape))
        return dataclasses.replace(rollout, reward=rollout.reward * 0 + 7)

    for _ in range(2):
        collector.collect(num_steps=6, process=seven)
    assert shapes == [(3, 2)] * 2
    assert buffer.sample(50).reward.unique().tolist() == collector.rollout().reward.unique().tolist() == [7.0]


def test_a_run_goes_on_from_a_checkpoint(make: Make, tmp_path: Path) -> None:
    def trainer() -> Any:
        torch.manual_seed(1)
        policy = Constant.for_envs(wide())
        buffer = rl.ReplayBuffer(200, policy.observation_space, policy.action_space, num_envs=2, extra=VERSION)
        collector = make(policy, partial(counting, length=5, action_space=policy.action_space), 2, buffer)
        params = rl.OffPolicyTrainerParams(
            training_collector=collector, max_epochs=2, epoch_num_steps=20, batch_size=2, seed=1,
            collection_step_num_env_steps=10, **QUIET,
        )  # fmt: skip
        return rl.OffPolicyTrainer(ScriptedOffPolicy(policy), params)

    one = trainer()
    one.execute_epoch()
    one.save(tmp_path / "checkpoint")
    other = trainer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as far as workers were ahead, envs may be in the middle of an episode
        other.restore(tmp_path / "checkpoint")
    result = other.run()
    assert (result.env_step, result.gradient_step, len(other.buffer)) == (40, 40, 40)
    told = other.params.training_collector.settings()
    assert (told["policy_version"], told["utd_ratio"]) == (3, 1)  # four training steps
    single = make(one.algorithm.policy, wide, 1)
    with pytest.raises(CheckpointError, match="collector.workers: expected those of 1 workers, found 2"):
        single.load_state_dict(one.params.training_collector.state_dict())


def test_memory_is_in_the_state_and_warnings_name_the_worker(make: Make) -> None:
    make_envs, policy, buffer = parts_of("recurrent", 1)
    one, other = (make(policy, make_envs, 1, buffer(2), max_ahead=0) for _ in range(2))
    one.seed(1)
    one.collect(num_steps=2)
    state = one.state_dict()
    other.load_state_dict(state)
    for collector in (one, other):
        collector.collect(num_steps=8)
    assert other.rollout().starts.all()
    assert_same(dataclasses.replace(one.rollout(), starts=other.rollout().starts), other.rollout())
    del state["workers"][0]["adapter"]["actions"]
    with pytest.warns(UserWarning, match=r"^worker 0: envs \[0, 1\] were in the middle of an episode, and what led"):
        other.load_state_dict(state)
    state["workers"][0]["num_rows"] = -1
    with pytest.raises(CheckpointError, match="num_rows"):
        other.load_state_dict(state)


def test_what_does_not_fit(make: Make) -> None:
    policy = Constant.for_envs(wide())
    spaces = (policy.observation_space, policy.action_space)
    with pytest.raises(SpaceError, match=r"Collector\.policy\.action_space: expected Discrete\(2\)"):
        make(policy, counting)
    with pytest.raises(ParamsError, match="AsyncCollector.buffer.num_envs: must be made for num_envs=2, those of"):
        make(policy, wide, 2, rl.ReplayBuffer(10, *spaces))
    with pytest.raises(ParamsError, match="AsyncCollector.buffer: must be a ReplayBuffer or RolloutBuffer; got 3"):
        make(policy, wide, 2, 3)
    with pytest.raises(ParamsError, match=r"Collector\.buffer\.extra\['q'\]: must be a column that the policy fills"):
        make(policy, wide, 1, rl.ReplayBuffer(10, *spaces, extra={"q": ((), torch.float32)}))
    with pytest.raises(ParamsError, match="make_envs: must return a gymnasium VectorEnv; got Box"):
        make(policy, partial(gym.spaces.Box, 0, 1))
    with pytest.raises(ParamsError, match=r"AsyncCollector\.modules\['exploration\.target'\]: a worker's collector"):
        make(policy, wide, 1, modules={"exploration.target": torch.nn.Linear(1, 1)}).collect(num_steps=1)
    modules = {"policy": Constant.for_envs(wide(), size=3)}
    with pytest.raises(ParamsError, match=r"modules: must have the same tensors here and in the workers; p"):
        make(policy, wide, 1, modules=modules).collect(num_steps=1)


def test_what_cannot_travel() -> None:
    text = r"must be able to travel to worker processes \(.*\)\. Define its functions and classes at the top level"
    with pytest.raises(ParamsError, match=rf"^AsyncCollector\.policy: {text}"):
        rl.AsyncCollector(Refusing.for_envs(wide()), wide)
    with pytest.raises(ParamsError, match=rf"^AsyncCollector\.make_envs: {text}"):
        rl.AsyncCollector(Constant.for_envs(wide()), lambda: wide())


def test_it_cannot_be_copied(make: Make) -> None:
    collector = make(Constant.for_envs(wide()), wide)
    assert collector.shares_an_env(collector)
    with pytest.raises(EnvError, match="AsyncCollector: cannot be copied, as its envs live in other processes"):
        copy.deepcopy(collector)
    assert not collector.shares_an_env(make(collector.policy, wide))
