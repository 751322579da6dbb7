"""What an update is given of Dict observations and extra columns."""

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.hooks import SelectKeys
from tests.fakes import ScriptedOnPolicy, counting_envs, tiny_actor_critic
from tests.unit.hooks.fake_run import FakeRun, rollout, transitions

SPACE = gym.spaces.Dict({name: gym.spaces.Box(-1, 1, (2,), np.float32) for name in ("position", "speed", "camera")})
ACTIONS = gym.spaces.Discrete(2)


def run_of(algorithm: type[Any] = rl.PPO, **options: Any) -> FakeRun:
    policy = algorithm.policy_class.for_spaces(SPACE, ACTIONS, **options)
    return FakeRun(algorithm(policy))


def tree(value: float, *shape: int) -> dict[str, torch.Tensor]:
    return {name: torch.full((*shape, 2), value) for name in SPACE.spaces}


BATCH = rollout(
    [[1.0], [2.0]], obs=tree(0.0, 2, 1), last_obs=tree(1.0, 1), final_obs=tree(2.0, 0),
    extra={"margin": torch.zeros(2, 1), "version": torch.ones(2, 1)},
)  # fmt: skip
SEEN = {"net": rl.NetParams(keys=("position", "speed"))}


def test_a_rollout() -> None:
    hook, run = SelectKeys(obs=["speed", "position"], extra=["version"]), run_of(**SEEN)
    hook.setup(run)
    found = hook.batch_process(run, BATCH)
    for trees in (found.obs, found.last_obs, found.final_obs):
        assert list(trees) == ["position", "speed"]  # in the order of the batch
    assert found.extra == {"version": BATCH.extra["version"]}
    assert found.reward is BATCH.reward
    assert list(BATCH.obs) == list(SPACE.spaces)


def test_transitions() -> None:
    hook, run = SelectKeys(obs=["position"]), run_of(rl.DQN, net=rl.NetParams(keys=("position",)))
    hook.setup(run)
    batch = transitions([1.0], obs=tree(0.0, 1), next_obs=tree(1.0, 1), extra={"a": torch.zeros(1)})
    for found in (hook.batch_process(run, batch), hook.process_optim_batch(run, batch)):
        assert list(found.obs) == list(found.next_obs) == ["position"]
        assert list(found.extra) == ["a"]


def test_off_policy_what_is_stored_stays() -> None:
    assert SelectKeys(obs=["position"]).batch_process(run_of(rl.DQN), BATCH) is None


def test_an_update_learns_the_same_without_what_it_does_not_read() -> None:
    def weights(hook: SelectKeys | None) -> torch.Tensor:
        torch.manual_seed(0)
        run = run_of(hidden_sizes=(8,), **SEEN)
        run.algorithm.seed(0)
        batch = BATCH if hook is None else hook.batch_process(run, BATCH)
        run.algorithm.update(batch, None, 2)
        return torch.cat([p.flatten() for p in run.algorithm.policy.parameters()])

    assert torch.equal(weights(None), weights(SelectKeys(obs=["position", "speed"], extra=[])))


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (
            {"obs": ["position", "sped"]},
            SEEN,
            "SelectKeys.obs: 'sped' is missing; there are camera, position, speed. Did",
        ),
        ({"obs": ["position"]}, SEEN, r"SelectKeys.obs: must keep 'speed', which networks read; got \['position'\]"),
        ({"obs": ["position"]}, {}, "SelectKeys.obs: must keep 'camera', which networks read"),
        (
            {"obs": ["position", "speed"]},
            SEEN | {"normalize_obs": True},
            "SelectKeys.obs: must keep 'camera', which networks read",
        ),
    ],
)
def test_keys_are_checked_when_the_run_begins(arguments: Any, options: Any, text: str) -> None:
    with pytest.raises(ParamsError, match=text):
        SelectKeys(**arguments).setup(run_of(**options))


def test_columns_that_the_algorithm_reads_are_kept() -> None:
    policy = rl.RecurrentActorCritic.for_spaces(SPACE, ACTIONS)
    with pytest.raises(
        ParamsError, match=r"SelectKeys.extra: must keep 'state', which its updates read; got \['version'\]"
    ):
        SelectKeys(extra=["version"]).setup(FakeRun(rl.RecurrentPPO(policy)))


def test_probabilities_are_kept_where_copies_of_the_policy_may_lag() -> None:
    policy, hook = rl.ActorCritic.for_spaces(SPACE, ACTIONS), SelectKeys(extra=["version"])
    hook.setup(FakeRun(rl.PPO(policy), training_collector=SimpleNamespace(has_stale_data=False)))
    with pytest.raises(ParamsError, match=r"SelectKeys.extra: must keep 'log_prob', which its updates read; got"):
        hook.setup(FakeRun(rl.PPO(policy), training_collector=SimpleNamespace(has_stale_data=True)))


def test_a_mask_is_kept() -> None:
    space = gym.spaces.Dict({**SPACE.spaces, "action_mask": gym.spaces.MultiBinary(2)})
    run = FakeRun(rl.PPO(rl.ActorCritic.for_spaces(space, ACTIONS, **SEEN)))
    with pytest.raises(ParamsError, match="SelectKeys.obs: must keep 'action_mask', which networks read"):
        SelectKeys(obs=["position", "speed"]).setup(run)


def test_observations_that_are_no_dict_have_no_keys() -> None:
    run = FakeRun(ScriptedOnPolicy(tiny_actor_critic(counting_envs())))
    with pytest.raises(ParamsError, match=r"SelectKeys.obs: must be None where observations are no Dict; got \['x'\]"):
        SelectKeys(obs=["x"]).setup(run)


@pytest.mark.parametrize(
    ("columns", "text"), [({"version": torch.zeros(2, 1)}, "there are version"), ({}, "there are none")]
)
def test_a_missing_column_is_named(columns: Any, text: str) -> None:
    run = run_of()
    with pytest.raises(ParamsError, match=f"SelectKeys.extra: 'log_prob' is missing; {text}"):
        SelectKeys(extra=["log_prob"]).batch_process(run, rollout([[1.0], [2.0]], extra=columns))


@pytest.mark.parametrize("field", ["obs", "extra"])
@pytest.mark.parametrize("value", [-1, 0, float("inf"), float("nan"), "", True, [1], "position"])
def test_arguments(field: str, value: Any) -> None:
    with pytest.raises(ParamsError, match=rf"SelectKeys\.{field}: must be a sequence of names or None; got "):
        SelectKeys(**{field: value})


def test_something_must_be_selected() -> None:
    with pytest.raises(ParamsError, match=r"SelectKeys.obs: must be given, or extra; got None"):
        SelectKeys()
    with pytest.raises(ParamsError, match=r"SelectKeys.obs: must name a key; got \[\] \(list\). None keeps all."):
        SelectKeys(obs=[])
    SelectKeys(extra=[])
