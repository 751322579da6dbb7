"""Weights for copies of a policy: when they are due, how they are numbered, what a copy on another device does."""

import multiprocessing
import os
import signal
import time
from typing import Any

import pytest
import torch

import rltrainer as rl
from rltrainer.collect.shared_weights import SharedWeights, layout_of, tensors_of
from rltrainer.collect.weight_sync import CopyElsewhere, SyncState, WeightSync
from rltrainer.errors import EnvError, ParamsError
from tests.unit.collect.async_parts import Constant, seven_training_steps, wide


def brought(every: int | rl.Every | None, counts: list[Any], state: SyncState | None = None) -> list[int | None]:
    """Return which version each look at the counters brings; None for nothing."""
    found: list[int] = []
    sync = WeightSync("Collector", every, found.append)
    if state is not None:
        sync.load(state)
    result: list[int | None] = []
    for count in counts:
        sync.sync(count)
        if every is None:  # those of each training step wait for a collection
            sync.require()
        result.append(found.pop() if found else None)
    return result


def steps(*counts: int) -> list[Any]:
    return [{"training_step": count} for count in counts]


def test_versions_count_from_the_first_weights() -> None:
    assert brought(rl.Every(3, "training_step"), steps(*range(7))) == [0, None, None, 1, None, None, 2]
    assert brought(None, steps(0, 1, 2)) == [0, 1, 2]
    assert brought(rl.Every(1000, "env_step"), [{"env_step": n} for n in range(0, 2100, 300)]) == [
        0, None, None, None, 1, None, None,
    ]  # fmt: skip
    assert brought(rl.Every(3, "training_step"), [None, None, None]) == [0, 1, 2]  # where nobody counts, at once


def test_another_run_begins_with_version_0_also_where_the_counter_has_not_moved() -> None:
    assert brought(rl.Every(2, "training_step"), steps(0, 1, 2, 3, 0, 1, 2)) == [0, None, 1, None, 0, None, 1]
    run = [{"training_step": n, "epoch": 0, "env_step": 4 * n} for n in range(2)]
    for every in (rl.Every(2, "epoch"), rl.Every(9, "env_step"), rl.Every(1e9, "second")):
        assert brought(every, [*run, *run]) == [0, None, 0, None]


def test_a_run_goes_on_with_its_versions() -> None:
    """The weights of a checkpoint are brought as the version that they were saved as."""
    every = rl.Every(3, "training_step")
    assert brought(every, steps(5, 6), SyncState(version=1, seen=4.0)) == [1, 2]
    assert brought(every, steps(6), SyncState(version=1, seen=5.0)) == [2]
    assert brought(rl.Every(1e9, "second"), [{"env_step": 1}], SyncState(version=4, seen=1e12)) == [4]


def test_an_interval_that_the_trainer_does_not_count() -> None:
    text = r"Collector\.sync_every: must be in what the trainer counts \(training_step\); got Every\(n=2, unit='epoch'"
    with pytest.raises(ParamsError, match=text):
        brought(rl.Every(2, "epoch"), steps(1))
    text = r"Collector\.sync_every: must be a positive integer, of training steps, or an Every; got 0 \(int\)"
    with pytest.raises(ParamsError, match=text):
        brought(0, [])


def test_a_copy_elsewhere_has_version_progress_and_exploration() -> None:
    policy = Constant.for_envs(wide())
    copied = CopyElsewhere(policy, torch.device("cpu"))
    policy.set(3.0)
    policy.progress = lambda: 0.5  # type: ignore[method-assign]  # a trainer's
    policy.exploration = rl.GaussianNoise(0.1)
    copied.publish(7)
    assert copied.copy.weight.tolist() == policy.weight.tolist() == [3.0] * 8
    assert (copied.copy.version, copied.copy.progress()) == (7, 0.5)
    assert copied.copy.exploration is policy.exploration
    assert not {id(x) for _, x in tensors_of({"": policy})} & {id(x) for _, x in tensors_of({"": copied.copy})}


@pytest.fixture
def far_collector(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes a collector whose policy claims to be elsewhere, and returns it with the policy."""

    def make(kind: Any, buffer_class: Any, every: int | rl.Every, num_envs: int) -> Any:
        envs = wide(num_envs, in_workers=kind is rl.BatchedCollector)
        policy = Constant.for_envs(envs)
        spaces = (policy.observation_space, policy.action_space)
        buffer = buffer_class(100, num_envs=num_envs, observation_space=spaces[0], action_space=spaces[1],
                              extra={"version": ((), torch.int64)})  # fmt: skip
        monkeypatch.setattr(Constant, "device", torch.device("meta"))
        monkeypatch.setattr(CopyElsewhere, "__init__", _copy_and_come_home(monkeypatch, CopyElsewhere.__init__))
        sync_every = rl.Every(every, "training_step") if isinstance(every, int) else every
        return kind(policy, envs, buffer, device="cpu", sync_every=sync_every), policy

    return make


def _copy_and_come_home(monkeypatch: pytest.MonkeyPatch, init: Any) -> Any:
    def patched(self: Any, policy: Any, device: Any) -> None:
        init(self, policy, device)
        monkeypatch.setattr(Constant, "device", device)

    return patched


def test_a_collector_with_a_device_follows_at_its_interval(far_collector: Any) -> None:
    collector, policy = far_collector(rl.Collector, rl.ReplayBuffer, 2, 1)
    assert collector._acting is not policy
    assert collector.policy is policy
    acted = []
    for step in range(5):
        policy.set(step)
        collector.sync({"training_step": step})
        collector.collect(num_steps=2)
        acted.append(collector.rollout().action[0, 0, 0].item())
    assert acted == [0, 0, 2, 2, 4]
    assert collector.rollout().extra["version"].unique().tolist() == [2]
    assert collector.state_dict()["weights"] == {"version": 2, "seen": 4}
    state = collector.state_dict()
    policy.set(9)
    collector.load_state_dict(state)
    collector.collect(num_steps=2)
    assert collector.rollout().action[0, 0, 0].item() == 9  # the weights that were loaded with it


@pytest.mark.parametrize("kind", [rl.Collector, rl.BatchedCollector])
def test_versions_of_seven_training_steps(far_collector: Any, kind: Any) -> None:
    """As workers in step have them: steps 1 to 3 carry version 0, steps 4 to 6 version 1, step 7 version 2."""
    collector, policy = far_collector(kind, rl.RolloutBuffer, 3, 2)
    seen = seven_training_steps(policy, collector)
    assert collector._acting is not policy
    assert seen.versions == [{0}] * 3 + [{1}] * 3 + [{2}]
    assert seen.actions == [{0.0}] * 3 + [{3.0}] * 3 + [{6.0}]


def test_on_its_own_device_the_policy_itself_acts() -> None:
    envs = wide()
    policy = Constant.for_envs(envs)
    collector = rl.Collector(policy, envs, device="cpu", sync_every=rl.Every(5, "training_step"))
    assert collector._acting is policy
    assert collector.state_dict()["weights"] is None


# Shared memory


def test_tensors_of_all_kinds_pass_through_shared_memory() -> None:
    sources = [torch.arange(6.0).view(2, 3), torch.tensor(5), torch.zeros(0), torch.ones(3, dtype=torch.bool)]
    weights = SharedWeights(layout_of([(str(i), x) for i, x in enumerate(sources)]))
    assert weights.serial == 0
    weights.publish(sources, 4, 0.25, None)
    other = SharedWeights(weights.layout, os.dup(weights.file))
    targets = [torch.empty_like(x) for x in sources]
    assert other.take(targets) == (1, 4, 0.25)
    assert all(torch.equal(a, b) for a, b in zip(sources, targets, strict=True))


def read_for_ever(file: int, ready: Any) -> None:
    import fcntl

    fcntl.lockf(file, fcntl.LOCK_SH)
    ready.set()
    time.sleep(600)


def test_a_reader_that_hangs_is_an_error_and_one_that_died_is_not() -> None:
    weights = SharedWeights([("x", (1,), torch.float32)])
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=read_for_ever, args=(weights.file, ready), daemon=True)
    process.start()
    assert ready.wait(30)
    with pytest.raises(EnvError, match=r"a worker process reads its weights for more than 0\.05 seconds"):
        weights.publish([torch.zeros(1)], 1, 0.0, 0.05)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    weights.publish([torch.zeros(1)], 1, 0.0, 0.05)
    assert weights.serial == 1
