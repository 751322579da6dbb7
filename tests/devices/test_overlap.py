"""Envs that are stepped while the last update runs: weights one update old, always, and no action that waits."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrainer as rl
from benchmarks.one_update_old import OneUpdateOld
from rltrainer.collect.weight_sync import CopyElsewhere, OlderWeights
from rltrainer.errors import CheckpointError, ParamsError
from tests.contract.test_all_algorithms import assert_same_state
from tests.devices.streams import Stream
from tests.devices.test_acting import AUTO
from tests.devices.test_runs import EAGER, made
from tests.fakes import CountingEnv, counting_envs
from tests.resume import runs
from tests.resume.runs import assert_resumes

OVERLAP = rl.RuntimeParams(compile=False, overlap=True)


class WithSchedules(OneUpdateOld):
    """The reference: a plain copy of the weights before each update, with the exploration of the policy."""

    def sync(self, counts: Any = None) -> None:
        super().sync(counts)
        self.actor.progress, self.actor.exploration = self.policy.progress, self.policy.exploration


@pytest.mark.parametrize("name", ["sac", *(pytest.param(n, marks=pytest.mark.full) for n in ("td3", "ddpg_drifting"))])
def test_weights_are_one_update_old(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overlapping = made(name, "cuda", runtime=OVERLAP, max_epochs=3)
    overlapping.run()
    plain = made(name, "cuda", runtime=EAGER, max_epochs=3)
    plain.run()
    monkeypatch.setattr(runs.rl, "Collector", lambda policy, envs, buffer=None, device=None: (
        rl.collect.Collector(policy, envs) if buffer is None else WithSchedules(policy, envs, buffer)
    ))  # fmt: skip
    reference = made(name, "cuda", runtime=EAGER, max_epochs=3)
    reference.run()
    assert_same_state(overlapping.algorithm, reference.algorithm)
    with pytest.raises(AssertionError):
        assert_same_state(overlapping.algorithm, plain.algorithm)
    assert overlapping.params.training_collector.has_stale_data


@pytest.mark.parametrize("name", ["sac_midway", pytest.param("ddpg_drifting_midway", marks=pytest.mark.full)])
def test_a_run_is_resumed_bit_for_bit(name: str, tmp_path: Path) -> None:
    assert_resumes(lambda: made(name, "cuda", runtime=OVERLAP, max_epochs=3), tmp_path)


def test_another_run_begins_with_the_present_weights() -> None:
    trainer = made("sac", "cuda", runtime=OVERLAP)
    trainer.run()
    acting = trainer.params.training_collector._acting
    with pytest.raises(AssertionError):
        assert_same_state(acting, trainer.algorithm.policy)
    trainer.reset()
    assert_same_state(acting, trainer.algorithm.policy)


def test_the_policy_itself_acts_again_for_a_trainer_without_overlap() -> None:
    trainer = made("sac", "cuda", runtime=OVERLAP)
    collector = trainer.params.training_collector
    assert collector._acting is not collector.policy
    rl.OffPolicyTrainer(trainer.algorithm, rl.OffPolicyTrainerParams(training_collector=collector, runtime=AUTO))
    assert collector._acting is collector.policy
    assert not collector.has_stale_data


def test_no_action_waits_for_the_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[bool] = []
    launched = [0]
    step = CountingEnv.step

    def stepped(env: Any, action: Any) -> Any:
        waited.append(Stream.host.get(Stream.default, 0) >= launched[0] > 0)
        return step(env, action)

    monkeypatch.setattr(CountingEnv, "step", stepped)
    found = {}
    for runtime in (OVERLAP, AUTO):
        trainer = made("sac", "cuda", runtime=runtime, max_epochs=3)
        update = trainer.algorithm.update

        def updated(*args: Any, update: Any = update) -> Any:
            result = update(*args)
            launched[0] = Stream.default._time
            return result

        trainer.algorithm.update = updated
        trainer.execute_epoch()
        waited.clear()
        trainer.execute_epoch()
        found[runtime.overlap] = sum(waited[10:20])  # of the second collection: all is over at the end of an epoch
    assert found == {False: 10, True: 0}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_where_it_cannot_be(device: str) -> None:
    text = (
        "RuntimeParams.overlap: must be False unless an off-policy Collector without a device has envs of arrays and a "
        'policy on CUDA; got True (bool). Move the policy, `.to("cuda")`, before its algorithm and collector are made.'
    )
    with pytest.raises(ParamsError, match=re.escape(text)):
        made("ppo" if device == "cuda" else "sac", device, runtime=OVERLAP)
    if device == "cuda":
        with pytest.raises(ParamsError, match=re.escape(text)):
            made("sac", device, runtime=OVERLAP, acting_device="cpu")


def test_weights_of_another_policy_are_refused() -> None:
    envs = counting_envs(2)
    one, other = (rl.Collector(rl.QNetwork.for_envs(envs, hidden_sizes=(n,)).to("cuda"), envs) for n in (4, 5))
    one.overlap()
    other.overlap()
    one.collect(num_steps=4)
    with pytest.raises(CheckpointError, match=r"^collector.older.policy.critic.1.* expected shape"):
        other.prepare_load(one.state_dict())


def test_streams_wait_for_each_other() -> None:
    policy = rl.QNetwork.for_envs(counting_envs(2), hidden_sizes=(4,)).to("cuda")
    older, obs = OlderWeights(CopyElsewhere(policy, torch.device("cuda"))), torch.zeros(2, 2, device="cuda")
    torch.cuda.synchronize()
    with older.acting(continues=False):
        older.copy.act(obs)
    older.publish()  # after they were read
    with older.acting(continues=True):
        older.copy.act(obs)  # after they were written


def test_envs_of_tensors_do_not_overlap() -> None:
    envs = rl.make_vec("CartPole-v1", 2, backend="tensor", device="cuda", seed=1)
    assert not rl.Collector(rl.QNetwork.for_envs(envs).to("cuda"), envs).can_overlap
